"""Which rows a rank gets, as arithmetic: the order of an epoch and the cut over ranks.

Batches are defined globally, before anyone asks how many ranks there are; ranks, micro-batches and
shards are contiguous slices of them. That is why a run means the same at every number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...random import brief_generator
from .shuffle import CHUNK, TABLE, Order, Permutation

__all__ = ["Ahead", "contiguous_slice", "contiguous_slices", "epoch_order", "order_name"]


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[Any] | Order:
    """The order of `rows` rows in an epoch: a permutation that depends on the arguments alone.

    An integer array up to 2**20 rows. Above that, an object that is read like one, `order[10:20]`
    or `order[positions]`, and needs no memory.

    Example:
        >>> epoch_order(10**9, seed=0, epoch=3)[:4]
        array([530590831, 486999090, 912237197, 629108231])
    """
    if rows > TABLE:
        return Permutation(rows, seed, "shuffle", epoch)
    return brief_generator(seed, "shuffle", epoch).permutation(rows)


def order_name(rows: int, shuffle: bool) -> str:
    """What a checkpoint says of the order: its number goes up where the same arguments give other
    rows than before.
    """
    return "unshuffled" if not shuffle else "table 1" if rows <= TABLE else "keyed 1"


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
            self._rows = self._numbers(
                self._order[batches[:, None] * self._batch_size + self._within]
            )
            self._begin = number
        column = self._column[first]
        return self._rows[number - self._begin, column : column + rows.stop - rows.start]


def contiguous_slice(rows: int, parts: int, part: int) -> tuple[int, int]:
    """First and last-plus-one row of slice number `part` of `rows` rows cut into `parts`.

    Sizes differ by at most one, the larger come first, and slices beyond the rows are empty.

    Example:
        >>> [contiguous_slice(7, 3, part) for part in range(3)]
        [(0, 3), (3, 5), (5, 7)]
    """
    size, larger = divmod(rows, parts)
    start = part * size + min(part, larger)
    return start, start + size + (part < larger)


def contiguous_slices(rows: int, parts: int) -> list[tuple[int, int]]:
    """All `parts` slices of `contiguous_slice`, in order; together they are range(rows)."""
    return [contiguous_slice(rows, parts, part) for part in range(parts)]
