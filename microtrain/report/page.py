"""One HTML file that says what a run is: it loads nothing, and reads well anywhere.

Everything stands in the file itself: charts as SVG, style and script (report.css, report.js).
page.html is a template in which every text of the run is escaped without being asked, and the page
forbids itself all requests and any script but its own, so that a report from someone else can be
opened.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..config.resolved import Setting, as_yaml
from ..data import Prepared
from ..errors import LaunchError, install
from ..files import reason, write_whole
from ..words import elapsed, number, plural, rate
from . import figures
from .curves import curves, speed
from .predictions import Predictions, predict_rows
from .record import Record

__all__ = ["final_report", "report_html", "write_plots", "write_report"]

_CHARTS = 8


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    predictions: Predictions | None = None,
    note: str = "",
) -> Path:
    """Write the report of a run and return its path; the file is whole or not there.

    Args:
        run: what `Record.read` takes: the run directory, or `<runs>/<name>`.
        output: the file; report.html in the run directory by default.
        predictions: what `predict_rows` gives.
        note: why there are none.

    Raises DataError for a damaged run, LaunchError without jinja2 or where the file cannot be
    written.
    """
    record = Record.read(run)
    path = record.path / "report.html" if output is None else Path(os.path.expanduser(output))
    text = report_html(record, predictions, note)
    try:
        write_whole(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise LaunchError(
            f"cannot write the report {path}: {reason(error)}; choose a place with --output FILE"
        ) from error
    return path


def write_plots(run: str | Path, predictions: Predictions | None = None) -> list[Path]:
    """Write plots/loss.png and, of one feature, plots/fit.png; returns the paths.

    Raises LaunchError without matplotlib or where a file cannot be written.
    """
    record, pictures = Record.read(run), {}
    if "loss" in record.fields:
        pictures["loss.png"] = figures.draw(curves([record], ["loss"]), record.name)
    if predictions is not None and predictions.fit is not None:
        pictures["fit.png"] = figures.draw([predictions.fit], record.name, predictions.model)
    paths = [figures.plots_folder(record.path) / name for name in pictures]
    for path, figure in zip(paths, pictures.values(), strict=True):
        figures.write(figure, path)
    return paths


def final_report(
    run: Path,
    model: Any = None,
    data: Prepared | None = None,
    device: Any = None,
    named: str = "",
) -> str | None:
    """Write the report of a run that has just ended, on one process; returns what went wrong.

    With a model, which it says is `named`, also what that predicts, and the pictures. A model that
    cannot predict here (it may be the user's) costs the predictions alone: a run that has ended
    well stays so, whatever happens here.
    """
    predictions, note = None, ""
    try:
        if data is not None:
            loss = Record.read(run).setting("loss.type")
            predictions = predict_rows(model, data, device, named, loss)
    except Exception as error:
        note = f"There are no predictions to show: {type(error).__name__}: {error}"
    problems = [_attempt("report", write_report, run, None, predictions, note)]
    if data is not None:
        problems.append(_attempt("plots", write_plots, run, predictions))
    return "; ".join(filter(None, problems)) or None


def _attempt(what: str, write: Callable[..., object], *arguments: Any) -> str:
    """Why `write` failed; empty where it did not."""
    try:
        write(*arguments)
    except Exception as error:
        kind = "" if isinstance(error, LaunchError) else f"{type(error).__name__}: "
        return f"no {what}: {kind}{error}"
    return ""


@np.errstate(all="ignore")  # what is not finite is shown as such
def report_html(record: Record, predictions: Predictions | None = None, note: str = "") -> str:
    """The page as text. Raises LaunchError without jinja2."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise LaunchError(f"jinja2 is not installed; {install('plot')}") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters |= {"elapsed": elapsed, "number": number, "plural": plural, "rate": rate}
    environment.filters |= {"weekday": _weekday, "sha256": _sha256, "yaml": as_yaml}
    return environment.from_string(_beside("page.html")).render(
        record=record,
        info=record.info,
        hosts=Counter(record.info.hosts),
        sections=_sections(record.config),
        style=_beside("report.css"),
        script=_beside("report.js"),
        curves=curves([record], record.fields[:_CHARTS]),
        speed=speed(record),
        predictions=predictions,
        note=note,
    )


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _sections(config: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    """Settings by section; keys without one are of the section `run`."""
    sections: dict[str, dict[str, Setting]] = {}
    for key, setting in config.items():
        section, dot, rest = key.partition(".")
        sections.setdefault(section if dot else "run", {})[rest if dot else key] = setting
    return sections


def _weekday(time: str) -> str:
    try:
        return f"started {datetime.fromisoformat(time):%A, %d %B %Y, %H:%M:%S}"
    except ValueError:
        return time


def _sha256(text: str) -> str:
    """As a content-security policy names a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
