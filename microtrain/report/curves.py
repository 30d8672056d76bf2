"""The curves of one run or several: a chart for each measure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..common.spelling import did_you_mean
from ..common.words import number, plural
from ..config.texts import Measure
from ..errors import ConfigError, DataError
from ..runs.run import Run, Series
from .chart import FEW, WORDS, Chart, Curve, Mark
from .overview import ALWAYS, setting_columns
from .record import by_seed, differing_settings, given_settings

AXES = {
    "step": "optimizer step",
    "epoch": "epoch",
    "time": "seconds of training",
    "samples": "samples seen",
}
_MOST = 6  # charts without being asked for


def curves(
    records: Sequence[Run],
    fields: Sequence[str],
    x: str = "step",
    smooth: float = 0.0,
    group: bool = False,
) -> list[Chart]:
    """A chart for each field, such as `loss`, or single column, such as `val/loss`.

    Of more than `FEW` runs the validation data alone where a field names no split.

    Args:
        records: the runs.
        fields: from `choose`.
        x: the horizontal axis, one of `AXES`.
        smooth: from 0 to below 1: what the values before count in a moving average.
        group: whether runs that differ in seed and fold alone are one curve, their mean.

    Raises DataError where a run has not written down `x`.
    """
    members = [[record] for record in records]
    names = run_names(records) if len(records) > 1 else [""]
    if group:
        members, names = groups(records)
    runs = [*zip(members, names, strict=True)]
    return [_chart(field, runs, x, smooth) for field in fields]


def _chart(field: str, runs: Sequence[tuple[Sequence[Run], str]], x: str, smooth: float) -> Chart:
    lines: list[Curve] = []
    marks: list[Mark] = []
    for members, name in runs:
        record = members[0]
        run = name and name + (_status(record) if len(members) == 1 else "")
        columns = [c for c in record.columns if field in (c, c.field)]
        if len(members) > 1:  # each has its test values at another step
            columns = [column for column in columns if column.part != "test"]
        rated = [column for column in columns if column.part != "test"]
        if len(runs) > FEW:
            columns = rated[-1:]  # validation's where there is one
        # A run that has measured nothing is in the legend all the same.
        for column in columns or [Measure.of("train", field)] * bool(run):
            split = column.part
            points, band = _mean([_points(each, column, x) for each in members])
            curve = Curve(WORDS[split], split, points, len(points[0]) == 1, run=run, band=band)
            if smooth and not curve.dots:
                lines.append(replace(curve, faint=True, band=None))
                curve = replace(curve, points=_smoothed(points, smooth))
            lines.append(curve)
        if len(members) > 1:
            continue
        if rated and (best := record.best(rated[-1])):
            value, step = best
            place = _place(record, rated[-1], step, x)
            marks.append(Mark(f"best: {number(value)} at step {step:,}", place, value, run))
        marks += _broken_off(record, lines, run, x)
    splits = " and ".join(dict.fromkeys(line.name for line in lines))
    title = field if len(runs) <= FEW or "/" in field else f"{field}, {splits}"
    return Chart(title, AXES[x], lines, marks, whole=x in ("step", "samples"))


def _points(record: Run, column: str, x: str) -> Series:
    """The values of a column over the chosen axis."""
    steps, values = record.curve(column)
    if x == "step":
        return steps, values
    there, places = record.history.series(Measure(column).part, x)
    if len(lacking := np.setdiff1d(steps, there)):
        raise DataError(f"{record.path}: the row of step {lacking[0]:.0f} has no {x}")
    order = np.argsort(there, kind="stable")
    return places[order[np.searchsorted(there, steps, sorter=order)]], values


def _place(record: Run, column: str, step: float, x: str) -> float:
    """Where a step is on the chosen axis."""
    steps, places = record.curve(column)[0], _points(record, column, x)[0]
    return float(np.interp(step, steps, places)) if x != "step" and len(steps) else step


def _mean(series: Sequence[Series]) -> tuple[Series, Series | None]:
    """The mean where all have a value, and one standard deviation on either side of it."""
    if len(series) == 1:
        return series[0], None
    places = functools.reduce(np.intersect1d, [x for x, _ in series])
    values = np.array([y[np.searchsorted(x, places)] for x, y in series])
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    return (places, mean), (mean - deviation, mean + deviation)


def _smoothed(points: Series, weight: float) -> Series:
    """The exponential moving average, not drawn to zero at its beginning; what is nan stays so."""
    x, y = points
    kept, total, smoothed = 0.0, 0.0, np.full_like(y, math.nan)
    for i, value in enumerate(y.tolist()):
        if math.isfinite(value):
            kept, total = weight * kept + (1 - weight) * value, weight * total + 1 - weight
            smoothed[i] = kept / total
    return x, smoothed


def _broken_off(record: Run, lines: Sequence[Curve], run: str, x: str) -> list[Mark]:
    if record.info.status == "diverged" and record.info.steps is not None:
        step = record.info.steps + 1  # the one that was refused
        place = _place(record, "train/loss", step, x)
        return [Mark(f"diverged at step {step:,}", place, run=run)]
    lost = [line.points[0][~np.isfinite(line.points[1])] for line in lines if line.run == run]
    first = min((float(steps.min()) for steps in lost if len(steps)), default=None)
    words = f"not finite from {'step' if x == 'step' else x} {first:,.6g}" if first else ""
    return [Mark(words, first, run=run)] if first is not None else []


def usual(records: Sequence[Run]) -> list[str]:
    """The fields that are drawn unasked: six at most, a learning rate where it changes."""
    fields = list(dict.fromkeys(field for record in records for field in record.fields))
    changes = any(len({*record.curve("train/lr")[1].tolist()}) > 1 for record in records)
    return ([f for f in fields if f != "lr" or changes] or fields)[:_MOST]


def choose(records: Sequence[Run], metrics: Sequence[str]) -> list[str]:
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
    return list(dict.fromkeys(metrics)) or usual(records)


def groups(records: Sequence[Run]) -> tuple[list[list[Run]], list[str]]:
    """Runs that differ in seed and fold alone together, and what to call each group."""
    found, settings = by_seed(records)
    columns = [c for c in setting_columns(settings, records) if c.weight == ALWAYS]
    names = []
    for row in found:
        told = [c for c in columns if c.values[row[0]] is not None]
        said = ", ".join(f"{c.name}={c.cell(row[0])}" for c in told)
        many = f" ({plural(len(row), 'run')})" * (len(row) > 1)
        names.append((said or records[row[0]].name) + many)
    if len(set(names)) < len(names):
        names = [f"{name}, {i}" for i, name in enumerate(names, start=1)]
    return [[records[i] for i in row] for row in found], names


def run_names(records: Sequence[Run]) -> list[str]:
    """What to call runs beside each other: their names, up to three settings, times, or paths,
    whichever first tells all runs apart.
    """
    given = given_settings(records) - {"run_dir"}
    rows = {key: row for key, row in differing_settings(records).items() if key in given}
    settings = [
        ", ".join(f"{key}={row[i] or '-'}" for key, row in rows.items())
        for i in range(len(records))
    ]
    choices = [[record.name for record in records], settings, [record.label for record in records]]
    if len(rows) > 3 or max(map(len, settings)) > 70:
        choices.remove(settings)
    apart = (texts for texts in choices if len(set(texts)) == len(records))
    return next(apart, [str(record.path) for record in records])


def _status(record: Run) -> str:
    """Behind the name of a run that did not finish."""
    status, steps = record.info.status, record.info.steps
    at = f" at step {steps + 1:,}" if status == "diverged" and steps is not None else ""
    return "" if status == "finished" else f" ({status}{at})"
