"""The checkpoints of a run: when one is written, what it holds, and which are kept.

Rank 0 writes checkpoints beside the training: the loop hands over the state, which is copied, and
goes on; a thread writes the copy, since waiting for a disk would cost a fast run more than its
steps. A newer state takes the place of one that still waits, but that of the best only if it is
better. So the best at the end is the best of all that were measured; it is written with the next
checkpoint, and before it, so that a run that goes on from that finds the best as well.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...common import job
from ...common.words import plural
from ...data.loading.loader import order_name
from ...distributed.agreement import settled
from ...distributed.communicator import alone
from ...errors import LaunchError
from ...runs.arrays import copied, params_sha256
from ...runs.checkpoint import name_of, prune, save_checkpoint
from ...runs.directory import Gone
from ...runs.metrics import Unwritten
from ..build_run import SAVE, STOP
from ..model_state import checkpoint_of
from ..run import TrainingRun, next_multiple
from .base import Callback, Ending, Event

APART = 16  # steps: `auto` looks at the clock less often, which costs as much as a small step
SHARE = 0.01  # of a run's time: what its state in memory may cost
FIRST = 16  # steps of a start that are no measure: they are captured and compiled
ENOUGH = 0.2  # seconds of steps that are one


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
        monitor: Sequence[str],
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

    def idle(self) -> bool:
        """Whether nothing waits or is written; what waits is from now on."""
        with self._lock:
            if self._waiting:
                self._start()
            return self._thread is None

    def submit(self, contents: dict[str, Any], best: bool, save: bool = True) -> None:
        """Copy this; `contents` are `save_checkpoint`'s.

        save: write it as soon as the disk is free; else before the next that is written.

        Raises LaunchError where the one before found that there is no run directory any more, or a
        row that could not be written.
        """
        if isinstance(self._error, Gone | Unwritten):
            raise self._error
        copy = with_copies(contents)
        with self._lock:
            if best:
                self._waiting.clear()
            self._waiting[best] = copy
            if save or self._wanted:
                self._start()

    def _start(self) -> None:
        """Write all that waits, beside the training; the lock is held."""
        self._wanted = True
        if self._thread is None:
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


class InMemory:
    """Keeps the newest state of a run in memory, for a further start of its job (see `job.py`).

    It is a checkpoint like those on the disk: as few steps apart as let it cost a hundredth of
    their time. It is copied after one step and written after the next, unless that has told that a
    rank asks for the end: a run that goes on from it would not hear of that again. The disk has the
    best checkpoint before, so that such a run finds it.

    Attributes:
        every: steps between two of them; 0: not known yet, -1: none, as memory is full.
    """

    def __init__(self, place: Path, run: TrainingRun) -> None:
        assert run.directory is not None
        self.directory = place / "states" / run.directory.info("id")
        self._decided = self.directory / "every"
        self._since = run.step + FIRST
        self._before = 0, 0.0  # step and time from which steps are measured
        self._copy: dict[str, Any] | None = None
        self._spent = self._each = 0.0  # seconds, for the copy; of a step before it
        self._sums = 0.0, 0.0  # of what all so far have taken, and of the steps before them
        self.every = 0
        with contextlib.suppress(OSError, ValueError):  # nothing was decided
            self.every = int(self._decided.read_text())

    def next_step(self, step: int) -> float:
        """The next step to look at; infinite where others say when."""
        if self._copy is not None:
            return step + 1
        return next_multiple(step, self.every) if self.every > 0 else math.inf

    def look(self, run: TrainingRun, event: Event) -> None:
        """Copy the state, or write the copy, where it is time for that."""
        (step, then), now = self._before, time.perf_counter()
        if (copy := self._copy) is not None:
            self._copy = None
            if not event.asked[STOP] and self._write(run, copy):
                self._before = event.step, time.perf_counter()
                self._decide(run, self._spent + self._before[1] - now)
            return
        if not step and event.step >= self._since:
            self._before = event.step, now
        due = event.step % self.every == 0 if self.every > 0 else now - then > ENOUGH
        if step and event.step > step and due and self.every >= 0 and run.checkpoints.idle():
            self._copy = with_copies(contents(run))
            self._spent = time.perf_counter() - now
            self._each = (now - then) / (event.step - step)

    def _decide(self, run: TrainingRun, spent: float) -> None:
        """As many steps apart as the mean so far needs; some more, to decide it rarely."""
        self._sums = self._sums[0] + spent, self._sums[1] + self._each
        needed = self._sums[0] / SHARE / self._sums[1]
        if self.every / 2 <= needed <= self.every:
            return
        first, self.every = not self.every, math.ceil(1.1 * needed)
        with contextlib.suppress(OSError):  # decided anew by the next start
            self._decided.write_text(str(self.every))
        if first:
            run.output.say(
                f"state in memory every {plural(self.every, 'step')} ({1000 * spent:.1f} ms each), "
                "from which this job goes on where it is started again"
            )

    def _write(self, run: TrainingRun, copy: dict[str, Any]) -> bool:
        assert run.directory is not None
        try:
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            run.directory.flush()  # a kill leaves the rows of which it speaks
            save_checkpoint(self.directory, **copy)
            prune(self.directory, 1, 0, run.state.monitor)
        except (OSError, LaunchError) as error:
            if isinstance(error, Gone | Unwritten):
                raise
            self.every = -1
            why = str(error).partition("\n")[0]  # the rest is of the disk
            run.output.warn(f"no state in memory, only checkpoints on the disk: {why}")
        return self.every >= 0


class Checkpoints(Callback):
    """Hands the state to the thread that writes it, on rank 0."""

    _in_memory: InMemory | None = None

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock, or by how long the disk takes."""
        saver, memory = run.checkpoints, self._in_memory
        when = math.inf if saver is None else saver.next_step(step)
        when = when if memory is None else min(when, memory.next_step(step))
        return min(next_multiple(step, run.plan.save), when)

    def on_start(self, run: TrainingRun) -> None:
        """Make what writes them, on rank 0."""
        keep = run.config.checkpoint
        if run.directory is not None:
            run.checkpoints = Saver(
                run.path / "checkpoints",
                keep.keep_last,
                keep.keep_best,
                run.state.monitor,
                warn=run.output.warn,
                sync=run.directory.sync,
                sealed=run.directory.note_checkpoint,
                epoch=run.steps_per_epoch if keep.every == "auto" else None,
            )
            if (place := job.enter()) is not None:
                self._in_memory = InMemory(place, run)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """At the end of a run `end` writes it."""
        saver = run.checkpoints
        if saver is None or event.last or event.stop:
            return
        best = run.state.at_best and run.config.checkpoint.keep_best > 0
        if event.save or best:
            run.requests.done(SAVE)
            saver.submit(contents(run), best, event.save)
            before = run.state.stop
            self._tell(run)
            if run.state.stop != before:  # a callback heard of it, and has had enough
                saver.submit(contents(run), best, event.save)
        if saver.due(event.step):
            run.requests.note(SAVE)
        if self._in_memory is not None:
            self._in_memory.look(run, event)

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The last one, before the test row, which a longer run would not have."""
        saver = run.checkpoints
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if run.directory is not None and saver is not None:
                last = contents(run)
                saver.save(last)
                ending.params_sha256 = params_sha256(last["model"])
                job.forget_states(run.directory.info("id"))
        self._tell(run)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """What was handed over is on disk before anybody speaks of it."""
        if run.checkpoints is not None:
            run.checkpoints.wait()

    def _tell(self, run: TrainingRun) -> None:
        if run.directory is not None:  # when it saves is decided by the first rank's disk
            with alone("on_save is called on rank 0 alone"):
                run.notify("on_save", run.path / "checkpoints" / name_of(run.step))


def with_copies(contents: dict[str, Any]) -> dict[str, Any]:
    """`contents` whose arrays the run does not change."""
    return contents | {
        kind: {name: copied(array) for name, array in contents[kind].items()}
        for kind in ("model", "optimizer")
    }


def contents(run: Any) -> dict[str, Any]:
    """All that a run is, as `save_checkpoint` takes it; the arrays are the run's own."""
    assert run.directory is not None
    state = {
        "seed": run.config.seed,
        **run.where(),
        **asdict(run.state),
        "seconds": time.perf_counter() - run.started,
        "run": run.directory.info("id"),
        **run.directory.rows_so_far(),
        **run.data_state,
        "order": order_name(len(run.loader.dataset), run.loader.shuffle),
        "skips": None,
        **{name: keeper.state_dict() for name, keeper in run.stateful().items()},
    }
    return checkpoint_of(run.step, run.model, run.optimizer, state, run.config_text)
