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
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...common import job
from ...common.words import plural
from ...data.loading.loader import order_name
from ...distributed.agreement import settled
from ...distributed.communicator import alone
from ...distributed.single import SingleCommunicator
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
SHARE = 0.006  # of a run's time: what its state in memory may cost, a hundredth with the pauses
FIRST = 16  # steps of a start that are no measure: they are captured and compiled
ENOUGH = 0.2  # seconds of steps that are one


class Saver:
    """Writes the checkpoints of a run, on rank 0.

    Under `checkpoint.every: auto` one is wanted at the ends of epochs (of short ones every few), as
    often as takes a twentieth of the time at most; what is handed over meanwhile waits in memory.
    Else others say when.

    Attributes:
        ahead: the steps before such an end at which to ask: 1 where the request reaches the other
            ranks with the step after it, 0 where there are none.
    """

    def __init__(self, run: TrainingRun) -> None:
        assert run.directory is not None
        self._of, self.directory = run.directory, run.directory.checkpoints
        self._keep, self._warn = run.config.checkpoint, run.output.warn
        self._monitor, self.ahead = run.state.monitor, int(run.comm.size > 1)
        epoch, auto = run.steps_per_epoch, self._keep.every == "auto"
        self._every = -(-APART // epoch) * epoch if auto else math.inf
        self._error: BaseException | None = None  # of the last one
        self._free_at = 0.0  # of time.monotonic: when `auto` may write the next
        self._waiting: dict[bool, dict[str, Any]] = {}  # copies by whether they are of the best
        self._wanted = False  # whether one of them is a checkpoint of its own
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def next_step(self, step: int) -> float:
        """The first step after `step` at which to ask `due`; infinite where others say when."""
        return ((step + self.ahead) // self._every + 1) * self._every - self.ahead

    def due(self, step: int) -> bool:
        """Whether one is to be written `ahead` steps after this one, and would be now."""
        at_end = (step + self.ahead) % self._every == 0
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

    def forget(self) -> None:
        """Leave out what waits, as a better one is about to be saved."""
        with self._lock:
            self._waiting.clear()

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
        self._of.sync()  # the disk has all that it speaks of
        save_checkpoint(self.directory, **contents)
        self._of.note_checkpoint()
        prune(self.directory, self._keep.keep_last, self._keep.keep_best, self._monitor)


class InMemory(Callback):
    """Keeps the newest state of a run in memory, for a further start of its job (see `job.py`).

    It is a checkpoint like those on the disk, on every host: as few steps apart as let it cost a
    hundredth of their time on each. It is copied after one step and written after the next, unless
    that has told that a rank asks for the end: a run that goes on from it would not hear of that
    again. The disk has the best checkpoint and the rows before, so that such a run finds them.
    Collective over `comm`.

    Attributes:
        comm: the ranks that take part, of which the first of each host writes.
        next: the next step to look at; infinite where there is none.
        every: steps between two of them; 0: not known yet, -1: none, as memory is full.
    """

    next: float = math.inf

    def on_start(self, run: TrainingRun) -> None:
        """Find out how often, where a launcher starts the job again."""
        if not job.name() or (run.directory is None and run.comm.num_nodes == 1):
            return
        self.comm = run.comm if run.comm.num_nodes > 1 else SingleCommunicator()
        place = job.enter()
        self._writes = place is not None and run.comm.local_rank == 0
        self.directory = (place or Path(os.devnull)) / "states" / run.id
        self._decided = self.directory / "every"
        self.next = self._since = run.step + FIRST
        self._before = 0, 0.0  # step and time from which steps are measured
        self._copy: dict[str, Any] | None = None
        self._spent = self._each = 0.0  # seconds, for the copy; of a step before it
        self._sums = 0.0, 0.0  # of what all so far have taken, and of the steps before them
        every = 0 if self._writes else -1
        with contextlib.suppress(OSError, ValueError):  # nothing was decided
            every = int(self._decided.read_text())
        self.every: int = self.comm.broadcast_object(every)

    def due(self, run: TrainingRun, step: int) -> float:
        """Whenever it wants to look."""
        return self.next

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Copy the state, or write the copy, where it is time for that: at step `next`."""
        if event.step < self.next or event.last or event.stop:
            return
        (step, then), now = self._before, time.perf_counter()
        if (copy := self._copy) is not None:
            self._copy = None
            if not event.asked[STOP]:
                if self._writes:
                    self._write(run, copy)
                self._before = event.step, time.perf_counter()
                self._decide(run, self._spent + self._before[1] - now)
        elif not step:
            self._before = event.step, now
        else:
            self._copy = self._copied(run, bool(self.every) or now - then > ENOUGH)
            self._spent = time.perf_counter() - now
            self._each = (now - then) / (event.step - step)
        if self._copy is not None:
            self.next = event.step + 1
        elif self.every:
            self.next = next_multiple(event.step, self.every) if self.every > 0 else math.inf
        else:  # ever rarer
            self.next = self._since + (1 << (event.step - self._since).bit_length())

    def _copied(self, run: TrainingRun, due: bool) -> dict[str, Any] | None:
        """What is to be written: what the ranks have in common from each, the rest from rank 0."""
        own, sent = None, None
        if run.directory is not None and due and run.checkpoints.idle():
            run.directory.flush()  # a kill leaves the rows of which it speaks
            if self.comm.size > 1:
                run.directory.sync()  # the loss of this host, too
            own = with_copies(contents(run))
            params = dict(run.model.named_parameters())
            rest = {name: array for name, array in own["model"].items() if name not in params}
            sent = own | {"model": rest, "optimizer": {}}
        sent = self.comm.broadcast_object(sent)
        if sent is None or run.directory is not None or not self._writes:
            return own or sent
        own = with_copies(checkpoint_of(run.step, run.model, run.optimizer, {}))
        return own | sent | {"model": own["model"] | sent["model"], "optimizer": own["optimizer"]}

    def _decide(self, run: TrainingRun, spent: float) -> None:
        """As many steps apart as the mean so far needs; some more, to decide it rarely."""
        self._sums = self._sums[0] + spent, self._sums[1] + self._each
        needed = float(self.comm.all_reduce(np.array(self._sums[0] / SHARE / self._sums[1]), "max"))
        if self.every / 2 <= needed <= self.every:
            return
        if math.isinf(needed):  # there was no room, on one host at least
            self.every = -1
            return
        first, self.every = not self.every, math.ceil(1.1 * needed)
        with contextlib.suppress(OSError):  # decided anew by the next start
            self._decided.write_text(str(self.every))
        if first:
            run.output.say(
                f"state in memory every {plural(self.every, 'step')} ({1000 * spent:.1f} ms each), "
                "from which this job goes on where it is started again"
            )

    def _write(self, run: TrainingRun, copy: dict[str, Any]) -> None:
        try:
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            save_checkpoint(self.directory, **copy)
            prune(self.directory, 1, 0, run.state.monitor)
        except (OSError, LaunchError) as error:
            self._spent = math.inf
            why = str(error).partition("\n")[0]  # the rest is of the disk
            run.output.warn(f"no state in memory, only checkpoints on the disk: {why}")


class Checkpoints(Callback):
    """Hands the state to the thread that writes it, on rank 0."""

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock, or by how long the disk takes."""
        when = math.inf if run.checkpoints is None else run.checkpoints.next_step(step)
        return min(next_multiple(step, run.plan.save), when)

    def on_start(self, run: TrainingRun) -> None:
        """Make what writes them."""
        if run.directory is not None:
            run.checkpoints = Saver(run)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """At the end of a run `end` writes it."""
        if run.checkpoints is not None and not (event.last or event.stop):
            self._submit(run, run.checkpoints, event)

    def _submit(self, run: TrainingRun, saver: Saver, event: Event) -> None:
        best, due = run.state.at_best and run.config.checkpoint.keep_best > 0, saver.due(event.step)
        save = event.save or (due and not saver.ahead)
        if save or best:
            run.requests.done(SAVE)
            saver.submit(contents(run), best, save)
            before = run.state.stop
            self._tell(run)
            if run.state.stop != before:  # a callback heard of it, and has had enough
                saver.submit(contents(run), best, save)
        if due and saver.ahead:
            run.requests.note(SAVE)

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The last one, before the test row, which a longer run would not have."""
        saver = run.checkpoints
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if run.directory is not None and saver is not None:
                last = contents(run)
                self._save_last(run, saver, last, ending.finished)
                ending.params_sha256 = params_sha256(last["model"])
        if run.comm.local_rank == 0:
            job.forget_states(run.id)
        self._tell(run)

    def _save_last(self, run: TrainingRun, saver: Saver, last: dict[str, Any], done: bool) -> None:
        """Write `last`, the state at the end of a run, which is `done` or can go on."""
        saver.save(last)

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
    best = run.state.best
    state = {
        "seed": run.config.seed,
        **run.where(),
        **vars(run.state),
        "best": best and asdict(best),
        "seconds": time.perf_counter() - run.started,
        "run": run.id,
        **run.directory.rows_so_far(),
        **run.data_state,
        "order": order_name(len(run.loader.dataset), run.loader.shuffle),
        "skips": None,
        **{name: keeper.state_dict() for name, keeper in run.stateful().items()},
    }
    return checkpoint_of(run.step, run.model, run.optimizer, state, run.config_text)
