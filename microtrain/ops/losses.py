"""Losses that are one operation each, with the gradient written in the variables they have anyway."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .elementwise import pow, sub
from .indexing import one_hot_rows
from .reductions import log_softmax_dim, mean, softmax_dim, sum
from .registry import primitive
from .shapes import reshape_to

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """ValueError unless `reduction` is one of none, mean, sum."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a reduction; there are {', '.join(REDUCTIONS)}")


def _mse(xp: Any, input: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Any:
    """The mean or sum of the squared differences, and the differences."""
    difference = xp.subtract(input, target)
    flat = xp.reshape(difference, -1)
    total = xp.asarray(xp.dot(flat, flat))
    if reduction == "mean":
        n = flat.shape[0]
        total = xp.divide(total, xp.constant(n, total.dtype), out=out) if n else total + math.nan
    return total, difference


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
        input: predictions, any shape.
        target: in the shape of `input`; another shape is a RuntimeError, because broadcasting an
            (n,) target against an (n, 1) prediction silently gives the error of n * n pairs.
        reduction: "mean" (over all elements), "sum", or "none" for the elements.

    Raises:
        RuntimeError: the shapes differ.
        ValueError: an unknown reduction.
    """
    if input.shape != target.shape:
        raise RuntimeError(
            f"mse_loss: input of shape {tuple(input.shape)} and target of shape "
            f"{tuple(target.shape)} must have one shape; reshape the target, for instance "
            "target.view(-1, 1)"
        )
    check_reduction(reduction)
    if reduction == "none":
        return pow(sub(input, target), 2)
    return mse(input, target, reduction)


def _cross_entropy(
    xp: Any, input: Any, target: Any, *, reduction: str = "mean", out: Any = None
) -> Any:
    """The negative log-probability of the target classes, and the probabilities."""
    rows, classes = input.shape
    z = xp.subtract(input, xp.max(input, axis=1, keepdims=True)) if rows else input
    e = xp.exp(z)
    total = xp.sum(e, axis=1, keepdims=True)
    flat = xp.add(xp.multiply(xp.arange(rows), classes), target)
    chosen = xp.reshape(z, -1)[flat]
    losses = xp.subtract(xp.reshape(xp.log(total), -1), chosen)
    loss = xp.asarray(xp.sum(losses, axis=None))
    if reduction == "mean":
        loss = xp.divide(loss, xp.constant(rows, loss.dtype)) if rows else loss + math.nan
    return loss, xp.divide(e, total)


def _cross_entropy_rule(g: Any, probabilities: Any, target: Any, reduction: str) -> Any:
    rows, classes = probabilities.shape
    ones = one_hot_rows(target, classes, probabilities.dtype)
    return (probabilities - ones) * (g / (rows or 1) if reduction == "mean" else g)


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
        input: scores, (n, classes) or (classes,).
        target: class indices as integers, (n,) or (), or probabilities in the shape of `input`.
        reduction: "mean" over the samples, "sum", or "none" for one loss a sample.

    Raises:
        IndexError: a class index outside 0 .. classes - 1.
        RuntimeError: shapes that do not fit.
        ValueError: an unknown reduction.
    """
    check_reduction(reduction)
    if input.ndim not in (1, 2):
        raise RuntimeError(
            f"cross_entropy: expected scores of shape (n, classes) or (classes,), got "
            f"{tuple(input.shape)}"
        )
    if input.ndim == 1:
        loss = cross_entropy(
            reshape_to(input, (1, *input.shape)), reshape_to(target, (1, *target.shape)), reduction
        )
        return reshape_to(loss, ()) if reduction == "none" else loss
    if target.dtype.kind == "f":
        return _cross_entropy_probabilities(input, target, reduction)
    if target.shape != input.shape[:1]:
        raise RuntimeError(
            f"cross_entropy: scores of shape {tuple(input.shape)} need class indices of shape "
            f"({input.shape[0]},), got {tuple(target.shape)}"
        )
    _check_classes(target, input.shape[1])
    if reduction == "none":
        picked = log_softmax_dim(input, 1) * one_hot_rows(target, input.shape[1], input.dtype)
        return -sum(picked, 1)
    return cross_entropy_classes(input, target, reduction)


def _check_classes(target: Any, classes: int) -> None:
    array = target._array
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
