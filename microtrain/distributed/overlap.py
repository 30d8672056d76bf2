"""Reductions beside the backward pass: a bucket of gradients travels while others are computed.

The flat gradient is cut into buckets, slices of it in reverse definition order, because gradients
become final in about that order. A bucket goes when all of its gradients are final and the buckets
before it have gone, so the order is the same on all ranks. A thread of its own makes the blocking
calls: MPI moves data only while a thread is inside it, and its non-blocking reductions are slower
than the blocking ones. On a machine without a free core the thread takes the backward pass's time;
`worth` says where it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ..autograd.graph import leaves_of
from ..backend import MODES
from ..common.threads import allowed_cores
from ..optim.flat import FlatStorage, Slot
from .communicator import Communicator
from .footer import Summed, Totals, pack
from .reducer import Reducer

BUCKET: Final = 4 * 2**20  # bytes, where nobody has asked for another size


def worth(comm: Communicator, storage: FlatStorage, bucket: int) -> tuple[bool, str]:
    """Whether reductions beside the backward pass pay, and why; the same on all ranks.

    Collective. Decided from the number of buckets, the machines and the free cores.
    """
    count = len(buckets_of(storage, bucket))
    spare = comm.all(len(allowed_cores()) >= 2 * comm.local_size)
    if count < 2:
        return False, "the gradients fit into one bucket"
    if comm.num_nodes > 1:
        return True, f"{count} buckets travel between {comm.num_nodes} machines"
    if not spare:
        return False, "no core is left free by the ranks"
    return True, f"{count} buckets, and a core is free beside every rank"


def buckets_of(storage: FlatStorage, size: int) -> list[tuple[Any, list[Slot]]]:
    """The slices of the gradients, of about `size` bytes, and the slots in each, as they go."""
    found: list[tuple[Any, list[Slot]]] = []
    for buffer in storage.buffers:
        slots = sorted((s for s in storage.slots if s.buffer is buffer), key=lambda s: -s.start)
        members: list[Slot] = []
        for slot in slots:
            members.append(slot)
            array = buffer.grad[slot.start : members[0].stop]
            if array.nbytes >= size or slot is slots[-1]:
                found.append((array, members))
                members = []
    return found


class Overlap(Reducer):
    """The buckets of a storage, and the thread that reduces them."""

    communicates = True

    def __init__(self, comm: Communicator, storage: FlatStorage, bucket: int) -> None:
        super().__init__(comm, storage)
        self.own: Any = comm.split(0)  # the thread's: its calls do not mix with the main thread's
        self.buckets = buckets_of(storage, bucket)
        self.number = {slot: n for n, (_, slots) in enumerate(self.buckets) for slot in slots}
        self.sent = 0  # how many the thread was given in this pass
        self.going: list[Any] = []  # those of them that may still be on their way
        from concurrent.futures import ThreadPoolExecutor  # here: an import of 3 ms

        self.thread = ThreadPoolExecutor(1, "microtrain-reduce")  # which ends with this object

    def begin(self) -> None:
        """Before a pass: what one that failed has left on its way must have arrived."""
        self._arrive()
        self.sent = 0

    def readiness(self, edges: Any) -> Callable[[Any], None]:
        """As in the base class: full buckets are sent at once."""
        left = leaves_of(edges)  # how often the pass will add to each
        missing, turn = [0] * len(self.buckets), 0  # of which bucket it is
        numbers = {}
        for leaf in left:
            slot = leaf._extra.slot if leaf._extra is not None else None
            if slot in self.number:
                numbers[leaf] = self.number[slot]
                missing[numbers[leaf]] += 1

        def ready(leaf: Any) -> None:
            nonlocal turn
            if leaf not in numbers:
                return
            left[leaf] -= 1
            if not left[leaf]:
                missing[numbers[leaf]] -= 1
                while turn < len(self.buckets) and not missing[turn]:
                    # In a step that is captured, it goes in replays: a recording that fails is
                    # done again, and has sent nothing.
                    MODES.capture.later(f"bucket {turn} goes", partial(self.send, turn))
                    turn += 1

        return ready

    def send(self, number: int) -> None:
        """Hand bucket `number` to the thread."""
        self.sent = number + 1
        array, slots = self.buckets[number]
        for slot in slots:
            # Absent here, it may be there on another rank.
            if slot.epoch != slot.buffer.epoch:
                slot.array[...] = 0
        self.going.append(self.thread.submit(self.own.all_reduce, array))

    def added_up(self, totals: Totals, notes: Sequence[float]) -> Summed:
        """As in the base class: the rest of the buckets, and the footer by itself."""
        self.send_rest()
        self._arrive()
        footer = self.footer()
        footer[...] = pack(totals, notes, self.storage.present())
        self.comm.all_reduce(footer)
        return self.summed(footer)

    def cancel(self) -> None:
        """As in the base class: where it failed on all ranks, not all had sent as much."""
        self.send_rest()  # so they go on in step

    def send_rest(self) -> None:
        """Let all buckets go that have not."""
        while self.sent < len(self.buckets):
            self.send(self.sent)

    def _arrive(self) -> None:
        errors = [one.exception() for one in self.going]
        self.going.clear()
        for error in filter(None, errors):
            raise error
