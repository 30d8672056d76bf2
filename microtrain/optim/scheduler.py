"""What learning-rate schedules share: they write `lr` into the optimizer's groups, at every step.

The groups keep their first rate as `initial_lr`. Where PyTorch makes each rate from the one before,
the last digits differ, as these add no errors up.
"""

from __future__ import annotations

import math
import types
import warnings
from typing import Any

from ..backend import MODES
from ..errors import need
from .optimizer import SCHEDULES, Optimizer

# In PyTorch's state dicts, without a meaning here.
_TORCH_ONLY = {"_get_lr_called_within_step", "mode_worse"}


def line(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` in equal steps, of which `at` are done."""
    return (end - start) * (at / steps) + start


def cosine(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` along half a cosine wave, flat at both ends."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * at / steps) + 1)


CURVES = {"cos": cosine, "linear": line}


def checked_optimizer(optimizer: Any) -> Any:
    """`optimizer`; TypeError for anything else."""
    is_one = isinstance(optimizer, Optimizer)
    need(is_one, "schedule", "expected an Optimizer", type(optimizer), error=TypeError)
    return optimizer


class LRScheduler:
    """Base class: `step()` after every `optimizer.step()` (or epoch), `get_last_lr()`.

    A subclass defines `get_lr()`: the rates of all groups at `last_epoch`.

    Args:
        optimizer: whose groups get their `lr` from here on.
        last_epoch: -1 to begin; else the number of steps already taken, for groups that have an
            `initial_lr` (a loaded state dict has).

    Raises:
        TypeError: not an Optimizer.
        KeyError: a group without `initial_lr`, with another `last_epoch` than -1.

    Example:
        >>> scheduler = mt.optim.lr_scheduler.StepLR(optimizer, step_size=30)
        >>> for epoch in range(100):
        ...     train(...)
        ...     scheduler.step()
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked_optimizer(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            text = f"param_groups[{number}] has no initial_lr; load the optimizer's state dict "
            text += "first, or begin with last_epoch=-1"
            need("initial_lr" in group, type(self).__name__, text, error=KeyError)
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._begin()

    def _begin(self) -> None:
        self._calls = self.optimizer.calls
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def step(self) -> None:
        """Set the next learning rates; UserWarning where the optimizer has not stepped before."""
        if self._step_count == 1 and self.optimizer.calls == self._calls:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first "
                "learning rate of the schedule is skipped. Call them in the opposite order.",
                stacklevel=2,
            )
        self._step_count += 1
        self.last_epoch += 1
        self._write(self.get_lr())

    def _restart(self) -> None:
        """Go to the schedule's beginning, after the one before it in a `SequentialLR`."""
        self.last_epoch = 0
        self._write(self._first_rates())

    def _first_rates(self) -> list[float]:
        """The rates of epoch 0, whatever the groups' rates are now."""
        return self.get_lr()

    def _write(self, rates: list[float]) -> None:
        MODES.capture.refuse(SCHEDULES)
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = list(rates)

    def _bases(self) -> list[float]:
        """`base_lrs`; RuntimeError where there are other parameter groups now than it was made for.

        For schedules that need to know more of a group than its present rate.
        """
        made, groups = len(self.base_lrs), len(self.optimizer.param_groups)
        text = f"was made for {made} parameter groups, the optimizer has {groups}: give all groups "
        text += "to the optimizer, or add them, before the schedule is made, or make it anew"
        need(made == groups, type(self).__name__, text)
        return self.base_lrs

    @property
    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _undo(self) -> None:
        """Take back the step that it took when it was made."""
        self.last_epoch -= 1

    def get_lr(self) -> list[float]:
        """The learning rates at `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def get_last_lr(self) -> list[float]:
        """The learning rates that this scheduler set last, one for each group."""
        return self._last_lr

    def _each(self, name: str, value: Any) -> list[Any]:
        """One value for each group of the optimizer; ValueError for another number of them."""
        groups = len(self.optimizer.param_groups)
        found = list(value) if isinstance(value, list | tuple) else [value] * groups
        text = f"{name} has {len(found)} values for {groups} groups"
        need(len(found) == groups, type(self).__name__, text, error=ValueError)
        return found

    def _whole(self, name: str, value: Any, least: int = 1) -> Any:
        """`value`; ValueError where it is no whole number of at least `least`."""
        good, text = type(value) is int and value >= least, "must be a whole number of at least"
        need(good, type(self).__name__, f"{name} {text} {least}", value, error=ValueError)
        return value

    def _one_of(self, name: str, value: str, *choices: str) -> str:
        """`value`; ValueError where it is not one of the choices."""
        text = f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}"
        need(value in choices, type(self).__name__, text, value, error=ValueError)
        return value

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer: of callable objects their attributes, of functions None,
        of schedulers their own.
        """
        kept = vars(self).items()
        return {name: _kept(value) for name, value in kept if name not in ("optimizer", "_calls")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, of this class or of PyTorch's of the same name.

        Functions stay as they are. Raises ValueError for an entry that this scheduler does not
        have, KeyError where the state of its schedulers or functions is missing.
        """
        unknown = state_dict.keys() - vars(self).keys() - _TORCH_ONLY
        name = type(self).__name__
        need(not unknown, name, "there is no state {}", *sorted(unknown)[:1], error=ValueError)
        for name, mine in vars(self).items():
            if name in state_dict or _has_state(mine):
                vars(self)[name] = _loaded(mine, state_dict[name])


def _has_state(value: Any) -> bool:
    """Whether it is a scheduler or a function, or a list of some: it stays."""
    one = value[0] if isinstance(value, list) and value else value
    return isinstance(one, LRScheduler) or callable(one)


def _kept(value: Any) -> Any:
    """What a state dict keeps of an attribute."""
    if isinstance(value, list):
        return [*map(_kept, value)]
    if not _has_state(value):
        return value
    if isinstance(value, LRScheduler):
        return value.state_dict()
    return None if isinstance(value, types.FunctionType) else vars(value).copy()


def _loaded(mine: Any, found: Any) -> Any:
    """What an attribute is, that was `mine`, after a state dict that has kept `found` of it."""
    if not _has_state(mine):
        return list(found) if isinstance(found, list) else found
    if isinstance(mine, list):
        return [_loaded(*pair) for pair in zip(mine, found, strict=True)]
    if isinstance(mine, LRScheduler):
        mine.load_state_dict(found)
    elif found is not None:
        vars(mine).update(found)
    return mine
