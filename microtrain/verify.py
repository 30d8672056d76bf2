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
from .config.resolved import resolved_yaml
from .config.section import Section
from .creation import from_numpy
from .distributed import launch
from .errors import ConfigError
from .random import begin_batch
from .runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from .runs.record import WALL_CLOCK, Run, read_metrics
from .train.callbacks import Callback
from .train.losses import one_loss
from .train.parts import build_parts, load_data

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

    def __init__(self, config: Section, directory: Path, steps: int | None = None) -> None:
        self.config, self.directory, self.steps = config, directory, steps
        self._jobs = 0
        self._data = load_data(config)
        epoch = -(-len(self._data.train) // config.train.batch_size)
        duration = Duration(config.train.duration)
        self._all = None if duration.unit == "min" else duration.steps(epoch)

    # Runs -----------------------------------------------------------------------------------------

    def _length(self, most: int) -> int:
        return min(self.steps or most, self._all or most)

    def _write(self, steps: int, callbacks: Sequence[Section] = ()) -> Path:
        """A configuration of a short run that evaluates and saves often."""
        config = _copied(self.config)
        often = f"{_often(steps)} steps"
        config.train.update(duration=f"{steps} steps", max_time=None, eval_every=often)
        config.checkpoint["every"] = often
        self._jobs += 1
        path = self.directory / f"run{self._jobs}.yaml"
        config.update(name="verify", run_dir=str(self._runs(path)))
        config["callbacks"] = [*config.callbacks, *callbacks]
        path.write_text(resolved_yaml(config), encoding="utf-8")
        try:
            load_config(path)
        except ConfigError as error:
            raise ConfigError(
                f"verify shortens the run to {steps} steps (--steps sets another number), which "
                f"does not go with the rest\n{error}"
            ) from error
        return path

    def _job(self, path: Path, ranks: int = 0, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "microtrain", "train", str(path), *arguments]
        environment = dict(os.environ)
        if ranks:
            mpirun = launch.matching_mpirun(launch.installed_mpi(), launch.mpiruns())
            line = launch.plan(mpirun, ranks, command)
            command, environment = line.command, {**environment, **line.environment}
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip

    def _finished(self, path: Path, ranks: int = 0, *arguments: str) -> _Left:
        """Run to the end; _Failed with what it said otherwise."""
        done = self._job(path, ranks, *arguments)
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if line.strip()]
            said = next((w for w in words if w.startswith("error:")), words[-1] if words else "")
            where = f" on {ranks} ranks" if ranks else ""
            raise _Failed(f"a run{where} ended with exit code {done.returncode}: {said}")
        return _left(self._runs(path) / "verify")

    def _runs(self, path: Path) -> Path:
        return path.with_name(f"runs-of-{path.stem}")

    def resume(self) -> Result:
        """Killed at a random step and resumed, against uninterrupted: the same bits."""
        steps = self._length(STEPS)
        if steps < 2:
            return Result("resume", "left out", "a run of one step cannot be interrupted", {})
        at = random.SystemRandom().randrange(min(_often(steps) + 1, steps - 1), steps)
        kill = Section(kind="callbacks")
        mark = str(self.directory / "killed")
        kill.update(type=f"{__name__}:KillAt", step=at, mark=mark)
        try:
            whole = self._finished(self._write(steps))
            path = self._write(steps, [kill])
            killed = self._job(path)
            if killed.returncode != -signal.SIGKILL:
                raise _Failed(f"the run to be killed ended with exit code {killed.returncode}")
            kept = Run.read(self._runs(path) / "verify").checkpoints
            resumed = self._finished(path, 0, "--resume", "auto")
        except _Failed as error:
            return Result("resume", "FAILED", str(error), {"killed_after": at})
        other = whole.other_than(resumed)
        start = step_of(kept[-1]) if kept else 0
        story = f"kill -9 after step {at} of {steps}, resumed after step {start}"
        same = f"parameters {whole.hashes['parameters'][:12]}, {len(whole.rows)} rows of metrics"
        return Result(
            "resume",
            "FAILED" if other else "ok",
            f"{story}: " + (f"other {', '.join(other)}" if other else f"the same bits ({same})"),
            {"killed_after": at, "resumed_after": start, "steps": steps, "differ": other,
             "uninterrupted": whole.hashes, "resumed": resumed.hashes},
        )  # fmt: skip

    def ranks(self, counts: Sequence[int]) -> Result:
        """The same run over several numbers of ranks."""
        shared, dtype = self.config.distributed, self.config.dtype
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
            found = {n: self._finished(self._write(steps), n) for n in usable}
        except _Failed as error:
            return Result("ranks", "FAILED", str(error), {})
        first = found[usable[0]]
        who = f"{_and(usable)} ranks, {steps} steps: "
        details: dict[str, Any] = {"hashes": {n: one.hashes for n, one in found.items()}}
        parts = {n: other for n, one in found.items() if (other := first.other_than(one))}
        if not parts:
            return Result("ranks", "ok", f"{who}the same bits{aside}", details)
        if world:
            text = "; ".join(f"other {', '.join(other)} on {n}" for n, other in parts.items())
            return Result("ranks", "FAILED", who + text + aside, {**details, "differ": parts})
        limit = COMPRESSED if shared.compression != "none" else ROUNDING.get(dtype, 1e-2)
        apart, name = max(first.distance(one) for one in found.values())
        details["largest_relative_difference"] = apart
        text = f"parameters differ by {apart:.1e} of their largest value at most ({name})"
        if not apart:
            text = "the same parameters, but not all metrics"
        if not apart <= limit:
            hint = ""
            if is_import_path(name := str(self.config.loss.type)):
                hint = (
                    f"; does the loss {name} divide by something other than the rows (a mask, "
                    "weights)? Then let it return both: return losses.sum(), weights.sum()"
                )
            return Result(
                "ranks", "FAILED", f"{who}{text}, more than rounding{hint}{aside}", details
            )
        hint = "rounding; distributed.reproducible: world gives the same bits"
        return Result("ranks", "ok", f"{who}{text}: {hint}{aside}", details)

    # Gradients ------------------------------------------------------------------------------------

    def gradients(self) -> Result:
        """Autograd against central differences in float64, entry by entry of each parameter."""
        config = _copied(self.config)
        if config.trainer is not None:
            return Result("grad", "left out", "a trainer of one's own has a step of its own", {})
        config["dtype"] = "float64"
        with default_dtype("float64"), np.errstate(all="ignore"):
            module, loss, _ = build_parts(config, self._data, None)
            module.train()
            rows = self._data.train[:ROWS]
            arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in rows]
            *inputs, target = map(from_numpy, arrays)
            rng = np.random.default_rng(0)
            bad: dict[str, str] = {}
            checked = 0
            for name, param in module.named_parameters():
                if not param.requires_grad:
                    continue
                size = param.numel()
                places = np.sort(rng.choice(size, min(size, ENTRIES), replace=False))
                checked += len(places)
                holders = [
                    (vars(one), key)
                    for one in module.modules()
                    for key, value in vars(one).items()
                    if value is param
                ]

                def shifted(
                    by: Any, param: Any = param, places: Any = places, holders: Any = holders
                ) -> Any:
                    flat = param.detach().reshape(-1).scatter_add(0, from_numpy(places), by)
                    moved = flat.reshape(param.shape)
                    begin_batch(0)  # the same masks each time
                    try:
                        for attributes, key in holders:
                            attributes[key] = moved
                        return one_loss(loss(module(*inputs), target))
                    finally:
                        for attributes, key in holders:
                            attributes[key] = param

                zeros = from_numpy(np.zeros(len(places))).requires_grad_()
                try:
                    gradcheck(shifted, zeros)
                except GradcheckError as error:
                    bad[name] = " ".join(str(error).split())
        details = {"parameters": len(list(module.parameters())), "entries": checked, "differ": bad}
        if bad:
            name, why = next(iter(bad.items()))
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            text = f"the gradient of {name}{more} is not that of the loss: {why}"
            return Result("grad", "FAILED", text, details)
        text = f"{checked} entries of {details['parameters']} parameters agree with differences"
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
        found = [kind for kind, value in self.hashes.items() if other.hashes[kind] != value]
        if self.rows != other.rows:
            pairs = zip(self.rows, other.rows, strict=False)
            first = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), "the end")
            found.append(f"metrics (from row {first})")
        return found

    def distance(self, other: _Left) -> tuple[float, str]:
        """The largest relative difference of a parameter, and which one's it is."""
        found = []
        for name, value in self.parameters.items():
            scale = np.abs(value).max(initial=0.0) or 1.0
            apart = np.abs(np.subtract(value, other.parameters[name], dtype=np.float64))
            found.append((float(apart.max(initial=0.0) / scale), name))
        return max(found)


def _left(place: Path) -> _Left:
    run = Run.read(place)
    checkpoint = load_checkpoint(run.checkpoints[-1])
    optimizer = (checkpoint.path / "optimizer.safetensors").read_bytes()
    rows = [
        json.dumps({key: row[key] for key in row if key not in WALL_CLOCK})
        for row in read_metrics(run.metrics_file)
    ]
    hashes = {
        "parameters": str(run.info.params_sha256),
        "optimizer states": hashlib.sha256(optimizer).hexdigest(),
    }
    return _Left(hashes, rows, checkpoint.model)


def _copied(section: Section) -> Section:
    """A copy whose sections are its own."""
    copy = Section(kind=section.kind)
    copy.origins = dict(section.origins)
    for key, value in section.items():
        copy[key] = _copied(value) if isinstance(value, Section) else value
    return copy


def _and(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
