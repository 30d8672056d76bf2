"""CSV files read by blocks: columns of numbers become float64 as they are read, others texts.

Cells are found, and plain decimals computed, by NumPy for a block at once, or by pyarrow where it
is installed and the file large and of numbers alone. What these cannot read exactly is left to
Python's `csv` and `float`, which also say what is wrong with a file; the values are theirs to the
last bit. Memory holds the numbers, one block, and the texts that are asked for.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..words import plural
from .arrow import Arrow, Columns
from .csv_cells import Cells, Cut, Texts
from .decimals import BEFORE
from .frame import Frame, OnFile, other_delimiter
from .reading import require_text, require_utf8

__all__ = ["read_table"]

Array = NDArray[Any]
Floats = NDArray[np.float64]
_Asks = Callable[[str], bool]  # by the name of a column
Opening = Callable[[], contextlib.AbstractContextManager[BinaryIO]]
BLOCK = 1 << 18  # bytes: what NumPy makes of them stays in the caches
ARROW_BLOCK = 16 * BLOCK
_WORTH = 60  # blocks of a file for which pyarrow's import pays: 16 MB
_ROWS = 10_000  # of a block from Python's reader
_AT_ONCE = 2_000_000  # cells whose texts are read again together


def read_table(
    origin: object,
    opening: Opening,
    delimiter: str = ",",
    decimal: str = ".",
    texts: Collection[str] = (),
    wanted: _Asks = lambda name: True,
    inputs: _Asks = lambda name: False,
) -> Frame:
    """The table in a CSV file, white space around cells left out.

    Args:
        origin: what names the file in errors.
        opening: opens it; more than once where texts are asked for that were not kept.
        delimiter: the one character between cells.
        decimal: with "," the number 1234.5 is written 1234,5 or 1.234,5. Texts stay as they are.
        texts: names of columns to keep as texts at once, whatever their cells look like.
        wanted: which columns to keep, by name. Others stay in the file.
        inputs: which of them, if they are numbers, to lay side by side as a model takes them. The
            others lie one behind another, for they are asked for one by one.

    Raises DataError for a file that is not UTF-8, without a header or rows, or with rows of
    different lengths; ConfigError for a delimiter that is none.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(
            f"delimiter must be one character, got {delimiter!r}; "
            r'a tab is written "\t", in double quotes'
        )
    return _File(origin, opening, delimiter, decimal).frame({*texts}, wanted, inputs)


class _OddError(Exception):
    """Something that the fast reader leaves to the exact one."""


class _File:
    """A CSV file, read as often as there is something to find in it."""

    def __init__(self, origin: object, opening: Opening, delimiter: str, decimal: str) -> None:
        self.origin, self._opening = str(origin), opening
        self._delimiter, self._decimal = delimiter, decimal
        self._stamp: tuple[int, ...] | None = None
        self._rows, self._again = 0, dict[int, Texts]()
        self._spans_lines = False  # some row may have several
        self._arrow: Arrow | None = None
        self._read_back: list[int] = []
        self.names, self._start, self._first_line = self._header()

    def frame(self, texts: Collection[str], is_wanted: _Asks, is_input: _Asks) -> Frame:
        """The table; read twice where a column does not go on as it began."""
        count = len(self.names)
        wanted = [j for j in range(count) if is_wanted(self.names[j])]
        kept = {j: Texts() for j in wanted if self.names[j] in texts}
        numeric = [j for j in wanted if j not in kept]
        changed, finite = set[int](), True
        parts, matrices = list[list[int]](), list[Floats]()
        for block, share in self._blocks():
            end = self._rows + len(block)
            values = np.empty((len(numeric), len(block)))
            bad = block.numbers(numeric, values)
            if self._rows:
                changed |= {numeric[i] for i in bad}
            else:  # what they hold is what they begin with
                kept |= {numeric[i]: Texts() for i in bad}
                numeric = [j for j in numeric if j not in kept]
                values = np.delete(values, [*bad], axis=0)
                beside = [is_input(self.names[j]) for j in numeric]
                parts = [[i for i, x in enumerate(beside) if x is each] for each in (True, False)]
                matrices = [np.empty((0, len(parts[0]))), np.empty((0, len(parts[1])), order="F")]
                matrices = [_longer(each, int(end / share * 1.02)) for each in matrices]
                if share * _WORTH < 1:
                    self._arrow = Arrow.of(count, numeric, [*kept], self._delimiter, self._decimal)
            if end > len(matrices[0]):
                matrices = [_longer(each, end + end // 8) for each in matrices]
            for matrix, part in zip(matrices, parts, strict=True):
                matrix[self._rows : end] = values[part].T
            finite &= bool(np.isfinite(values).all())
            for j, column in kept.items():
                column.add(*block.raw(j))
            self._rows = end
        if self._arrow:
            self._arrow.release()
        self._arrow = None
        if not self._rows:
            raise DataError(f"{self.origin} has a header but no rows: the data set is empty")
        found = kept | self._texts(sorted(changed))
        numbers = dict[int, Floats]()
        for matrix, part in zip(matrices, parts, strict=True):
            columns = np.broadcast_to(matrix, matrix.shape)[: self._rows].T  # read only
            numbers |= zip([numeric[i] for i in part], columns, strict=True)
        self._read_back = [j for j in range(count) if j not in found]
        lines: Sequence[int] = range(self._first_line, self._first_line + self._rows)
        if self._spans_lines:
            lines = _Lines(self)
        return Frame(
            self.origin,
            self.names,
            (
                OnFile(self._rows, found[j].cells, coded=found[j].coded)
                if j in found
                else OnFile(self._rows, partial(self._column, j), numbers.get(j), finite)
                for j in range(count)
            ),
            lines,
            ([self.names[numeric[i]] for i in parts[0] if not changed], matrices[0][: self._rows]),
            self._decimal,
        )

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line and the cells of each row, the header first, as Python's reader finds them.

        Raises DataError for what is wrong with the file, at its end; bytes that are no UTF-8 first.
        """
        with self._open() as file:
            require_utf8(self.origin, file)
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            names, line, blank, wrong = list[str](), 1, 0, ""
            try:
                for row in reader:
                    if line == 1:
                        names = row
                    elif not row:  # fine where the file ends with it
                        blank = blank or line
                    elif not wrong and (blank or len(row) != len(names)):
                        wrong = self._wrong(blank or line, [] if blank else row, names)
                    if row and not wrong:
                        yield line, row
                    line = reader.line_num + 1
            except csv.Error as error:
                raise DataError(f"{self.origin}, line {line}: {error}") from error
            if not names:
                raise DataError(
                    f"{self.origin}: the first line is empty; expected the names of the columns"
                )
            if wrong:
                raise DataError(wrong)

    def _wrong(self, line: int, row: list[str], names: list[str]) -> str:
        return (
            f"{self.origin}, line {line}: {plural(len(row), 'cell') if row else 'a blank line'}, "
            f"expected {plural(len(names), 'cell')} as in the header{other_delimiter(names)}"
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The file, which must be the one that was read before."""
        with self._opening() as file:
            stamp: tuple[int, ...] = ()
            with contextlib.suppress(io.UnsupportedOperation):  # bytes in memory
                found = os.fstat(file.fileno())
                stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._stamp not in (None, stamp):
                raise DataError(f"{self.origin} was changed while it was read; start again")
            self._stamp = stamp
            yield file

    def _header(self) -> tuple[list[str], int, int]:
        """The names of the columns, and the offset and the line at which the rows begin."""
        with self._open() as file:
            require_text(self.origin, head := file.read(16))
            start = len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0
            file.seek(start)
            lines = list[str]()
            with contextlib.suppress(csv.Error, UnicodeDecodeError, StopIteration):
                text = io.TextIOWrapper(file, "utf-8", newline="")

                def counted() -> Iterator[str]:
                    for line in text:
                        lines.append(line)
                        yield line

                reader = csv.reader(counted(), delimiter=self._delimiter, strict=True)
                if names := next(reader):
                    start += len("".join(lines).encode())
                    return [name.strip() for name in names], start, 1 + len(lines)
        for _ in self.rows():  # says what is wrong
            pass
        raise AssertionError("Python's reader found a header, and then none")

    def _blocks(self) -> Iterator[tuple[Cut | Cells | Columns, float]]:
        """All rows in blocks, each with its share of the file, about.

        From the first block on that is odd, Python's reader finds them.
        """
        done = 0
        with contextlib.suppress(_OddError):
            for block, share in self._cuts():
                yield block, share
                done += len(block)
            return
        self._spans_lines = True
        rows = itertools.islice((row for _, row in self.rows()), 1 + done, None)
        while batch := [*itertools.islice(rows, _ROWS)]:
            yield Cells(batch, self._decimal), 1.0

    def _cuts(self) -> Iterator[tuple[Cut | Columns, float]]:
        """The blocks that the fast reader can read; _OddError at the first other one."""
        if not self._delimiter.isascii():
            raise _OddError
        with self._open() as file:
            size = file.seek(0, io.SEEK_END) - self._start
            file.seek(self._start)
            at, rest, by_hand, last = self._start, b"", 0, False
            while not last:
                if self._arrow and at >= by_hand:
                    file.seek(at)
                    if block := self._arrow.block(file, ARROW_BLOCK):
                        at += block.length
                        yield block, 0.0
                        continue
                    rest, by_hand = b"", at + ARROW_BLOCK
                    file.seek(at)
                chunk = file.read(BLOCK)
                last = len(chunk) < BLOCK
                data = b"".join((b"0" * BEFORE, rest, chunk))
                if last:  # blank lines at the end are no rows
                    data = data.rstrip(b"\r\n")
                    if len(data) == BEFORE:
                        return
                    data += b"\n"
                end = self._end_of_rows(data)
                rest = data[max(end, BEFORE) :]
                if rest and (last or len(rest) > 64 * BLOCK):
                    raise _OddError
                if end:
                    at += end - BEFORE
                    yield self._cut(data, end), min(1.0, (end - BEFORE) / size)

    def _end_of_rows(self, data: bytes) -> int:
        """Where the last row ends that is whole; 0: none is."""
        if b'"' not in data:
            return data.rfind(b"\n") + 1
        buffer = np.frombuffer(data, np.uint8)
        outside = ~np.bitwise_xor.accumulate(buffer == ord('"'))
        newlines = np.flatnonzero((buffer == ord("\n")) & outside)
        return int(newlines[-1]) + 1 if len(newlines) else 0

    def _cut(self, data: bytes, end: int) -> Cut:
        """The cells of whole rows, which are checked as Python's reader does."""
        buffer, width = np.frombuffer(data, np.uint8)[:end], len(self.names)
        newline = buffer == ord("\n")
        border = newline | (buffer == ord(self._delimiter))
        quotes = np.flatnonzero(buffer == ord('"'))
        if len(quotes):
            border &= ~np.bitwise_xor.accumulate(buffer == ord('"'))
            border[BEFORE - 1] = True
            before, after = quotes[::2] - 1, quotes[1::2] + 1  # of a part in quotes
            opened = border[before] | (buffer[before] == ord('"'))
            closed = border[after] | np.isin(buffer[after], (ord('"'), ord("\r")))
            if not (opened.all() and closed.all()):
                raise _OddError
        border[:BEFORE] = False
        point = (buffer == ord(self._decimal)) & ~border
        tokens = np.flatnonzero(border | point)
        pointed = point[tokens]
        plain = not len(tokens) % 2 and pointed[::2].all() and not pointed[1::2].any()
        ends = tokens[1::2].copy() if plain else tokens[~pointed]  # plain: a point in every cell
        rows = len(ends) // width
        shape = (rows, width)
        last = newline[ends]
        if len(ends) % width or last.sum() != rows or not last[width - 1 :: width].all():
            raise _OddError
        starts = np.empty_like(ends)
        starts[0], starts[1:] = BEFORE, ends[:-1] + 1
        returns = data.count(b"\r", 0, end)
        if returns:
            if returns != data.count(b"\r\n", 0, end):
                raise _OddError
            ends[width - 1 :: width] -= buffer[ends[width - 1 :: width] - 1] == ord("\r")
        points = tokens[::2] if plain else ends.copy()
        if not plain:
            points[np.cumsum(~pointed)[pointed]] = tokens[pointed]
        lengths = ends - starts
        if lengths.max() > csv.field_size_limit() or (width == 1 and not lengths.all()):
            raise _OddError  # a blank line has no cell
        if not data.isascii():
            try:
                data[:end].decode()
            except UnicodeDecodeError:
                raise _OddError from None
        self._spans_lines |= int(newline.sum()) != rows
        at = (starts.reshape(shape), points.reshape(shape), ends.reshape(shape))
        return Cut(data, at, bool(len(quotes)), self._decimal)

    def _texts(self, columns: Sequence[int]) -> dict[int, Texts]:
        """Columns as texts."""
        found = {j: Texts() for j in columns}
        for block, _ in self._blocks() if columns else ():
            for j, column in found.items():
                column.add(*block.raw(j))
        return found

    def _column(self, j: int) -> Array:
        """The texts of a column that were not kept; they and those of the next ones stay here."""
        if j not in self._again:
            at = self._read_back.index(j)
            self._again = {}
            self._again = self._texts(self._read_back[at : at + max(1, _AT_ONCE // self._rows)])
        return self._again[j].cells()


class _Lines(Sequence[int]):
    """The line on which each row starts, found when one is asked for."""

    def __init__(self, file: _File) -> None:
        self._file = file

    @cached_property
    def _all(self) -> list[int]:
        return [line for line, _ in self._file.rows()][1:]

    def __getitem__(self, row: Any) -> Any:
        return self._all[row]

    def __len__(self) -> int:
        return len(self._all)


def _longer(matrix: Floats, length: int) -> Floats:
    """The same rows in a matrix with room for more; memory that is not used takes none."""
    longer = np.empty((length, matrix.shape[1]), order="C" if matrix.flags.c_contiguous else "F")
    longer[: len(matrix)] = matrix
    return longer
