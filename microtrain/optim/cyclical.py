"""Schedules that go up and down, the momentum the other way round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import need
from .optimizer import Optimizer
from .scheduler import CURVES, LRScheduler, checked_optimizer


class WithMomentum(LRScheduler):
    """What these have in common.

    Attributes:
        cycle_momentum: whether the momentum is scheduled, too.
        use_beta1: whether that is the first of `betas`.
    """

    def _begin_momentum(
        self, optimizer: Optimizer, cycle_momentum: bool, base: Any, highest: Any, new: bool
    ) -> tuple[list[float], list[float]]:
        """The lowest and highest momenta of the groups; a `new` schedule begins at the highest.

        Raises TypeError for what is no optimizer, ValueError for one without momentum.
        """
        self.optimizer = checked_optimizer(optimizer)
        self.cycle_momentum, self.use_beta1 = cycle_momentum, "betas" in optimizer.defaults
        there = not cycle_momentum or self.use_beta1 or "momentum" in optimizer.defaults
        text = "the optimizer has no momentum; use cycle_momentum=False"
        need(there, type(self).__name__, text, error=ValueError)
        low, high = self._each("base_momentum", base), self._each("max_momentum", highest)
        for group, least, most in zip(optimizer.param_groups, low, high, strict=True):
            if new and cycle_momentum:
                group["base_momentum"], group["max_momentum"] = least, most
                self._set_momentum(group, most)
        return low, high

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(WithMomentum):
    """Up to `max_lr` and down to `base_lr` again and again, the momentum the other way round.

    L. N. Smith, "Cyclical learning rates for training neural networks", 2017.

    Args:
        optimizer: whose groups get their `lr` and `momentum` (or the first of `betas`) from here.
        base_lr, max_lr: the lowest and the highest rate, one number or one for each group.
        step_size_up, step_size_down: steps on the way up, and down; None: as many as up.
        mode: "triangular": all cycles alike; "triangular2": each half as high as the one before;
            "exp_range": the height is multiplied by `gamma` at every step.
        gamma: of "exp_range".
        scale_fn: the height at a cycle (or step), in place of `mode`.
        scale_mode: what `scale_fn` gets: the number of the "cycle", 1 at first, or of the step,
            "iterations".
        cycle_momentum: whether the momentum goes from `max_momentum` to `base_momentum` and back.
        base_momentum, max_momentum: one number or one for each group.
        last_epoch: as for every schedule.

    Raises:
        TypeError: not an Optimizer.
        ValueError: options out of range, or an optimizer without momentum.
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float],
        step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular",
        gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8, max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.base_momentums, self.max_momentums = self._begin_momentum(
            optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch == -1
        )
        self._scale_fn_custom, self.mode, self.gamma = scale_fn, mode, gamma
        self.scale_mode = self._one_of("scale_mode", scale_mode, "cycle", "iterations")
        if scale_fn is None:
            self._one_of("mode", mode, "triangular", "triangular2", "exp_range")
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        up, down = step_size_up, step_size_up if step_size_down is None else step_size_down
        text = "step_size_up and step_size_down must be above 0, got {} and {}"
        need(up > 0 and down > 0, "CyclicLR", text, up, down, error=ValueError)
        self.total_size = float(up) + float(down)
        self.step_ratio = float(up) / self.total_size
        lowest, self.max_lrs = self._each("base_lr", base_lr), self._each("max_lr", max_lr)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, lowest, strict=True):
                group["lr"] = rate
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, x: float) -> float:
        """The height of the cycle, or step, number `x`, as a share of the whole."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "exp_range":
            return float(self.gamma**x)
        return 1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else 1.0

    def get_lr(self) -> list[float]:
        """The rates at `last_epoch`; the momenta are set at once."""
        bases, at = self._bases(), self.last_epoch / self.total_size
        cycle = math.floor(1 + at)
        x = 1.0 + at - cycle
        up = self.step_ratio
        share = x / up if x <= up else (x - 1) / (up - 1)
        height = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                self._set_momentum(group, high - (high - low) * share * height)
        pairs = zip(bases, self.max_lrs, strict=True)
        return [low + (high - low) * share * height for low, high in pairs]


class OneCycleLR(WithMomentum):
    """Up to `max_lr` and down again over `total_steps`, the momentum the other way round.

    L. N. Smith and N. Topin, "Super-convergence: very fast training of neural networks using large
    learning rates", 2018.

    Args:
        optimizer: whose groups get their `lr` and `momentum` (or the first of `betas`) from here.
        max_lr: the highest rate, one number or one for each group.
        total_steps: the number of steps; or give both of the next.
        epochs, steps_per_epoch: their product is the number of steps.
        pct_start: the share of the steps that goes up.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether the momentum goes from `max_momentum` to `base_momentum` and back.
        base_momentum, max_momentum: one number or one for each group.
        div_factor: the first rate is `max_lr` divided by this.
        final_div_factor: the last rate is the first divided by this.
        three_phase: go down to the first rate as fast as up, only then to the last.
        last_epoch: as for every schedule.

    Raises ValueError for options out of range, and for a step beyond the last.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85, max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        begins = last_epoch == -1
        self._begin_momentum(optimizer, cycle_momentum, base_momentum, max_momentum, begins)
        if total_steps is None:
            text = "give total_steps, or epochs and steps_per_epoch"
            both = epochs is not None and steps_per_epoch is not None
            need(both, "OneCycleLR", text, error=ValueError)
            given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
            total_steps = math.prod(self._whole(*one) for one in given.items())
        self.total_steps = self._whole("total_steps", total_steps)
        text = "pct_start must be between 0 and 1"
        need(0 <= pct_start <= 1, "OneCycleLR", text, pct_start, error=ValueError)
        self._anneal_strategy = self._one_of("anneal_strategy", anneal_strategy, *CURVES)
        # (last step, then the rates and momenta from which to which), by their names in the group
        up = ("initial_lr", "max_lr", "max_momentum", "base_momentum")
        down = ("max_lr", "initial_lr", "base_momentum", "max_momentum")
        end = ("initial_lr", "min_lr", "max_momentum", "max_momentum")
        first, last = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        self._phases: list[tuple[float, tuple[str, ...]]] = [(first, up)]
        if three_phase:
            middle = float(2 * pct_start * self.total_steps) - 2
            self._phases += [(middle, down), (last, end)]
        else:
            self._phases += [(last, ("max_lr", "min_lr", "base_momentum", "max_momentum"))]
        highest = self._each("max_lr", max_lr)
        for group, lr in zip(optimizer.param_groups, highest, strict=True):
            if begins:
                group["initial_lr"], group["max_lr"] = lr / div_factor, lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates at `last_epoch`; the momenta are set at once."""
        self._bases()
        step = self.last_epoch
        text = f"Tried to step {step} times. The specified number of total steps is {{}}"
        need(step <= self.total_steps, "OneCycleLR", text, self.total_steps, error=ValueError)
        begin = 0.0
        for phase in self._phases:
            if step <= phase[0] or phase is self._phases[-1]:
                break
            begin = phase[0]
        stop, names = phase
        share = (step - begin) / (stop - begin)
        between = CURVES[self._anneal_strategy]
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(between(group[names[0]], group[names[1]], share))
            if self.cycle_momentum:
                momentum = between(group[names[2]], group[names[3]], share)
                self._set_momentum(group, momentum)
        return rates
