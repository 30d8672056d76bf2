"""Stochastic gradient descent with momentum, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            value = group[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"SGD: {name} must be a number of at least 0, got {value!r}")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def _wants_states(self, group: dict[str, Any]) -> bool:
        return bool(group["momentum"])

    def _update(self, run: Run) -> None:
        group = run.group
        lr, momentum = group["lr"], group["momentum"]
        decay, dampening = group["weight_decay"], group["dampening"]
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        key = (lr, momentum, dampening, decay)
        if key != run.key:  # numbers as 0-d arrays: a ufunc takes them faster than Python floats
            asarray = xp.asarray
            run.constants = tuple(asarray(v, param.dtype) for v in (*key, 1 - dampening))
            run.key = key
        c_lr, c_momentum, _, c_decay, c_keep = run.constants
        multiply, add = xp.multiply, xp.add
        step = run.grad
        if decay:
            multiply(param, c_decay, work)
            add(work, step, work)
            step = work
        if momentum:
            (velocity,) = run.states
            if run.fresh:
                velocity[...] = step
                run.fresh = False
            else:
                multiply(velocity, c_momentum, velocity)
                if dampening:
                    # The product may go into `work` even where `step` is already there.
                    scaled = multiply(step, c_keep, None if group["nesterov"] else work)
                    add(velocity, scaled, velocity)
                else:
                    add(velocity, step, velocity)
            if group["nesterov"]:
                ahead = multiply(velocity, c_momentum)
                step = add(step, ahead, work)
            else:
                step = velocity
        multiply(step, c_lr, work)
        xp.subtract(param, work, param)
