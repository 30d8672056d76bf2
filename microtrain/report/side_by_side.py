"""Several runs as tables, one run a row: what they came to, and in what they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.measure import Measure
from ..config.resolved import as_yaml
from ..words import elapsed, number
from .compare import compare
from .record import Record

__all__ = ["Table", "readable", "tables"]

_PLACES = ("name", "run_dir")


@dataclass(frozen=True)
class Table:
    """Columns by name, of a text for each run.

    Attributes:
        best: by column the run that has the best value.
        note: what there is to say below.
    """

    title: str
    columns: dict[str, list[str]]
    best: dict[str, int]
    note: str = ""


def tables(records: Sequence[Record]) -> list[Table]:
    """Results, what differs in settings and environment; without what there is none of."""
    found = compare(records)
    results: dict[str, list[str]] = {}
    best = {}
    for column, row in found["metrics"].items():
        which = (
            "best"
            if Measure(column).part == "val" and any(value is not None for value in row["best"])
            else "last"
        )
        name = column if Measure(column).part == "test" else f"{which} {column}"
        results[name] = _texts(row[which], number)
        if which == "best" and row["better"] is not None:
            best[name] = row["better"]
    results |= {
        "status": [record.status for record in records],
        "steps": _texts((record.info.steps for record in records), "{:,}".format),
        "duration": _texts((record.info.seconds("train_s") for record in records), elapsed),
    }
    other_data = found["data"]["equal"] is False
    note = "The runs saw other rows, so no value is called the best." if other_data else ""
    settings = {
        key: ["-" if s is None else readable(s["value"]) for s in row]
        for key, row in found["config"].items()
        if key not in _PLACES
    }
    environment = {key: _texts(row, str) for key, row in found["environment"].items()}
    made = [
        Table("Results", results, best, note),
        Table("Settings that differ", settings, {}),
        Table("Differences in the environment", environment, {}),
    ]
    return [table for table in made if table.columns]


def _texts(values: Iterable[Any], text: Any) -> list[str]:
    return ["-" if value is None else text(value) for value in values]


def readable(value: Any) -> str:
    """A setting as people write it: `accuracy, topk (k: 3)`, `30 epochs`, `none`."""
    if isinstance(value, Mapping):
        rest = ", ".join(
            f"{k}: {readable(v)}" for k, v in value.items() if k != "type" and v is not None
        )
        return f"{value['type']} ({rest})" if "type" in value and rest else value.get("type", rest)
    if isinstance(value, list):
        return ", ".join(map(readable, value)) or "none"
    return value if isinstance(value, str) and value else as_yaml(value).replace("null", "none")
