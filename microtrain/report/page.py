"""One HTML file that says what a run is: it loads nothing, and reads well anywhere.

Everything stands in the file itself: charts as SVG (chart.py), pictures as data, style and script
(report.css, report.js) inline. Every text of the run is escaped, and the page forbids itself all
requests and any script but its own, so that a report from someone else can be opened.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..config.resolved import as_yaml
from ..data import Prepared
from ..errors import LaunchError
from ..files import reason, write_whole
from ..runs.record import SPLITS, Record, Setting
from ..words import elapsed, number, plural, rate
from .chart import Chart, Curve
from .samples import Samples, take_samples
from .samples_html import samples_html

__all__ = ["final_report", "report_html", "write_report"]

_WORDS = {"train": "train", "val": "validation", "test": "test"}
_CHARTS = 8
_TIMINGS = {"train_s": "training, with evaluations", "comm_s": "in communication"}
_STATUS = {"running": "running, or killed", "stopped": "stopped early"}


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    samples: Samples | None = None,
    note: str = "",
) -> Path:
    """Write the report of a run and return its path; the file is whole or not there.

    Args:
        run: what `Record.read` takes: the run directory, or `<runs>/<name>`.
        output: the file; report.html in the run directory by default.
        samples: predictions beside the truth, from `take_samples`.
        note: why there are none.

    Raises DataError for a damaged run, LaunchError when the file cannot be written.
    """
    record = Record.read(run)
    path = record.path / "report.html" if output is None else Path(os.path.expanduser(output))
    text = report_html(record, samples, note)
    try:
        write_whole(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise LaunchError(
            f"cannot write the report {path}: {reason(error)}; choose a place with --output FILE"
        ) from error
    return path


def final_report(
    run: Path,
    model: Any = None,
    data: Prepared | None = None,
    device: Any = None,
    named: str = "",
) -> str | None:
    """Write the report of a run that has just ended, on one process; returns what went wrong.

    With a model, which it says is `named`, also what that predicts. One that cannot predict here
    (it may be the user's) costs the predictions alone: a run that has ended well stays so, whatever
    happens here.
    """
    samples, note = None, ""
    try:
        try:
            samples = None if data is None else take_samples(model, data, device, named)
        except Exception as error:
            note = f"There are no predictions to show: {type(error).__name__}: {error}"
        write_report(run, samples=samples, note=note)
    except Exception as error:
        return f"the report could not be written: {type(error).__name__}: {error}"
    return None


def report_html(record: Record, samples: Samples | None = None, note: str = "") -> str:
    """The page as text."""
    curves, speed = _curves(record), _speed(record)
    predictions: str | None = f'<p class="note">{escape(note)}</p>' if note else ""
    seen: list[Chart] = []
    if samples is not None:
        predictions, seen = samples_html(record, samples)
    parts = [
        ("Curves", _side_by_side(curves) or '<p class="note">No row of metrics was written.</p>'),
        ("Predictions beside the truth", predictions),
        ("Time", _time(record) + _side_by_side(speed)),
        ("Configuration", _configuration(record)),
        ("Environment", _environment(record)),
    ]
    body = _header(record) + "".join(
        f"<section><h2>{title}</h2>{content}</section>" for title, content in parts if content
    )
    here = Path(__file__)
    style = here.with_name("report.css").read_text(encoding="utf-8")
    script = here.with_name("report.js").read_text(encoding="utf-8")
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps([chart.data() for chart in (*curves, *seen, *speed)], allow_nan=False)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src 'sha256-{own}'\">\n"
        f"<title>{escape(record.label)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n<footer>Written by microtrain "
        f"{escape(record.info.versions.get('microtrain', ''))} from {escape(str(record.path))}"
        "</footer>\n</main>\n"
        # Within a script element only "<" could end it.
        f'<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>'
        f"\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _side_by_side(charts: Iterable[Chart]) -> str:
    inside = "".join(chart.html() for chart in charts)
    return f'<div class="grid-2">{inside}</div>' if inside else ""


# The head ---------------------------------------------------------------------------------------


def _header(record: Record) -> str:
    info = record.info
    status = escape(_STATUS.get(info.status, info.status))
    facts: dict[str, tuple[str, str]] = {}
    if info.best is not None and info.best.value is not None:
        facts[f"best {info.best.name}"] = (number(info.best.value), f"at step {info.best.step:,}")
    test = dict(info.test or {})
    step = test.pop("step", info.steps)  # an earlier version tested the last step alone
    for name, value in list(test.items())[:2]:
        more = "" if step is None else f"at step {step:,.0f}"
        facts[f"test {name}"] = ("not finite" if value is None else number(value), more)
    seconds = info.seconds("train_s")
    if seconds is not None:
        steps = "" if info.steps is None else plural(info.steps, "step")
        facts["duration"] = (elapsed(seconds), steps)
    if seconds and record.rows and info.status == "finished":
        last = max(row.get("samples", 0) for row in record.rows)
        facts["speed"] = (rate(last / seconds), "samples a second")
    hosts = list(dict.fromkeys(info.hosts))
    facts["ranks"] = (f"{info.ranks:,}", f"on {plural(len(hosts), 'host')}" if hosts else "")
    comm = info.seconds("comm_s")
    if info.ranks > 1 and seconds and comm is not None:
        facts["communication"] = (f"{comm / seconds:.0%}", "of the time")
    cells = "".join(
        f'<div class="fact"><dt>{escape(name)}</dt><dd>{escape(value)}'
        f"{f'<small>{escape(more)}</small>' if more else ''}</dd></div>"
        for name, (value, more) in facts.items()
    )
    error = f'<p class="error">{escape(info.error)}</p>' if info.error else ""
    kind = info.status if info.status in ("finished", "diverged", "failed") else "running"
    return (
        f'<header><div class="title"><h1>{escape(record.name)}</h1>'
        f'<span class="chip {kind}">{status}</span></div>'
        f'<p class="under-title">{escape(_started(info.started))}</p>'
        f'{error}<dl class="facts">{cells}</dl></header>'
    )


def _started(text: str) -> str:
    try:
        return f"started {datetime.fromisoformat(text):%A, %d %B %Y, %H:%M:%S}"
    except ValueError:
        return text


# Curves -----------------------------------------------------------------------------------------


def _curves(record: Record) -> list[Chart]:
    charts = []
    for name in record.fields[:_CHARTS]:
        columns = [c for c in (f"{split}/{name}" for split in SPLITS) if c in record.columns]
        curves = []
        for column in columns:
            split = column.partition("/")[0]
            points = record.curve(column)
            curves.append(Curve(_WORDS[split], split, points, dots=len(points[0]) == 1))
        marked = next((c for c in ("val/" + name, "train/" + name) if c in columns), "")
        best = record.best(marked) if marked else None
        charts.append(
            Chart(
                name,
                "optimiser step",
                curves,
                best=best and (best[1], best[0], f"best: {number(best[0])} at step {best[1]:,}"),
                end=_broke_off(record),
            )
        )
    return charts


def _broke_off(record: Record) -> tuple[float, str] | None:
    if record.info.status != "diverged" or record.info.steps is None:
        return None
    step = record.info.steps + 1  # the one that was refused
    return step, f"diverged at step {step:,}"


def _speed(record: Record) -> list[Chart]:
    rows = [row for row in record.rows if row["split"] == "train" and "samples_per_s" in row]
    charts = []
    for title, key, scale in (
        ("samples a second", "samples_per_s", 1.0),
        ("share of communication, %", "comm_share", 100.0),
    ):
        pairs = [(row["step"], row[key] * scale) for row in rows if key in row]
        if len(pairs) > 1:
            x, y = np.array(pairs, np.float64).T
            charts.append(Chart(title, "optimiser step", [Curve(title, "test", (x, y))], log=False))
    return charts


# Facts ------------------------------------------------------------------------------------------


def _time(record: Record) -> str:
    info = record.info
    known = {key: seconds for key in info.timings if (seconds := info.seconds(key)) is not None}
    if not known:
        return ""
    total, comm = known.get("train_s"), known.get("comm_s")
    bar = ""
    if total and comm is not None and info.ranks > 1:
        share = min(max(comm / total, 0.0), 1.0)
        bar = (
            f'<div class="bar"><i class="train" style="width:{1 - share:.1%}"></i>'
            f'<i class="val" style="width:{share:.1%}"></i></div><p class="legend">'
            f'<span class="train"><i></i>computation {1 - share:.0%}</span>'
            f'<span class="val"><i></i>communication {share:.0%}</span></p>'
        )
    rows = {_TIMINGS.get(k, k): elapsed(v) if k.endswith("_s") else number(v)
            for k, v in known.items() if k != "comm_s" or info.ranks > 1}  # fmt: skip
    return f'<div class="card" style="margin-bottom:16px">{bar}{_table(rows)}</div>'


def _configuration(record: Record) -> str:
    sections: dict[str, dict[str, Setting]] = {}
    for key, setting in record.config.items():
        section, dot, rest = key.partition(".")
        sections.setdefault(section if dot else "", {})[rest if dot else key] = setting
    cards = []
    for section, settings in sections.items():
        rows = "".join(
            f'<tr class="{"default" if setting.origin == "default" else "given"}">'
            f"<th>{escape(key)}</th><td>{escape(as_yaml(setting.value))}</td>"
            f"<td>{escape(setting.origin)}</td></tr>"
            for key, setting in settings.items()
        )
        title = escape(section or "run")
        cards.append(f'<div class="card"><h3>{title}</h3><table>{rows}</table></div>')
    return f'<div class="settings">{"".join(cards)}</div>'


def _environment(record: Record) -> str:
    info = record.info
    rows: dict[str, str] = dict(info.versions)
    if info.git is not None:
        rows["git"] = info.git.commit + (", with changes" if info.git.dirty else "")
    counts = Counter(info.hosts)
    rows["hosts"] = ", ".join(f"{host} ({plural(n, 'rank')})" for host, n in counts.items())
    device = record.config.get("device")
    rows["device"] = info.device or ("" if device is None else as_yaml(device.value))
    rows["steps run by"] = ": ".join(
        str((info.compile or {}).get(key, "")) for key in ("executor", "reason")
    ).strip(": ")
    rows["parameters (sha256)"] = info.params_sha256 or ""
    rows["data (hash)"] = record.data_hash or ""
    rows["exit code"] = "" if info.exit_code is None else str(info.exit_code)
    rows["directory"] = str(record.path)
    return f'<div class="card">{_table({k: v for k, v in rows.items() if v})}</div>'


def _table(rows: dict[str, Any]) -> str:
    cells = (f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
    return f'<table class="facts-table">{"".join(cells)}</table>'
