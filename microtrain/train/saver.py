"""Checkpoints of a run: written beside the training, pruned, and linked. Rank 0 only.

The loop hands over a copy of the state and goes on; a thread writes it, since waiting for a disk
would cost a fast run more than its steps. Where a disk is slower than the checkpoints come, the
newest state takes the place of one that still waits to be written, unless that is a best one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import LaunchError
from .checkpoint import list_checkpoints, save_checkpoint

__all__ = ["Saver", "monitored", "prune"]


class Saver:
    """Writes checkpoints into one directory.

    Args:
        directory: the run's `checkpoints`.
        keep_last, keep_best: how many of the newest and of the best stay.
        mode: `min` or `max`: which monitored value is the best.
        warn: gets the text of a failure that the run survives.
    """

    def __init__(
        self,
        directory: Path,
        keep_last: int,
        keep_best: int,
        mode: str,
        warn: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self._keep = keep_last, keep_best, mode
        self._warn = warn
        self._waiting: tuple[bool, dict[str, Any]] | None = None
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, contents: dict[str, Any], best: bool) -> None:
        """Write this when the disk is free; `contents` are `save_checkpoint`'s and not changed."""
        with self._lock:
            while self._waiting is not None and self._waiting[0] and not best:
                self._lock.wait()
            self._waiting = best, contents
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="saver")
                self._thread.start()

    def save(self, contents: dict[str, Any]) -> None:
        """Write this now; LaunchError where the file system refuses."""
        self.wait()
        save_checkpoint(self.directory, **contents)
        prune(self.directory, *self._keep)

    def wait(self) -> None:
        """Wait until all that was submitted is on disk, or has failed."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _write(self) -> None:
        while True:
            with self._lock:
                if self._waiting is None:
                    self._thread = None
                    return
                (_, contents), self._waiting = self._waiting, None
                self._lock.notify_all()
            try:
                save_checkpoint(self.directory, **contents)
                prune(self.directory, *self._keep)
            except (LaunchError, OSError) as error:
                self._warn(f"the run goes on without a new checkpoint: {error}")


def prune(directory: Path, keep_last: int, keep_best: int, mode: str) -> None:
    """Remove what is neither among the newest nor the best; point `last` and `best` at these.

    A directory that cannot be removed or linked is no reason to end a run.
    """
    found = list_checkpoints(directory)
    values = {path: value for path in found if (value := monitored(path)) is not None}
    sign = 1.0 if mode == "min" else -1.0
    ranked = sorted(values, key=lambda path: (sign * values[path], path.name))
    kept = {*found[-keep_last:], *ranked[:keep_best]}
    for path in found:
        if path not in kept:
            # Without its name first, so that nobody meets half of it.
            hidden = path.with_name(f".{path.name}.partial")
            with contextlib.suppress(OSError):
                path.rename(hidden)
                shutil.rmtree(hidden)
    for name, target in (("last", found[-1:]), ("best", ranked[:1])):
        if target:
            link = directory / f".{name}.partial"
            with contextlib.suppress(OSError):  # a file system without links
                link.unlink(missing_ok=True)
                link.symlink_to(target[0].name)
                link.replace(directory / name)


def monitored(path: Path) -> float | None:
    """The value of the monitored metric at a checkpoint, if it was measured there."""
    try:
        value = json.loads((path / "state.json").read_bytes()).get("monitored")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, float) else None
