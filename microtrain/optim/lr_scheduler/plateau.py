"""A schedule that looks at a metric."""

from __future__ import annotations

import math
from typing import Any

from ...backend import MODES
from ..optimizer import Optimizer, refuse_schedule
from .scheduler import LRScheduler, checked_optimizer


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
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown; there are min, max")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown; there are rel, abs")
        self.optimizer = checked_optimizer(optimizer)
        groups = len(optimizer.param_groups)
        given = isinstance(min_lr, list | tuple)
        self.default_min_lr = None if given else min_lr  # of groups that come later
        self.min_lrs: list[Any] = list(min_lr) if given else [min_lr] * groups  # type: ignore[arg-type]
        if len(self.min_lrs) != groups:
            raise ValueError(f"expected {groups} min_lrs, got {len(self.min_lrs)}")
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self._last_lr = self._rates

    def step(self, metrics: Any) -> None:  # type: ignore[override]
        """Look at a value of the metric, and reduce the rates if it is time to."""
        if MODES.recorder is not None:
            refuse_schedule()
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
        if more and self.default_min_lr is None:
            raise RuntimeError(
                f"ReduceLROnPlateau: min_lrs has {len(self.min_lrs)} values, the optimizer has "
                f"{len(self.optimizer.param_groups)} parameter groups: one was added later; append "
                "its least rate to scheduler.min_lrs"
            )
        self.min_lrs += [self.default_min_lr] * more

    def _is_better(self, value: float) -> bool:
        margin = self.threshold if self.mode == "max" else -self.threshold
        if self.threshold_mode == "rel":
            bound = self.best * (1 + margin)
        else:
            bound = self.best + margin
        return value > bound if self.mode == "max" else value < bound
