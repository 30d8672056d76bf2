"""Adadelta, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Le


class Adadelta(Optimizer):
    """Steps scaled by running averages of the squares of the gradient and of the last steps.

    M. D. Zeiler, "ADADELTA: an adaptive learning rate method", 2012. For every parameter p with
    gradient g:

        g = g + weight_decay * p
        v = rho * v + (1 - rho) * g * g
        d = sqrt(u + eps) / sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d * d
        p = p - lr * d

    Args:
        params: Tensors or parameter groups.
        lr: factor of the step, at least 0.
        rho: how much the averages keep, between 0 and 1.
        eps: added under the square roots, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adadelta(model.parameters(), lr=1.0)
    """

    states = ("square_avg", "acc_delta")
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1.0,
        rho: Annotated[float, Ge(0), Le(1)] = 0.9,
        eps: Annotated[float, Ge(0)] = 1e-6,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "rho", "eps", "weight_decay")
        if group["rho"] > 1:
            raise ValueError(f"Adadelta: rho must be at most 1, got {group['rho']!r}")

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, rho, eps, decay, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(lr, dtype),
            asarray(rho, dtype),
            asarray(1 - rho, dtype),
            asarray(eps, dtype),
            asarray(decay, dtype) if decay else None,
            maximize,
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        run.constants[0].fill(lr)
        return True

    def update(self, run: Run) -> None:
        lr, rho, new, eps, decay, maximize = run.constants
        square, delta = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        multiply, add, sqrt = xp.multiply, xp.add, xp.sqrt
        if run.fresh:
            for state in run.states:
                xp.copyto(state, 0)
        step = run.direction(decay, maximize)
        other = multiply(step, step)
        multiply(other, new, other)
        multiply(square, rho, square)
        add(square, other, square)
        add(square, eps, other)
        xp.divide(step, sqrt(other, other), work)
        add(delta, eps, other)
        multiply(work, sqrt(other, other), work)
        multiply(work, work, other)
        multiply(other, new, other)
        multiply(delta, rho, delta)
        add(delta, other, delta)
        multiply(work, lr, work)
        xp.subtract(param, work, param)
