"""Checkpoints of which every rank writes a slice; what of it the ranks do together.

Each rank copies its slice and writes it in a thread of its own. Threads do not talk to other ranks:
the training threads do, after steps that are equal on all of them. While slices are written that is
after every step, one number; once all are on disk, rank 0 gets their hashes and seals the
checkpoint, in its thread. When one is written is decided by rank 0, as `Saver` does for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..distributed.agreement import settled
from ..errors import LaunchError
from ..runs.directory import Gone
from ..runs.keeper import APART, Saver, prune
from ..runs.lines import Unwritten
from ..runs.slices import Slice, prepare, seal_slices, take_slice, write_slice
from .state import next_multiple

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["SliceSaver"]

Entries = dict[str, dict[str, Any]]  # what the manifest says of files
Outcome = Entries | Exception


class SliceSaver(Saver):
    """A `Saver` of all ranks; every call but `due` and `wait` is collective.

    Args:
        comm: the ranks.
        writers: those that write, in the order of their slices.
        shared: names of the model's arrays that all ranks have.
        options: as those of `Saver`; of other ranks than the first, which does not use them.
    """

    def __init__(
        self, comm: Communicator, writers: Sequence[int], shared: Sequence[str], **options: Any
    ) -> None:
        super().__init__(**options)
        self._comm, self._slices, self._shared = comm, len(writers), shared
        self._number = writers.index(comm.rank) if comm.rank in writers else None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._job: Future[Any] | None = None  # of this rank's thread
        self._doing = ""  # write or seal, of `_current`; these and `_waiting` alike on all ranks
        self._current: Slice | None = None
        self._waiting: Slice | None = None
        self._began = 0.0
        self._copy_free = threading.Event()  # no thread reads it
        self._copy_free.set()
        with settled(comm):
            if comm.rank == 0:
                prepare(self.directory)

    def next_step(self, step: int) -> float:
        """The first step after `step` at which `poll` or `due` is to be called."""
        own = super().next_step(step)
        if self._doing:
            return min(own, step + 1)
        return own if self._waiting is None else min(own, next_multiple(step, APART))

    def due(self, step: int) -> bool:
        """Whether one is to be written after the step that follows, and would be now."""
        return not self._doing and self._waiting is None and super().due(step)

    def poll(self, step: int) -> None:
        """Go on with what is under way after this step."""
        if self._doing or (self._waiting is not None and step % APART == 0):
            self._go_on()

    def submit(self, contents: dict[str, Any], best: bool, can_wait: bool = False) -> None:
        """Copy this rank's slice of it, and write that when all ranks' disks are free.

        contents: on rank 0 as `save_checkpoint` takes them; elsewhere the arrays that all have.

        Raises LaunchError on every rank where rank 0 found that there is no run directory any more,
        or a row that could not be written.
        """
        with settled(self._comm):
            if isinstance(self._error, Gone | Unwritten):
                raise self._error
        if self._waiting is not None and self._is_best and not best:
            self._finish()
            self._begin()
        self._copy_free.wait()
        self._can_wait = can_wait and (self._waiting is None or self._can_wait)
        part = self._slice(contents)
        self._waiting, self._is_best = replace(part, arrays=self._copies(part.arrays)), best
        self._go_on()

    def save(self, contents: dict[str, Any]) -> None:
        """Write this now, as the last; LaunchError on every rank where any file system refuses."""
        self.finish()
        self._memory.clear()
        part = self._slice(contents)
        found = self._comm.gather_object(self._written(part))
        with settled(self._comm):
            if found is not None:
                self._seal(part, found)

    def finish(self) -> None:
        """Wait until all that was submitted is on disk, or has failed."""
        self._finish()
        if self._waiting is not None:
            self._begin()
            self._finish()

    def wait(self) -> None:
        """Wait for this rank's thread; not collective, and nothing is sealed that was not."""
        if self._job is not None:
            wait_for([self._job])

    def _slice(self, contents: dict[str, Any]) -> Slice:
        return take_slice(contents, self._shared, self._slices, self._number)

    def _go_on(self) -> None:
        idle = self._job is None or self._job.done()
        in_time = self._comm.rank > 0 or not self._can_wait or time.monotonic() >= self._free_at
        idle, in_time = self._comm.all_reduce(np.array([idle, in_time]), "min").tolist()
        if idle and self._doing:
            self._advance()
        if in_time and not self._doing and self._waiting is not None:
            self._begin()

    def _begin(self) -> None:
        """Let every rank's thread write its slice of what waits."""
        assert self._waiting is not None
        part = self._waiting
        self._waiting = None
        self._current, self._doing, self._began = part, "write", time.monotonic()
        self._copy_free.clear()
        self._job = self._pool.submit(self._written, part)

    def _advance(self) -> None:
        """What comes after a job that all ranks' threads have done."""
        if self._doing == "write":
            assert self._job is not None
            assert self._current is not None
            found = self._comm.gather_object(self._job.result())
            self._doing, self._job = "seal", None
            if found is not None:
                self._job = self._pool.submit(self._seal, self._current, found)
            return
        if self._job is not None:
            self._note(self._job.exception())
        self._doing, self._job, self._current = "", None, None
        self._free_at = time.monotonic() + 19 * (time.monotonic() - self._began)

    def _finish(self) -> None:
        while self._doing:
            self.wait()
            self._comm.barrier()  # nobody begins the next one while rank 0 seals this one
            self._advance()

    def _written(self, part: Slice) -> Outcome:
        """What has become of this rank's slice; an error, too, has to reach rank 0."""
        rank = self._comm.rank
        try:
            if rank == 0:
                self._sync()
            return write_slice(self.directory, part, self._copy_free.set)
        except Exception as error:  # in a thread nobody else would hear of it
            return error if rank == 0 else LaunchError(f"rank {rank}: {error}")
        finally:
            self._copy_free.set()

    def _seal(self, part: Slice, found: Sequence[Outcome]) -> None:
        seal_slices(self.directory, part, found)
        self._sealed()
        prune(self.directory, *self._keep)
