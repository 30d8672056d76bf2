"""What is drawn: curves, dots and marks over one horizontal axis, with their scales and ticks.

One description serves the page (page.html draws it as SVG) and the picture files (figures.py, with
matplotlib). The page does not show matplotlib's SVG, which was tried: its text shrinks with the
drawing (to 7 pixels on a telephone, to 30 in a chart over the full width), a legend lies on the
curves, and a curve can be neither hidden nor asked for its values without a script that knows the
scales. Here lines stretch and text does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..runs.run import Series

__all__ = ["COLORS", "MOST_POINTS", "Chart", "Curve", "Mark", "thinned"]

COLORS = {"train": "#2f6db3", "val": "#d9622b", "test": "#12876f"}  # of looks, on paper
MOST_POINTS = 1000  # of a curve; more are not seen at the width of a page
_LARGEST = 1e300  # beyond it differences overflow: drawn as what is not finite


@dataclass(frozen=True)
class Curve:
    """A line through points, or dots alone.

    Attributes:
        name: in the legend.
        look: `train`, `val`, `test` or `plain`: a class of report.css, a style of figures.py.
        points: horizontal and vertical places, float64 of shape (n,) each.
        run: which of several runs it is of; they have a colour each, in the order of their names.
        kin: the same text for runs that are to be of one colour, where many are drawn.
        faint: whether it is the background of a smoothed one.
        band: the lower and upper end of what surrounds it, of shape (n,) each.
    """

    name: str
    look: str
    points: Series
    dots: bool = False
    run: str = ""
    kin: str = ""
    faint: bool = False
    band: Series | None = None

    def pairs(self) -> list[list[float | None]]:
        """Points as JSON has them, in which null stands for what is not finite."""
        x, y = thinned(*self.points)
        return [
            [float(f"{a:.9g}"), float(f"{b:.6g}") if math.isfinite(b) else None]
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Mark:
    """A ring around a point, or a vertical line where `y` is None."""

    words: str
    x: float
    y: float | None = None
    run: str = ""


@dataclass
class Chart:
    """Curves over one horizontal axis.

    Attributes:
        title: what is drawn, such as `loss`.
        x, y: the names of the axes; the title names the vertical one where `y` is empty.
        curves, marks: in the order of the legend.
        linear: the vertical axis never is logarithmic, as it else is where positive values span a
            decade.
        whole: the horizontal axis counts.
        log: whether it is.
        range: the ends of both axes; logarithms on a logarithmic one.
    """

    title: str
    x: str
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()
    y: str = ""
    linear: bool = False
    whole: bool = True
    log: bool = field(init=False)
    range: tuple[float, float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        x = np.concatenate([*(c.points[0] for c in self.curves), [m.x for m in self.marks]])
        y = np.concatenate(
            [values for c in self.curves for values in (c.points[1], *(c.band or ()))]
        )
        y = y[np.abs(y) < _LARGEST]
        spread = len(y) and y.min() > 0 and y.max() >= 10 * y.min()
        self.log = bool(spread and not self.linear)
        self.range = (*_span(x, 0.015), *_span(np.log10(y) if self.log else y, 0.06))

    def x_ticks(self) -> list[tuple[float, str]]:
        """Values and texts along the horizontal axis."""
        return _ticks(*self.range[:2], 6, whole=self.whole)

    def y_ticks(self) -> list[tuple[float, str]]:
        """Values and texts along the vertical axis."""
        return _log_ticks(*self.range[2:]) if self.log else _ticks(*self.range[2:], 6)

    def left(self, x: float) -> float:
        """The distance from the left end of the axis, between 0 and 1."""
        low, high = self.range[:2]
        return (x - low) / (high - low)

    def top(self, y: float) -> float:
        """The distance from the upper end of the axis, between 0 and 1."""
        low, high = self.range[2:]
        return (high - (math.log10(y) if self.log else y)) / (high - low)

    def drawn(self, curve: Curve) -> Series:
        """The points to draw; NaN, which interrupts a line, for what has no place on the scale."""
        x, y = thinned(*curve.points)
        return x, self.placed(y)

    def placed(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Heights with NaN for what has no place on the scale."""
        placed = (np.abs(y) < _LARGEST) & ((y > 0) if self.log else True)
        return np.where(placed, y, np.nan)

    def path(self, curve: Curve) -> str:
        """The curve as the `d` of an SVG path in a square of 1000."""
        steps: list[str] = []
        pen = False
        for x, y in zip(*(values.tolist() for values in self.drawn(curve)), strict=True):
            if not math.isnan(y):
                place = f"{1000 * self.left(x):.1f} {1000 * self.top(y):.1f}"
                steps.append(f"M{place}h0" if curve.dots else f"{'L' if pen else 'M'}{place}")
            pen = not math.isnan(y)
        return "".join(steps) + ("h0" if len(steps) == 1 and not curve.dots else "")

    def band(self, curve: Curve) -> str:
        """What surrounds the curve, as the `d` of a closed path; it ends at the scale's ends."""
        assert curve.band is not None
        x = curve.points[0]
        sides = [thinned(x, np.nan_to_num(side, nan=np.inf)) for side in curve.band]
        low, high = (10.0**end if self.log else end for end in self.range[2:])
        places = [
            f"{1000 * self.left(a):.1f} {1000 * self.top(min(max(b, low), high)):.1f}"
            for side, turn in zip(sides, (1, -1), strict=True)
            for a, b in [*zip(*(v.tolist() for v in side), strict=True)][::turn]
        ]
        return f"M{'L'.join(places)}Z" if places else ""


def thinned(x: NDArray[np.float64], y: NDArray[np.float64], most: int = MOST_POINTS) -> Series:
    """At most that many points, which keep every peak and trough: extremes of equal stretches."""
    if len(x) <= most:
        return x, y
    kept = {0, len(x) - 1}
    for stretch in np.array_split(np.arange(len(x)), most // 2 - 1):
        values = y[stretch]
        low = np.where(np.isnan(values), math.inf, values)
        high = np.where(np.isnan(values), -math.inf, values)
        kept |= {int(stretch[low.argmin()]), int(stretch[high.argmax()])}
    chosen = np.array(sorted(kept))
    return x[chosen], y[chosen]


def _span(values: NDArray[np.float64], margin: float) -> tuple[float, float]:
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
    values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    digits = max(0, -math.floor(math.log10(step)))
    if max(map(abs, values), default=0.0) >= 1e7 or digits > 5:
        return [(value, f"{value:.3g}") for value in values]
    return [(value, f"{value:,.{digits}f}") for value in values]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten within the logarithms low and high; 2 and 5 times them where they are few."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil((high - low) / 7))
    factors = (1, 2, 5) if high - low < 2.2 else (1,)
    values = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
    return [(v, f"{v:g}") for v in values if v > 0 and low <= math.log10(v) <= high]
