"""What optimizers share that keep Adam's two averages and scale them in ways of their own."""

from __future__ import annotations

from typing import Any

from ..backend import XP
from .optimizer import Optimizer, Run


class Moments(Optimizer):
    """Running averages of the gradient and of its square: the base of `NAdam` and `RAdam`.

    The options begin with lr, betas, eps and weight_decay, and end with decoupled_weight_decay and
    maximize. A derived class writes the last three of `run.constants` in `prepare`.
    """

    states = ("exp_avg", "exp_avg_sq")
    counts = True

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "eps", "weight_decay")
        self._check_betas(group)

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, (beta1, beta2), _, decay, *_, decoupled, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (
            asarray(beta1, dtype),
            asarray(1 - beta1, dtype),
            asarray(beta2, dtype),
            asarray(1 - beta2, dtype),
            asarray(decay, dtype) if decay and not decoupled else None,
            asarray(1 - float(lr) * decay, dtype) if decay and decoupled else None,
            maximize,
            *(asarray(0, dtype) for _ in range(3)),
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        shrink = run.constants[5]
        if shrink is not None:
            shrink.fill(1 - float(lr) * run.options[3])
        return True

    def _average(self, run: Run) -> tuple[Any, Any]:
        """Decay the weights, and take the gradient into both averages.

        Returns the gradient with its decay, and an array to work in.
        """
        beta1, rest1, beta2, rest2, decay, shrink, maximize, *_ = run.constants
        average, square = run.states
        xp = XP[type(run.param)]
        multiply, add = xp.multiply, xp.add
        if run.fresh:
            for state in run.states:
                xp.copyto(state, 0)
        if shrink is not None:
            multiply(run.param, shrink, run.param)
        step = run.direction(decay, maximize)
        other = multiply(step, rest1)
        multiply(average, beta1, average)
        add(average, other, average)
        multiply(step, step, other)
        multiply(other, rest2, other)
        multiply(square, beta2, square)
        add(square, other, square)
        return step, other
