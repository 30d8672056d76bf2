"""A captured step that members of a sweep share: those that differ only in numbers.

Every member is built as it would be alone. Where one of its kind has been trained before, it puts
its values into that one's model and optimizer, the memory that the captured step works on, and is
trained there. What is captured are NumPy's calls, which have the bits of Python, and native code
from the step on from which it would have some alone: so it has the bits that it would have alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..config.components import is_import_path
from ..distributed.control_lane import NOTHING
from ..ensemble import _arrays, _kind
from ..nn import Module, Parameter
from ..nn.module import PLAIN
from ..random import kept_place
from ..tensor import TENSORS, Size
from ..train.divergence import Skips
from ..train.schedules import Rates
from ..train.state import Parts

if TYPE_CHECKING:
    from ..distributed.data_parallel import DataParallel
    from ..optim import Optimizer
    from ..train.divergence import Guard
    from ..train.executor import Execution

__all__ = ["Held"]

MOST = 8  # kinds that are held: one that is not used for so long is captured anew


@dataclass(frozen=True)
class _Step:
    """What a captured step works on, and what executes it; none of the data of its member."""

    model: DataParallel
    loss: Any
    optimizer: Optimizer
    guard: Guard
    execution: Execution


class Held:
    """The steps that were captured last, while others of their kind may come."""

    def __init__(self) -> None:
        self._steps: dict[Any, _Step] = {}

    def lend(self, parts: Parts) -> tuple[Any, Execution | None]:
        """The kind of a new member, and what executes the step that it now has; None without.

        The kind is None where no other can have its step.
        """
        if not _is_open(parts):
            return None, None
        looks = _looks(parts.model, parts.loss, parts.optimizer)
        kind = _kind_of(parts), looks
        held = self._steps.pop(kind, None)
        # Training may change attributes.
        if held is None or looks != _looks(held.model, held.loss, parts.optimizer):
            return kind, None
        _lend(held, parts)
        return kind, held.execution

    def add(self, kind: Any, member: Parts, execution: Execution) -> None:
        """Hold the step of a member that has been trained to its end."""
        execution.leave()
        parts = member.model, member.loss, member.optimizer, member.guard
        self._steps[kind] = _Step(*parts, execution)
        if len(self._steps) > MOST:
            del self._steps[next(iter(self._steps))]


def _kind_of(parts: Parts) -> str:
    """Of its configuration, what members that share a captured step have in common."""
    config = parts.config
    train = {**vars(config.train), "clip_norm": config.train.clip_norm is None}
    with kept_place():
        shapes = [
            [[(tensor.shape, tensor.dtype) for tensor in batch] for batch in micro_batches]
            for micro_batches in parts.loader.kinds(parts.plan.total or 1)
        ]
    return repr((config.model, config.loss, train, config.distributed, config.dtype, shapes))


def _looks(model: DataParallel, loss: Any, optimizer: Optimizer) -> str:
    """Names, shapes and plain values of model and loss, which options of `optimizer` are zero."""
    module = model.module
    modes = [each.training for each in module.modules()]
    values = [
        [(name, value) for name, value in vars(each).items() if type(value) in PLAIN]
        for each in (loss.modules() if isinstance(loss, Module) else ())
    ]
    return repr((_kind(module, optimizer), modes, values))


def _is_open(parts: Parts) -> bool:
    """Whether a member can be told from others: parts of the user's own may keep anything of a run.

    A model or loss can where it has nothing but modules, Tensors of its state and plain values.
    """
    config, loss = parts.config, parts.loss
    own = [config.trainer or "", config.optimizer.type, *(each.type for each in config.callbacks)]
    if parts.device is not None or config.train.compile == "off" or any(map(is_import_path, own)):
        return False
    if isinstance(loss, Module):
        return _is_plain(parts.model.module) and _is_plain(loss)
    return _is_plain(parts.model.module) and getattr(loss, "__closure__", loss) is None


def _is_plain(module: Module) -> bool:
    return all(
        type(each).__module__.startswith("microtrain.")
        or (not each._hooked and all(_shows(each, *pair) for pair in vars(each).items()))
        for each in module.modules()
    )


def _shows(module: Module, name: str, value: Any) -> bool:
    if type(value) in (tuple, Size):
        return all(_shows(module, "", each) for each in value)
    if type(value) in TENSORS:
        return type(value) is Parameter or name in module._buffers
    return type(value) in PLAIN or isinstance(value, Module)


def _lend(held: _Step, parts: Parts) -> None:
    """Give `parts` the model, loss, optimizer and guard of `held`, with the values of its own."""
    optimizer = held.optimizer
    mine = _arrays(parts.model.module, parts.optimizer)  # with states that are there from the start
    for array, values in zip(_arrays(held.model.module, optimizer), mine, strict=False):
        array[...] = values
    if isinstance(held.loss, Module):
        for tensor, value in zip(_tensors(held.loss), _tensors(parts.loss), strict=True):
            tensor._array[...] = value._array
    for group, new in zip(optimizer.param_groups, parts.optimizer.param_groups, strict=True):
        group.pop("initial_lr", None)
        group.update({name: value for name, value in new.items() if name != "params"})
    optimizer.set_history(parts.optimizer.history())
    held.guard.clip_norm, held.guard.norm = parts.guard.clip_norm, None
    held.model.publish(NOTHING)
    if parts.rates is not None:
        parts.rates = Rates(parts.rates.schedule, optimizer.param_groups)
    if parts.skips is not None:
        parts.skips = Skips(held.model)
    parts.model, parts.loss, parts.guard = held.model, held.loss, held.guard
    parts.optimizer = optimizer


def _tensors(module: Module) -> Any:
    return chain(module.parameters(), module.buffers())
