"""The state of a model and its optimizer as a checkpoint keeps it, and back; `mt.restore`.

Arrays go by the names of parameters. What a module's `get_extra_state` returns becomes the bytes of
its JSON text, as a checkpoint holds no pickle; what JSON does not give back unchanged is refused by
the name of the module.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..backend import XP, to_host
from ..common.files import json_bytes, parse_json
from ..data import DataLoader
from ..distributed.agreement import from_root, same, settled
from ..distributed.communicator import Communicator
from ..distributed.connection import ranks_of
from ..distributed.replicas import check_replicas
from ..errors import DataError
from ..nn import Module
from ..nn.module import EXTRA_STATE
from ..optim import Optimizer
from ..random import get_rng_state, set_rng_state
from ..runs.arrays import copied
from ..runs.checkpoint import (
    Checkpoint,
    had_checkpoints,
    load_newest_checkpoint,
    prune,
    save_checkpoint,
)
from ..runs.state import check_loop, put_together, take_apart, word

SMALL = 2**12  # bytes of an array up to which it travels with names and shapes
OF_ALL = "all ranks share a checkpoint; for one of its own, each passes comm=MPI.COMM_SELF"


def checkpoint_of(
    step: int,
    model: Module,
    optimizer: Optimizer | None,
    state: Mapping[str, Any],
    config_text: str = "",
) -> dict[str, Any]:
    """All that training goes on from, as `save_checkpoint` takes it: the arrays themselves.

    What writes them later than now has to copy them.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    options = [
        {key: _plain(value) for key, value in group.items() if key != "params"} for group in groups
    ]
    return {
        "step": step,
        "model": _arrays_of(model),
        "optimizer": {} if optimizer is None else _optimizer_arrays(model, optimizer),
        "state": {**state, "random": get_rng_state(), "options": options},
        "config_text": config_text,
    }


def checkpoint_from(
    comm: Communicator, read: Callable[[], Checkpoint | None], root: int = 0
) -> Checkpoint | None:
    """The checkpoint that `root` reads, on every rank; or the UserError that it raises. Collective.

    Large arrays are zeros without memory on the other ranks, where `take_over` makes room for them
    and `share_arrays` gives them their values: nowhere is there a copy of the whole state for it.
    """
    own: list[Checkpoint] = []

    def outlined() -> Checkpoint | None:
        if (found := read()) is None:
            return None
        own.append(found)
        return replace(found, model=_outline(found.model), optimizer=_outline(found.optimizer))

    found = from_root(comm, outlined, root)
    if own or found is None:
        return own[0] if own else None
    return replace(found, model=_room(found.model), optimizer=_room(found.optimizer))


class _Outline(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any


def _outline(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to say of large arrays before they come, and small ones themselves."""
    return {
        name: _Outline(array.shape, array.dtype) if _comes_later(name, array) else array
        for name, array in arrays.items()
    }


def _room(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros in the place of outlines."""
    return {
        name: np.broadcast_to(np.zeros((), a.dtype), a.shape) if isinstance(a, _Outline) else a
        for name, a in arrays.items()
    }


def _comes_later(name: str, array: Any) -> bool:
    return bool(array.ndim and array.nbytes > SMALL and not _is_extra(name))


def share_arrays(
    comm: Communicator, model: Module, optimizer: Optimizer | None, root: int = 0
) -> None:
    """Give what `checkpoint_from` has left out the values of `root`, where it lies; collective.

    Every rank has taken over a checkpoint.
    """
    if comm.size == 1:
        return
    held = [*_arrays_of(model).items()]
    held += [] if optimizer is None else _optimizer_arrays(model, optimizer).items()
    buffers = {name for name, _ in model.named_buffers()}
    for name, array in held:
        if not _comes_later(name, array):
            continue
        # A parameter may be the transposed view of its memory, alike on all ranks.
        memory = array if array.flags.c_contiguous or name in buffers else array.T
        host = np.ascontiguousarray(to_host(memory))
        comm.broadcast(host, root)
        if host is not memory:
            memory[...] = XP[type(memory)].asarray(host)


def take_over(checkpoint: Checkpoint, model: Module, optimizer: Optimizer | None) -> None:
    """Give model and optimizer what `checkpoint_of` took; DataError where it does not fit.

    The checkpoint gives its arrays away, so that their memory is free as soon as they are copied.
    """
    try:
        load_model_arrays(model, checkpoint.model)
        checkpoint.model.clear()
        if optimizer is not None:
            _load_optimizer(model, optimizer, checkpoint)
    except (RuntimeError, KeyError, ValueError) as error:
        raise DataError(f"{checkpoint.path} does not fit: {error}") from error


def model_arrays(model: Module) -> dict[str, Any]:
    """A copy of the state of `model`, on the host.

    Raises TypeError for an extra state that is not plain JSON.
    """
    return {name: copied(array) for name, array in _arrays_of(model).items()}


def load_model_arrays(model: Module, arrays: Mapping[str, Any]) -> None:
    """Give `model` what `model_arrays` took; RuntimeError where it does not fit."""
    model.load_state_dict(
        {name: _extra(name, array) if _is_extra(name) else array for name, array in arrays.items()}
    )


def _arrays_of(model: Module) -> dict[str, Any]:
    return {
        name: _text(name, value) if _is_extra(name) else value._array
        for name, value in model.state_dict().items()
    }


def _optimizer_arrays(model: Module, optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's states, named `<parameter>.<state>`."""
    return {
        f"{name}.{state}": array
        for name, param in model.named_parameters()
        if param in optimizer.storage.index
        for state, array in optimizer.state_of(param).items()
    }


def _load_optimizer(model: Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    states: dict[str, dict[str, Any]] = {}
    for name, array in checkpoint.optimizer.items():
        param, _, kind = name.rpartition(".")
        states.setdefault(param, {})[kind] = array
    checkpoint.optimizer.clear()
    params = dict(model.named_parameters())
    for name in [*states]:
        optimizer.load_state_of(params[name], states.pop(name))
    for group, options in zip(optimizer.param_groups, checkpoint.state["options"], strict=True):
        for key, value in options.items():
            group[key] = tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):  # a rate from a user-defined schedule
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == EXTRA_STATE


def _extra(name: str, text: Any) -> Any:
    try:
        return parse_json(text.tobytes())
    except ValueError as error:
        raise RuntimeError(f"{name} is not JSON: {error}") from error


def _text(name: str, value: Any) -> Any:
    try:
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) != value:
            raise ValueError("it changes on its way through JSON")
    except (TypeError, ValueError) as error:
        module = name.removesuffix(EXTRA_STATE).rstrip(".") or "the model itself"
        raise TypeError(
            f"a checkpoint cannot hold the extra state of the module {module}, which is of type "
            f"{type(value).__name__}: {error}. get_extra_state must return plain JSON (numbers, "
            "text, lists, dictionaries with text keys); keep Tensors as buffers"
        ) from error
    return np.frombuffer(text.encode(), np.uint8)


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
    naming the keys that lead there, and for an extra state of a module that is not JSON;
    ConfigError where the ranks were given different directories or steps, RuntimeError where their
    parameters differ; on every rank.

    Example:
        >>> mt.save("checkpoints", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    """
    ranks = ranks_of(comm, model, optimizer)
    same(ranks, {"directory": str(directory), "step": str(step)}, OF_ALL)
    check_replicas(model, ranks, "save")
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
    same(ranks, {"directory": str(directory)}, OF_ALL)

    def read() -> Checkpoint | None:
        if not had_checkpoints(Path(directory)):
            return None
        groups = () if optimizer is None else optimizer.param_groups
        return load_newest_checkpoint(
            Path(directory),
            lambda text: warnings.warn(text, stacklevel=6),
            lambda checkpoint: check_loop(checkpoint, groups, _given),
        )

    checkpoint = checkpoint_from(ranks, read)
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
