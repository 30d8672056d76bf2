"""The next batch of a slow source is read by a thread while a step computes with this one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Reads batches by their numbers, each after the one before, and one more than was asked for.

    At most one batch waits. What goes wrong in reading it is raised where it is asked for. No
    process is forked, for that breaks MPI.

    Args:
        read: gives the batch of a number. One thread calls it, at a time.
        count: the number of batches.
    """

    def __init__(self, read: Callable[[int], T], count: int) -> None:
        self._read, self._count = read, count
        self._thread = ThreadPoolExecutor(1, "microtrain read ahead")
        self._next: tuple[int, Future[T]] | None = None

    def __call__(self, number: int) -> T:
        """The batch of this number; the next one is begun."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting[0] == number:
            batch = waiting[1].result()
        else:
            batch = self._thread.submit(self._read, number).result()
        if number + 1 < self._count:
            self._next = number + 1, self._thread.submit(self._read, number + 1)
        return batch

    def close(self) -> None:
        """End the thread, when it has read what it is reading."""
        self._thread.shutdown(cancel_futures=True)
