"""The same bits at every number of ranks: S fixed shards, added up in one fixed binary tree.

Floating-point sums depend on their order, and a product of matrices on how many rows it has. So a
run whose bits must not depend on the number of ranks may do neither differently: every global batch
is cut into S shards, each is a pass of its own on whichever rank has it, and the shards' gradients
are added as a tournament: neighbours in pairs, their sums in pairs, a last one without a partner
goes on alone. A rank holds S / W consecutive shards; it adds what it has all of, the rest is added
on all ranks, element by element in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..backend import XP, Staging, to_host
from ..errors import ConfigError, need
from ..nn.module import Module
from ..optim.flat import FlatStorage
from .communicator import Array, Communicator
from .footer import pack
from .reducer import Reducer, Summed
from .step_counts import Passes

__all__ = ["Shards", "tree_sum"]

WHOLE = 2**16  # bytes received up to which every rank adds up everything, and not a part of it


def local_shards(shards: int, comm: Communicator) -> int:
    """How many of `shards` a rank has. Raises ConfigError unless the ranks divide them."""
    text = f"with {shards} shards needs a number of ranks that divides {shards}, got {{}}; start "
    text += f"another number, or set distributed.shards to a multiple of {comm.size} (other shards "
    text += "are other bits)"
    good = shards > 0 and not shards % comm.size
    need(good, "reproducible: world", text, comm.size, error=ConfigError)
    return shards // comm.size


def tree_sum(comm: Communicator, arrays: list[Array], shards: int) -> Array:
    """The sum of all ranks' shards, in the fixed order; the same bits at every number of ranks.

    Collective. `arrays`: those of this rank, one-dimensional, of one size and dtype; overwritten.
    """
    sums = _own(arrays, comm.rank * len(arrays), shards)
    if comm.size == 1:
        return sums[0]
    size, dtype = arrays[0].size, arrays[0].dtype
    levels, most = _left(comm.size, len(arrays), shards)
    # Every rank adds up its part of the elements; what is small is not worth being parted.
    parts = 1 if comm.size * most * size * dtype.itemsize <= WHOLE else comm.size
    part = -(-size // parts)
    sent = np.zeros((parts, most, part), dtype)
    whole, rest = divmod(size, part or 1)
    for number, total in enumerate(sums):
        sent[:whole, number] = total[: whole * part].reshape(whole, part)
        if rest:
            sent[whole, number, :rest] = total[whole * part :]
    found = comm.all_gather(sent[0]) if parts == 1 else comm.all_to_all(sent)
    result = _joined(levels, found.reshape(comm.size * most, part))
    return result if parts == 1 else comm.all_gather(result).reshape(-1)[:size]


def _own(arrays: list[Array], first: int, shards: int) -> list[Array]:
    """What a rank has left when it has added up all that it can; its shards begin at `first`."""
    here, left = {first + n: array for n, array in enumerate(arrays)}, []
    while shards > 1 and here:
        above = {}
        for number, total in here.items():
            if number % 2 == 0 and number + 1 in here:
                total += here[number + 1]
                above[number // 2] = total
            elif number % 2 == 0 and number + 1 == shards:  # goes on alone
                above[number // 2] = total
            elif number % 2 == 0 or number - 1 not in here:  # the other half is elsewhere
                left.append(total)
        here, shards = above, (shards + 1) // 2
    return [*left, *here.values()]


@lru_cache(8)
def _left(ranks: int, each: int, shards: int) -> tuple[list[tuple[Array, Array]], int]:
    """What `_own` leaves on every rank, by level, and the most that it leaves on one.

    A level is the numbers of its sums, in order, and where they lie: rank * most + place.
    """
    first = np.arange(ranks) * each
    stop = first + each  # what a rank has of a level: numbers from `first` to before `stop`
    place = np.zeros(ranks, np.int64)
    found = []
    whole = False
    while not whole:
        whole = shards == 1
        odd = (first < stop) & ((first % 2 == 1) | whole)  # the half before it is elsewhere
        even = (first < stop) & (stop % 2 == 1) & (stop != shards)  # the half behind it is
        level = []
        for there, numbers in ((odd, first), (even, stop - 1)):
            ours = np.flatnonzero(there)
            level.append((numbers[ours], ours, place[ours]))
            place[ours] += 1
        found.append([np.concatenate(column) for column in zip(*level, strict=True)])
        first, stop = (first + odd + 1) // 2, stop - even
        stop, shards = (stop + 1) // 2, (shards + 1) // 2
    most = int(place.max())
    levels = []
    for numbers, owners, places in found:
        order = np.argsort(numbers)
        levels.append((numbers[order], (owners * most + places)[order]))
    return levels, most


def _joined(levels: list[tuple[Array, Array]], sums: Array) -> Array:
    """The sum of all rows of `sums`, of which `levels` says where in the tree they are."""
    here = np.empty((0, sums.shape[1]), sums.dtype)
    at = np.empty(0, np.int64)
    for numbers, rows in levels:
        # A sum is there with its other half, or it is the last of its level, without one.
        above = here[::2].copy()
        above[: len(at) // 2] += here[1::2]
        at, here = np.concatenate([at[::2] // 2, numbers]), np.concatenate([above, sums[rows]])
        order = np.argsort(at)
        at, here = at[order], here[order]
    total: Array = here[0]
    return total


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
        self.shards, self.each = shards, local_shards(shards, comm)
        self._staged = [Staging(buffer.wide) for buffer in storage.buffers]
        self.gradients = [
            [np.zeros(b.wide.size, b.wide.dtype) for _ in range(self.each)] for b in storage.buffers
        ]
        self.module = module
        self.passes = 0
        self._entered = False
        self._before: Array | None = None
        self._after: list[Array] = []

    def enter(self) -> None:
        """As in the base class: the buffers become those that this shard knows.

        Further calls before the backward pass go on from there.
        """
        if self._entered:
            return
        self._entered = True
        buffers = [tensor._array for _, tensor in self.module.named_buffers()]
        if not buffers:
            return
        number = self.passes % self.each
        if self.passes == 0:
            self._before = np.concatenate(
                [np.asarray(to_host(a), np.float64).reshape(-1) for a in buffers]
            )
            self._after = [np.append(self._before * 0, 0.0) for _ in range(self.each)]
        assert self._before is not None
        _put(buffers, self._after[number][:-1] if self._after[number][-1] else self._before)

    def reduce(self, passes: Passes, notes: Sequence[float], last: bool) -> Summed | None:
        """As in the base class: keep what the pass left; after those of all shards add them up."""
        used = self.used()
        if not (last and (self.passes + 1) % self.each == 0):
            notes = *notes[:-1], 0.0  # a rank has one mark in a step
        self._leave(pack(passes.totals(), notes, used), passes.current, used)
        passes.clear_totals()
        if not (last and self.complete):
            return None
        self._sum()
        return self.summed(self._staged[0].host[self.storage.buffers[0].grad.size :])

    def _leave(self, lane: list[float], rows: int | None, there: Sequence[bool]) -> None:
        slots = self.storage.slots
        number = self.passes % self.each
        fresh = self.passes < self.each
        for place, buffer in enumerate(self.storage.buffers):
            wide = self._staged[place].fetch()
            kept = self.gradients[place][number]
            wide[buffer.grad.size :] = lane if place == 0 else 0
            for slot, flag in zip(slots, there, strict=True):
                if slot.buffer is buffer and (not flag or rows == 0):
                    wide[slot.start : slot.stop] = 0
            if fresh:
                kept[...] = wide
            else:
                kept += wide
        for slot in slots:
            slot.drop()
        if self._before is not None and rows != 0:
            buffers = [tensor._array for _, tensor in self.module.named_buffers()]
            after = self._after[number]
            after[:-1] = np.concatenate([to_host(a).reshape(-1) for a in buffers])
            after[-1] = 1
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
        if self._before is not None:
            for after in self._after:
                if not after[-1]:
                    after[:-1] = 0
            total = tree_sum(self.comm, self._after, self.shards)
            buffers = [tensor._array for _, tensor in self.module.named_buffers()]
            _put(buffers, total[:-1] / total[-1] if total[-1] else self._before)

    def discard(self) -> None:
        """As in the base class. Raises RuntimeError in the middle of a step."""
        text = "zero_grad() has discarded the passes of some shards of a step: with shards="
        text += (
            f"{self.shards} gradients are there after {self.each} backward passes on each rank. "
        )
        text += (
            "Take zero_grad() and the optimizer's step out of `for batch in micro_batches`, with "
        )
        text += "DataLoader(..., shards=...).steps()"
        need(self.complete, "DataParallel", text)

    def reset(self) -> None:
        """Begin a step anew."""
        self.passes = 0
        self._entered = False
        self._before = None


def _put(buffers: list[Any], values: Array) -> None:
    start = 0
    for array in buffers:
        piece = values[start : start + array.size].reshape(array.shape)
        start += array.size
        if type(array) is np.ndarray:
            array[...] = piece.astype(array.dtype)
        else:
            array[...] = XP[type(array)].asarray(piece.astype(array.dtype))
