"""Checkpoints of a run: what they hold, when they are written, and how a run takes one up."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from ..distributed.agreement import settled
from ..distributed.communicator import alone
from ..errors import ConfigError, DataError
from ..nn import Module
from ..random import begin_batch, get_rng_state, place, set_rng_state
from ..runs.checkpoint import name_of
from ..runs.keeper import Saver
from ..runs.provenance import params_sha256
from .custom_loop import optimizer_arrays, options, restore_optimizer
from .model_state import load_model_arrays, model_arrays
from .state import Ending, Event, Observer, TrainingRun, next_multiple
from .wishes import SAVE

__all__ = ["Checkpoints", "contents", "restore", "values"]


class Checkpoints(Observer):
    """Hands copies of the state to the thread that writes them, on rank 0."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        directory, keep = run.directory, run.config.checkpoint
        if directory is not None:
            run.checkpoints = Saver(
                directory.checkpoints,
                keep.keep_last,
                keep.keep_best,
                run.state.monitor,
                run.output.warn,
                directory.sync,
                epoch=run.steps_per_epoch if keep.every == "auto" else None,
            )

    def due(self, step: int) -> float:
        """Where it is not by the clock, or by how long the disk takes."""
        keeper = self.run.checkpoints
        when = math.inf if keeper is None else keeper.next_step(step)
        return min(next_multiple(step, self.run.parts.plan.save), when)

    def attend(self, event: Event) -> None:
        """At the end of a run `end` writes it."""
        run, keeper = self.run, self.run.checkpoints
        if keeper is None or event.last or event.stop:
            return
        if event.save:
            best = run.state.at_best and run.config.checkpoint.keep_best > 0
            run.wishes.done(SAVE)
            keeper.submit(contents(run), best)
            before = run.state.stop
            tell_of_save(run)
            if run.state.stop != before:  # a callback heard of it, and has had enough
                keeper.submit(contents(run), best)
        if keeper.due(event.step):
            run.wishes.note(SAVE)

    def end(self, ending: Ending) -> None:
        """The last one, before the test row, which a longer run would not have."""
        run = self.run
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if run.checkpoints is not None:
                last = contents(run)
                run.checkpoints.save(last)
                ending.params_sha256 = params_sha256(last["model"])

    def failed(self, error: BaseException) -> None:
        """What was handed over is on disk before anybody speaks of it."""
        if self.run.checkpoints is not None:
            self.run.checkpoints.wait()


def tell_of_save(run: TrainingRun) -> None:
    """Call the users' `on_save`."""
    if run.checkpoints is not None:  # when it saves is decided by the first rank's disk
        with alone("on_save is called on rank 0 alone"):
            run.callbacks.call("on_save", run.path / "checkpoints" / name_of(run.step))


def contents(run: TrainingRun) -> dict[str, Any]:
    """A copy of all that a run is, as `save_checkpoint` takes it; rank 0."""
    assert run.directory is not None
    state = {
        "seed": run.config.seed,
        **run.where(),
        "seconds": time.perf_counter() - run.started,
        "metrics_bytes": run.directory.metrics_bytes,
        **run.state.state_dict(),
        "random": get_rng_state(),
        "options": options(run.optimizer),
        **run.parts.data_state,
        **{name: part.state_dict() for name, part in run.stateful().items()},
    }
    return {
        "step": run.step,
        "model": values(run.model),
        "optimizer": optimizer_arrays(run.model, run.optimizer),
        "state": {"skips": None, **state},
        "config_text": run.config_text,
    }


def values(model: Module) -> dict[str, Any]:
    """A copy of what `model_arrays` gives."""
    return {name: np.array(array) for name, array in model_arrays(model).items()}


def restore(run: TrainingRun, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """Let `run` be where `contents` was taken; DataError for another model or other data."""
    total = run.total_steps
    if total is not None and state["step"] > total:
        raise ConfigError(
            f"the run has taken {state['step']:,} steps, which is more than "
            f"train.duration={run.config.train.duration} ({total:,} steps); give it a longer one"
        )
    if state["data_hash"] != run.parts.data_state["data_hash"]:
        raise DataError(
            f"the data have changed since step {state['step']:,}: the run cannot go on with "
            "other rows; put them back, or start a new run"
        )
    try:
        load_model_arrays(run.model, model)
        restore_optimizer(run.model, run.optimizer, optimizer, state["options"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise DataError(f"the checkpoint does not fit the model: {error}") from error
    run.state.load_state_dict(state)
    draws = place()
    set_rng_state(state["random"])
    begin_batch(*draws)  # as before any pass, where a pass is taken up in its middle too
    run.loader.epoch = run.step // run.steps_per_epoch
    for name, part in run.stateful().items():
        if name in state:  # an observer that the run did not have before starts afresh
            part.load_state_dict(state[name])
