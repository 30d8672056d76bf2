"""Charts of an HTML page: lines and dots as SVG that stretches, numbers as text that does not.

A chart is drawn here and needs nothing else to be read: on paper, without scripts, at any width.
The scales are given to the page as data, from which report.js shows values under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..words import number
from .plots import thinned

if TYPE_CHECKING:
    from ..runs.record import Series

__all__ = ["Chart", "Curve"]

SIZE = 1000.0  # of the drawing, in both directions
_POINTS = 600
_LARGEST = 1e300  # beyond it differences overflow: drawn as what is not finite


@dataclass(frozen=True)
class Curve:
    """A line through points, or dots alone. `look` is its class in report.css."""

    name: str
    look: str
    points: Series
    dots: bool = False


@dataclass
class Chart:
    """Curves over one horizontal axis.

    Attributes:
        title: what is drawn, such as `loss`.
        x: the name of the horizontal axis.
        curves: in the order of the legend.
        best: (x, y, words) of the point that is ringed.
        end: (x, words) of a line where a run broke off.
        log: a logarithmic vertical axis; None where values over a decade decide it.
        whole: the horizontal axis counts.
    """

    title: str
    x: str
    curves: Sequence[Curve]
    best: tuple[float, float, str] | None = None
    end: tuple[float, str] | None = None
    log: bool | None = None
    whole: bool = True
    _range: tuple[float, float, float, float] = field(init=False, default=(0.0, 1.0, 0.0, 1.0))

    def __post_init__(self) -> None:
        xs = [c.points[0] for c in self.curves]
        ys = [c.points[1][np.abs(c.points[1]) < _LARGEST] for c in self.curves]
        x, y = np.concatenate([*xs, [e[0] for e in (self.end,) if e]]), np.concatenate(ys)
        if self.log is None:
            self.log = bool(len(y) and y.min() > 0 and y.max() >= 10 * y.min())
        y = np.log10(y) if self.log else y
        self._range = (*_span(x, 0.015), *_span(y, 0.06))

    def html(self) -> str:
        """A figure; its data go into `data`."""
        x0, x1, y0, y1 = self._range
        x_ticks = _ticks(x0, x1, 6, whole=self.whole)
        y_ticks = _log_ticks(y0, y1) if self.log else _ticks(y0, y1, 6)
        svg = [f'<path class="grid" d="M0 {self._y(v):.1f}H{SIZE:.0f}"/>' for v, _ in y_ticks]
        legend = []
        for i, curve in enumerate(self.curves):
            kind = "dots" if curve.dots else "line"
            svg.append(f'<path class="{kind} {curve.look}" data-curve="{i}" d="{self._d(curve)}"/>')
            if len(self.curves) == 1 and curve.name == self.title:
                continue  # the title says it
            legend.append(
                f'<button type="button" class="{curve.look}{" dot" * curve.dots}" '
                f'data-curve="{i}" aria-pressed="true"><i></i>{escape(curve.name)}</button>'
            )
        if self.best is not None:
            x, y, words = self.best
            dot = f'd="M{self._x(x):.1f} {self._y(y):.1f}h0"'
            svg.append(f'<path class="ring" {dot}/><path class="ring-inside" {dot}/>')
            legend.append(f'<span class="best"><i></i>{escape(words)}</span>')
        if self.end is not None:
            svg.append(f'<path class="end" d="M{self._x(self.end[0]):.1f} 0V{SIZE:.0f}"/>')
            legend.append(f'<span class="broken"><i></i>{escape(self.end[1])}</span>')
        y_texts = (f'<span style="top:{self._y(v) / SIZE:.2%}">{t}</span>' for v, t in y_ticks)
        x_texts = (f'<span style="left:{self._x(v) / SIZE:.2%}">{t}</span>' for v, t in x_ticks)
        room = max((len(text) for _, text in y_ticks), default=1) + 2
        return (
            f'<figure class="chart"><figcaption><h3>{escape(self.title)}</h3>'
            f'<div class="legend">{"".join(legend)}</div></figcaption>'
            f'<div class="plot"><div class="y-ticks" style="width:{room}ch">'
            f"{''.join(y_texts)}</div>"
            f'<div class="area" tabindex="0" role="img" aria-label="{escape(self._in_words())}">'
            f'<svg viewBox="0 0 {SIZE:.0f} {SIZE:.0f}" preserveAspectRatio="none" '
            f'aria-hidden="true">{"".join(svg)}</svg></div>'
            f'<div class="x-ticks">{"".join(x_texts)}</div></div>'
            f'<p class="x-name">{escape(self.x)}</p></figure>'
        )

    def data(self) -> dict[str, Any]:
        """What the page's script needs: the scales and the points of lines."""
        return {
            "range": self._range,
            "log": self.log,
            "unit": "step" if self.whole else self.x,
            "curves": [
                {"index": i, "name": c.name, "look": c.look, "points": _pairs(c)}
                for i, c in enumerate(self.curves)
                if not c.dots
            ],
        }

    def _x(self, value: float) -> float:
        low, high = self._range[:2]
        return (value - low) / (high - low) * SIZE

    def _y(self, value: float) -> float:
        """The place of a value (of its logarithm on a logarithmic axis, for ticks: their value)."""
        low, high = self._range[2:]
        value = math.log10(value) if self.log else value
        return (high - value) / (high - low) * SIZE

    def _d(self, curve: Curve) -> str:
        """The path; a value that has no place on the scale interrupts the line."""
        x, y = thinned(*curve.points, _POINTS)
        parts = []
        pen = False
        for at, value in zip(x.tolist(), y.tolist(), strict=True):
            if not abs(value) < _LARGEST or (self.log and value <= 0):
                pen = False
                continue
            place = f"{self._x(at):.1f} {self._y(value):.1f}"
            parts.append(f"M{place}h0" if curve.dots else f"{'L' if pen else 'M'}{place}")
            pen = True
        alone = not curve.dots and len(parts) == 1
        return "".join(parts) + ("h0" if alone else "")

    def _in_words(self) -> str:
        texts = [f"{self.title} against {self.x}"]
        for curve in self.curves:
            finite = curve.points[1][np.isfinite(curve.points[1])]
            if len(finite) and not curve.dots:
                texts.append(f"{curve.name} from {number(finite[0])} to {number(finite[-1])}")
        return ", ".join(texts)


def _pairs(curve: Curve) -> list[list[float | None]]:
    x, y = thinned(*curve.points, _POINTS)
    return [
        [a, float(f"{b:.6g}") if math.isfinite(b) else None]
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]


def _span(values: Any, margin: float) -> tuple[float, float]:
    """The range of values with room at both ends; some range where there is but one value."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = (high - low) * margin or abs(high) * 0.1 or 0.5
    return low - room, high + room


def _ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[tuple[float, str]]:
    """At most about `most` round numbers within the range."""
    step = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(step))
    step = next(m * scale for m in (1, 2, 5, 10) if m * scale >= step * 0.999)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step)
    places = [i * step for i in range(first, math.floor(high / step) + 1)]
    digits = max(0, -math.floor(math.log10(step)))
    largest = max((abs(place) for place in places), default=0.0)
    if largest >= 1e7 or digits > 5:
        return [(place, f"{place:.3g}") for place in places]
    return [(place, f"{place:,.{digits}f}") for place in places]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten within the logarithms low and high; 2 and 5 times them where they are few."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil((high - low) / 7))
    factors = (1, 2, 5) if high - low < 2.2 else (1,)
    places = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
    return [(p, f"{p:g}") for p in places if low <= math.log10(p) <= high]
