"""Convolution layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from ..common.missing_names import namespace
from ..creation import empty
from ..errors import need
from ..ops.arguments import numbers
from ..tensor import Tensor
from . import functional as F
from . import init
from .applied import Family
from .parameter import Parameter

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Family):
    """Weight, bias and numbers of a convolution of `dims` dimensions."""

    dims: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]
    _shown = ("*in_channels", "*out_channels", "kernel_size", "stride")

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, dims = type(self).__name__, self.dims
        fits = groups > 0 and not in_channels % groups and not out_channels % groups
        text = "groups must be positive and divide the channels"
        need(fits, name, text, groups, in_channels, out_channels, error=ValueError)
        known = padding_mode in _MODES
        text = f"padding_mode must be one of {', '.join(_MODES)}"
        need(known, name, text, padding_mode, error=ValueError)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = numbers(name, "kernel_size", kernel_size, dims)
        self.stride = numbers(name, "stride", stride, dims)
        if isinstance(padding, str):
            known = padding in ("same", "valid")
            need(known, name, "padding must be 'same', 'valid' or ints", padding, error=ValueError)
            fits = padding == "valid" or max(self.stride) == 1
            text = "padding='same' is not supported for strided convolutions"
            need(fits, name, text, error=ValueError)
            self.padding: Any = padding
        else:
            self.padding = numbers(name, "padding", padding, dims)
        self.dilation = numbers(name, "dilation", dilation, dims)
        self.output_padding: tuple[int, ...] = (0,) * dims
        self.groups = groups
        self.padding_mode = padding_mode
        shape = self._weight_shape()
        kind: Any = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(*shape, *self.kernel_size, **kind))
        self.bias = Parameter(empty(out_channels, **kind)) if bias else None
        self.reset_parameters()

    def _weight_shape(self) -> tuple[int, int]:
        return self.out_channels, self.in_channels // self.groups

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, uniform in +-1/sqrt(fan in)."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        fan = init.fan_in(self.weight)
        if self.bias is not None and fan:
            init.uniform_(self.bias, -1 / math.sqrt(fan), 1 / math.sqrt(fan))

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to (N, channels, *sizes) or (channels, *sizes)."""
        padding = self.padding
        if self.padding_mode != "zeros" and padding != "valid":
            input = F.pad(input, self._border(), mode=self.padding_mode)
            padding = 0
        return self.function(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def _border(self) -> tuple[int, ...]:
        """The padding as `pad` takes it, last dimension first."""
        if self.padding == "same":
            spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            pairs = [(span // 2, span - span // 2) for span in spans]
        else:
            pairs = [(p, p) for p in self.padding]
        return tuple(p for pair in reversed(pairs) for p in pair)

    @property
    def _unless(self) -> dict[str, Any]:  # type: ignore[override]
        zeros, ones = (0,) * self.dims, (1,) * self.dims
        return {"padding": zeros, "dilation": ones, "output_padding": zeros, "groups": 1,
                "bias": True, "padding_mode": "zeros"}  # fmt: skip


class Conv1d(_Convolution, dims=1, function=F.conv1d):
    """The convolution of signals; see `Conv2d`. The weight is (out, in / groups, k)."""


class Conv2d(_Convolution, dims=2, function=F.conv2d):
    """The convolution of images: (N, in_channels, H, W) to (N, out_channels, H', W').

    Weight (out_channels, in_channels / groups, *kernel_size) and bias (out_channels,) start
    uniform in +-1/sqrt(in_channels / groups * kernel elements), as in PyTorch.

    Args:
        in_channels, out_channels: channels of input and output.
        kernel_size, stride, dilation: an int, or one for the height and one for the width.
        padding: likewise, or "same" or "valid".
        groups: parts that the channels are cut into, each with its own outputs.
        bias: False for a convolution without an added vector.
        padding_mode: what the border is: "zeros", or a mode of `functional.pad`: "reflect",
            "replicate", "circular".
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError for groups that do not divide the channels and for unknown names.

    Example:
        >>> mt.nn.Conv2d(1, 8, 3, padding=1)(mt.zeros(2, 1, 28, 28)).shape
        (2, 8, 28, 28)
    """


class Conv3d(_Convolution, dims=3, function=F.conv3d):
    """The convolution of volumes; see `Conv2d`. The weight is (out, in / groups, *kernel_size)."""


class _ConvTranspose(_Convolution):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, bias: bool = True,
        dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        text = "only the padding_mode 'zeros' is supported"
        need(padding_mode == "zeros", name, text, padding_mode, error=ValueError)
        padding = numbers(name, "padding", padding, self.dims)
        more = numbers(name, "output_padding", output_padding, self.dims)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.output_padding = more

    def _weight_shape(self) -> tuple[int, int]:
        return self.in_channels, self.out_channels // self.groups

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to (N, channels, *sizes) or (channels, *sizes)."""
        return self.function(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding,
            self.groups, self.dilation,
        )  # fmt: skip


class ConvTranspose1d(_ConvTranspose, dims=1, function=F.conv_transpose1d):
    """The transposed convolution of signals; see `functional.conv_transpose2d`."""


class ConvTranspose2d(_ConvTranspose, dims=2, function=F.conv_transpose2d):
    """The transposed convolution of images; see `functional.conv_transpose2d`.

    The weight is (in_channels, out_channels / groups, *kernel_size).
    """


class ConvTranspose3d(_ConvTranspose, dims=3, function=F.conv_transpose3d):
    """The transposed convolution of volumes; see `functional.conv_transpose2d`."""


namespace(globals())
