"""The curves of one run or several: a chart for each measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ConfigError, DataError
from ..spelling import did_you_mean
from ..words import number
from .chart import Chart, Curve, Mark
from .record import Record, differing_settings

__all__ = ["WORDS", "choose", "constant", "curves", "run_names", "speed"]

WORDS = {"train": "train", "val": "validation", "test": "test"}
_MOST = 6  # charts without being asked for
_NEAR = 4  # rows before and after one whose speed is drawn


def curves(records: Sequence[Record], fields: Sequence[str]) -> list[Chart]:
    """A chart for each field, such as `loss`, or single column, such as `val/loss`."""
    names = run_names(records) if len(records) > 1 else [""]
    return [_chart(field, list(zip(records, names, strict=True))) for field in fields]


def _chart(field: str, runs: Sequence[tuple[Record, str]]) -> Chart:
    lines: list[Curve] = []
    marks: list[Mark] = []
    for record, name in runs:
        run = name and name + _status(record)
        columns = [c for c in record.columns if field in (c, c.partition("/")[2])]
        # A run that has measured nothing is in the legend all the same.
        for column in columns or [f"train/{field}"] * bool(run):
            split, points = column.partition("/")[0], record.curve(column)
            lines.append(Curve(WORDS[split], split, points, dots=len(points[0]) == 1, run=run))
        rated = [column for column in columns if not column.startswith("test/")]
        if rated and (best := record.best(rated[-1])):  # validation's where there is one
            value, step = best
            marks.append(Mark(f"best: {number(value)} at step {step:,}", step, value, run))
        marks += _broken_off(record, lines, run)
    return Chart(field, "optimiser step", lines, marks)


def _broken_off(record: Record, lines: Sequence[Curve], run: str) -> list[Mark]:
    if record.info.status == "diverged" and record.info.steps is not None:
        step = record.info.steps + 1  # the one that was refused
        return [Mark(f"diverged at step {step:,}", step, run=run)]
    lost = [line.points[0][~np.isfinite(line.points[1])] for line in lines if line.run == run]
    first = min((float(steps.min()) for steps in lost if len(steps)), default=None)
    return [] if first is None else [Mark(f"not finite from step {first:,.0f}", first, run=run)]


def speed(record: Record) -> list[Chart]:
    """Samples a second and the share of communication."""
    charts = []
    for title, key, scale in (
        ("samples a second", "samples_per_s", 1.0),
        ("share of communication, %", "comm_share", 100.0),
    ):
        x, y = record.curve(f"train/{key}")
        if len(x) > 1:
            # A clock that is read every few milliseconds says little: of neighbours the median.
            near = np.lib.stride_tricks.sliding_window_view(np.pad(y, _NEAR, "edge"), 2 * _NEAR + 1)
            line = Curve(title, "test", (x, np.median(near, axis=1) * scale))
            charts.append(Chart(title, "optimiser step", [line], linear=True))
    return charts


def constant(records: Sequence[Record], field: str) -> float | None:
    """The value of a field that is the same in all rows of all runs, of two rows at least."""
    values = np.concatenate(
        [r.curve(c)[1] for r in records for c in r.columns if c.partition("/")[2] == field]
    )
    same = len(values) > len(records) and np.isfinite(values).all() and np.ptp(values) == 0
    return float(values[0]) if same else None


def choose(records: Sequence[Record], metrics: Sequence[str]) -> list[str]:
    """The fields to draw: `metrics`, or the first that the runs have where it is empty.

    Raises ConfigError where no run has such a metric, DataError where none has measured anything.
    """
    fields = list(dict.fromkeys(field for record in records for field in record.fields))
    columns = list(dict.fromkeys(column for record in records for column in record.columns))
    if not fields:
        where = ", ".join(str(record.path) for record in records)
        raise DataError(f"nothing to draw: no row of metrics was written in {where}")
    for name in metrics:
        if name not in fields and name not in columns:
            near = did_you_mean(name, [*fields, *columns])
            known = ", ".join(fields)
            raise ConfigError(f'no run has the metric "{name}"{near} (there are: {known})')
    return list(dict.fromkeys(metrics)) or fields[:_MOST]


def run_names(records: Sequence[Record]) -> list[str]:
    """What to call runs beside each other: their names, up to three settings, times, or paths,
    whichever first tells all runs apart.
    """
    rows = {key: row for key, row in differing_settings(records).items() if key != "run_dir"}
    settings = [
        ", ".join(f"{key}={row[i] or '-'}" for key, row in rows.items())
        for i in range(len(records))
    ]
    choices = [[record.name for record in records], settings, [record.label for record in records]]
    if len(rows) > 3 or max(map(len, settings)) > 70:
        choices.remove(settings)
    apart = (texts for texts in choices if len(set(texts)) == len(records))
    return next(apart, [str(record.path) for record in records])


def _status(record: Record) -> str:
    """Behind the name of a run that did not finish."""
    status, steps = record.info.status, record.info.steps
    at = f" at step {steps + 1:,}" if status == "diverged" and steps is not None else ""
    return "" if status == "finished" else f" ({status}{at})"
