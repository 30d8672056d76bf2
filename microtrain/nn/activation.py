"""Activation functions as modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.missing_names import namespace
from ..creation import full
from ..errors import need
from ..tensor import Tensor
from . import functional as F
from .applied import Applied
from .module import Module
from .parameter import Parameter


@dataclass(repr=False, eq=False)
class _InPlace(Applied):
    inplace: bool = False


class ReLU(_InPlace, function=F.relu):
    """`max(x, 0)`, elementwise."""


class Sigmoid(Applied, function=F.sigmoid):
    """`1 / (1 + exp(-x))`, elementwise."""


class Tanh(Applied, function=F.tanh):
    """The hyperbolic tangent, elementwise."""


class GELU(Applied, function=F.gelu):
    """`x` times the share of the normal distribution below it; `approximate` "none" or "tanh"."""

    approximate: str = "none"


class SiLU(_InPlace, function=F.silu):
    """`x * sigmoid(x)`, elementwise."""


class Mish(_InPlace, function=F.mish):
    """`x * tanh(softplus(x))`, elementwise."""


class Softplus(Applied, function=F.softplus):
    """`log(1 + exp(beta * x)) / beta`, elementwise; `x` where `beta * x > threshold`."""

    beta: float = 1.0
    threshold: float = 20.0


class LogSigmoid(Applied, function=F.logsigmoid):
    """`log(sigmoid(x))`, elementwise."""


class ELU(Applied, function=F.elu):
    """`x` above 0, `alpha * (exp(x) - 1)` elsewhere."""

    alpha: float = 1.0
    inplace: bool = False


class SELU(_InPlace, function=F.selu):
    """`ELU` with the two numbers that keep mean 0 and variance 1."""


class CELU(Applied, function=F.celu):
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` elsewhere."""

    alpha: float = 1.0
    inplace: bool = False


class LeakyReLU(Applied, function=F.leaky_relu):
    """`x` above 0, `negative_slope * x` elsewhere."""

    negative_slope: float = 0.01
    inplace: bool = False


class PReLU(Module):
    """`x` above 0, `weight * x` elsewhere, with a weight that is learned.

    Args:
        num_parameters: 1, or the number of channels, the size of dimension 1.
        init: the weight to start with.
        device, dtype: of the parameters; None is the CPU, and the default float type.
    """

    _shown = ("num_parameters",)

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        weight = full((num_parameters,), float(init), device=device, dtype=dtype)
        self.weight = Parameter(weight)

    def reset_parameters(self) -> None:
        """Set the weight to `init` again."""
        self.weight.data.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Apply it to input of shape (batch, channels, ...), or of any shape for one weight."""
        return F.prelu(input, self.weight)


class Threshold(Applied, function=F.threshold):
    """`x` above `threshold`, `value` elsewhere."""

    threshold: float
    value: float
    inplace: bool = False


class Hardtanh(Applied, function=F.hardtanh):
    """`x` limited to [min_val, max_val]."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class ReLU6(_InPlace, function=F.relu6):
    """`x` limited to [0, 6]."""


class Hardsigmoid(_InPlace, function=F.hardsigmoid):
    """`relu6(x + 3) / 6`, elementwise."""


class Hardswish(_InPlace, function=F.hardswish):
    """`x * relu6(x + 3) / 6`, elementwise."""


class Softsign(Applied, function=F.softsign):
    """`x / (1 + |x|)`, elementwise."""


class Tanhshrink(Applied, function=F.tanhshrink):
    """`x - tanh(x)`, elementwise."""


class Softmax(Applied, function=F.softmax):
    """Numbers that add up to 1 along `dim`, which must be given."""

    dim: int


class LogSoftmax(Applied, function=F.log_softmax):
    """The logarithm of `Softmax`."""

    dim: int


class Softmin(Applied, function=F.softmin):
    """`Softmax` of `-x`."""

    dim: int


class GLU(Applied, function=F.glu):
    """The first half along `dim` times the sigmoid of the second half."""

    dim: int = -1


class Softmax2d(Module):
    """`Softmax` over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply it; ValueError for another number of dimensions."""
        need(input.ndim in (3, 4), "Softmax2d", "expected 3D or 4D input", input, error=ValueError)
        return F.softmax(input, -3)


class _Shrink(Applied):
    _shown = ("*lambd",)


class Hardshrink(_Shrink, function=F.hardshrink):
    """0 from `-lambd` to `lambd`, `x` elsewhere."""

    lambd: float = 0.5


class Softshrink(_Shrink, function=F.softshrink):
    """`x` moved by `lambd` towards 0, and 0 where it is nearer."""

    lambd: float = 0.5


class RReLU(Applied, function=F.rrelu):
    """`x` above 0, elsewhere times a slope, drawn while training; see `functional.rrelu`.

    Args:
        lower, upper: what the slope is drawn from; in evaluation it is their mean.
        inplace: whether the result is written into the input.
    """

    _shown = ("lower", "upper")
    _state = ("training",)
    lower: float = 1 / 8
    upper: float = 1 / 3
    inplace: bool = False


namespace(globals())
