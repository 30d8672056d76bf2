"""Ranks as threads of one process: distributed code under a debugger and in tests, without MPI.

    def work(comm):
        return comm.all_reduce(np.ones(3))

    first, second = in_process.run(2, work)

It is stricter than MPI: ranks that call different collectives, or the same one with different
shapes, or that wait for each other's messages, hang or corrupt memory there and get an error here
that names the calls. Reductions add in rank order, so results are the same in every run.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from ..backend import MODES
from ..common.stack_frames import of_threads, user_place
from ..errors import need
from ..random import begin_batch
from .communicator import COMBINE, Array, Communicator, Message, Op, T

R = TypeVar("R")


class ThisThread(threading.local):
    """The communicator that `world()` gives in this thread; None where it is the process's own."""

    communicator: Communicator | None = None


THIS_THREAD: Final = ThisThread()


class PeerFailed(RuntimeError):
    """Another rank has failed, so this one cannot go on."""


class _Meeting:
    """What the ranks share: a place for each rank's call and value, and their messages.

    Attributes:
        whole: that of all ranks.
        news: what a thread that waits for another one is woken by; that of the whole.
        arrived, rounds: how many ranks are at the next meeting, and how many meetings there were.
        messages: by both ranks.
        stuck: of the whole, the threads that wait for another one: thread and call, by place.
        over: of the whole, whether nobody will come any more.
    """

    def __init__(self, size: int, whole: _Meeting | None = None) -> None:
        self.size = size
        self.whole = whole or self
        self.news: threading.Condition = whole.news if whole else threading.Condition()
        self.arrived = self.rounds = 0
        self.calls = [""] * size
        self.values: list[Any] = [None] * size
        self.messages: dict[tuple[int, int], list[tuple[Any, Message]]] = {}
        self.stuck: dict[Any, tuple[threading.Thread, str]] = {}
        self.over = False

    def meet(self, rank: int) -> None:
        """Wait until all ranks are here."""
        with self.news:
            self.arrived += 1
            this = self.rounds
            if self.arrived == self.size and not self.whole.over:
                self.arrived, self.rounds = 0, this + 1
                for other in range(self.size):
                    self.whole.stuck.pop((self, other), None)
                self.news.notify_all()
            while self.rounds == this:
                self.wait((self, rank), self.calls[rank])

    def wait(self, place: Any, call: str) -> None:
        """Wait for news; RuntimeError where nobody is left who does not, or one has failed."""
        whole = self.whole
        if whole.over:
            raise PeerFailed("another rank failed while this one waited for it")
        whole.stuck[place] = threading.current_thread(), call
        # Threads that ranks have started wait beside them.
        ranks = {t for t, _ in whole.stuck.values() if t.name.startswith("rank-")}
        if len(ranks) == whole.size:
            frames = of_threads([thread.ident or 0 for thread, _ in whole.stuck.values()])
            found = sorted(
                f"{thread.name.replace('-', ' ')} {call} at {user_place(frames[thread.ident or 0])}"
                for thread, call in whole.stuck.values()
            )
            raise RuntimeError("the ranks wait for each other: " + "; ".join(found))
        self.news.wait()

    def send(self, source: int, dest: int, address: Any, message: Message) -> None:
        """Put a message where `dest` looks for it."""
        with self.news:
            self.messages.setdefault((source, dest), []).append((address, message))
            self.whole.stuck.pop((self, source, dest), None)
            self.news.notify_all()

    def next(self, source: int, dest: int, text: object) -> tuple[Any, Message]:
        """The next message of `source` to `dest`, with its address."""
        with self.news:
            while not (arrived := self.messages.get((source, dest))):
                self.wait((self, source, dest), f"waits in {text}")
            return arrived.pop(0)

    def end(self) -> None:
        """Wake all that wait: nobody will come any more."""
        with self.news:
            self.over = True
            self.news.notify_all()


class InProcessCommunicator(Communicator):
    """One thread among those of `run`."""

    backend = "threads"
    node_rank, num_nodes = 0, 1

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = meeting.size
        self._meeting = meeting

    def exchange(self, call: str, value: object, read: Callable[[list[Any]], R]) -> R:
        """Meet the other ranks at the same `call`; return `read(values in rank order)`.

        Arrays have to be alike. No rank goes on before all have read, so a value may be changed
        afterwards. Raises RuntimeError on every rank when they are not all at the same call.
        """
        meeting = self._meeting
        if isinstance(value, np.ndarray):
            call += f" of shape {value.shape}, {value.dtype}"
        meeting.calls[self.rank], meeting.values[self.rank] = call, value
        meeting.meet(self.rank)
        for rank, other in enumerate(meeting.calls):
            text = f"rank 0 {meeting.calls[0]}, rank {rank} {other}"
            need(other == meeting.calls[0], "ranks are not at the same call", text)
        result = read(meeting.values)
        meeting.meet(self.rank)
        return result

    def _all_reduce(self, array: Array, op: Op) -> Array:
        array[...] = self.exchange(f"calls all_reduce({op})", array, lambda a: _combined(a, op))
        return array

    def _reduce_scatter(self, array: Array, op: Op) -> Array:
        def mine(arrays: list[Array]) -> Array:
            return _combined([each[self.rank] for each in arrays], op)

        return self.exchange(f"calls reduce_scatter({op})", array, mine)

    def _all_to_all(self, array: Array) -> Array:
        def mine(arrays: list[Array]) -> Array:
            return np.stack([each[self.rank] for each in arrays])

        return self.exchange("calls all_to_all", array, mine)

    def _send_to(
        self, dest: int, address: Any, array: Array | None, number: int | None, at: str
    ) -> None:
        message = None if array is None else np.array(array), number, at
        self._meeting.send(self.rank, dest, address, message)

    def _next_from(self, source: int, text: object) -> tuple[Any, Message]:
        return self._meeting.next(source, self.rank, text)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        wishes = self.exchange("calls split", (color, key), list)
        order = sorted((k, rank) for rank, (c, k) in enumerate(wishes) if c == color)
        members = [rank for _, rank in order]
        first = color is not None and members[0] == self.rank
        made = _Meeting(len(members), self._meeting.whole) if first else None
        meetings = self.exchange("calls split", made, list)
        if color is None:
            return None
        return InProcessCommunicator(members.index(self.rank), meetings[members[0]])

    def _broadcast(self, array: Array, root: int) -> Array:
        array[...] = self.exchange(f"calls broadcast from {root}", array, lambda a: a[root].copy())
        return array

    def _all_gather(self, array: Array) -> Array:
        return self.exchange("calls all_gather", array, np.stack)

    # Objects go through pickle as they do over MPI: a rank never sees another one's object itself.

    def _gather_object(self, obj: T, root: int) -> list[T] | None:
        everything = self.exchange(f"calls gather_object to {root}", pickle.dumps(obj), list)
        return [pickle.loads(one) for one in everything] if self.rank == root else None

    def _all_gather_object(self, obj: T) -> list[T]:
        everything = self.exchange("calls all_gather_object", pickle.dumps(obj), list)
        return [pickle.loads(one) for one in everything]

    def _broadcast_object(self, obj: T, root: int) -> T:
        mine = pickle.dumps(obj) if self.rank == root else b""
        call = f"calls broadcast_object from {root}"
        return pickle.loads(self.exchange(call, mine, lambda values: values[root]))

    def _barrier(self) -> None:
        self.exchange("calls barrier", None, len)

    def abort(self, code: int) -> NoReturn:
        raise RuntimeError(f"rank {self.rank} called abort({code})")


def _combined(arrays: list[Array], op: Op) -> Array:
    total = np.array(arrays[0])
    for other in arrays[1:]:
        COMBINE[op](total, other, out=total)
    return total


def run(world_size: int, function: Callable[..., R], *args: Any) -> list[R]:
    """Call `function(comm, *args)` on `world_size` ranks, each a thread; the results in rank order.

    Inside, `microtrain.distributed.world()` is the same `comm` (not in threads started further
    down: pass it on). When a rank raises, the others fail at their next collective, and the first
    error is raised here with its rank in a note. A rank that returns while others are in a
    collective is an error too.
    """
    need(world_size > 0, "in_process.run", "expected at least 1 rank", world_size, error=ValueError)
    meeting = _Meeting(world_size)
    results: list[Any] = [None] * world_size
    failed: list[tuple[int, BaseException]] = []

    def rank_main(rank: int) -> None:
        comm = InProcessCommunicator(rank, meeting)
        THIS_THREAD.communicator = comm
        MODES.apart = True
        begin_batch(rank * 2**40)  # until a loader knows better, as in other processes
        try:
            results[rank] = function(comm, *args)
            comm.exchange("has returned", None, len)
        except BaseException as error:
            failed.append((rank, error))
            meeting.end()

    threads = [
        # Daemons: a rank that never returns must not keep the process from ending.
        threading.Thread(target=rank_main, args=(rank,), name=f"rank-{rank}", daemon=True)
        for rank in range(world_size)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        meeting.end()  # Ctrl-C in the joining thread ends the ranks as well
    if failed:
        rank, error = failed[0]  # in time: where the others fail, it is because of this one
        error.add_note(f"on rank {rank} of {world_size} (in_process)")
        raise error
    return results
