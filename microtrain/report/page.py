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
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config.resolved import as_yaml
from ..config.stored import Setting
from ..data import Prepared
from ..errors import LaunchError
from ..files import make_directory, reason, write_whole
from ..words import elapsed, number, plural, rate
from . import figures
from .curves import curves, speed
from .record import Record
from .samples import Samples, confusion, scatter, take_samples, two_classes

__all__ = ["final_report", "report_html", "write_plots", "write_report"]

_CHARTS = 8
_TIMINGS = {"train_s": "training, with evaluations", "comm_s": "in communication"}
_STATUS = {"running": "running, or killed", "stopped": "stopped early"}


class Fact(NamedTuple):
    """One of the numbers at the head of a report."""

    name: str
    value: str
    more: str


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

    Raises DataError for a damaged run, LaunchError without jinja2 or where the file cannot be
    written.
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


def write_plots(run: Path, samples: Samples | None = None) -> list[Path]:
    """Write plots/loss.png and, of one feature, plots/fit.png; returns the paths.

    Raises LaunchError without matplotlib or where a file cannot be written.
    """
    record = Record.read(run)
    wanted = {"loss.png": ([c for c in curves([record], record.fields) if c.title == "loss"], "")}
    if samples is not None and samples.x is not None:
        wanted["fit.png"] = ([scatter(samples)], samples.model)
    written = []
    for name, (charts, note) in wanted.items():
        if not charts:
            continue
        figure = figures.draw(charts, record.name, note)
        try:
            make_directory(run / "plots")
        except OSError as error:
            raise LaunchError(f"cannot make the directory of the plots: {reason(error)}") from error
        written.append(run / "plots" / name)
        figures.write(figure, written[-1])
    return written


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
    samples, note = None, ""
    try:
        samples = None if data is None else take_samples(model, data, device, named)
    except Exception as error:
        note = f"There are no predictions to show: {type(error).__name__}: {error}"
    problems = []
    try:
        write_report(run, samples=samples, note=note)
    except LaunchError as error:
        problems.append(f"no report: {error}")
    except Exception as error:
        problems.append(f"the report could not be written: {type(error).__name__}: {error}")
    try:
        if data is not None:
            write_plots(run, samples)
    except LaunchError as error:
        problems.append(f"no plots: {error}")
    except Exception as error:
        problems.append(f"a picture could not be drawn: {type(error).__name__}: {error}")
    return "; ".join(problems) or None


@np.errstate(all="ignore")  # what is not finite is shown as such
def report_html(record: Record, samples: Samples | None = None, note: str = "") -> str:
    """The page as text. Raises LaunchError without jinja2."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise LaunchError("jinja2 is not installed; pip install 'microtrain[plot]'") from None
    here = Path(__file__).parent
    script = (here / "report.js").read_text(encoding="utf-8")
    charts = {"curves": curves([record], record.fields[:_CHARTS]), "speed": speed(record)}
    loss = record.config.get("loss.type")
    if samples is not None and samples.classes is None and loss is not None and loss.value == "bce":
        samples = two_classes(samples)
    matrix = None
    charts["predictions"] = []
    if samples is not None and samples.classes is not None:
        matrix = confusion(samples)
    elif samples is not None:
        charts["predictions"] = [scatter(samples)]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters |= {"plural": plural, "yaml": as_yaml}
    return environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        record=record,
        info=record.info,
        status=_STATUS.get(record.info.status, record.info.status),
        started=_started(record.info.started),
        facts=_facts(record),
        charts=charts,
        data=[chart.data() for group in charts.values() for chart in group],
        samples=samples,
        matrix=matrix,
        note=note,
        communication=_communication(record),
        timings=_timings(record),
        settings=_settings(record),
        environment=_environment(record),
        style=(here / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _facts(record: Record) -> list[Fact]:
    """What stands at the head of the page."""
    info = record.info
    facts = []
    if info.best is not None and info.best.value is not None:
        name, value = f"best {info.best.name}", number(info.best.value)
        facts.append(Fact(name, value, f"at step {info.best.step:,}"))
    test = dict(info.test or {})
    step = test.pop("step", info.steps)  # an earlier version tested the last step alone
    for name, measured in list(test.items())[:2]:
        text = "not finite" if measured is None else number(measured)
        facts.append(Fact(f"test {name}", text, "" if step is None else f"at step {step:,.0f}"))
    seconds = info.seconds("train_s")
    if seconds is not None:
        steps = "" if info.steps is None else plural(info.steps, "step")
        facts.append(Fact("duration", elapsed(seconds), steps))
    if seconds and record.rows and info.status == "finished":
        last = max(row.get("samples", 0) for row in record.rows)
        facts.append(Fact("speed", rate(last / seconds), "samples a second"))
    hosts = len(set(info.hosts))
    facts.append(Fact("ranks", f"{info.ranks:,}", f"on {plural(hosts, 'host')}" if hosts else ""))
    share = _communication(record)
    if share is not None:
        facts.append(Fact("communication", f"{share:.0%}", "of the time"))
    return facts


def _communication(record: Record) -> float | None:
    """The share of the time, between 0 and 1; None where there was none or nobody knows."""
    total, comm = record.info.seconds("train_s"), record.info.seconds("comm_s")
    if not total or comm is None or record.info.ranks == 1:
        return None
    return min(max(comm / total, 0.0), 1.0)


def _started(text: str) -> str:
    try:
        return f"started {datetime.fromisoformat(text):%A, %d %B %Y, %H:%M:%S}"
    except ValueError:
        return text


def _timings(record: Record) -> dict[str, str]:
    info = record.info
    known = {key: seconds for key in info.timings if (seconds := info.seconds(key)) is not None}
    return {
        _TIMINGS.get(key, key): elapsed(value) if key.endswith("_s") else number(value)
        for key, value in known.items()
        if key != "comm_s" or info.ranks > 1
    }


def _settings(record: Record) -> Mapping[str, Mapping[str, Setting]]:
    """The configuration by section; keys without one are of the section `run`."""
    sections: dict[str, dict[str, Setting]] = {}
    for key, setting in record.config.items():
        section, dot, rest = key.partition(".")
        sections.setdefault(section if dot else "run", {})[rest if dot else key] = setting
    return sections


def _environment(record: Record) -> dict[str, str]:
    info = record.info
    rows: dict[str, str] = dict(info.versions)
    if info.git is not None:
        rows["git"] = info.git.commit + (", with changes" if info.git.dirty else "")
    counts = Counter(info.hosts)
    rows["hosts"] = ", ".join(f"{host} ({plural(n, 'rank')})" for host, n in counts.items())
    device = record.config.get("device")
    rows["device"] = info.device or ("" if device is None else as_yaml(device.value))
    executed = info.compile or {}
    rows["steps run by"] = ": ".join(
        str(executed[key]) for key in ("executor", "reason") if executed.get(key)
    )
    rows["parameters (sha256)"] = info.params_sha256 or ""
    rows["data (hash)"] = record.data_hash or ""
    rows["exit code"] = "" if info.exit_code is None else str(info.exit_code)
    rows["directory"] = str(record.path)
    return {name: text for name, text in rows.items() if text}
