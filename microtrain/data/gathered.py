"""The rows of many batches are read at once: a call for each batch would cost as much as the rows.

What is mapped from files is nearly as fast as an array in memory then. What is stored in chunks has
a chunk decoded once for all batches of a window, or of 32 MB, that have rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .order import CHUNK

__all__ = ["OF_CHUNKS", "OF_MAPS", "OF_WINDOW", "Gathered"]

Array = NDArray[Any]

OF_MAPS = 2**19  # bytes that are read at once: so many are reused, more are given back
OF_CHUNKS = 32 * 2**20  # the same where a row costs the chunk that it is in
OF_WINDOW = 64 * 2**20  # of a window of blocks, which is read whole up to this


class Gathered:
    """One rank's rows of an epoch, read many at once and handed out slice by slice.

    Of an order without windows the first batch is read alone, then two, then four: the first comes
    at once, and a short run reads little that it does not use.

    Args:
        read: gives the arrays for row numbers.
        order: the rows by position, read by slices and index arrays.
        length: of the positions that are in batches.
        batch_size: rows of a global batch.
        cuts: by the rows of a global batch, the first and last-plus-one of each slice of it that
            is this rank's.
        most: rows that are read at once, if they are more than those of a batch.
        window: positions whose rows are read together, up to `most`; None: there are no windows.
        copy: hand out copies, so that a batch in use does not keep all that was read with it.
        numbers: makes what `read` takes of what `order` gives, of many rows at once; None: that is
            it.
    """

    def __init__(
        self,
        read: Callable[[NDArray[np.intp]], list[Array]],
        order: Any,
        length: int,
        batch_size: int,
        cuts: Mapping[int, Sequence[tuple[int, int, int]]],
        most: int,
        window: int | None,
        copy: bool,
        numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        self._read, self._order, self._length = read, order, length
        self._batch_size, self._cuts, self._window, self._copy = batch_size, cuts, window, copy
        self._numbers = numbers
        self._width = max(1, *(sum(b - a for a, b, _ in cut) for cut in cuts.values()))
        self._most = max(1, most // self._width)  # batches
        self._batches = 1  # that are read next
        # Row numbers are worked out for more batches than are read: up to `_end`, a position.
        # `_at` says where the slice that begins at a position is among them.
        self._rows: NDArray[np.intp] = np.empty(0, np.intp)
        self._at: dict[int, int] = {}
        self._end = 0
        self._arrays: list[Array] = []  # the rows from number `_begin` to `_stop` among them
        self._begin = self._stop = 0

    def __call__(self, positions: slice) -> list[Array]:
        """The rows at positions, a slice that `cuts` gives, each after the one before."""
        first, last = positions.start, positions.stop
        if first == last:
            return self._read(np.empty(0, np.intp))
        if first not in self._at:
            self._plan(first)
        at = self._at[first]
        if at >= self._stop:
            self._gather(at)
        begin, stop = at - self._begin, at - self._begin + min(last, self._end) - first
        found = [array[begin:stop] for array in self._arrays]
        if last > self._end:  # the rest of the batch is in the next window
            rest = self(slice(self._end, last))
            return [np.concatenate(pair) for pair in zip(found, rest, strict=True)]
        return [array.copy() for array in found] if self._copy else found

    def _plan(self, first: int) -> None:
        """Work out the row numbers from a position on."""
        size, length = self._batch_size, self._length
        batches = max(self._most, CHUNK // self._width)
        end = min((first // size + batches) * size, length)
        if self._window is not None:
            end = min(end, (first // self._window + 1) * self._window)
        self._at, spans, here = {}, [], 0
        for start in range(first // size * size, end, size):
            for begin, stop, _ in self._cuts[min(size, length - start)]:
                low, high = max(start + begin, first), min(start + stop, end)
                if low < high:
                    self._at[low] = here
                    here += high - low
                    spans.append((low, high))
        every: Any = slice(first, end)
        if here < end - first:
            every = np.concatenate([np.arange(*span) for span in spans])
        rows = self._order[every]
        self._rows = rows if self._numbers is None else self._numbers(rows)
        self._end, self._begin, self._stop = end, 0, 0

    def _gather(self, at: int) -> None:
        """Read the rows from a number among those worked out on."""
        stop = len(self._rows)
        if self._window is None:  # whole batches, of which each begins at a multiple
            stop = min(stop, at + self._batches * self._width)
            self._batches = min(2 * self._batches, self._most)
        self._arrays = []  # or there would be twice as many
        self._arrays = self._read(self._rows[at:stop])
        self._begin, self._stop = at, stop
