"""One HTML file that says what a run is: it loads nothing, and reads well anywhere.

Everything stands in the file itself: charts as SVG, style and script (report.css, report.js).
page.html (of one run) and runs.html (of several) are templates in which every text of a run is
escaped without being asked, and the page forbids itself all requests and any script but its own, so
that a report from someone else can be opened.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..capture.c_compiler import directory
from ..common.files import write_whole, writing
from ..common.version import __version__
from ..common.words import elapsed, listed, number, plural, rate
from ..config.resolved import Setting, as_yaml
from ..data import Prepared
from ..errors import LaunchError, absent
from ..runs.run import Run
from .chart import COLORS, ELSEWHERE, FEW, WORDS, draw, plots_folder, write
from .compare import overall
from .curves import curves, run_names, usual
from .groups import Comparison
from .predictions import Predictions, counted, predict_rows


def write_page(page: str, path: str | Path) -> Path:
    """Write what `report_html` or `runs_html` gives; the file is whole or not there.

    Returns its path. Raises LaunchError where it cannot be written.
    """
    path = Path(os.path.expanduser(path))
    with writing(f"the report {path}", ELSEWHERE):
        write_whole(path, page.encode(errors="backslashreplace"))
    return path


def write_plots(record: Run, predictions: Predictions | None = None) -> list[Path]:
    """Write plots/loss.png and, of one feature, plots/fit.png; returns the paths.

    Raises LaunchError without matplotlib or where a file cannot be written.
    """
    pictures = {}
    if "loss" in record.fields:
        pictures["loss.png"] = draw(curves([record], ["loss"]), record.name)
    if predictions is not None and predictions.fit is not None:
        pictures["fit.png"] = draw([predictions.fit], record.name, predictions.model)
    paths = [plots_folder(record.path) / name for name in pictures]
    for path, figure in zip(paths, pictures.values(), strict=True):
        write(figure, path)
    return paths


def final_report(
    run: Path, model: Any = None, data: Prepared | None = None, device: Any = None, named: str = ""
) -> str | None:
    """Write the report of a run that has just ended, on one process; returns what went wrong.

    With a model, which it says is `named`, also what that predicts, and the pictures. A model that
    cannot predict here (it may be the user's) costs the predictions alone: a run that has ended
    well stays so, whatever happens here.
    """
    predictions, note, record = None, "", None
    try:
        if data is not None:
            record = Run.read(run)  # whose run.json does not say yet that it has finished
            info = replace(record.info, status="finished", exit_code=0)
            record = replace(record, info=info)
            predictions = predict_rows(model, data, device, named, record.setting("loss.type"))
    except Exception as error:
        note = f"There are no predictions to show: {type(error).__name__}: {error}"

    def write_report() -> None:
        page = report_html(record or Run.read(run), predictions, note)
        write_page(page, run / "report.html")

    to_write: dict[str, Callable[[], object]] = {"report": write_report}
    if record is not None:
        to_write["plots"] = functools.partial(write_plots, record, predictions)
    problems = []
    for what, write_it in to_write.items():
        try:
            write_it()
        except Exception as error:
            kind = "" if isinstance(error, LaunchError) else f"{type(error).__name__}: "
            problems.append(f"no {what}: {kind}{error}")
    return "; ".join(problems) or None


@np.errstate(all="ignore")  # what is not finite is shown as such
def report_html(record: Run, predictions: Predictions | None = None, note: str = "") -> str:
    """The page of a run as text. Raises LaunchError without jinja2.

    Args:
        record: the run.
        predictions: what `predict_rows` gives.
        note: why there are none.
    """
    matrix, about = None, ""
    if (counts := record.info.classes) is not None:
        matrix = counted(counts)
        rows = f"{matrix.right + matrix.wrong:,.6g} {WORDS.get(counts.split, counts.split)} rows"
        about = f"All {rows} as predicted by the model that predict and evaluate use"
    return _render(
        "page.html",
        [record],
        title=record.label,
        version=record.info.versions.get("microtrain", ""),
        made_from=record.path,
        record=record,
        info=record.info,
        hosts=Counter(record.info.hosts),
        sections=_sections(record.config),
        predictions=predictions,
        matrix=matrix,
        matrix_rows=about,
        note=note,
    )


@np.errstate(all="ignore")
def runs_html(records: Sequence[Run]) -> str:
    """The page of several runs as text. Raises LaunchError without jinja2."""
    comparison = Comparison(records)
    groups = comparison.groups
    tables = {"Settings": groups, "Runs": comparison.runs}
    return _render(
        "runs.html",
        comparison.of_best_groups(FEW) if groups else records,
        bool(groups),
        title=plural(len(records), "run"),
        version=__version__,
        made_from=listed([str(record.path) for record in records], 10),
        tables={
            title: [c for c in columns if any(v is not None for v in c.values)]
            for title, columns in tables.items()
            if columns
        },
        notes=[*overall(records), *comparison.notes()],
    )


@functools.cache
def _templates() -> Any:
    """What renders pages; templates are compiled once, which takes ten times as long as a page."""
    try:
        from jinja2 import Environment, FileSystemBytecodeCache, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise LaunchError(absent("jinja2", "plot", error)) from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.loader = FunctionLoader(_beside)
    if (kept := directory()) is not None:
        environment.bytecode_cache = FileSystemBytecodeCache(str(kept))
    environment.globals |= {"COLORS": COLORS, "WORDS": WORDS}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    own = (_amount, _command, _sha256)
    named = {f.__name__.strip("_"): f for f in (elapsed, number, plural, rate, *own)}
    environment.filters |= named | {"yaml": as_yaml, "short_place": lambda o: o.rpartition("/")[2]}
    return environment


def _render(template: str, records: Sequence[Run], grouped: bool = False, **known: Any) -> str:
    charts = curves(records, usual(records), group=grouped)
    # As the legend of each chart has them, with what became of each.
    runs = list(dict.fromkeys(c.run for chart in charts for c in chart.curves))
    found = _templates().get_template(template)
    return found.render(
        style=_beside("report.css"),
        script=_beside("report.js"),
        curves=charts,
        runs=runs or run_names(records),
        grouped=grouped,
        **known,
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


def _amount(count: float) -> str:
    """Rows, or the sum of their weights."""
    return f"{count:,}" if isinstance(count, int) else f"{count:,.2f}"


def _command(words: Sequence[str]) -> str:
    """A command line to copy; of an installed program its name alone."""
    program = words[0] if words[0].endswith(".py") else words[0].rpartition("/")[2]
    return shlex.join([program, *words[1:]])


def _sha256(text: str) -> str:
    """As a content-security policy names a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
