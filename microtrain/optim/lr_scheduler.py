"""Learning-rate schedules: the rate of every step as a function of its number, as PyTorch has them.

They write `lr` into the optimizer's groups, which keep their first rate as `initial_lr`. Where
PyTorch makes each rate from the one before, the last digits differ, as these add no errors up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from ..backend import MODES
from ..errors import need
from .cyclical import CyclicLR, OneCycleLR
from .optimizer import SCHEDULES, Optimizer
from .scheduler import LRScheduler, checked_optimizer, cosine, line

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
    "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip


class Scaled(LRScheduler):
    """A schedule that scales what of a rate is above `low`, by `share` of the step.

    A rate that is not what the schedule has made it, of a group under two schedules say, is scaled
    by the ratio of the shares of this step and the one before.
    """

    low = 0.0
    jumps = False  # whether one that is resumed scales at once

    def share(self, step: int) -> float:
        """What is left of the initial rate at a step."""
        raise NotImplementedError

    def _at(self, base: float, step: int) -> float:
        return self.low + (base - self.low) * self.share(step)

    def _first_rates(self) -> list[float]:
        return [self._at(base, 0) for base in self._bases()]

    def get_lr(self) -> list[float]:
        """The rates at `last_epoch`; those of groups that came later go on from their own."""
        step = self.last_epoch
        if self._is_initial and step > 0 and not self.jumps:
            return self._rates
        before, found = self.share(step - 1) if step else 1.0, []
        for lr, base in zip_longest(self._rates, self.base_lrs):
            made = None if base is None else self._at(base, step - 1) if step else base
            if lr == made:
                found.append(self._at(base, step))
            elif before:
                found.append(self.low + (lr - self.low) * (self.share(step) / before))
            else:  # from nothing there is no ratio: a new wave comes on top
                first = self._bases()[0] if base is None else base
                found.append(lr - self.low + self._at(first, step))
        return found


class StepLR(Scaled):
    """Multiply the rate by `gamma` every `step_size` steps.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> schedule = mt.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        >>> for epoch in range(4):
        ...     print(schedule.get_last_lr())
        ...     optimizer.step()  # of each batch
        ...     schedule.step()
        [1.0]
        [1.0]
        [0.5]
        [0.5]
    """

    jumps = True

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """`gamma` to the number of intervals that are over."""
        return float(self.gamma ** (step // self.step_size))


class MultiStepLR(Scaled):
    """Multiply the rate by `gamma` at each of the `milestones`."""

    jumps = True

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """`gamma` to the number of milestones that are reached, those named twice counted so."""
        return float(self.gamma ** sum(n for at, n in self.milestones.items() if at <= step))


class ExponentialLR(Scaled):
    """Multiply the rate by `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """`gamma` to the number of steps."""
        return float(self.gamma**step)


class ConstantLR(Scaled):
    """Multiply the rate by `factor` for the first `total_iters` steps; for all where that is 0.

    Raises ValueError for a factor outside 0 .. 1.
    """

    jumps = True

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        text = "factor must be between 0 and 1"
        need(0 <= factor <= 1, "ConstantLR", text, factor, error=ValueError)
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """`factor`, or all."""
        return self.factor if step < self.total_iters or not self.total_iters else 1.0


class LinearLR(Scaled):
    """From `start_factor` to `end_factor` of the rate, in equal steps over `total_iters` steps.

    Raises ValueError for a start factor outside 0 .. 1 or 0, an end factor outside 0 .. 1.
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        total_iters: int = 5, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        text = "start_factor must be above 0 and at most 1"
        need(0 < start_factor <= 1, "LinearLR", text, start_factor, error=ValueError)
        text = "end_factor must be between 0 and 1"
        need(0 <= end_factor <= 1, "LinearLR", text, end_factor, error=ValueError)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """The place on the line, and its end."""
        at, steps = min(step, self.total_iters), max(self.total_iters, 1)
        return line(self.start_factor, self.end_factor, at, steps)


class PolynomialLR(Scaled):
    """`(1 - step / total_iters) ** power` of the rate, 0 from `total_iters` on."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def share(self, step: int) -> float:
        """The power of what is left of the steps."""
        at = min(step, self.total_iters) / max(self.total_iters, 1)
        return float((1.0 - at) ** self.power)


class CosineAnnealingLR(Scaled):
    """Half a cosine wave from the rate down to `eta_min` in `T_max` steps, and up again.

    I. Loshchilov and F. Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> schedule = mt.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        >>> for epoch in range(5):
        ...     print(round(schedule.get_last_lr()[0], 4))
        ...     optimizer.step()  # of each batch
        ...     schedule.step()
        1.0
        0.8536
        0.5
        0.1464
        0.0
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    @property
    def low(self) -> float:  # type: ignore[override]
        """The bottom of the wave."""
        return self.eta_min

    def share(self, step: int) -> float:
        """The height of the wave."""
        return cosine(1.0, 0.0, step, self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine wave down to `eta_min` in `T_0` steps; then again, each `T_mult` times longer.

    I. Loshchilov and F. Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.
    Raises ValueError for a `T_0` or `T_mult` below 1.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.T_0 = self._whole("T_0", T_0)
        self.T_mult = self._whole("T_mult", T_mult)
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates at the place `T_cur` of the present wave, which is `T_i` long."""
        self.T_cur, self.T_i = self.last_epoch, self.T_0
        if self.T_mult == 1:
            self.T_cur %= self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult
        return [cosine(base, self.eta_min, self.T_cur, self.T_i) for base in self._bases()]


class OfFunctions(LRScheduler):
    """A schedule of a function, or of one for each group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(optimizer)
        self.lr_lambdas: list[Any] = self._each("lr_lambda", lr_lambda)
        for function in self.lr_lambdas:
            text = "lr_lambda should be a function"
            need(callable(function), type(self).__name__, text, type(function), error=TypeError)
        super().__init__(optimizer, last_epoch)


class LambdaLR(OfFunctions):
    """The initial rate times `lr_lambda(step)`, a function or one for each group.

    Raises ValueError for another number of functions than of groups, TypeError for what is not one.
    """

    def get_lr(self) -> list[float]:
        """The initial rates, each times its function."""
        pairs = zip(self._bases(), self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]


class MultiplicativeLR(OfFunctions):
    """The rate times `lr_lambda(step)` at every step, a function or one for each group.

    Raises ValueError for another number of functions than of groups, TypeError for what is not one.
    """

    def get_lr(self) -> list[float]:
        """The rates, each times its function after the first step."""
        if self._is_initial:
            return self._rates
        self._bases()
        pairs = zip(self._rates, self.lr_lambdas, strict=True)
        return [lr * function(self.last_epoch) for lr, function in pairs]


class ReduceLROnPlateau(LRScheduler):
    """Multiply the rate by `factor` where a metric has not improved for `patience` steps.

    Args:
        optimizer: whose groups get their `lr` from here on.
        mode: "min" or "max", which way is better.
        factor: below 1.
        patience: how many steps without improvement are let pass.
        threshold: how much better counts as better: by that share of the best value in
            `threshold_mode` "rel", by that much in "abs".
        threshold_mode: "rel" or "abs".
        cooldown: steps after a reduction in which nothing is counted.
        min_lr: the least rate, one number or one for each group.
        eps: smaller changes of the rate are not made.

    Raises ValueError for a factor, mode, threshold mode or number of rates that is not allowed.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> schedule = mt.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        >>> for loss in (3.0, 2.0, 2.0):
        ...     schedule.step(loss)
        >>> schedule.get_last_lr()
        [0.5]
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | list[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        text = "factor must be below 1"
        need(factor < 1.0, "ReduceLROnPlateau", text, factor, error=ValueError)
        self.mode = self._one_of("mode", mode, "min", "max")
        self.threshold_mode = self._one_of("threshold_mode", threshold_mode, "rel", "abs")
        self.optimizer = checked_optimizer(optimizer)
        # Of groups that come later.
        self.default_min_lr = None if isinstance(min_lr, list | tuple) else min_lr
        self.min_lrs: list[Any] = self._each("min_lr", min_lr)
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self._last_lr = self._rates

    def step(self, metrics: Any) -> None:  # type: ignore[override]
        """Look at a value of the metric, and reduce the rates if it is time to."""
        MODES.capture.refuse(SCHEDULES)
        current = float(metrics)
        self.last_epoch += 1
        self.num_bad_epochs += 1
        if self._is_better(current):
            self.best = current
            self.num_bad_epochs = 0
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._follow_groups()
            lower = [
                max(lr * self.factor, m) for lr, m in zip(self._rates, self.min_lrs, strict=True)
            ]
            pairs = zip(self._rates, lower, strict=True)
            self._write([new if old - new > self.eps else old for old, new in pairs])
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._rates

    def _follow_groups(self) -> None:
        """A least rate for groups that were added since; RuntimeError where nobody gave one."""
        more = len(self.optimizer.param_groups) - len(self.min_lrs)
        text = f"min_lrs has {len(self.min_lrs)} values for {len(self.optimizer.param_groups)} "
        text += "parameter groups: one was added later; append its least rate to scheduler.min_lrs"
        need(not more or self.default_min_lr is not None, "ReduceLROnPlateau", text)
        self.min_lrs += [self.default_min_lr] * more

    def _is_better(self, value: float) -> bool:
        margin = self.threshold if self.mode == "max" else -self.threshold
        if self.threshold_mode == "rel":
            bound = self.best * (1 + margin)
        else:
            bound = self.best + margin
        return value > bound if self.mode == "max" else value < bound


class OfSchedulers(LRScheduler):
    """A schedule of other ones, `schedulers`, all of one optimizer."""

    def _set(self, schedulers: Sequence[Any], optimizer: Any) -> None:
        """TypeError and ValueError for what cannot be part of a schedule of schedules."""
        name = type(self).__name__
        need(schedulers, name, "expected at least one scheduler", error=ValueError)
        for one in schedulers:
            text = "ReduceLROnPlateau needs metrics at every step"
            need(not isinstance(one, ReduceLROnPlateau), name, text, error=ValueError)
            is_one = isinstance(one, LRScheduler)
            need(is_one, name, "expected an LRScheduler", type(one), error=TypeError)
            text = "all schedulers must be of the same optimizer"
            need(one.optimizer is optimizer, name, text, error=ValueError)
        self.optimizer = optimizer
        self._schedulers = [*schedulers]

    def _undo(self) -> None:
        for one in self._schedulers:
            one._undo()
            one._calls = -1  # it takes a second step before any optimizer's


class ChainedScheduler(OfSchedulers):
    """Several schedulers at once: each takes a step, in the order given, at every step.

    Args:
        schedulers: at least one, all of one optimizer.
        optimizer: theirs, which may be left out.

    Raises:
        TypeError: something is not a scheduler.
        ValueError: none, of different optimizers, or a `ReduceLROnPlateau`.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> warmup = mt.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
        >>> decay = mt.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        >>> schedule = mt.optim.lr_scheduler.ChainedScheduler([warmup, decay])
        >>> for epoch in range(4):
        ...     print(schedule.get_last_lr())
        ...     optimizer.step()
        ...     schedule.step()
        [0.5]
        [0.25]
        [0.25]
        [0.125]
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        first = schedulers[0] if schedulers else None
        of = getattr(first, "optimizer", None) if optimizer is None else optimizer
        self._set(schedulers, of)
        self._last_lr = self._rates

    def step(self) -> None:
        """Set the next learning rates."""
        for one in self._schedulers:
            one.step()
        self._last_lr = self._rates


class SequentialLR(OfSchedulers):
    """One scheduler after the other; the next one begins at each of the `milestones`.

    Args:
        optimizer: that of all schedulers.
        schedulers: at least one.
        milestones: the steps at which the second, third ... begins.
        last_epoch: -1.

    Raises:
        TypeError: something is not a scheduler.
        ValueError: none, of another optimizer, a `ReduceLROnPlateau`, or another number of
            milestones.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> warmup = mt.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=9)
        >>> decay = mt.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        >>> schedule = mt.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [2])
        >>> for epoch in range(4):
        ...     print(schedule.get_last_lr())
        ...     optimizer.step()
        ...     schedule.step()
        [0.5]
        [0.5]
        [1.0]
        [0.5]
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self._set(schedulers, optimizer)
        text = "a ChainedScheduler can only be the first of them"
        chained = any(isinstance(one, ChainedScheduler) for one in schedulers[1:])
        need(not chained, "SequentialLR", text, error=ValueError)
        text, given = f"{len(schedulers)} schedulers need a milestone less", len(milestones)
        need(given == len(schedulers) - 1, "SequentialLR", text, given, error=ValueError)
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self._undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._begin()
        self._last_lr = first.get_last_lr()

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
