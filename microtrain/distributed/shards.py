"""The same bits at every number of ranks: S fixed shards, added up in one fixed binary tree.

Floating-point sums depend on their order, and a product of matrices on how many rows it has. So a
run whose bits must not depend on the number of ranks may do neither differently: every global batch
is cut into S shards, each is a pass of its own on whichever rank has it, and the shards' gradients
are added as a tournament: neighbours in pairs, their sums in pairs, a last one without a partner
goes on alone. A rank holds S / W consecutive shards; it adds them as long as their number is even,
what is left is added on all ranks, element by element in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def local_shards(shards: int, comm: Communicator) -> int:
    """How many of `shards` a rank has. Raises ConfigError unless the ranks divide them."""
    text = f"with {shards} shards needs a number of ranks that divides {shards}, got {{}}; start "
    text += f"another number, or set distributed.shards to a multiple of {comm.size} (other shards "
    text += "are other bits)"
    good = shards > 0 and not shards % comm.size
    need(good, "reproducible: world", text, comm.size, error=ConfigError)
    return shards // comm.size


def tree_sum(comm: Communicator, arrays: list[Array]) -> Array:
    """The sum of all ranks' shards, in the fixed order; the same bits at every number of ranks.

    Collective. `arrays`: those of this rank, one-dimensional, of one size and dtype, as many on
    every rank; overwritten.
    """
    while len(arrays) > 1 and (comm.size == 1 or len(arrays) % 2 == 0):
        for one, other in zip(arrays[::2], arrays[1::2], strict=False):
            one += other
        arrays = arrays[::2]
    if comm.size == 1:
        return arrays[0]
    (size,), dtype = arrays[0].shape, arrays[0].dtype
    # Every rank adds up its part of the elements; what is small is not worth being parted.
    parts = 1 if comm.size * len(arrays) * size * dtype.itemsize <= WHOLE else comm.size
    part = -(-size // parts)
    mine = np.zeros((len(arrays), parts * part), dtype)
    for row, array in zip(mine, arrays, strict=True):
        row[:size] = array
    sent = np.ascontiguousarray(mine.reshape(len(arrays), parts, part).swapaxes(0, 1))
    found = comm.all_gather(sent[0]) if parts == 1 else comm.all_to_all(sent)
    sums = found.reshape(comm.size * len(arrays), part)
    while len(sums) > 1:
        sums[:-1:2] += sums[1::2]
        sums = sums[::2]
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
        self.each = local_shards(shards, comm)
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
        used = self.cleared()
        if not (last and (self.passes + 1) % self.each == 0):
            notes = *notes[:-1], 0.0  # a rank has one mark in a step
        self._leave(pack(passes.totals(), notes, used), passes.current)
        passes.clear_totals()
        if not (last and self.complete):
            return None
        self._sum()
        return self.summed(self._staged[0].host[self.storage.buffers[0].grad.size :])

    def _leave(self, lane: list[float], rows: int | None) -> None:
        number = self.passes % self.each
        for place, buffer in enumerate(self.storage.buffers):
            wide = self._staged[place].fetch()
            wide[buffer.grad.size :] = lane if place == 0 else 0
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
            staged.host[...] = tree_sum(self.comm, kept)
            staged.put()
        if self._before.size:
            total = tree_sum(self.comm, self._after)
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
