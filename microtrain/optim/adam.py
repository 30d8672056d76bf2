"""Adam and AdamW, as PyTorch defines them, over flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Lt


class Adam(Optimizer):
    """Steps scaled by running averages of the gradient and of its square.

    D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2015. For every parameter
    p with gradient g, at its step t (a parameter without a gradient takes none):

        g = g + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        p = p - lr * m / (1 - beta1 ** t) / (sqrt(v / (1 - beta2 ** t)) + eps)

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        betas: decay rates of the two averages, each at least 0 and below 1.
        eps: added to the denominator, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        amsgrad: divide by the largest v so far (S. J. Reddi, S. Kale and S. Kumar, "On the
            convergence of Adam and beyond", 2018).
        maximize: maximize instead of minimize.
        decoupled_weight_decay: shrink the parameters instead of changing the gradient: `AdamW`.
        foreach, capturable, differentiable, fused: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adam(model.parameters(), lr=1e-3)
    """

    states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr", "eps", "weight_decay")
        self._check_betas(group)

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.states if group["amsgrad"] else self.states[:2]

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, (beta1, beta2), _, decay, _, maximize, decoupled = run.options
        lr = float(lr)  # a NumPy number would be rounded to its own dtype
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype

        def constant(value: float) -> Any:
            return asarray(value, dtype)

        return (
            constant(beta1),
            constant(beta1 - 1 if maximize and (decoupled or not decay) else 1 - beta1),
            constant(beta2),
            constant((1 - beta2) / (1 - beta1) ** 2),
            constant(decay) if decay and not decoupled else None,
            constant(1 - lr * decay) if decay and decoupled else None,
            maximize,
            # What depends on the number of steps; written by `prepare`.
            constant(0),
            constant(0),
        )

    def _set_rate(self, run: Run, lr: float) -> bool:
        shrink = run.constants[5]
        if shrink is not None:
            shrink.fill(1 - float(lr) * run.options[3])
        return True

    def prepare(self, run: Run) -> None:
        """Correct step size and eps for the averages' start at 0, for the step `run.count`.

        In `lr / (1 - beta1 ** t) * m / (sqrt(v) / root + eps)` the root is taken out of the
        fraction, which saves a pass over the arrays.
        """
        *_, size, least = run.constants
        lr, (beta1, beta2), eps, *_ = run.options
        root = math.sqrt(1 - beta2**run.count)
        size.fill(float(lr) / (1 - beta1**run.count) * root)
        least.fill(eps * root)

    def update(self, run: Run) -> None:
        beta1, new1, beta2, new2, decay, shrink, maximize, size, least = run.constants
        average, square, *largest = run.states
        param, step, work = run.param, run.grad, run.scratch
        xp = XP[type(param)]
        multiply, add = xp.multiply, xp.add
        if run.fresh:
            for state in run.states:
                xp.copyto(state, 0)
        if shrink is not None:
            multiply(param, shrink, param)
        if decay is not None:
            multiply(param, decay, work)
            step = (xp.subtract if maximize else add)(work, step, work)
        multiply(step, new1, work)
        multiply(average, beta1, average)
        add(average, work, average)
        # `work` is (1 - beta1) * g, which `new2` makes up for.
        multiply(work, work, work)
        multiply(work, new2, work)
        multiply(square, beta2, square)
        add(square, work, square)
        if largest:
            square = xp.maximum(largest[0], square, out=largest[0])
        xp.sqrt(square, work)
        add(work, least, work)
        xp.divide(average, work, work)
        multiply(work, size, work)
        xp.subtract(param, work, param)


class AdamW(Adam):
    """Adam with decoupled weight decay: `p = p * (1 - lr * weight_decay)` before the step.

    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019. Arguments and
    errors as `Adam`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, **arguments(locals()), decoupled_weight_decay=True)
