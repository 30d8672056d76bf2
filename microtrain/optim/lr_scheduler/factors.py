"""Schedules that multiply the rate: at steps, at every step, along a line or a power."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..optimizer import Optimizer
from .scheduler import Recursive


class StepLR(Recursive):
    """Multiply the rate by `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, multiplied where a multiple of `step_size` is reached."""
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._rates
        return self._scaled(self.gamma)


class MultiStepLR(Recursive):
    """Multiply the rate by `gamma` at each of the `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, multiplied where a milestone is reached, once for each time it is named."""
        if self.last_epoch not in self.milestones:
            return self._rates
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def _first(self, base: float) -> float:
        return base * self.gamma ** sum(n for at, n in self.milestones.items() if at <= 0)


class ExponentialLR(Recursive):
    """Multiply the rate by `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, multiplied after the first step."""
        return self._rates if self._is_initial else self._scaled(self.gamma)


class ConstantLR(Recursive):
    """Multiply the rate by `factor` for the first `total_iters` steps.

    Raises ValueError for a factor outside 0 .. 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor must be between 0 and 1, got {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, multiplied at the beginning and divided at the end."""
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1.0 / self.factor) if self._ends else self._rates

    @property
    def _ends(self) -> bool:
        return self.last_epoch == self.total_iters

    def _first(self, base: float) -> float:
        return base * (self.factor + (self.total_iters <= 0) * (1 - self.factor))


class LinearLR(Recursive):
    """From `start_factor` to `end_factor` of the rate, in equal steps over `total_iters` steps.

    Raises ValueError for a start factor outside 0 .. 1 or 0, an end factor outside 0 .. 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(
                f"LinearLR: start_factor must be above 0 and at most 1, got {start_factor}"
            )
        if not 0 <= end_factor <= 1:
            raise ValueError(f"LinearLR: end_factor must be between 0 and 1, got {end_factor}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, one step further along the line."""
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._scaled(1.0 + rise / before)

    def _first(self, base: float) -> float:
        return base * self.start_factor


class PolynomialLR(Recursive):
    """`(1 - step / total_iters) ** power` of the rate, 0 from `total_iters` on."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, one step further down."""
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates
        now = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return self._scaled((now / before) ** self.power)
