"""Losses of probabilities: yes or no, and one distribution against another."""

from __future__ import annotations

import math
from typing import Annotated, Any

from ...tensor import Tensor
from ..arguments import REDUCTIONS, check_reduction, need, wrong
from ..coercion import examine
from ..fronts import FLOAT, Check, FloatOnly, Reduction, Refused, SameShape, TensorOnly, public
from ..pointwise.activations import softplus_of
from ..pointwise.elementwise import clamp, exp, log, logistic, mul, where
from ..reduce.reductions import mean, sum
from ..registry import primitive
from ..shape.shapes import expand
from .losses import loss, reduced, reduced_array

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"]

# Yes or no ----------------------------------------------------------------------------------------


def _share(g, shape, reduction):
    """The gradient of each loss."""
    return g / (math.prod(shape) or 1) if reduction == "mean" else g


@primitive(
    "binary_cross_entropy_with_logits",
    input=lambda g, input, target, reduction: (
        (logistic(input) - target) * _share(g, input.shape, reduction)
    ),
    target=lambda g, input, reduction: -input * _share(g, input.shape, reduction),
    promote=("input", "target"),
)
def bce_with_logits(xp, input, target, *, reduction="mean"):
    """`(1 - target) * input - log(sigmoid(input))`, reduced, without overflow."""
    one = xp.constant(1, input.dtype)
    work = xp.asarray(xp.absolute(input))
    xp.negative(work, out=work)
    xp.exp(work, out=work)
    xp.log1p(work, out=work)
    xp.subtract(work, xp.minimum(input, xp.constant(0, input.dtype)), out=work)
    losses = xp.add(work, xp.multiply(xp.subtract(one, target), input))
    return reduced_array(xp, losses, reduction)


# A Tensor in the shape of the first, else a ValueError.
_Target = Annotated[TensorOnly, Check("if @.shape != ^.shape: check_pair($name, ^, @, ValueError)")]
_FloatTarget = Annotated[_Target, FLOAT]


@public
def binary_cross_entropy_with_logits(
    input: FloatOnly, target: _FloatTarget, weight: TensorOnly | None = None,
    size_average: Refused = None, reduce: Refused = None, reduction: Reduction = "mean",
    pos_weight: TensorOnly | None = None,
) -> Tensor:  # fmt: skip
    """The binary cross entropy of scores: `binary_cross_entropy(sigmoid(input), target)`, stable.

    Args:
        input: scores, any shape.
        target: probabilities from 0 to 1 in the shape of `input`.
        weight: a factor for each loss, broadcast.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean" (over all elements), "sum", or "none" for the elements.
        pos_weight: a factor for the part of the targets that is 1, broadcast; for instance the
            number of negatives for each positive.

    Raises:
        TypeError: not Tensors.
        ValueError: the shapes differ, or an unknown reduction.
        RuntimeError: integers, or a weight that does not broadcast to the shape of `input`.

    Example:
        >>> loss = mt.nn.functional.binary_cross_entropy_with_logits
        >>> loss(mt.tensor([0.0, 1000.0]), mt.tensor([1.0, 1.0]), reduction="none")
        tensor([0.6931, 0.0000])
    """
    if weight is None and pos_weight is None:
        return bce_with_logits(input, target, reduction)
    if pos_weight is None:
        losses = bce_with_logits(input, target, "none")
    else:
        positive = (pos_weight - 1) * target + 1
        # With target 1 the loss is -log(sigmoid(input)).
        losses = (1 - target) * input + positive * softplus_of(-input)
        text = "pos_weight of {} does not broadcast to the input, {}"
        fits = losses.shape == input.shape
        need(fits, "binary_cross_entropy_with_logits", text, pos_weight, input)
    return reduced(losses if weight is None else _weighted(losses, weight), reduction)


def _weighted(losses: Any, weight: Any) -> Any:
    return mul(losses, expand(weight, losses.shape))


# The derivatives are PyTorch's: that in `input` is large but finite at 0 and 1. The bound is 1e-12
# in float32, for all dtypes.
_LEAST = 9.999999960041972e-13


@primitive(
    "binary_cross_entropy",
    input=lambda g, input, target: g * (input - target) / clamp((1 - input) * input, min=_LEAST),
    target=lambda g, input: g * (log(1 - input) - log(input)),
)
def bce(xp, input, target):
    """`-target * log(input) - (1 - target) * log(1 - input)`, no logarithm below -100."""
    one, least = xp.constant(1, input.dtype), xp.constant(-100, input.dtype)
    yes = xp.maximum(xp.log(input), least)
    no = xp.maximum(xp.log1p(xp.negative(input)), least)
    # PyTorch's order of the terms, for the same rounding.
    return xp.subtract(xp.multiply(xp.subtract(target, one), no), xp.multiply(target, yes))


def _probabilities(array: Any, what: str, way_out: str) -> None:
    """RuntimeError unless all elements are between 0 and 1."""
    text = f"all elements of {what} should be between 0 and 1, found {{}} to {{}}; {way_out}"
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise wrong("binary_cross_entropy", text, array.min(), array.max())


def _input(array: Any) -> None:
    way_out = "apply a sigmoid, or use binary_cross_entropy_with_logits"
    _probabilities(array, "input", way_out)


def _target(array: Any) -> None:
    _probabilities(array, "target", "write classes as 0 and 1, and divide a mask by its largest")


@loss
def binary_cross_entropy(
    input: TensorOnly, target: _Target, weight: TensorOnly | None = None,
    size_average: Refused = None, reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """The binary cross entropy of probabilities; for scores see the `_with_logits` form.

    Args:
        input: probabilities from 0 to 1, any shape, such as a sigmoid's.
        target: probabilities in the shape and dtype of `input`.
        weight: a factor for each loss; it broadcasts to their shape.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean" (over all elements), "sum", or "none" for the elements.

    Raises:
        TypeError: not Tensors.
        ValueError: the shapes differ, or an unknown reduction.
        RuntimeError: an input or a target outside 0 to 1 (not checked on a GPU), dtypes that
            differ, a weight that does not broadcast.
    """
    fits = input.dtype.kind == "f" and input.dtype == target.dtype
    text = "expected input and target of one float dtype"
    need(fits, "binary_cross_entropy", text, input.dtype, target.dtype)
    examine(input, _input)
    examine(target, _target)
    losses = bce(input, target)
    return losses if weight is None else _weighted(losses, weight)


# Distributions ------------------------------------------------------------------------------------


@public
def kl_div(
    input: FloatOnly, target: Annotated[SameShape, FLOAT], size_average: Refused = None,
    reduce: Refused = None, reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """The Kullback-Leibler divergence, `target * (log(target) - input)`.

    Args:
        input: logarithms of probabilities, any shape.
        target: probabilities in the shape of `input`, or their logarithms.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "batchmean", the sum divided by the number of rows, is the divergence of the
            definition; "mean" (over all elements), "sum", "none" for the elements.
        log_target: whether `target` is the logarithm of the probabilities.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ.
        ValueError: an unknown reduction.
    """
    check_reduction(reduction, known=(*REDUCTIONS, "batchmean"))
    if log_target:
        losses = exp(target) * (target - input)
    else:  # 0 * log(0) is 0 here
        losses = target * log(where(target == 0, 1, target)) - target * input
    if reduction == "batchmean":
        return mean(sum(losses, tuple(range(1, input.ndim)))) if input.ndim > 1 else mean(losses)
    return reduced(losses, reduction)
