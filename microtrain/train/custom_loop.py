"""Checkpoints for a loop of one's own: `mt.save` and `mt.restore`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import to_host
from ..distributed import world
from ..distributed.agreement import from_root, together
from ..errors import DataError
from ..random import get_rng_state, set_rng_state
from ..runs.checkpoint import Checkpoint, list_checkpoints, load_newest_checkpoint, save_checkpoint
from ..runs.stored_state import check_loop
from .model_state import load_model_arrays, model_arrays

if TYPE_CHECKING:
    from ..data import DataLoader
    from ..distributed.communicator import Communicator
    from ..nn import Module
    from ..optim import Optimizer

__all__ = ["optimizer_arrays", "options", "restore", "restore_optimizer", "save"]


def save(
    directory: str | os.PathLike[str],
    step: int,
    *,
    model: Module,
    optimizer: Optimizer | None = None,
    state: Mapping[str, Any] | None = None,
    keep: int = 2,
    comm: Communicator | None = None,
) -> None:
    """Write a checkpoint of a training loop; collective, rank 0 writes.

    The checkpoint appears whole or not at all. Random numbers are kept too, so that a loop that
    goes on from it draws what it would have drawn.

    Args:
        directory: where checkpoints of this loop go, `directory/step-000100`.
        step: names it.
        model: with equal values on all ranks; a `DataParallel` is saved under its model's names.
        optimizer: its state and options are kept.
        state: whatever else the loop needs, as JSON has it.
        keep: how many of the newest stay.
        comm: the ranks of the loop.

    Raises LaunchError where the file system refuses, TypeError for a state (or an extra state of a
    module) that is no JSON; on every rank.

    Example:
        >>> mt.save("checkpoints", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    """
    ranks = world() if comm is None else comm
    together(ranks, lambda: _save(ranks, directory, step, model, optimizer, state, keep))


def _save(
    ranks: Any, directory: Any, step: int, model: Any, optimizer: Any, state: Any, keep: int
) -> None:
    if ranks.rank != 0:
        return
    from ..runs.keeper import prune

    with contextlib.suppress(OSError):  # told by the writing itself
        os.makedirs(directory, exist_ok=True)
    save_checkpoint(
        directory,
        step,
        model=model_arrays(model),
        optimizer={} if optimizer is None else optimizer_arrays(model, optimizer),
        state={
            "loop": dict(state or {}),
            "random": get_rng_state(),
            "options": [] if optimizer is None else options(optimizer),
        },
        config_text="",
    )
    prune(Path(directory), keep, 0, ("", "min"))


def restore(
    directory: str | os.PathLike[str],
    *,
    model: Module,
    optimizer: Optimizer | None = None,
    loader: DataLoader | None = None,
    comm: Communicator | None = None,
) -> dict[str, Any] | None:
    """Take up a training loop where `save` left it; collective.

    The newest whole checkpoint is read on rank 0 and given to all; which it is, is said on standard
    error. A damaged one is named in a warning and passed over.

    Args:
        directory: what `save` was given.
        model, optimizer: of the same kind, freshly made; their values are replaced.
        loader: where the state has an `epoch`, the pass that was done, it goes on with the next.
        comm: the ranks of the loop.

    Returns:
        The state given to `save`, with `step`; None where there is no checkpoint yet.

    Raises DataError on every rank for a checkpoint that does not fit, or where all are damaged.

    Example:
        >>> state = mt.restore("checkpoints", model=model, optimizer=optimizer, loader=loader)
        >>> start = state["epoch"] + 1 if state else 0
    """
    ranks = world() if comm is None else comm
    checkpoint = from_root(ranks, lambda: _read(directory, optimizer))
    if checkpoint is None:
        return None
    together(ranks, lambda: _take_over(checkpoint, model, optimizer))
    set_rng_state(checkpoint.state["random"])
    if ranks.rank == 0:
        print(f"restored {checkpoint.path}, step {checkpoint.step:,}", file=sys.stderr)
    state = {**checkpoint.state["loop"], "step": checkpoint.step}
    if loader is not None and "epoch" in state:
        loader.epoch = state["epoch"] + 1
    return state


def _read(directory: str | os.PathLike[str], optimizer: Optimizer | None) -> Checkpoint | None:
    if not list_checkpoints(Path(directory)):
        return None
    groups = () if optimizer is None else optimizer.param_groups
    return load_newest_checkpoint(
        Path(directory),
        lambda text: warnings.warn(text, stacklevel=6),
        lambda found: check_loop(found, groups),
    )


def _take_over(checkpoint: Checkpoint, model: Module, optimizer: Optimizer | None) -> None:
    try:
        load_model_arrays(model, checkpoint.model)
        if optimizer is not None:
            restore_optimizer(model, optimizer, checkpoint.optimizer, checkpoint.state["options"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise DataError(f"{checkpoint.path} does not fit: {error}") from error


# The state of an optimizer in a checkpoint: by parameter name, whatever its groups --------------


def optimizer_arrays(model: Module, optimizer: Optimizer) -> dict[str, Any]:
    """Copies of an optimizer's states, named `<parameter>.<state>`."""
    return {
        f"{name}.{state}": np.array(to_host(array))
        for name, param in model.named_parameters()
        if param in optimizer.storage.place
        for state, array in optimizer.state_of(param).items()
    }


def options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group, as JSON has them."""
    return [
        {key: _plain(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):  # a rate from a schedule of the user's own
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def restore_optimizer(
    model: Module, optimizer: Optimizer, arrays: Mapping[str, Any], groups: list[dict[str, Any]]
) -> None:
    """Give an optimizer what `optimizer_arrays` and `options` took; KeyError, ValueError."""
    states: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        param, _, kind = name.rpartition(".")
        states.setdefault(param, {})[kind] = array
    params = dict(model.named_parameters())
    for name, values in states.items():
        optimizer.load_state_of(params[name], values)
    for group, kept in zip(optimizer.param_groups, groups, strict=True):
        for key, value in kept.items():
            group[key] = tuple(value) if isinstance(value, list) else value
