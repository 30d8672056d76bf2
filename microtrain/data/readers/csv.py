"""CSV files: what Python's `csv` and `float` find in them.

Large ones are read by pyarrow where it is installed, else, where all cells are plain numbers, by
NumPy or as JSON; all find the numbers to the last bit. What these may read in another way is left
to `csv`, which also says what is wrong. Texts of columns of numbers are read when they are asked
for.
"""

from __future__ import annotations

import codecs
import contextlib
import csv as python_csv
import io
import itertools
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from ...common.files import reading
from ...common.words import plural
from ...errors import ConfigError, DataError
from ..source import ArrayDataset
from ..tables.columns import Columns, as_columns
from ..tables.frame import EACH, WHITESPACE, Frame, OnFile, numbered, other_delimiter
from ..tables.notation import PLAIN, Notation
from ..tables.table import Table, table_or_arrays
from .csv_blocks import Read, blocks, by_numpy, by_pyarrow

Array = NDArray[Any]
Opening = Callable[[], contextlib.AbstractContextManager[BinaryIO]]
Row = tuple[int, list[str]]  # the line on which it starts, and its cells
_SEPARATOR = re.compile(rb'(?:\xef\xbb\xbf)?"?(sep=([\x01-\x7f]))"?\r?\n', re.IGNORECASE)
_UNPACK = "unpack it first"
_OTHERS = {
    b"\x1f\x8b": ("compressed by gzip", _UNPACK),
    b"BZh91AY&SY": ("compressed by bzip2", _UNPACK),
    b"\xfd7zXZ": ("compressed by xz", _UNPACK),
    b"(\xb5/\xfd": ("compressed by zstd", _UNPACK),
    b"PK\x03\x04": (
        "a zip archive or a spreadsheet",
        "unpack it, save the sheet as CSV, or, of arrays in an .npz, use data of type npz",
    ),
    b"\xd0\xcf\x11\xe0": ("a spreadsheet", "save the sheet as CSV"),
    b"PAR1\x15": ("a Parquet file", "use data of type parquet"),
    b"\x89HDF": ("an HDF5 file", "use data of type hdf5"),
    b"\x93NUMPY": ("an array of NumPy", "use data of type npy"),
}
UTF8 = "UTF-8"
NOT_UTF8 = (
    "; save the file as UTF-8, or name its encoding, such as encoding: cp1252 (Windows), under "
    "data or, of a file on the command line, as '{path: FILE, encoding: cp1252}'"
)
ROWS = 1_000  # that `csv` reads at once; what a column holds is what it begins with
LARGE = 1 << 20  # bytes of a file that are worth another reader
BLOCK = 1 << 22  # that it reads at once
SMALL = 1 << 18  # the same of NumPy, whose arrays stay in the processor's cache then
_BLANKS = re.compile(r'("(?:[^"]|"")*")|[ \t]+')


def read_csv(
    path: str | Path,
    delimiter: str = ",",
    notation: Notation = PLAIN,
    encoding: str = "utf-8",
    texts: Collection[str] | None = (),
    wanted: Callable[[str], bool] = lambda name: True,
    content: bytes | None = None,
) -> Frame:
    """The table in a CSV file, white space around cells left out.

    Args:
        path: of the file, which is opened again where texts are asked for that were not kept.
        delimiter: the one character between cells, or `whitespace`.
        notation: how numbers are written, and what stands for no value. Texts stay as they are.
        encoding: of the text, by a name that Python has for it.
        texts: names of columns to keep as texts, whatever their cells look like; None: all.
        wanted: which columns to keep, by name. Others stay in the file.
        content: of the file, which `path` then names in errors; None: it is read.

    Raises DataError for a file that cannot be read or is not of this encoding, without a header or
    rows, or with rows of different lengths; ConfigError for a delimiter or an encoding that cannot
    be one.
    """
    opening = partial(reading, Path(path)) if content is None else partial(io.BytesIO, content)
    return _File(path, opening, delimiter, notation, encoding).frame(texts, wanted)


def csv(
    path: Path,
    target: str,
    features: list[str] | None = None,
    delimiter: str = ",",
    decimal: Literal[".", ","] = ".",
    categorical: bool = False,
    columns: Columns | None = None,
    drop: list[str] | None = None,
    weight: str | None = None,
    thousands: Literal[",", ".", "'", " "] | None = None,
    units: list[str] | None = None,
    na_values: list[str | float] | None = None,
    missing: Literal["error", "fill"] = "error",
    missing_target: Literal["error", "drop"] = "error",
    encoding: str = "utf-8",
) -> ArrayDataset | Table:
    """A table with a header line: its columns as inputs, one column as the target.

    A target column of numbers is a regression target, float64 of shape (n, 1). One of names is
    class codes, int64 of shape (n,), in the order of the sorted names, which are `classes`. One
    that holds both is refused, for that is a typing error more often than not.

    Args:
        path: a file of text (a byte order mark is fine), quoted as spreadsheets do.
        target: the name of the target column.
        features: the names of the input columns, in order; None takes all others of the file.
        delimiter: the one character between cells; whitespace: any number of blanks and tabs.
        decimal: what stands before the decimals of a number. With "," a point is read between
            groups of three digits (1.234,5) and refused elsewhere (0.5). What is not read as a
            number, a category, a class, an id, stays as it is.
        categorical: read the target as classes whatever its cells look like, each text a class:
            007 is not 7. Whole numbers are classes in numerical order, unless one is written in
            another way (01, 1.0, 1e3); then, and of anything else, it is the order of the texts.
        columns: what columns hold that are not plain numbers: category, date, id, or more of it,
            such as {missing: median}. They are fitted on the training part.
        drop: columns to leave out.
        weight: a column that says how much each row counts, in the loss and the metrics.
        thousands: what may stand between groups of three digits, as in 1,234,567.
        units: texts that may stand before or behind a number, such as $ or %: 12% is 12.
        na_values: further texts that mean that a cell is empty, whatever their case; a number
            stands for all cells of its value.
        missing: empty cells of columns that do not say: an error, or filled with the median of the
            training part (numbers and dates), as a category of their own (categories):
            none, or missing where none is a category of the column.
        missing_target: what to do with rows without a target: refuse the file, or leave them out.
        encoding: of the text, such as cp1252 (Windows, Western Europe), or utf-16.

    White space around names and cells does not count. Returns a `Table` where there are `columns`
    to be fitted or rows were left out, else arrays. Raises DataError (what is wrong with the file:
    line, column and the text found) or ConfigError (arguments that fit no file).

    Example:
        >>> iris = csv(Path("configs/data/iris.csv"), target="species")
        >>> iris.classes
        ('setosa', 'versicolor', 'virginica')
    """
    keys = {"decimal": decimal, "thousands": thousands, "units": units, "na_values": na_values}
    notation = Notation.of(keys)
    kinds: dict[str, str] = {}
    with contextlib.suppress(ConfigError):  # told when the file has been read
        kinds = {name: column.type for name, column in as_columns(columns).items()}
    texts = {name for name, kind in kinds.items() if kind in ("category", "date")}
    texts |= {target} if categorical else set()
    kept = None if features is None else {*features, target, weight}
    left = {*(drop or ()), *(name for name, kind in kinds.items() if kind == "id")} - {target}
    frame = read_csv(
        Path(path), delimiter, notation, encoding, texts=texts,
        wanted=lambda name: name not in left if kept is None else name in kept,
    )  # fmt: skip
    hint = "categorical: true reads every cell of the target as the name of a class"
    return table_or_arrays(
        frame, target, columns, drop, features=features, categorical=categorical, weight=weight,
        missing=missing, missing_target=missing_target, hint=hint,
    )  # fmt: skip


class _File:
    """A CSV file, read as often as there is something to find in it."""

    def __init__(
        self, origin: object, opening: Opening, delimiter: str, notation: Notation, encoding: str
    ) -> None:
        self._blanks = delimiter == WHITESPACE
        if not self._blanks and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ConfigError(
                f"delimiter must be one character or {WHITESPACE}, got {delimiter!r}; "
                r'a tab is written "\t", in double quotes'
            )
        try:
            name = codecs.lookup(encoding).name
            self._encoding = UTF8 if name in ("utf-8", "utf-8-sig", "ascii") else name
            "a".encode(encoding)
        except LookupError as error:
            raise ConfigError(f"encoding: {error}; expected utf-8, utf-16, cp1252 ...") from error
        self._origin, self._opening = str(origin), opening
        self._delimiter, self._notation = "\t" if self._blanks else delimiter, notation
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
                is_text[j] = asked or self._notation.floats([*map(str.strip, cells)]) is None
        found, lines = self._read(is_text, itertools.chain(head, rows))
        numbers = found.numbers()
        texts_of = [found.texts if is_text.get(j) else self._texts for j in range(len(names))]
        columns = [
            OnFile(len(lines), partial(texts_of[j], j), numbers.get(j)) for j in range(len(names))
        ]
        return Frame(self._origin, names, columns, lines, self._notation)

    def _texts(self, j: int) -> tuple[Array, Array]:
        """The cells of a column."""
        return self._read({j: True}, itertools.islice(self._rows(), 1, None))[0].texts(j)

    def _read(
        self, is_text: Mapping[int, bool], rows: Iterator[Row]
    ) -> tuple[_Columns, Sequence[int]]:
        """Columns as texts or as numbers, and the lines of the rows."""
        batch = [*itertools.islice(rows, ROWS)]
        if len(batch) == ROWS and (found := self._at_once(is_text, *batch[0])):
            return found, range(2, 2 + found.rows)
        columns, lines = _Columns(is_text, self._notation), array("q")
        while batch:
            lines.extend(line for line, _ in batch)
            cells = [*zip(*(row for _, row in batch), strict=True)]
            texts = {j: [*map(str.strip, cells[j])] for j in is_text}
            numbers = [self._notation.floats(texts[j]) for j in columns.numeric]
            columns.add((len(batch), numbers, {j: (texts[j], EACH) for j in texts if is_text[j]}))
            batch = [*itertools.islice(rows, ROWS)]
        return columns, lines

    def _at_once(self, is_text: Mapping[int, bool], line: int, row: list[str]) -> _Columns | None:
        """Columns as `_read` has them; None where `csv` may find something else.

        line, row: the first.
        """
        columns = _Columns(is_text, self._notation)
        if (
            not is_text
            or self._blanks
            or not self._delimiter.isascii()
            or len(row) == 1
            or line != 2
        ):
            return None
        with self._open() as file:
            length = file.seek(0, io.SEEK_END)
            file.seek(0)
            if length < LARGE or b"\r" in file.readline().rstrip(b"\r\n"):
                return None
            given = is_text, len(row), self._delimiter, self._notation
            read, size = by_pyarrow(*given), BLOCK
            if read is None:
                read, size = by_numpy(*given), SMALL
            for block in blocks(file, size):
                if b"\r" in block or b'"' in block or (found := read(block)) is None:
                    return None
                columns.add(found, len(block) / length)
        return columns

    def _rows(self) -> Iterator[Row]:
        """The line and the cells of each row, the header first, as Python's reader finds them.

        Raises DataError for what is wrong with the file.
        """
        with self._open() as file:
            require_text(self._origin, file.read(16))
            file.seek(0)
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            lines = map(_with_tabs, text) if self._blanks else text
            blanks = self._delimiter != " "  # do not count, also before a quote
            reader = python_csv.reader(
                lines, delimiter=self._delimiter, skipinitialspace=blanks, strict=True
            )
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
            except python_csv.Error as error:
                raise DataError(f"{self._origin}, line {line}: {error}") from error
            except UnicodeDecodeError:
                file = text.detach()
                file.seek(0)
                self._decoded(file.read())
                raise
            if not names:
                raise DataError(
                    f"{self._origin}: the first line is empty; expected the names of the columns"
                )

    def _wrong(self, line: int, row: list[str], names: list[str]) -> str:
        hint = other_delimiter(names)
        if not row or names[0][:1] == "#" or (WHITESPACE in hint and len(row) > 1):
            hint = "\nhint: delete blank lines, and those above the line with the column names"
        return (
            f"{self._origin}, line {line}: {plural(len(row), 'cell') if row else 'a blank line'}, "
            f"expected {plural(len(names), 'cell')} as in the header{hint}"
            + "\nhint: does the header lack a name for the first column? Add one"
            * (self._blanks and len(row) == len(names) + 1)
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The file, which must be the one that was read before, and still be so at the end."""
        with self._opening() as file:
            self._look(file)
            yield file if self._encoding == UTF8 else io.BytesIO(self._decoded(file.read()))
            self._look(file)

    def _decoded(self, content: bytes) -> bytes:
        """The content of a file, as UTF-8."""
        try:
            return str(content, self._encoding).encode()
        except UnicodeDecodeError as error:
            line = 1 + content.count(b"\n", 0, error.start)
            raise DataError(
                f"{self._origin}, line {line}: byte 0x{content[error.start]:02x} is not "
                f"{self._encoding} text{NOT_UTF8 * (self._encoding == UTF8)}"
            ) from error

    def _look(self, file: BinaryIO) -> None:
        stamp: tuple[int, ...] = ()
        with contextlib.suppress(io.UnsupportedOperation):  # bytes in memory
            found = os.fstat(file.fileno())
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._stamp not in (None, stamp):
            raise DataError(f"{self._origin} was changed while it was read; start again")
        self._stamp = stamp


class _Columns:
    """Columns that become longer by blocks of rows: numbers side by side, texts by their codes.

    Attributes:
        numeric: which are numbers.
    """

    def __init__(self, is_text: Mapping[int, bool], notation: Notation) -> None:
        self._notation = notation
        self.numeric, self.rows = [j for j in is_text if not is_text[j]], 0
        self._numbers, self._odd = np.empty((0, len(self.numeric))), set[int]()
        self._codes = {j: (numbered(), list[Array]()) for j in is_text if is_text[j]}

    def add(self, found: Read, share: float = 1.0) -> None:
        """More rows, about so large a share of all."""
        rows, numbers, texts = found
        start, self.rows = self.rows, self.rows + rows
        if self.rows > len(self._numbers):  # memory that is not used takes none
            length = int((self.rows + rows / share) * 1.125)
            longer = np.empty((length, len(self.numeric)))
            longer[:start] = self._numbers[:start]
            self._numbers = longer
        self._odd |= {j for j, part in zip(self.numeric, numbers, strict=True) if part is None}
        if numbers:
            parts = [np.full(rows, np.nan) if part is None else part for part in numbers]
            parts = [self._notation.filled(part) for part in parts]
            self._numbers[start : self.rows] = np.array(parts).T
        for j, (cells, which) in texts.items():
            code_of, codes = self._codes[j]
            each = np.fromiter(map(code_of.__getitem__, cells), np.int32, len(cells))
            codes.append(each[which])

    def numbers(self) -> dict[int, NDArray[np.float64]]:
        """The columns of numbers alone."""
        columns = zip(self.numeric, self._numbers[: self.rows].T, strict=True)
        return {j: column for j, column in columns if j not in self._odd}

    def texts(self, j: int) -> tuple[Array, Array]:
        """The different cells of a column, and which of them each row has."""
        code_of, codes = self._codes[j]
        return np.array([*code_of], object), np.concatenate(codes)


def _with_tabs(line: str) -> str:
    """A line with one tab for all white space between cells."""
    return _BLANKS.sub(lambda found: found[1] or "\t", line.strip(" \t\r\n")) + "\n"


def require_text(origin: str, head: bytes) -> None:
    """DataError where a file begins as one of another kind does, whatever its name is."""
    for magic, (kind, way_out) in _OTHERS.items():
        if head.startswith(magic):
            raise DataError(f"{origin} is {kind}, not a CSV file; {way_out}")
    if b"\0\0" in (head[0:3:2], head[1:4:2]):
        raise DataError(
            f"{origin} has a NUL in every second byte, as UTF-16 without a byte order mark; "
            "save the file as UTF-8, or name its encoding, such as encoding: utf-16-le"
        )
    if told := _SEPARATOR.match(head):
        line, separator = (text.decode() for text in told.groups())
        raise DataError(
            f"{origin}, line 1: {line} tells a spreadsheet what separates cells, and is not a "
            f"header; delete this line, and write delimiter: {separator!r}"
        )
