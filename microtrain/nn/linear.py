"""Linear and bilinear layers."""

from __future__ import annotations

import math
from typing import Any

from ..creation import empty
from ..errors import need
from ..tensor import Tensor
from . import init
from .functional import bilinear, linear
from .module import Module
from .parameter import Parameter

__all__ = ["Bilinear", "Linear"]


class Linear(Module):
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    Weight (out_features, in_features) and bias (out_features,) start uniform in
    +-1/sqrt(in_features), as in PyTorch.

    Args:
        in_features: size of the last input dimension, at least 0.
        out_features: size of the last output dimension.
        bias: False for a product without an added vector.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError for negative sizes.

    Example:
        >>> layer = mt.nn.Linear(4, 8)
        >>> layer(mt.ones(2, 4)).shape, layer.weight.shape, layer.bias.shape
        ((2, 8), (8, 4), (8,))
    """

    _shown = ("in_features", "out_features", "bias")

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        sizes = in_features, out_features
        need(min(sizes) >= 0, "Linear", "sizes must not be negative", sizes, error=ValueError)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, **kind))
        self.bias = Parameter(empty(out_features, **kind)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to an input of shape (..., in_features)."""
        return linear(input, self.weight, self.bias)


class Bilinear(Module):
    """`x1 @ weight[o] @ x2 + bias[o]`: (..., in1) and (..., in2) to (..., out_features).

    Weight (out, in1, in2) and bias (out,) start uniform in +-1/sqrt(in1_features).

    Args:
        in1_features, in2_features: sizes of the last dimension of the inputs.
        out_features: size of the last dimension of the output.
        bias: False for no added vector.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError for no features in the first input.
    """

    _shown = ("in1_features", "in2_features", "out_features", "bias")

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        some = in1_features > 0
        need(some, "Bilinear", "in1_features must be at least 1", in1_features, error=ValueError)
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, **kind))
        self.bias = Parameter(empty(out_features, **kind)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Apply the layer."""
        return bilinear(input1, input2, self.weight, self.bias)
