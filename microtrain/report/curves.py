"""The figure of `microtrain plot`: curves of one or several runs, a panel for each measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.resolved import as_yaml
from ..errors import ConfigError, DataError, LaunchError
from ..runs.record import Record
from ..spelling import did_you_mean
from ..words import number
from .plots import GREY, INK, MISSING, new_axes, new_figure, set_scale, thinned, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FORMATS", "draw_runs", "names_of"]

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which people who see colours otherwise can tell apart, black left out.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_SPLITS = ("train", "val", "test")
_LOOKS: dict[str, dict[str, Any]] = {
    "train": {"lw": 1.4, "alpha": 0.6, "ls": (0, (4, 1.5))},
    "val": {"lw": 1.9},
    "test": {"ls": "none", "marker": "D", "ms": 6},
}
_WORDS = {"train": "train", "val": "validation", "test": "test"}
_MOST = 6  # panels without being asked for


def draw_runs(records: Sequence[Record], path: Path, metrics: Sequence[str] = ()) -> None:
    """Draw the curves of runs together and write them to `path` (PNG, SVG or PDF).

    Args:
        records: the runs; each has a colour, training is dashed and validation solid.
        path: its folder exists.
        metrics: fields such as `loss` and `r2`, or one column of them such as `val/loss`; all
            that the runs have, six at most, where none is named.

    Raises:
        ConfigError: no run has such a metric, or the path's ending is no format.
        DataError: no run has measured anything.
        LaunchError: matplotlib is absent, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write {path}: its name must end in {', '.join(FORMATS)}")
    fields = _chosen(records, metrics)
    columns = 1 if len(fields) == 1 else 2
    rows = math.ceil(len(fields) / columns)
    try:
        figure = new_figure(7.2 if columns == 1 else 11.5, 4.5 if rows == 1 else 3.6 * rows)
    except ImportError:
        raise LaunchError(MISSING) from None
    names = names_of(records)
    handles: dict[str, Any] = {}
    for place, field in enumerate(fields, start=1):
        title = records[0].name if len(records) == 1 else ""
        axes = new_axes(figure, title, field, "optimiser step", field, (rows, columns, place))
        for record, name, color in zip(records, names, cycle(_COLORS), strict=False):
            for line in _draw(axes, record, field, name, color, alone=len(records) == 1):
                handles.setdefault(str(line.get_label()), line)
        values = [record.curve(column)[1] for record in records for column in _columns(field)]
        set_scale(axes, np.concatenate(values))
        axes.margins(x=0.03)
        if len(records) == 1:
            axes.legend(frameon=False, loc="best", labelcolor=INK)
    if len(records) > 1:
        styles = [_style(split) for split in _SPLITS if _has(records, fields, split)]
        figure.legend(
            handles=[*handles.values(), *styles],
            loc="outside lower center",
            ncols=1 if max(map(len, names)) > 40 else 2,
            frameon=False,
            labelcolor=INK,
        )
    for legend in [*figure.legends, *(axes.get_legend() for axes in figure.axes)]:
        for text in legend.get_texts() if legend else ():
            text.set_parse_math(False)  # a run named $x$ is a name
    write_figure(figure, path)


def names_of(records: Sequence[Record]) -> list[str]:
    """What to call runs beside each other: what differs in their configurations, else their time.

    Up to three settings are named where they tell all runs apart.
    """
    keys = dict.fromkeys(key for record in records for key in record.config)
    tables = [
        {k: as_yaml(s.value) for k, s in r.config.items()} | {"name": r.name} for r in records
    ]
    own = [k for k in keys if k != "run_dir" and len({table.get(k) for table in tables}) > 1]
    own = ["name"] if len({table.get("name") for table in tables}) == len(tables) > 1 else own
    texts = [
        ", ".join(t[k] if k == "name" else f"{k}={t.get(k, '-')}" for k in own) for t in tables
    ]
    if not 1 <= len(own) <= 3 or len(set(texts)) < len(records) or max(map(len, texts)) > 70:
        texts = [record.label for record in records]
    if len(set(texts)) < len(records):  # equal names in other folders
        texts = [str(record.path) for record in records]
    return texts


def _chosen(records: Sequence[Record], metrics: Sequence[str]) -> list[str]:
    fields = list(dict.fromkeys(field for record in records for field in record.fields))
    columns = list(dict.fromkeys(column for record in records for column in record.columns))
    if not fields:
        where = ", ".join(str(record.path) for record in records)
        raise DataError(f"nothing to draw: no row of metrics was written in {where}")
    for name in metrics:
        if name not in fields and name not in columns:
            near = did_you_mean(name, [*fields, *columns])
            raise ConfigError(f'no run has the metric "{name}"{near} (there are: {_list(fields)})')
    return list(dict.fromkeys(metrics)) or fields[:_MOST]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _columns(field: str) -> list[str]:
    return [field] if "/" in field else [f"{split}/{field}" for split in _SPLITS]


def _draw(axes: Axes, record: Record, field: str, name: str, color: str, *, alone: bool) -> Any:
    """The curves of one run; returns what a legend of several runs shows of it."""
    ended = _ending(record)
    shown: list[Any] = []
    for column in _columns(field):
        split = column.partition("/")[0]
        steps, values = record.curve(column)
        if not len(steps):
            continue
        tint = _COLORS[_SPLITS.index(split)] if alone else color
        x, y = thinned(steps, values)
        look: dict[str, Any] = {"marker": "o", "ms": 4} if len(x) <= 30 else {}
        (line,) = axes.plot(x, y, color=tint, **(look | _LOOKS[split]))
        line.set_label(_WORDS[split] if alone else name + ended)
        if split == "val" or not shown:
            shown = [line]
        best = record.best(column)
        if best is not None and split != "test" and column == _marked(record, field):
            label = f"best: {number(best[0])} at step {best[1]:,}" if alone else "_"
            axes.plot(
                [best[1]],
                [best[0]],
                "o",
                ms=8,
                mfc="white",
                color=tint,
                mew=2,
                zorder=5,
                label=label,
            )
    if record.info.status == "diverged" and record.info.steps is not None:
        at = record.info.steps + 1  # the step that was refused
        label = f"diverged at step {at:,}" if alone else "_"
        axes.axvline(at, color=GREY if alone else color, ls=":", lw=1.5, label=label)
    return shown or axes.plot([], [], color=color, label=name + ended)


def _marked(record: Record, field: str) -> str:
    """The column of a panel whose best value is marked: validation's where there is one."""
    columns = [c for c in _columns(field) if c in record.columns]
    return next((c for c in columns if c.startswith("val/")), columns[0] if columns else "")


def _ending(record: Record) -> str:
    """Behind the name of a run that did not finish."""
    status, steps = record.info.status, record.info.steps
    if status == "finished":
        return ""
    if status == "diverged" and steps is not None:
        return f" (diverged at step {steps + 1:,})"
    return f" ({status})"


def _style(split: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=GREY, label=_WORDS[split], **_LOOKS[split])


def _has(records: Sequence[Record], fields: Sequence[str], split: str) -> bool:
    wanted = {column for field in fields for column in _columns(field)}
    return any(c in wanted and c.startswith(f"{split}/") for r in records for c in r.columns)
