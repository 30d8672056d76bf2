"""What a pass may change, kept so that a recording that failed can be undone.

It also tells what no replay would do: an attribute of the model that is set anew at every call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...distributed.data_parallel import DataParallel
from ...nn import Module
from ...optim.optimizer import STEP, Optimizer
from ...random import get_rng_state, set_rng_state
from ...tensor import TENSORS

_PLAIN = (bool, int, float, complex, str, bytes)


class Snapshot:
    """The attributes of a model and a loss with their values, gradients, and the place of draws.

    Args:
        model: with all its modules.
        loss: a Module, or another object with attributes.
        gradients: whether those that are there are kept too; else they are about to be cleared.
        optimizer: kept too where it is given, for a whole step that is undone before the next.
    """

    def __init__(
        self, model: DataParallel, loss: Any, gradients: bool, optimizer: Optimizer | None = None
    ) -> None:
        self._own: list[Any] = [model, model.passes, model.reducer]
        objects = [*self._own, *model.module.modules()]
        objects += loss.modules() if isinstance(loss, Module) else [loss]
        self._kept = [
            (each, {name: (value, _content(value)) for name, value in vars(each).items()})
            for each in objects
            if hasattr(each, "__dict__")
        ]
        self._random, storage = get_rng_state(), model.storage
        places: list[Any] = [*storage.buffers, *storage.slots]
        self._values = [(each, "epoch", each.epoch) for each in places]
        self._values.append((storage, "cleared", storage.cleared))
        arrays = [buffer.grad for buffer in storage.buffers] if gradients else []
        self._optimizer = optimizer
        if optimizer is not None:
            self._history = optimizer.history()
            states = (optimizer.state_of(param) for param in storage.params)
            arrays += [each for state in states for name, each in state.items() if name != STEP]
        self._arrays = [(array, array.copy()) for array in arrays]

    def changed(self) -> str | None:
        """An attribute that is not what it was, but for values of Tensors; None if there is none.

        The DataParallel's own are left out: replays keep them up to date.
        """
        for each, kept in self._kept[len(self._own) :]:
            before = {name: _mark(value, content) for name, (value, content) in kept.items()}
            now = {name: _mark(value, value) for name, value in vars(each).items()}
            for name in {**before, **now}:
                if before.get(name) != now.get(name):
                    return f"{type(each).__name__}.{name}"
        return None

    def restore(self) -> None:
        """Put everything back, in the same memory."""
        for each, kept in self._kept:
            attributes = vars(each)
            attributes.clear()
            for name, (value, content) in kept.items():
                attributes[name] = value
                _put_back(value, content)
        set_rng_state(self._random)
        for each, name, value in self._values:
            setattr(each, name, value)
        for array, values in self._arrays:
            array[...] = values
        if self._optimizer is not None:
            self._optimizer.set_history(self._history)


def _content(value: Any) -> Any:
    """What of `value` may change while it stays the same object."""
    kind = type(value)
    if kind in TENSORS:
        return value._array, value._array.copy()
    if kind in (list, dict, set, np.ndarray):
        return value.copy()
    return None


def _put_back(value: Any, content: Any) -> None:
    kind = type(value)
    if kind in TENSORS:
        value._array, values = content
        value._array[...] = values
    elif kind is list:
        value[:] = content
    elif kind is np.ndarray:
        value[...] = content
    elif kind in (dict, set):
        value.clear()
        value.update(content)


def _mark(value: Any, content: Any) -> Any:
    """Equal for what no replay need repeat: one object with one content; equal plain values."""
    kind = type(value)
    if kind is np.ndarray:
        return id(value), content.tobytes()
    if kind in (list, set):
        return id(value), kind(map(_same, content))
    if kind is dict:
        return id(value), [(_same(key), _same(each)) for key, each in content.items()]
    return _same(value)


def _same(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    return (kind, tuple(map(_same, value))) if isinstance(value, tuple) else id(value)
