"""Averaged stochastic gradient descent, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments


class ASGD(Optimizer):
    """Stochastic gradient descent that keeps the average of the parameters beside them.

    B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
    For every parameter p with gradient g, at its step t, with eta = lr and mu = 1 at first:

        g = g + weight_decay * p
        p = p * (1 - lambd * eta) - eta * g
        a = a + mu * (p - a)
        eta = lr / (1 + lambd * lr * t) ** alpha
        mu = 1 / max(1, t - t0)

    The average a is the state `ax`.

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        lambd: how fast parameters shrink and rates fall.
        alpha: power by which the rate falls.
        t0: the step from which on the average is one of several steps.
        weight_decay: factor of the L2 penalty, at least 0.
        maximize: maximize instead of minimize.
        foreach, differentiable, capturable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.
    """

    states = ("ax",)
    counts = True
    numbers = ("eta", "mu")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "lambd", "alpha", "t0", "weight_decay")

    def first_numbers(self, group: dict[str, Any]) -> tuple[float, ...]:
        return float(group["lr"]), 1.0

    def _constants(self, run: Run) -> tuple[Any, ...]:
        _, _, _, _, decay, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(decay, dtype) if decay else None,
            maximize,
            # eta, what of the parameters is left, and mu: written by `prepare`.
            *(asarray(0, dtype) for _ in range(3)),
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        return True

    def prepare(self, run: Run) -> None:
        """Write what the step `run.count` takes, and note what the next one will take."""
        *_, eta, left, mu = run.constants
        lr, lambd, alpha, t0, *_ = run.options
        now, average = run.numbers
        eta.fill(now)
        left.fill(1 - lambd * now)
        mu.fill(average)
        following = (
            float(lr) / (1 + lambd * float(lr) * run.count) ** alpha,
            1 / max(1, run.count - t0),
        )
        run.numbers[:] = [float(run.param.dtype.type(value)) for value in following]

    def update(self, run: Run) -> None:
        decay, maximize, eta, left, mu = run.constants
        (average,) = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        if run.fresh:
            xp.copyto(average, 0)
        xp.multiply(run.direction(decay, maximize), eta, work)
        xp.multiply(param, left, param)
        xp.subtract(param, work, param)
        xp.subtract(param, average, work)
        xp.multiply(work, mu, work)
        xp.add(average, work, average)
