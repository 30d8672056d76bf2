"""What all losses share, and those of numbers: squared, absolute and between, likelihoods."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ...autograd.grad_mode import no_grad
from ...autograd.graph import MARKS, MEANS
from ...backend import LISTENERS, MODES, SCALAR, float16, float32
from ...errors import need, wrong
from ...numerics.sums import dot_itself
from ...tensor import TENSORS, Tensor
from .. import arguments, fronts
from ..arguments import REDUCTIONS, check_pair, check_reduction, want_float, want_shape
from ..coercion import cast, examine
from ..fronts import Above0, AtLeast0, FloatOnly, Reduction, Refused, SameShape, TensorOnly, public
from ..inplace import in_place
from ..pointwise import elementwise as e
from ..pointwise.elementwise import abs, clamp, exp, log, mul, square, sub, where
from ..reduce.reductions import mean, sum
from ..registry import primitive, publish
from ..shape.shapes import unsqueeze

_F = TypeVar("_F", bound=Callable[..., Any])

# Means that are not over rows ---------------------------------------------------------------------


# The node says what a loss was divided by: data parallelism finds it there (`weighted_loss.py`).
@primitive(
    "mean_over",
    total=lambda g, total, count, divisor, name, elements: g / divisor,
    count=lambda g, total, divisor: -g * total / (divisor * divisor),
    extras=("divisor",),
    recompute={"divisor": lambda count: where(e.eq(count, 0), 1, count)},
    promote=("total", "count"),
)
def mean_over(xp, total, count, *, name="loss", elements=None, defined=False):
    """`total / count`, and what gradients are divided by: 1 for 0, where nothing counts."""
    one = xp.constant(1, count.dtype)
    if elements is not None:
        divisor = xp.maximum(count, one)
    else:
        divisor = xp.where(xp.equal(count, xp.constant(0, count.dtype)), one, count)
    return xp.divide(total, divisor if defined else count), divisor


def counting(losses: Any) -> bool:
    """Whether anyone wants to know what a loss divides by, who then adds up several.

    So it is between a forward call of a wrapped model and the backward pass. Not of half precision,
    which has no room for a total, and which ranks do not add up.
    """
    return losses.dtype != float16 and _asked()


def _asked() -> bool:
    return MODES.counts or any(one.waits for one in LISTENERS)


def sum_of(values: Any) -> Any:
    """The sum, of half precision in single: half has no room for it."""
    return sum(values, dtype=float32 if values.dtype == float16 else None)


def mean_loss(name: str, total: Any, count: Any, elements: int | None) -> Any:
    """The loss `total / count`, both 0-d, where the count is the sum of the weights of what counts.

    Where it is to be added to others (see `counting`) it is 0, not NaN, if nothing counts.

    Args:
        name: of the loss, for messages.
        elements: how many there are where each counts 1 or 0; None where they have weights.
    """
    MEANS.add(mean_over.operation)
    MARKS[0] += 1
    return mean_over(total, count, name, elements, _asked())


def reduced(losses: Any, reduction: str) -> Any:
    """`losses`, their mean or their sum."""
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum(losses)


def reduced_array(xp, losses, reduction):
    """The same in a kernel."""
    if reduction == "none":
        return losses
    if losses.dtype == float16:  # which has room for no total above 65504, and no such number
        return xp.asarray(reduced_array(xp, xp.asarray(losses, float32), reduction), float16)
    total = xp.sum(losses)
    return total if reduction == "sum" else average(xp, total, math.prod(losses.shape))


def average(xp, total, n):
    """In a kernel: `total / n`; NaN where there is nothing to average."""
    if n:
        # What NumPy sums is a number of its own, which it divides faster than an array of one.
        number = isinstance(total, SCALAR)
        return total / n if number else xp.divide(total, xp.constant(n, total.dtype))
    return xp.full(total.shape, math.nan, total.dtype)


class _Loss(fronts.Front):
    """A front that reduces the losses that its function computes."""

    def last_lines(self, call: str) -> list[str]:
        self.names["reduced"] = reduced
        return [f"return reduced({call}, reduction)"]


def loss(function: _F) -> _F:
    """The public form of a formula of losses, one for each element, which it reduces.

    The formula has the argument `reduction` (and `size_average` and `reduce`, refused) for its
    signature alone.
    """
    return _Loss(function, function.__name__).apply  # type: ignore[return-value]


# Mean squared error -------------------------------------------------------------------------------


def _mse_rule(g, difference, reduction):
    scale = 2 / (math.prod(difference.shape) or 1) if reduction == "mean" else 2
    if type(g) is np.ndarray:
        g = g[()]  # NumPy multiplies a number of its own faster than an array of one
    return difference * (g * scale)


@primitive(
    "mse_loss",
    input=_mse_rule,
    target=lambda g, difference, reduction: -_mse_rule(g, difference, reduction),
    extras=("difference",),
    recompute={"difference": lambda input, target: sub(input, target)},
    promote=("input", "target"),
)
def mse(xp, input, target, *, reduction="mean"):
    """The mean or sum of the squared differences, and the differences."""
    difference = xp.subtract(input, target)
    flat = difference.reshape(-1)
    if flat.dtype == float16:
        wide = xp.asarray(flat, float32)
        found = reduced_array(xp, xp.multiply(wide, wide), reduction)
        return xp.asarray(found, float16), difference
    total = dot_itself(xp, flat)
    return total if reduction == "sum" else average(xp, total, flat.shape[0]), difference


def mse_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Any = None,
) -> Tensor:  # fmt: skip
    """The mean squared error of two Tensors of one shape.

    Args:
        input: predictions, any shape, of a float dtype.
        target: in the shape of `input`; another shape is a RuntimeError, because broadcasting an
            (n,) target against an (n, 1) prediction silently gives the error of n * n pairs.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean" (over all elements), "sum", or "none" for the elements.
        weight: in the shape of `input`: a factor for each square. The mean is then divided by the
            sum of the weights.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ, or an input of integers.
        ValueError: an unknown reduction, a weight of another shape.

    Example:
        >>> mt.nn.functional.mse_loss(mt.tensor([1.0, 2.0]), mt.tensor([1.0, 4.0]))
        tensor(2.)
    """
    # What a front would check, without its call.
    if (
        type(input) not in TENSORS
        or type(target) not in TENSORS
        or input._array.shape != target._array.shape
    ):
        check_pair("mse_loss", input, target)
    if input._array.dtype.kind != "f":
        want_float("mse_loss", input)
    if reduction not in REDUCTIONS or size_average is not None or reduce is not None:
        check_reduction(reduction, size_average, reduce)
    if weight is None and reduction != "none":
        return mse(input, target, reduction)
    return _weighted_mean("mse_loss", square(sub(input, target)), weight, reduction)


def _weighted(name: str, losses: Any, weight: Any) -> Any:
    arguments.want_tensors(name, weight=weight)
    want_shape(name, "weight", weight, losses.shape, ValueError)
    return mul(losses, weight)


def _weighted_mean(name: str, losses: Any, weight: Any, reduction: str) -> Any:
    """The reduction of `losses`, the mean divided by the sum of the weights."""
    if weight is None:
        return reduced(losses, reduction)
    losses = _weighted(name, losses, weight)
    if reduction == "mean":
        return cast(mean_loss(name, sum_of(losses), sum_of(weight), None), losses.dtype)
    return reduced(losses, reduction)


@public
def weighted_mean(input: FloatOnly, weight: TensorOnly) -> Tensor:
    """`(input * weight).sum() / weight.sum()`: the mean of what a mask or weights let count.

    The way to write a loss of one's own that does not average over rows, such as one of padded
    sequences: data parallelism reads the sum of the weights off it, so gradients and losses are
    those of the whole batch, however its rows lie on ranks and micro-batches. A total with its
    count is `weighted_mean(total / count, count)`.

    Args:
        input: losses, any shape, of a float dtype.
        weight: in the shape of `input`, of its dtype or bool (a mask); without a gradient where
            several ranks or micro-batches share the mean.

    Raises:
        TypeError: not Tensors.
        RuntimeError: an input of integers.
        ValueError: another shape.

    Example:
        >>> losses = mt.tensor([[1.0, 3.0], [5.0, 7.0]])
        >>> mt.nn.functional.weighted_mean(losses, mt.tensor([[True, True], [True, False]]))
        tensor(3.)
    """
    if weight.dtype.kind != "f":
        weight = cast(weight, input.dtype)
    return _weighted_mean("weighted_mean", input, weight, "mean")


# Absolute error, and what is squared near 0 and absolute far from it ------------------------------


@public
def l1_loss(
    input: TensorOnly, target: SameShape, size_average: Refused = None, reduce: Refused = None,
    reduction: Reduction = "mean", weight: Any = None,
) -> Tensor:  # fmt: skip
    """The mean absolute error of two Tensors of one shape; arguments and errors as `mse_loss`."""
    return _weighted_mean("l1_loss", abs(sub(input, target)), weight, reduction)


def _huber(input: Any, target: Any, delta: float) -> Any:
    """`d * d / 2` within `delta` of 0, beyond it `delta * (|d| - delta / 2)`."""
    difference = sub(input, target)
    inner = clamp(difference, -delta, delta)
    return inner * (difference - inner * 0.5)


@loss
def smooth_l1_loss(
    input: TensorOnly, target: SameShape, size_average: Refused = None, reduce: Refused = None,
    reduction: Reduction = "mean", beta: AtLeast0 = 1.0,
) -> Tensor:  # fmt: skip
    """The absolute error, rounded off below `beta`: `huber_loss` divided by `beta`.

    Args:
        input: predictions, any shape.
        target: in the shape of `input`.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for the elements.
        beta: where `d * d / (2 * beta)` becomes `|d| - beta / 2`; 0 gives `l1_loss`.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ, or a negative `beta`.
        ValueError: an unknown reduction.
    """
    if beta == 0:
        return abs(sub(input, target))
    want_float("smooth_l1_loss", input)
    return _huber(input, target, beta) * (1 / beta)


@loss
def huber_loss(
    input: FloatOnly, target: SameShape, reduction: Reduction = "mean", delta: Above0 = 1.0,
    weight: Any = None,
) -> Tensor:  # fmt: skip
    """The squared error halved within `delta`, beyond it the absolute error times `delta`.

    P. J. Huber, "Robust estimation of a location parameter", 1964.

    Args:
        input: predictions, any shape.
        target: in the shape of `input`.
        reduction: "mean", "sum", or "none" for the elements.
        delta: greater than 0.
        weight: in the shape of `input`: a factor for each element; the mean still divides by the
            number of elements.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ, or `delta` is not positive.
        ValueError: an unknown reduction, a weight of another shape.
    """
    losses = _huber(input, target, delta)
    return losses if weight is None else _weighted("huber_loss", losses, weight)


# Likelihoods --------------------------------------------------------------------------------------


@loss
def gaussian_nll_loss(
    input: TensorOnly, target: SameShape, var: Any, full: bool = False, eps: float = 1e-6,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-likelihood of `target` under a normal distribution.

    D. A. Nix and A. S. Weigend, "Estimating the mean and variance of the target probability
    distribution", 1994.

    Args:
        input: predicted means, any shape.
        target: in the shape of `input`.
        var: predicted variances: in the shape of `input`, without its last dimension, with a 1 in
            one dimension, or one number for all.
        full: add the constant term `log(2 * pi) / 2`.
        eps: the least variance that is divided by; the gradient of `var` does not see it.
        reduction: "mean", "sum", or "none" for the elements.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes of `input` and `target` differ.
        ValueError: an unknown reduction, variances that are negative (not checked on a GPU) or of
            another shape.
    """
    if type(var) not in TENSORS:
        number = isinstance(var, int | float)
        text = "var must be a Tensor or a number"
        need(number, "gaussian_nll_loss", text, type(var), error=TypeError)
        var = e.zeros_like(input) + var
    text = "var has a negative entry"
    examine(var, lambda a: need(not (a < 0).any(), "gaussian_nll_loss", text, error=ValueError))
    if var.shape != input.shape:
        ones = [n for n, m in zip(var.shape, input.shape, strict=False) if n != m]
        if var.shape == input.shape[:-1]:
            var = unsqueeze(var, -1)
        elif var.ndim != input.ndim or ones != [1]:
            text = "var does not fit the input"
            raise wrong("gaussian_nll_loss", text, var, input, error=ValueError)
    var = e.clone(var)
    with no_grad():
        in_place(var, lambda x: clamp(x, min=eps), "clamp_")
    losses = (log(var) + square(input - target) / var) * 0.5
    return losses + 0.5 * math.log(2 * math.pi) if full else losses


@loss
def poisson_nll_loss(
    input: TensorOnly, target: SameShape, log_input: bool = True, full: bool = False,
    size_average: Refused = None, eps: float = 1e-8, reduce: Refused = None,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-likelihood of counts under a Poisson distribution.

    Args:
        input: predicted rates, or their logarithms; any shape.
        target: counts in the shape of `input`.
        log_input: whether `input` is the logarithm of the rate.
        full: add Stirling's approximation of `log(target!)`, which does not depend on `input`.
        size_average, reduce: the old spelling of `reduction`, refused.
        eps: added to a rate before its logarithm.
        reduction: "mean", "sum", or "none" for the elements.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ.
        ValueError: an unknown reduction.
    """
    if log_input:
        losses = exp(input) - target * input
    else:
        losses = input - target * log(input + eps)
    if full:
        many = where(target > 1, target, 2)  # no logarithm of 0
        stirling = many * log(many) - many + log(many * (2 * math.pi)) * 0.5
        losses = losses + where(target > 1, stirling, 0)
    return losses


publish(globals(), "mse_loss")
