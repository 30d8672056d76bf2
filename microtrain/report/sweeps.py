"""Sweeps as tables: a line for each setting, with mean, spread and interval over seeds and folds.

What is told of a member are its values at its best step by what is monitored. Settings are compared
by members of the same seed and fold, so that what both have in common is no difference.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..config.measure import Measure
from ..config.resolved import as_yaml
from ..errors import DataError
from ..runs.members import (
    Of,
    Result,
    best_setting,
    by_setting,
    check_members,
    last_of_each,
    read_members,
    values_of,
)
from ..words import number, plural
from .overview import Column, Spread, in_lines, setting_columns, sort
from .record import Record

__all__ = ["Sweep", "interval", "t_quantile", "together"]

# Behind a name stands a class, an average over them, or a threshold: recall_macro, accuracy_at_0.3.
_HIGHER = re.compile(
    r"r2|explained_variance|top\d+|(balanced_)?accuracy(_at_.+)?"
    r"|(precision|recall|f1|roc_auc|average_precision)(_.+)?"
)
_LOWER = re.compile(
    r"loss|mse|rmse|mae|mape|median_absolute_error|log_loss|brier|calibration_error"
)

OWN = ("seed", "data.split.fold")  # what members of one setting differ in


@dataclass(frozen=True)
class Sweep:
    """The members of a sweep that has come to an end, or so far.

    Attributes:
        name: of the sweep.
        results: what became of each member last, by its number.
        monitor: the column by which members are judged.
        better: 1 where a higher value of it is better, -1 where a lower one is.
        folds: how many folds the training rows were cut into; 0: none.
    """

    name: str
    results: Sequence[Result]
    monitor: str
    better: int
    folds: int

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The sweep in a directory. Raises DataError where there is none."""
        record = Record.read(path)
        if not record.info.sweep:
            raise DataError(f"{record.path} is one run, and no sweep")
        found, _, of = read_members(record.path)
        check_members(of, Of(record.info.id, record.config_text), record.path)
        mode = record.setting("checkpoint.mode")
        return cls(
            record.name,
            [*last_of_each(found).values()],
            record.setting("checkpoint.monitor"),
            1 if mode == "max" else -1,
            int(record.setting("data.split.folds") or 0),
        )

    @property
    def best(self) -> Result | None:
        """The finished member with the best monitored value, the first of equals."""
        found = [r for r in self.results if r.status == "finished" and _value(r) is not None]
        return max(found, key=lambda r: (self.better * (_value(r) or 0.0), -r.number), default=None)

    def members(self) -> list[Column]:
        """A line for each member, in order."""
        results = self.results
        keys = dict.fromkeys(key for r in results for key in r.varied)
        names = dict.fromkeys(name for r in results for name in r.values)
        return [
            Column("member", [r.number for r in results], 10),
            Column("status", [r.status for r in results], 9),
            *setting_columns({key: [_text(r, key) for r in results] for key in keys}, full=True),
            *(
                Column(name, [r.values.get(name) for r in results], 7, self._better(name))
                for name in names
            ),
            Column("best step", [r.best and r.best["step"] for r in results], 3),
            Column("steps", [r.step for r in results], 2),
            Column("seconds", [r.seconds for r in results], 1),
            Column("params_sha256", [r.params_sha256 or None for r in results]),
            Column("error", [r.error or None for r in results]),
        ]

    def settings(self) -> list[Column]:
        """A line for each setting, the best first; `=` where the best is not shown to be better."""
        rows = [*by_setting(self.results).values()]
        keys = self._keys()
        names = dict.fromkeys(
            name
            for r in self.results
            for name in r.values
            if name == self.monitor or not name.startswith("train/")
        )
        columns = setting_columns({key: [_text(row[0], key) for row in rows] for key in keys})
        columns.append(Column("members", [len(row) for row in rows], 10))
        for status in ("paused", "diverged"):
            counts = [sum(r.status == status for r in row) for row in rows]
            columns.append(Column(status, counts, 9 if any(counts) else 0))
        for name in names:
            spread = [Spread.of(values_of(row, name)) for row in rows]
            weight = 9 if name == self.monitor else 7 if name.startswith("test/") else 6
            columns.append(Column(name, spread, weight, self._better(name)))
            if name == self.monitor:
                half = [interval(values_of(row, name), self.folds) for row in rows]
                columns.append(Column("95%", half, 8, show=lambda v: f"+- {number(v)}"))
                columns.append(Column("", self._equal(rows), 8.5))
        return sort(columns, self.monitor) if self.monitor in names else columns

    def lines(self, width: int = 100) -> list[str]:
        """The table of settings, and what is to be known of it."""
        return in_lines(self.settings(), width) + self.notes()

    def notes(self) -> list[str]:
        """What is to be known of the table of settings."""
        diverged = [r for r in self.results if r.status == "diverged"]
        lines = [f"member {r.number} has diverged: {r.error}" for r in diverged[:3]]
        if len(diverged) > 3:
            lines.append(f"... {plural(len(diverged), 'member')} have diverged")
        warned = Counter(text for r in self.results for text in r.warnings)
        lines += [f"{plural(n, 'member')}: {text}" for text, n in warned.most_common(5)]
        if len(warned) > 5:
            lines.append(f"... and {plural(len(warned) - 5, 'other warning')}")
        if any(mark == "=" for c in self.settings() if not c.name for mark in c.values):
            lines.append("=: within the noise of the best, by members of the same seed and fold")
        count = len({result.setting for result in self.results})
        if self.folds and count > 1 and not any("test/loss" in r.values for r in self.results):
            lines.append(
                "the best setting was chosen on these folds: its values are too good; for a fair "
                "one keep test rows apart (data.split.test)"
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        """The table of settings and what is to be known of it: plain values."""
        columns = self.settings()
        keys = self._keys()
        short = [column.name for column in setting_columns({key: [""] for key in keys})]
        full = {"95%": "interval", "": "mark", **dict(zip(short, keys, strict=True))}
        names = [full.get(column.name, column.name) for column in columns]
        cells = [
            [_mean_of(cell) if isinstance(cell, Spread) else cell for cell in column.values]
            for column in columns
        ]
        best = self.best
        return {
            "name": self.name,
            "monitor": self.monitor,
            "mode": "max" if self.better > 0 else "min",
            "folds": self.folds,
            "settings": [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)],
            "best_member": None if best is None else {"number": best.number, **best.varied},
            "notes": self.notes(),
        }

    def _keys(self) -> list[str]:
        """What settings differ in."""
        return [*dict.fromkeys(k for r in self.results for k in r.varied if k not in OWN)]

    def _better(self, name: str) -> int:
        if name == self.monitor:
            return self.better
        field = Measure(name).field
        return 1 if _HIGHER.fullmatch(field) else -1 if _LOWER.fullmatch(field) else 0

    def _equal(self, rows: Sequence[Sequence[Result]]) -> list[str | None]:
        """`=` for each setting whose difference from the best is within its 95 % interval."""
        chosen = best_setting(self.results, self.monitor, self.better)
        if chosen is None:
            return [None] * len(rows)
        best = next(i for i, row in enumerate(rows) if row[0].setting == chosen)
        first = _by_own(rows[best], self.monitor)
        marks: list[str | None] = []
        for i, row in enumerate(rows):
            own = _by_own(row, self.monitor)
            apart = [own[key] - first[key] for key in own if key in first]
            half = interval(apart, self.folds)
            ended = all(r.status != "paused" for r in row)
            close = ended and half is not None and abs(statistics.fmean(apart)) <= half
            marks.append("best" if i == best else "=" if close else None)
        return marks if len(rows) > 1 else [None]


def together(columns: Mapping[str, Sequence[Column]]) -> list[Column]:
    """Tables of several sweeps, by what these are called, as one; what one has not is not known."""
    found: dict[str, Column] = {}
    for table in columns.values():
        for column in table:
            found.setdefault(column.name, column)
    values: dict[str, list[Any]] = {name: [] for name in found}
    labels: list[str] = []
    for label, table in columns.items():
        own = {column.name: column.values for column in table}
        rows = len(table[0].values)
        labels += [label] * rows
        for name, cells in values.items():
            cells += own.get(name, [None] * rows)
    merged = [replace(column, values=values[name]) for name, column in found.items()]
    return [Column("sweep", labels, 11), *merged]


def interval(values: Sequence[float], folds: int = 0) -> float | None:
    """Half of the 95 % interval of the mean of some values; None of fewer than two.

    Student's t. Values from folds of the same rows are no independent draws: their variance is
    s^2 (1/n + 1/(folds - 1)), after Nadeau and Bengio, Inference for the Generalization Error,
    Machine Learning 52 (2003).
    """
    n = len(values)
    if n < 2:
        return None
    more = 1 / (folds - 1) if folds else 0.0
    return t_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 / n + more)


# Of 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t with so many degrees of freedom, within 0.0001.

    Above 30 by the expansion of Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _mean_of(cell: Spread) -> dict[str, float | None]:
    known = math.isfinite(cell.deviation)
    return {"mean": float(cell), "deviation": cell.deviation if known else None}


def _text(result: Result, key: str) -> str | None:
    return as_yaml(result.varied[key]) if key in result.varied else None


def _value(result: Result) -> float | None:
    return None if result.best is None else result.best["value"]


def _by_own(row: Sequence[Result], name: str) -> Mapping[Any, float]:
    """Values by seed and fold."""
    return {
        tuple(r.varied.get(key) for key in OWN): value
        for r in row
        if r.status != "diverged" and (value := r.values.get(name)) is not None
    }
