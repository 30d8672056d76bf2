"""What a notebook shows of a run: how it ended, and its curves."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.words import elapsed, html_table, number, plural
from ..errors import DataError, LaunchError
from ..runs.run import Run
from .chart import draw, picture
from .curves import choose, curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def in_html(path: Path) -> str:
    """A table of facts, and the curves as a picture where there are any and matplotlib is."""
    record = Run.read(path)
    info, best = record.info, record.best_so_far
    facts = {"status": record.status}
    if info.steps is not None:
        facts["steps"] = plural(info.steps, "step")
    if (seconds := info.timings.get("train_s")) is not None:
        facts["time"] = elapsed(seconds)
    if best is not None:
        facts["best"] = f"{best.name} {number(best.value)} at step {best.step:,}"
    test = {key: value for key, value in (info.test or {}).items() if key != "step"}
    if test:
        values = (f"{k} {'nan' if v is None else number(v)}" for k, v in test.items())
        facts["test"] = ", ".join(values)
    facts["results"] = str(record.path)
    return html_table([[key, text] for key, text in facts.items()], record.name) + _picture(record)


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
