"""How the gradients of all ranks become their sum: with one rank, or all at once after the pass.

A `Reducer` is told when a backward pass begins and ends. Two others are in files of their own:
`overlap.py`, beside the pass, and `shards.py`, in an order that no number of ranks changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import Staging
from ..optim.flat import LANE, FlatStorage
from . import compression
from .communicator import Communicator
from .footer import Summed, Totals, pack, values_of
from .step_counts import Passes


class Reducer:
    """The reduction of one rank: its gradients are the sum. The base of the others.

    Attributes:
        communicates: whether time spent in it is communication.
        in_place: whether gradients stay where they are between the passes of one step.
    """

    communicates = False
    in_place = True

    def __init__(self, comm: Communicator, storage: FlatStorage) -> None:
        self.comm, self.storage = comm, storage

    def enter(self) -> None:
        """Before a forward call in training."""

    def begin(self) -> None:
        """Before a backward pass."""

    def readiness(self, edges: Any) -> Any:
        """What that pass, from `edges`, is to call with a leaf that it has added to; or None."""

    def reduce(self, passes: Passes, notes: Sequence[float], last: bool) -> Summed | None:
        """After a backward pass: the sums over all ranks, collective.

        None where the step goes on: unless `last` nothing is reduced.
        """
        return (*passes.totals(), *notes) if last else None

    def discard(self) -> None:
        """zero_grad() has discarded what earlier passes of the step left. May raise."""

    def reset(self) -> None:
        """Begin a step anew."""

    def cancel(self) -> None:
        """A pass failed that was to be reduced."""

    def used(self) -> tuple[bool, ...]:
        """Of each parameter whether its gradient is there."""
        return self.storage.present()

    def cleared(self) -> tuple[bool, ...]:
        """The same; those that are not there are zeros now."""
        used = self.used()
        if False in used:
            for slot, there in zip(self.storage.slots, used, strict=True):
                if not there:
                    slot.array[...] = 0
        return used

    def lane(self) -> Any:
        """The memory of the footer, behind the first buffer's gradients."""
        first = self.storage.buffers[0]
        return first.wide[first.grad.size :]

    def summed(self, lane: Any) -> Summed:
        """What a reduced lane says; which parameters any rank used is taken over."""
        values = lane.tolist()
        if False in self.used():
            for slot, flag in zip(self.storage.slots, values[LANE:], strict=True):
                if flag and slot.epoch != slot.buffer.epoch:
                    slot.epoch = slot.buffer.epoch
                    slot.graph = None
        return values_of(values)


class AtOnce(Reducer):
    """One all_reduce for each buffer when the pass is over, the footer behind the first.

    Gradients of a GPU are staged through the host: MPI may not know its memory.

    Args:
        kind: "none", or the form of 16 bits in which gradients travel.

    Attributes:
        plain: whether all there is to add up is one array in the host's memory.
    """

    communicates = True

    def __init__(self, comm: Communicator, storage: FlatStorage, kind: str) -> None:
        super().__init__(comm, storage)
        self._staged = [Staging(buffer.wide) for buffer in storage.buffers]
        self._gradients = [
            staged.host[: buffer.grad.size]
            for staged, buffer in zip(self._staged, storage.buffers, strict=True)
        ]
        self._lane = self._staged[0].host[self._gradients[0].size :]
        self.kind = kind
        one = len(self._staged) == 1 and self._staged[0].host is storage.buffers[0].wide
        self.plain = one and kind == "none"
        if kind != "none":
            self._owed = [compression.nothing_owed(comm, array) for array in self._gradients]

    def reduce(self, passes: Passes, notes: Sequence[float], last: bool) -> Summed | None:
        """As in the base class."""
        return self.added_up(passes.totals(), notes) if last else None

    def added_up(self, totals: Totals, notes: Sequence[float]) -> Summed:
        """The sums of gradients and footers over all ranks, collective."""
        lane = pack(totals, notes, self.cleared())
        if self.plain:  # the usual case, in less time
            self._lane[...] = lane
            self.comm.all_reduce(self._staged[0].host)
            return self.summed(self._lane)
        for number, (staged, gradient) in enumerate(
            zip(self._staged, self._gradients, strict=True)
        ):
            host = staged.fetch()
            if self.kind != "none":
                owed, exact = self._owed[number], () if number else lane
                sums = compression.all_reduce(self.comm, self.kind, gradient, owed, exact)
                self._lane[: len(sums)] = sums
            elif number:
                self.comm.all_reduce(gradient)
            else:
                self._lane[...] = lane
                self.comm.all_reduce(host)
            staged.put()
        return self.summed(self._lane)
