"""A table in memory: named columns, what a cell says, and where it stands, for errors to say it.

CSV and Parquet files, dicts and data frames all become a `Frame`. A wrong cell costs a user an hour
when it trains silently and ten seconds when it is named. So nothing is skipped, filled in or
guessed: a value is a finite number, or, in a target column, a name.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend import MASKED
from ...common.spelling import did_you_mean
from ...common.words import listed
from ...errors import DataError
from .notation import PLAIN, Notation, is_empty, is_nothing

Array = NDArray[Any]
Counts = NDArray[Any]
EACH = slice(None)  # where each row has a cell of its own
WHITESPACE = "whitespace"  # the delimiter of cells that are separated by blanks or tabs


def as_cells(array: Array) -> list[Any]:
    """The values of a column, as they are written: a float32 keeps its few digits."""
    if array.dtype.kind == "M":  # nanoseconds would become integers
        array = array.astype("datetime64[us]").astype(object)
    if array.dtype.kind == "f" and array.dtype != np.float64:
        return [*map(float, map(str, array))]
    return [*array.tolist()]


def of_arrow(column: Any) -> Array:
    """The values of a column of pyarrow.

    NumPy would get the last value of a dictionary for a gap in it, and large integers rounded.
    """
    if column.null_count and str(column.type).startswith(("dictionary", "int", "uint")):
        return np.array(column.to_pylist(), object)
    return column.to_numpy(zero_copy_only=False)


def _as_array(values: Any) -> Array:
    """An array; of pandas' own types (Int64) beside gaps with the integers that they hold."""
    own = getattr(values, "hasnans", False) is True and not isinstance(values.dtype, np.dtype)
    return np.asarray(values.astype(object) if own else values)


def text_of(cell: Any) -> str:
    """A cell as a text, as a file of text has it, empty where it has no value.

    Whole numbers are without a point, and days without a time of day.
    """
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, np.generic):
        cell = as_cells(np.array([cell]))[0]
    if isinstance(cell, bytes):
        cell = cell.decode(errors="backslashreplace")
    if is_nothing(cell):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return f"{cell + 0.0:.0f}"
    if isinstance(cell, datetime):
        return str(cell).removesuffix(" 00:00:00")
    return str(cell).strip()


_INDEX = re.compile("__index_level_[0-9]+__")  # what pandas calls one without a name
_NUMBERS = (int, float, Decimal, np.integer, np.floating, np.bool_)


@dataclass
class OnFile:
    """A column of a file of texts, which are read when they are asked for.

    Attributes:
        rows: how many there are.
        texts: gives its different cells, an object array, and which of them each row has.
        numbers: the cells as float64, NaN for what is empty; None: not all are such, or nobody has
            looked.
    """

    rows: int
    texts: Callable[[], tuple[Array, Array]]
    numbers: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return self.rows


class Frame:
    """Named columns of equal length, each of shape (rows,).

    Args:
        origin: the file, or what else names the table in errors.
        names: of the columns; of those that are asked for, each must stand there once.
        columns: anything that NumPy makes an array of, or `OnFile`.
        lines: the line of a text file on which each row starts; a text in it may be a number. None:
            rows count from 0, and a text is not a number.
        notation: how texts are numbers, and what stands for no value.
        index: names of columns that only say which row it is, as a data frame's index does.

    Raises DataError for columns of another shape, or of different lengths.
    """

    def __init__(
        self,
        origin: object,
        names: Iterable[object],
        columns: Iterable[Any],
        lines: Sequence[int] | None = None,
        notation: Notation = PLAIN,
        index: Collection[str] = (),
    ) -> None:
        self.origin, self.lines = str(origin), lines
        self.notation, self.index = notation, index
        self.names = [str(name) for name in names]
        arrays = [self._column(*pair) for pair in zip(self.names, columns, strict=True)]
        if len({len(array) for array in arrays}) > 1:
            lengths = zip(self.names, map(len, arrays), strict=True)
            shown = listed([f"{name} {length}" for name, length in lengths])
            raise DataError(f"{origin}: columns have different numbers of rows: {shown}")
        self._rows = len(arrays[0]) if arrays else 0
        self._columns: dict[str, list[Array | OnFile]] = {}
        for position, (name, array) in enumerate(zip(self.names, arrays, strict=True), start=1):
            if "\0" in name:
                raise DataError(
                    f"{origin}: the name of column {position} has a NUL in it: {name!r:.60}"
                )
            self._columns.setdefault(name, []).append(array)

    def _column(self, name: str, values: Any) -> Array | OnFile:
        if isinstance(values, OnFile):
            return values
        if isinstance(values, np.ma.MaskedArray):
            raise DataError(f'{self.origin}, column "{name}" is {MASKED}')
        try:
            array = of_arrow(values) if hasattr(values, "to_pylist") else _as_array(values)
        except (ValueError, TypeError) as error:
            raise DataError(f'{self.origin}, column "{name}": {error}') from error
        if array.ndim != 1:
            raise DataError(
                f'{self.origin}, column "{name}" has shape {array.shape}, expected one value a row'
            )
        return self.notation.filled(array)

    @classmethod
    def of(cls, value: Any, notation: Notation = PLAIN) -> Frame | None:
        """The columns of a dict, a data frame, a table or a structured array; None of all else."""
        if isinstance(value, Frame):
            return value
        if isinstance(value, Mapping):
            return cls("the table", value.keys(), value.values(), notation=notation)
        names: Any = getattr(getattr(value, "dtype", None), "names", None)
        for attribute in ("column_names", "columns"):  # of pyarrow; of pandas and polars
            names = getattr(value, attribute, None) if names is None else names
        if names is None or isinstance(value, type):
            return None
        index = pandas_index(getattr(value, "schema", None))
        columns = (value[name] for name in names)
        return cls("the table", names, columns, notation=notation, index=index)

    def read_as(self, notation: Notation) -> Frame:
        """The same cells in another notation, of a file of which all are texts."""
        other = copy.copy(self)
        other.notation = notation
        return other

    def rows(self, kept: NDArray[np.intp]) -> Frame:
        """A table of some of the rows, in order."""

        def some(column: Array | OnFile) -> Array | OnFile:
            if not isinstance(column, OnFile):
                return column[kept]

            def texts() -> tuple[Array, Array]:
                cells, which = column.texts()
                used, which = np.unique(which[kept], return_inverse=True)
                return cells[used], which

            numbers = None if column.numbers is None else column.numbers[kept]
            return OnFile(len(kept), texts, numbers)

        other = copy.copy(self)
        other.lines = None if self.lines is None else [self.lines[row] for row in kept.tolist()]
        other._rows = len(kept)
        other._columns = {name: [*map(some, each)] for name, each in self._columns.items()}
        return other

    def __len__(self) -> int:
        return self._rows

    def column(self, name: str) -> Array:
        """The values of a column as they are."""
        cells, which = self.different(name)
        return cells[which]

    def different(self, name: str) -> tuple[Array, Any]:
        """The different texts of a column, and which of them each row has; or all cells, and
        `EACH`.
        """
        column = self._one(name)
        if isinstance(column, OnFile):
            cells, which = column.texts()
            return self.notation.filled(cells), which
        if column.dtype != object or {*map(type, column.tolist())} != {str}:
            return column, EACH
        code_of = numbered()
        which = np.fromiter(map(code_of.__getitem__, column.tolist()), np.intp, len(column))
        return np.array([*code_of], object), which

    def floats(self, name: str) -> NDArray[np.float64] | None:
        """A column of a file that was read as numbers, NaN for no value; None of all others."""
        column = self._one(name)
        return column.numbers if isinstance(column, OnFile) else None

    def _one(self, name: str) -> Array | OnFile:
        self.require([name])
        column, *others = self._columns[name]
        if others:
            raise DataError(
                f'{self.origin} has {1 + len(others)} columns named "{name}"\n'
                "hint: rename them in the file, or leave them out: drop: [...]"
            )
        return column

    def texts(self, name: str) -> list[str]:
        """A column as `text_of` writes it."""
        cells, which = self.different(name)
        return [*np.array([*map(text_of, as_cells(cells))], object)[which]]

    def value(self, cell: Any) -> float | None:
        """A cell as a float: None for a text that is not a number, NaN for what is neither."""
        if isinstance(cell, str):
            if self.lines is None:
                return None
            return self.notation.number(cell) if cell else math.nan
        if isinstance(cell, np.timedelta64) or not isinstance(cell, _NUMBERS):
            return math.nan
        try:
            return float(cell)
        except OverflowError:
            return math.inf

    def numbers(self, name: str, hint: str = "", gaps: bool = False) -> NDArray[np.float64]:
        """A column of finite numbers, with `gaps` NaN where it is empty; perhaps what was read.

        Raises DataError naming the first value that is neither.
        """
        found = self.floats(name)
        if found is not None and gaps:
            return found
        if found is None:
            cells, which = self.different(name)
            if cells.dtype.kind in "biuf":
                found = cells.astype(np.float64)
            else:
                found = np.array([self.value(cell) for cell in cells], np.float64)  # of None NaN
            found = found[which]
        finite = np.isfinite(found)
        bad = [] if finite.all() else np.flatnonzero(~finite).tolist()
        if gaps and bad:
            array = self.column(name)
            bad = [row for row in bad if not is_empty(array[row])]
        if bad:
            raise self.refusal(name, bad, "expected a number", hint)
        return found

    def weights(self, name: str) -> NDArray[np.float64]:
        """How much each row counts, in an array of its own; DataError for what is below 0."""
        weights = self.numbers(name).copy()
        if bad := np.flatnonzero(weights < 0).tolist():
            raise self.refusal(name, bad, "expected a weight of at least 0")
        return weights

    def location(self, row: int, name: str) -> str:
        """Where a value stands: `houses.csv, line 17, column "age"`."""
        where = f"row {row}" if self.lines is None else f"line {self.lines[row]}"
        return f'{self.origin}, {where}, column "{name}"'

    def refusal(self, name: str, bad: Sequence[int], expected: str, hint: str = "") -> DataError:
        """The error for the values of column `name` in rows `bad`; it shows the first."""
        row = int(bad[0])
        cell = self.column(name)[row]
        value = self.value(cell)
        shown = f'"{shortened(str(cell))}"'
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            shown, hint = "an empty cell", "fill it in or leave the row out"
            if len(bad) == len(self) > 1:
                hint = "no cell of this column has a value; leave the column out"
        elif value is None:
            shown = f"the text {shown}"
            hint = self.notation.hint(cell) or hint
        elif not math.isfinite(value):
            hint = "fill such values in or leave the rows out"
        more = f" ({len(bad) - 1} more in this column)" if len(bad) > 1 else ""
        hints = ["rows count from 0"] * (self.lines is None) + [hint] * bool(hint)
        return DataError(
            f"{self.location(row, name)}: {expected}, found {shown}{more}"
            + (f"\nhint: {'; '.join(hints)}" if hints else "")
        )

    def require(self, names: Sequence[str]) -> None:
        """Raise a DataError naming every column of `names` that there is not."""
        absent = [name for name in names if name not in self._columns]
        if not absent:
            return
        if self.names and all(self.notation.number(name) is not None for name in self.names):
            raise DataError(
                f"{self.origin}: the first line holds numbers ({shortened(', '.join(self.names))}),"
                f" expected the names of the columns: {listed(names)}"
            )
        hint = other_delimiter(self.names)
        raise DataError(missing(self.origin, "column", absent, self.names) + hint)


def pandas_index(schema: Any) -> list[str]:
    """The columns of a pyarrow schema that were the index of a pandas data frame."""
    found: list[Any] = []
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        found = [*json.loads(schema.metadata[b"pandas"])["index_columns"]]
    names = [name for name in getattr(schema, "names", ()) if isinstance(name, str)]
    return [name for name in names if name in found or _INDEX.fullmatch(name)]


def numbered() -> defaultdict[str, int]:
    """Numbers of texts: each new one has the next."""
    return defaultdict(itertools.count().__next__)


def counted(frame: Frame, name: str) -> tuple[list[str], Counts]:
    """The different texts of a column, and how many rows have each."""
    cells, which = frame.different(name)
    if cells.dtype.kind in "biufM":
        cells, which = np.unique(cells, return_inverse=True)
    texts = [*map(text_of, as_cells(cells))]
    if which is EACH or len({*texts}) < len(texts):
        number_of = numbered()
        codes = np.array([number_of[text] for text in texts], np.intp)
        texts, which = [*number_of], codes[which]
    return texts, np.bincount(which, minlength=len(texts))


def together(origin: object, attempts: Iterable[Callable[[], Any]]) -> list[Any]:
    """What each attempt gives; one DataError for all that raise one."""
    results, errors = [], []
    for attempt in attempts:
        try:
            results.append(attempt())
        except DataError as error:
            errors.append(error)
    if len(errors) > 1:
        each = [str(error).partition("\n")[0] for error in errors]  # without its hint
        lines = [f"  {line.removeprefix(f'{origin}, ')}" for line in each]
        raise DataError("\n".join([f"{origin}: {len(errors)} columns cannot be read", *lines]))
    if errors:
        raise errors[0]
    return results


def missing(origin: object, kind: str, absent: Sequence[str], existing: Collection[str]) -> str:
    """Which columns or arrays there are not, the nearest to each that exists, and all there are."""
    each = [f'"{name}"{did_you_mean(name, existing)}' for name in absent[:20]]
    each += [f"and {len(absent) - 20} more"] * (len(absent) > 20)
    text = f"has no {kind} {each[0]}"
    if len(absent) > 1:
        text = "\n  ".join([f"lacks {len(absent)} {kind}s", *each])
    return f"{origin} {text}\n{kind}s: {listed([*existing]) or 'none'}"


def other_delimiter(names: Sequence[str]) -> str:
    """A hint of what would cut a header of one cell; empty where nothing would."""
    other = next((x for x in ";\t|, " if len(names) == 1 and x in names[0].strip()), "")
    shown = other.replace("\t", r"\t")  # as YAML writes it
    by, key = ("blanks", WHITESPACE) if other == " " else (f'"{shown}"', f'"{shown}"')
    hint = f"\nhint: are its cells separated by {by}? Set delimiter: {key}, under data or, of a"
    hint += f" file on the command line, as '{{path: FILE, delimiter: {key}}}'"
    return hint if other else ""


def shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
