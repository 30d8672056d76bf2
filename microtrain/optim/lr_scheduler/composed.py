"""Schedules made of functions and of other schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from ..optimizer import Optimizer
from .plateau import ReduceLROnPlateau
from .scheduler import LRScheduler, attributes, checked_optimizer


class OfFunctions(LRScheduler):
    """A schedule of a function, or of one for each group."""

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
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(
                    f"lr_lambda should be a function, but got {type(function).__name__}"
                )
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer; of callable objects their attributes."""
        return {**super().state_dict(), "lr_lambdas": [*map(attributes, self.lr_lambdas)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; functions stay as they are."""
        for function, found in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if found is not None:
                vars(function).update(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})


class LambdaLR(OfFunctions):
    """The initial rate times `lr_lambda(step)`, a function or one for each group.

    Raises ValueError for another number of functions than of groups, TypeError for no function.
    """

    def get_lr(self) -> list[float]:
        """The initial rates, each times its function."""
        pairs = zip(self._bases(), self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]


class MultiplicativeLR(OfFunctions):
    """The rate times `lr_lambda(step)` at every step, a function or one for each group.

    Raises ValueError for another number of functions than of groups, TypeError for no function.
    """

    def get_lr(self) -> list[float]:
        """The rates, each times its function after the first step."""
        if self._is_initial:
            return self._rates
        self._bases()
        pairs = zip(self._rates, self.lr_lambdas, strict=True)
        return [lr * function(self.last_epoch) for lr, function in pairs]


class ChainedScheduler(LRScheduler):
    """Several schedulers at once: each takes a step, in the order given, at every step.

    Args:
        schedulers: at least one, all of one optimizer.
        optimizer: theirs, which may be left out.

    Raises:
        TypeError: what is no scheduler.
        ValueError: none, of different optimizers, or a `ReduceLROnPlateau`.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        first = schedulers[0] if schedulers else None
        of = getattr(first, "optimizer", None) if optimizer is None else optimizer
        _check_members("ChainedScheduler", schedulers, of)
        self._schedulers = schedulers
        self.optimizer: Any = of
        self._last_lr = self._rates

    def _undo(self) -> None:
        """As that of `SequentialLR`."""
        for one in self._schedulers:
            if isinstance(one, ChainedScheduler):
                one._undo()
            else:
                one.last_epoch -= 1
                one._calls = -1  # it takes a second step before any optimizer's

    def step(self) -> None:
        """Set the next learning rates."""
        for one in self._schedulers:
            one.step()
        self._last_lr = self._rates

    def state_dict(self) -> dict[str, Any]:
        """The rates, and the state dicts of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()` and those of the schedulers in it."""
        for one, found in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one.load_state_dict(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})


def _check_members(name: str, schedulers: Sequence[Any], optimizer: Any) -> None:
    """TypeError and ValueError for what cannot be part of a schedule of schedules."""
    if not schedulers:
        raise ValueError(f"{name} expects at least one scheduler")
    for one in schedulers:
        if isinstance(one, ReduceLROnPlateau):
            raise ValueError(f"{name}: ReduceLROnPlateau needs metrics at every step")
        if not isinstance(one, LRScheduler):
            raise TypeError(f"{name}: {type(one).__name__} is not an LRScheduler")
        if one.optimizer is not optimizer:
            raise ValueError(f"{name}: all schedulers must be of the same optimizer")


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
        _check_members("SequentialLR", schedulers, optimizer)
        if any(isinstance(one, ChainedScheduler) for one in schedulers[1:]):
            raise ValueError("SequentialLR: a ChainedScheduler can only be the first of them")
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
            if isinstance(one, SequentialLR | ChainedScheduler):
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
