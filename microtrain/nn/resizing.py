"""Layers that give images a border or another size, or Tensors another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..common.missing_names import namespace
from ..errors import need
from ..ops.arguments import numbers
from ..ops.shape.shapes import flatten
from ..tensor import Tensor
from . import functional as F
from .applied import Applied, Family
from .module import Module


class Upsample(Applied, function=F.interpolate):
    """Signals, images or volumes of another size; see `functional.interpolate`.

    Args:
        size: of the result, an int or one for each size.
        scale_factor: how many times larger it is instead, a number or one for each size.
        mode: "nearest", "linear", "bilinear", "trilinear", "bicubic" ...
        align_corners: whether the first and last elements keep their place.
        recompute_scale_factor: whether to go by the size that results, rather than by the factor.

    Example:
        >>> mt.nn.Upsample(scale_factor=2, mode="bilinear")(mt.zeros(1, 3, 8, 8)).shape
        (1, 3, 16, 16)
    """

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def __post_init__(self) -> None:
        self.name, factor = type(self).__name__, self.scale_factor
        if factor is not None:
            several = isinstance(factor, tuple | list)
            self.scale_factor = tuple(map(float, factor)) if several else float(factor)

    def extra_repr(self) -> str:
        """The size or the factor, and the mode."""
        given = "size" if self.scale_factor is None else "scale_factor"
        return f"{given}={getattr(self, given)}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images of another size, of the nearest pixels: `Upsample` with mode "nearest"."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Images of another size: `Upsample` with mode "bilinear" and aligned corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Applied, function=F.pixel_shuffle):
    """Channels as pixels, (..., C r², H, W) to (..., C, H r, W r); `functional.pixel_shuffle`.

    Example:
        >>> mt.nn.PixelShuffle(2)(mt.zeros(1, 12, 8, 8)).shape
        (1, 3, 16, 16)
    """

    upscale_factor: int


class PixelUnshuffle(Applied, function=F.pixel_unshuffle):
    """Pixels as channels: the reverse of `PixelShuffle`."""

    downscale_factor: int


class ChannelShuffle(Applied, function=F.channel_shuffle):
    """The channels of several groups dealt out anew; see `functional.channel_shuffle`."""

    groups: int


# Borders -----------------------------------------------------------------------------------------


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
        return F.pad(input, self.padding, self.mode, self.value)


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


# Other shapes, or nothing -------------------------------------------------------------------------


class Identity(Module):
    """Returns its input; takes any arguments and keeps none, to stand in for another module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return input."""
        return input


class Flatten(Applied, function=flatten):
    """Joins dimensions `start_dim` to `end_dim` into one: by default all but the batch.

    Example:
        >>> mt.nn.Flatten()(mt.zeros(2, 3, 4)).shape
        (2, 12)
    """

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(Module):
    """Splits dimension `dim` into dimensions of the sizes `unflattened_size`; one may be -1.

    Example:
        >>> mt.nn.Unflatten(1, (3, 4))(mt.zeros(2, 12)).shape
        (2, 3, 4)
    """

    _shown = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        listed, text = isinstance(unflattened_size, tuple | list), "a tuple of ints"
        text = f"unflattened_size must be {text}"
        need(listed, "Unflatten", text, type(unflattened_size), error=TypeError)
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """A view of input where its memory allows one; RuntimeError where the sizes do not fit."""
        return input.unflatten(self.dim, self.unflattened_size)


namespace(globals())
