"""What a notebook shows of a run: how it ended, and its curves."""

from __future__ import annotations

import base64
from pathlib import Path

from ..common.words import elapsed, html_table, number, plural
from ..errors import DataError, LaunchError
from .chart import draw, picture
from .curves import choose, curves
from .record import Record


def in_html(path: Path) -> str:
    """A table of facts, and the curves as a picture where there are any and matplotlib is."""
    record = Record.read(path)
    info, best = record.info, record.best_so_far
    facts = {"status": record.status}
    if info.steps is not None:
        facts["steps"] = plural(info.steps, "step")
    if (seconds := info.seconds("train_s")) is not None:
        facts["time"] = elapsed(seconds)
    if best is not None:
        facts["best"] = f"{best.name} {number(best.value)} at step {best.step:,}"
    test = {key: value for key, value in (info.test or {}).items() if key != "step"}
    if test:
        values = (f"{k} {'nan' if v is None else number(v)}" for k, v in test.items())
        facts["test"] = ", ".join(values)
    facts["results"] = str(record.path)
    return html_table([[key, text] for key, text in facts.items()], record.name) + _picture(record)


def _picture(record: Record) -> str:
    try:
        figure = draw(curves([record], choose([record], [])[:2]), "")
    except (DataError, LaunchError):  # nothing measured, no matplotlib
        return ""
    figure.set_dpi(80)
    data = base64.b64encode(picture(figure)).decode()
    return f'<img alt="curves of {record.path.name}" src="data:image/png;base64,{data}">'
