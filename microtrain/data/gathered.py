"""The rows of many batches are read at once: a call for each batch would cost as much as the rows.

What is mapped from files is nearly as fast as an array in memory then. What is stored in chunks has
a chunk decoded once for all batches of a window, or of 32 MB, that have rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .order import CHUNK
from .read_ahead import ReadAhead

__all__ = ["OF_CHUNKS", "OF_MAPS", "OF_WINDOW", "Gathered"]

Array = NDArray[Any]

OF_MAPS = 2**19  # bytes that are read at once: so many are reused, more are given back
OF_CHUNKS = 32 * 2**20  # the same where a row costs the chunk that it is in
OF_WINDOW = 64 * 2**20  # of a window of blocks, which is read whole up to this


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows that were read at once.

    Attributes:
        at: by the position that a slice begins with, its number among the rows that were planned.
        begin, stop: which of these are in `arrays`.
        end: the position that the plan ends at.
    """

    at: dict[int, int]
    begin: int
    stop: int
    end: int
    arrays: list[Array]

    def __contains__(self, position: int) -> bool:
        return self.begin <= self.at.get(position, -1) < self.stop


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
        chunked: a thread reads what comes next meanwhile, and copies are handed out, so that a
            batch in use does not keep all that was read with it.
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
        chunked: bool,
        numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        self._read, self._order, self._length = read, order, length
        self._batch_size, self._cuts, self._window, self._copy = batch_size, cuts, window, chunked
        self._numbers = numbers
        self._width = max(1, *(sum(b - a for a, b, _ in cut) for cut in cuts.values()))
        self._most = max(1, most // self._width)  # batches
        self._blocks: Iterator[_Block] = iter(())
        self._block: _Block | None = None
        self._ahead = chunked

    def __call__(self, positions: slice) -> list[Array]:
        """The rows at positions, a slice that `cuts` gives, each after the one before."""
        first, last = positions.start, positions.stop
        if first == last:
            return self._read(np.empty(0, np.intp))
        block = self._block_with(first)
        start, end = block.at[first] - block.begin, block.end
        found = [array[start : start + min(last, end) - first] for array in block.arrays]
        if last > end:  # the rest of the batch is in the next window
            rest = self(slice(end, last))
            return [np.concatenate(pair) for pair in zip(found, rest, strict=True)]
        return [array.copy() for array in found] if self._copy else found

    def _block_with(self, first: int) -> _Block:
        """The block that has a position: this one or the next, or others begin with it."""
        if self._block is not None and first in self._block:
            return self._block
        self._block = None  # or there would be one more
        block = next(self._blocks, None)
        if block is None or first not in block:
            self.close()
            self._blocks = self._in_blocks(first)
            if self._ahead:
                self._blocks = ReadAhead(self._blocks)
            block = next(self._blocks)
        self._block = block
        return block

    def close(self) -> None:
        """End the thread that reads ahead, if there is one."""
        if isinstance(self._blocks, ReadAhead):
            self._blocks.close()

    def _in_blocks(self, first: int) -> Iterator[_Block]:
        """All blocks from a position on."""
        batches = 1  # that are read next
        while first < self._length:
            at, rows, end = self._planned(first)
            begin = 0
            while begin < len(rows):
                stop = len(rows)
                if self._window is None:  # whole batches, of which each begins at a multiple
                    stop = min(stop, begin + batches * self._width)
                    batches = min(2 * batches, self._most)
                yield _Block(at, begin, stop, end, self._read(rows[begin:stop]))
                begin = stop
            first = end

    def _planned(self, first: int) -> tuple[dict[int, int], Any, int]:
        """Row numbers from a position on, where slices begin among them, and the position after."""
        size, length = self._batch_size, self._length
        batches = max(self._most, CHUNK // self._width)
        end = min((first // size + batches) * size, length)
        if self._window is not None:
            end = min(end, (first // self._window + 1) * self._window)
        at, spans, here = dict[int, int](), [], 0
        for start in range(first // size * size, end, size):
            for begin, stop, _ in self._cuts[min(size, length - start)]:
                low, high = max(start + begin, first), min(start + stop, end)
                if low < high:
                    at[low] = here
                    here += high - low
                    spans.append((low, high))
        every: Any = slice(first, end)
        if here < end - first:
            # None where a small window is all of other ranks.
            every = np.concatenate([np.arange(*span) for span in spans or [(0, 0)]])
        rows = self._order[every]
        return at, rows if self._numbers is None else self._numbers(rows), end
