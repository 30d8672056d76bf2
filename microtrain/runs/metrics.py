"""What is measured of a run: the rows of metrics.jsonl, and at its end classes and columns.

Rows are read one by one as they were written, or as a typed column a field: a file has a row for
every evaluation, without bound, and a row as a dict is eight times its text, so a long file is read
into columns as it comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from sys import float_info
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.files import beginning, open_plain, open_to_write, parse_object, refusing, to_disk
from ..common.words import number, plural, table
from ..errors import DataError, LaunchError
from .checkpoint import Count, Number

SPLITS = ("train", "val", "test")
LEADING = ("split", "step", "epoch", "samples", "loss")
WALL_CLOCK = ("time", "samples_per_s", "comm_share")  # all that a resume may change in a row
RESERVED = (*LEADING, *WALL_CLOCK)  # fields of metrics.jsonl that are not metrics
_SHARED = ("epoch", "samples", "time")  # fields that are the same in the rows of all parts
_LONGEST_ROW = 2**20  # bytes
Series = tuple[NDArray[np.int64], NDArray[np.float64]]  # optimizer steps, values


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, null read as nan; a last line cut short by a kill is left out.

    Raises DataError naming the line of anything else that is not a row.
    """
    return [*_rows(path)]


@dataclass
class History:
    """What a metrics.jsonl says.

    Attributes:
        rows: how many rows it has.
        last_step: of the last row, 0 where there is none.
        splits: those in `SPLITS` that have rows, each with its fields by name, `step` among them:
            the steps of the rows that have it and its values there, nan where a row has null.
        fields: all but split and step, in the order in which they first occur.
    """

    rows: int = 0
    last_step: int = 0
    splits: dict[str, dict[str, Series]] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path) -> History:
        """As `read_metrics`, which raises the same DataError, in a tenth of the memory."""
        history, fields = cls(), dict[str, None]()
        kept: dict[str, dict[str, tuple[array[int], array[float]]]] = {}
        for row in _rows(path):
            history.rows += 1
            step = history.last_step = row["step"]
            columns = kept.setdefault(row.pop("split"), {})
            for name, value in row.items():
                if name not in columns:
                    fields[name], columns[name] = None, (array("q"), array("d"))
                steps, values = columns[name]
                steps.append(step)
                values.append(value)
        history.fields = [name for name in fields if name != "step"]
        for split in SPLITS:
            if split in kept:
                history.splits[split] = {
                    name: (np.frombuffer(steps, np.int64), np.frombuffer(values))
                    for name, (steps, values) in kept[split].items()
                }
        return history

    def series(self, split: str, name: str) -> Series:
        """Steps and values of a field in the rows of a split that have it, perhaps none."""
        none = np.zeros(0, np.int64), np.zeros(0)
        return self.splits.get(split, {}).get(name, none)

    def at(self, split: str, step: int) -> dict[str, float]:
        """The fields of a step, of each the last; empty where there is none."""
        return {
            name: float(values[steps == step][-1])
            for name, (steps, values) in self.splits.get(split, {}).items()
            if name != "step" and step in steps
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`step`, int64, every step that has a row, and beside it `epoch`, `samples`, `time` and
        columns such as `val/loss`, float64; nan where a step has no row of it.
        """
        rows = [self.series(split, "step")[0] for split in SPLITS]
        found: dict[str, NDArray[Any]] = {"step": np.unique(np.concatenate(rows))}
        pairs = [(name, split) for name in self.fields for split in self.splits]
        for name, split in sorted(pairs, key=lambda pair: pair[0] not in _SHARED):
            if name in self.splits[split]:
                key = name if name in _SHARED else f"{split}/{name}"
                column = found.setdefault(key, np.full(len(found["step"]), math.nan))
                steps, values = self.splits[split][name]
                column[np.searchsorted(found["step"], steps)] = values
        return found


def _rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, as `read_metrics` returns them."""
    with refusing("cannot read the metrics of a run", kind=DataError), open_plain(path) as file:
        # Of a file without lines not all is read.
        for number, line in enumerate(iter(partial(file.readline, _LONGEST_ROW), b""), 1):
            if line.endswith(b"\n") or len(line) == _LONGEST_ROW:  # else it is torn
                try:
                    yield _row(line)
                except ValueError as error:
                    raise DataError(f"damaged file: {path}:{number}: {error}") from error


def _row(line: bytes) -> dict[str, Any]:
    from pydantic_core import from_json  # where runs are read, not where they train

    try:
        row = from_json(line)
    except ValueError:
        row = parse_object(line)  # says what is wrong; a byte order mark is not
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    step = row.get("step")
    if row.get("split") not in SPLITS or type(step) is not int or not -(2**63) <= step < 2**63:
        raise ValueError("a row has a split and a whole step")
    for key, value in row.items():
        if value is None:
            row[key] = math.nan
        elif key != "split" and (type(value) not in (int, float) or abs(value) > float_info.max):
            raise ValueError(f"{key:.60}: expected a number")
    return row


def rows_until(content: bytes, step: int) -> tuple[list[str], list[int]]:
    """The lines of a metrics.jsonl that are rows of a run's first steps, and their steps.

    What is not a row is left out; so is one of the test data, which is of a run that had ended.
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


class Unwritten(LaunchError):
    """A line could not be written, which ends a run."""


class Lines:
    """Appends to a plain file; one thread adds, any thread may `sync`.

    Args:
        path: made where it is absent; OSError for a link.
        refusing: turns an OSError into a LaunchError, whose words are those of the Unwritten that
            each method raises where the file system refuses.
    """

    def __init__(self, path: Path, refusing: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = open(path, "ab", 2**16, opener=open_to_write)  # noqa: SIM115 - until `close`
        self._refusing = refusing
        self._flushed_at = -math.inf  # of time.monotonic
        self.length = os.fstat(self._file.fileno()).st_size  # bytes, with those not yet written
        self._digest = self._digest_of(self.length)

    def add(self, line: str) -> None:
        """Append a line; ValueError after `close`."""
        content = (line + "\n").encode(errors="backslashreplace")
        self._try(lambda: self._file.write(content))
        self._digest.update(content)
        self.length += len(content)

    def flush(self, after: float = 0.0) -> None:
        """Give the system all lines, which a kill of this process does not lose from then on.

        after: only where so many seconds have gone by since it was done last.
        """
        if time.monotonic() >= self._flushed_at + after:
            self._try(self._file.flush)
            self._flushed_at = time.monotonic()

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        self.flush()
        self._try(lambda: to_disk(self._file.fileno()))

    def sha256(self, length: int | None = None) -> str:
        """Of all lines, with those not yet written; of so many bytes where a length is given."""
        if length is None or length == self.length:
            return self._digest.hexdigest()
        self.flush()
        return self._digest_of(length).hexdigest()

    def trim(self, length: int) -> None:
        """Forget all after so many bytes."""
        self.flush()
        self._try(lambda: os.ftruncate(self._file.fileno(), length))
        self.sync()
        self.length, self._digest = length, self._digest_of(length)

    def close(self) -> None:
        """Write what was added, and close the file; OSError where that fails."""
        self._file.close()

    def _digest_of(self, length: int) -> hashlib._Hash:
        """Of the first bytes of the file, which has as many."""
        with self._refusing():
            return beginning(self._file.name, length)

    def _try(self, action: Callable[[], object]) -> None:
        if self._file.closed:
            raise ValueError(f"{self._file.name} was closed: no line can be written any more")
        try:
            with self._refusing():
                action()
        except LaunchError as error:
            raise Unwritten(str(error)) from error


# What a trained model is told of at the end -------------------------------------------------------


@dataclass(frozen=True)
class ClassCounts:
    """How often each class was predicted for each, by the model that a run is known by.

    Attributes:
        split: the part of the data that was counted.
        names: of the classes, in the order of their codes.
        support: rows of each class; the sums of their weights where they have such.
        confusion: a list for each true class: how often each class was predicted.
    """

    split: str
    names: list[str]
    support: list[Count | Number]
    confusion: list[list[Count | Number]]

    def __post_init__(self) -> None:
        count = len(self.names)
        if {len(self.support), len(self.confusion), *map(len, self.confusion)} != {count}:
            raise ValueError(f"expected counts of {count} classes")

    @cached_property
    def figures(self) -> list[tuple[float, float, float]]:
        """Precision, recall and f1 of each class; 0 where one is not defined."""
        counts = np.array(self.confusion, np.float64)
        each = figures(counts.diagonal(), counts.sum(axis=0), np.array(self.support))
        return [tuple(row) for row in np.transpose(each).tolist()]


def figures(right: Any, predicted: Any, there: Any) -> list[Any]:
    """Precision, recall and f1 of rows that are right, were predicted, and are there; 0 of none."""
    parts = ((right, predicted), (right, there), (2 * right, predicted + there))
    return [above / np.where(below > 0, below, 1.0) for above, below in parts]


@dataclass(frozen=True)
class Importance:
    """By how much a measure gets worse when the values of a column are shuffled.

    Attributes:
        part: the rows that were shuffled, such as `val`.
        field: what was measured of them, such as `loss`.
        value: of the rows as they are.
        names: of the columns, the most important first.
        worse: how much the value gets worse, the mean over `repeats` shuffles; below 0 if better.
        deviations: the standard deviations over these.
    """

    part: str
    field: str
    value: Number
    rows: Count
    names: list[str]
    worse: list[Number]
    deviations: list[Number]
    repeats: Count

    @property
    def about(self) -> str:
        """What the numbers are."""
        return (
            f"how much worse {self.part}/{self.field} ({number(self.value)}) gets when a column is "
            f"shuffled: mean of {self.repeats} shuffles of {plural(self.rows, 'row')}"
        )

    def lines(self) -> list[str]:
        """For reading."""
        each = zip(self.names, self.worse, self.deviations, strict=True)
        cells = [(name, f"{number(w):>11}", f"± {number(d)}") for name, w, d in each]
        return [self.about, *table(cells, indent=2)]
