"""Stochastic gradient descent with momentum, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from ..backend import XP
from .optimizer import Optimizer, Run


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
        momentum: factor of the velocity, at least 0.
        dampening: how much of the gradient is left out of the velocity.
        weight_decay: factor of the L2 penalty, at least 0.
        nesterov: look ahead along the velocity; needs momentum and no dampening.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> optimizer.zero_grad()
        >>> loss.backward()
        >>> optimizer.step()
    """

    states = ("momentum_buffer",)
    options = itemgetter("lr", "momentum", "dampening", "weight_decay", "nesterov")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "dampening", "weight_decay"):
            value = group[name]
            number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
            if not number or not (value >= 0 or name == "dampening"):
                raise ValueError(f"SGD: {name} must be a number of at least 0, got {value!r}")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def _wants_states(self, group: dict[str, Any]) -> bool:
        return bool(group["momentum"])

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, momentum, dampening, decay, nesterov = run.options
        # Numbers as 0-d arrays, which a ufunc takes faster than Python's floats.
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(lr, dtype),
            asarray(momentum, dtype) if momentum else None,
            asarray(1 - dampening, dtype) if dampening else None,
            asarray(decay, dtype) if decay else None,
            nesterov,
        )

    def _update(self, run: Run) -> None:
        lr, momentum, kept, decay, nesterov = run.constants
        param, step, work = run.param, run.grad, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        if decay is not None:
            multiply(param, decay, work)
            step = add(work, step, work)
        if momentum is not None:
            (velocity,) = run.states
            if run.fresh:
                velocity[...] = step
                run.fresh = False
            else:
                multiply(velocity, momentum, velocity)
                # `step` may be `work` itself; it is not read again unless nesterov (kept is None).
                add(velocity, step if kept is None else multiply(step, kept, work), velocity)
            step = add(step, multiply(velocity, momentum), work) if nesterov else velocity
        multiply(step, lr, work)
        xp.subtract(param, work, param)
