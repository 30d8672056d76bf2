"""The losses that a configuration can name."""

from __future__ import annotations

from typing import Literal

from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss

__all__ = ["bce", "cross_entropy", "huber", "mae", "mse"]


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


def huber(reduction: Literal["mean", "sum"] = "mean", delta: float = 1.0) -> HuberLoss:
    """The squared difference halved within `delta`, beyond it `delta` times the absolute one.

    Args:
        reduction: the mean over rows and targets, or their sum.
        delta: where the two meet.
    """
    return HuberLoss(reduction, delta)


def bce(reduction: Literal["mean", "sum"] = "mean") -> BCEWithLogitsLoss:
    """The binary cross entropy of scores with targets from 0.0 to 1.0, in one shape.

    The model gives scores: the sigmoid is part of the loss.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return BCEWithLogitsLoss(reduction=reduction)


def cross_entropy(
    reduction: Literal["mean", "sum"] = "mean", label_smoothing: float = 0.0
) -> CrossEntropyLoss:
    """The cross entropy of scores (n, classes) with class indices (n,), averaged or summed.

    Args:
        reduction: the mean over rows, or their sum.
        label_smoothing: the share of each target that is spread over all classes.
    """
    return CrossEntropyLoss(reduction=reduction, label_smoothing=label_smoothing)
