"""The losses that a configuration can name."""

from __future__ import annotations

from typing import Literal

from ..nn import CrossEntropyLoss, MSELoss

__all__ = ["cross_entropy", "mse"]


def mse(reduction: Literal["mean", "sum"] = "mean") -> MSELoss:
    """The squared difference of prediction and target in one shape, averaged or summed."""
    return MSELoss(reduction=reduction)


def cross_entropy(reduction: Literal["mean", "sum"] = "mean") -> CrossEntropyLoss:
    """The cross entropy of scores (n, classes) with class indices (n,), averaged or summed."""
    return CrossEntropyLoss(reduction=reduction)
