"""Charts as pictures in files, with matplotlib.

It is imported here alone and only when a picture is wanted. Figures are made without pyplot, so
nothing global is touched and a user's own figures stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, LaunchError, absent
from ..files import make_directory, reason, write_whole
from .chart import COLORS, Chart
from .curves import FEW, WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "picture", "plots_folder", "write"]

FORMATS = (".png", ".svg", ".pdf")
INK, GREY = "#222222", "#8a8a8a"
_STYLES: dict[str, dict[str, Any]] = {
    "train": {"color": COLORS["train"], "lw": 1.5, "ls": (0, (4, 1.5))},
    "val": {"color": COLORS["val"], "lw": 1.9},
    "test": {"color": COLORS["test"], "lw": 1.9},
    "plain": {"color": INK, "lw": 1.4, "ls": (0, (5, 4))},
}
# Okabe and Ito's colours, which people who see colours otherwise can tell apart, black left out.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MORE_COLORS = ("#222222", "#8c564b")
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
    runs = {curve.run: curve.kin for chart in charts for curve in chart.curves if curve.run}
    many = len(runs) > FEW
    height = 4.5 if rows == 1 else 3.6
    if many:
        columns, rows = 1, len(charts)
        height = max(height, 1.2 + 0.2 * len(runs))
    styles = _styles_of_runs(runs, many)
    # As rc_context(fname=...), which also reads every style that matplotlib brings.
    own = rc_params_from_file(
        Path(__file__).with_name("figures.mplstyle"), use_default_template=False
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


def _styles_of_runs(kin: dict[str, str], many: bool) -> dict[str, dict[str, Any]]:
    """A colour for each run; of many also a kind of line.

    Those of one kin have one colour, if that leaves enough for all; else colours go round first.
    """
    colors = (*_COLORS, *_MORE_COLORS) if many else _COLORS
    families: dict[str, list[str]] = {}
    for run, family in kin.items():
        families.setdefault(family, []).append(run)
    together = 1 < len(families) <= len(colors) < len(kin)
    together = together and max(map(len, families.values())) <= len(_LINES)
    styles: dict[str, dict[str, Any]] = {}
    for i, (run, family) in enumerate(kin.items()):
        color, line = i % len(colors), i // len(colors) % len(_LINES)
        if together:
            color, line = [*families].index(family), families[family].index(run)
        styles[run] = {"color": colors[color]} | ({"ls": _LINES[line], "lw": 1.4} if many else {})
    return styles


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
    try:
        write_whole(path, picture(figure, path.suffix[1:].lower()))
    except OSError as error:
        raise LaunchError(f"cannot write the plot {path}: {reason(error)}") from error


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
            axes.axvline(mark.x, color=color or GREY, ls=":", lw=1.5, label=mark.words)
        else:
            ring: dict[str, Any] = {"ms": 8, "mew": 2, "mfc": "white", "zorder": 5}
            if many:
                ring |= {"ms": 4, "mew": 1.2}
            axes.plot([mark.x], [mark.y], "o", color=color or INK, label=mark.words, **ring)


def _legend_of_runs(
    figure: Figure, charts: Sequence[Chart], styles: dict[str, dict[str, Any]], many: bool
) -> None:
    """A colour for each run, and what the lines and dots of each look are; of many on the right."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=run, **{"lw": 1.9} | style) for run, style in styles.items()]
    dot: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 5}
    for look, words in WORDS.items():
        drawn = [c for chart in charts for c in chart.curves if c.look == look and not c.faint]
        dots = [curve.dots for curve in drawn]
        if dots:
            style = dot if all(dots) else _STYLES[look]
            handles.append(Line2D([], [], label=words, **style | {"color": GREY}))
    columns = 1 if many or max(map(len, styles)) > 40 else 2
    place: Any = "outside right upper" if many else "outside lower center"
    figure.legend(handles=handles, loc=place, ncols=columns, fontsize=8 if many else None)
