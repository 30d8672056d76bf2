"""Ranks that are threads of a test and have no communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def on_all(size: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` of every rank; what each returned, or the RuntimeError that it raised."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found
