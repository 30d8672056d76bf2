"""Layers and losses as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..ops import dropout as _dropout
from ..ops import elementwise, linear_algebra, losses, reductions
from ..tensor import Tensor

# The operations also take and return arrays, for the gradient rules; users need not know.
_Function: TypeAlias = Callable[..., Tensor]

cross_entropy: _Function = losses.cross_entropy
dropout: _Function = _dropout.dropout
dropout1d: _Function = _dropout.dropout1d
dropout2d: _Function = _dropout.dropout2d
linear: _Function = linear_algebra.linear
log_softmax: _Function = reductions.log_softmax
mse_loss: _Function = losses.mse_loss
relu: _Function = elementwise.relu
sigmoid: _Function = elementwise.sigmoid
softmax: _Function = reductions.softmax
tanh: _Function = elementwise.tanh

__all__ = [
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "linear",
    "log_softmax",
    "mse_loss",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]
