"""Pooling layers, and windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops.windows import numbers
from ..tensor import Tensor
from . import functional
from .module import Module

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AvgPool1d",
    "AvgPool2d", "Fold", "MaxPool1d", "MaxPool2d", "Unfold",
]  # fmt: skip


class _Pool(Module):
    """A function of windows; the arguments named in `shown` stand in its text."""

    function: Callable[..., Any]
    shown: tuple[str, ...] = ("kernel_size", "stride", "padding")

    def extra_repr(self) -> str:
        """The arguments."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)


class _MaxPool(_Pool):
    shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        """The maxima of (N, C, *sizes) or (C, *sizes)."""
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip


class MaxPool1d(_MaxPool):
    """The maximum of every window of a signal; see `functional.max_pool2d`."""

    function = functional.max_pool1d


class MaxPool2d(_MaxPool):
    """The maximum of every window of an image; see `functional.max_pool2d`.

    Example:
        >>> mt.nn.MaxPool2d(2)(mt.zeros(2, 8, 28, 28)).shape
        (2, 8, 14, 14)
    """

    function = functional.max_pool2d


class AvgPool1d(_Pool):
    """The average of every window of a signal; see `functional.avg_pool2d`."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = numbers("AvgPool1d", "kernel_size", kernel_size, 1)
        stride = self.kernel_size if stride is None else stride
        self.stride = numbers("AvgPool1d", "stride", stride, 1)
        self.padding = numbers("AvgPool1d", "padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """The averages of (N, C, L) or (C, L)."""
        return functional.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip


class AvgPool2d(_Pool):
    """The average of every window of an image; see `functional.avg_pool2d`."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """The averages of (N, C, H, W) or (C, H, W)."""
        return functional.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip


class _AdaptiveAvgPool(_Pool):
    shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """The averages of (N, C, *sizes) or (C, *sizes)."""
        found: Tensor = type(self).function(input, self.output_size)
        return found


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The averages of so many windows over a signal; see `functional.adaptive_avg_pool2d`."""

    function = functional.adaptive_avg_pool1d


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The averages of so many windows over an image; see `functional.adaptive_avg_pool2d`."""

    function = functional.adaptive_avg_pool2d


class _AdaptiveMaxPool(_Pool):
    shown = ("output_size",)

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """The maxima of (N, C, *sizes) or (C, *sizes)."""
        return type(self).function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The maxima of so many windows over a signal; see `functional.adaptive_avg_pool2d`."""

    function = functional.adaptive_max_pool1d


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The maxima of so many windows over an image; see `functional.adaptive_avg_pool2d`."""

    function = functional.adaptive_max_pool2d


class Unfold(_Pool):
    """All windows of images as columns; see `functional.unfold`."""

    shown = ("kernel_size", "dilation", "padding", "stride")

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Columns of (N, C, H, W) or (C, H, W)."""
        return functional.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Pool):
    """Columns added up to images; see `functional.fold`."""

    shown = ("output_size", *Unfold.shown)

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Images of (N, C * kernel elements, windows), or without N."""
        return functional.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )
