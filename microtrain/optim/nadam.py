"""NAdam, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .moments import Moments
from .optimizer import Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Lt


class NAdam(Moments):
    """Adam with Nesterov's momentum, which grows with the steps.

    T. Dozat, "Incorporating Nesterov momentum into Adam", 2016. For every parameter p with gradient
    g, at its step t:

        g = g + weight_decay * p
        mu[t] = beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        d = (1 - mu[t]) * g / (1 - mu[1] ... mu[t]) + mu[t + 1] * m / (1 - mu[1] ... mu[t + 1])
        p = p - lr * d / (sqrt(v / (1 - beta2 ** t)) + eps)

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two averages, each at least 0 and below 1.
        eps: added to the denominator, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        momentum_decay: how fast the momentum comes near beta1, at least 0.
        decoupled_weight_decay: shrink the parameters instead of changing the gradient.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.NAdam(model.parameters(), lr=2e-3)
    """

    numbers = ("mu_product",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 2e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        momentum_decay: Annotated[float, Ge(0)] = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        self._check_numbers(group, "momentum_decay")

    def first_numbers(self, group: dict[str, Any]) -> tuple[float, ...]:
        return (1.0,)

    def prepare(self, run: Run) -> None:
        """Write the factors of the step `run.count`; the root of 1 - beta2 ** t goes into them."""
        *_, new, old, least = run.constants
        lr, (beta1, beta2), eps, _, momentum_decay, *_ = run.options
        root = math.sqrt(1 - beta2**run.count)
        mu, following = (
            beta1 * (1 - 0.5 * 0.96 ** (count * momentum_decay))
            for count in (run.count, run.count + 1)
        )
        product = float(run.param.dtype.type(run.numbers[0] * mu))  # as a state keeps it
        run.numbers[0] = product
        new.fill(float(lr) * (1 - mu) / (1 - product) * root)
        old.fill(float(lr) * following / (1 - product * following) * root)
        least.fill(eps * root)

    def update(self, run: Run) -> None:
        *_, new, old, least = run.constants
        average, square = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        step, other = self._average(run)
        multiply(step, new, work)
        multiply(average, old, other)
        add(work, other, work)
        xp.sqrt(square, other)
        add(other, least, other)
        xp.divide(work, other, work)
        xp.subtract(param, work, param)
