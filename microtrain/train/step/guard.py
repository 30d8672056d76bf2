"""Between the backward pass and the update: values that are not finite, gradients that are long.

Loss and gradients are global here, the same bits on every rank, so all ranks decide alike. What a
pass may change is kept in a Snapshot, so that a recording that failed can be undone; it also tells
the trainer what no replay would do: an attribute of the model that is set anew at every call.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backend import XP, to_host
from ...distributed.data_parallel import DataParallel
from ...nn import Module
from ...nn.utils.clip_grad import clip_flat_, flat_norm
from ...optim.optimizer import STEP, Optimizer
from ...random import end_step, get_rng_state, set_rng_state
from ...tensor import TENSORS


class NotFinite(BaseException):
    """An update that must not be made: the loss or a gradient is not finite.

    Not an Exception: on its way to the training loop nobody may take it for an error of a capture
    or of the model, after which the step would be done again.
    """


class Guard:
    """What every update passes: raises NotFinite, and clips the gradients.

    Args:
        model: whose gradients have been reduced.
        clip_norm: the largest norm of all gradients together, None for no limit.

    Attributes:
        norm: that norm at the last step, before clipping; None without `clip_norm`, and where the
            loss was not finite.
        rehearsing: let all pass, for what will be undone.
    """

    def __init__(self, model: DataParallel, clip_norm: float | None) -> None:
        self.model = model
        self.clip_norm = clip_norm
        self.norm: float | None = None
        self.rehearsing = False

    def __call__(self) -> None:
        """Look at this step's gradients."""
        try:
            self._look()
        except NotFinite:
            if not self.rehearsing:
                raise

    def _look(self) -> None:
        model, loss = self.model, self.model.loss
        nothing = not model.weight and model.reduction == "mean"  # counts, so nothing is learned
        if loss is not None and not math.isfinite(loss) and not nothing:
            self.norm = None
            raise NotFinite
        if self.clip_norm is None:
            for buffer in self.model.storage.buffers:
                square = XP[type(buffer.grad)].dot(buffer.grad, buffer.grad).item()
                if not math.isfinite(square):
                    break
            else:
                return
            # The sum of squares may overflow for finite values, and what parameters without a
            # gradient have there is of an earlier step.
            if all(XP[type(one)].isfinite(one).all().item() for one in self._present()):
                return
            raise NotFinite
        gradients = self._present()
        self.norm = flat_norm(gradients)
        if not math.isfinite(self.norm):
            raise NotFinite
        clip_flat_(gradients, self.clip_norm, self.norm)

    def _present(self) -> list[Any]:
        """The flat gradients; of buffers with parameters that have none, piece by piece."""
        storage = self.model.storage
        gradients: list[Any] = []
        for buffer, numbers in zip(storage.buffers, storage.rows, strict=True):
            slots = [storage.slots[n] for n in numbers]
            there = [slot for slot in slots if slot.epoch == buffer.epoch]
            if len(there) == len(slots):
                gradients.append(buffer.grad)
            else:
                gradients += [buffer.grad[slot.start : slot.stop] for slot in there]
        return gradients


class Skips:
    """`train.nan: skip`: updates that are not made, and what else of such a step is undone.

    The step counts: the loader, schedules and dropout go on as after any other. The parameters, the
    optimizer's state and the model's buffers (running statistics) stay as they were before it.

    Args:
        model: that is trained.

    Attributes:
        total: how many there were.
        in_a_row: how many the last ones were; after `most` the run stops, for it learns no more.
    """

    most = 20

    def __init__(self, model: DataParallel) -> None:
        modules = model.module.modules()
        self._places = [(vars(module), name) for module in modules for name in module._buffers]
        self._before: list[tuple[dict[str, Any], str, Any, Any]] = []
        self.total = self.in_a_row = 0
        self._last = -1

    def begin(self) -> None:
        """Before the forward pass of a step."""
        self._before = [  # a forward pass may also put another Tensor there
            (attributes, name, tensor, tensor._array.copy())
            for attributes, name in self._places
            if (tensor := attributes.get(name)) is not None
        ]

    def skip(self, step: int) -> bool:
        """Leave out the update of `step`; False where too many have been left out before it."""
        self.in_a_row = self.in_a_row + 1 if step == self._last + 1 else 1
        self._last = step
        if self.in_a_row > self.most:
            return False
        self.total += 1
        for attributes, name, tensor, values in self._before:
            tensor._array[...] = values
            attributes[name] = tensor
        end_step()
        return True

    @property
    def worth_a_warning(self) -> bool:
        """Whether the last one is the 1st, 10th, 100th ..."""
        return str(self.total).strip("0") == "1"

    def state_dict(self) -> dict[str, int]:
        """For the checkpoint."""
        return {"total": self.total, "in_a_row": self.in_a_row, "last": self._last}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on as `state_dict` found it."""
        self.total, self.in_a_row, self._last = state["total"], state["in_a_row"], state["last"]


def worst_gradient(model: DataParallel) -> str:
    """The first parameter whose gradient is not finite, else the one with the largest."""
    worst, largest = "", -1.0
    for name, param in model.named_parameters():
        if param.grad is None:
            continue
        grad = to_host(param.grad._array)
        bad = int(grad.size - np.isfinite(grad).sum())
        where = f"{name} (layer {name.rpartition('.')[0] or type(model.module).__name__})"
        if bad:
            return (
                f"first parameter with a gradient that is not finite: {where}, "
                f"{bad:,} of {grad.size:,} values"
            )
        if grad.size and float(np.abs(grad).max()) > largest:
            largest = float(np.abs(grad).max())
            worst = f"gradients are finite; the largest is {largest:.5g}, of {where}"
    return worst


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
        self._storage = model.storage
        self._own: list[Any] = [model, model.passes, model.reducer]
        objects = [*self._own, *model.module.modules()]
        objects += loss.modules() if isinstance(loss, Module) else [loss]
        self._kept = [
            (each, {name: (value, _content(value)) for name, value in vars(each).items()})
            for each in objects
            if hasattr(each, "__dict__")
        ]
        self._random = get_rng_state()
        buffers, slots = self._storage.buffers, self._storage.slots
        self._gradients = [buffer.grad.copy() for buffer in buffers] if gradients else []
        self._epochs = [buffer.epoch for buffer in buffers], [slot.epoch for slot in slots]
        self._cleared = self._storage.cleared
        self._optimizer: Any = None
        if optimizer is not None:
            states = [
                (array, array.copy())
                for param in self._storage.params
                for name, array in optimizer.state_of(param).items()
                if name != STEP
            ]
            self._optimizer = optimizer, states, optimizer.history()

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
        storage = self._storage
        storage.cleared = self._cleared
        for buffer, epoch in zip(storage.buffers, self._epochs[0], strict=True):
            buffer.epoch = epoch
        for slot, epoch in zip(storage.slots, self._epochs[1], strict=True):
            slot.epoch = epoch
        if self._gradients:
            for buffer, values in zip(storage.buffers, self._gradients, strict=True):
                buffer.grad[...] = values
        if self._optimizer is not None:
            optimizer, states, history = self._optimizer
            for array, values in states:
                array[...] = values
            optimizer.set_history(history)


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
