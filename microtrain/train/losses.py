"""The losses that a configuration can name, and what one of the user's own may return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from ..creation import tensor
from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss
from ..ops.loss.losses import mean_loss
from ..tensor import TENSORS, Tensor

Positive = Annotated[float, Gt(0)]
__all__ = ["bce", "cross_entropy", "huber", "mae", "mse", "one_loss"]


def one_loss(returned: Any) -> Any:
    """What a loss returned; of a sum and the count that it is to be divided by, their quotient."""
    if isinstance(returned, tuple) and len(returned) == 2 and type(returned[0]) in TENSORS:
        return mean_loss("the loss", *returned, None)
    return returned


def _weights(values: float | Sequence[float] | None) -> Tensor | None:
    return None if values is None else tensor(values, dtype="float32")


def mse(reduction: Literal["mean", "sum"] = "mean") -> MSELoss:
    """The squared difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return MSELoss(reduction=reduction)


def mae(reduction: Literal["mean", "sum"] = "mean") -> L1Loss:
    """The absolute difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return L1Loss(reduction=reduction)


def huber(reduction: Literal["mean", "sum"] = "mean", delta: Positive = 1.0) -> HuberLoss:
    """The squared difference halved within `delta`, beyond it `delta` times the absolute one.

    Args:
        reduction: the mean over rows and targets, or their sum.
        delta: where the quadratic part ends.
    """
    return HuberLoss(reduction, delta)


def bce(
    reduction: Literal["mean", "sum"] = "mean",
    pos_weight: Positive | Sequence[Positive] | None = None,
) -> BCEWithLogitsLoss:
    """The binary cross entropy of scores with targets from 0.0 to 1.0, in one shape.

    The model gives scores: the sigmoid is part of the loss.

    Args:
        reduction: the mean over rows and targets, or their sum.
        pos_weight: a factor for the part of the targets that is 1, one for each target; the number
            of rows with 0 for each with 1 makes both count alike.
    """
    return BCEWithLogitsLoss(reduction=reduction, pos_weight=_weights(pos_weight))


def cross_entropy(
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0,
    weight: Sequence[Annotated[float, Ge(0)]] | None = None,
    ignore_index: int = -100,
) -> CrossEntropyLoss:
    """The cross entropy of scores (n, classes) with class indices (n,), averaged or summed.

    Args:
        reduction: the mean over rows, or their sum.
        label_smoothing: the share of each target that is spread over all classes.
        weight: a factor for each class, in their order; the mean is divided by the sum of the
            weights of the rows, on all ranks together.
        ignore_index: a class index whose rows are ignored.
    """
    return CrossEntropyLoss(
        weight=_weights(weight),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
