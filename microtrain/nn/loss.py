"""Losses as modules."""

from __future__ import annotations

from ..ops.losses import check_reduction
from ..tensor import Tensor
from .functional import cross_entropy, mse_loss
from .module import Module


class _Loss(Module):
    """A loss with a reduction: mean, sum or none; ValueError for anything else."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction


class MSELoss(_Loss):
    """The squared difference of two Tensors of one shape, averaged or summed."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of predictions `input` against `target`, in one shape."""
        return mse_loss(input, target, self.reduction)


class CrossEntropyLoss(_Loss):
    """The cross entropy of scores (n, classes) with class indices (n,) or probabilities."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of scores `input` against `target`."""
        return cross_entropy(input, target, self.reduction)
