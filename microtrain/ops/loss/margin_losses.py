"""Losses with margins: between classes, of several labels at once, of pairs and triples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from ...backend import int64
from ...errors import need
from ...tensor import Tensor
from .. import fronts
from ..arguments import want_in_range, want_shape
from ..fronts import FloatOnly, Margin, Number, Reduction, Refused, SameShape, TensorOnly, of_dims
from ..index.indexing import gather_along, one_hot_rows
from ..nn.normalization import pairwise_distance
from ..pointwise.activations import logsigmoid, softplus_of
from ..pointwise.elementwise import clamp, minimum, mul, sqrt, where
from ..reduce.norms import norm
from ..reduce.reductions import any_dims, mean_dims, sum, sum_dims
from ..reduce.scans import cumsum
from ..registry import publish
from ..shape.shapes import reshape_to
from .losses import loss

_Scores = Annotated[FloatOnly, of_dims(0, 2)]
_Power = Annotated[float, fronts.one_of(1, 2, error="ValueError")]


def _want_labels(name: str, target: Any, shape: tuple[int, ...]) -> None:
    """RuntimeError unless `target` holds class indices in this shape."""
    want_shape(name, "class indices", target, shape)
    need(target.dtype == int64, name, "expected class indices as int64", target.dtype)


@loss
def multi_margin_loss(
    input: _Scores, target: TensorOnly, p: _Power = 1, margin: Number = 1.0,
    weight: TensorOnly | None = None, size_average: Refused = None, reduce: Refused = None,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """How far the score of the class is from being the largest by a margin.

    The sum of `max(margin - x[target] + x[i], 0) ** p` over the other classes i, divided by the
    number of classes.

    Args:
        input: scores, (n, classes) or (classes,), of a float dtype.
        target: class indices, (n,) or ().
        p: 1 or 2.
        margin: by how much.
        weight: (classes,), a factor for each class; the mean is divided by the rows all the same.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for one loss a row.

    Raises ValueError for another p, RuntimeError for shapes or dtypes that do not fit and for an
    index that is no class (not checked on a GPU).
    """
    input = input if input.ndim else reshape_to(input, (1,))
    classes = input.shape[-1]
    if input.ndim == 1 and target.shape == (1,):
        target = reshape_to(target, ())
    _want_labels("multi_margin_loss", target, input.shape[:-1])
    if weight is not None:
        want_shape("multi_margin_loss", "weights of the classes", weight, (classes,))
    want_in_range("multi_margin_loss", target._array, input.ndim - 1, 0, classes, RuntimeError)
    at = reshape_to(target, (*target.shape, 1))
    over = clamp(margin - gather_along(input, at, input.ndim - 1) + input, min=0)
    over = over if p == 1 else over * over
    if weight is not None:
        flat = gather_along(weight, reshape_to(target, (-1,)), 0)
        over = over * reshape_to(flat, at.shape)
    others = where(one_hot_rows(target, classes, input.dtype) != 0, 0, over)
    return sum_dims(others, (input.ndim - 1,), False) / classes


@loss
def multilabel_margin_loss(
    input: _Scores, target: TensorOnly, size_average: Refused = None, reduce: Refused = None,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """How far the scores of all labels are from being larger than the others by 1.

    The sum of `max(1 - x[j] + x[i], 0)` over labels j and other classes i, divided by the number of
    classes.

    Args:
        input: scores, (n, classes) or (classes,), of a float dtype.
        target: class indices in the shape of `input`: the labels, and -1 behind the last.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for one loss a row.

    Raises RuntimeError for shapes or dtypes that do not fit and for an index that is no class (not
    checked on a GPU).
    """
    _want_labels("multilabel_margin_loss", target, input.shape)
    if not input.ndim:
        input, target = (reshape_to(x, (1,)) for x in (input, target))
    classes, last = input.shape[-1], input.ndim - 1
    need(classes, "multilabel_margin_loss", "expected classes", input)
    label = cumsum(target < 0, last) == 0  # in front of the first -1
    at = where(label, target, 0)
    want_in_range("multilabel_margin_loss", at._array, last, 0, classes, RuntimeError)
    hot = (one_hot_rows(at, classes, input.dtype) != 0) & reshape_to(label, (*label.shape, 1))
    other = ~any_dims(hot, (last,), True)
    scores = gather_along(input, at, last)
    over = (
        1
        - reshape_to(scores, (*scores.shape, 1))
        + reshape_to(input, (*input.shape[:-1], 1, classes))
    )
    counted = reshape_to(label, (*label.shape, 1)) & other
    return sum_dims(where(counted, clamp(over, min=0), 0), (last, last + 1), False) / classes


@loss
def multilabel_soft_margin_loss(
    input: FloatOnly, target: SameShape, weight: TensorOnly | None = None,
    size_average: Refused = None, reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """The binary cross entropy of scores, averaged over classes, the last dimension.

    Args:
        input: scores, (n, classes), of a float dtype.
        target: 1 for the labels and 0 for others, in the shape of `input`.
        weight: (classes,), a factor for each class.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for one loss a row.

    Raises RuntimeError for shapes that do not fit.
    """
    losses = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    losses = losses if weight is None else mul(losses, weight)
    return mean_dims(losses, (losses.ndim - 1,), False)


@loss
def triplet_margin_with_distance_loss(
    anchor: TensorOnly, positive: TensorOnly, negative: TensorOnly, *,
    distance_function: Callable[[Any, Any], Any] | None = None, margin: Margin = 1.0,
    swap: bool = False, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """`max(margin + distance(anchor, positive) - distance(anchor, negative), 0)`.

    Args:
        anchor, positive, negative: what the distance takes, of one number of dimensions.
        distance_function: of two Tensors; `pairwise_distance` if not given.
        margin: greater than 0.
        swap: use the distance from `positive` to `negative` where that is smaller.
        reduction: "mean", "sum", or "none".

    Raises ValueError for a margin that is not positive, RuntimeError for other dimensions.
    """
    same_ndim("triplet_margin_with_distance_loss", anchor, positive, negative)
    distance = pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return clamp(distance(anchor, positive) - far + margin, min=0)


# Pairs and triples --------------------------------------------------------------------------------


@loss
def soft_margin_loss(
    input: TensorOnly, target: SameShape, size_average: Refused = None, reduce: Refused = None,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """`log(1 + exp(-target * input))` for targets of -1 or 1, without overflow."""
    return softplus_of(-(target * input))


@loss
def hinge_embedding_loss(
    input: TensorOnly, target: SameShape, margin: float = 1.0, size_average: Refused = None,
    reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """A distance `input` where the target is 1, `max(margin - input, 0)` where it is -1."""
    apart = where(target != 1, clamp(margin - input, min=0), 0)
    return apart + where(target != -1, input, 0)


def same_ndim(name: str, *tensors: Any) -> None:
    """RuntimeError for different numbers of dimensions."""
    need(len({t.ndim for t in tensors}) == 1, name, "expected one number of dimensions", *tensors)


@loss
def margin_ranking_loss(
    input1: TensorOnly, input2: TensorOnly, target: TensorOnly, margin: float = 0,
    size_average: Refused = None, reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """`max(margin - target * (input1 - input2), 0)`: target 1 wants the first larger, -1 smaller.

    Raises:
        TypeError: not Tensors.
        RuntimeError: other numbers of dimensions, shapes that do not broadcast.
        ValueError: an unknown reduction.
    """
    same_ndim("margin_ranking_loss", input1, input2, target)
    return clamp(margin - target * (input1 - input2), min=0)


@loss
def cosine_embedding_loss(
    input1: TensorOnly, input2: TensorOnly, target: TensorOnly, margin: float = 0,
    size_average: Refused = None, reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """How far the cosine of two vectors is from 1 (target 1) or above `margin` (target -1).

    Args:
        input1, input2: vectors (d,) or rows of them (n, d).
        target: 1 or -1, () or (n,).
        margin: the largest cosine that costs nothing where the target is -1.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for one loss a row.

    Raises:
        TypeError: not Tensors.
        RuntimeError: shapes that do not fit.
        ValueError: an unknown reduction.
    """
    fits = target.ndim < 2 and input1.ndim == input2.ndim == target.ndim + 1
    text = "expected (n, d), (n, d) and (n,), or (d,), (d,) and ()"
    need(fits, "cosine_embedding_loss", text, input1, input2, target)
    lengths = (sum(input1 * input1, -1) + 1e-12) * (sum(input2 * input2, -1) + 1e-12)
    cosine = sum(input1 * input2, -1) / sqrt(lengths)
    apart = where(target == -1, clamp(cosine - margin, min=0), 0)
    return where(target == 1, 1 - cosine, 0) + apart


@loss
def triplet_margin_loss(
    anchor: TensorOnly, positive: TensorOnly, negative: TensorOnly, margin: Margin = 1.0,
    p: float = 2, eps: float = 1e-6, swap: bool = False, size_average: Refused = None,
    reduce: Refused = None, reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """`max(margin + |anchor - positive| - |anchor - negative|, 0)` over vectors.

    V. Balntas, E. Riba, D. Ponsa and K. Mikolajczyk, "Learning local feature descriptors with
    triplets and shallow convolutional neural networks", 2016.

    Args:
        anchor, positive, negative: vectors along the last dimension, broadcast.
        margin: greater than 0.
        p: which norm the distance is.
        eps: added to differences, so that the distance of equal vectors has a derivative.
        swap: use the distance from `positive` to `negative` where that is smaller.
        size_average, reduce: the old spelling of `reduction`, refused.
        reduction: "mean", "sum", or "none" for one loss a vector.

    Raises:
        TypeError: not Tensors.
        RuntimeError: other numbers of dimensions, shapes that do not broadcast.
        ValueError: an unknown reduction, a margin that is not positive.
    """
    same_ndim("triplet_margin_loss", anchor, positive, negative)

    def distance(x: Any, y: Any) -> Any:
        return norm(x - y + eps, p, -1)

    far = distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return clamp(distance(anchor, positive) - far + margin, min=0)


publish(globals())
