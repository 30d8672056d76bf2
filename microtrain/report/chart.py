"""What is drawn: curves, dots and marks over one horizontal axis, with their scales and ticks.

One description serves the page (page.html draws it as SVG) and the picture files, with matplotlib.
That is imported when a picture is wanted, without pyplot: nothing global is touched and a user's
own figures stay as they are. The page does not show matplotlib's SVG, which was tried: its text
shrinks with the drawing (to 7 pixels on a telephone, to 30 in a chart over the full width), a
legend lies on the curves, and a curve can be neither hidden nor asked for its values without a
script that knows the scales. Here lines stretch and text does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.files import make_directory, write_whole, writing
from ..errors import ConfigError, LaunchError, absent
from ..runs.run import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"train": "#2f6db3", "val": "#d9622b", "test": "#12876f"}  # of looks, on paper
MOST_POINTS = 1000  # of a curve; more are not seen at the width of a page
WORDS = {"train": "train", "val": "validation", "test": "test"}
FEW = 6  # runs whose train and validation curves can be told apart in one picture
_LARGEST = 1e300  # beyond it differences overflow: drawn as what is not finite


@dataclass(frozen=True)
class Curve:
    """A line through points, or dots alone.

    Attributes:
        name: in the legend.
        look: `train`, `val`, `test` or `plain`: a class of report.css, a style of pictures.
        points: horizontal and vertical places, float64 of shape (n,) each.
        run: which of several runs it is of; they have a color each, in the order of their names.
        faint: whether it is the background of a smoothed one.
        band: the lower and upper end of what surrounds it, of shape (n,) each.
    """

    name: str
    look: str
    points: Series
    dots: bool = False
    run: str = ""
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
    if max(map(abs, values), default=0.0) >= 1e10 or digits > 5:
        return [(value, short(value)) for value in values]
    return [(value, f"{value:,.{digits}f}") for value in values]


def short(value: float) -> str:
    """A round number: 0.02, 5,000, 2e10."""
    if 1e3 <= abs(value) < 1e10:
        return f"{value:,.0f}"
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten within the logarithms low and high; 2 and 5 times them where they are few."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil((high - low) / 7))
    factors = (1, 2, 5) if high - low < 2.2 else (1,)
    values = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
    return [(v, short(v)) for v in values if v > 0 and low <= math.log10(v) <= high]


# Pictures in files

ELSEWHERE = "; choose a place with --output FILE"
FORMATS = (".png", ".svg", ".pdf")
INK, GRAY = "#222222", "#8a8a8a"
_STYLES: dict[str, dict[str, Any]] = {
    "train": {"color": COLORS["train"], "lw": 1.5, "ls": (0, (4, 1.5))},
    "val": {"color": COLORS["val"], "lw": 1.9},
    "test": {"color": COLORS["test"], "lw": 1.9},
    "plain": {"color": INK, "lw": 1.4, "ls": (0, (5, 4))},
}
# Okabe and Ito's colors, which people who see colors otherwise can tell apart; two more at the end.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#8c564b")
_LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 3)))


def draw(charts: Sequence[Chart], title: str = "", note: str = "") -> Figure:
    """A figure with a panel for each chart; `note` stands above the legend of a single run.

    Raises LaunchError without matplotlib.
    """
    try:
        from matplotlib import rc_context, rc_params_from_file
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LaunchError(absent("matplotlib", "plot", error)) from None
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    runs = list(dict.fromkeys(c.run for chart in charts for c in chart.curves if c.run))
    many = len(runs) > FEW
    height = 4.5 if rows == 1 else 3.6
    if many:
        columns, rows = 1, len(charts)
        height = max(height, 1.2 + 0.2 * len(runs))
    styles = _styles_of_runs(runs, many)
    # As rc_context(fname=...), which also reads every style that matplotlib brings.
    own = rc_params_from_file(
        Path(__file__).with_name("pictures.mplstyle"), use_default_template=False
    )
    with rc_context(own):
        size = (9.6 if many else 7.2 if columns == 1 else 11.5, height * rows)
        figure = Figure(figsize=size, dpi=150, facecolor="white")
        if runs or len(charts) > 1:
            figure.set_layout_engine("constrained")
        else:  # which needs no search for its margins, here in inches
            digits = max((len(text) for _, text in charts[0].y_ticks()), default=1)
            left, right, bottom, top = 0.55 + 0.085 * digits, 0.25, 0.6, 0.45
            figure.subplots_adjust(left / 7.2, bottom / 4.5, 1 - right / 7.2, 1 - top / 4.5)
        for panel, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(rows, columns, panel)
            axes.set_title(f"{title}: {chart.title}" if title else chart.title)
            _scale(axes, chart)
            _draw(axes, chart, styles, many)
            if not runs:
                axes.legend(title=note or None, alignment="left")
        if runs:
            _legend_of_runs(figure, charts, styles, many)
    return figure


def _styles_of_runs(runs: Sequence[str], many: bool) -> dict[str, dict[str, Any]]:
    """A color for each run; of many also a kind of line."""
    looks = itertools.cycle(itertools.product(_LINES, _COLORS))
    return {
        run: {"color": color} | ({"ls": line, "lw": 1.4} if many else {})
        for run, (line, color) in zip(runs, looks, strict=False)
    }


def plots_folder(run: Path) -> Path:
    """The directory `plots` of a run; LaunchError where it is absent and cannot be made."""
    folder = run / "plots"
    with writing("a plot", ELSEWHERE):
        make_directory(folder)
    return folder


def write(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by the path's ending; whole or not at all.

    Raises ConfigError for another ending, LaunchError where the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write {path}: its name must end in {', '.join(FORMATS)}")
    content = picture(figure, path.suffix[1:].lower())
    with writing(f"the plot {path}"):
        write_whole(path, content)


def picture(figure: Figure, kind: str = "png") -> bytes:
    """The content of a file of that kind."""
    content, layout = BytesIO(), figure.get_layout_engine()
    if layout is not None:  # once: savefig would do so twice, and draw all for nothing
        layout.execute(figure)
        figure.set_layout_engine(None)
    # As small as with Pillow's usual 6, in half the time.
    how: dict[str, Any] = {"pil_kwargs": {"compress_level": 4}} if kind == "png" else {}
    figure.savefig(content, format=kind, facecolor="white", **how)
    return content.getvalue()


def _scale(axes: Axes, chart: Chart) -> None:
    """The axes as the page has them."""
    left, right, low, high = chart.range
    bottom, top = (10.0**low, 10.0**high) if chart.log else (low, high)
    axes.set(xlabel=chart.x, ylabel=chart.y or chart.title, xlim=(left, right))
    axes.set(yscale="log" if chart.log else "linear", ylim=(bottom, top))
    for axis, ticks in ((axes.xaxis, chart.x_ticks()), (axes.yaxis, chart.y_ticks())):
        axis.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
        axis.set_ticks([], minor=True)


def _draw(axes: Axes, chart: Chart, styles: dict[str, dict[str, Any]], many: bool) -> None:
    for curve in chart.curves:
        x, y = chart.drawn(curve)
        style = _STYLES[curve.look] | styles.get(curve.run, {})
        if curve.faint:
            axes.plot(x, y, zorder=1.5, **style | {"ls": "-", "lw": 0.9, "alpha": 0.25})
            continue
        if curve.band is not None:
            low, high = (chart.placed(values) for values in curve.band)
            color = style["color"]
            axes.fill_between(curve.points[0], low, high, color=color, alpha=0.16, lw=0)
        if curve.dots:
            few = len(x) <= 300
            style |= {"ls": "none", "marker": "o", "ms": 5 if few else 3.5, "mew": 0}
            style["alpha"] = 1 if len(x) == 1 else 0.65 if few else 0.4
        elif len(x) <= 30 and curve.look != "plain" and not many:
            style |= {"marker": "o", "ms": 4}
        # Above a solid line that coincides with it, a dashed one is seen.
        above = 2.5 if curve.look == "train" and not curve.dots else 2
        axes.plot(x, y, label=curve.name, zorder=above, **style)
    for mark in chart.marks:
        color = styles.get(mark.run, {}).get("color")
        if mark.y is None:
            axes.axvline(mark.x, color=color or GRAY, ls=":", lw=1.5, label=mark.words)
        else:
            ring: dict[str, Any] = {"ms": 8, "mew": 2, "mfc": "white", "zorder": 5}
            if many:
                ring |= {"ms": 4, "mew": 1.2}
            axes.plot([mark.x], [mark.y], "o", color=color or INK, label=mark.words, **ring)


def _legend_of_runs(
    figure: Figure, charts: Sequence[Chart], styles: dict[str, dict[str, Any]], many: bool
) -> None:
    """A color for each run, and what the lines and dots of each look are; of many on the right."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=run, **{"lw": 1.9} | style) for run, style in styles.items()]
    dot: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 5}
    for look, words in WORDS.items():
        drawn = [c for chart in charts for c in chart.curves if c.look == look and not c.faint]
        dots = [curve.dots for curve in drawn]
        if dots:
            style = dot if all(dots) else _STYLES[look]
            handles.append(Line2D([], [], label=words, **style | {"color": GRAY}))
    columns = 1 if many or max(map(len, styles)) > 40 else 2
    place: Any = "outside right upper" if many else "outside lower center"
    figure.legend(handles=handles, loc=place, ncols=columns, fontsize=8 if many else None)
