"""Checkpoints of a run: when they are written, by whom, and what they hold."""

from __future__ import annotations

import math
import time
from typing import Any

from ...data.loading.sampler import order_name
from ...distributed.agreement import settled
from ...distributed.communicator import alone
from ...runs.arrays import params_sha256
from ...runs.checkpoint import name_of
from ...runs.saver import Saver
from ..model_state import checkpoint_of
from ..run import TrainingRun, next_multiple
from ..stop_requests import SAVE
from .base import Callback, Ending, Event


class Checkpoints(Callback):
    """Hands the state to the thread that writes it, on rank 0."""

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock, or by how long the disk takes."""
        saver = run.checkpoints
        when = math.inf if saver is None else saver.next_step(step)
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
            again = run.state.stop != before  # a callback heard of it, and has had enough
            if again:
                saver.submit(contents(run), best, event.save)
        if saver.due(event.step):
            run.requests.note(SAVE)

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The last one, before the test row, which a longer run would not have."""
        saver = run.checkpoints
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if run.directory is not None and saver is not None:
                last = contents(run)
                saver.save(last)
                ending.params_sha256 = params_sha256(last["model"])
        self._tell(run)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """What was handed over is on disk before anybody speaks of it."""
        if run.checkpoints is not None:
            run.checkpoints.wait()

    def _tell(self, run: TrainingRun) -> None:
        if run.directory is not None:  # when it saves is decided by the first rank's disk
            with alone("on_save is called on rank 0 alone"):
                run.notify("on_save", run.path / "checkpoints" / name_of(run.step))


def contents(run: TrainingRun) -> dict[str, Any]:
    """All that a run is, as `save_checkpoint` takes it; the arrays are the run's own."""
    assert run.directory is not None
    state = {
        "seed": run.config.seed,
        **run.where(),
        "seconds": time.perf_counter() - run.started,
        "run": run.directory.info("id"),
        **run.directory.rows_so_far(),
        **run.state.state_dict(),
        **run.data_state,
        "order": order_name(len(run.loader.dataset), run.loader.shuffle),
        "skips": None,
        **{name: keeper.state_dict() for name, keeper in run.stateful().items()},
    }
    return checkpoint_of(run.step, run.model, run.optimizer, state, run.config_text)
