"""Proof instead of promise, for a configuration of the user's own: resume, ranks, gradients.

Runs are real jobs in a directory that goes away. What one is killed by is SIGKILL, what is compared
are the bits that a run leaves: parameters, optimizer states, and all of its metrics but the clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .autograd import GradcheckError, gradcheck
from .backend import default_dtype
from .config.components import is_import_path
from .config.duration import Duration
from .config.load import load_config
from .config.resolved import as_yaml, resolved_yaml
from .config.schema import Config
from .creation import from_numpy
from .distributed import launch
from .errors import ConfigError
from .random import begin_batch
from .runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from .runs.record import WALL_CLOCK, Run
from .train.build import build_parts, load_data
from .train.callbacks import Callback
from .train.losses import one_loss

__all__ = ["KillAt", "Result", "Verification"]

STEPS = 320  # enough for `compile: auto` to choose as it would for a long run
FEW = 20  # steps over several ranks: rounding grows with every one
ENTRIES = 8  # of each parameter
ROWS = 5
# How far parameters may be apart that only rounding tells from each other.
ROUNDING = {"float64": 1e-9, "float32": 1e-3}
COMPRESSED = 5e-2
PATIENCE = 10.0  # seconds


class KillAt(Callback):
    """`kill -9` of this process after a step, once: a resumed run comes past it.

    Where a checkpoint was due before, it waits for one to be on disk: to begin again proves little.
    """

    interval = "1 step"

    def __init__(self, step: int, mark: str) -> None:
        self.step, self.mark = step, Path(mark)

    def on_step(self, trainer: Any) -> None:
        """Die."""
        if trainer.step < self.step or self.mark.exists():
            return
        due = trainer.step > _often(trainer.total_steps)
        end = time.monotonic() + PATIENCE
        while due and not list_checkpoints(trainer.path / "checkpoints") and time.monotonic() < end:
            time.sleep(0.01)
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _often(steps: int) -> int:
    """After how many steps a run of so many evaluates and saves."""
    return max(1, steps // 16)


class Result(NamedTuple):
    """What was found: `outcome` is ok, FAILED or left out."""

    check: str
    outcome: str
    text: str
    details: dict[str, Any]


class Verification:
    """Checks of one configuration.

    Args:
        config: from `load_config`.
        directory: an empty one, for the jobs.
        steps: how many the runs have at most; None chooses.
    """

    def __init__(self, config: Config, directory: Path, steps: int | None = None) -> None:
        self.config, self.directory, self.steps = config, directory, steps
        self._file = directory / "run.yaml"
        self._file.write_text(resolved_yaml(config), encoding="utf-8")
        self._data = load_data(config)
        epoch = -(-len(self._data.train) // config.train.batch_size)
        duration = Duration(config.train.duration)
        self._all = None if duration.unit == "min" else duration.steps(epoch)

    # Runs -----------------------------------------------------------------------------------------

    def _length(self, most: int) -> int:
        return min(self.steps or most, self._all or most)

    def _job(
        self, name: str, steps: int, *more: str, ranks: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """A short run that evaluates and saves often, in a place of its own."""
        often = f"{_often(steps)} steps"
        settings = {
            "name": "verify",
            "run_dir": str(self.directory / name),
            "train.duration": f"{steps} steps",
            "train.max_time": None,
            "train.eval_every": often,
            "checkpoint.every": often,
        }
        overrides = [f"{key}={as_yaml(value)}" for key, value in settings.items()]
        try:
            load_config(self._file, overrides)
        except ConfigError as error:
            raise ConfigError(
                f"verify shortens the run to {steps} steps (--steps sets another number), which "
                f"does not go with the rest\n{error}"
            ) from error
        command = [sys.executable, "-m", "microtrain", "train", str(self._file), *overrides, *more]
        environment = dict(os.environ)
        if ranks:
            mpirun = launch.matching_mpirun(launch.installed_mpi(), launch.mpiruns())
            line = launch.plan(mpirun, ranks, command)
            command, environment = line.command, {**environment, **line.environment}
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip

    def _finished(self, name: str, steps: int, *more: str, ranks: int = 0) -> _Left:
        """Run to the end; _Failed with what it said otherwise."""
        done = self._job(name, steps, *more, ranks=ranks)
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if line.strip()]
            said = next((w for w in words if w.startswith("error:")), words[-1] if words else "")
            where = f" on {ranks} ranks" if ranks else ""
            raise _Failed(f"a run{where} ended with exit code {done.returncode}: {said}")
        return _left(self.directory / name / "verify")

    def resume(self) -> Result:
        """Killed at a random step and resumed, against uninterrupted: the same bits."""
        steps = self._length(STEPS)
        if steps < 2:
            return Result("resume", "left out", "a run of one step cannot be interrupted", {})
        at = random.SystemRandom().randrange(min(_often(steps) + 1, steps - 1), steps)
        mark = str(self.directory / "killed")
        kill = {"type": f"{__name__}:KillAt", "step": at, "mark": mark}
        callbacks = [{"type": c.type, **c.arguments} for c in self.config.callbacks]
        killing = f"callbacks={as_yaml([*callbacks, kill])}"
        try:
            whole = self._finished("whole", steps)
            killed = self._job("killed-at", steps, killing)
            if killed.returncode != -signal.SIGKILL:
                raise _Failed(f"the run to be killed ended with exit code {killed.returncode}")
            kept = Run.read(self.directory / "killed-at" / "verify").checkpoints
            resumed = self._finished("killed-at", steps, killing, "--resume", "auto")
        except _Failed as error:
            return Result("resume", "FAILED", str(error), {"killed_after": at})
        other = whole.other_than(resumed)
        start = step_of(kept[-1]) if kept else 0
        same = f"parameters {whole.hashes['parameters'][:12]}, {len(whole.rows)} rows of metrics"
        return Result(
            "resume",
            "FAILED" if other else "ok",
            f"kill -9 after step {at} of {steps}, resumed after step {start}: "
            + (f"other {', '.join(other)}" if other else f"the same bits ({same})"),
            {"killed_after": at, "resumed_after": start, "steps": steps, "differ": other,
             "uninterrupted": whole.hashes, "resumed": resumed.hashes},
        )  # fmt: skip

    def ranks(self, counts: Sequence[int]) -> Result:
        """The same run over several numbers of ranks."""
        shared = self.config.distributed
        world = shared.reproducible == "world"
        usable = [n for n in counts if not (world and shared.shards % n)]
        refused = [n for n in counts if n not in usable]
        aside = f"; {_and(refused)} left out, they do not divide the shards" if refused else ""
        if len(usable) < 2:
            return Result("ranks", "left out", f"two numbers of ranks are needed{aside}", {})
        if not shared.sync_batchnorm and not world:
            return Result("ranks", "left out", "sync_batchnorm: false depends on the ranks", {})
        steps = self._length(STEPS if world else FEW)
        try:
            runs = {n: self._finished(f"ranks-{n}", steps, ranks=n) for n in usable}
        except _Failed as error:
            return Result("ranks", "FAILED", str(error), {})
        first = runs[usable[0]]
        details: dict[str, Any] = {"hashes": {n: run.hashes for n, run in runs.items()}}
        differ = {n: other for n, run in runs.items() if (other := first.other_than(run))}
        outcome = "ok"
        if not differ:
            text = "the same bits"
        elif world:
            outcome, details["differ"] = "FAILED", differ
            text = "; ".join(f"other {', '.join(other)} on {n}" for n, other in differ.items())
        else:
            apart, name = max(first.distance(run) for run in runs.values())
            details["largest_relative_difference"] = apart
            outcome, text = self._judged(apart, name)
        return Result(
            "ranks", outcome, f"{_and(usable)} ranks, {steps} steps: {text}{aside}", details
        )

    def _judged(self, apart: float, name: str) -> tuple[str, str]:
        """Whether parameters `apart` by so much, `name` the most, are equal but for rounding."""
        compressed = self.config.distributed.compression != "none"
        limit = COMPRESSED if compressed else ROUNDING.get(self.config.dtype, 1e-2)
        text = f"parameters differ by {apart:.1e} of their largest value at most ({name})"
        if apart <= limit:
            text = text if apart else "the same parameters, but not all metrics"
            return "ok", f"{text}: rounding; distributed.reproducible: world gives the same bits"
        if is_import_path(loss := str(self.config.loss.type)):
            text += (
                f", more than rounding; does the loss {loss} divide by something other than the "
                "rows (a mask, weights)? Then let it return both: return losses.sum(), "
                "weights.sum()"
            )
            return "FAILED", text
        return "FAILED", f"{text}, more than rounding"

    # Gradients ------------------------------------------------------------------------------------

    def gradients(self) -> Result:
        """Autograd against central differences in float64, entry by entry of each parameter."""
        if self.config.trainer is not None:
            return Result("grad", "left out", "a trainer of one's own has a step of its own", {})
        config = load_config(self._file, ["dtype=float64"])
        bad: dict[str, str] = {}
        with default_dtype("float64"), np.errstate(all="ignore"):
            module, loss, _ = build_parts(config, self._data, None)
            module.train()
            rows = self._data.train[:ROWS]
            *inputs, target = (
                from_numpy(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in rows
            )

            def loss_now(_: Any) -> Any:
                begin_batch(0)  # the same masks each time
                return one_loss(loss(module(*inputs), target))

            trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
            for name, parameter in trained.items():
                try:
                    gradcheck(loss_now, parameter, entries=ENTRIES)
                except GradcheckError as error:
                    bad[name] = " ".join(str(error).split())
        checked = sum(min(parameter.numel(), ENTRIES) for parameter in trained.values())
        count = len(list(module.parameters()))
        details = {"parameters": count, "entries": checked, "differ": bad}
        if bad:
            name, why = next(iter(bad.items()))
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            text = f"the gradient of {name}{more} is not that of the loss: {why}"
            return Result("grad", "FAILED", text, details)
        text = f"{checked} entries of {count} parameters agree with differences"
        return Result("grad", "ok", text, details)


class _Failed(Exception):
    """A run did not come to its end."""


class _Left(NamedTuple):
    """What a finished run left behind."""

    hashes: dict[str, str]
    rows: list[str]
    parameters: dict[str, Any]

    def other_than(self, other: _Left) -> list[str]:
        """What differs, in words."""
        kinds = [kind for kind, value in self.hashes.items() if other.hashes[kind] != value]
        if self.rows != other.rows:
            pairs = zip(self.rows, other.rows, strict=False)
            first = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), "the end")
            kinds.append(f"metrics (from row {first})")
        return kinds

    def distance(self, other: _Left) -> tuple[float, str]:
        """The largest relative difference of a parameter, and which one's it is."""
        distances = []
        for name, value in self.parameters.items():
            scale = np.abs(value).max(initial=0.0) or 1.0
            apart = np.abs(np.subtract(value, other.parameters[name], dtype=np.float64))
            distances.append((float(apart.max(initial=0.0) / scale), name))
        return max(distances)


def _left(directory: Path) -> _Left:
    run = Run.read(directory)
    checkpoint = load_checkpoint(run.checkpoints[-1])
    optimizer = (checkpoint.path / "optimizer.safetensors").read_bytes()
    rows = [json.dumps({key: row[key] for key in row if key not in WALL_CLOCK}) for row in run.rows]
    hashes = {
        "parameters": str(run.info.params_sha256),
        "optimizer states": hashlib.sha256(optimizer).hexdigest(),
    }
    return _Left(hashes, rows, checkpoint.model)


def _and(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
