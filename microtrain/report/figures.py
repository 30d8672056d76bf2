"""Charts as pictures in files, with matplotlib.

It is imported here alone and only when a picture is wanted. Figures are made without pyplot, so
nothing global is touched and a user's own figures stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, LaunchError, install
from ..files import make_directory, reason, write_whole
from .chart import Chart
from .curves import WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "plots_folder", "write"]

FORMATS = (".png", ".svg", ".pdf")
INK, GREY = "#222222", "#8a8a8a"
_STYLES: dict[str, dict[str, Any]] = {
    "train": {"color": "#2f6db3", "lw": 1.5, "ls": (0, (4, 1.5))},
    "val": {"color": "#d9622b", "lw": 1.9},
    "test": {"color": "#12876f", "lw": 1.9},
    "plain": {"color": INK, "lw": 1.4, "ls": (0, (5, 4))},
}
# Okabe and Ito's colours, which people who see colours otherwise can tell apart, black left out.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(charts: Sequence[Chart], title: str = "", note: str = "") -> Figure:
    """A figure with a panel for each chart; `note` stands above the legend of a single run.

    Raises LaunchError without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise LaunchError(f"matplotlib is not installed; {install('plot')}") from None
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    size = (7.2 if columns == 1 else 11.5, 4.5 if rows == 1 else 3.6 * rows)
    runs = dict.fromkeys(curve.run for chart in charts for curve in chart.curves if curve.run)
    colors = dict(zip(runs, cycle(_COLORS), strict=False))
    with rc_context(fname=Path(__file__).with_name("figures.mplstyle")):
        figure = Figure(figsize=size, dpi=150, facecolor="white", layout="constrained")
        for panel, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(rows, columns, panel)
            axes.set_title(f"{title}: {chart.title}" if title else chart.title)
            _scale(axes, chart)
            _draw(axes, chart, colors)
            if not runs:
                axes.legend(title=note or None, alignment="left")
        if runs:
            _legend_of_runs(figure, charts, colors)
    return figure


def plots_folder(run: Path) -> Path:
    """The directory `plots` of a run; LaunchError where it is absent and cannot be made."""
    folder = run / "plots"
    try:
        make_directory(folder)
    except OSError as error:
        raise LaunchError(
            f"cannot write a plot: {reason(error)}; choose a place with --output FILE"
        ) from error
    return folder


def write(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by the path's ending; whole or not at all.

    Raises ConfigError for another ending, LaunchError where the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write {path}: its name must end in {', '.join(FORMATS)}")
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), facecolor="white")
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise LaunchError(f"cannot write the plot {path}: {reason(error)}") from error


def _scale(axes: Axes, chart: Chart) -> None:
    """The axes as the page has them."""
    left, right, low, high = chart.range
    bottom, top = (10.0**low, 10.0**high) if chart.log else (low, high)
    axes.set(xlabel=chart.x, ylabel=chart.y or chart.title, xlim=(left, right))
    axes.set(yscale="log" if chart.log else "linear", ylim=(bottom, top))
    for axis, ticks in ((axes.xaxis, chart.x_ticks()), (axes.yaxis, chart.y_ticks())):
        axis.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
        axis.set_ticks([], minor=True)


def _draw(axes: Axes, chart: Chart, colors: dict[str, str]) -> None:
    for curve in chart.curves:
        x, y = chart.drawn(curve)
        style = _STYLES[curve.look] | ({"color": colors[curve.run]} if curve.run else {})
        if curve.dots:
            few = len(x) <= 300
            style |= {"ls": "none", "marker": "o", "ms": 5 if few else 3.5, "mew": 0}
            style["alpha"] = 1 if len(x) == 1 else 0.65 if few else 0.4
        elif len(x) <= 30 and curve.look != "plain":
            style |= {"marker": "o", "ms": 4}
        # Above a solid line that coincides with it, a dashed one is seen.
        above = 2.5 if curve.look == "train" and not curve.dots else 2
        axes.plot(x, y, label=curve.name, zorder=above, **style)
    for mark in chart.marks:
        if mark.y is None:
            color = colors.get(mark.run, GREY)
            axes.axvline(mark.x, color=color, ls=":", lw=1.5, label=mark.words)
        else:
            ring: dict[str, Any] = {"ms": 8, "mew": 2, "mfc": "white", "zorder": 5}
            color = colors.get(mark.run, INK)
            axes.plot([mark.x], [mark.y], "o", color=color, label=mark.words, **ring)


def _legend_of_runs(figure: Figure, charts: Sequence[Chart], colors: dict[str, str]) -> None:
    """A colour for each run, and what the lines and dots of each look are."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, lw=1.9, label=run) for run, color in colors.items()]
    dot: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 5}
    for look, words in WORDS.items():
        dots = [c.dots for chart in charts for c in chart.curves if c.look == look]
        if dots:
            style = dot if all(dots) else _STYLES[look]
            handles.append(Line2D([], [], label=words, **style | {"color": GREY}))
    columns = 1 if max(map(len, colors)) > 40 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
