"""Borders as layers."""

from __future__ import annotations

from typing import Any, ClassVar

from ..common.missing_names import namespace
from ..ops.arguments import numbers
from ..tensor import Tensor
from .applied import Family
from .functional import pad


class _Pad(Family):
    """A border around the last `dims` dimensions.

    Args:
        padding: an int for all sides, or two for each dimension, the last one first.
    """

    dims: ClassVar[int]
    mode: ClassVar[str] = "constant"
    value: float | None = None
    _shown: ClassVar[tuple[str, ...]] = ("*padding",)

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = numbers(type(self).__name__, "padding", padding, 2 * self.dims)

    def forward(self, input: Tensor) -> Tensor:
        """The input with its border."""
        return pad(input, self.padding, self.mode, self.value)


class ZeroPad1d(_Pad, dims=1):
    """Zeros around signals."""


class ZeroPad2d(_Pad, dims=2):
    """Zeros around images."""


class ZeroPad3d(_Pad, dims=3):
    """Zeros around volumes."""


class _ConstantPad(_Pad):
    _shown = ("padding", "value")

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad, dims=1):
    """A value around signals."""


class ConstantPad2d(_ConstantPad, dims=2):
    """A value around images."""


class ConstantPad3d(_ConstantPad, dims=3):
    """A value around volumes."""


class ReflectionPad1d(_Pad, dims=1, mode="reflect"):
    """Signals mirrored at their ends."""


class ReflectionPad2d(_Pad, dims=2, mode="reflect"):
    """Images mirrored at their edges."""


class ReflectionPad3d(_Pad, dims=3, mode="reflect"):
    """Volumes mirrored at their faces."""


class ReplicationPad1d(_Pad, dims=1, mode="replicate"):
    """The ends of signals repeated."""


class ReplicationPad2d(_Pad, dims=2, mode="replicate"):
    """The edges of images repeated."""


class ReplicationPad3d(_Pad, dims=3, mode="replicate"):
    """The faces of volumes repeated."""


class CircularPad1d(_Pad, dims=1, mode="circular"):
    """Signals wrapped around."""


class CircularPad2d(_Pad, dims=2, mode="circular"):
    """Images wrapped around."""


class CircularPad3d(_Pad, dims=3, mode="circular"):
    """Volumes wrapped around."""


namespace(globals())
