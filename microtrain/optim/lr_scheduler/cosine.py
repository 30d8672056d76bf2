"""Cosine schedules."""

from __future__ import annotations

import math

from ..optimizer import Optimizer
from .curves import cosine
from .scheduler import LRScheduler, Recursive


class CosineAnnealingLR(Recursive):
    """Half a cosine wave from the rate down to `eta_min` in `T_max` steps, and up again.

    I. Loshchilov and F. Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, one step further along the wave."""
        epoch, steps, low = self.last_epoch, self.T_max, self.eta_min
        if self._is_initial:
            return self._rates
        if self._step_count == 1 and epoch > 0:  # resumed
            return [cosine(base, low, epoch, steps) for base in self._bases()]
        if (epoch - 1 - steps) % (2 * steps) == 0:  # up from the bottom, where the ratio is 0 / 0
            wave = 1 - math.cos(math.pi / steps)
            pairs = zip(self._rates, self._bases(), strict=True)
            return [lr + (base - low) * wave / 2 for lr, base in pairs]
        ratio = (1 + math.cos(math.pi * epoch / steps)) / (
            1 + math.cos(math.pi * (epoch - 1) / steps)
        )
        return [ratio * (lr - low) + low for lr in self._rates]

    def _first(self, base: float) -> float:
        return self.eta_min + (base - self.eta_min)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine wave down to `eta_min` in `T_0` steps; then again, each `T_mult` times longer.

    I. Loshchilov and F. Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.
    Raises ValueError for a `T_0` or `T_mult` below 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"CosineAnnealingWarmRestarts: {name} must be a whole number of at least 1, "
                    f"got {value!r}"
                )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur = last_epoch
        super().__init__(optimizer, last_epoch)

    def step(self) -> None:
        """Set the next learning rates."""
        if self.last_epoch < 0:
            self.T_cur = 0
        else:
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        self.last_epoch += 1
        self._write(self.get_lr())

    def get_lr(self) -> list[float]:
        """The rates at the place `T_cur` of the present wave, which is `T_i` long."""
        return [cosine(base, self.eta_min, self.T_cur, self.T_i) for base in self._bases()]
