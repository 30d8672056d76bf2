"""Activation functions as modules."""

from __future__ import annotations

from ..tensor import Tensor
from .functional import relu, sigmoid, tanh
from .module import Module


class ReLU(Module):
    """`max(x, 0)`, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x of any shape."""
        return relu(x)


class Sigmoid(Module):
    """`1 / (1 + exp(-x))`, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x of any shape."""
        return sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x of any shape."""
        return tanh(x)
