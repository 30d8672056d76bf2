"""The one-cycle schedule."""

from __future__ import annotations

from typing import Any

from ..optimizer import Optimizer
from .curves import cosine, line
from .cyclic import WithMomentum


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
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
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
