"""RAdam, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .moments import Moments
from .optimizer import Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Lt


class RAdam(Moments):
    """Adam that divides by the second average only once enough steps stand behind it.

    L. Liu et al., "On the variance of the adaptive learning rate and beyond", 2020. For every
    parameter p with gradient g, at its step t:

        g = g + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        far = 2 / (1 - beta2) - 1
        now = far - 2 * t * beta2 ** t / (1 - beta2 ** t)
        r = sqrt((now - 4) * (now - 2) * far / ((far - 4) * (far - 2) * now))
        d = r * sqrt(1 - beta2 ** t) / (sqrt(v) + eps)  where now is above 5, else 1
        p = p - lr * m / (1 - beta1 ** t) * d

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two averages, each at least 0 and below 1.
        eps: added to the denominator, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        decoupled_weight_decay: shrink the parameters instead of changing the gradient.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.RAdam(model.parameters(), lr=1e-3)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def prepare(self, run: Run) -> None:
        """Write step size and denominator of the step `run.count`; 0 * sqrt(v) + 1 is none."""
        *_, size, factor, least = run.constants
        lr, (beta1, beta2), eps, *_ = run.options
        t = run.count
        rest = 1 - beta2**t
        far = 2 / (1 - beta2) - 1
        now = far - 2 * t * beta2**t / rest
        scale = 1.0
        if now > 5:
            r = (now - 4) * (now - 2) * far / ((far - 4) * (far - 2) * now)
            scale = math.sqrt(r * rest)
        size.fill(float(lr) / (1 - beta1**t) * scale)
        factor.fill(now > 5)
        least.fill(eps if now > 5 else 1)

    def update(self, run: Run) -> None:
        *_, size, factor, least = run.constants
        average, square = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        _, other = self._average(run)
        xp.sqrt(square, other)
        multiply(other, factor, other)
        add(other, least, other)
        xp.divide(average, other, work)
        multiply(work, size, work)
        xp.subtract(param, work, param)
