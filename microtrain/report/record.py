"""Runs beside each other: which they are, in what they differ, and which differ in luck alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.words import printable
from ..config.resolved import as_yaml
from ..errors import DataError
from ..runs.run import Run

PLACES = ("name", "run_dir")  # where a run is kept says nothing of what it computes
LUCK = ("seed", "data.split.fold")  # what runs of one setting differ in


def read_records(paths: Sequence[str | Path]) -> list[Run]:
    """The runs at these places, of a sweep its members; each once, also where links lead to it.

    Raises DataError.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        run = Run.read(path)
        runs = [replace(Run.read(m), sweep=run) for m in run.members] if run.info.sweep else [run]
        if not runs:
            raise DataError(f"the sweep {run.path} has no members: none has begun")
        found |= {each.path: each for each in runs if each.path not in found}
    for run in found.values():
        _ = run.history, run.config  # all of it is read and checked here
    return [*found.values()]


def direction(runs: Sequence[Run], column: str) -> int:
    """Of a column, as the first of these runs says that knows."""
    return next(filter(None, (run.direction(column) for run in runs)), 0)


def differing_settings(records: Sequence[Run]) -> dict[str, list[str | None]]:
    """The settings that are not the same in all runs: by key a value of each, None if absent."""
    settings = [{k: as_yaml(s.value) for k, s in record.config.items()} for record in records]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def given_settings(records: Sequence[Run]) -> set[str]:
    """The keys that somebody has given, in any of these: no default, nothing from the data."""
    own = ("default", "from the data")
    return {key for each in records for key, s in each.config.items() if s.origin not in own}


def by_seed(records: Sequence[Run]) -> tuple[list[list[int]], dict[str, list[str | None]]]:
    """Numbers of the runs that differ in seed and fold alone, and the other settings that differ.

    Of runs with one seed and fold the last counts. A name and a place are not settings.
    """
    settings = differing_settings(records)
    luck = luck_of(records)
    for key in (*LUCK, *PLACES):
        settings.pop(key, None)
    members: dict[tuple[str | None, ...], dict[Any, int]] = {}
    for i, own in enumerate(luck):
        setting = tuple(row[i] for row in settings.values())
        members.setdefault(setting, {})[own] = i
    return [[*group.values()] for group in members.values()], settings


def shortened(value: object, most: int = 24) -> str:
    """A value as text; of a long one the middle is left out: what differs is often at the end."""
    text, half = "-" if value is None else printable(str(value)), most // 2
    return text if len(text) <= most else f"{text[: half - 2]} ... {text[-half + 3 :]}"


def luck_of(records: Sequence[Run]) -> list[tuple[str, ...]]:
    """Seed and fold of each run."""
    return [tuple(str(r.config[k].value) if k in r.config else "" for k in LUCK) for r in records]
