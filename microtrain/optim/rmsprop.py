"""RMSprop, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt


class RMSprop(Optimizer):
    """Steps scaled by a running average of the square of the gradient.

    T. Tieleman and G. Hinton, "Lecture 6.5: rmsprop", 2012. For every parameter p with gradient g:

        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g * g
        m = momentum * m + g / (sqrt(v) + eps)
        p = p - lr * m

    With `centered` the square root is of v less the square of the average gradient, as Graves has
    it ("Generating sequences with recurrent neural networks", 2013).

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        alpha: how much the average keeps, at least 0.
        eps: added to the denominator, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        momentum: how much of the last steps is kept, at least 0.
        maximize: maximize instead of minimize.
        centered: divide by the deviation of the gradient instead of its size.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.RMSprop(model.parameters(), lr=1e-3)
    """

    states = ("square_avg", "momentum_buffer", "grad_avg")
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-2,
        alpha: Annotated[float, Ge(0)] = 0.99,
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        momentum: Annotated[float, Ge(0)] = 0.0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "alpha", "eps", "weight_decay", "momentum")

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        there = True, group["momentum"], group["centered"]
        return tuple(compress(self.states, there))

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, alpha, eps, decay, momentum, centered, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(lr, dtype),
            asarray(alpha, dtype),
            asarray(1 - alpha, dtype),
            asarray(eps, dtype),
            asarray(decay, dtype) if decay else None,
            asarray(momentum, dtype) if momentum else None,
            centered,
            maximize,
        )

    def update(self, run: Run) -> None:
        lr, alpha, new, eps, decay, momentum, centered, maximize = run.constants
        square, *more = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        if run.fresh:
            for state in run.states:
                state.fill(0)
        step = run.direction(decay, maximize)
        other = multiply(step, step)  # `step` may be in `work`, and is needed once more
        multiply(other, new, other)
        multiply(square, alpha, square)
        add(square, other, square)
        if centered:
            mean = more[-1]
            add(mean, multiply(xp.subtract(step, mean, other), new, other), mean)
            xp.subtract(square, multiply(mean, mean, other), other)
            xp.sqrt(other, other)
        else:
            xp.sqrt(square, other)
        add(other, eps, other)
        xp.divide(step, other, work)
        if momentum is not None:
            velocity = more[0]
            multiply(velocity, momentum, velocity)
            work = multiply(add(velocity, work, velocity), lr, work)
        else:
            multiply(work, lr, work)
        xp.subtract(param, work, param)
