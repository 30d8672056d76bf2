"""Large CSV files, block by block: by pyarrow, or numbers by NumPy; what is not plain is left."""

from __future__ import annotations

import io
import itertools
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..tables.notation import NO_VALUE, Notation

__all__ = ["EACH", "Read", "blocks", "by_numpy", "by_pyarrow"]

Array = NDArray[Any]
Cells = tuple[list[str], Any]  # some texts, and for each row the index of its own
EACH = slice(None)  # where each row has a text of its own
# How many rows, and their numbers and texts; None: this column is not of numbers.
Read = tuple[int, Sequence[Array | None], dict[int, Cells]]
Reader = Callable[[bytes | bytearray], Read | None]
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


def by_numpy(
    is_text: Mapping[int, bool], width: int, delimiter: str, notation: Notation
) -> Reader | None:
    """Reads plain numbers; None where there are texts."""
    if any(is_text.values()):
        return None

    def read(block: bytes | bytearray) -> Read | None:
        if notation.decimal == ",":
            if b"." in block:
                return None
            block = block.replace(b",", b".")
        try:
            lines = io.StringIO(str(block, "ascii"))
            found = np.loadtxt(lines, delimiter=delimiter, comments=None, ndmin=2)
        except ValueError:
            return None
        if found.shape != (block.count(b"\n"), width) or not np.isfinite(found).all():
            return None
        return len(found), [found[:, j] for j in is_text], {}

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
