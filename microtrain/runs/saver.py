"""Checkpoints of a run: written beside the training, pruned, and linked. Rank 0 only.

The loop hands over the state, which is copied, and goes on; a thread writes the copy, since waiting
for a disk would cost a fast run more than its steps. A newer state takes the place of one that
still waits, but that of the best only if it is better. So the best at the end is the best of all
that were measured; it is written with the next checkpoint, and before it, so that a run that goes
on from that finds the best as well.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import LaunchError
from ..files import remove
from .arrays import copied
from .checkpoint import list_checkpoints, peek_state, save_checkpoint
from .directory import Gone, Unwritten, point

APART = 16  # steps: `auto` looks at the clock less often, which costs as much as a small step


class Saver:
    """Writes checkpoints into one directory.

    Args:
        directory: the run's `checkpoints`.
        keep_last, keep_best: how many of the newest and of the best stay.
        monitor: what is best, such as `val/loss`, and which way: `min` or `max`.
        warn: gets the text of a failure that the run survives.
        sync: called before a checkpoint is written: the disk has all that it speaks of.
        sealed: called after, from any thread.
        epoch: steps of one epoch, where a checkpoint is wanted at the ends of epochs (of short ones
            every few), as often as takes a twentieth of the time at most (`auto`); what is handed
            over meanwhile waits in memory. None: others say when.
    """

    def __init__(
        self,
        directory: Path,
        keep_last: int,
        keep_best: int,
        monitor: tuple[str, str],
        warn: Callable[[str], None],
        sync: Callable[[], None],
        epoch: int | None = None,
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._keep = keep_last, keep_best, monitor
        self._warn, self._sync, self._sealed = warn, sync, sealed
        self._every = math.inf if epoch is None else -(-APART // epoch) * epoch
        self._error: BaseException | None = None  # of the last one
        self._free_at = 0.0  # of time.monotonic: when `auto` may write the next
        self._waiting: dict[bool, dict[str, Any]] = {}  # copies by whether they are of the best
        self._wanted = False  # whether one of them is a checkpoint of its own
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def next_step(self, step: int) -> float:
        """The first step after `step` at which to ask `due`; infinite where others say when.

        It is the one before an epoch's last: the request reaches all ranks with the step after it.
        """
        return ((step + 1) // self._every + 1) * self._every - 1

    def due(self, step: int) -> bool:
        """Whether one is to be written after the step that follows, and would be now."""
        at_end = (step + 1) % self._every == 0
        return at_end and self._thread is None and time.monotonic() >= self._free_at

    def rest(self, seconds: float) -> None:
        """Let `auto` write none for so long."""
        self._free_at = time.monotonic() + seconds

    def submit(self, contents: dict[str, Any], best: bool, save: bool = True) -> None:
        """Copy this; `contents` are `save_checkpoint`'s.

        save: write it as soon as the disk is free; else before the next that is written.

        Raises LaunchError where the one before found that there is no run directory any more, or a
        row that could not be written.
        """
        if isinstance(self._error, Gone | Unwritten):
            raise self._error
        copies = {
            kind: {name: copied(array) for name, array in contents[kind].items()}
            for kind in ("model", "optimizer")
        }
        with self._lock:
            if best:
                self._waiting.clear()
            self._waiting[best] = {**contents, **copies}
            self._wanted |= save
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._write, name="saver")
                try:
                    self._thread.start()
                except BaseException:  # there can be none, or a Ctrl-C: nobody waits for it
                    self._thread = None
                    self._waiting.clear()
                    raise

    def save(self, contents: dict[str, Any]) -> None:
        """Write this now, as the last; LaunchError where the file system refuses."""
        self.wait()
        self._save(contents)

    def wait(self) -> None:
        """Wait until all that was submitted is on disk, or has failed."""
        if (thread := self._thread) is not None:
            thread.join()
        self._wanted = True
        self._write()

    def _write(self) -> None:
        """All that waits, the best first, where one is wanted."""
        while True:
            with self._lock:
                if not self._wanted or not self._waiting:
                    self._wanted, self._thread = False, None
                    return
                contents = self._waiting.pop(next(iter(self._waiting)))
                self._wanted = bool(self._waiting)
            began = time.monotonic()
            try:
                self._save(contents)
            except Exception as error:  # in a thread nobody else would hear of it
                if self._error is None and not isinstance(error, Gone | Unwritten):
                    with contextlib.suppress(LaunchError):  # a full disk takes no line of the log
                        self._warn(f"the run continues without a new checkpoint: {error}")
                self._error = error
            else:
                self._error = None
            self._free_at = time.monotonic() + 19 * (time.monotonic() - began)

    def _save(self, contents: dict[str, Any]) -> None:
        self._sync()
        save_checkpoint(self.directory, **contents)
        self._sealed()
        prune(self.directory, *self._keep)


def prune(directory: Path, keep_last: int, keep_best: int, monitor: tuple[str, str]) -> None:
    """Remove what is neither among the newest nor the best; point `last` and `best` at these.

    A directory that cannot be removed or linked is no reason to end a run.
    """
    paths = list_checkpoints(directory)
    values = {path: value for path in paths if (value := monitored(path, monitor)) is not None}
    sign = 1.0 if monitor[1] == "min" else -1.0
    ranked = sorted(values, key=lambda path: sign * values[path])  # of equal ones the first
    kept = {*paths[-keep_last:], *ranked[:keep_best]}
    for path in paths:
        if path not in kept:
            # Without its name first, so that nobody meets half of it.
            hidden = path.with_name(f".{path.name}.partial")
            with contextlib.suppress(OSError):
                path.rename(hidden)
                remove(hidden)
    for name, target in (("last", paths[-1:]), ("best", ranked[: min(keep_best, 1)])):
        if target:
            point(directory / name, target[0])


def monitored(path: Path, monitor: tuple[str, str]) -> float | None:
    """The value of the monitored metric at a checkpoint, if that was measured there."""
    state = peek_state(path)
    value = state.get("monitored") if state.get("monitor") == list(monitor) else None
    return value if isinstance(value, float) else None
