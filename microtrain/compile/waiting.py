"""One process of a machine compiles, the others wait for what it writes.

Who compiles holds a lock on a file, which the system takes back when that process ends, however it
ends. And it is known to be at work: a thread writes another number into the file now and then. So
the others wait as long as it takes, but not for one that is stopped or gone from the network.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PATIENCE = 60.0  # seconds without a sign of life from the one that compiles
BEATS, PAUSE = 12, 0.5  # signs of life in that time, at least; seconds between two, at most
LONGEST = 512  # bytes of a sign
LOOK = 0.02  # seconds between two looks at the lock


@contextlib.contextmanager
def alone(
    path: Path,
    waits: Callable[[str], Any],
    doing: Callable[[], str],
    patience: float = PATIENCE,
) -> Iterator[bool]:
    """Wait until no other process of this machine that is alive is here.

    Where the file system has no locks, or nothing is heard from the one that is here for `patience`
    seconds, it goes on beside it. What both write is the same, and is put in place whole.

    Args:
        waits: told, once, what the one that is waited for is doing, if that takes its time.
        doing: what this one does, for those that wait; "" for nothing worth a word.

    Yields whether the lock is this process's.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        mine = _take(handle, waits, patience)
        if not mine:
            yield False
            return
        over = threading.Event()
        given = handle, doing, over, min(PAUSE, patience / BEATS)
        beat = threading.Thread(target=_beat, args=given, name="compiling", daemon=True)
        try:
            beat.start()
            yield True
        finally:
            over.set()
            if beat.ident is not None:
                beat.join()
    finally:
        os.close(handle)


def _take(handle: int, waits: Callable[[str], Any], patience: float) -> bool:
    """Whether this process has the lock now."""
    if fcntl is None:
        return False
    heard, since, told = b"", time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sign, now = os.pread(handle, LONGEST, 0), time.monotonic()
            if sign != heard:
                heard, since = sign, now
            if now - since > patience:
                return False
            text = sign.decode(errors="replace").rstrip().partition(": ")[2]
            if text and not told:
                told = True
                waits(text)
            time.sleep(LOOK)
        except OSError:  # a file system without locks
            return False
        else:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)  # what the one before was doing
            return True


def _beat(handle: int, doing: Callable[[], str], over: threading.Event, pause: float) -> None:
    count = 0
    with contextlib.suppress(OSError):  # a full disk: then it is waited for as long as for nobody
        while True:
            # Who it is, so that it differs from what the one before it has left.
            os.pwrite(handle, f"{os.getpid()} {count}: {doing()}".ljust(LONGEST).encode(), 0)
            count += 1
            if over.wait(pause):
                return
