"""The state of a model and its optimizer as a checkpoint keeps it, and back.

Arrays go by the names of parameters. What a module's `get_extra_state` returns becomes the bytes of
its JSON text, as a checkpoint holds no pickle; what JSON does not give back unchanged is refused by
the name of the module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..backend import XP, to_host
from ..distributed.agreement import from_root
from ..errors import DataError
from ..files import parse_json
from ..nn.module import EXTRA_STATE
from ..random import get_rng_state
from ..runs.arrays import copied
from ..runs.checkpoint import Checkpoint

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator
    from ..nn import Module
    from ..optim import Optimizer

SMALL = 2**12  # bytes of an array up to which it travels with names and shapes


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


def from_rank_0(comm: Communicator, read: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """The checkpoint that rank 0 reads, on every rank; or the UserError that it raises. Collective.

    Large arrays are zeros without memory on the other ranks, where `take_over` makes room for them
    and `share_arrays` gives them their values: nowhere is there a copy of the whole state for it.
    """
    own: list[Checkpoint] = []

    def outlined() -> Checkpoint | None:
        if (found := read()) is None:
            return None
        own.append(found)
        return replace(found, model=_outline(found.model), optimizer=_outline(found.optimizer))

    found = from_root(comm, outlined)
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


def share_arrays(comm: Communicator, model: Module, optimizer: Optimizer | None) -> None:
    """Give what `from_rank_0` has left out rank 0's values, where it lies; collective.

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
        comm.broadcast(host)
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
        if param in optimizer.storage.place
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
    if isinstance(value, np.generic):  # a rate from a schedule of the user's own
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == EXTRA_STATE


def _extra(name: str, text: Any) -> Any:
    try:
        return parse_json(text.tobytes())
    except ValueError as error:
        raise RuntimeError(f"{name} is no JSON: {error}") from error


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
