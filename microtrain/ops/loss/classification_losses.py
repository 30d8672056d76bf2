"""Losses of classes and of probabilities: cross entropies, log-likelihood, divergence."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...backend import MODES, float16, float32, int64
from ...errors import need, wrong
from ...tensor import Tensor
from .. import fronts
from ..arguments import REDUCTIONS, check_reduction, want_shape
from ..coercion import cast, examine
from ..fronts import FloatOnly, Reduction, Refused, SameShape, TensorOnly, public
from ..index.indexing import gather_along, one_hot_rows, ungather
from ..pointwise.activations import softplus_of
from ..pointwise.elementwise import clamp, exp, log, logistic, mul, ne, where
from ..reduce.reductions import log_softmax_dim, mean, softmax_dim, sum
from ..registry import primitive, publish
from ..shape.shapes import expand, expand_to, reshape_to
from .losses import counting, loss, mean_loss, reduced, reduced_array, sum_of

# By the bytes of a number: a dtype's name would have to be parsed at every step.
UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_Scores = Annotated[FloatOnly, fronts.of_dims(1)]

# Cross entropy ------------------------------------------------------------------------------------


def _cross_entropy(xp, input, target, *, reduction="mean"):
    """The negative log-probabilities of the target classes, reduced, and all probabilities.

    Args:
        input: (rows, classes) or, as images are, (n, classes, places).
        target: (rows,) or (n, places).
    """
    if input.dtype == float16:  # computed in single, as in `reductions`
        wide = xp.asarray(input, float32)
        loss, shares = _cross_entropy(xp, wide, target, reduction=reduction)
        return xp.asarray(loss, float16), xp.asarray(shares, float16)
    rows, classes, *inner = input.shape
    none = xp.constant(0, input.dtype)
    z = xp.subtract(input, xp.max(input, axis=1, keepdims=True) if classes else none)
    begin = xp.multiply(xp.arange(rows), classes)
    if inner:
        places = xp.multiply(target, inner[0], dtype=int64)
        begin = xp.reshape(xp.multiply(begin, inner[0]), (rows, 1))
        places = xp.add(xp.add(places, begin, out=places), xp.arange(inner[0]), out=places)
    else:
        places = xp.add(begin, target)
    chosen = xp.take(z, places)
    e = xp.exp(z, out=z if inner else None)  # large: not in other memory
    total = xp.sum(e, axis=1, keepdims=True)
    losses = xp.subtract(xp.reshape(xp.log(total), target.shape), chosen)
    probabilities = xp.divide(e, total, out=e if inner else None)
    return reduced_array(xp, losses, reduction), probabilities


def _cross_entropy_rule(g, probabilities, target, reduction):
    rows, classes, *inner = probabilities.shape
    one = (rows, 1, *inner)
    if reduction == "none":
        g = reshape_to(g, one)
    elif reduction == "mean":
        g = g / (math.prod(target.shape) or 1)
    if inner:
        hit = ungather(expand_to(g, one), reshape_to(target, one), 1, probabilities.shape)
        return probabilities * g - hit
    return (probabilities - one_hot_rows(target, classes, probabilities.dtype)) * g


cross_entropy_classes = primitive(
    "cross_entropy",
    _cross_entropy,
    input=_cross_entropy_rule,
    extras=("probabilities",),
    recompute={"probabilities": lambda input: softmax_dim(input, 1)},
    node_name="nll_loss",
)


@public
def cross_entropy(
    input: _Scores, target: TensorOnly, weight: TensorOnly | None = None,
    size_average: Refused = None, ignore_index: int = -100, reduce: Refused = None,
    reduction: Reduction = "mean", label_smoothing: fronts.Probability = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of unnormalized scores with class indices or class probabilities.

    Args:
        input: scores, (n, classes), (n, classes, d1, ...) or (classes,), of a float dtype.
        target: class indices as integers, in the shape of `input` without the classes, or
            probabilities in the shape of `input`.
        weight: (classes,), a factor for each class. The mean over class indices is divided by the
            sum of the weights of the targets.
        size_average, reduce: the old spelling of `reduction`, refused.
        ignore_index: a class index whose samples are ignored.
        reduction: "mean" over the samples, "sum", or "none" for one loss a sample.
        label_smoothing: how much of the target, 0 to 1, is spread evenly over all classes (C.
            Szegedy et al., "Rethinking the inception architecture for computer vision", 2016).

    Raises:
        TypeError: not Tensors.
        IndexError: a class index outside 0 .. classes - 1 (not checked on a GPU).
        RuntimeError: shapes or dtypes that do not fit, a label smoothing outside 0 .. 1.
        ValueError: an unknown reduction, or another number of indices than of scores.

    Example:
        >>> mt.nn.functional.cross_entropy(mt.tensor([[0.0, 0.0]]), mt.tensor([1]))
        tensor(0.6931)
    """
    if target.dtype.kind == "f":
        text = "ignore_index is for class indices, not probabilities"
        need(ignore_index < 0, "cross_entropy", text)
        return _with_probabilities(input, target, weight, reduction, label_smoothing)
    rows, indices, kept = _rows("cross_entropy", input, target, weight, ignore_index)
    if weight is None and kept is None and not label_smoothing and input.ndim > 1:
        if reduction == "none":
            return reshape_to(cross_entropy_classes(rows, indices, reduction), target.shape)
        if reduction != "mean" or not counting(input):
            return cross_entropy_classes(rows, indices, reduction)
        total, count = cross_entropy_classes(rows, indices, "sum"), target.numel()
        return mean_loss("cross_entropy", total, count, count)
    if not label_smoothing:
        losses, spread = cross_entropy_classes(rows, indices, "none"), None
    else:
        logs = log_softmax_dim(rows, 1)
        losses = -_chosen(logs, indices)
        spread = sum(logs if weight is None else logs * _per_class(weight, rows), 1)
    scale = None if weight is None else _weights(weight, indices)
    losses = losses if scale is None else mul(losses, scale)
    if spread is not None:
        losses = losses * (1 - label_smoothing) - spread * (label_smoothing / rows.shape[1])
    shape = target.shape if input.ndim > 1 else ()
    return _total("cross_entropy", losses, scale, kept, reduction, shape)


@public
def nll_loss(
    input: _Scores, target: TensorOnly, weight: TensorOnly | None = None,
    size_average: Refused = None, ignore_index: int = -100, reduce: Refused = None,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-likelihood of class indices; `cross_entropy` takes unnormalized scores.

    Args:
        input: logarithms of probabilities, (n, classes), (n, classes, d1, ...) or (classes,).
        target: class indices as integers, in the shape of `input` without the classes.
        weight: (classes,), a factor for each class. The mean is divided by the sum of the weights
            of the targets.
        size_average, reduce: the old spelling of `reduction`, refused.
        ignore_index: a class index whose samples are ignored.
        reduction: "mean" over the samples, "sum", or "none" for one loss a sample.

    Raises:
        TypeError: not Tensors.
        IndexError: a class index outside 0 .. classes - 1 (not checked on a GPU).
        RuntimeError: shapes or dtypes that do not fit.
        ValueError: an unknown reduction, or another number of indices than of rows.
    """
    rows, indices, kept = _rows("nll_loss", input, target, weight, ignore_index)
    scale = None if weight is None else _weights(weight, indices)
    losses = -_chosen(rows, indices)
    losses = losses if scale is None else mul(losses, scale)
    shape = target.shape if input.ndim > 1 else ()
    return _total("nll_loss", losses, scale, kept, reduction, shape)


def _chosen(rows: Any, indices: Any) -> Any:
    """The element of each row that its index chooses."""
    at = reshape_to(indices, (indices.shape[0], 1, *indices.shape[1:]))
    return reshape_to(gather_along(rows, at, 1), indices.shape)


def _per_class(weight: Any, scores: Any) -> Any:
    """`weight` so that it broadcasts along the classes of `scores`."""
    return reshape_to(weight, (weight.shape[0], *(1,) * (scores.ndim - 2)))


def _weights(weight: Any, indices: Any) -> Any:
    return reshape_to(gather_along(weight, reshape_to(indices, (-1,)), 0), indices.shape)


def _total(
    name: str, losses: Any, scale: Any, kept: Any, reduction: str, shape: tuple[int, ...]
) -> Any:
    """The losses of all rows reduced, or in the shape of the target.

    Args:
        losses: (n,) or (n, places), already multiplied with `scale`, their weights or None.
        kept: which rows are not ignored, or None for all.
    """
    losses = losses if kept is None else where(kept, losses, 0)
    if reduction == "none":
        return reshape_to(losses, shape)
    rows = losses.numel()
    if reduction == "sum" or (scale is None and kept is None and not counting(losses)):
        return reduced(losses, reduction)
    if scale is None:  # a row counts 1 or 0
        count = rows if kept is None else sum_of(cast(kept, losses.dtype))
    else:
        count = sum_of(scale if kept is None else where(kept, scale, 0))
    found = mean_loss(name, sum_of(losses), count, rows if scale is None else None)
    return cast(found, losses.dtype)


def _rows(
    name: str, input: Any, target: Any, weight: Any, ignore_index: int
) -> tuple[Any, Any, Any]:
    """The scores, the class indices, and which of these are not ignored.

    Scores are (rows, classes), indices (rows,); of images (n, classes, places) and (n, places). The
    last is None where none is ignored. What is ignored gets class 0.
    """
    need(target.dtype.kind in "iu", name, "expected class indices as integers", target.dtype)
    dim = 1 if input.ndim > 1 else 0
    expected = (*input.shape[:dim], *input.shape[dim + 1 :])
    if target.shape != expected and not (input.ndim == 1 and target.shape == (1,)):
        kind = ValueError if target.shape[:1] != expected[:1] else RuntimeError
        raise wrong(name, f"expected class indices of shape {expected}", input, target, error=kind)
    classes = input.shape[dim]
    if weight is not None:
        want_shape(name, "weights of the classes", weight, (classes,))
        fits = weight.dtype == input.dtype and not weight.requires_grad
        need(fits, name, "weights must have the dtype {} and no gradient", input.dtype)
    if input.ndim != 2:
        n, places = (input.shape[0], (math.prod(input.shape[2:]),)) if dim else (1, ())
        input = reshape_to(input, (n, classes, *places))
        target = reshape_to(target, (n, *places))
    if not _may_ignore(target._array, classes, ignore_index):
        return input, target, None
    target = cast(target, int64)  # which has room for any ignore_index
    kept = ne(target, ignore_index)
    return input, where(kept, target, 0), kept


def _may_ignore(target: Any, classes: int, ignore_index: int) -> bool:
    """Whether a class index may be the ignored one; IndexError for one that does not exist."""
    found = True  # where values are not known now, on a GPU or in a captured step

    def check(target: Any) -> None:
        nonlocal found
        # What is negative is large without a sign: one pass in place of two.
        unsigned = target.view(UNSIGNED[target.itemsize])
        if not target.size or np.maximum.reduce(unsigned, None) < classes:
            found = bool(0 <= ignore_index < classes and (target == ignore_index).any())
            return
        found = True
        wrong_ones = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
        text = f"Target {{}} is out of bounds: the scores have {classes} classes, from 0"
        need(not wrong_ones.size, "class index", text, *wrong_ones[:1], error=IndexError)

    vars(check)["bounds"] = 0, classes, ignore_index
    examine(target, check)
    return found or MODES.capture.on


def _with_probabilities(
    input: Any, target: Any, weight: Any, reduction: str, label_smoothing: float
) -> Any:
    want_shape("cross_entropy", "probabilities", target, input.shape)
    dim = 1 if input.ndim > 1 else 0
    classes = input.shape[dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    if weight is not None:
        want_shape("cross_entropy", "weights of the classes", weight, (classes,))
        target = target * (_per_class(weight, input) if dim else weight)
    return reduced(-sum(log_softmax_dim(input, dim) * target, dim), reduction)


# Probabilities: yes or no, and one distribution against another -----------------------------------


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
_Target = Annotated[
    TensorOnly, fronts.Check("if @.shape != ^.shape: check_pair($name, ^, @, ValueError)")
]
_FloatTarget = Annotated[_Target, fronts.FLOAT]


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
    way_out = "apply a sigmoid, or use binary_cross_entropy_with_logits"
    examine(input, lambda a: _probabilities(a, "input", way_out))
    whole = "write classes as 0 and 1, and divide a mask by its largest"
    examine(target, lambda a: _probabilities(a, "target", whole))
    losses = bce(input, target)
    return losses if weight is None else _weighted(losses, weight)


# Distributions ------------------------------------------------------------------------------------


@public
def kl_div(
    input: FloatOnly, target: Annotated[SameShape, fronts.FLOAT], size_average: Refused = None,
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


publish(globals())
