"""What a run left behind, read back: checked as data, and never executed.

A run directory may be someone else's, still being written, or damaged. No import path in it is
followed. run.json is looked at once, where it is read, as the type that it should be; what is not
of the expected kind is one DataError that names file and key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..common.files import open_plain, read_plain, reason, typed
from ..common.words import number
from ..config.resolved import Setting, read_settings
from ..config.texts import Measure
from ..errors import DataError
from .checkpoint import (
    MANIFEST,
    Checkpoint,
    Count,
    Number,
    OtherRun,
    had_checkpoints,
    list_checkpoints,
    load_checkpoint,
    load_newest_checkpoint,
    peek_state,
    step_of,
)
from .directory import find_run, read_run_json
from .metrics import RESERVED, SPLITS, ClassCounts, History, Importance
from .state import Best


@dataclass(frozen=True)
class Git:
    """The commit that a run was started from."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class RunInfo:
    """run.json; any key may be absent, since a run is read at any moment of its life."""

    id: str | None = None
    status: str = "unknown"
    exit_code: int | None = None
    name: str = ""
    started: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    git: Git | None = None
    command: list[str] = field(default_factory=list)
    parameters: int | None = None
    hosts: list[str] = field(default_factory=list)
    ranks: int = 1
    compile: dict[str, Any] | None = None
    steps: int | None = None
    higher_is_better: dict[str, bool | None] = field(default_factory=lambda: {"loss": False})
    best: Best | None = None
    test: dict[str, float | None] | None = None
    classes: ClassCounts | None = None
    importance: Importance | None = None
    params_sha256: str | None = None
    data_hash: str | None = None
    error: str | None = None
    timings: dict[str, Number | None] = field(default_factory=dict)
    sweep: bool = False
    members: dict[str, int] = field(default_factory=dict)
    best_member: str | int | None = None
    halved: dict[str, list[Count]] = field(default_factory=dict)
    of_sweep: str | None = None
    rung: int | None = None
    has_checkpoints: bool = False


def read_info(path: Path) -> RunInfo:
    """A run.json; DataError for what is not as it should be."""
    try:
        return typed(RunInfo, read_run_json(path))
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from None


Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # optimizer steps, values


@dataclass(frozen=True)
class Run:
    """A run as it was written down.

    Attributes:
        path: the run directory, links resolved.
        info: its run.json.
        config_text: its config.yaml.
        checkpoints: its complete checkpoints, oldest first; may be empty.
        sweep: the sweep in whose place it was read, as one of its members.

    Example:
        >>> run = Run.read("runs/linreg")
        >>> steps, values = run.curve("val/loss")
    """

    path: Path
    info: RunInfo
    config_text: str
    checkpoints: list[Path]
    sweep: Run | None = None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Find and read a run: its directory, a `latest` link, or `<runs>/<name>` for its newest.

        Raises DataError (exit code 3) saying what is missing or damaged, and what was looked for.
        """
        try:
            directory = find_run(path).resolve()
            return cls(
                path=directory,
                info=read_info(directory / "run.json"),
                config_text=read_plain(directory / "config.yaml").decode(),
                checkpoints=list_checkpoints(directory / "checkpoints"),
            )
        except (OSError, UnicodeDecodeError) as error:
            detail = reason(error) if isinstance(error, OSError) else "config.yaml is not UTF-8"
            raise DataError(f"cannot read the run {path}: {detail}") from error

    @property
    def members(self) -> list[Path]:
        """The directories of the members of a sweep that have begun, in order."""
        return sorted(path.parent for path in self.path.glob("members/[0-9]*/run.json"))

    def one(self) -> Self:
        """Itself; of a sweep its best member. Raises DataError while there is none."""
        if not self.info.sweep:
            return self
        number, there = self.info.best_member, self.members
        if not isinstance(number, str) or not there:
            why = f"its status is {self.status}; microtrain resume {self.path}"
            if self.info.status == "finished":
                why = "no member has finished with a value of what is monitored"
            raise DataError(f"the sweep {self.path} has no best member: {why}")
        best = self.read(self.path / "members" / Path(number).name)
        if (best.info.of_sweep, best.info.best) != (self.info.id, self.info.best):
            raise DataError(
                f"{best.path} is not what {self.path / 'run.json'} says of the best member "
                f"({self.info.best}): it was changed since, or is of a different sweep; name the "
                "member that you mean"
            )
        return best

    @property
    def name(self) -> str:
        """The run's name, else its directory's."""
        return self.info.name or self.path.parent.name

    @property
    def label(self) -> str:
        """Name and time: `linreg/2026-11-21_13-35-07`."""
        return f"{self.name}/{self.path.name}"

    @property
    def metrics_file(self) -> Path:
        """Where its rows are."""
        return self.path / "metrics.jsonl"

    @cached_property
    def history(self) -> History:
        """Its metrics.jsonl, as columns; not finite numbers are nan. Raises DataError."""
        return History.read(self.metrics_file) if self.metrics_file.exists() else History()

    @cached_property
    def columns(self) -> list[Measure]:
        """What was measured, `train/loss` first: split and field, in the order of the rows."""
        history = self.history
        fields = ["loss", *(name for name in history.fields if name not in RESERVED)]
        return [
            Measure.of(split, each)
            for each in fields
            for split in SPLITS
            if each in history.splits.get(split, ())
        ]

    @property
    def fields(self) -> list[str]:
        """The columns without their split: `loss`, then the metrics."""
        return list(dict.fromkeys(column.field for column in self.columns))

    def direction(self, column: str) -> int:
        """1 where a higher value of a column is better, -1 where a lower one is, 0: not known.

        What is monitored has a direction where its metric does not say it.
        """
        higher = self.info.higher_is_better.get(Measure(column).field)
        if higher is None and column == self.monitor:
            higher = self.setting("checkpoint.mode") == "max"
        return 0 if higher is None else 1 if higher else -1

    @cached_property
    def config(self) -> dict[str, Setting]:
        """Its resolved configuration, by dotted key. Raises DataError."""
        return read_settings(self.config_text, self.path / "config.yaml")

    def setting(self, key: str) -> str:
        """The value of a key as text; empty where it has none."""
        return str(self.config[key].value or "") if key in self.config else ""

    @property
    def monitor(self) -> str:
        """The column whose best value counts."""
        if self.info.best is not None:
            return self.info.best.name
        usual = "val/loss" if "val/loss" in self.columns else "train/loss"
        return self.setting("checkpoint.monitor") or usual

    def best(self, column: str) -> tuple[float, int] | None:
        """The best value of a column and its step, the first of equals; None if none is better."""
        steps, values = self.curve(column)
        sign, finite = self.direction(column), np.isfinite(values)
        if sign == 0 or not finite.any():
            return None
        index = int(np.where(finite, sign * values, -np.inf).argmax())
        return float(values[index]), int(steps[index])

    def curve(self, column: str) -> Series:
        """Steps and values of a column such as `val/loss`."""
        steps, values = self.history.series(Measure(column).part, Measure(column).field)
        return steps.astype(np.float64), values

    @cached_property
    def status(self) -> str:
        """That of run.json; `killed` where it says running and nobody holds the lock any more."""
        if self.info.status != "running":
            return self.info.status
        try:
            with open_plain(self.path / "run.lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # it is held, or there are no locks here
            return "running"
        return "killed"

    @cached_property
    def best_so_far(self) -> Best | None:
        """The best value of the monitored column; run.json has it from the end of a run on."""
        if self.info.status != "running":
            return self.info.best
        states = map(peek_state, reversed(self.checkpoints))
        best = next((state.get("best") for state in states if state), None)
        with contextlib.suppress(ValueError):
            return typed(Best, best)
        return None

    @cached_property
    def data_hash(self) -> str | None:
        """Of all rows that it was given, None where it left no checkpoint."""
        hashes = (peek_state(path).get("data_hash") for path in reversed(self.checkpoints))
        return self.info.data_hash or next((h for h in hashes if isinstance(h, str)), None)

    @property
    def had_checkpoints(self) -> bool:
        """Whether it has written one, be it there or not."""
        return self.info.has_checkpoints or had_checkpoints(self.path / "checkpoints")

    def own(self, checkpoint: Checkpoint) -> None:
        """OtherRun where a checkpoint was written by another run than this."""
        if (its := checkpoint.state.get("run")) != self.info.id:
            raise OtherRun(
                f"{checkpoint.path} names a different run: {its or '(none)'!s:.40}, not that of "
                f"{self.path / 'run.json'}, {self.info.id or '(none)'!s:.40}\nput it "
                "back where it was, or use it by itself: a checkpoint is a path like a run's"
            )

    def checkpoint(
        self, which: str | int, warn: Callable[[str], None]
    ) -> tuple[Checkpoint, str, str]:
        """The checkpoint `best`, `last` or of a step, its name in words, and why not the best.

        `best` is the one by which the run is known: all that tells of a trained model takes it, so
        that all tell of the same. Where there is none, or it is damaged, the newest that is whole
        takes its place; `warn` gets the text of each damaged one. Raises DataError where there is
        none, and OtherRun for one of another run.
        """
        paths = {step_of(path): path for path in self.checkpoints}
        fell_back = ""
        if which == "best" and (best := self.best_so_far) is not None:
            measured = f"{best.name} {number(best.value)}"
            fell_back = f"the best, of step {best.step:,} ({measured}), was not kept"
            if best.step in paths:
                chosen = f"checkpoint of step {best.step:,}, the best ({measured})"
                try:
                    loaded = load_checkpoint(paths[best.step])
                    self.own(loaded)
                    return loaded, chosen, ""
                except OtherRun:
                    raise
                except DataError as error:
                    fell_back = f"the best, of step {best.step:,}, cannot be used ({error})"
        if which in ("best", "last"):
            last = load_newest_checkpoint(self.path / "checkpoints", warn, self.own)
            return last, f"checkpoint of step {last.step:,}, the last", fell_back
        if (step := int(which)) not in paths:
            there = ", ".join(map(str, paths))
            raise DataError(f"{self.path} has no checkpoint of step {step}; there are {there}")
        loaded = load_checkpoint(paths[step])
        self.own(loaded)
        return loaded, f"checkpoint of step {step:,}", ""


def checkpoint_at(path: str | Path, warn: Callable[[str], None]) -> Checkpoint:
    """The checkpoint at `path`, or the newest whole one of the run at `path` or newest below it.

    Raises DataError where there is none.
    """
    directory = Path(os.path.expanduser(path))
    if os.path.exists(directory / MANIFEST):
        return load_checkpoint(directory)
    if list_checkpoints(directory):
        return load_newest_checkpoint(directory, warn)
    run = Run.read(path).one()
    return load_newest_checkpoint(run.path / "checkpoints", warn, run.own)


def history(run: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """What a run has measured, as arrays side by side: `step` and columns such as `val/loss`.

    Args:
        run: its directory, or `<runs>/<name>` for the newest of that name; of a sweep its best
            member. It may be under way.

    Returns:
        By name arrays of one length: `step`, int64, every step at which anything was measured;
        `epoch`, `samples`, `time` (seconds of training) and each measure, float64, nan at steps
        where it was not measured.

    Raises DataError for what is missing or damaged.

    Example:
        >>> found = mt.history("runs/linreg")
        >>> rows = ~np.isnan(found["val/loss"])
        >>> steps, losses = found["step"][rows], found["val/loss"][rows]
    """
    return Run.read(Path(run)).one().history.arrays()
