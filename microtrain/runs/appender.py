"""Files that grow line by line, and reach the system once a second.

On a network's file system each line can take longer than many steps.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import LaunchError
from ..files import beginning, open_to_write, to_disk

__all__ = ["EVERY", "Lines", "Unwritten"]

EVERY = 1.0  # second, in which lines that come one after the other are written at once


class Unwritten(LaunchError):
    """A line could not be written, which ends a run."""


class Lines:
    """Appends to a plain file; one thread adds, any thread may `sync`.

    Args:
        path: made where it is absent; OSError for a link.
        refusing: turns an OSError into a LaunchError, whose words are those of the Unwritten that
            each method raises where the file system refuses.
    """

    def __init__(self, path: Path, refusing: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = open(path, "ab", 2**16, opener=open_to_write)  # noqa: SIM115 - until `close`
        self._refusing = refusing
        self._flushed_at = 0.0  # of time.monotonic
        self.length = os.fstat(self._file.fileno()).st_size  # bytes, with those not yet written
        self._digest = self._digest_of(self.length)

    def add(self, line: str) -> None:
        """Append a line; ValueError after `close`."""
        content = (line + "\n").encode(errors="backslashreplace")
        self._try(lambda: self._file.write(content))
        self._digest.update(content)
        self.length += len(content)

    def flush(self, after: float = 0.0) -> None:
        """Give the system all lines, which a kill of this process does not lose from then on.

        after: only where so many seconds have gone by since it was done last.
        """
        if time.monotonic() >= self._flushed_at + after:
            self._try(self._file.flush)
            self._flushed_at = time.monotonic()

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        self.flush()
        self._try(lambda: to_disk(self._file.fileno()))

    def sha256(self, length: int | None = None) -> str:
        """Of all lines, with those not yet written; of so many bytes where a length is given."""
        if length is None or length == self.length:
            return self._digest.hexdigest()
        self.flush()
        return self._digest_of(length).hexdigest()

    def trim(self, length: int) -> None:
        """Forget all after so many bytes."""
        self.flush()
        self._try(lambda: os.ftruncate(self._file.fileno(), length))
        self.sync()
        self.length, self._digest = length, self._digest_of(length)

    def close(self) -> None:
        """Write what was added, and close the file; OSError where that fails."""
        self._file.close()

    def _digest_of(self, length: int) -> hashlib._Hash:
        """Of the first bytes of the file, which has as many."""
        with self._refusing():
            return beginning(self._file.name, length)

    def _try(self, action: Callable[[], object]) -> None:
        if self._file.closed:
            raise ValueError(f"{self._file.name} was closed: no line can be written any more")
        try:
            with self._refusing():
                action()
        except LaunchError as error:
            raise Unwritten(str(error)) from error
