"""Large CSV files, block by block: by pyarrow, by NumPy, as JSON; what is not plain is left."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..tables.frame import NO_VALUE

__all__ = ["blocks", "by_numpy", "by_pyarrow"]

Array = NDArray[Any]
Reader = Callable[[bytes], Mapping[int, Array] | None]
POWERS = 10.0 ** np.arange(23)  # which are exact
_BOTH_CASES = [itertools.product(*({x, x.upper()} for x in text)) for text in NO_VALUE]
_NULLS = [*map("".join, itertools.chain(*_BOTH_CASES))]


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
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


def by_numpy(width: int, delimiter: bytes, decimal: bytes) -> Reader:
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


def by_pyarrow(
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
