"""Large CSV files, block by block: by pyarrow, by NumPy, as JSON; what is not plain is left."""

from __future__ import annotations

import contextlib
import itertools
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..tables.frame import EACH
from ..tables.notation import NO_VALUE, Notation

Array = NDArray[Any]
Cells = tuple[list[str], Any]  # some texts, and for each row the index of its own
# How many rows, and their numbers and texts; None: this column is not of numbers.
Read = tuple[int, Sequence[Array | None], dict[int, Cells]]
Reader = Callable[[bytes | bytearray], Read | None]
POWERS = 10.0 ** np.arange(23)  # which are exact
_BOTH_CASES = [itertools.product(*({x, x.upper()} for x in text)) for text in NO_VALUE]
_NULLS = [*map("".join, itertools.chain(*_BOTH_CASES))]


def blocks(file: BinaryIO, size: int) -> Iterator[bytes | bytearray]:
    """The rows behind a header, each with a newline behind it, without blank ones at the end.

    A block is overwritten by the next: new memory costs more than what is done with it here.
    """
    buffer, blank = bytearray(size), b""
    while length := file.readinto(memoryview(buffer)[:size]):  # type: ignore[attr-defined]
        buffer[length:] = file.readline()
        block: bytes | bytearray = buffer
        if blank or b"\r" in block:
            block = blank + block.replace(b"\r\n", b"\n")
        blank = b""
        if block[-1:] != b"\n" or block[-2:] in (b"\n", b"\n\n"):
            rows = block.rstrip(b"\n")
            blank = bytes(block[len(rows) + bool(rows) :])
            block = rows + b"\n" * bool(rows)
        if block:
            yield block


def by_numpy(is_text: Mapping[int, bool], width: int, delimiter: str, notation: Notation) -> Reader:
    """Reads plain numbers at once, and all else cell by cell."""
    numeric = [j for j in is_text if not is_text[j]]
    marks = delimiter.encode() * (width - 1) + b"\n"
    others = bytes({*range(256)} - {*marks})
    all_plain, each_plain = (_plain_numbers(m, notation.decimal.encode()) for m in (marks, b"\n"))

    def read(block: bytes | bytearray) -> Read | None:
        block, rows = bytes(block), block.count(b"\n")
        if len(numeric) == len(is_text) and (found := all_plain(block)) is not None:
            columns = found.reshape(-1, width).T
            return rows, [columns[j] for j in numeric], {}
        if block.translate(None, others) != rows * marks:
            return None
        try:
            cells = str(block[:-1], "utf-8").replace("\n", delimiter).split(delimiter)
        except UnicodeDecodeError:
            return None
        texts = {j: ([*map(str.strip, cells[j::width])], EACH) for j in is_text if is_text[j]}
        one_by_one = itertools.chain.from_iterable(cells[j::width] for j in numeric)
        if (found := each_plain("\n".join([*one_by_one, ""]).encode())) is not None:
            return rows, [*found.reshape(-1, rows)], texts
        numbers = [notation.floats([*map(str.strip, cells[j::width])]) for j in numeric]
        return rows, numbers, texts

    return read


def _plain_numbers(marks: bytes, decimal: bytes) -> Callable[[bytes], NDArray[np.float64] | None]:
    """Reads rows of plain numbers with these marks behind them; None: there is something else."""
    from pydantic_core import from_json

    points = np.frombuffer(decimal.join([b"", *map(bytes, zip(marks))]), np.uint8)
    table = bytes.maketrans(marks + decimal, b"," * len(marks) + b".")

    def as_json(block: bytes) -> NDArray[np.float64] | None:
        found = block.translate(None, b"0123456789+-eE" + decimal)
        cells = block[:-1].translate(table)
        if not cells or found != len(found) // len(marks) * marks:
            return None
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
        if len(at) % len(points) or (characters[at].reshape(-1, len(points)) != points).any():
            return None
        whole = np.fromstring(block[:-1].translate(table, decimal), np.int64, sep=",")
        ends = at[1::2]
        places = ends - at[::2] - 1
        if len(whole) != len(places) or places.max() >= len(POWERS):
            return None
        if whole.max() >= 2**53 or whole.min() <= -(2**53):
            return None
        starts = np.append(0, ends[:-1] + 1)
        if (characters[starts[whole == 0]] == ord("-")).any():
            return None  # what has no digits, and what is -0.0
        return whole / POWERS[places]

    def read(block: bytes) -> NDArray[np.float64] | None:
        for attempt in (as_integers, as_json):
            with contextlib.suppress(ValueError, OverflowError, DeprecationWarning):
                if (found := attempt(block)) is not None:
                    return found
        return None

    return read


def by_pyarrow(
    is_text: Mapping[int, bool], width: int, delimiter: str, notation: Notation
) -> Reader | None:
    """Reads numbers and texts; None without pyarrow."""
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
        arrow.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
        arrow.ConvertOptions(
            column_types=types, include_columns=[*types], decimal_point=notation.decimal,
            null_values=[*_NULLS, *notation.na_values],
        ),
    )  # fmt: skip

    def read(block: bytes | bytearray) -> Read | None:
        if block.startswith(BOM_UTF8):  # which it leaves out
            return None
        try:
            if not block.isascii():
                str(block, "utf-8")
            table = arrow.read_csv(pyarrow.BufferReader(block), *options)
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            return None
        numbers, texts, empty = list[Array](), dict[int, Cells](), True
        for j, column in zip(is_text, table.columns, strict=True):
            (cells,) = column.chunks
            if is_text[j]:
                different = [text.strip() for text in cells.dictionary.to_pylist()]
                texts[j] = different, np.from_dlpack(cells.indices)
                continue
            numbers.append(np.from_dlpack(cells.fill_null(np.nan) if cells.null_count else cells))
            if np.isfinite(numbers[-1]).sum() + cells.null_count != len(cells):
                return None
            empty &= cells.null_count > 0
        if empty and (b"\n\n" in block or block.startswith(b"\n")):
            return None  # a blank line, which is to it a row of empty cells
        return table.num_rows, numbers, texts

    return read
