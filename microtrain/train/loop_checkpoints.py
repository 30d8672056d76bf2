"""Checkpoints for a loop of one's own: `mt.save` and `mt.restore`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.agreement import settled
from ..distributed.connection import ranks_of
from ..files import json_bytes
from ..random import set_rng_state
from ..runs.checkpoint import Checkpoint, had_checkpoints, load_newest_checkpoint, save_checkpoint
from ..runs.saver import prune
from ..runs.state import check_loop
from ..runs.tree import put_together, take_apart, word
from .model_state import checkpoint_of, from_rank_0, share_arrays, take_over

if TYPE_CHECKING:
    from ..data import DataLoader
    from ..distributed.communicator import Communicator
    from ..nn import Module
    from ..optim import Optimizer


def save(
    directory: str | os.PathLike[str],
    step: int,
    *,
    model: Module,
    optimizer: Optimizer | None = None,
    state: Mapping[str, Any] | None = None,
    keep: int = 2,
    comm: Communicator | Any = None,
) -> None:
    """Write a checkpoint of a training loop; collective: rank 0 writes.

    The checkpoint appears whole or not at all. Random numbers are kept too, so that a loop that
    goes on from it draws what it would have drawn.

    Args:
        directory: where checkpoints of this loop go, `directory/step-000100`.
        step: names it.
        model: with equal values on all ranks; a `DataParallel` is saved under its model's names.
        optimizer: its state and options are kept.
        state: whatever else the loop needs, by text keys: numbers (infinite ones and NaN too),
            text, True, False, None, and dicts, lists and tuples of them. So every `state_dict()` of
            a schedule.
        keep: how many of the newest stay.
        comm: the ranks of the loop, a communicator of microtrain or mpi4py; None: those of the
            model, else all.

    Raises LaunchError where the file system refuses, TypeError for anything else in the state,
    naming the keys that lead there, and for an extra state of a module that is no JSON; on every
    rank.

    Example:
        >>> mt.save("checkpoints", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    """
    ranks = ranks_of(comm, model, optimizer)
    with settled(ranks):
        if ranks.rank == 0:
            with contextlib.suppress(OSError):  # told by the writing itself
                os.makedirs(directory, exist_ok=True)
            contents = checkpoint_of(step, model, optimizer, _stored(state or {}, step))
            save_checkpoint(Path(directory), **contents)
            prune(Path(directory), keep, 0, ("", "min"))


def restore(
    directory: str | os.PathLike[str],
    *,
    model: Module,
    optimizer: Optimizer | None = None,
    loader: DataLoader | None = None,
    comm: Communicator | Any = None,
) -> dict[str, Any] | None:
    """Take up a training loop where `save` left it; collective.

    The newest whole checkpoint is read on rank 0 and given to all; which it is, is said on standard
    error. A damaged one is named in a warning and passed over.

    Args:
        directory: what `save` was given.
        model, optimizer: of the same kind, freshly made; their values are replaced.
        loader: where the state has an `epoch`, the pass that was done, it goes on with the next.
        comm: the ranks of the loop, a communicator of microtrain or mpi4py; None: those of the
            model, else all.

    Returns:
        The state given to `save`, with `step`; None where there is no checkpoint yet.

    Raises DataError on every rank for a checkpoint that does not fit, or where all are damaged.

    Example:
        >>> state = mt.restore("checkpoints", model=model, optimizer=optimizer, loader=loader)
        >>> start = state["epoch"] + 1 if state else 0
    """
    ranks = ranks_of(comm, model, optimizer, loader)

    def read() -> Checkpoint | None:
        if not had_checkpoints(Path(directory)):
            return None
        groups = () if optimizer is None else optimizer.param_groups
        return load_newest_checkpoint(
            Path(directory),
            lambda text: warnings.warn(text, stacklevel=6),
            lambda checkpoint: check_loop(checkpoint, groups, _given),
        )

    checkpoint = from_rank_0(ranks, read)
    if checkpoint is None:
        return None
    with settled(ranks):
        take_over(checkpoint, model, optimizer)
    share_arrays(ranks, model, optimizer)
    set_rng_state(checkpoint.state["random"])
    if ranks.rank == 0:
        print(f"restored {checkpoint.path}, step {checkpoint.step:,}", file=sys.stderr)
    loop = {**_given(checkpoint.state), "step": checkpoint.step}
    if loader is not None and "epoch" in loop:
        loader.epoch = loop["epoch"] + 1
    return loop


def _stored(state: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The state of a loop as JSON has it: as it is where it can be, the rest as a tree."""
    loop, trees = {}, {}
    for key, value in state.items():
        if type(key) is not str or word(key) != key:
            raise TypeError(f"state: keys are text that UTF-8 has, got {key!r:.60}")
        if key == "step" and value != step:
            raise ValueError(f"state['step'] is {value!r:.60}, the step of the checkpoint {step}")
        if key == "epoch" and type(value) is not int:
            raise TypeError(f"state['epoch'] must be a whole number, got {value!r:.60}")
        try:
            json_bytes({key: value})
            loop[key] = value
        except (TypeError, ValueError):
            trees[key], arrays = take_apart(value, f"state[{key!r}]")
            if arrays:
                raise TypeError(
                    f"state[{key!r}] holds Tensors or arrays: keep them as buffers of the model, "
                    "or as lists, tolist()"
                ) from None
    return {"loop": loop} | ({"trees": trees} if trees else {})


def _given(state: Mapping[str, Any]) -> dict[str, Any]:
    """What `_stored` was given; ValueError for what it did not make."""
    trees = state.get("trees", {})
    return {**state["loop"], **{key: put_together(tree, {}) for key, tree in trees.items()}}
