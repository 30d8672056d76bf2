"""Blocks of a CSV file that hold plain numbers and texts, read by pyarrow where it is installed."""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrow", "Columns"]

Floats = NDArray[np.float64]


@dataclass
class Columns:
    """Rows that pyarrow has read, from `length` bytes."""

    arrays: list[Floats]
    texts: dict[int, Any]
    rows: int
    length: int

    def __len__(self) -> int:
        return self.rows

    def numbers(self, columns: Sequence[int], out: Floats) -> set[int]:
        """As those of `Cut`; no cell is anything else."""
        for i, array in enumerate(self.arrays):
            out[i] = array
        return set()

    def raw(self, j: int) -> tuple[list[str], NDArray[np.int32]]:
        """The different cells of a column of texts, and which of them stands in each row."""
        return self.texts[j].dictionary.to_pylist(), _values(self.texts[j].indices, np.int32)


class Arrow:
    """Reads blocks of numbers and unquoted texts faster than NumPy, and nothing else."""

    def __init__(
        self, pyarrow: Any, width: int, numeric: list[int], texts: list[int], delimiter: str
    ) -> None:
        names, self._delimiter = [str(j) for j in range(width)], delimiter.encode()
        self._reader, self._read = pyarrow.BufferReader, pyarrow.csv.read_csv
        self._error, options = pyarrow.ArrowInvalid, pyarrow.csv
        self._numeric, self._texts = numeric, texts
        self._all = len(numeric) + len(texts) == width
        self._buffer = bytearray()  # one for all blocks, for new memory costs more than a copy
        self.release = pyarrow.default_memory_pool().release_unused  # once all is read
        types = {names[j]: pyarrow.float64() for j in numeric}
        coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types |= {names[j]: coded for j in texts}
        self._reading = options.ReadOptions(column_names=names, use_threads=False)
        self._parsing = options.ParseOptions(
            delimiter=delimiter, quote_char=False, ignore_empty_lines=False
        )
        self._converting = options.ConvertOptions(
            column_types=types, include_columns=[*types], null_values=[""]
        )

    @classmethod
    def of(
        cls, width: int, numeric: list[int], texts: list[int], delimiter: str, decimal: str
    ) -> Arrow | None:
        """None without pyarrow, and where it would take other numbers or blank lines than we do."""
        if decimal != "." or width == 1 or delimiter not in ",;\t|" or not (numeric or texts):
            return None
        try:
            import pyarrow
            import pyarrow.csv
        except ImportError:
            return None
        return cls(pyarrow, width, numeric, texts, delimiter)

    def block(self, file: Any, size: int) -> Columns | None:
        """Whole rows from where the file stands; None: not surely such as Python's reader finds."""
        if len(self._buffer) != size:
            self._buffer = bytearray(size)
        data = self._buffer
        end = data.rfind(b"\n", 0, file.readinto(data)) + 1
        half = csv.field_size_limit() // 2
        starts = range(0, end - half, half)
        borders = b"\n", self._delimiter
        short = all(any(data.find(x, i, i + half) >= 0 for x in borders) for i in starts)
        odd = any(data.find(x, 0, end) >= 0 for x in (b'"', b"\r"))
        if not end or not short or odd or data.startswith(BOM_UTF8):  # which pyarrow leaves out
            return None
        self._reading.block_size = end + 1
        try:
            rows = memoryview(data)[:end]
            if not self._all:  # pyarrow looks at those alone that it reads
                str(rows, "utf-8")
            table = self._read(self._reader(rows), self._reading, self._parsing, self._converting)
        except (self._error, UnicodeDecodeError):
            return None
        columns = [column.chunk(0) for column in table.columns]
        numbers, texts = columns[: len(self._numeric)], columns[len(self._numeric) :]
        if all(column.null_count for column in numbers) and (
            data.startswith(b"\n") or data.find(b"\n\n", 0, end) >= 0
        ):  # a blank line is to pyarrow a row of empty cells
            return None
        arrays = []
        for column in numbers:
            array = _values(column, np.float64)
            if column.null_count:
                bits = np.frombuffer(column.buffers()[0], np.uint8)
                there = np.unpackbits(bits, bitorder="little")[: len(array)]
                array = np.where(there, array, np.nan)
            if np.count_nonzero(np.isfinite(array)) + column.null_count != len(array):
                return None
            arrays.append(array)
        return Columns(arrays, dict(zip(self._texts, texts, strict=True)), table.num_rows, end)


def _values(array: Any, dtype: type) -> NDArray[Any]:
    """What pyarrow holds; its own to_numpy() imports pandas."""
    return np.frombuffer(array.buffers()[1], dtype)[: len(array)]
