"""Layers and losses as functions."""

from ..ops.elementwise import relu, sigmoid, tanh
from ..ops.linear_algebra import linear
from ..ops.losses import cross_entropy, mse_loss
from ..ops.reductions import log_softmax, softmax

__all__ = [
    "cross_entropy",
    "linear",
    "log_softmax",
    "mse_loss",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]
