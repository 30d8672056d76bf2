"""What is asked of a run between steps: to end by a signal, a file named STOP or the clock.

What asks for the end, or for an evaluation by the clock, is noted on one rank and travels with the
next gradient (`DataParallel.notes`), so all ranks stop after the same step without a collective of
their own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ..distributed.data_parallel import DataParallel
from ..threads import LAUNCH

STOP_FILE = "STOP"
POLL = 0.2  # seconds
STOP, EVALUATE, SAVE = range(3)  # the kinds: places in the notes
# Open MPI's mpirun kills its ranks 0.2 s after it has passed on one of these.
_NO_TIME = LAUNCH.kind in ("openmpi",)


class Requests:
    """Notes on `model` what should happen after the next step; a context manager.

    Args:
        model: whose reductions carry the notes.
        path: the run directory, on rank 0; None elsewhere.
        ends: seconds from now on the clock until the run ends, by name: `duration`, `max_time`.
        intervals: seconds between two evaluations and two checkpoints, by kind; rank 0's count.

    Attributes:
        reason: on the rank that asks for the end, why.
    """

    def __init__(
        self,
        model: DataParallel,
        path: Path | None,
        ends: dict[str, float],
        intervals: dict[int, float],
    ) -> None:
        self.model = model
        self.reason = ""
        self._path = path
        now = time.monotonic()
        self._ends = {name: now + seconds for name, seconds in ends.items()}
        self._intervals = intervals
        self._due = {kind: now + seconds for kind, seconds in intervals.items()}
        self._asked = [0.0, 0.0, 0.0]
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: dict[int, Any] = {}

    def ask(self, reason: str) -> None:
        """Let all ranks stop after the step under way."""
        self.reason = self.reason or reason
        self.note(STOP)

    def note(self, kind: int) -> None:
        """Let all ranks do after the step under way what `kind` stands for."""
        self._asked[kind] = 1.0
        self.model.notes = tuple(self._asked)

    def done(self, kind: int) -> None:
        """An evaluation or a checkpoint was made: count anew."""
        if self._asked[kind]:
            self._asked[kind] = 0.0
            while self.model.notes != tuple(self._asked):  # a signal may come in between
                self.model.notes = tuple(self._asked)
        if kind in self._intervals:
            self._due[kind] = time.monotonic() + self._intervals[kind]

    def __enter__(self) -> Requests:
        try:
            if threading.current_thread() is threading.main_thread():
                numbers = [signal.SIGUSR1] + ([] if _NO_TIME else [signal.SIGTERM, signal.SIGINT])
                for number in numbers:
                    before = signal.getsignal(number)
                    if before not in (signal.SIG_IGN, None):  # None: not one of Python's
                        self._before[number] = before
                        signal.signal(number, self._signal)
            if self._path is not None:
                for name, end in self._ends.items():  # over before a resume: not a look later
                    if time.monotonic() >= end:
                        self.ask(name)
                self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)
                self._thread.start()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._give_back()
        finally:
            self._give_back()  # a Ctrl-C may have come into the first one
        if self._thread is not None and self._thread.ident is not None:  # it has begun
            self._thread.join()
        self.model.notes = (0.0, 0.0, 0.0)

    def _give_back(self) -> None:
        """Signals go where they went before, and the thread ends."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over.set()

    def _signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self.reason == name:  # Ctrl-C again: now
            raise KeyboardInterrupt
        self.ask(name)

    def _watch(self) -> None:
        assert self._path is not None
        file = self._path / STOP_FILE
        while not self._over.wait(POLL):
            now = time.monotonic()
            if os.path.exists(file):
                self.ask(f"{file} is there")
            for name, end in self._ends.items():
                if now >= end:
                    self.ask(name)
            for kind, due in [*self._due.items()]:
                if now >= due and not self._asked[kind]:
                    self.note(kind)
