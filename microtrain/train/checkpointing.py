"""All that a run is at one step, as a checkpoint keeps it; and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, DataError
from ..random import begin_batch, get_rng_state, place, set_rng_state
from .custom_loop import optimizer_arrays, options, restore_optimizer
from .model_state import load_model_arrays, model_arrays

if TYPE_CHECKING:
    from ..nn import Module
    from .trainer import Trainer

__all__ = ["contents", "restore", "values"]


def contents(trainer: Trainer) -> dict[str, Any]:
    """A copy of all that the run of `trainer` is, as `save_checkpoint` takes it."""
    return {
        "step": trainer.step,
        "model": values(trainer.model),
        "optimizer": optimizer_arrays(trainer.model, trainer.optimizer),
        "state": _state(trainer),
        "config_text": trainer._config_text,
    }


def values(model: Module) -> dict[str, Any]:
    """A copy of what `model_arrays` gives."""
    return {name: np.array(array) for name, array in model_arrays(model).items()}


def _state(trainer: Trainer) -> dict[str, Any]:
    """All that a resume needs beside the arrays; rank 0."""
    assert trainer._run is not None
    measured = trainer.state.measured
    return {
        "seed": trainer.config.seed,
        **trainer._where(),
        "seconds": time.perf_counter() - trainer._progress.started,
        "metrics_bytes": trainer._run.metrics_bytes,
        "monitor": trainer._monitor(),
        "monitored": measured[1] if measured and measured[0] == trainer.step else None,
        "best": trainer._best_as_dict(),
        "random": get_rng_state(),
        "progress": trainer._progress.state(),
        "rows": trainer._schedule.state(),
        "options": options(trainer.optimizer),
        "callbacks": trainer.callbacks.state(),
        "skips": None if trainer.skips is None else trainer.skips.state_dict(),
        **trainer._data_state,
        "compile": trainer.execution.state(),
        "stop": _stop(trainer),
    }


def _stop(trainer: Trainer) -> dict[str, Any] | None:
    """Why the run is to end, or has ended, with the duration that this was decided under."""
    reason = trainer.state.stop
    decided = {"reason": reason, "ended": trainer.state.ended}
    return {**decided, "duration": str(trainer.config.train.duration)} if reason else None


def restore(trainer: Trainer, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """Let `trainer` be where `contents` was taken; DataError for another model or other data."""
    if trainer.total_steps is not None and state["step"] > trainer.total_steps:
        raise ConfigError(
            f"the run has taken {state['step']:,} steps, which is more than "
            f"train.duration={trainer.config.train.duration} ({trainer.total_steps:,} steps); "
            "give it a longer one"
        )
    if state["data_hash"] != trainer._data_state["data_hash"]:
        raise DataError(
            f"the data have changed since step {state['step']:,}: the run cannot go on with "
            "other rows; put them back, or start a new run"
        )
    try:
        load_model_arrays(trainer.model, model)
        restore_optimizer(trainer.model, trainer.optimizer, optimizer, state["options"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise DataError(f"the checkpoint does not fit the model: {error}") from error
    trainer.state.step, trainer.state.samples = state["step"], state["samples"]
    trainer.state.elapsed = state["seconds"]
    stop = state.get("stop")  # absent in a checkpoint of an earlier version
    if stop is not None and stop["duration"] == str(trainer.config.train.duration):
        trainer.state.stop, trainer.state.ended = stop["reason"], stop["ended"]
    if state["monitor"] == trainer._monitor():
        if (best := state["best"]) is not None:
            trainer.state.best = best["name"], best["value"], best["step"]
        if state["monitored"] is not None:  # at the end it is saved once more
            trainer.state.measured = trainer.step, state["monitored"]
    draws = place()
    set_rng_state(state["random"])
    begin_batch(*draws)  # as before any pass, where a pass is taken up in its middle too
    trainer.loader.epoch = trainer.step // trainer.steps_per_epoch
    trainer.execution.restore(state["compile"])
    trainer.callbacks.restore(state["callbacks"])
    if trainer.skips is not None:
        trainer.skips.load_state_dict(state["skips"])
    trainer._restored = state
