"""Runs that differ in seed and fold alone as one line: mean, deviation, interval, which is best.

Groups are compared by runs of the same seed and fold, so that what both have in common is no
difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..common.words import number, plural
from ..runs.run import Run
from .overview import ALWAYS, Column, Spread, in_lines, setting_columns, sort, table_of_runs
from .record import by_seed, luck_of

_AT_MOST = 20  # runs that are listed one by one in a terminal


class Comparison:
    """Several runs as tables.

    Args:
        records: the runs.
        by: the column by which lines are sorted; None: what is monitored.
    """

    def __init__(self, records: Sequence[Run], by: str | None = None) -> None:
        self.records, self.by = records, by
        self.monitor = records[0].monitor  # by which runs are judged
        self._told = table_of_runs(records)
        self._rows, self._settings = by_seed(records)
        self._luck = luck_of(records)
        self._folds = int(records[0].setting("data.split.folds") or 0)
        self._judged = next((c for c in self._told if c.name == self.monitor), None)

    @cached_property
    def runs(self) -> list[Column]:
        """A line for each run, the best first. Raises ConfigError where there is no such column."""
        return sort(self._told, self.by or (self.monitor if self._judged else "run"))

    @cached_property
    def groups(self) -> list[Column]:
        """A line for each group, the best first; none where no two runs differ in luck alone.

        `=` where the best is not shown to be better.
        """
        rows = self._rows
        if max(map(len, rows)) < 2:
            return []
        columns = [
            replace(column, values=[column.values[row[0]] for row in rows])
            for column in setting_columns(self._settings, self.records)
        ]
        columns.append(Column("runs", [len(row) for row in rows], 10))
        for status in ("paused", "diverged"):
            counts = [sum(self.records[i].status == status for i in row) for row in rows]
            columns += [Column(status, counts, ALWAYS)] * any(counts)
        for column in (column for column in self._told if "/" in column.name):
            values = [[*self._values(row, column).values()] for row in rows]
            columns.append(replace(column, values=[*map(Spread.of, values)]))
            if column.name == self.monitor:
                half = [interval(each, self._folds) for each in values]
                columns.append(Column("95%", half, 8.9, show=lambda v: f"± {number(v)}"))
                columns.append(Column("", self._marks(column), 8.95))
        known = [column.name for column in columns]
        return sort(columns, next(n for n in (self.by, self.monitor, known[-1]) if n in known))

    def of_best_groups(self, count: int) -> list[Run]:
        """The runs of the best groups; those that were paused come last."""
        judged = self._judged

        def place(row: list[int]) -> tuple[bool, float]:
            paused = any(self.records[i].status == "paused" for i in row)
            worse = (
                [-judged.better * v for v in self._values(row, judged).values()] if judged else []
            )
            return paused, statistics.fmean(worse) if worse else math.inf

        return [self.records[i] for row in sorted(self._rows, key=place)[:count] for i in row]

    def lines(self, width: int, of_groups: bool = False) -> list[str]:
        """Both tables, of many runs the best, and what is to be known of them.

        of_groups: that of the runs only where there are no groups.
        """
        above = [*in_lines(self.groups, width), *self.notes()] if self.groups else []
        if above and of_groups:
            return above
        count = len(self.records)
        lines = in_lines([replace(c, values=c.values[:_AT_MOST]) for c in self.runs], width)
        if count > _AT_MOST:
            lines += [f"... and {plural(count - _AT_MOST, 'more run')}: --csv FILE has all"]
        return [*above, "", *lines] if above else [*lines, *self.notes()]

    def notes(self) -> list[str]:
        """What is to be known of the tables."""
        gone = [record for record in self.records if record.status == "diverged"]
        lines = [f"{record.label} has diverged: {record.info.error}" for record in gone[:3]]
        if len(gone) > 3:
            lines.append(f"... {plural(len(gone), 'run')} have diverged")
        marks = [c.values for c in self.groups if not c.name]
        if any("=" in each for each in marks):
            lines.append("=: not distinguishable from the best (paired by seed and fold)")
        tested = any(c.name.startswith("test/") for c in self._told)
        if self._folds and len(self._rows) > 1 and not tested:
            lines.append(
                "the best was chosen on these folds: its values are too optimistic; for a fair one "
                "keep test rows apart (data.split.test)"
            )
        return lines

    def as_json(self) -> list[dict[str, Any]]:
        """The groups: plain values."""
        short = [column.name for column in setting_columns(self._settings, self.records)]
        names = {"95%": "interval", "": "mark", **dict(zip(short, self._settings, strict=True))}
        cells = {
            names.get(c.name, c.name): [
                {"mean": float(v), "deviation": v.deviation if math.isfinite(v.deviation) else None}
                if isinstance(v, Spread)
                else v
                for v in c.values
            ]
            for c in self.groups
        }
        return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]

    def _values(self, row: Sequence[int], column: Column) -> dict[Any, float]:
        """By seed and fold, without those that have diverged."""
        return {
            self._luck[i]: column.values[i]
            for i in row
            if column.values[i] is not None and self.records[i].status != "diverged"
        }

    def _marks(self, column: Column) -> list[str | None]:
        """`=` for each group whose difference from the best is within its 95 % interval."""
        values = [self._values(row, column) for row in self._rows]
        ended = [
            all(self.records[i].status in ("finished", "diverged") for i in row)
            for row in self._rows
        ]
        means = {
            i: column.better * statistics.fmean(own.values())
            for i, own in enumerate(values)
            if own and ended[i]
        }
        if len(values) < 2 or not means:
            return [None] * len(values)
        best = max(means, key=lambda i: means[i])
        marks: list[str | None] = []
        for i, own in enumerate(values):
            apart = [own[key] - values[best][key] for key in own if key in values[best]]
            half = interval(apart, self._folds)
            close = ended[i] and half is not None and abs(statistics.fmean(apart)) <= half
            marks.append("best" if i == best else "=" if close else None)
        return marks


def interval(values: Sequence[float], folds: int = 0) -> float | None:
    """Half of the 95 % interval of the mean of some values; None of fewer than two.

    Student's t. Values from folds of the same rows are not independent draws: their variance is
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
