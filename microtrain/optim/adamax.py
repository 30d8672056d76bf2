"""Adamax, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Lt


class Adamax(Optimizer):
    """Adam with the largest of the decayed gradients in place of the root of their mean square.

    D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2015, section 7. For every
    parameter p with gradient g, at its step t:

        g = g + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        u = max(beta2 * u, abs(g) + eps)
        p = p - lr / (1 - beta1 ** t) * m / u

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two, each at least 0 and below 1.
        eps: added to the size of the gradient, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        maximize: maximize instead of minimize.
        foreach, differentiable, capturable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adamax(model.parameters(), lr=2e-3)
    """

    states = ("exp_avg", "exp_inf")
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 2e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "eps", "weight_decay")
        self._check_betas(group)

    def _constants(self, run: Run) -> tuple[Any, ...]:
        _, (beta1, beta2), eps, decay, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(0, dtype),  # the rate of this step, written by `prepare`
            asarray(beta1, dtype),
            asarray(1 - beta1, dtype),
            asarray(beta2, dtype),
            asarray(eps, dtype),
            asarray(decay, dtype) if decay else None,
            maximize,
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        return True

    def prepare(self, run: Run) -> None:
        """Correct the rate for the average's start at 0, for the step `run.count`."""
        lr, (beta1, _), *_ = run.options
        run.constants[0].fill(float(lr) / (1 - beta1**run.count))

    def update(self, run: Run) -> None:
        rate, beta1, new, beta2, eps, decay, maximize = run.constants
        average, largest = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        if run.fresh:
            for state in run.states:
                xp.copyto(state, 0)
        step = run.direction(decay, maximize)
        other = multiply(step, new)
        multiply(average, beta1, average)
        add(average, other, average)
        xp.absolute(step, other)
        add(other, eps, other)
        multiply(largest, beta2, largest)
        xp.maximum(largest, other, out=largest)
        xp.divide(average, largest, work)
        multiply(work, rate, work)
        xp.subtract(param, work, param)
