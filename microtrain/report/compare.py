"""What two or more runs have in common and where they part: configuration, environment, results.

`compare` finds it out and gives plain values, which `--json` prints; `lines` says it in words.
Values are compared to the last bit: runs that agree in all of them are the same run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.words import listed, number, plural, printable, table
from ..config.resolved import as_yaml
from ..runs.metrics import RESERVED, SPLITS, History
from ..runs.run import Run
from .record import PLACES, differing_settings, direction, shortened

_WIDEST = 48


def compare(records: Sequence[Run]) -> dict[str, Any]:
    """The differences of two or more runs; every list has one entry a run, None where absent.

    Keys: runs, config (dotted key: values and origins), environment (versions, git ...), data
    (equal or None where unknown, hashes), metrics (column: last, best, best_step, better, by),
    first_difference ({step, columns} or None), params (equal or None, hashes), identical.
    """
    hashes = [record.data_hash for record in records]
    params = [record.info.params_sha256 for record in records]
    settings = differing_settings(records)
    other_loss = any(key.startswith("loss.") for key in settings)
    apart = first_difference(records)
    return {
        "runs": [
            {
                "path": str(record.path),
                "label": record.label,
                "status": record.status,
                "steps": record.info.steps,
                "rows": record.history.rows,
                "train_s": record.info.timings.get("train_s"),
            }
            for record in records
        ],
        "config": {
            key: [s._asdict() if (s := record.config.get(key)) else None for record in records]
            for key in settings
        },
        "environment": _environment(records),
        "data": {"equal": _equal(hashes), "hashes": hashes},
        "metrics": {
            # Values of other rows are not judged, nor are those of other losses.
            column: _metric(
                records,
                column,
                judged=_equal(hashes) is not False and not (other_loss and column.field == "loss"),
            )
            for column in dict.fromkeys(c for record in records for c in record.columns)
        },
        "first_difference": apart,
        "params": {"equal": _equal(params), "sha256": params},
        "identical": bool(_equal(params)) and apart is None,
    }


def _equal(values: Sequence[Any]) -> bool | None:
    return None if None in values else len(set(values)) == 1


def _environment(records: Sequence[Run]) -> dict[str, list[Any]]:
    """What runs depended on beside configuration and data, where that is not the same."""
    found: list[dict[str, Any]] = []
    for info in (record.info for record in records):
        git = info.git and info.git.commit[:12] + (" with changes" if info.git.dirty else "")
        hosts = ", ".join(dict.fromkeys(info.hosts)) or None
        found.append(info.versions | {"git": git, "ranks": info.ranks, "hosts": hosts})
    kinds = dict.fromkeys(kind for each in found for kind in each)
    rows = {kind: [each.get(kind) for each in found] for kind in kinds}
    return {kind: row for kind, row in rows.items() if len(set(row)) > 1}


def _metric(records: Sequence[Run], column: str, judged: bool) -> dict[str, Any]:
    """The last and the best values of a column; if `judged`, whose is better, and by how much."""
    curves = [record.curve(column)[1] for record in records]
    last = [float(values[-1]) if len(values) else math.nan for values in curves]
    best = [record.best(column) or (None, None) for record in records]
    sign = direction(records, column)
    signed = {i: sign * value for i, (value, _) in enumerate(best) if value is not None}
    ranking = sorted(signed, key=lambda i: signed[i], reverse=True)
    ahead = signed[ranking[0]] - signed[ranking[1]] if judged and len(ranking) > 1 else 0.0
    return {
        "last": [value if math.isfinite(value) else None for value in last],
        "best": [value for value, _ in best],
        "best_step": [step for _, step in best],
        "better": ranking[0] if ahead else None,
        "by": ahead or None,
    }


def first_difference(records: Sequence[Run]) -> dict[str, Any] | None:
    """The first step with other values, and the columns; none where some runs lack its row.

    Runs that report at other steps are compared where they report at the same, without the
    wall clock.
    """
    parts: list[tuple[int, str, list[str]]] = []  # of each split the first: step, split, columns
    lacking: list[int] = []
    own = dict.fromkeys(name for record in records for name in record.history.fields)
    # What the clock does not change, in the order in which it is told.
    fields = ["loss", *(name for name in own if name not in RESERVED), "epoch", "samples"]
    for split in SPLITS:
        steps = [record.history.series(split, "step")[0] for record in records]
        shared = functools.reduce(np.intersect1d, steps)
        lacking += [int(lost[0]) for each in steps if len(lost := np.setdiff1d(each, shared))]
        firsts: dict[str, int] = {}
        for name in fields:
            first, *rest = (_bits(record.history, split, name, shared) for record in records)
            other = sum((first != each for each in rest), np.zeros(len(shared), bool))
            if other.any():
                firsts[f"{split}/{name}"] = int(shared[other.argmax()])
        if firsts:
            step = min(firsts.values())
            parts.append((step, split, [name for name, at in firsts.items() if at == step]))
    if parts:
        step, _, columns = min(parts)
        return {"step": step, "columns": columns}
    return {"step": min(lacking), "columns": []} if lacking else None


def _bits(history: History, split: str, name: str, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of a field at these steps, of infinity where it is absent; one nan is as another."""
    there, values = history.series(split, name)
    found, kept = np.full(len(steps), np.inf), np.isin(there, steps)
    found[np.searchsorted(steps, there[kept])] = np.where(np.isnan(values), np.nan, values)[kept]
    return found.view(np.int64)


# In words -----------------------------------------------------------------------------------------


def lines(comparison: Mapping[str, Any]) -> list[str]:
    """The comparison as text, one fact a line, aligned, never wrapped."""
    runs, environment = comparison["runs"], comparison["environment"]
    names = [chr(ord("A") + i) for i in range(len(runs))]
    steps = ["" if run["steps"] is None else plural(run["steps"], "step") for run in runs]
    paths, states = ([run[key] for run in runs] for key in ("path", "status"))
    text = table(list(zip(names, paths, states, steps, strict=True)))
    text += ["", *_verdict(comparison, names), ""]
    config = {key: row for key, row in comparison["config"].items() if key not in PLACES}
    if config:
        text += [f"configuration: {plural(len(config), 'value')} differ{'s' * (len(config) == 1)}"]
        settings = [(key, *map(_setting, row)) for key, row in config.items()]
        text += table([("", *names), *settings], indent=2)
    else:
        text += ["configuration: equal" + ", except name and place" * bool(comparison["config"])]
    unknown = "unknown (a hash of them is in the checkpoint of a run)"
    words = {True: "equal", False: "different rows", None: unknown}
    text += [f"data: {words[comparison['data']['equal']]}"]
    if environment:
        text += ["differences in the environment:"]
        rows = [(k, *(shortened(v, _WIDEST) for v in row)) for k, row in environment.items()]
        text += table([("", *names), *rows], indent=2)
    else:
        text += ["environment: equal versions, commit, hosts and ranks"]
    if comparison["metrics"]:
        text += ["", *_metric_table(comparison["metrics"], names)]
        if comparison["data"]["equal"] is False:
            text += ["the rows differ, so no run is called better; data.split.seed keeps a split"]
    return [printable(line.rstrip()) for line in text]


def overall(records: Sequence[Run]) -> list[str]:
    """What there is to say of more than two runs before a table has them one by one."""
    hashes = [record.data_hash for record in records]
    others = [*_environment(records)]
    text = [f"{plural(len(records), 'run')}; values of the best step by {records[0].monitor}"]
    if _equal(hashes) is False:
        text += ["the rows of the data differ between runs; data.split.seed keeps a split"]
    if others:
        text += [f"differences in the environment: {listed(others)}; compare two runs to see them"]
    return text


def _verdict(comparison: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Whether they are the same run; else from where on they are not, and why."""
    if comparison["identical"]:
        rows = "all rows of metrics and the hash of the parameters are equal"
        return [f"bit for bit the same run{'s' * (len(names) > 2)}: {rows}"]
    words = {True: "equal", False: "different", None: "unknown (not every run has finished)"}
    end = f"the parameters at the end are {words[comparison['params']['equal']]}"
    runs = zip(names, comparison["runs"], strict=True)
    silent = [name for name, run in runs if not run["rows"]]
    if silent:
        return [f"{', '.join(silent)}: no row of metrics was written; {end}"]
    apart = comparison["first_difference"]
    if apart is None:
        return [f"all rows of metrics are equal; {end}"]
    step, columns = f"step {apart['step']:,}", apart["columns"]
    where = f"the metrics differ from {step} on ({listed(columns, 3)})"
    if not columns:
        where = f"the metrics are equal in all shared rows; at {step} some runs have no row"
    same = not set(comparison["config"]) - {*PLACES} and comparison["data"]["equal"] is not False
    if same and "ranks" in comparison["environment"]:
        end += "\ndifferent numbers of ranks have the same bits only with reproducible: world"
    return f"{where}; {end}".splitlines()


def _metric_table(metrics: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    columns = (column for name in names for column in (f"{name} last", f"{name} best", "at step"))
    rows = [["", *columns, "better"]]
    for column, row in metrics.items():
        cells = [column]
        for last, best, step in zip(row["last"], row["best"], row["best_step"], strict=True):
            cells += ["-" if value is None else number(value) for value in (last, best)]
            cells += ["-" if step is None else f"{step:,}"]
        if row["better"] is not None:
            cells += [f"{names[row['better']]} by {number(row['by'])}"]
        elif len({*row["best"]}) == 1 and row["best"][0] is not None:
            cells += ["equal"]
        rows.append(cells)
    return table(rows)


def _setting(setting: Mapping[str, Any] | None) -> str:
    if setting is None:
        return "-"
    origin = f" ({setting['origin']})" * bool(setting["origin"])
    return shortened(as_yaml(setting["value"]), _WIDEST) + origin
