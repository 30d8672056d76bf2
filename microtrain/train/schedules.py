"""Learning-rate schedules of a run: the rate of an optimizer step as a function of its number.

Where PyTorch's schedulers (`mt.optim.lr_scheduler`) make each rate from the one before, a run may
begin anywhere: `rate(step, base)` depends on its arguments alone, so a resumed run needs no state
of its schedule. The values are those of the scheduler that a class names. Steps are counted from 0
by the optimizer steps taken; `base` is what the parameter group's `lr` was when the run began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from ..config.components import own
from ..config.schema import Expects
from ..config.texts import Duration
from ..distributed.agreement import agreed
from ..errors import ConfigError
from ..optim.scheduler import cosine, line

Lasting = Annotated[str, Duration, Expects("a duration such as `5%` or `100 steps`")]


class Schedule:
    """Base class. Your own schedule overrides `after_warmup`.

    Args:
        warmup: a duration such as `5%`: of its n steps the first takes 1/n of the rate, the second
            2/n, and so on: `LinearLR(start_factor=1/n, total_iters=n-1)`.

    Attributes:
        steps_per_epoch, total_steps: of the run, once `begin` has been called; None as
            `total_steps` where only a clock ends the run.
        warmup_steps: `warmup` in steps.

    Raises ValueError for what is not a duration.

    Example:
        >>> schedule = Cosine(warmup="10 steps")
        >>> schedule.begin(steps_per_epoch=100, total_steps=1000)
        >>> [round(schedule.rate(step, base=0.1), 6) for step in (0, 9, 505)]
        [0.01, 0.1, 0.05]
    """

    needs_end = False  # whether its curve is stretched over the run

    def __init__(self, warmup: Lasting | None = None) -> None:
        self.__name__ = type(self).__name__.lower()
        self.warmup = None if warmup is None else _duration("warmup", warmup)
        self.warmup_steps = 0

    def begin(self, steps_per_epoch: int, total_steps: int | None) -> None:
        """Learn how long the run is.

        Raises ConfigError for a warm-up that takes the whole run, and for a curve or a percentage
        of a run without a number of steps.
        """
        self.steps_per_epoch, self.total_steps = steps_per_epoch, total_steps
        if total_steps is None and self.needs_end:
            raise ConfigError(
                f"schedule: {self.__name__} is stretched over the steps of the run, "
                "which a train.duration in minutes does not know; give it in epochs or steps, and "
                "the minutes as train.max_time"
            )
        self.warmup_steps = 0 if self.warmup is None else self._steps("warmup", self.warmup)
        if total_steps is not None and self.warmup and self.warmup_steps >= total_steps:
            raise ConfigError(
                f"schedule.warmup: {self.warmup} is {self.warmup_steps:,} steps, and the whole run "
                f"has {total_steps:,}; choose less"
            )

    def _steps(self, name: str, duration: Duration) -> int:
        try:
            return duration.steps(self.steps_per_epoch, self.total_steps)
        except ValueError:
            raise ConfigError(
                f"schedule.{name}: {duration} is not a number of steps here; give epochs or steps"
            ) from None

    def rate(self, step: int, base: float) -> float:
        """The learning rate of the optimizer step after `step` others."""
        if step < self.warmup_steps:
            return self.during_warmup(step, base) * ((step + 1) / self.warmup_steps)
        return self.after_warmup(step, base)

    def during_warmup(self, step: int, base: float) -> float:
        """The rate that warm-up leads to."""
        return base

    def after_warmup(self, step: int, base: float) -> float:
        """The rate of a step that is not part of the warm-up."""
        return base

    def share(self, step: int) -> float:
        """How far the steps after the warm-up have come: 0 at the first, 1 after the last."""
        assert self.total_steps is not None  # needs_end
        return (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)


class Constant(Schedule):
    """A constant rate: the optimizer's `lr`."""


class Step(Schedule):
    """Multiply the rate by `gamma` at regular intervals, counted from the first step: `StepLR`.

    Args:
        every: a duration such as `10 epochs`.
        gamma: above 0.
        warmup: as `Schedule`; it scales what the steps would be.

    Raises ValueError for what is not a duration.
    """

    def __init__(
        self, every: Lasting, gamma: Annotated[float, Gt(0)] = 0.1, warmup: Lasting | None = None
    ) -> None:
        super().__init__(warmup)
        self.every = _duration("every", every)
        self.gamma = gamma

    def begin(self, steps_per_epoch: int, total_steps: int | None) -> None:
        """Learn how long the run is; errors as `Schedule`."""
        super().begin(steps_per_epoch, total_steps)
        self.every_steps = self._steps("every", self.every)

    def after_warmup(self, step: int, base: float) -> float:
        """`base * gamma ** n` after n times `every`."""
        return float(base * self.gamma ** (step // self.every_steps))

    during_warmup = after_warmup


class Cosine(Schedule):
    """From the rate down to `min_lr` along half a cosine wave: `CosineAnnealingLR`.

    The wave is as long as the run without its warm-up.

    Args:
        warmup: as `Schedule`.
        min_lr: a rate, not a share of one; the same for all parameter groups.

    Raises ValueError for what is not a duration.
    """

    needs_end = True

    def __init__(
        self, warmup: Lasting | None = None, min_lr: Annotated[float, Ge(0)] = 0.0
    ) -> None:
        super().__init__(warmup)
        self.min_lr = min_lr

    def after_warmup(self, step: int, base: float) -> float:
        """On the wave; ConfigError where it would lead upwards."""
        if base < self.min_lr:
            raise ConfigError(
                f"schedule.min_lr: {self.min_lr:g} is more than the optimizer's lr, {base:g}"
            )
        return cosine(base, self.min_lr, self.share(step))


class Linear(Schedule):
    """From the rate to `end` times the rate in equal steps: `LinearLR(start_factor=1)`.

    Args:
        warmup: as `Schedule`.
        end: a share of the rate, from 0 to 1.

    Raises ValueError for what is not a duration.
    """

    needs_end = True

    def __init__(
        self, warmup: Lasting | None = None, end: Annotated[float, Ge(0), Le(1)] = 0.0
    ) -> None:
        super().__init__(warmup)
        self.end = end

    def after_warmup(self, step: int, base: float) -> float:
        """On the line."""
        return base * line(1.0, self.end, self.share(step))


class FunctionSchedule(Schedule):
    """`function(step, total)` times the rate, as `LambdaLR` with the number of all steps beside.

    Args:
        function: a factor of at least 0, from the steps taken before and the steps of the run.
    """

    needs_end = True

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.__name__ = function, function.__name__

    def after_warmup(self, step: int, base: float) -> float:
        """ConfigError for a factor that is not a number."""
        factor = self.function(step, self.total_steps)
        if type(factor) is not float and not isinstance(factor, Real):
            raise ConfigError(
                f"schedule: {self.__name__}({step}, {self.total_steps}) returned {factor!r}; "
                f"expected a number, which the rate is multiplied by\n{own('schedule')}"
            )
        return base * float(factor)


class Rates:
    """Sets the rates of an optimizer's parameter groups, step by step.

    Args:
        schedule: that has begun.
        groups: of the optimizer; each keeps its own rate as `initial_lr`.

    Raises ConfigError where the schedule refuses a group's rate.
    """

    def __init__(self, schedule: Schedule, groups: Iterable[dict[str, Any]]) -> None:
        self.schedule = schedule
        self.groups = [(group, group.setdefault("initial_lr", group["lr"])) for group in groups]
        for step in (0, schedule.warmup_steps, max(schedule.total_steps or 1, 1) - 1):
            for _, base in self.groups:
                lr: Any = schedule.rate(step, base)
                if not isinstance(lr, Real) or not 0 <= float(lr) < math.inf:
                    raise _no_rate(step, lr)

    def set(self, step: int) -> None:
        """The rates of the optimizer step after `step` others, outside any captured program."""
        rate = self.schedule.rate
        for group, base in self.groups:
            lr = rate(step, base)
            if not 0 <= lr < math.inf:  # of a user-defined schedule
                raise agreed(_no_rate(step, lr))
            group["lr"] = lr


def _no_rate(step: int, lr: Any) -> ConfigError:
    words = f"{lr:g}" if isinstance(lr, Real) else repr(lr)
    return ConfigError(
        f"schedule: the rate of step {step + 1:,} is {words}; expected a number of at least 0\n"
        f"{own('schedule')}"
    )


def _duration(name: str, text: Any) -> Duration:
    if not isinstance(text, str):
        raise ValueError(f"{name} is a duration such as `5%` or `10 epochs`, got {text!r}")
    return Duration(text)
