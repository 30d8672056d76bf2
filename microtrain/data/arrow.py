"""Blocks of a CSV file that hold plain numbers and texts, read by pyarrow where it is installed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrow", "Columns"]

Floats = NDArray[np.float64]


class Columns:
    """Rows that pyarrow has read."""

    def __init__(self, arrays: list[Floats], texts: dict[int, Any], rows: int) -> None:
        self._arrays, self._texts, self._rows = arrays, texts, rows

    def __len__(self) -> int:
        return self._rows

    def numbers(self, columns: Sequence[int], out: Floats) -> set[int]:
        """As those of `Cut`; no cell is anything else."""
        for i, array in enumerate(self._arrays):
            out[i] = array
        return set()

    def raw(self, j: int) -> Iterator[str]:
        """The cells of a column of texts."""
        different = self._texts[j].dictionary.to_pylist()
        return map(different.__getitem__, _values(self._texts[j].indices, np.int32).tolist())


class Arrow:
    """Reads blocks of numbers and unquoted texts twice as fast as NumPy, and nothing else."""

    def __init__(
        self, pyarrow: Any, width: int, numeric: list[int], texts: list[int], delimiter: str
    ) -> None:
        names, self._delimiter = [str(j) for j in range(width)], delimiter.encode()
        self._buffer, self._read = pyarrow.BufferReader, pyarrow.csv.read_csv
        self._error, options = pyarrow.ArrowInvalid, pyarrow.csv
        self._numeric, self._texts = numeric, texts
        self.release = pyarrow.default_memory_pool().release_unused  # once all is read
        types = {names[j]: pyarrow.float64() for j in numeric}
        coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types |= {names[j]: coded for j in texts}
        self._reading = options.ReadOptions(column_names=names)
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

    def block(self, data: bytes, start: int, end: int) -> Columns | None:
        """Whole rows; None: not surely such as Python's reader would read them."""
        half = csv.field_size_limit() // 2
        windows = (data[i : i + half] for i in range(start, end - half, half))
        short = all(b"\n" in window or self._delimiter in window for window in windows)
        blank = data.startswith(b"\n", start) or b"\n\n" in data  # to pyarrow rows of empty cells
        if blank or not short or not data.isascii() or b'"' in data or b"\r" in data:
            return None
        rows = self._buffer(memoryview(data)[start:end])
        self._reading.block_size = end - start + 1
        try:
            table = self._read(rows, self._reading, self._parsing, self._converting)
        except self._error:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        arrays = []
        for column in columns[: len(self._numeric)]:
            array = _values(column, np.float64)
            if column.null_count:
                bits = np.frombuffer(column.buffers()[0], np.uint8)
                there = np.unpackbits(bits, bitorder="little")[: len(array)]
                array = np.where(there, array, np.nan)
            if np.isfinite(array).sum() + column.null_count != len(array):
                return None
            arrays.append(array)
        texts = dict(zip(self._texts, columns[len(arrays) :], strict=True))
        return Columns(arrays, texts, table.num_rows)


def _values(array: Any, dtype: type) -> NDArray[Any]:
    """What pyarrow holds; its own to_numpy() imports pandas."""
    return np.frombuffer(array.buffers()[1], dtype)[: len(array)]
