"""What a notebook shows of a run: how it ended, and its curves."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.words import html_table
from ..errors import DataError, LaunchError
from ..runs.run import Run
from .chart import draw, picture
from .curves import choose, curves
from .overview import listing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def in_html(path: Path) -> str:
    """A table of facts, and the curves as a picture where there are any and matplotlib is."""
    drawn = _picture(Run.read(path))
    columns = [c for c in listing([path], warnings.warn) if c.weight and c.values[0] is not None]
    return html_table([[column.name, column.cell(0)] for column in columns], str(path)) + drawn


def figure(path: Path, metrics: Sequence[str]) -> Figure:
    """The curves of a run, of these metrics or all; it shows itself in a notebook.

    Raises LaunchError without matplotlib, ConfigError for an unknown metric, DataError where
    nothing was measured.
    """
    record = Run.read(path)
    drawn = draw(curves([record], choose([record], metrics)), record.name)
    drawn.set_dpi(80)
    drawn._repr_png_ = partial(picture, drawn)  # type: ignore[attr-defined]
    return drawn


def _picture(record: Run) -> str:
    try:
        drawn = draw(curves([record], choose([record], [])[:2]), "")
    except (DataError, LaunchError):  # nothing measured, no matplotlib
        return ""
    drawn.set_dpi(80)
    data = base64.b64encode(picture(drawn)).decode()
    return f'<img alt="curves of {record.path.name}" src="data:image/png;base64,{data}">'
