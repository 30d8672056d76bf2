"""The curves of a sweep: for each setting the mean over its members, with their deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..config.measure import Measure
from ..config.resolved import as_yaml
from ..errors import ConfigError, DataError
from ..runs.members import Result
from ..runs.record import Series
from ..spelling import did_you_mean
from ..words import plural
from .chart import Chart, Curve
from .curves import AXES, FEW
from .sweeps import OWN, Sweep

__all__ = ["sweep_curves"]


def sweep_curves(sweep: Sweep, columns: Sequence[str] = ()) -> list[Chart]:
    """A chart for each column such as `val/loss`, by default what is monitored.

    Drawn are the best settings, six at most, where two or more of the members that were not
    diverged have a value.

    Raises ConfigError for a column that was not measured, DataError where nothing was.
    """
    known = dict.fromkeys(n for r in sweep.results for n in r.curve if n != "step")
    for name in columns:
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError(f'no member has "{name}"{near} (there are: {", ".join(known)})')
    rows: dict[int, list[Result]] = {}
    for result in sweep.results:
        if result.status != "diverged":
            rows.setdefault(result.setting, []).append(result)
    best = sorted(rows.values(), key=lambda row: _score(sweep, row))[:FEW]
    charts = []
    for name in columns or [sweep.monitor]:
        lines = []
        for row in best:
            series = [_points(r, name) for r in row if name in r.curve]
            if series:
                points, band = _mean(series)
                look = Measure(name).part
                lines.append(Curve(look, look, points, run=_named(sweep, row), band=band))
        if lines:
            charts.append(Chart(name, AXES["step"], lines))
    if not charts:
        raise DataError(f"nothing to draw: no member of {sweep.name} has measured anything")
    return charts


def _score(sweep: Sweep, row: Sequence[Result]) -> tuple[bool, float]:
    """What sorts settings: those that have come to the end, the best first."""
    values = [v for r in row if (v := r.values.get(sweep.monitor)) is not None]
    mean = -sweep.better * math.fsum(values) / len(values) if values else math.inf
    return any(r.status == "paused" for r in row), mean


def _named(sweep: Sweep, row: Sequence[Result]) -> str:
    said = [
        f"{k.rpartition('.')[2]}={as_yaml(v)}" for k, v in row[0].varied.items() if k not in OWN
    ]
    return f"{', '.join(said) or sweep.name} ({plural(len(row), 'member')})"


def _points(result: Result, name: str) -> Series:
    """What was measured, without the steps that have nothing."""
    pairs = zip(result.curve["step"], result.curve[name], strict=True)
    found = [(step, value) for step, value in pairs if step is not None and value is not None]
    x, y = np.array(found, np.float64).reshape(-1, 2).T
    return x, y


def _mean(series: Sequence[Series]) -> tuple[Series, Series | None]:
    """The mean at each step that all have, and one standard deviation on either side."""
    steps = series[0][0]
    for x, _ in series[1:]:
        steps = np.intersect1d(steps, x)
    values = np.array([y[np.searchsorted(x, steps)] for x, y in series])
    mean = values.mean(axis=0)
    if len(series) < 2:
        return (steps, mean), None
    apart = values.std(axis=0, ddof=1)
    return (steps, mean), (mean - apart, mean + apart)
