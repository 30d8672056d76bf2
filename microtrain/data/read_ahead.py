"""What comes next from a slow source is read by a thread while a step computes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")
_END: Any = object()


class ReadAhead(Iterator[T]):
    """The items of an iterator, of which one more is made than was asked for.

    At most one item waits. What goes wrong in making it is raised where it is asked for. No process
    is forked, for that breaks MPI.

    Args:
        items: one thread asks it for items.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._thread = ThreadPoolExecutor(1, "microtrain read ahead")
        self._next: Future[T] | None = None

    def __next__(self) -> T:
        """The next item; the one after it is begun."""
        waiting, self._next = self._next, None
        item = (waiting or self._begun()).result()
        if item is _END:
            raise StopIteration
        self._next = self._begun()
        return item

    def _begun(self) -> Future[T]:
        return self._thread.submit(next, self._items, _END)

    def close(self) -> None:
        """End the thread, when it has made what it is making."""
        self._thread.shutdown(cancel_futures=True)
