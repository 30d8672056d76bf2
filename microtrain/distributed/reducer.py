"""Reducers add up the gradients of all ranks: for a single rank, or all at once after the pass.

`DataParallel` calls its reducer when a backward pass begins and ends. Further reducers have files
of their own: `overlap.py` reduces during the pass, `shards.py` in an order that does not depend on
the number of ranks, `nccl.py` on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import Staging
from ..optim.flat import FOOTER, FlatStorage
from . import compression
from .communicator import Communicator
from .footer import Summed, Totals, pack, values_of
from .step_counts import Passes


class Reducer:
    """The base class, and the reducer of a single rank, whose gradients are the sum already.

    Attributes:
        communicates: whether time spent in it counts as communication.
        in_place: whether gradients stay in the slots between the passes of one step.
    """

    communicates = False
    in_place = True

    def __init__(self, comm: Communicator, storage: FlatStorage) -> None:
        self.comm, self.storage = comm, storage

    def enter(self) -> None:
        """Called before a forward call in training."""

    def begin(self) -> None:
        """Called before a backward pass."""

    def readiness(self, edges: Any) -> Any:
        """What the pass from `edges` is to call with each leaf that it has added to; or None."""

    def reduce(self, passes: Passes, notes: Sequence[float], last: bool) -> Summed | None:
        """Called after a backward pass: the sums over all ranks, collective.

        Only the `last` pass of a step is reduced; others return None.
        """
        return self.added_up(passes.totals(), notes) if last else None

    def added_up(self, totals: Totals, notes: Sequence[float]) -> Summed:
        """The sums of gradients and footers over all ranks, collective."""
        return *totals, *notes

    def discard(self) -> None:
        """Called when zero_grad() has discarded earlier passes of the step. May raise."""

    def reset(self) -> None:
        """Called when a new step begins."""

    def cancel(self) -> None:
        """Called when a pass has failed that was to be reduced."""

    def fill_absent(self) -> tuple[bool, ...]:
        """Write zeros into the memory of absent gradients; for which there is one."""
        used = self.storage.present()
        if False in used:
            for slot, present in zip(self.storage.slots, used, strict=True):
                if not present:
                    slot.array[...] = 0
        return used

    def footer(self) -> Any:
        """The memory of the footer, behind the first buffer's gradients."""
        first = self.storage.buffers[0]
        return first.wide[first.grad.size :]

    def summed(self, footer: Any) -> Summed:
        """The values of a reduced footer; parameters that any rank used become present here."""
        values = footer.tolist()
        if False in self.storage.present():
            for slot, flag in zip(self.storage.slots, values[FOOTER:], strict=True):
                if flag and not slot.present:
                    slot.epoch = slot.buffer.epoch
                    slot.graph = None
        return values_of(values)


class AtOnce(Reducer):
    """One all_reduce for each buffer when the pass is over, the footer behind the first.

    Gradients of a GPU are staged through the host: MPI may not know its memory.

    Args:
        kind: "none", or the 16-bit format in which gradients are sent.

    Attributes:
        plain: whether one all_reduce of one array in the host's memory does everything.
    """

    communicates = True

    def __init__(self, comm: Communicator, storage: FlatStorage, kind: str = "none") -> None:
        super().__init__(comm, storage)
        every = [Staging(buffer.wide) for buffer in storage.buffers]
        self._staged = [one for one in every if one.host is not one.array]
        hosts = [one.host for one in every]
        sizes = [buffer.grad.size for buffer in storage.buffers]
        self._gradients = [host[:size] for host, size in zip(hosts, sizes, strict=True)]
        self._footer = hosts[0][sizes[0] :]
        self._sent = hosts[0], *self._gradients[1:]
        self.kind = kind
        self.plain = kind == "none" and len(hosts) == 1 and hosts[0] is storage.buffers[0].wide
        if kind != "none":
            self._owed = [compression.nothing_owed(comm, array) for array in self._gradients]

    def added_up(self, totals: Totals, notes: Sequence[float]) -> Summed:
        """As in the base class."""
        footer = pack(totals, notes, self.fill_absent())
        for staged in self._staged:
            staged.fetch()
        if self.kind == "none":
            self._footer[...] = footer
            for array in self._sent:
                self.comm.all_reduce(array)
        else:
            for gradient, owed in zip(self._gradients, self._owed, strict=True):
                exact = footer if gradient is self._gradients[0] else ()
                sums = compression.all_reduce(self.comm, self.kind, gradient, owed, exact)
                self._footer[: len(sums)] = sums
        for staged in self._staged:
            staged.put()
        return self.summed(self._footer)
