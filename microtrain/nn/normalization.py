"""Layers that normalize: by sample, batch, group or root mean square; distances."""

from __future__ import annotations

from typing import Any, ClassVar

from ..creation import empty, ones, tensor, zeros
from ..errors import need, wrong
from ..tensor import Tensor
from . import functional as F
from . import init
from .applied import Applied
from .module import Module
from .parameter import Parameter

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CosineSimilarity", "GroupNorm", "InstanceNorm1d",
    "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "LocalResponseNorm", "PairwiseDistance",
    "RMSNorm",
]  # fmt: skip


class _Norm(Module):
    """What the normalizations share: `weight` of ones and `bias` of zeros, or None."""

    weight: Parameter | None
    bias: Parameter | None

    def _make_affine(self, shape: Any, weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        kind: Any = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(shape, **kind)) if weight else None
        self.bias = Parameter(empty(shape, **kind)) if weight and bias else None

    def _make_trailing(self, shape: Any, eps: Any, affine: bool, bias: bool, *place: Any) -> None:
        """A norm over the last dimensions."""
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.elementwise_affine = affine
        self._make_affine(self.normalized_shape, affine, bias, *place)
        self.reset_parameters()

    def _make_channels(
        self, channels: int, eps: float, momentum: Any, affine: bool, tracked: bool, *rest: Any
    ) -> None:
        """For a norm of channels; `rest`: whether there is a bias, device and dtype."""
        self.num_features, self.eps, self.momentum = channels, eps, momentum
        self.affine, self.track_running_stats = affine, tracked
        self._make_affine((channels,), affine, *rest)

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Norm):
    """Every sample less its mean, divided by its standard deviation: Ba et al., 2016.

    Args:
        normalized_shape: the last dimensions of the input, or the last one as an int.
        eps: added to the variance.
        elementwise_affine: whether to multiply by a weight and add a bias of that shape.
        bias: False for a weight only.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Example:
        >>> mt.nn.LayerNorm(2)(mt.tensor([[1.0, 3.0], [10.0, 30.0]])).detach()
        tensor([[-1.0000,  1.0000],
                [-1.0000,  1.0000]])
    """

    _shown = ("*normalized_shape", "eps", "elementwise_affine", "bias")

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make_trailing(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize an input of shape (..., *normalized_shape)."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_Norm):
    """Every sample divided by the root of its mean square: Zhang and Sennrich, 2019.

    Args:
        normalized_shape: the last dimensions of the input, or the last one as an int.
        eps: added to the mean square; None is the distance from 1 to the next float.
        elementwise_affine: whether to multiply by a weight of that shape.
        device, dtype: of the parameters; None is the CPU, and the default float type.
    """

    _shown = ("*normalized_shape", "eps", "elementwise_affine")

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make_trailing(normalized_shape, eps, elementwise_affine, False, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize an input of shape (..., *normalized_shape)."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GroupNorm(_Norm):
    """Groups of channels, each less its mean and divided by its deviation: Wu and He, 2018.

    Args:
        num_groups: a divisor of `num_channels`.
        num_channels: the size of dimension 1 of the input.
        eps: added to the variance.
        affine: whether to multiply by a weight and add a bias per channel.
        bias: False for a weight only.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError where the channels are not divisible.
    """

    _shown = ("*num_groups", "*num_channels", "eps", "affine", "bias")

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        fits = not num_channels % num_groups
        text = "num_channels={} must be divisible by num_groups={}"
        need(fits, "GroupNorm", text, num_channels, num_groups, error=ValueError)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._make_affine((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize an input of shape (n, num_channels, ...)."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class BatchNorm(_Norm):
    """Every channel less its mean over the batch, divided by its standard deviation.

    Ioffe and Szegedy, 2015. In evaluation running statistics take the place of the batch's.

    Args:
        num_features: the number of channels, the size of dimension 1 of the input.
        eps: added to the variance.
        momentum: how far the running statistics move towards a batch's; None: they are the mean of
            all batches so far.
        affine: whether to multiply by a weight and add a bias per channel.
        track_running_stats: False for no running statistics: the batch's are always used.
        bias: False for a weight only.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Example:
        >>> norm = mt.nn.BatchNorm1d(2)
        >>> norm(mt.tensor([[1.0, 10.0], [3.0, 30.0]])).detach()
        tensor([[-1.0000, -1.0000],
                [ 1.0000,  1.0000]])
        >>> norm.running_mean
        tensor([0.2000, 2.0000])
    """

    _ndims: ClassVar[tuple[int, ...]] = ()
    _shown = ("*num_features", "eps", "momentum", "affine", "bias", "track_running_stats")
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    across: Any = None  # what DataParallel sets: batch norm in training, of the rows of all ranks

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        kept, rest = track_running_stats, (bias, device, dtype)
        self._make_channels(num_features, eps, momentum, affine, kept, *rest)
        kind: Any = {"device": device, "dtype": dtype}
        self.register_buffer("running_mean", zeros(num_features, **kind) if kept else None)
        self.register_buffer("running_var", ones(num_features, **kind) if kept else None)
        self.register_buffer("num_batches_tracked", tensor(0, device=device) if kept else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to ones, the bias to zeros, and reset the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running statistics to a mean of 0 and a variance of 1, of no batches."""
        for buffer in self.buffers():
            init.zeros_(buffer)
        if self.running_var is not None:
            init.ones_(self.running_var)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize an input of shape (n, num_features, ...)."""
        if input.ndim not in self._ndims:
            expected = " or ".join(f"{n}D" for n in self._ndims)
            raise wrong(type(self).__name__, f"expected {expected} input", input, error=ValueError)
        momentum: Any = self.momentum
        tracked = self.num_batches_tracked
        running = self.running_mean, self.running_var
        if self.training:
            if not self.track_running_stats or tracked is None:
                running = None, None
            else:
                tracked.add_(1)
                if momentum is None:  # a Tensor: the count is not looked at
                    momentum = 1 / tracked.double()
        momentum = 0.0 if momentum is None else momentum
        if self.training and self.across is not None:
            return self.across(input, *running, self.weight, self.bias, momentum, self.eps)
        use_batch = self.training or running[0] is None
        return F.batch_norm(input, *running, self.weight, self.bias, use_batch, momentum, self.eps)


class BatchNorm1d(BatchNorm):
    __doc__ = f"Input (n, channels) or (n, channels, length). {BatchNorm.__doc__}"
    _ndims = (2, 3)


class BatchNorm2d(BatchNorm):
    __doc__ = f"Input (n, channels, height, width). {BatchNorm.__doc__}"
    _ndims = (4,)


class BatchNorm3d(BatchNorm):
    __doc__ = f"Input (n, channels, depth, height, width). {BatchNorm.__doc__}"
    _ndims = (5,)


class _InstanceNorm(_Norm):
    """Every channel of every sample less its mean, divided by its standard deviation.

    Ulyanov et al., "Instance normalization", 2016.

    Args:
        num_features: the number of channels.
        eps: added to the variance.
        momentum: of running statistics, which are not supported.
        affine: whether to multiply by a weight and add a bias per channel.
        track_running_stats: only False.
        bias: False for a weight only.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError for running statistics, another number of channels or dimensions.
    """

    _dims: ClassVar[int]
    _shown = ("*num_features", "eps", "momentum", "affine", "bias", "track_running_stats")

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        name, text = type(self).__name__, "track_running_stats=True is not supported; leave it out"
        need(not track_running_stats, name, text, error=ValueError)
        self._make_channels(num_features, eps, momentum, affine, False, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize an input of shape (n, num_features, *sizes) or (num_features, *sizes)."""
        single, name = input.ndim == self._dims + 1, type(self).__name__
        fits = single or input.ndim == self._dims + 2
        text = f"expected {self._dims + 1}D or {self._dims + 2}D input"
        need(fits, name, text, input, error=ValueError)
        fits = input.shape[0 if single else 1] == self.num_features
        need(fits, name, f"expected {self.num_features} channels", input, error=ValueError)
        batch = input.unsqueeze(0) if single else input
        found = F.instance_norm(batch, weight=self.weight, bias=self.bias, eps=self.eps)
        return found.squeeze(0) if single else found


class InstanceNorm1d(_InstanceNorm):
    __doc__ = f"Input (n, channels, length). {_InstanceNorm.__doc__}"
    _dims = 1


class InstanceNorm2d(_InstanceNorm):
    __doc__ = f"Input (n, channels, height, width). {_InstanceNorm.__doc__}"
    _dims = 2


class InstanceNorm3d(_InstanceNorm):
    __doc__ = f"Input (n, channels, depth, height, width). {_InstanceNorm.__doc__}"
    _dims = 3


class LocalResponseNorm(Applied, function=F.local_response_norm):
    """Elements divided by the squares of neighbors; see `functional.local_response_norm`."""

    _shown = ("*size", "alpha", "beta", "k")
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


class PairwiseDistance(Applied, function=F.pairwise_distance):
    """The p-norm of the difference of vectors; see `functional.pairwise_distance`."""

    _inputs = "x1, x2"
    _shown = ()
    p: float = 2.0
    eps: float = 1e-6
    keepdim: bool = False


class CosineSimilarity(Applied, function=F.cosine_similarity):
    """The cosine of the angle between vectors along `dim`, of a length of at least `eps`."""

    _inputs = "x1, x2"
    _shown = ()
    dim: int = 1
    eps: float = 1e-8
