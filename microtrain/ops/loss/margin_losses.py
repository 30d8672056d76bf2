"""Losses with margins between classes, and of several labels at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from ...backend import int64
from ...tensor import Tensor
from .. import fronts
from ..arguments import need, want_in_range, want_shape
from ..fronts import FloatOnly, Margin, Number, Reduction, Refused, SameShape, TensorOnly, of_dims
from ..index.indexing import gather_along, one_hot_rows
from ..nn.normalization import pairwise_distance
from ..pointwise.activations import logsigmoid
from ..pointwise.elementwise import clamp, minimum, mul, where
from ..reduce.reductions import any_dims, mean_dims, sum_dims
from ..reduce.scans import cumsum
from ..shape.shapes import reshape_to
from .embedding_losses import same_ndim
from .losses import loss

__all__ = [
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip

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
