"""Proof instead of promise, for your own configuration: resume, ranks, gradients.

Runs are real jobs in a directory that goes away. What one is killed by is SIGKILL, what is compared
are the bits that a run leaves: parameters, optimizer states, and all of its metrics but the clock.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .autograd import GradcheckError, gradcheck
from .backend import default_dtype
from .common.words import listed
from .config.components import is_import_path
from .config.load import load_config
from .config.resolved import as_yaml, resolved_yaml
from .config.schema import Config
from .config.texts import Duration
from .creation import from_numpy
from .errors import ConfigError
from .random import begin_batch, manual_seed
from .report.compare import first_difference
from .runs.arrays import params_sha256
from .runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from .runs.run import Run
from .train.build_run import build_parts
from .train.callbacks.base import Callback
from .train.models_and_losses import loss_of_rows
from .train.run_data import load_data

Start = Callable[[int, list[str]], Any]  # the line that starts so many ranks of a command

STEPS = 320  # enough for `compile: auto` to choose as it would for a long run
FEW = 20  # steps over several ranks: rounding grows with every one
ENTRIES = 8  # of each parameter
ROWS = 5
# How far parameters may be apart that only rounding tells from each other.
ROUNDING = {"float64": 1e-9, "float32": 1e-3}
COMPRESSED = 5e-2


class KillAt(Callback):
    """`kill -9` of this process after a step, once: a resumed run comes past it."""

    interval = "1 step"

    def __init__(self, step: int, mark: str) -> None:
        self.step, self.mark = step, Path(mark)

    def on_step(self, trainer: Any) -> None:
        """Die, perhaps while a checkpoint is written; but not before there is one."""
        if trainer.step == self.step and not self.mark.exists():
            if not list_checkpoints(trainer.path / "checkpoints"):
                trainer.checkpoints.wait()  # to begin again would prove little
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Result(NamedTuple):
    """What a check has shown: `outcome` is ok, FAILED or left out."""

    check: str
    outcome: str
    text: str


class Verification:
    """Checks of one configuration.

    Args:
        config: from `load_config`.
        directory: an empty one, for the jobs.
        launch: gives that line.
        steps: how many the runs have at most; None chooses.
    """

    def __init__(self, config: Config, directory: Path, launch: Start, steps: int | None) -> None:
        self.config, self.directory, self.steps = config, directory, steps
        self.launch = launch
        self._file = directory / "run.yaml"
        self._file.write_text(resolved_yaml(config), encoding="utf-8")

    def resume(self) -> Result:
        """Killed at a random step and resumed, against uninterrupted: the same bits."""
        steps = self._length(STEPS)
        if steps < 2:
            return Result("resume", "left out", "a run of one step cannot be interrupted")
        at = random.SystemRandom().randrange(min(_often(steps) + 1, steps - 1), steps)
        kill = {"type": f"{__name__}:KillAt", "step": at, "mark": str(self.directory / "dead")}
        callbacks = [{"type": c.type, **c.arguments} for c in self.config.callbacks]
        killing = f"callbacks={as_yaml([*callbacks, kill])}"
        try:
            whole = self._run("whole", steps)
            killed = self._run("killed", steps, killing, code=-signal.SIGKILL)
            resumed = self._run("killed", steps, killing, "--resume", "auto")
        except _Failed as error:
            return Result("resume", "FAILED", str(error))
        start = step_of(killed.checkpoints[-1]) if killed.checkpoints else 0
        sha256 = _hashes(whole)["parameters"]
        text = f"the same bits (parameters {sha256[:12]}, {whole.history.rows} rows of metrics)"
        if differ := _differing(whole, resumed):
            text = f"different {', '.join(differ)}"
        text = f"kill -9 after step {at} of {steps}, resumed after step {start}: {text}"
        return Result("resume", "FAILED" if differ else "ok", text)

    def ranks(self, counts: Sequence[int]) -> Result:
        """The same run over several numbers of ranks."""
        shared = self.config.distributed
        world = shared.reproducible == "world"
        usable = [n for n in counts if not (world and n > shared.shards)]
        refused = listed([str(n) for n in counts if n not in usable])
        aside = f"; {refused} left out, more than the shards" if refused else ""
        if len(usable) < 2:
            return Result("ranks", "left out", f"two numbers of ranks are needed{aside}")
        if not shared.sync_batchnorm and not world:
            return Result("ranks", "left out", "sync_batchnorm: false depends on the ranks")
        steps = self._length(STEPS if world else FEW)
        try:
            runs = {n: self._run(f"ranks-{n}", steps, ranks=n) for n in usable}
        except _Failed as error:
            return Result("ranks", "FAILED", str(error))
        first = runs[usable[0]]
        differ = {n: kinds for n, run in runs.items() if (kinds := _differing(first, run))}
        outcome, text = "ok", "the same bits"
        if differ and world:
            outcome = "FAILED"
            text = "; ".join(f"different {', '.join(kinds)} on {n}" for n, kinds in differ.items())
        elif differ:
            outcome, text = self._judged(*max(_distance(first, run) for run in runs.values()))
        text = f"{listed([*map(str, usable)])} ranks, {steps} steps: {text}{aside}"
        return Result("ranks", outcome, text)

    def _judged(self, apart: float, name: str) -> tuple[str, str]:
        """Whether parameters `apart` by so much, `name` the most, are equal but for rounding."""
        compressed = self.config.distributed.compression != "none"
        text = f"parameters differ by {apart:.1e} of their largest value at most ({name})"
        if apart <= (COMPRESSED if compressed else ROUNDING.get(self.config.dtype, 1e-2)):
            text = text if apart else "the same parameters, but not all metrics"
            return "ok", f"{text}: rounding; distributed.reproducible: world gives the same bits"
        text += ", more than rounding"
        if is_import_path(loss := str(self.config.loss.type)):
            text += (
                f"; does the loss {loss} divide by something other than the rows (a mask, "
                "weights)? Then let it return both: return losses.sum(), weights.sum()"
            )
        return "FAILED", text

    def gradients(self) -> Result:
        """Autograd against central differences in float64, entry by entry of each parameter."""
        if self.config.trainer is not None:
            return Result("grad", "left out", "a trainer of your own takes its own steps")
        config = load_config(self._file, ["dtype=float64"])
        differ: dict[str, str] = {}
        with default_dtype("float64"), np.errstate(all="ignore"):
            data = load_data(config)
            module, loss, _ = build_parts(config, data, None)
            module.train()
            tensors = [from_numpy(array) for array in data.train.read(slice(ROWS))]
            at = len(tensors) - 1 - data.train.weighted

            def loss_now(_: Any) -> Any:
                manual_seed(config.seed)  # the same noise and the same masks each time
                begin_batch(0)
                return loss_of_rows(loss, module(*tensors[:at]), *tensors[at:])

            trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
            for name, parameter in trained.items():
                try:
                    gradcheck(loss_now, parameter, entries=ENTRIES)
                except GradcheckError as error:
                    differ[name] = " ".join(str(error).split())
        entries = sum(min(parameter.numel(), ENTRIES) for parameter in trained.values())
        count = len(list(module.parameters()))
        if not differ:
            text = f"{entries} entries of {count} parameters agree with differences"
            return Result("grad", "ok", text)
        name, why = next(iter(differ.items()))
        more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
        text = f"the gradient of {name}{more} is not that of the loss: {why}"
        return Result("grad", "FAILED", text)

    # Jobs -----------------------------------------------------------------------------------------

    def _length(self, most: int) -> int:
        """The steps of a job: those of the run, no more than were asked for."""
        duration, length = Duration(self.config.train.duration), self.steps or most
        if duration.unit == "min":
            return length
        rows = len(load_data(self.config).train)
        size = self.config.train.batch_size
        return min(length, duration.steps(1 if size == "all" else -(-rows // size)))

    def _run(self, name: str, steps: int, *more: str, ranks: int = 0, code: int = 0) -> Run:
        """A short run that evaluates and saves often; _Failed unless it ends with `code`."""
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
        command = [sys.executable, "-m", "microtrain", "train", str(self._file), *overrides, *more]
        environment = dict(os.environ)
        if ranks:
            line = self.launch(ranks, command)
            command, environment = line.command, {**environment, **line.environment}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip
        if done.returncode != code:
            lines = done.stderr.strip().splitlines() or [""]
            said = next((line for line in lines if line.startswith("error:")), lines[-1])
            if done.returncode == ConfigError.exit_code:
                raise ConfigError(
                    f"verify shortens the run to {steps} steps (--steps sets a different number), "
                    f"which does not fit the rest\n{said.removeprefix('error: ')}"
                )
            where = f" on {ranks} ranks" if ranks else ""
            raise _Failed(f"a run{where} ended with exit code {done.returncode}: {said}")
        return Run.read(self.directory / name / "verify")


class _Failed(Exception):
    """A run did not come to its end."""


def _hashes(run: Run) -> dict[str, str]:
    states = params_sha256(load_checkpoint(run.checkpoints[-1]).optimizer)
    return {"parameters": str(run.info.params_sha256), "optimizer states": states}


def _differing(first: Run, second: Run) -> list[str]:
    """What is not the same bits, in words."""
    hashes, others = _hashes(first), _hashes(second)
    kinds = [kind for kind in hashes if hashes[kind] != others[kind]]
    if apart := first_difference([first, second]):
        kinds.append(f"metrics (from step {apart['step']})")
    return kinds


def _distance(first: Run, second: Run) -> tuple[float, str]:
    """The largest relative difference of a parameter, and which one's it is."""
    parameters, others = (load_checkpoint(run.checkpoints[-1]).model for run in (first, second))
    distances = []
    for name, value in parameters.items():
        scale = np.abs(value).max(initial=0.0) or 1.0
        apart = np.abs(np.subtract(value, others[name], dtype=np.float64))
        distances.append((float(apart.max(initial=0.0) / scale), name))
    return max(distances)


def _often(steps: int) -> int:
    """After how many steps a run of so many evaluates and saves."""
    return max(1, steps // 16)
