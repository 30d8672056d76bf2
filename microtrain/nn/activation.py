"""Activation functions as modules.

A class names its function and lists the function's further arguments as fields: they become the
arguments of the constructor, attributes, and part of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, dataclass_transform

from ..creation import full
from ..tensor import Tensor
from . import functional as F
from .module import Module
from .parameter import Parameter

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]  # fmt: skip


@dataclass_transform(eq_default=False)
class _Activation(Module):
    """`function(input, *fields)`, for subclasses made with `function=`."""

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:  # a user's subclass of ReLU inherits
            dataclasses.dataclass(repr=False, eq=False)(cls)
            cls.forward = _forward(function, cls)  # type: ignore[method-assign]

    def extra_repr(self) -> str:
        """The fields; `inplace` only where it is set."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {field.name: getattr(self, field.name) for field in fields}
        return ", ".join(f"{n}={v!r}" for n, v in values.items() if n != "inplace" or v)


def _forward(function: Callable[..., Tensor], cls: Any) -> Callable[..., Tensor]:
    """`forward` of a module with these fields, as fast as if it were written out."""
    fields = [field.name for field in dataclasses.fields(cls)]
    arguments = ", ".join(["input", *(f"{name}=self.{name}" for name in fields)])
    scope: dict[str, Any] = {"function": function}
    exec(f"def forward(self, input):\n    return function({arguments})", scope)
    forward: Callable[..., Tensor] = scope["forward"]
    forward.__doc__ = "Apply it to input of any shape."
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    forward.__module__ = cls.__module__
    return forward


class ReLU(_Activation, function=F.relu):
    """`max(x, 0)`, elementwise."""

    inplace: bool = False


class Sigmoid(_Activation, function=F.sigmoid):
    """`1 / (1 + exp(-x))`, elementwise."""


class Tanh(_Activation, function=F.tanh):
    """The hyperbolic tangent, elementwise."""


class GELU(_Activation, function=F.gelu):
    """`x` times the share of the normal distribution below it; `approximate` "none" or "tanh"."""

    approximate: str = "none"


class SiLU(_Activation, function=F.silu):
    """`x * sigmoid(x)`, elementwise."""

    inplace: bool = False


class Mish(_Activation, function=F.mish):
    """`x * tanh(softplus(x))`, elementwise."""

    inplace: bool = False


class Softplus(_Activation, function=F.softplus):
    """`log(1 + exp(beta * x)) / beta`, elementwise; `x` where `beta * x > threshold`."""

    beta: float = 1.0
    threshold: float = 20.0


class LogSigmoid(_Activation, function=F.logsigmoid):
    """`log(sigmoid(x))`, elementwise."""


class ELU(_Activation, function=F.elu):
    """`x` above 0, `alpha * (exp(x) - 1)` elsewhere."""

    alpha: float = 1.0
    inplace: bool = False


class SELU(_Activation, function=F.selu):
    """`ELU` with the two numbers that keep mean 0 and variance 1."""

    inplace: bool = False


class CELU(_Activation, function=F.celu):
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` elsewhere."""

    alpha: float = 1.0
    inplace: bool = False


class LeakyReLU(_Activation, function=F.leaky_relu):
    """`x` above 0, `negative_slope * x` elsewhere."""

    negative_slope: float = 0.01
    inplace: bool = False


class PReLU(Module):
    """`x` above 0, `weight * x` elsewhere, with a weight that is learned.

    Args:
        num_parameters: 1, or the number of channels, the size of dimension 1.
        init: the weight to start with.
        dtype: default float type if not given.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(full((num_parameters,), float(init), dtype=dtype))

    def reset_parameters(self) -> None:
        """Set the weight to `init` again."""
        self.weight.data.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Apply it to input of shape (batch, channels, ...), or of any shape for one weight."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """The number of weights."""
        return f"num_parameters={self.num_parameters}"


class Threshold(_Activation, function=F.threshold):
    """`x` above `threshold`, `value` elsewhere."""

    threshold: float
    value: float
    inplace: bool = False


class Hardtanh(_Activation, function=F.hardtanh):
    """`x` limited to [min_val, max_val]."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class ReLU6(_Activation, function=F.relu6):
    """`x` limited to [0, 6]."""

    inplace: bool = False


class Hardsigmoid(_Activation, function=F.hardsigmoid):
    """`relu6(x + 3) / 6`, elementwise."""

    inplace: bool = False


class Hardswish(_Activation, function=F.hardswish):
    """`x * relu6(x + 3) / 6`, elementwise."""

    inplace: bool = False


class Softsign(_Activation, function=F.softsign):
    """`x / (1 + |x|)`, elementwise."""


class Tanhshrink(_Activation, function=F.tanhshrink):
    """`x - tanh(x)`, elementwise."""


class Softmax(_Activation, function=F.softmax):
    """Numbers that add up to 1 along `dim`, which must be given."""

    dim: int


class LogSoftmax(_Activation, function=F.log_softmax):
    """The logarithm of `Softmax`."""

    dim: int


class Softmin(_Activation, function=F.softmin):
    """`Softmax` of `-x`."""

    dim: int


class GLU(_Activation, function=F.glu):
    """The first half along `dim` times the sigmoid of the second half."""

    dim: int = -1
