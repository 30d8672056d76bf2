"""A timeline of a run: what each rank did when, for chrome://tracing or https://ui.perfetto.dev.

The format is Chrome's trace events: one file a rank, opened together they lie below each other. The
clocks of all ranks begin where `Trace` was made, behind a barrier.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from ...files import make_directory, write_whole

MOST = 200_000  # events; a file of some 20 MB, which browsers still open

R = TypeVar("R")


class Trace:
    """The events of one rank."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank, self.host = rank, host
        self.began = time.perf_counter()
        self.events: list[tuple[str, float, float]] = []

    def add(self, name: str, start: float, end: float) -> None:
        """Note an event; times are those of `time.perf_counter`."""
        if len(self.events) < MOST:
            self.events.append((name, start, end))

    def timed(self, name: str, function: Callable[..., R]) -> Callable[..., R]:
        """`function`, each call of which is an event."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> R:
            start = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                self.add(name, start, time.perf_counter())

        return call

    def write(self, directory: Path) -> Path:
        """Write `rank-N.json` into `directory`, which is made; returns its path."""
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": self.rank,
             "args": {"name": f"rank {self.rank} on {self.host}"}},
            *(
                {"ph": "X", "name": name, "pid": self.rank, "tid": 0,
                 "ts": (start - self.began) * 1e6, "dur": (end - start) * 1e6}
                for name, start, end in self.events
            ),
        ]  # fmt: skip
        directory.parent.mkdir(parents=True, exist_ok=True)
        make_directory(directory)
        path = directory / f"rank-{self.rank}.json"
        write_whole(path, json.dumps({"traceEvents": events}).encode())
        return path
