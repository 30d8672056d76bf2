"""Files that grow line by line, without waiting for the disk.

On a network's file system each line can take longer than many steps. A thread writes them, all that
have come meanwhile at once; what it meets is raised by the next call.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import LaunchError
from ..files import beginning, open_to_write

__all__ = ["Lines", "Unwritten"]


class Unwritten(LaunchError):
    """A line could not be written; the run learns of it by itself, at its next one or before."""


class Lines:
    """Appends to a plain file; from any thread, in the order of the calls.

    Args:
        path: made where it is absent; OSError for a link.
        refusing: turns an OSError into a LaunchError, whose words are those of the Unwritten that
            is raised at the next call, and from then on at each.
        hashed: whether `sha256` is wanted.
    """

    def __init__(
        self,
        path: Path,
        refusing: Callable[[], AbstractContextManager[None]],
        hashed: bool = False,
    ) -> None:
        self._file = open(  # noqa: SIM115 - until `close`
            path, "a", encoding="utf-8", errors="backslashreplace", opener=open_to_write
        )
        self._refusing = refusing
        self._error: Unwritten | None = None
        self._waiting: list[str] = []
        self._lock, self._writing = threading.Lock(), threading.Lock()
        # Whatever ends the interpreter in good order, it writes first what has been added.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=path.name)
        self.length = os.fstat(self._file.fileno()).st_size  # bytes, with those not yet written
        self._digest = self._digest_of(self.length) if hashed else None

    def add(self, line: str) -> None:
        """Append a line soon; ValueError after `close`."""
        self._complain()
        line += "\n"
        with self._lock:
            self._waiting.append(line)
            content = line.encode(errors="backslashreplace")
            self.length += len(content)
            if self._digest is not None:
                self._digest.update(content)
            first = len(self._waiting) == 1
        if first:
            try:
                self._writer.submit(self._write)
            except RuntimeError:  # no thread can be started, or the interpreter is ending
                self.flush()

    def flush(self) -> None:
        """Wait until the system has all lines: a kill of this process does not lose them."""
        self._write()  # what the thread has not come to
        self._complain()

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        self.flush()
        with self._refusing():
            os.fsync(self._file.fileno())

    def sha256(self, length: int | None = None) -> str:
        """Of all lines, with those not yet written; of so many bytes where a length is given."""
        if length is not None and length != self.length:
            self.flush()
            return self._digest_of(length).hexdigest()
        assert self._digest is not None
        return self._digest.hexdigest()

    def trim(self, length: int) -> None:
        """Forget all after so many bytes."""
        self.flush()
        with self._refusing():
            os.ftruncate(self._file.fileno(), length)
            os.fsync(self._file.fileno())
        self.length = length
        if self._digest is not None:
            self._digest = self._digest_of(length)

    def close(self) -> None:
        """Write what was added, and close the file; OSError where that fails."""
        self._writer.shutdown()
        self._write()
        self._file.close()

    def _digest_of(self, length: int) -> hashlib._Hash:
        """Of the first bytes of the file, which has as many."""
        with self._refusing():
            return beginning(self._file.name, length)

    def _write(self) -> None:
        with self._writing:  # the lines of one call stay before those of the next
            with self._lock:
                lines, self._waiting = self._waiting, []
            try:
                with self._refusing():
                    self._file.write("".join(lines))
                    self._file.flush()
            except LaunchError as error:
                self._error = Unwritten(str(error))
            except Exception as error:  # it would end in the thread, where nobody sees it
                self._error = Unwritten(f"{self._file.name} cannot be written: {error!r}")

    def _complain(self) -> None:
        if self._file.closed:
            raise ValueError(f"{self._file.name} was closed: no line can be written any more")
        if self._error is not None:
            raise self._error
