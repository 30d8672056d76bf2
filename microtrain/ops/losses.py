"""Losses that are one operation each, with the gradient in the variables they have anyway."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import XP
from ..tensor import TENSORS
from .elementwise import square, sub
from .indexing import one_hot_rows
from .reductions import log_softmax_dim, mean, softmax_dim, sum, want_float
from .registry import primitive
from .shapes import reshape_to

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """ValueError unless `reduction` is one of none, mean, sum."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a reduction; there are {', '.join(REDUCTIONS)}")


def _average(xp: Any, total: Any, n: int, out: Any) -> Any:
    """`total / n`; NaN where there is nothing to average."""
    if n:
        return xp.divide(total, xp.constant(n, total.dtype), out=out)
    return xp.store(xp.full(total.shape, math.nan, total.dtype), out)


# Mean squared error -------------------------------------------------------------------------------


def _mse(xp: Any, input: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Any:
    """The mean or sum of the squared differences, and the differences."""
    difference = xp.subtract(input, target)
    flat = xp.reshape(difference, -1)
    if reduction == "sum":
        return xp.store(xp.asarray(xp.dot(flat, flat)), out), difference
    total = xp.asarray(xp.dot(flat, flat))
    return _average(xp, total, flat.shape[0], out), difference


def _mse_rule(g: Any, difference: Any, reduction: str) -> Any:
    scale = 2 / (math.prod(difference.shape) or 1) if reduction == "mean" else 2
    return difference * (g * scale)


mse = primitive(
    "mse_loss",
    _mse,
    input=_mse_rule,
    target=lambda g, difference, reduction: -_mse_rule(g, difference, reduction),
    options={
        "extras": ("difference",),
        "recompute": {"difference": lambda input, target: sub(input, target)},
        "promote": ("input", "target"),
    },
)


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """The mean squared error of two Tensors of one shape.

    Args:
        input: predictions, any shape, of a float dtype.
        target: in the shape of `input`; another shape is a RuntimeError, because broadcasting an
            (n,) target against an (n, 1) prediction silently gives the error of n * n pairs.
        reduction: "mean" (over all elements), "sum", or "none" for the elements.

    Raises:
        TypeError: not Tensors.
        RuntimeError: the shapes differ, or an input of integers.
        ValueError: an unknown reduction.

    Example:
        >>> mt.nn.functional.mse_loss(mt.tensor([1.0, 2.0]), mt.tensor([1.0, 4.0]))
        tensor(2.)
    """
    try:
        x, y = input._array, target._array
    except AttributeError:
        x, y = _arrays("mse_loss", input, target)
    if x.shape != y.shape:
        raise RuntimeError(
            f"mse_loss: input of shape {tuple(x.shape)} and target of shape {tuple(y.shape)} must "
            "have one shape; reshape the target, for instance target.view(-1, 1)"
        )
    if x.dtype.kind != "f":
        want_float("mse_loss", x)
    if reduction not in REDUCTIONS:
        check_reduction(reduction)
    if reduction == "none":
        return square(sub(input, target))
    return mse(input, target, reduction)


def _arrays(name: str, input: Any, target: Any) -> tuple[Any, Any]:
    """Both arguments where they are arrays; TypeError for anything else that is not a Tensor."""
    for argument, value in (("input", input), ("target", target)):
        if type(value) not in TENSORS and type(value) not in XP:
            raise TypeError(
                f"{name}(): argument {argument} must be a Tensor, got {type(value).__name__}"
            )
    return input, target


# Cross entropy ------------------------------------------------------------------------------------


def _cross_entropy(
    xp: Any, input: Any, target: Any, *, reduction: str = "mean", out: Any = None
) -> Any:
    """The negative log-probabilities of the target classes, reduced, and all probabilities."""
    rows, classes = input.shape
    z = xp.subtract(input, xp.max(input, axis=1, keepdims=True)) if rows else input
    e = xp.exp(z)
    total = xp.sum(e, axis=1, keepdims=True)
    places = xp.add(xp.multiply(xp.arange(rows), classes), target)
    losses = xp.subtract(xp.reshape(xp.log(total), -1), xp.take(z, places))
    probabilities = xp.divide(e, total)
    if reduction == "none":
        return xp.store(losses, out), probabilities
    if reduction == "sum":
        return xp.sum(losses, out=out), probabilities
    return _average(xp, xp.asarray(xp.sum(losses)), rows, out), probabilities


def _cross_entropy_rule(g: Any, probabilities: Any, target: Any, reduction: str) -> Any:
    rows, classes = probabilities.shape
    above = probabilities - one_hot_rows(target, classes, probabilities.dtype)
    if reduction == "none":
        return above * reshape_to(g, (rows, 1))
    return above * (g / (rows or 1) if reduction == "mean" else g)


cross_entropy_classes = primitive(
    "cross_entropy",
    _cross_entropy,
    input=_cross_entropy_rule,
    options={
        "extras": ("probabilities",),
        "recompute": {"probabilities": lambda input: softmax_dim(input, 1)},
        "node_name": "nll_loss",
    },
)


def cross_entropy(input: Any, target: Any, reduction: str = "mean") -> Any:
    """The cross entropy of unnormalised scores with class indices or class probabilities.

    Args:
        input: scores, (n, classes) or (classes,), of a float dtype.
        target: class indices as integers, (n,) or (), or probabilities in the shape of `input`.
        reduction: "mean" over the samples, "sum", or "none" for one loss a sample.

    Raises:
        TypeError: not Tensors.
        IndexError: a class index outside 0 .. classes - 1 (not checked on a GPU).
        RuntimeError: shapes or dtypes that do not fit.
        ValueError: an unknown reduction, or another number of indices than of scores.

    Example:
        >>> mt.nn.functional.cross_entropy(mt.tensor([[0.0, 0.0]]), mt.tensor([1]))
        tensor(0.6931)
    """
    _arrays("cross_entropy", input, target)
    check_reduction(reduction)
    want_float("cross_entropy", input)
    if input.ndim not in (1, 2):
        raise RuntimeError(
            "cross_entropy: expected scores of shape (n, classes) or (classes,), got "
            f"{tuple(input.shape)}"
        )
    if input.ndim == 1:
        batch = reshape_to(input, (1, *input.shape))
        loss = cross_entropy(batch, reshape_to(target, (1, *target.shape)), reduction)
        return reshape_to(loss, ()) if reduction == "none" else loss
    if target.dtype.kind == "f":
        return _cross_entropy_probabilities(input, target, reduction)
    if target.dtype.kind == "b":
        raise RuntimeError("cross_entropy: expected class indices as integers, got bool")
    if target.shape != input.shape[:1]:
        raise ValueError(
            f"cross_entropy: scores of shape {tuple(input.shape)} need class indices of shape "
            f"({input.shape[0]},), got {tuple(target.shape)}"
        )
    _check_classes(target, input.shape[1])
    return cross_entropy_classes(input, target, reduction)


def _check_classes(target: Any, classes: int) -> None:
    array = target._array if type(target) in TENSORS else target
    # On a GPU looking at the values would wait for it.
    if type(array) is np.ndarray and array.size:
        low, high = array.min(), array.max()
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise IndexError(
                f"Target {int(wrong)} is out of bounds: the scores have {classes} classes, so "
                f"class indices are 0 to {classes - 1}"
            )


def _cross_entropy_probabilities(input: Any, target: Any, reduction: str) -> Any:
    if target.shape != input.shape:
        raise RuntimeError(
            f"cross_entropy: probabilities of shape {tuple(target.shape)} must have the shape of "
            f"the scores, {tuple(input.shape)}"
        )
    losses = -sum(log_softmax_dim(input, 1) * target, 1)
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum(losses)
