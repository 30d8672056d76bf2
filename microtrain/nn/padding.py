"""Borders as layers."""

from __future__ import annotations

from typing import Any, ClassVar

from ..ops.arguments import numbers
from ..tensor import Tensor
from .functional import pad
from .module import Module

__all__ = [
    "CircularPad1d", "CircularPad2d", "ConstantPad1d", "ConstantPad2d", "ReflectionPad1d",
    "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "ZeroPad1d", "ZeroPad2d",
]  # fmt: skip


class _Pad(Module):
    """A border around the last `dims` dimensions.

    Args:
        padding: an int for all sides, or two for each dimension, the last one first.
    """

    dims: ClassVar[int]
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = numbers(type(self).__name__, "padding", padding, 2 * self.dims)

    def forward(self, input: Tensor) -> Tensor:
        """The input with its border."""
        return pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        """The sides."""
        return f"{self.padding}"


class ZeroPad1d(_Pad):
    """Zeros around signals."""

    dims = 1


class ZeroPad2d(_Pad):
    """Zeros around images."""

    dims = 2


class _ConstantPad(_Pad):
    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        """The sides and the value."""
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """A value around signals."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """A value around images."""

    dims = 2


class ReflectionPad1d(ZeroPad1d):
    """Signals mirrored at their ends."""

    mode = "reflect"


class ReflectionPad2d(ZeroPad2d):
    """Images mirrored at their edges."""

    mode = "reflect"


class ReplicationPad1d(ZeroPad1d):
    """The ends of signals repeated."""

    mode = "replicate"


class ReplicationPad2d(ZeroPad2d):
    """The edges of images repeated."""

    mode = "replicate"


class CircularPad1d(ZeroPad1d):
    """Signals wrapped around."""

    mode = "circular"


class CircularPad2d(ZeroPad2d):
    """Images wrapped around."""

    mode = "circular"
