"""Small runs that are interrupted and resumed, and what of a run must then be the same bits."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from microtrain.config.load import load_config
from microtrain.distributed import Communicator
from microtrain.distributed.single import SingleCommunicator
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.train.callbacks.base import Callback, Event
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

WALL_CLOCK = ("time", "samples_per_s", "comm_share")

# Everything that a step may leave behind: draws, running statistics, batches of two sizes.
NET = """
import os
import signal
import time

import microtrain as mt

class Net(mt.nn.Module):
    def __init__(self, in_features, drop=0.3, norm=True):
        super().__init__()
        self.first = mt.nn.Linear(in_features, 6)
        self.norm = mt.nn.BatchNorm1d(6) if norm else mt.nn.Identity()
        self.drop = mt.nn.Dropout(drop)
        self.last = mt.nn.Linear(6, 1)

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)).relu())
        if self.training:
            x = x + 1e-5 * mt.randn_like(x) * mt.rand((), device=x.device)
        return self.last(x)

class Count(mt.train.Callback):
    interval = "1 step"

    def __init__(self):
        self.steps = 0

    def on_step(self, trainer):
        self.steps += 1
        assert self.steps == trainer.step  # also after a resume

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

class Slow(mt.train.Callback):
    interval = "1 step"

    def on_step(self, trainer):
        time.sleep(0.01)

class Enough(mt.train.Callback):
    interval = "110 steps"

    def on_step(self, trainer):
        trainer.stop("enough")

class Die(mt.train.Callback):  # of SIGKILL, after a step
    interval = "1 step"

    def __init__(self, step, rank=0):
        self.step, self.rank = step, rank

    def on_step(self, trainer):
        if trainer.step == self.step and trainer.comm.rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)
"""

RUN = """
name: small
data: {type: npz, path: data.npz, split: {train: 0.75, val: 0.25}}
model: ./net.py:Net
loss: mse
metrics: [r2]
optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
train: {duration: 23 steps, batch_size: 10, eval_every: 4 steps, compile: off}
checkpoint: {every: 3 steps}
callbacks: [./net.py:Count]
"""


def write_run(folder: Path, text: str = RUN) -> Path:
    """A configuration, its data (48 rows to train on: five batches, the last of 8), its model."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.5]]) + rng.standard_normal((64, 1))).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=y)
    (folder / "net.py").write_text(NET)
    (folder / "run.yaml").write_text(text)
    return folder / "run.yaml"


class Crash(Exception):
    """What ends a run in the middle of a step."""


class CrashAt(Callback):
    """Ends a run after a step, and does not change it."""

    def __init__(self, step: int) -> None:
        self.at = step

    def due(self, trainer: Trainer, step: int) -> float:
        return self.at

    def on_pause(self, trainer: Trainer, event: Event) -> None:
        if event.step == self.at:
            raise Crash


def train(
    config: Path,
    *overrides: str,
    crash: int | None = None,
    resume: Path | None = None,
    comm: Communicator | None = None,
) -> Trainer:
    """A run in this process; with `crash` it ends by an error after that step."""
    comm = comm or SingleCommunicator()
    settings = load_config(config, [f"run_dir={config.parent / 'runs'}", *overrides], trust=True)
    with open(os.devnull, "w") as nowhere:
        output = Output(comm.rank, stream=nowhere)
        trainer = Trainer.from_config(settings, comm, output, resume=resume)
        if crash is not None:
            trainer.callbacks.insert(0, CrashAt(crash))
            try:
                trainer.train()
            except Crash:
                return trainer
            raise AssertionError(f"the run ended before step {crash}")
        trainer.code = trainer.train()
    return trainer


def facts(run: Path) -> dict[str, Any]:
    """What a run left, but for the clock: equal for equal runs."""
    info = json.loads((run / "run.json").read_text())
    newest = list_checkpoints(run / "checkpoints")[-1]
    state = json.loads((newest / "state.json").read_text())
    kept = ("step", "samples", "monitored", "best", "random", "progress", "options")
    return {
        **{key: info.get(key) for key in ("status", "steps", "params_sha256", "best", "test")},
        **{name: hashlib.sha256((newest / f"{name}.safetensors").read_bytes()).hexdigest()
           for name in ("model", "optimizer")},
        **{f"state of {key}": state[key] for key in kept},
        "executor": state["compile"]["executor"],
        "callbacks": [each for each in state["callbacks"] if each[1]],
        "checkpoints": [path.name for path in list_checkpoints(run / "checkpoints")],
        "metrics": metrics(run),
    }  # fmt: skip


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """What differs in the facts of two runs, one of which was killed: it may lack checkpoints."""
    found, expected = ({**facts, "checkpoints": None} for facts in (found, expected))
    return {key: (value, expected[key]) for key, value in found.items() if value != expected[key]}


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without the clock's values."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in WALL_CLOCK} for row in rows]
