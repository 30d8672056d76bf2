"""What two or more runs have in common and where they part: configuration, surroundings, results.

`compare` finds it out and gives plain values, which `--json` prints; `lines` says it in words.
Values are compared to the last bit: runs that agree in all of them are the same run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ..config.resolved import as_yaml
from ..runs.record import RESERVED
from ..words import number, plural, printable, table
from .record import Record

__all__ = ["compare", "lines"]

_PLACES = ("name", "run_dir")  # where a run is kept says nothing of what it computes
_WIDEST = 48


def compare(records: Sequence[Record]) -> dict[str, Any]:
    """The differences of two or more runs; every list has one entry a run, None where absent.

    Keys: runs, config (dotted key: values and origins), surroundings (versions, git ...), data
    (equal or None where unknown, hashes), metrics (column: last, best, best_step, better, by),
    first_difference ({step, columns} or None), params (equal or None, hashes), identical.
    """
    hashes = [record.data_hash for record in records]
    params = [record.info.params_sha256 for record in records]
    apart = _first_difference(records)
    equal_params = _equal(params)
    return {
        "runs": [
            {
                "path": str(record.path),
                "label": record.label,
                "status": record.info.status,
                "steps": record.info.steps,
                "rows": len(record.rows),
                "train_s": record.info.seconds("train_s"),
            }
            for record in records
        ],
        "config": _config(records),
        "surroundings": _surroundings(records),
        "data": {"equal": _equal(hashes), "hashes": hashes},
        "metrics": _metrics(records, judged=_equal(hashes) is not False),
        "first_difference": apart,
        "params": {"equal": equal_params, "sha256": params},
        "identical": bool(equal_params) and apart is None,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The comparison as text, one fact a line, aligned, never wrapped."""
    runs = found["runs"]
    names = _letters(len(runs))
    text = table(
        [
            (name, run["path"], run["status"], _steps(run["steps"]))
            for name, run in zip(names, runs, strict=True)
        ]
    )
    text += ["", *_verdict(found), ""]
    config = found["config"]
    own = [key for key in config if key not in _PLACES]
    if own:
        text += [f"configuration: {plural(len(own), 'value')} {'differ' + 's' * (len(own) == 1)}"]
        text += table([("", *names), *((key, *_cells(config[key])) for key in own)], indent=2)
    else:
        text += ["configuration: equal" + (", but for name and place" if config else "")]
    data = found["data"]
    text += ["data: " + {True: "equal", False: "different rows", None: "unknown"}[data["equal"]]]
    if data["equal"] is None:
        text[-1] += " (a hash of them is in the checkpoint of a run)"
    around = found["surroundings"]
    if around:
        text += ["surroundings that differ:"]
        shown = [(key, *map(_text, around[key])) for key in around]
        text += table([("", *names), *shown], indent=2)
    else:
        text += ["surroundings: equal versions, commit, hosts and ranks"]
    if found["metrics"]:
        text += ["", *_metric_lines(found["metrics"], names)]
        if data["equal"] is False:
            text += ["the rows differ, so no run is called better; data.split.seed keeps a split"]
    return [printable(line.rstrip()) for line in text]


def _verdict(found: dict[str, Any]) -> list[str]:
    many = len(found["runs"]) > 2
    if found["identical"]:
        rows = "all rows of metrics and the hash of the parameters are equal"
        return [f"bit for bit the same {'runs' if many else 'run'}: {rows}"]
    params = found["params"]["equal"]
    words = {True: "equal", False: "different", None: "unknown (not every run has finished)"}
    end = f"the parameters at the end are {words[params]}"
    silent = [n for n, run in zip(_letters(len(found["runs"])), found["runs"], strict=True)
              if not run["rows"]]  # fmt: skip
    if silent:
        return [f"{', '.join(silent)}: no row of metrics was written; {end}"]
    apart = found["first_difference"]
    if apart is None:
        return [f"all rows of metrics are equal; {end}"]
    step = f"step {apart['step']:,}"
    if apart["columns"]:
        columns = ", ".join(apart["columns"][:3]) + (" ..." if len(apart["columns"]) > 3 else "")
        where = f"the metrics differ from {step} on ({columns})"
    else:
        where = f"the metrics are equal where all runs have rows, which they have not at {step}"
    return [f"{where}; {end}", *_why(found)]


def _why(found: dict[str, Any]) -> list[str]:
    """A reason that is often overlooked, where nothing else explains the difference."""
    if any(key not in _PLACES for key in found["config"]) or found["data"]["equal"] is False:
        return []
    changed = list(found["surroundings"])
    if "ranks" in changed:
        return ["runs on other numbers of ranks are the same bits with reproducible: world alone"]
    return [f"the configurations are equal; what differs: {', '.join(changed)}"] if changed else []


def _equal(values: Sequence[Any]) -> bool | None:
    return None if None in values else len(set(values)) == 1


def _config(records: Sequence[Record]) -> dict[str, list[dict[str, Any] | None]]:
    keys = dict.fromkeys(key for record in records for key in record.config)
    found: dict[str, list[dict[str, Any] | None]] = {}
    for key in keys:
        settings = [record.config.get(key) for record in records]
        texts = {"" if setting is None else as_yaml(setting.value) for setting in settings}
        if len(texts) > 1:
            found[key] = [None if s is None else s._asdict() for s in settings]
    return found


def _surroundings(records: Sequence[Record]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {}
    packages = dict.fromkeys(name for record in records for name in record.info.versions)
    for name in packages:
        rows[name] = [record.info.versions.get(name) for record in records]
    infos = [record.info for record in records]
    rows["git"] = [
        info.git and info.git.commit[:12] + (" with changes" if info.git.dirty else "")
        for info in infos
    ]
    rows["ranks"] = [info.ranks for info in infos]
    rows["hosts"] = [", ".join(dict.fromkeys(info.hosts)) or None for info in infos]
    rows["device"] = [info.device for info in infos]
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _metrics(records: Sequence[Record], judged: bool) -> dict[str, dict[str, Any]]:
    """By column; values of other rows are not judged, nor are those of other losses."""
    columns = dict.fromkeys(column for record in records for column in record.columns)
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        last, best = [], []
        for record in records:
            values = record.curve(column)[1]
            last.append(float(values[-1]) if len(values) else None)
            best.append(record.best(column))
        higher = next(filter(None, (record.direction(column) for record in records)), 0)
        if column.endswith("/loss") and len({_loss(record) for record in records}) > 1:
            higher = 0  # values of other losses say nothing of each other
        found[column] = {
            "last": [None if v is None or not math.isfinite(v) else v for v in last],
            "best": [b and b[0] for b in best],
            "best_step": [b and b[1] for b in best],
            **_better([b and b[0] for b in best], higher if judged else 0),
        }
    return found


def _loss(record: Record) -> str:
    return repr([(k, s.value) for k, s in record.config.items() if k.startswith("loss.")])


def _better(values: Sequence[float | None], higher: int) -> dict[str, Any]:
    """Which run is best, and how far before the next one; None where nobody can say."""
    known = [(higher * value, i) for i, value in enumerate(values) if value is not None]
    known.sort(reverse=True)
    if higher == 0 or len(known) < 2 or known[0][0] == known[1][0]:
        return {"better": None, "by": None}
    return {"better": known[0][1], "by": known[0][0] - known[1][0]}


def _first_difference(records: Sequence[Record]) -> dict[str, Any] | None:
    """The first step with other values, and the columns; none where some runs lack its row.

    Runs that report at other steps are compared where they report at the same, without the
    wall clock.
    """
    tables = [
        {(row["step"], row["split"]): _values(row) for row in record.rows} for record in records
    ]
    everywhere = set(tables[0]).intersection(*tables[1:])
    for step, split in sorted(everywhere):
        rows = [table[step, split] for table in tables]
        fields = dict.fromkeys(field for row in rows for field in row)
        other = [f for f in fields if len({row.get(f) for row in rows}) > 1]
        if other:
            return {"step": step, "columns": [f"{split}/{field}" for field in other]}
    lacking = set().union(*tables) - everywhere
    return {"step": min(lacking)[0], "columns": []} if lacking else None


def _values(row: dict[str, Any]) -> dict[str, str]:
    """Texts, which say of two floats whether they are the same, nan too."""
    fields = ["loss", *(key for key in row if key not in RESERVED), "epoch", "samples"]
    return {field: repr(row[field]) for field in fields if field in row}


def _metric_lines(metrics: dict[str, dict[str, Any]], names: Sequence[str]) -> list[str]:
    heading = [""]
    for name in names:
        heading += [f"{name} last", f"{name} best", "at step"]
    rows = [(*heading, "better")]
    for column, found in metrics.items():
        cells = [column]
        for last, best, step in zip(found["last"], found["best"], found["best_step"], strict=True):
            cells += ["-" if v is None else number(v) for v in (last, best)]
            cells.append("-" if step is None else f"{step:,}")
        verdict = ""
        if found["better"] is not None:
            verdict = f"{names[found['better']]} by {number(found['by'])}"
        elif len({*found["best"]}) == 1 and found["best"][0] is not None:
            verdict = "equal"
        rows.append((*cells, verdict))
    return table(rows)


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + i) if count <= 26 else str(i + 1) for i in range(count)]


def _steps(steps: int | None) -> str:
    return "" if steps is None else plural(steps, "step")


def _cells(settings: Sequence[dict[str, Any] | None]) -> list[str]:
    cells = []
    for setting in settings:
        if setting is None:
            cells.append("-")
            continue
        origin = f" ({setting['origin']})" if setting["origin"] else ""
        cells.append(_short(as_yaml(setting["value"])) + origin)
    return cells


def _text(value: Any) -> str:
    return "-" if value is None else _short(str(value))


def _short(text: str) -> str:
    """A long value with its middle left out: what differs is often at the end."""
    half = _WIDEST // 2
    return text if len(text) <= _WIDEST else f"{text[: half - 2]} ... {text[-half + 3 :]}"


def as_json(found: dict[str, Any]) -> str:
    """The comparison as JSON."""
    return json.dumps(found, indent=2, allow_nan=False, default=str)
