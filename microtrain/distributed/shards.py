"""The same bits at every number of ranks: S fixed shards, added up in one fixed binary tree.

Floating-point sums depend on their order, and a product of matrices on how many rows it has. So a
run whose bits must not depend on the number of ranks may do neither differently: every global batch
is cut into S shards, each is a pass of its own on whichever rank has it, and the shards' gradients
are added as a tournament: neighbors in pairs, their sums in pairs, a last one without a partner
goes on alone. A rank holds consecutive shards, with 8 over 3 ranks 3, 3 and 2; it adds up those
whose partner it has, too, and what is left is added on all ranks, element by element in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..backend import XP, Staging, to_host
from ..errors import ConfigError, need
from ..nn.module import Module
from ..optim.flat import FlatStorage
from .communicator import Array, Communicator
from .footer import Summed, pack
from .reducer import Reducer
from .step_counts import Passes

WHOLE = 2**16  # bytes received up to which every rank adds up everything, and not a part of it

Addition = tuple[int, int]  # the row that another is added to, and that other
Node = tuple[int, int]  # of the tree: how many additions are below it, and its place among those


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


def local_shards(shards: int, comm: Communicator) -> range:
    """Those of this rank. Raises ConfigError where there are more ranks than shards."""
    text = f"with {shards} shards needs at most {shards} ranks, got {{}}; start fewer, or set "
    text += f"distributed.shards to at least {comm.size} (different shards give different bits)"
    need(shards >= comm.size, "reproducible: world", text, comm.size, error=ConfigError)
    return range(*contiguous_slice(shards, comm.size, comm.rank))


def additions(rows: dict[Node, int], shards: int) -> Iterator[Addition]:
    """Level by level what is added up of the sums that are there, one on each row.

    `rows` has then what is left of them.
    """
    level = 0
    while shards > 1:
        for node in [node for node in rows if node[0] == level and not node[1] % 2]:
            other = level, node[1] + 1
            if other in rows or other[1] == shards:  # the last may have no partner
                one = rows[level + 1, node[1] // 2] = rows.pop(node)
                if other in rows:
                    yield one, rows.pop(other)
        level, shards = level + 1, -(-shards // 2)


@lru_cache(64)
def within(rank: int, shards: int, size: int) -> tuple[list[Addition], dict[Node, int]]:
    """What a rank adds up alone, and the rows of what it has then, in the order of the shards."""
    rows = {
        (0, shard): row for row, shard in enumerate(range(*contiguous_slice(shards, size, rank)))
    }
    pairs = [*additions(rows, shards)]
    return pairs, dict(sorted(rows.items(), key=lambda item: item[1]))


@lru_cache(16)
def between(shards: int, size: int) -> tuple[int, list[Addition]]:
    """How many rows a rank sends, and what is added up of all of them."""
    left = [within(rank, shards, size)[1] for rank in range(size)]
    most = max(map(len, left))
    rows = {node: rank * most + i for rank, own in enumerate(left) for i, node in enumerate(own)}
    return most, [*additions(rows, shards)]


def tree_sum(comm: Communicator, arrays: list[Array], shards: int) -> Array:
    """The sum of all ranks' shards, in the fixed order; the same bits at every number of ranks.

    Collective. `arrays`: those of this rank's shards, one-dimensional, of one size and dtype;
    overwritten.
    """
    pairs, left = within(comm.rank, shards, comm.size)
    for one, other in pairs:
        arrays[one] += arrays[other]
    if comm.size == 1:
        return arrays[0]
    (size,), dtype = arrays[0].shape, arrays[0].dtype
    rows, pairs = between(shards, comm.size)
    # Every rank adds up its part of the elements; what is small is not worth being parted.
    parts = 1 if comm.size * rows * size * dtype.itemsize <= WHOLE else comm.size
    part = -(-size // parts)
    mine = np.zeros((rows, parts * part), dtype)
    for row, place in zip(mine, left.values(), strict=False):
        row[:size] = arrays[place]
    sent = np.ascontiguousarray(mine.reshape(rows, parts, part).swapaxes(0, 1))
    found = comm.all_gather(sent[0]) if parts == 1 else comm.all_to_all(sent)
    sums = found.reshape(comm.size * rows, part)
    for one, other in pairs:
        sums[one] += sums[other]
    return sums[0] if parts == 1 else comm.all_gather(sums[0]).reshape(-1)[:size]


class Shards(Reducer):
    """The passes of a step in world mode: each is one shard's, and what it leaves is kept apart.

    Within one step the passes are micro-batch by micro-batch, and in each shard by shard. Kept for
    every shard: its gradients with the footer behind them, added up over its micro-batches;
    and the buffers of the model (running statistics), which every shard moves on from where the
    step began. The step ends with the sum of the first and the mean of the second.
    """

    communicates = True
    in_place = False

    def __init__(
        self, comm: Communicator, storage: FlatStorage, shards: int, module: Module
    ) -> None:
        super().__init__(comm, storage)
        self.shards, self.each = shards, len(local_shards(shards, comm))
        self._staged = [Staging(buffer.wide) for buffer in storage.buffers]
        self.gradients = [
            [np.zeros(b.wide.size, b.wide.dtype) for _ in range(self.each)] for b in storage.buffers
        ]
        self.module = module
        self.passes = 0
        self._entered = False
        self._before: Array = np.empty(0)  # the buffers at the beginning of a step
        self._after: list[Array] = []  # what each shard made of them, and 1 where it did

    def enter(self) -> None:
        """As in the base class: the buffers become those that this shard knows.

        Further calls before the backward pass go on from there.
        """
        if self._entered:
            return
        self._entered = True
        if self.passes == 0:
            self._before = self._values()
            self._after = [np.zeros(self._before.size + 1) for _ in range(self.each)]
        after = self._after[self.passes % self.each]
        self._put(after[:-1] if after[-1] else self._before)

    @property
    def _buffers(self) -> list[Any]:
        return [tensor._array for _, tensor in self.module.named_buffers()]

    def _values(self) -> Array:
        found = (np.asarray(to_host(array), np.float64).reshape(-1) for array in self._buffers)
        return np.concatenate([np.empty(0), *found])

    def _put(self, values: Array) -> None:
        start = 0
        for array in self._buffers:
            piece = values[start : start + array.size].reshape(array.shape)
            start += array.size
            array[...] = XP[type(array)].asarray(piece.astype(array.dtype))

    def reduce(self, passes: Passes, notes: Sequence[float], last: bool) -> Summed | None:
        """As in the base class: keep what the pass left; after those of all shards add them up."""
        used = self.fill_absent()
        if not (last and (self.passes + 1) % self.each == 0):
            notes = *notes[:-1], 0.0  # a rank has one mark in a step
        self._leave(pack(passes.totals(), notes, used), passes.samples)
        passes.clear_totals()
        if not (last and self.complete):
            return None
        self._sum()
        return self.summed(self._staged[0].host[self.storage.buffers[0].grad.size :])

    def _leave(self, footer: list[float], rows: int | None) -> None:
        number = self.passes % self.each
        for place, buffer in enumerate(self.storage.buffers):
            wide = self._staged[place].fetch()
            wide[buffer.grad.size :] = footer if place == 0 else 0
            if rows == 0:
                wide[: buffer.grad.size] = 0
            kept = self.gradients[place][number]
            if self.passes < self.each:
                kept[...] = wide
            else:
                kept += wide
        for slot in self.storage.slots:
            slot.drop()
        if self._before.size and rows != 0:
            self._after[number][:] = np.append(self._values(), 1)
        self.passes += 1
        self._entered = False

    @property
    def complete(self) -> bool:
        """Whether every shard has had its turn."""
        return self.passes % self.each == 0

    def _sum(self) -> None:
        """The gradients of all shards into the flat gradients, and the mean of their buffers."""
        for staged, kept in zip(self._staged, self.gradients, strict=True):
            staged.host[...] = tree_sum(self.comm, kept, self.shards)
            staged.put()
        if self._before.size:
            total = tree_sum(self.comm, self._after, self.shards)
            self._put(total[:-1] / total[-1] if total[-1] else self._before)

    def discard(self) -> None:
        """As in the base class. Raises RuntimeError in the middle of a step."""
        text = "zero_grad() has discarded the passes of some shards of a step: gradients are there "
        text += f"after {self.each} backward passes on each rank. Take zero_grad() and the "
        text += "optimizer's step out of `for batch in micro_batches`, with "
        text += "DataLoader(..., shards=...).steps()"
        need(self.complete, "DataParallel", text)

    def reset(self) -> None:
        """Begin a step anew."""
        self.passes = 0
        self._entered = False
        self._before = np.empty(0)
