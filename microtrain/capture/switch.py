"""The one place where instructions are intercepted: what arrays lead to while a step is recorded.

Operations find the library of their arrays in `XP`. While any thread records, what they find there
asks whether this thread does: then its recorder is the library. Whatever interrupts a recording, it
ends, and so does the switch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..autograd.locks import acquire, release_after_error
from ..backend import ARRAYS, LIBRARIES, MODES, NUMPY, XP
from ..common.recording import EAGER
from .recorder import Recorder
from .trace import Traced


@functools.cache  # one for each library: whoever compares two finds the same
class _Switch:
    """What arrays lead to while somebody captures: this thread's recorder, or their library."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.array_type = xp.array_type

    def __getattr__(self, name: str) -> Any:
        return getattr(MODES.capture if MODES.capture.on else self.xp, name)


_LOCK = threading.RLock()  # the collector may end a recording while this thread holds it
_CAPTURING: set[Recorder] = set()  # those of all threads
ARRAYS.add(Traced)
XP[Traced] = _Switch(NUMPY)  # type: ignore[assignment]


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Let `recorder` write down the instructions of this thread."""
    try:
        try:
            _locked(recorder, _switch)
            MODES.capture = recorder
            yield
        finally:
            ended(recorder)
    finally:
        ended(recorder)  # a Ctrl-C may have come into the first one


def ended(recorder: Recorder) -> None:
    """Nothing is written down by `recorder` any more, also where it has not been already."""
    if MODES.capture is recorder:
        MODES.capture = EAGER
    recorder.leaves.restore()
    _locked(recorder, _switch_back)


def _locked(recorder: Recorder, change: Callable[[Recorder], None]) -> None:
    """`change(recorder)` by one thread at a time, also where a Ctrl-C comes."""
    held: list[Any] = []
    try:
        try:
            acquire(held, _LOCK, wait=True)
            change(recorder)
        finally:
            release_after_error(held)
    finally:
        release_after_error(held)  # a Ctrl-C may have come into the first one


def _switch(recorder: Recorder) -> None:
    _CAPTURING.add(recorder)
    XP[Traced] = _Switch(recorder.xp)  # type: ignore[assignment]
    for kind, library in LIBRARIES.items():  # arrays of another device are noticed too
        XP[kind] = _Switch(library)  # type: ignore[assignment]


def _switch_back(recorder: Recorder) -> None:
    _CAPTURING.discard(recorder)
    if not _CAPTURING:
        XP.update(LIBRARIES)
