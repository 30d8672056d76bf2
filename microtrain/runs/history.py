"""The rows of a metrics.jsonl: one by one as they were written, or as a typed column a field.

A file has a row for every evaluation, without bound. A row as a dict is eight times its text and
slow to look at, so a million are read in blocks and checked by column; the reader of single lines
says which line of a block is damaged.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import open_plain, parse_object, reason
from .regular import Layout, columns

__all__ = [
    "LEADING", "RESERVED", "SPLITS", "WALL_CLOCK", "Entries", "History", "read_metrics",
    "rows_until",
]  # fmt: skip

SPLITS = ("train", "val", "test")
LEADING = ("split", "step", "epoch", "samples", "loss")
WALL_CLOCK = ("time", "samples_per_s", "comm_share")  # all that a resume may change in a row
RESERVED = (*LEADING, *WALL_CLOCK)  # fields of metrics.jsonl that are not metrics
_LONGEST_ROW = 2**20  # bytes
_LONGEST_NAME = 60  # characters of a field that an error repeats
_BLOCK = 2**18  # bytes that are read at once
_AT_ONCE = 4  # blocks, into which no more columns than a cache holds are cut

Values = NDArray[np.float64]


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, null read as nan; a last line cut short by a kill is left out.

    Raises DataError naming the line of anything else that is no row.
    """
    rows: list[dict[str, Any]] = []
    for text in _blocks(path):
        rows += _each(text.split(b"\n"), path, len(rows))
    return rows


@dataclass
class Entries:
    """The rows of one split: all arrays have one entry a row, in the order of the file.

    Attributes:
        steps: int64.
        values: by field float64, nan where a row has null or no such field.
        there: which rows have it, for the fields that some rows lack.
    """

    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    values: dict[str, Values] = field(default_factory=dict)
    there: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def have(self, name: str) -> NDArray[np.bool_] | slice:
        """The rows that have a field."""
        return self.there.get(name, slice(None) if name in self.values else slice(0))

    def at(self, step: int) -> dict[str, float]:
        """The fields of the last row of a step; empty where there is none."""
        rows = np.flatnonzero(self.steps == step)[-1:]
        return {
            name: float(values[row])
            for row in rows
            for name, values in self.values.items()
            if name not in self.there or self.there[name][row]
        }

    def of(self, name: str, *others: str) -> list[Values]:
        """The values of these fields, nan where absent, in the rows that have the first."""
        none = np.full(len(self.steps), math.nan)
        return [self.values.get(each, none)[self.have(name)] for each in (name, *others)]


@dataclass
class History:
    """What a metrics.jsonl says.

    Attributes:
        rows: how many rows it has.
        last_step: of the last row, 0 where there is none.
        entries: by split, of those in `SPLITS` that have rows.
        fields: all but split and step, in the order in which they first occur.
    """

    rows: int = 0
    last_step: int = 0
    entries: dict[str, Entries] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path) -> History:
        """As `read_metrics`, which raises the same DataError, in a twentieth of the memory."""
        history, kept = cls(), {split: _Growing() for split in SPLITS}
        fields: dict[str, None] = {}
        for text in _blocks(path):
            try:
                layouts = columns(text, SPLITS)
            except (OverflowError, TypeError, ValueError):
                # Something in these lines is not as a run writes it: damaged, or said otherwise.
                layouts = _layouts(_each(text.split(b"\n"), path, history.rows))
            for split in SPLITS:
                if mine := [each for each in layouts if each.split == split]:
                    kept[split].add(mine)
            for each in layouts:
                fields |= dict.fromkeys(each.columns)
            last = max(layouts, key=lambda each: int(each.rows[-1]))
            history.rows += int(last.rows[-1]) + 1
            history.last_step = int(last.columns["step"][-1])
        history.fields = [name for name in fields if name != "step"]
        history.entries = {split: each.entries() for split, each in kept.items() if each.steps}
        return history

    def split(self, name: str) -> Entries:
        """The rows of a split, perhaps none."""
        return self.entries.get(name) or Entries()

    def greatest(self, name: str) -> float:
        """The greatest value of a field in all rows; 0 where it has none."""
        found = [
            float(np.nanmax(e.values[name])) for e in self.entries.values() if name in e.values
        ]
        return max(found, default=0.0)


class _Growing:
    """The rows of a split as far as they are read, in arrays that grow where they are."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values: dict[str, array[float]] = {}
        self.there: dict[str, bytearray] = {}

    def add(self, layouts: Sequence[Layout]) -> None:
        """The rows of one block."""
        places: list[Any] = [slice(None)]
        if len(layouts) > 1:
            rows = np.sort(np.concatenate([each.rows for each in layouts]))
            places = [np.searchsorted(rows, each.rows) for each in layouts]
        before, count = len(self.steps), sum(len(each.rows) for each in layouts)
        for name in dict.fromkeys(name for each in layouts for name in each.columns):
            if name != "step" and name not in self.values:
                self.values[name] = array("d", [math.nan]) * before
                self.there[name] = bytearray(before)
        steps = np.empty(count, np.int64)
        for place, each in zip(places, layouts, strict=True):
            steps[place] = each.columns["step"]
        self.steps.frombytes(steps.view(np.uint8).data)
        for name, kept in self.values.items():
            values, mask = np.full(count, math.nan), np.zeros(count, bool)
            for place, each in zip(places, layouts, strict=True):
                if name in each.columns:
                    values[place], mask[place] = each.columns[name], True
            kept.frombytes(values.view(np.uint8).data)
            self.there[name] += mask.data

    def entries(self) -> Entries:
        masks = {name: np.frombuffer(kept, bool) for name, kept in self.there.items()}
        return Entries(
            np.frombuffer(self.steps, np.int64),
            {name: np.frombuffer(kept, np.float64) for name, kept in self.values.items()},
            {name: mask for name, mask in masks.items() if not mask.all()},
        )


def _blocks(path: str | Path) -> Iterator[bytes]:
    """The lines of a file, some at a time, the last without its newline; what follows it is torn.

    Raises DataError where it cannot be read.
    """
    try:
        with open_plain(path) as file:
            lines = _lines(file)
            while parts := [*islice(lines, _AT_ONCE)]:
                yield b"\n".join(parts)
    except OSError as error:
        raise DataError(f"cannot read the metrics of a run: {reason(error)}") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while block := file.read(_BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole
        if len(rest) > _LONGEST_ROW:  # of a file without lines not all is read
            yield rest[:_LONGEST_ROW]
            rest = rest[_LONGEST_ROW:]


def _each(lines: Sequence[bytes], path: str | Path, before: int) -> list[dict[str, Any]]:
    """The rows of some lines, which come after so many others."""
    rows: list[dict[str, Any]] = []
    try:
        for line in lines:
            rows.append(_row(line))  # noqa: PERF401, its length says which line is damaged
    except ValueError as error:
        raise DataError(f"damaged file: {path}:{before + len(rows) + 1}: {error}") from error
    return rows


def _row(line: bytes) -> dict[str, Any]:
    content = parse_object(line)
    row = {key: math.nan if value is None else value for key, value in content.items()}
    step = row.get("step")
    if row.get("split") not in SPLITS or type(step) is not int or not -(2**63) <= step < 2**63:
        raise ValueError("a row has a split and a whole step")
    for key, value in row.items():
        if key != "split" and (type(value) not in (int, float) or math.isinf(value)):
            name = key if len(key) <= _LONGEST_NAME else key[: _LONGEST_NAME - 3] + "..."
            raise ValueError(f"{name}: expected a number")
    return row


def rows_until(content: bytes, step: int) -> tuple[list[str], list[int]]:
    """The lines of a metrics.jsonl that are rows of a run's first steps, and their steps.

    What is no row is left out; so is one of the test data, which is of a run that had ended.
    """
    kept: list[str] = []
    steps: list[int] = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            row = _row(line)
            if row["step"] <= step and row["split"] != "test":
                kept.append(line.decode())
                steps.append(row["step"])
    return kept, steps


def _layouts(rows: Sequence[dict[str, Any]]) -> list[Layout]:
    """Rows as columns."""
    found: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault((row["split"], *row), []).append(i)
    return [
        Layout(
            split,
            np.array(places),
            {
                key: np.array([rows[i][key] for i in places], "i8" if key == "step" else "f8")
                for key in keys
                if key != "split"
            },
        )
        for (split, *keys), places in found.items()
    ]
