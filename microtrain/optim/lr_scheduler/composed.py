"""Schedules made of functions and of other schedules."""

from __future__ import annotations

import types
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from ..optimizer import Optimizer
from .plateau import ReduceLROnPlateau
from .scheduler import LRScheduler, checked_optimizer


class LambdaLR(LRScheduler):
    """The initial rate times `lr_lambda(step)`, a function or one for each group.

    Raises ValueError for another number of functions than of groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(checked_optimizer(optimizer).param_groups)
        given = isinstance(lr_lambda, list | tuple)
        self.lr_lambdas: list[Any] = list(lr_lambda) if given else [lr_lambda] * groups  # type: ignore[arg-type]
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The initial rates, each times its function."""
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer; of callable objects their attributes."""
        kept = [
            None if isinstance(f, types.FunctionType) else vars(f).copy() for f in self.lr_lambdas
        ]
        return {**super().state_dict(), "lr_lambdas": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; functions stay as they are."""
        for function, found in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if found is not None:
                vars(function).update(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})


class SequentialLR(LRScheduler):
    """One scheduler after the other; the next one begins at each of the `milestones`.

    Args:
        optimizer: that of all schedulers.
        schedulers: at least one.
        milestones: the steps at which the second, third ... begins.
        last_epoch: -1.

    Raises:
        TypeError: what is no scheduler.
        ValueError: none, of another optimizer, a `ReduceLROnPlateau`, or another number of
            milestones.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler")
        for one in schedulers:
            if isinstance(one, ReduceLROnPlateau):
                raise ValueError("SequentialLR: ReduceLROnPlateau needs metrics at every step")
            if not isinstance(one, LRScheduler):
                raise TypeError(f"SequentialLR: {type(one).__name__} is not an LRScheduler")
            if one.optimizer is not optimizer:
                raise ValueError("SequentialLR: all schedulers must be of the same optimizer")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} "
                f"milestones, got {len(milestones)}"
            )
        self.optimizer = optimizer
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self._calls = optimizer.calls
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self._undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._begin()
        self._last_lr = first.get_last_lr()

    def _undo(self) -> None:
        """Take back the step that each scheduler took when it was made."""
        for one in self._schedulers:
            if isinstance(one, SequentialLR):
                one._undo()
                for inner in one._schedulers:  # it takes a second step before any optimizer's
                    inner._calls = -1
            else:
                one.last_epoch -= 1

    def step(self) -> None:
        """Set the next learning rates."""
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        one = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            one._restart()
        else:
            one.step()
        self._last_lr = one.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, with the state dicts of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()` and those of the schedulers in it."""
        for one, found in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one.load_state_dict(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
