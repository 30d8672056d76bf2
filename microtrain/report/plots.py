"""Pictures that a run draws without being asked: the loss curve, and data with the fitted line.

Drawn from metrics.jsonl and plain arrays with matplotlib, which is imported here and only when a
picture is wanted; where it is absent a run says once how to get it. Figures are made without
pyplot, so nothing global is touched and a user's own figures stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import LaunchError
from ..files import make_directory, reason, write_whole
from ..words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.record import Series

__all__ = ["Plots", "line_label"]

MISSING = "matplotlib is not installed; pip install 'microtrain[plot]'"


BLUE, ORANGE, INK, GREY = "#2f6db3", "#e0702d", "#222222", "#8a8a8a"
_POINTS = 2000  # more are neither seen in a picture of this width nor worth their time


class Plots:
    """Draws the pictures of one run into its `plots` directory.

    Args:
        directory: where the PNG files go; made in the run's when the first is drawn.
        say: receives the one message about missing matplotlib.
        title: heads every picture; the run's name.

    Methods return the path of the PNG, or None when there is nothing to draw or nothing to draw
    with. Raises LaunchError when the file cannot be written.
    """

    def __init__(self, directory: str | Path, say: Callable[[str], None], title: str = "") -> None:
        self.directory = Path(directory)
        self._say = say
        self._title = title
        self._told = False

    def loss(self, rows: Sequence[Mapping[str, Any]], monitor: str = "val/loss") -> Path | None:
        """Draw loss.png: train and validation loss against optimiser steps.

        Args:
            rows: of metrics.jsonl, as `read_metrics` returns them.
            monitor: if it is one of the losses drawn, its lowest value is marked.
        """
        curves = {split: _curve(rows, split) for split in ("train", "val")}
        curves = {split: curve for split, curve in curves.items() if len(curve[0])}
        figure = self._figure() if curves else None
        if figure is None:
            return None
        axes = new_axes(figure, self._title, "loss", "optimiser step", "loss")
        set_scale(axes, np.concatenate([values for _, values in curves.values()]))
        # The wide pale curve below stays visible where both coincide.
        looks = {"train": (BLUE, "train", 4.0, 0.55), "val": (ORANGE, "validation", 1.8, 1.0)}
        if len(curves) == 1:
            looks["train"] = (BLUE, "train", 2.0, 1.0)
        for split, (steps, values) in curves.items():
            color, label, width, alpha = looks[split]
            x, y = thinned(steps, values)
            marker = "o" if len(x) <= 30 else None
            axes.plot(
                x, y, color=color, alpha=alpha, label=label, lw=width, marker=marker, ms=width + 2
            )
            if np.isfinite(values).any() and monitor == f"{split}/loss":
                _mark_best(axes, steps, values, color)
        _mark_not_finite(axes, curves)
        axes.margins(x=0.03)
        axes.legend(frameon=False, loc="best")
        return self._write(figure, "loss.png")

    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        fitted: Callable[[NDArray[np.float64]], ArrayLike],
        true: Callable[[NDArray[np.float64]], ArrayLike] | None = None,
        *,
        fitted_label: str = "fitted",
        true_label: str = "true",
        feature: str = "x",
        target: str = "y",
    ) -> Path | None:
        """Draw fit.png: one feature against the target, the model's line and the true one.

        Args:
            x, y: the data, n numbers each, of shapes (n,) or (n, 1).
            fitted, true: from 200 places along x, shape (200,), to that many values.
            fitted_label, true_label: for the legend, such as `line_label(2.0, 3.0)`.
            feature, target: names of the axes.
        """
        x_all, y_all = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (x, y))
        figure = self._figure() if len(x_all) else None
        if figure is None:
            return None
        axes = new_axes(figure, self._title, "data and fit", feature, target)
        if len(x_all) > _POINTS:  # a fixed sample: the same data give the same picture
            chosen = np.random.default_rng(0).choice(len(x_all), _POINTS, replace=False)
            label = f"data ({_POINTS:,} of {len(x_all):,} points)"
        else:
            chosen, label = np.arange(len(x_all)), "data"
        size, alpha = (14, 0.35) if len(chosen) > 300 else (28, 0.65)
        axes.scatter(
            x_all[chosen], y_all[chosen], s=size, color=BLUE, alpha=alpha, lw=0, label=label
        )
        places = np.linspace(x_all.min(), x_all.max(), 200)
        line = np.asarray(fitted(places), dtype=np.float64).reshape(-1)
        axes.plot(places, line, color=ORANGE, lw=2.4, label=fitted_label)
        if true is not None:
            line = np.asarray(true(places), dtype=np.float64).reshape(-1)
            axes.plot(places, line, color=INK, lw=1.4, ls=(0, (5, 4)), label=true_label)
        axes.legend(frameon=False, loc="best")
        return self._write(figure, "fit.png")

    def _figure(self) -> Figure | None:
        try:
            return new_figure()
        except ImportError:
            if not self._told:
                self._told = True
                self._say(f"no plots: {MISSING}")
            return None

    def _write(self, figure: Figure, name: str) -> Path:
        path = self.directory / name
        try:
            make_directory(self.directory)
        except OSError as error:
            raise LaunchError(f"cannot make the directory of the plots: {reason(error)}") from error
        write_figure(figure, path)
        return path


def new_figure(width: float = 7.2, height: float = 4.5) -> Figure:
    """An empty figure, in inches. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by the path's ending; whole or not at all. Raises LaunchError."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), facecolor="white")
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise LaunchError(f"cannot write the plot {path}: {reason(error)}") from error


def line_label(name: str, weight: float, bias: float) -> str:
    """A legend's text for a line: `fitted: y = 2.0012 x + 2.9981`."""
    return f"{name}: y = {weight:.5g} x {'-' if bias < 0 else '+'} {abs(bias):.5g}"


def new_axes(
    figure: Figure,
    title: str,
    subject: str,
    x_label: str,
    y_label: str,
    place: tuple[int, int, int] = (1, 1, 1),
) -> Axes:
    """Axes in the one style of all pictures; `place` as `Figure.add_subplot` takes it."""
    axes = figure.add_subplot(*place)
    heading = f"{title}: {subject}" if title else subject
    plain: dict[str, Any] = {"color": INK, "parse_math": False}  # a column named $x$ is a name
    axes.set_title(heading, loc="left", fontsize=12, fontweight="bold", pad=10, **plain)
    axes.set_xlabel(x_label, **plain)
    axes.set_ylabel(y_label, **plain)
    axes.grid(True, which="major", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(which="both", color=GREY, labelcolor=INK)
    return axes


def set_scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """Whole steps below; at the side a logarithmic scale when positive values span a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0 or finite.max() < 10 * finite.min():
        return
    axes.set_yscale("log")
    if finite.max() < 1000 * finite.min():  # too few powers of ten to read a value between them
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curve(rows: Sequence[Mapping[str, Any]], split: str) -> Series:
    pairs = [(r["step"], r["loss"]) for r in rows if r.get("split") == split and "loss" in r]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def thinned(x: NDArray[np.float64], y: NDArray[np.float64], most: int = _POINTS) -> Series:
    """At most that many points, which keep every peak and trough: extremes of equal stretches."""
    if len(x) <= most:
        return x, y
    kept = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), most // 2 - 1):
        values = y[part]
        low = np.where(np.isnan(values), math.inf, values)
        high = np.where(np.isnan(values), -math.inf, values)
        kept |= {int(part[low.argmin()]), int(part[high.argmax()])}
    chosen = np.array(sorted(kept))
    return x[chosen], y[chosen]


def _mark_best(
    axes: Axes, steps: NDArray[np.float64], values: NDArray[np.float64], color: str
) -> None:
    best = int(np.nanargmin(values))
    axes.plot(
        [steps[best]], [values[best]], "o", ms=9, mfc="white", mec=color, mew=2, zorder=5,
        label=f"best: {number(values[best])} at step {steps[best]:,.0f}",
    )  # fmt: skip


def _mark_not_finite(axes: Axes, curves: Mapping[str, Series]) -> None:
    lost = [steps[~np.isfinite(values)] for steps, values in curves.values()]
    first = np.concatenate(lost)
    if len(first):
        label = f"not finite from step {first.min():,.0f}"
        axes.axvline(float(first.min()), color=GREY, ls=":", lw=1.5, label=label)
