"""Stochastic gradient descent with momentum, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum.

    For every parameter p with gradient g, in PyTorch's formulation (Sutskever et al., "On the
    importance of initialization and momentum in deep learning", 2013, with the learning rate
    outside the velocity):

        d = g + weight_decay * p
        v = d at the first step, then momentum * v + (1 - dampening) * d
        p = p - lr * (d + momentum * v  if nesterov else  v)

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        momentum: momentum factor, at least 0.
        dampening: share of the gradient that is not added to the velocity.
        weight_decay: factor of the L2 penalty, at least 0.
        nesterov: look ahead along the velocity; needs momentum and no dampening.
        maximize: maximize instead of minimize.
        foreach, differentiable, fused: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> optimizer.zero_grad()
        >>> loss.backward()
        >>> optimizer.step()
    """

    states = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-3,
        momentum: Annotated[float, Ge(0)] = 0.0,
        dampening: float = 0.0,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "momentum", "weight_decay")
        self._check_numbers(group, "dampening", least=-math.inf)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.states if group["momentum"] else ()

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, momentum, dampening, decay, nesterov, maximize = run.options
        # Numbers as 0-d arrays, which a ufunc takes faster than Python's floats.
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(lr, dtype),
            asarray(momentum, dtype) if momentum else None,
            asarray(1 - dampening, dtype) if dampening else None,
            asarray(decay, dtype) if decay else None,
            nesterov,
            maximize,
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        run.constants[0].fill(lr)
        return True

    def update(self, run: Run) -> None:
        lr, momentum, kept, decay, nesterov, maximize = run.constants
        param, work = run.param, run.scratch
        step = run.direction(decay, maximize)
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        if momentum is not None:
            (velocity,) = run.states
            if run.fresh:
                xp.copyto(velocity, step)
            else:
                multiply(velocity, momentum, velocity)
                # `step` may be `work` itself; it is not read again unless nesterov (kept is None).
                add(velocity, step if kept is None else multiply(step, kept, work), velocity)
            step = add(step, multiply(velocity, momentum), work) if nesterov else velocity
        multiply(step, lr, work)
        xp.subtract(param, work, param)
