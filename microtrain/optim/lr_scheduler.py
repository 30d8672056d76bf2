"""Learning-rate schedules: the rate of every step as a function of its number, as PyTorch has them.

They write `lr` into the optimizer's groups, which keep their first rate as `initial_lr`. Where
PyTorch makes each rate from the one before, the last digits differ, as these add no errors up.
"""

from __future__ import annotations

import math
import types
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from ..backend import MODES
from .optimizer import SCHEDULES, Optimizer

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
    "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip

# In PyTorch's state dicts, without a meaning here.
_TORCH_ONLY = {"_get_lr_called_within_step", "mode_worse"}


def __dir__() -> list[str]:
    return __all__


def line(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` in equal steps, of which `at` are done."""
    return (end - start) * (at / steps) + start


def cosine(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` along half a cosine wave, flat at both ends."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * at / steps) + 1)


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

    A subclass defines `get_lr()`: the rates of all groups at `last_epoch`.

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
        self._begin()

    def _begin(self) -> None:
        self._calls = self.optimizer.calls
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
        MODES.capture.refuse(SCHEDULES)
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

    def _undo(self) -> None:
        """Take back the step that it took when it was made."""
        self.last_epoch -= 1

    def get_lr(self) -> list[float]:
        """The learning rates at `last_epoch`."""
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
            if lr == made or not before:
                found.append(self._at(self._bases()[0] if base is None else base, step))
            else:
                found.append(self.low + (lr - self.low) * (self.share(step) / before))
        return found


class StepLR(Scaled):
    """Multiply the rate by `gamma` every `step_size` steps."""

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
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor must be between 0 and 1, got {factor}")
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
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"CosineAnnealingWarmRestarts: {name} must be a whole number of at least 1, "
                    f"got {value!r}"
                )
        self.T_0 = T_0
        self.T_mult = T_mult
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
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float],
        step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular",
        gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8, max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
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
        self._begin_momentum(optimizer, cycle_momentum)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = _count("epochs", epochs) * _count("steps_per_epoch", steps_per_epoch)
        self.total_steps = _count("total_steps", total_steps)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must be between 0 and 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy must be cos or linear, got {anneal_strategy!r}"
            )
        self._cosine = anneal_strategy == "cos"
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
        large, small = (
            self._each("max_momentum", max_momentum),
            self._each("base_momentum", base_momentum),
        )
        if last_epoch == -1:
            for group, lr, most, least in zip(
                optimizer.param_groups, highest, large, small, strict=True
            ):
                group["initial_lr"] = lr / div_factor
                group["max_lr"] = lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
                if cycle_momentum:
                    group["max_momentum"], group["base_momentum"] = most, least
                    self._set_momentum(group, most)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates at `last_epoch`; the momenta are set at once."""
        self._bases()
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        begin = 0.0
        for phase in self._phases:
            if step <= phase[0] or phase is self._phases[-1]:
                break
            begin = phase[0]
        stop, names = phase
        share = (step - begin) / (stop - begin)
        between = cosine if self._cosine else line
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(between(group[names[0]], group[names[1]], share))
            if self.cycle_momentum:
                momentum = between(group[names[2]], group[names[3]], share)
                self._set_momentum(group, momentum)
        return rates


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"OneCycleLR: {name} must be a positive whole number, got {value!r}")
    return value


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
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | list[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
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


class OfSchedulers(LRScheduler):
    """A schedule of other ones, `schedulers`, all of one optimizer."""

    def _set(self, schedulers: Sequence[Any], optimizer: Any) -> None:
        """TypeError and ValueError for what cannot be part of a schedule of schedules."""
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler")
        for one in schedulers:
            if isinstance(one, ReduceLROnPlateau):
                raise ValueError(f"{name}: ReduceLROnPlateau needs metrics at every step")
            if not isinstance(one, LRScheduler):
                raise TypeError(f"{name}: {type(one).__name__} is not an LRScheduler")
            if one.optimizer is not optimizer:
                raise ValueError(f"{name}: all schedulers must be of the same optimizer")
        self.optimizer = optimizer
        self._schedulers = schedulers

    def _undo(self) -> None:
        for one in self._schedulers:
            one._undo()
            one._calls = -1  # it takes a second step before any optimizer's

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, with the state dicts of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()` and those of the schedulers in it."""
        for one, found in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one.load_state_dict(found)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})


class ChainedScheduler(OfSchedulers):
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
        TypeError: what is no scheduler.
        ValueError: none, of another optimizer, a `ReduceLROnPlateau`, or another number of
            milestones.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self._set(schedulers, optimizer)
        if any(isinstance(one, ChainedScheduler) for one in schedulers[1:]):
            raise ValueError("SequentialLR: a ChainedScheduler can only be the first of them")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} "
                f"milestones, got {len(milestones)}"
            )
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
