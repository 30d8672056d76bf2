"""Schedules in which the momentum goes down where the rate goes up; the one that repeats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..optimizer import Optimizer
from .scheduler import LRScheduler, attributes, checked_optimizer


class WithMomentum(LRScheduler):
    """What these have in common.

    Attributes:
        cycle_momentum: whether the momentum is scheduled, too.
        use_beta1: whether that is the first of `betas`.
    """

    def _begin_momentum(self, optimizer: Optimizer, cycle_momentum: bool) -> None:
        """Raises TypeError for what is no optimizer, ValueError for one without momentum."""
        self.optimizer = checked_optimizer(optimizer)
        defaults = optimizer.defaults
        if cycle_momentum and not {"momentum", "betas"} & defaults.keys():
            raise ValueError(
                f"{type(self).__name__}: the optimizer has no momentum; use cycle_momentum=False"
            )
        self.cycle_momentum = cycle_momentum
        self.use_beta1 = "betas" in defaults

    def _each(self, name: str, value: float | list[float]) -> list[float]:
        """One value for each group; ValueError for another number of them."""
        groups = len(self.optimizer.param_groups)
        found = list(value) if isinstance(value, list | tuple) else [value] * groups
        if len(found) != groups:
            raise ValueError(
                f"{type(self).__name__}: {name} has {len(found)} values for {groups} groups"
            )
        return found

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
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self._begin_momentum(optimizer, cycle_momentum)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(
                f"CyclicLR: mode must be triangular, triangular2 or exp_range, got {mode!r}"
            )
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(
                f"CyclicLR: scale_mode must be cycle or iterations, got {scale_mode!r}"
            )
        down = step_size_up if step_size_down is None else step_size_down
        if step_size_up <= 0 or down <= 0:
            raise ValueError(
                "CyclicLR: step_size_up and step_size_down must be above 0, got "
                f"{step_size_up} and {down}"
            )
        lowest = self._each("base_lr", base_lr)
        self.max_lrs = self._each("max_lr", max_lr)
        self.base_momentums = self._each("base_momentum", base_momentum)
        self.max_momentums = self._each("max_momentum", max_momentum)
        self.total_size = float(step_size_up) + float(down)
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode = mode
        self.gamma = gamma
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self._scale_fn_custom = scale_fn
        if last_epoch == -1:
            for number, group in enumerate(optimizer.param_groups):
                group["lr"] = lowest[number]
                if cycle_momentum:
                    group["max_momentum"] = self.max_momentums[number]
                    group["base_momentum"] = self.base_momentums[number]
                    self._set_momentum(group, self.max_momentums[number])
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

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer; of a callable object its attributes."""
        custom = self._scale_fn_custom
        kept = None if custom is None else attributes(custom)
        return {**super().state_dict(), "_scale_fn_custom": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; a function stays as it is."""
        found = state_dict["_scale_fn_custom"]
        if found is not None:
            vars(self._scale_fn_custom).update(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
