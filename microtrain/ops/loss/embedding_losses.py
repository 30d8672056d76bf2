"""Losses of pairs and triples: which of two is larger, which are alike."""

from __future__ import annotations

from typing import Any

from ...tensor import Tensor
from ..fronts import Margin, Reduction, Refused, SameShape, TensorOnly, need
from ..pointwise.activations import softplus_of
from ..pointwise.elementwise import clamp, minimum, sqrt, where
from ..reduce.norms import norm
from ..reduce.reductions import sum
from .losses import loss

__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss",
    "triplet_margin_loss",
]  # fmt: skip


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
