"""Orders of many rows, which are not tables: the row at a position is computed.

A permutation of n rows is a Feistel network over pairs (l, r), l in 0..a-1 and r in 0..b-1, a * b
just above n: round by round a hash of one half is added to the other, which is undone by
subtracting it, so no two positions get one row (Black and Rogaway, "Ciphers with arbitrary finite
domains", 2002). A result beyond the rows goes through once more ("cycle walking"); because a * b is
at most 2 * sqrt(n) + 2 above n, hardly any does.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...random import brief_generator

TABLE = 2**20
"""Rows up to which an order is a table, NumPy's permutation: 8 MB, and 40 ms an epoch."""
CHUNK = 2**14  # positions computed at once: a call's overhead is small, and the cache holds them

_HALF = np.uint64(32)
_FACTORS = np.uint64(0xD2B74407B1CE6E93), np.uint64(0xCA5A826395121157)  # of NumPy's Philox
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio


class Order(abc.ABC):
    """Rows by position, read like an index array: `order[10:20]`, `order[positions]`.

    Both give an integer array with a row for each position. Raises IndexError for a position
    outside of 0 to len(order) - 1.
    """

    def __init__(self, rows: int) -> None:
        self._length = rows

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice | NDArray[Any]) -> NDArray[np.intp]:
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length))
        elif positions.dtype.kind not in "iu":
            raise IndexError(f"positions must be integers, got an array of {positions.dtype}")
        elif positions.size and not 0 <= positions.min() <= positions.max() < self._length:
            raise IndexError(
                f"positions from {positions.min()} to {positions.max()} of an order of "
                f"{self._length} rows, which has 0 to {self._length - 1}"
            )
        flat = positions.astype(np.uint64).reshape(-1)
        for start in range(0, len(flat), CHUNK):
            flat[start : start + CHUNK] = self._rows_at(flat[start : start + CHUNK])
        return flat.view(np.int64).astype(np.intp, copy=False).reshape(positions.shape)

    @abc.abstractmethod
    def _rows_at(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The rows at a few of the positions."""


class Permutation(Order):
    """A permutation of 0 to `rows` - 1 that depends on the arguments alone.

    Args:
        rows: their number, below 2**63.
        seed, purpose, *indices: as of `microtrain.random.generator`.

    Example:
        >>> order = Permutation(10**12, 0, "shuffle", 7)
        >>> order[:4]
        array([...])
    """

    def __init__(self, rows: int, seed: int, purpose: str, *indices: int) -> None:
        super().__init__(rows)
        # An even `a`: with two odd halves every round, and so the whole, is an even permutation.
        a = max(2, math.isqrt(max(rows - 1, 0)) + 1)
        a += a % 2
        self._halves = np.uint64(a), np.uint64(-(-rows // a))
        self._rows = np.uint64(rows)
        # A round on small halves mixes little: 8 leave traces among the orders of five rows.
        rounds = 8 if rows >= 256 else 16
        bits: Any = brief_generator(seed, purpose, *indices).bit_generator
        self._keys = bits.random_raw(rounds)

    def _rows_at(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return self.among(positions, None)

    def among(
        self, positions: NDArray[np.uint64], family: NDArray[np.uint64] | None
    ) -> NDArray[np.uint64]:
        """The rows at positions of other permutations of as many rows, one for each number.

        Args:
            positions: uint64, of one dimension; not checked.
            family: for each position the number of its permutation; None: this one.
        """
        if family is not None:
            family = family * _SPREAD
            family ^= family >> _HALF
        rows = self._once(positions, family)
        while len(beyond := np.flatnonzero(rows >= self._rows)):
            rows[beyond] = self._once(rows[beyond], None if family is None else family[beyond])
        return rows

    def _once(
        self, positions: NDArray[np.uint64], family: NDArray[np.uint64] | None
    ) -> NDArray[np.uint64]:
        left, right = np.divmod(positions, self._halves[1])
        size, other = self._halves
        mixed, shifted = np.empty_like(left), np.empty_like(left)
        for key in self._keys:
            np.add(right, key, out=mixed)
            if family is not None:
                mixed += family
            np.multiply(mixed, _FACTORS[0], out=mixed)
            np.right_shift(mixed, _HALF, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _FACTORS[1], out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)
            np.multiply(mixed, size, out=mixed)  # 32 random bits become a number below `size`
            np.right_shift(mixed, _HALF, out=mixed)
            left += mixed
            np.subtract(left, size, out=mixed)  # wraps to a large number where left is below size
            np.minimum(left, mixed, out=left)
            left, right, size, other = right, left, other, size
        left *= other
        left += right
        return left


class Ahead:
    """One rank's rows of an `Order`, worked out for many batches at once and read one by one.

    Args:
        order: of the epoch.
        batch_size: rows of a global batch.
        cut: first and last-plus-one row of each slice of a global batch that is this rank's.
        numbers: makes what is read of what `order` gives; None: that is it.
    """

    def __init__(
        self,
        order: Order,
        batch_size: int,
        cut: Sequence[tuple[int, int]],
        numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        self._numbers = numbers or np.asarray
        self._order, self._batch_size = order, batch_size
        self._whole = len(order) // batch_size
        self._column, width = {}, 0
        for first, last in cut:
            self._column[first] = width
            width += last - first
        self._within = np.concatenate([np.arange(first, last) for first, last in cut])
        self._count = max(1, CHUNK // max(width, 1))
        self._begin, self._rows = 0, np.empty((0, width), np.intp)

    def __getitem__(self, rows: slice) -> NDArray[np.intp]:
        number, first = divmod(rows.start, self._batch_size)
        # An empty slice may begin behind its batch; the last batch is smaller and cut otherwise.
        if rows.start == rows.stop or number >= self._whole:
            return self._numbers(self._order[rows])
        if not 0 <= number - self._begin < len(self._rows):
            batches = np.arange(number, min(number + self._count, self._whole))
            positions = batches[:, None] * self._batch_size + self._within
            self._rows = self._numbers(self._order[positions])
            self._begin = number
        column = self._column[first]
        return self._rows[number - self._begin, column : column + rows.stop - rows.start]
