"""CSV files: what Python's `csv` and `float` find in them.

Large ones are read by pyarrow where it is installed, else, where all cells are plain numbers, by
NumPy or as JSON; all find the numbers to the last bit. What these may read in another way is left
to `csv`, which also says what is wrong. Texts of columns of numbers are read when they are asked
for.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...words import plural
from ..tables.cells import NO_VALUE, floats
from ..tables.frame import Frame, OnFile, other_delimiter
from .opening import reading, require_text, require_utf8

__all__ = ["parse_csv", "read_csv"]

Array = NDArray[Any]
Opening = Callable[[], contextlib.AbstractContextManager[BinaryIO]]
Row = tuple[int, list[str]]  # the line on which it starts, and its cells
Read = tuple[dict[int, Array], Sequence[int]]  # columns, and the lines of the rows
Reader = Callable[[bytes], Mapping[int, Array] | None]
ROWS = 1_000  # that `csv` reads at once; what a column holds is what it begins with
LARGE = 1 << 22  # bytes of a file that are worth another reader
BLOCK = 1 << 20  # that it reads at once
SMALL = 1 << 18  # the same of NumPy, whose arrays stay in the processor's cache then
POWERS = 10.0 ** np.arange(23)  # which are exact
_BOTH_CASES = [itertools.product(*({x, x.upper()} for x in text)) for text in NO_VALUE]
_NULLS = [*map("".join, itertools.chain(*_BOTH_CASES))]


def read_csv(
    path: Path,
    delimiter: str = ",",
    decimal: str = ".",
    texts: Collection[str] | None = (),
    wanted: Callable[[str], bool] = lambda name: True,
) -> Frame:
    """The table in a CSV file, white space around cells left out.

    Args:
        path: of the file, which is opened again where texts are asked for that were not kept.
        delimiter: the one character between cells.
        decimal: with "," the number 1234.5 is written 1234,5 or 1.234,5. Texts stay as they are.
        texts: names of columns to keep as texts, whatever their cells look like; None: all.
        wanted: which columns to keep, by name. Others stay in the file.

    Raises DataError for a file that cannot be read or is not UTF-8, without a header or rows, or
    with rows of different lengths; ConfigError for a delimiter that cannot be one.
    """
    return _File(path, partial(reading, path), delimiter, decimal).frame(texts, wanted)


def parse_csv(origin: object, content: bytes, delimiter: str = ",", decimal: str = ".") -> Frame:
    """The table that is the content of a CSV file, as `read_csv`; origin names it in errors."""
    return _File(origin, partial(io.BytesIO, content), delimiter, decimal).frame((), lambda _: True)


class _File:
    """A CSV file, read as often as there is something to find in it."""

    def __init__(self, origin: object, opening: Opening, delimiter: str, decimal: str) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(
                f"delimiter must be one character, got {delimiter!r}; "
                r'a tab is written "\t", in double quotes'
            )
        self._origin, self._opening = str(origin), opening
        self._delimiter, self._decimal = delimiter, decimal
        self._stamp: tuple[int, ...] | None = None

    def frame(self, texts: Collection[str] | None, is_wanted: Callable[[str], bool]) -> Frame:
        rows = self._rows()
        names = [name.strip() for name in next(rows)[1]]
        if not (head := [*itertools.islice(rows, ROWS)]):
            raise DataError(f"{self._origin} has a header but no rows: the data set is empty")
        is_text = dict[int, bool]()
        for j, cells in enumerate(zip(*(row for _, row in head), strict=True)):
            if is_wanted(names[j]):
                asked = texts is None or names[j] in texts
                is_text[j] = asked or floats([*map(str.strip, cells)], self._decimal) is None
        found, lines = self._read(is_text, itertools.chain(head, rows))
        columns = (
            found[j] if text else OnFile(len(lines), partial(self._texts, j), found.get(j))
            for j, text in enumerate(map(is_text.get, range(len(names))))
        )
        return Frame(self._origin, names, columns, lines, self._decimal)

    def _texts(self, j: int, rows: int | None = None) -> Array:
        """The cells of a column, at least those of the first rows."""
        return self._read({j: True}, itertools.islice(self._rows(), 1, rows and 1 + rows))[0][j]

    def _read(self, is_text: Mapping[int, bool], rows: Iterator[Row]) -> Read:
        """Columns as texts or as numbers, without those that turn out to be something else."""
        batch = [*itertools.islice(rows, ROWS)]
        if len(batch) == ROWS and (found := self._at_once(is_text, *batch[0])):
            return found
        columns, lines = _Columns(is_text), array("q")
        while batch:
            lines.extend(line for line, _ in batch)
            cells = [*zip(*(row for _, row in batch), strict=True)]
            texts = {j: [*map(str.strip, cells[j])] for j in is_text}
            more: dict[int, Array | None] = {
                j: np.array(texts[j], object) if is_text[j] else floats(texts[j], self._decimal)
                for j in is_text
            }
            columns.add(len(batch), more)
            batch = [*itertools.islice(rows, ROWS)]
        return columns.all(), lines

    def _at_once(self, is_text: Mapping[int, bool], line: int, row: list[str]) -> Read | None:
        """What `_read` returns; None where `csv` may find something else. A row is the first."""
        delimiter, columns = self._delimiter.encode(), _Columns(is_text)
        if not is_text or len(delimiter) != 1 or len(row) == 1 or line != 2:
            return None
        half = csv.field_size_limit() // 2  # a longer cell has none of the marks that end one
        with self._open() as file:
            length = file.seek(0, io.SEEK_END)
            file.seek(0)
            if length < LARGE or b"\r" in file.readline().rstrip(b"\r\n"):
                return None
            read, size = _by_pyarrow(is_text, len(row), self._delimiter, self._decimal), BLOCK
            if read is None and not any(is_text.values()):
                read, size = _by_numpy(len(row), delimiter, self._decimal.encode()), SMALL
            if read is None:
                return None
            for block in _blocks(file, size):
                starts = range(0, len(block) - half, half)
                odd = b"\r" in block or not all(delimiter in block[i : i + half] for i in starts)
                if odd or (found := read(block)) is None:
                    return None
                columns.add(max(map(len, found.values())), found, len(block) / length)
        return columns.all(), range(2, 2 + columns.rows)

    def _rows(self) -> Iterator[Row]:
        """The line and the cells of each row, the header first, as Python's reader finds them.

        Raises DataError for what is wrong with the file.
        """
        with self._open() as file:
            require_text(self._origin, file.read(16))
            file.seek(0)
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            names, line, blank = list[str](), 1, 0
            try:
                for row in reader:
                    names = names or row
                    if not names:
                        break
                    if not row:  # fine where the file ends with it
                        blank = blank or line
                    elif blank or len(row) != len(names):
                        raise DataError(self._wrong(blank or line, [] if blank else row, names))
                    else:
                        yield line, row
                    line = reader.line_num + 1
            except csv.Error as error:
                raise DataError(f"{self._origin}, line {line}: {error}") from error
            except UnicodeDecodeError:
                require_utf8(self._origin, text.detach())
                raise
            if not names:
                raise DataError(
                    f"{self._origin}: the first line is empty; expected the names of the columns"
                )

    def _wrong(self, line: int, row: list[str], names: list[str]) -> str:
        return (
            f"{self._origin}, line {line}: {plural(len(row), 'cell') if row else 'a blank line'}, "
            f"expected {plural(len(names), 'cell')} as in the header{other_delimiter(names)}"
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The file, which must be the one that was read before, and still be so at the end."""
        with self._opening() as file:
            self._look(file)
            yield file
            self._look(file)

    def _look(self, file: BinaryIO) -> None:
        stamp: tuple[int, ...] = ()
        with contextlib.suppress(io.UnsupportedOperation):  # bytes in memory
            found = os.fstat(file.fileno())
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._stamp not in (None, stamp):
            raise DataError(f"{self._origin} was changed while it was read; start again")
        self._stamp = stamp


class _Columns:
    """Columns that become longer by blocks of rows."""

    def __init__(self, is_text: Mapping[int, bool]) -> None:
        self._texts = {j: list[Array]() for j in is_text if is_text[j]}
        self._places = {j: i for i, j in enumerate(j for j in is_text if not is_text[j])}
        self._numbers, self.rows = np.empty((len(self._places), 0)), 0

    def add(self, rows: int, found: Mapping[int, Array | None], share: float = 1.0) -> None:
        """More rows, about so large a share of all; None: the column is not of numbers."""
        start, self.rows = self.rows, self.rows + rows
        if self.rows > len(self._numbers.T):  # memory that is not used takes none
            longer = np.empty((len(self._numbers), int((self.rows + rows / share) * 1.125)))
            longer[:, :start] = self._numbers[:, :start]
            self._numbers = longer
        for j, part in found.items():
            if part is None:
                self._places.pop(j, None)
            elif j in self._texts:
                self._texts[j].append(part)
            elif j in self._places:
                self._numbers[self._places[j], start : self.rows] = part

    def all(self) -> dict[int, Array]:
        numbers = {j: self._numbers[i, : self.rows] for j, i in self._places.items()}
        return numbers | {j: np.concatenate(parts) for j, parts in self._texts.items()}


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The rows behind a header, each with a newline before it, without blank ones at the end."""
    newlines = b"\n"
    while lines := file.read(size):
        block = b"".join((newlines, lines, file.readline()))
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        rows = block.rstrip(b"\n")
        newlines = block[len(rows) :]
        if rows:
            yield rows


def _by_numpy(width: int, delimiter: bytes, decimal: bytes) -> Reader:
    """Reads plain numbers, all columns."""
    from pydantic_core import from_json

    row = b"\n" + delimiter * (width - 1)
    marks = np.frombuffer(decimal.join([*map(bytes, zip(row)), b""]), np.uint8)
    table = bytes.maketrans(delimiter + decimal + b"\n", b",.,")

    def as_json(block: bytes) -> NDArray[np.float64] | None:
        found = block.translate(None, b"0123456789+-eE" + decimal)
        if found != len(found) // width * row:
            return None
        cells = block[1:].translate(table)
        numbers = from_json(b"[" + cells + b"]")
        values = np.fromiter(numbers, np.float64, len(numbers))
        if not values.all() and b"-0," in cells + b",":
            return None  # in JSON it is an integer, which has no sign
        return values if np.isfinite(values).all() else None

    def as_integers(block: bytes) -> NDArray[np.float64] | None:
        """Decimals of few digits, at which NumPy is quick, divided by powers of ten.

        Both are exact, so that the quotient is what `float` finds.
        """
        characters = np.frombuffer(block, np.uint8)
        at = np.flatnonzero((characters - np.uint8(ord("0")) > 9) & (characters != ord("-")))
        if len(at) % len(marks) or (characters[at].reshape(-1, len(marks)) != marks).any():
            return None
        whole = np.fromstring(block[1:].translate(table, decimal), np.int64, sep=",")
        places = np.append(at[2::2], len(block)) - at[1::2] - 1
        if len(whole) != len(places) or places.max() >= len(POWERS):
            return None
        if whole.max() >= 2**53 or whole.min() <= -(2**53):
            return None
        if (characters[at[::2][whole == 0] + 1] == ord("-")).any():
            return None  # what has no digits, and what is -0.0
        return whole / POWERS[places]

    def read(block: bytes) -> dict[int, Array] | None:
        for attempt in (as_integers, as_json):
            with contextlib.suppress(ValueError, OverflowError, DeprecationWarning):
                if (found := attempt(block)) is not None:
                    return dict(enumerate(found.reshape(-1, width).T))
        return None

    return read


def _by_pyarrow(
    is_text: Mapping[int, bool], width: int, delimiter: str, decimal: str
) -> Reader | None:
    """Reads numbers and texts that are not quoted; None without pyarrow."""
    try:
        import pyarrow
        from pyarrow import csv as arrow
    except ImportError:
        return None
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {str(j): text if is_text[j] else pyarrow.float64() for j in is_text}
    options = (
        arrow.ReadOptions(
            column_names=[str(j) for j in range(width)], use_threads=False, block_size=1 << 30
        ),
        arrow.ParseOptions(delimiter=delimiter, quote_char=False),
        arrow.ConvertOptions(
            column_types=types,
            include_columns=[*types],
            null_values=_NULLS,
            decimal_point=decimal,
        ),
    )

    def read(block: bytes) -> dict[int, Array] | None:
        if b'"' in block:
            return None
        try:
            if not block.isascii():
                str(block, "utf-8")
            table = arrow.read_csv(pyarrow.BufferReader(block), *options)
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            return None
        if table.num_rows != block.count(b"\n"):  # it passes over blank lines
            return None
        found = dict[int, Array]()
        for j, column in zip(is_text, table.columns, strict=True):
            (cells,) = column.chunks
            if is_text[j]:
                different = [text.strip() for text in cells.dictionary.to_pylist()]
                found[j] = np.array(different, object)[np.from_dlpack(cells.indices)]
            else:
                found[j] = np.from_dlpack(cells.fill_null(np.nan) if cells.null_count else cells)
                if np.isfinite(found[j]).sum() + cells.null_count != len(cells):
                    return None
        return found

    return read
