"""Pooling layers, and windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..common.missing_names import namespace
from ..ops.arguments import numbers
from ..tensor import Tensor
from . import functional as F
from .applied import Applied, Family


class _Pool(Applied):
    """A function of windows, whose stride is the size of the kernel if not given."""

    _shown: ClassVar[tuple[str, ...]] = ("kernel_size", "stride", "padding")
    kernel_size: Any
    stride: Any

    def __post_init__(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size


@dataclass(repr=False, eq=False)
class _MaxPool(_Pool):
    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False


class MaxPool1d(_MaxPool, function=F.max_pool1d):
    """The maximum of every window of a signal; see `functional.max_pool2d`."""


class MaxPool2d(_MaxPool, function=F.max_pool2d):
    """The maximum of every window of an image; see `functional.max_pool2d`.

    Example:
        >>> mt.nn.MaxPool2d(2)(mt.zeros(2, 8, 28, 28)).shape
        (2, 8, 14, 14)
    """


class MaxPool3d(_MaxPool, function=F.max_pool3d):
    """The maximum of every window of a volume; see `functional.max_pool2d`."""


@dataclass(repr=False, eq=False)
class _AvgPool(_Pool):
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True


class AvgPool1d(_AvgPool, function=F.avg_pool1d):
    """The average of every window of a signal; see `functional.avg_pool2d`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel_size", "stride", "padding"):
            setattr(self, name, numbers("AvgPool1d", name, getattr(self, name), 1))


class AvgPool2d(_AvgPool, function=F.avg_pool2d):
    """The average of every window of an image; see `functional.avg_pool2d`."""

    divisor_override: int | None = None


class AvgPool3d(_AvgPool, function=F.avg_pool3d):
    """The average of every window of a volume; see `functional.avg_pool2d`."""

    divisor_override: int | None = None


@dataclass(repr=False, eq=False)
class _Adaptive(Applied):
    _shown = ("output_size",)
    output_size: Any


@dataclass(repr=False, eq=False)
class _AdaptiveMax(_Adaptive):
    return_indices: bool = False


class AdaptiveAvgPool1d(_Adaptive, function=F.adaptive_avg_pool1d):
    """The averages of so many windows over a signal; see `functional.adaptive_avg_pool2d`."""


class AdaptiveAvgPool2d(_Adaptive, function=F.adaptive_avg_pool2d):
    """The averages of so many windows over an image; see `functional.adaptive_avg_pool2d`."""


class AdaptiveAvgPool3d(_Adaptive, function=F.adaptive_avg_pool3d):
    """The averages of so many windows over a volume; see `functional.adaptive_avg_pool2d`."""


class AdaptiveMaxPool1d(_AdaptiveMax, function=F.adaptive_max_pool1d):
    """The maxima of so many windows over a signal; see `functional.adaptive_avg_pool2d`."""


class AdaptiveMaxPool2d(_AdaptiveMax, function=F.adaptive_max_pool2d):
    """The maxima of so many windows over an image; see `functional.adaptive_avg_pool2d`."""


class AdaptiveMaxPool3d(_AdaptiveMax, function=F.adaptive_max_pool3d):
    """The maxima of so many windows over a volume; see `functional.adaptive_avg_pool2d`."""


class _MaxUnpool(Family):
    """Zeros with the maxima of a pool where they stood; see `functional.max_unpool2d`.

    Args:
        kernel_size, stride, padding: those of the pool.
    """

    dims: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]
    _shown = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = numbers(name, "kernel_size", kernel_size, self.dims)
        stride = kernel_size if stride is None else stride
        self.stride = numbers(name, "stride", stride, self.dims)
        self.padding = numbers(name, "padding", padding, self.dims)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """The maxima where `indices` says."""
        return self.function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )


class MaxUnpool1d(_MaxUnpool, dims=1, function=F.max_unpool1d):
    __doc__ = _MaxUnpool.__doc__


class MaxUnpool2d(_MaxUnpool, dims=2, function=F.max_unpool2d):
    __doc__ = _MaxUnpool.__doc__


class MaxUnpool3d(_MaxUnpool, dims=3, function=F.max_unpool3d):
    __doc__ = _MaxUnpool.__doc__


@dataclass(repr=False, eq=False)
class _LPPool(Applied):
    norm_type: float
    kernel_size: Any
    stride: Any = None
    ceil_mode: bool = False


class LPPool1d(_LPPool, function=F.lp_pool1d):
    """The p-norm of every window of a signal; see `functional.lp_pool2d`."""


class LPPool2d(_LPPool, function=F.lp_pool2d):
    """The p-norm of every window of an image; see `functional.lp_pool2d`."""


class LPPool3d(_LPPool, function=F.lp_pool3d):
    """The p-norm of every window of a volume; see `functional.lp_pool2d`."""


class Unfold(Applied, function=F.unfold):
    """All windows of images as columns; see `functional.unfold`."""

    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


class Fold(Applied, function=F.fold):
    """Columns added up to images; see `functional.fold`."""

    output_size: Any
    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


namespace(globals())
