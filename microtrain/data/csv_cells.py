"""The cells in a block of a CSV file: as numbers, NaN for no value, or as texts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import number
from .columns import NO_VALUE
from .decimals import decimals

__all__ = ["Cells", "Cut", "Texts"]

Array = NDArray[Any]
Floats = NDArray[np.float64]
FEW = 10_000  # different texts of a column that are kept once


class Cut:
    """Rows that the fast reader has cut into cells."""

    def __init__(
        self, data: bytes, at: tuple[Array, Array, Array], quoted: bool, decimal: str
    ) -> None:
        self._data, self._at, self._quoted, self._decimal = data, at, quoted, decimal

    def __len__(self) -> int:
        return len(self._at[0])

    def raw(self, j: int) -> tuple[Iterator[bytes], None]:
        """The cells of a column as they stand in the file, each for a row."""
        starts, _, ends = (array[:, j].tolist() for array in self._at)
        return (self._data[start:end] for start, end in zip(starts, ends, strict=True)), None

    def numbers(self, columns: Sequence[int], out: Floats) -> set[int]:
        """Cells as float64 into `out` of shape (columns, rows), NaN for no value.

        Returns which of `columns` have one that is neither.
        """
        every = len(columns) == self._at[0].shape[1]
        starts, points, ends = (
            (array if every else array[:, columns]).ravel() for array in self._at
        )
        if self._quoted:
            quoted = np.frombuffer(self._data, np.uint8)[starts] == ord('"')
            starts, ends = starts + quoted, ends - quoted
            points = np.minimum(points, ends)
        values, fine = decimals(self._data, starts, points, ends)
        empty = starts == ends
        values[empty] = math.nan
        odd = np.flatnonzero(~(fine | empty))
        pairs = zip(starts[odd].tolist(), ends[odd].tolist(), strict=True)
        texts = [self._data[start:end].decode().strip() for start, end in pairs]
        bad = set[int]()
        found = _floats(texts, self._decimal)
        if found is None:
            each = [_value(text, self._decimal) for text in texts]
            bad = {i % len(columns) for i, x in zip(odd.tolist(), each, strict=True) if x is None}
            found = np.array(each, np.float64)  # of None NaN
        values[odd] = found
        out[:] = values.reshape(len(self), len(columns)).T
        return bad


class Cells:
    """Rows from Python's reader."""

    def __init__(self, rows: list[list[str]], decimal: str) -> None:
        self._columns, self._decimal = [*zip(*rows, strict=True)], decimal

    def __len__(self) -> int:
        return len(self._columns[0])

    def raw(self, j: int) -> tuple[Sequence[str], None]:
        """As that of `Cut`."""
        return self._columns[j], None

    def numbers(self, columns: Sequence[int], out: Floats) -> set[int]:
        """As those of `Cut`."""
        bad = set[int]()
        for i, j in enumerate(columns):
            found = _floats([cell.strip() for cell in self._columns[j]], self._decimal)
            if found is None:
                bad.add(i)
            else:
                out[i] = found
        return bad


class Texts(dict[bytes | str, int]):
    """A column of texts: which of the different ones stands in each row.

    Equal ones are kept once as long as there are few.
    """

    def __init__(self) -> None:
        super().__init__()
        self._different, self._places = list[str](), dict[str, int]()
        self._which = [np.empty(0, np.int32)]

    def coded(self) -> tuple[Array, NDArray[np.int32]]:
        """The texts, in the order in which they come, and which of them stands in each row."""
        self._which = [np.concatenate(self._which)]
        return np.array(self._different, object), self._which[0]

    def cells(self) -> Array:
        """A text for each row."""
        different, which = self.coded()
        return different[which]

    def add(self, raw: Iterable[bytes | str], which: NDArray[np.int32] | None = None) -> None:
        """More cells, which[i] of `raw` in row i."""
        found = np.fromiter(map(self.__getitem__, raw), np.int32)
        self._which.append(found if which is None else found[which])

    def __missing__(self, raw: bytes | str) -> int:
        cell = raw
        if isinstance(cell, bytes):
            if cell[:1] == b'"':
                cell = cell[1:-1].replace(b'""', b'"')
            cell = cell.decode()
        text = cell.strip()
        place = self._places.get(text, len(self._different))
        if place == len(self._different):
            self._different.append(text)
        if len(self) < FEW:
            self[raw] = self._places[text] = place
        return place


def _floats(texts: Sequence[str], decimal: str) -> Floats | None:
    """Numbers, NaN for no value; None where a text is neither."""
    joined = "".join(texts)
    if decimal == "." and joined.isascii() and "_" not in joined:
        with contextlib.suppress(ValueError):
            found = np.array([*map(float, texts)])
            if np.isfinite(found).all():
                return found
    values = [_value(text, decimal) for text in texts]
    return None if None in values else np.array(values, np.float64)


def _value(text: str, decimal: str) -> float | None:
    """A finite number, NaN for a text that stands for no value, None for all else."""
    value = number(text, decimal)
    if value is not None and math.isfinite(value):
        return value
    return math.nan if text.casefold() in NO_VALUE else None
