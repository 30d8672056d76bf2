"""Adagrad, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..backend import XP
from .flat import FlatStorage
from .optimizer import STEP, Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients so far.

    J. Duchi, E. Hazan and Y. Singer, "Adaptive subgradient methods for online learning and
    stochastic optimization", 2011. For every parameter p with gradient g, at its step t:

        g = g + weight_decay * p
        s = s + g * g
        p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        lr_decay: how fast the rate falls with the steps, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        initial_accumulator_value: where s begins, at least 0.
        eps: added to the denominator, at least 0.
        maximize: maximize instead of minimize.
        foreach, differentiable, fused: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adagrad(model.parameters(), lr=1e-2)
    """

    states = ("sum",)
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-2,
        lr_decay: Annotated[float, Ge(0)] = 0.0,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        initial_accumulator_value: Annotated[float, Ge(0)] = 0.0,
        eps: Annotated[float, Ge(0)] = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _use(self, storage: FlatStorage) -> None:
        super()._use(storage)
        for param, group in self._group_of.items():  # there from the beginning, as in PyTorch
            start = np.full(param.shape, group["initial_accumulator_value"], param._array.dtype)
            self.load_state_of(param, {STEP: np.array(0), "sum": start})

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(
            group, "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"
        )

    def _constants(self, run: Run) -> tuple[Any, ...]:
        _, _, decay, start, eps, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(0, dtype),  # the rate of this step, written by `prepare`
            asarray(eps, dtype),
            asarray(decay, dtype) if decay else None,
            asarray(start, dtype),
            maximize,
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        return True

    def prepare(self, run: Run) -> None:
        """Write the rate of the step `run.count`."""
        lr, lr_decay, *_ = run.options
        run.constants[0].fill(float(lr) / (1 + (run.count - 1) * lr_decay))

    def update(self, run: Run) -> None:
        rate, eps, decay, start, maximize = run.constants
        (total,) = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        if run.fresh:
            xp.copyto(total, start)
        step = run.direction(decay, maximize)
        other = xp.multiply(step, step)
        xp.add(total, other, total)
        xp.sqrt(total, other)
        xp.add(other, eps, other)
        xp.divide(step, other, work)
        xp.multiply(work, rate, work)
        xp.subtract(param, work, param)
