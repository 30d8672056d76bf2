"""A run with its settings, as plot, report and compare see it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..config.resolved import Setting, as_yaml, read_settings
from ..config.texts import Measure
from ..errors import DataError
from ..runs.run import Run

PLACES = ("name", "run_dir")  # where a run is kept says nothing of what it computes
LUCK = ("seed", "data.split.fold")  # what runs of one setting differ in


@dataclass(frozen=True)
class Record(Run):
    """A run, the settings it had, and which of its values are best.

    Attributes:
        sweep: the sweep in whose place it was read, as one of its members.
    """

    sweep: Record | None = None

    @classmethod
    def read(cls, path: str | Path, sweep: Record | None = None, finished: bool = False) -> Self:
        """As `Run.read`; all of it is read and checked here. Raises DataError.

        `finished`: it has, and its run.json does not say so yet.
        """
        record = replace(super().read(path), sweep=sweep)
        if finished:
            record = replace(record, info=replace(record.info, status="finished", exit_code=0))
        _ = record.history, record.config
        return record

    @cached_property
    def config(self) -> dict[str, Setting]:
        """Its resolved configuration, by dotted key."""
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
        sign = self.direction(column)
        if sign == 0 or not np.isfinite(values).any():
            return None
        index = int(np.where(np.isfinite(values), sign * values, -math.inf).argmax())
        return float(values[index]), int(steps[index])

    def direction(self, column: str) -> int:
        """As a run says; what is monitored has a direction where its metric does not say it."""
        known = super().direction(column)
        if known == 0 and column == self.monitor:
            return 1 if self.setting("checkpoint.mode") == "max" else -1
        return known


def read_records(paths: Sequence[str | Path]) -> list[Record]:
    """The runs at these places, of a sweep its members; a link to one that is there adds none.

    Raises DataError.
    """
    found: list[tuple[str | Path, Record]] = []
    for path in paths:
        record = Record.read(path)
        places = [str(each) for each in record.members] if record.info.sweep else [path]
        if not places:
            raise DataError(f"the sweep {record.path} has no members: none has begun")
        found += [(p, record if p is path else Record.read(p, record)) for p in places]
    named = {record.path for path, record in found if not os.path.islink(path)}
    return [r for path, r in found if not (os.path.islink(path) and r.path in named)]


def direction(runs: Sequence[Run], column: str) -> int:
    """Of a column, as the first of these runs says that knows."""
    return next(filter(None, (run.direction(column) for run in runs)), 0)


def alike(records: Sequence[Run]) -> dict[str, str]:
    """The fields that are the numbers of an earlier one wherever they were measured, by which."""
    found: dict[str, str] = {}
    fields = list(dict.fromkeys(field for record in records for field in record.fields))
    for i, field in enumerate(fields):
        pairs = ((first, field) for first in fields[:i] if first not in found)
        same = (first for first, _ in pairs if all(_same(r, first, field) for r in records))
        if (first := next(same, None)) is not None:
            found[field] = first
    return found


def _same(record: Run, first: str, second: str) -> bool:
    """Whether all values of a second field are, to what float32 rounds, those of a first."""
    for column in (column for column in record.columns if column.field == second):
        (steps, values), (there, others) = (
            record.curve(Measure.of(column.part, field)) for field in (second, first)
        )
        if not np.array_equal(steps, there) or not np.allclose(values, others, 1e-5, 0, True):
            return False
    return True


def differing_settings(records: Sequence[Record]) -> dict[str, list[str | None]]:
    """The settings that are not the same in all runs: by key a value of each, None if absent."""
    settings = [{k: as_yaml(s.value) for k, s in record.config.items()} for record in records]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def given_settings(records: Sequence[Record]) -> set[str]:
    """The keys that somebody has given, in any of these: no default, nothing from the data."""
    own = ("default", "from the data")
    return {key for each in records for key, s in each.config.items() if s.origin not in own}


def by_seed(
    records: Sequence[Record],
) -> tuple[list[list[int]], dict[str, list[str | None]]]:
    """Numbers of the runs that differ in seed and fold alone, and the other settings that differ.

    Of runs with one seed and fold the last counts. A name and a place are not settings.
    """
    settings = differing_settings(records)
    luck = luck_of(records)
    for key in (*LUCK, *PLACES):
        settings.pop(key, None)
    members: dict[tuple[str | None, ...], dict[Any, int]] = {}
    for i, own in enumerate(luck):
        setting = tuple(row[i] for row in settings.values())
        members.setdefault(setting, {})[own] = i
    return [[*group.values()] for group in members.values()], settings


def luck_of(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Seed and fold of each run."""
    return [tuple(str(r.config[k].value) if k in r.config else "" for k in LUCK) for r in records]
