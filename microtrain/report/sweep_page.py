"""What the page of a sweep (sweep.html) shows: tables, curves, and scores against what varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..errors import DataError
from ..words import number
from .overview import Column, sort
from .sweep_curves import sweep_curves
from .sweeps import OWN, Sweep

__all__ = ["parallel", "sweep_fields"]

_CHARTS = 8
_TICKS = 8  # more values than that: the first and the last are named
_HIDDEN = ("params_sha256",)
_COUNTS = ("paused", "diverged")


def sweep_fields(sweep: Sweep) -> dict[str, Any]:
    """The fields of sweep.html that are not those of every page."""
    names = dict.fromkeys(name for r in sweep.results for name in r.curve if name != "step")
    try:
        curves = sweep_curves(sweep, [*names][:_CHARTS])
    except DataError:  # nothing was measured, which the page says
        curves = []
    runs = list(dict.fromkeys(curve.run for chart in curves for curve in chart.curves))
    members = _shown(sweep.members())
    if any(column.name == sweep.monitor for column in members):
        members = sort(members, sweep.monitor)
    states = Counter(result.status for result in sweep.results)
    return {
        "title": sweep.name,
        "monitor": sweep.monitor,
        "best": sweep.best,
        "states": "members: " + ", ".join(f"{n:,} {status}" for status, n in states.items()),
        "settings": _shown(sweep.settings()),
        "members": members,
        "notes": sweep.notes(),
        "curves": curves,
        "runs": runs,
        "axes": [[] for _ in runs],
        "parallel": parallel(sweep),
    }


def parallel(sweep: Sweep) -> dict[str, Any] | None:
    """Parallel coordinates of settings: axes and lines in a square of 1000; None of one setting.

    Values of a key stand evenly apart in their order, so that 0.001, 0.1 and 10 can be told apart.
    """
    columns = sweep.settings()
    score = next((c for c in columns if c.name == sweep.monitor), None)
    keys = {key for r in sweep.results for key in r.varied if key not in OWN}
    varied = columns[: len(keys)]  # the table begins with what varied
    if score is None or not varied:
        return None
    rows = [i for i, value in enumerate(score.values) if value is not None]
    means = [float(score.values[i]) for i in rows]
    if len(rows) < 2:
        return None
    low, high = min(means), max(means)
    axes: list[dict[str, Any]] = []
    heights: list[list[float]] = []
    for i, column in enumerate(varied):
        values = [column.values[row] for row in rows]
        order = _ordered(values)
        tops = {value: 1 - at / max(len(order) - 1, 1) for at, value in enumerate(order)}
        named = order if len(order) <= _TICKS else [order[0], order[-1]]
        ticks = [(tops[v], "-" if v is None else column.show(v)) for v in named]
        axes.append({"name": column.name, "left": i / len(varied), "ticks": ticks})
        heights.append([tops[value] for value in values])
    span = high - low or 1.0
    ends = [(1.0, number(low)), (0.0, number(high))]
    axes.append({"name": sweep.monitor, "left": 1.0, "ticks": ends})
    heights.append([(high - mean) / span for mean in means])
    best = max if sweep.better > 0 else min
    lines = []
    for at, mean in enumerate(means):
        places = zip(axes, heights, strict=True)
        path = "L".join(f"{1000 * axis['left']:.1f} {1000 * tops[at]:.1f}" for axis, tops in places)
        said = [f"{c.name} {c.show(c.values[rows[at]])}" for c in [*varied, score]]
        share = 1 - abs(mean - best(means)) / span
        lines.append({"path": f"M{path}", "opacity": 0.1 + 0.9 * share, "title": ", ".join(said)})
    return {"axes": axes, "lines": lines[::-1]}  # the best on top


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Once each: numbers ascending, after them texts, and what there is not."""
    return sorted(
        set(values),
        key=lambda v: (0, v, "") if isinstance(v, int | float) else (1, v is None, str(v)),
    )


def _shown(columns: Sequence[Column]) -> list[Column]:
    """Those that have anything to say."""
    return [
        c for c in columns
        if c.name not in _HIDDEN
        and any(v is not None for v in c.values)
        and (c.name not in _COUNTS or any(c.values))
    ]  # fmt: skip
