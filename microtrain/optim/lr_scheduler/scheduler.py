"""The base class of learning-rate schedules."""

from __future__ import annotations

import types
import warnings
from typing import Any

from ...backend import MODES
from ..optimizer import Optimizer, refuse_schedule

# In PyTorch's state dicts, without a meaning here.
_TORCH_ONLY = {"_get_lr_called_within_step", "mode_worse"}


def checked_optimizer(optimizer: Any) -> Optimizer:
    """`optimizer`; TypeError for anything else."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def attributes(function: Any) -> dict[str, Any] | None:
    """What a state dict keeps of a function in a schedule: an object's attributes, else nothing."""
    return None if isinstance(function, types.FunctionType) else vars(function).copy()


class LRScheduler:
    """Base class: `step()` after every `optimizer.step()` (or epoch), `get_last_lr()`.

    A subclass defines `get_lr()`: the rates of all groups at `last_epoch`, from those before.

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
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param_groups[{number}] has no initial_lr; load the optimizer's state dict "
                    "first, or begin with last_epoch=-1"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._calls = optimizer.calls
        self._begin()

    def _begin(self) -> None:
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
        if MODES.recorder is not None:
            refuse_schedule()
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = list(rates)

    def _bases(self) -> list[float]:
        """`base_lrs`; RuntimeError where there are other parameter groups now than it was made for.

        For schedules that need to know more of a group than its present rate.
        """
        groups = len(self.optimizer.param_groups)
        if len(self.base_lrs) != groups:
            raise RuntimeError(
                f"{type(self).__name__} was made for {len(self.base_lrs)} parameter groups, the "
                f"optimizer has {groups}: give all groups to the optimizer, or add them, before "
                "the schedule is made, or make it anew"
            )
        return self.base_lrs

    @property
    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _scaled(self, factor: float) -> list[float]:
        return [lr * factor for lr in self._rates]

    def get_lr(self) -> list[float]:
        """The learning rates at `last_epoch`, made from those of the epoch before."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def get_last_lr(self) -> list[float]:
        """The learning rates that this scheduler set last, one for each group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        kept = {k: v for k, v in vars(self).items() if k not in ("optimizer", "_calls")}
        return {k: list(v) if isinstance(v, list) else v for k, v in kept.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, of this class or of PyTorch's of the same name.

        Raises ValueError for an entry that this scheduler does not have.
        """
        unknown = state_dict.keys() - vars(self).keys() - _TORCH_ONLY
        if unknown:
            raise ValueError(f"{type(self).__name__} has no state {sorted(unknown)[0]!r}")
        mine = {k: v for k, v in state_dict.items() if k in vars(self)}
        vars(self).update({k: list(v) if isinstance(v, list) else v for k, v in mine.items()})


class Recursive(LRScheduler):
    """A schedule that makes each rate from the one before, and so needs to be told the first."""

    def _first_rates(self) -> list[float]:
        return [self._first(base) for base in self._bases()]

    def _first(self, base: float) -> float:
        """The rate of epoch 0 from the initial one."""
        return base
