"""The optimizers, as PyTorch defines them: their options, and the numbers of their formulas."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..errors import need
from . import formulas
from .flat import FlatStorage
from .optimizer import STEP, Optimizer, Run, arguments
from .recorded import is_formula, signature_of

if TYPE_CHECKING:  # limits that hold in a configuration, where they are checked
    from annotated_types import Ge, Gt, Le, Lt

__all__ = [
    "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Formula", "NAdam", "RAdam",
    "RMSprop", "Rprop",
]  # fmt: skip


def _of_betas(o: Any) -> dict[str, float]:
    """What the averages keep, and what they take of the new."""
    beta1, beta2 = o.betas
    return {"beta1": beta1, "rest1": 1 - beta1, "beta2": beta2, "rest2": 1 - beta2}


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

    formula = staticmethod(formulas.sgd)

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-3,
        momentum: Annotated[float, Ge(0)] = 0.0, dampening: float = 0.0,
        weight_decay: Annotated[float, Ge(0)] = 0.0, nesterov: bool = False, *,
        maximize: bool = False, foreach: bool | None = None, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        lost = group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0)
        text = "Nesterov momentum requires a momentum and zero dampening"
        need(not lost, "SGD", text, error=ValueError)

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.states if group["momentum"] else ()

    def constants(self, o: Any) -> dict[str, Any]:
        return {"kept": 1 - o.dampening if o.dampening else None}


class Moments(Optimizer):
    """What optimizers share that keep Adam's two averages: the base of `Adam`, `NAdam`, `RAdam`."""

    counts = True

    def constants(self, o: Any) -> dict[str, Any]:
        decoupled = o.decoupled_weight_decay and o.weight_decay
        own = {"weight_decay": None, "shrink": 0.0} if decoupled else {"shrink": None}
        return {**_of_betas(o), **own}

    def follow_rate(self, run: Run) -> None:
        if run.constants["shrink"] is not None:
            run.constants["shrink"].fill(1 - run.given.lr * run.given.weight_decay)


class Adam(Moments):
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

    formula = staticmethod(formulas.adam)
    rated = ("size", "least")

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8, weight_decay: Annotated[float, Ge(0)] = 0.0,
        amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.states if group["amsgrad"] else self.states[:2]

    def constants(self, o: Any) -> dict[str, Any]:
        found, (beta1, beta2) = super().constants(o), o.betas
        # `rest2` is multiplied by a square that has `rest1` in it; that may carry the sign, too.
        found["rest2"] = (1 - beta2) / (1 - beta1) ** 2
        if o.maximize and (o.decoupled_weight_decay or not o.weight_decay):
            found.update(rest1=beta1 - 1, maximize=False)
        return found

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        # In `lr / (1 - beta1 ** t) * m / (sqrt(v) / root + eps)` the root is taken out of the
        # fraction, which saves a pass over the arrays.
        beta1, beta2 = o.betas
        root = math.sqrt(1 - beta2**t)
        return o.lr / (1 - beta1**t) * root, o.eps * root


class AdamW(Adam):
    """Adam with decoupled weight decay: `p = p * (1 - lr * weight_decay)` before the step.

    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019. Arguments and
    errors as `Adam`.

    Example:
        >>> optimizer = mt.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
        >>> optimizer.zero_grad()
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8, weight_decay: Annotated[float, Ge(0)] = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, **arguments(locals()), decoupled_weight_decay=True)


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

    formula = staticmethod(formulas.nadam)
    rated = ("new", "old", "least")
    numbers = ("mu_product",)

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 2e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8, weight_decay: Annotated[float, Ge(0)] = 0.0,
        momentum_decay: Annotated[float, Ge(0)] = 4e-3, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def starts(self, o: Any) -> dict[str, float]:
        return {"mu_product": 1.0}

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        # The root of 1 - beta2 ** t goes into all of them.
        beta1, beta2 = o.betas
        root = math.sqrt(1 - beta2**t)
        mu, following = (beta1 * (1 - 0.5 * 0.96 ** (n * o.momentum_decay)) for n in (t, t + 1))
        product = numbers[0] = float(o.dtype.type(numbers[0] * mu))  # as a state keeps it
        new = o.lr * (1 - mu) / (1 - product) * root
        old = o.lr * following / (1 - product * following) * root
        return new, old, o.eps * root


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

    formula = staticmethod(formulas.radam)
    rated = ("size", "factor", "least")

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8, weight_decay: Annotated[float, Ge(0)] = 0.0,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        beta1, beta2 = o.betas
        rest, far = 1 - beta2**t, 2 / (1 - beta2) - 1
        now = far - 2 * t * beta2**t / rest
        size, scaled = o.lr / (1 - beta1**t), now > 5
        if scaled:
            r = (now - 4) * (now - 2) * far / ((far - 4) * (far - 2) * now)
            size *= math.sqrt(r * rest)
        return size, scaled, o.eps if scaled else 1


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

    formula = staticmethod(formulas.adamax)
    rated = ("rate",)
    counts = True

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 2e-3,
        betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999),
        eps: Annotated[float, Ge(0)] = 1e-8, weight_decay: Annotated[float, Ge(0)] = 0.0,
        foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def constants(self, o: Any) -> dict[str, Any]:
        return _of_betas(o)

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        return (o.lr / (1 - o.betas[0] ** t),)


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients so far.

    J. Duchi, E. Hazan and Y. Singer, "Adaptive subgradient methods for online learning and
    stochastic optimization", 2011. For every parameter p with gradient g, at its step t:

        g = g + weight_decay * p
        s = s + g * g
        p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)

    Args:
        params: Tensors or parameter groups.
        lr: learning rate, at least 0.
        lr_decay: how fast the rate falls with the steps, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        initial_accumulator_value: where s begins, at least 0.
        eps: added to the denominator, at least 0.
        maximize: maximize instead of minimize.
        foreach, differentiable, fused: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adagrad(model.parameters(), lr=1e-2)
    """

    formula = staticmethod(formulas.adagrad)
    rated = ("rate",)
    counts = True

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-2,
        lr_decay: Annotated[float, Ge(0)] = 0.0, weight_decay: Annotated[float, Ge(0)] = 0.0,
        initial_accumulator_value: Annotated[float, Ge(0)] = 0.0,
        eps: Annotated[float, Ge(0)] = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def _use(self, storage: FlatStorage) -> None:
        super()._use(storage)
        for param, group in self._group_of.items():  # there from the beginning, as in PyTorch
            start = np.full(param.shape, group["initial_accumulator_value"], param._array.dtype)
            self.load_state_of(param, {STEP: np.array(0), "sum": start})

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        return (o.lr / (1 + (t - 1) * o.lr_decay),)

    def starts(self, o: Any) -> dict[str, float]:
        return {"sum": o.initial_accumulator_value}


class Adadelta(Optimizer):
    """Steps scaled by running averages of the squares of the gradient and of the last steps.

    M. D. Zeiler, "ADADELTA: an adaptive learning rate method", 2012. For every parameter p with
    gradient g:

        g = g + weight_decay * p
        v = rho * v + (1 - rho) * g * g
        d = sqrt(u + eps) / sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d * d
        p = p - lr * d

    Args:
        params: Tensors or parameter groups.
        lr: factor of the step, at least 0.
        rho: how much the averages keep, between 0 and 1.
        eps: added under the square roots, at least 0.
        weight_decay: factor of the L2 penalty, at least 0.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Adadelta(model.parameters(), lr=1.0)
    """

    formula = staticmethod(formulas.adadelta)
    counts = True

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1.0,
        rho: Annotated[float, Ge(0), Le(1)] = 0.9, eps: Annotated[float, Ge(0)] = 1e-6,
        weight_decay: Annotated[float, Ge(0)] = 0.0, foreach: bool | None = None, *,
        capturable: bool = False, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def constants(self, o: Any) -> dict[str, Any]:
        return {"rest": 1 - o.rho}


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

    formula = staticmethod(formulas.rmsprop)
    counts = True

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Gt(0)] = 1e-2,
        alpha: Annotated[float, Ge(0)] = 0.99, eps: Annotated[float, Ge(0)] = 1e-8,
        weight_decay: Annotated[float, Ge(0)] = 0.0, momentum: Annotated[float, Ge(0)] = 0.0,
        centered: bool = False, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        there = True, group["momentum"], group["centered"]
        return tuple(compress(self.states, there))

    def constants(self, o: Any) -> dict[str, Any]:
        return {"rest": 1 - o.alpha}


class Rprop(Optimizer):
    """Steps whose size goes by the sign of the gradient alone, for gradients of all samples.

    M. Riedmiller and H. Braun, "A direct adaptive method for faster backpropagation learning: the
    RPROP algorithm", 1993. Every element has a step size of its own, lr at first: times `etas[1]`
    where the sign of its gradient is that of the step before, times `etas[0]` where it changed;
    then it stays as it is for this step.

    Args:
        params: Tensors or parameter groups.
        lr: first step size, at least 0.
        etas: what step sizes are multiplied by: between 0 and 1, and above 1.
        step_sizes: the least and the largest step size.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Rprop(model.parameters(), lr=1e-2)
    """

    formula = staticmethod(formulas.rprop)
    counts = True

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Ge(0)] = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2), step_sizes: tuple[float, float] = (1e-6, 50), *,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        good, text = 0 < group["etas"][0] < 1 < group["etas"][1], "between 0 and 1, and above 1"
        need(good, "Rprop", f"etas must be {text}", group["etas"], error=ValueError)

    def constants(self, o: Any) -> dict[str, Any]:
        names = "down", "up", "smallest", "largest"
        values = zip(names, (*o.etas, *o.step_sizes), strict=True)
        return dict(values)

    def starts(self, o: Any) -> dict[str, float]:
        return {"step_size": o.lr}


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

    Example:
        >>> optimizer = mt.optim.ASGD(model.parameters(), lr=0.01)
    """

    formula = staticmethod(formulas.asgd)
    rated = ("eta", "left", "mu")
    counts = True
    numbers = ("eta", "mu")

    def __init__(
        self, params: Iterable[Any], lr: Annotated[float, Ge(0)] = 1e-2,
        lambd: Annotated[float, Ge(0)] = 1e-4, alpha: Annotated[float, Ge(0)] = 0.75,
        t0: Annotated[float, Ge(0)] = 1e6, weight_decay: Annotated[float, Ge(0)] = 0.0,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, arguments(locals()))

    def starts(self, o: Any) -> dict[str, float]:
        return {"eta": o.lr, "mu": 1.0}

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        eta, mu = numbers
        following = o.lr / (1 + o.lambd * o.lr * t) ** o.alpha, 1 / max(1, t - o.t0)
        numbers[:] = [float(o.dtype.type(value)) for value in following]  # as a state keeps them
        return eta, 1 - o.lambd * eta, mu


class Formula(Optimizer):
    """An optimizer of your own: a function that updates flat arrays of many parameters at once.

    It is called with parameters and gradients, then by name with its states, which are 0 at first,
    and by keyword with its options, of which the first is the rate, `lr`. It changes all of them in
    place, element by element, by plain operators and NumPy's functions. It is recorded once: what
    it finds by a name, such as a global number, stays as it was; what changes is an option.

    Args:
        params: Tensors or parameter groups.
        formula: the function.
        options: those of the function; its defaults hold for the others.

    Raises:
        TypeError: another function, an option that it does not have, or that is neither a number
            nor a flag or text; at the first step, a sum, a norm or a length in the function.

    Example:
        >>> def momentum(p, g, velocity, *, lr=0.1, decay=0.9):
        ...     velocity *= decay
        ...     velocity += g
        ...     p -= lr * velocity
        >>> optimizer = mt.optim.Formula(model.parameters(), momentum, lr=0.05)
    """

    optional = ()

    def __init__(self, params: Iterable[Any], formula: Callable[..., None], **options: Any) -> None:
        name = getattr(formula, "__name__", type(formula).__name__)
        text = f"expected a formula, def {name}(p, g, ..., *, lr, ...)"
        need(is_formula(formula), name, text, error=TypeError)
        self.formula, (self.states, self.named) = formula, signature_of(formula)
        given = {k: p.default for k, p in inspect.signature(formula).parameters.items()} | options
        for option in (*self.named, *options):
            there = option in self.named
            good = there and given[option] is not inspect.Parameter.empty
            text = "the formula needs the option" if there else "the formula has no option"
            need(good, name, f"{text} {option!r}", error=TypeError)
        super().__init__(params, {option: given[option] for option in self.named})

    def _check(self, group: dict[str, Any]) -> None:
        formula: Any = self.formula
        for option in self.named:
            good = isinstance(group[option], int | float | np.number | str | None)
            text = f"{option} must be a number, a flag or text"
            need(good, formula.__name__, text, group[option], error=TypeError)
