"""Normalization: values less their mean, divided by their spread, over some of the dimensions.

Layer, batch, group and RMS norm are one operation; they differ in the shape of their statistics.
Also vectors brought to length 1, and how alike two vectors are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backend import MODES, XP, float16, float32
from ...tensor import TENSORS, Tensor
from ..arguments import want_float, want_shape, want_tensors
from ..coercion import cast
from ..fronts import Positive, T, need, public
from ..pointwise.elementwise import clamp, clone, mul, where, zeros_like
from ..pointwise.special import rsqrt
from ..reduce.norms import norm, norm_of_at_least
from ..reduce.reductions import sum
from ..registry import primitive
from ..shape.shapes import _sum_to, reshape_to, sum_to
from .pooling import window_sum
from .windows import constant_pad

__all__ = ["cosine_similarity", "pairwise_distance"]


def _count(shape: tuple[int, ...], of: tuple[int, ...]) -> int:
    """How many elements of an array of `shape` share one statistic."""
    return (math.prod(shape) // (math.prod(of) or 1)) or 1


def _standardized(xp, x, shape, eps, center, stats=None):
    """The normalized values, 1 / standard deviation, and memory of their size to work in."""
    n = xp.constant(_count(x.shape, shape), x.dtype)
    mean = xp.divide(_sum_to(xp, x, shape=shape), n) if center else None
    values = xp.subtract(x, mean) if center else x
    work = xp.multiply(values, values)
    variance = xp.divide(_sum_to(xp, work, shape=shape), n)
    if stats is not None:
        stats += mean, variance
    scale = xp.reciprocal(xp.sqrt(xp.add(variance, xp.constant(eps, x.dtype))))
    return xp.multiply(values, scale, out=values if center else None), scale, work


def _backward_normal(g, x, normal, scale, shape):
    n, g = _count(normal.shape, shape), g * scale
    return -(g * (sum_to(x * normal, shape) / n) + x * (sum_to(g * normal, shape) / n))


@primitive(
    "standardize_backward",
    x=lambda g, normal, scale, shape, center: standardize_backward(g, normal, scale, shape, center),
    normal=_backward_normal,
    scale=lambda g, result, scale: g * (result / scale),
)
def standardize_backward(xp, x, normal, scale, *, shape, center=True):
    """`x` without its parts along a constant and along `normal`, times `scale`."""
    n = xp.constant(_count(normal.shape, shape), normal.dtype)
    work = xp.multiply(x, normal)
    along = xp.divide(_sum_to(xp, work, shape=shape), n)
    xp.subtract(x, xp.multiply(normal, along, out=work), out=work)
    if center:
        xp.subtract(work, xp.divide(_sum_to(xp, x, shape=shape), n), out=work)
    return xp.multiply(work, scale, out=work)


@primitive(
    "inverse_std",
    input=lambda g, input, result, shape, eps, center: (
        standardize(input, None, None, shape, eps, center)
        * (g * (result * result) * (-1 / _count(input.shape, shape)))
    ),
)
def inverse_std(xp, input, *, shape, eps, center=True):
    """1 / the standard deviation (or, with no center, the root of the mean square)."""
    return _standardized(xp, input, shape, eps, center)[1]


@primitive(
    "standardize",
    input=lambda g, weight, normal, scale, shape, center: standardize_backward(
        g if weight is None else g * weight, normal, scale, shape, center
    ),
    weight=lambda g, normal: g * normal,
    bias=lambda g: g,
    extras=("normal", "scale"),
    recompute={
        "normal": lambda input, shape, eps, center: standardize(
            input, None, None, shape, eps, center
        ),
        "scale": lambda input, shape, eps, center: inverse_std(input, shape, eps, center),
    },
    node_name="native_norm",
)
def standardize(xp, input, weight=None, bias=None, *, shape=(), eps=1e-5, center=True, stats=None):
    """`(input - mean) / sqrt(variance + eps) * weight + bias`.

    The statistics have the shape `shape`, with size 1 where they are taken over a dimension;
    without `center` the mean counts as 0. A list `stats` is given the mean and the variance.
    """
    normal, scale, work = _standardized(xp, input, shape, eps, center, stats)
    if weight is None:
        xp.copyto(work, normal)
    else:
        work = xp.multiply(normal, weight, out=work)
    if bias is not None:
        work = xp.add(work, bias, out=work)
    return work, normal, scale


# The arguments ------------------------------------------------------------------------------------


def _check(name: str, input: Any, shape: tuple[int, ...], **others: Any) -> None:
    """TypeError or RuntimeError unless every one of `others` is None or fits `input`."""
    want_float(name, input)
    for what, value in others.items():
        if value is None:
            continue
        want_tensors(name, True, **{what: value})
        want_shape(name, what, value, shape)
        allowed = (float16, float32) if input.dtype == float16 else (input.dtype,)
        text = "mixed dtype: input and {} must have the same dtype, got {} and {}"
        need(value.dtype in allowed, name, text, what, input.dtype, value.dtype)


def _apply(input: Any, weight: Any, bias: Any, *attributes: Any) -> Any:
    """`standardize`; half precision is computed in single, as in PyTorch."""
    if input.dtype != float16:
        return standardize(input, weight, bias, *attributes)
    wide = [None if x is None else cast(x, float32) for x in (input, weight, bias)]
    return cast(standardize(*wide, *attributes), float16)


def _trailing(name: str, input: Any, normalized_shape: Any) -> tuple[int, ...]:
    """The shape of the statistics; errors unless `input` ends in `normalized_shape`."""
    text = "normalized_shape must be a tuple of ints"
    listed = isinstance(normalized_shape, tuple | list)
    need(listed, name, text, type(normalized_shape), error=TypeError)
    k = len(normalized_shape)
    fits = k and input.shape[-k:] == tuple(normalized_shape)
    need(fits, name, "expected an input that ends in {}, got {}", list(normalized_shape), input)
    return (*input.shape[:-k], *(1,) * k)


# The layers ---------------------------------------------------------------------------------------


@public
def layer_norm(
    input: T, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Every sample less its mean, divided by its standard deviation: Ba et al., 2016.

    Args:
        input: (..., *normalized_shape), of a float dtype.
        normalized_shape: the last dimensions, over which mean and (biased) variance are taken.
        weight, bias: of shape `normalized_shape`, or None: multiplied and added afterwards.
        eps: added to the variance.

    Raises TypeError for a shape that is not a tuple, RuntimeError for shapes or dtypes that do not
    fit and for integers.
    """
    shape = _trailing("layer_norm", input, normalized_shape)
    _check("layer_norm", input, tuple(normalized_shape), weight=weight, bias=bias)
    return _apply(input, weight, bias, shape, eps)


@public
def rms_norm(
    input: T, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Tensor:
    """Every sample divided by the root of its mean square: Zhang and Sennrich, 2019.

    Args:
        input: (..., *normalized_shape), of a float dtype.
        normalized_shape: the last dimensions, over which the mean is taken.
        weight: of shape `normalized_shape`, or None: multiplied afterwards.
        eps: added to the mean square; None is the distance from 1 to the next float.

    Raises what `layer_norm` raises.
    """
    shape = _trailing("rms_norm", input, normalized_shape)
    _check("rms_norm", input, tuple(normalized_shape), weight=weight)
    if eps is None:
        eps = float(np.finfo(float32 if input.dtype == float16 else input.dtype).eps)
    return _apply(input, weight, None, shape, eps, False)


def _channels(name: str, input: Any, least: int = 2) -> int:
    need(input.ndim >= least, name, f"expected (n, channels, ...), at least {least}-d", input)
    return int(input.shape[1])


@public
def group_norm(
    input: T, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Groups of channels, each less its mean and divided by its standard deviation.

    Wu and He, 2018. With one group it is layer norm without a per-element weight, with a group per
    channel instance norm.

    Args:
        input: (n, channels, ...), of a float dtype.
        num_groups: a divisor of the number of channels.
        weight, bias: (channels,), or None.
        eps: added to the variance.

    Raises RuntimeError for shapes or dtypes that do not fit and for integers, ValueError where
    every group is a single value.
    """
    channels = _channels("group_norm", input)
    text = f"expected the channels of {{}} to be divisible by num_groups={num_groups}"
    need(num_groups > 0 and not channels % num_groups, "group_norm", text, input)
    _check("group_norm", input, (channels,), weight=weight, bias=bias)
    n, each = input.shape[0], channels // num_groups
    grouped = (n, num_groups, each, math.prod(input.shape[2:]))
    several = n * each * grouped[3] != 1
    need(several, "group_norm", "a group of {} is one value only", input, error=ValueError)
    weight, bias = (
        x if x is None else reshape_to(x, (num_groups, each, 1)) for x in (weight, bias)
    )
    result = _apply(reshape_to(input, grouped), weight, bias, (n, num_groups, 1, 1), eps)
    return reshape_to(result, input.shape)


@public
def instance_norm(
    input: T, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Every channel of every sample less its mean, divided by its standard deviation.

    Args:
        input: (n, channels, ...), of a float dtype.
        running_mean, running_var, use_input_stats, momentum: running statistics, which are not
            supported: leave them as they are.
        weight, bias: (channels,), or None.
        eps: added to the variance.

    Raises RuntimeError for shapes or dtypes that do not fit and for integers, ValueError for one
    value per channel and for running statistics.
    """
    plain = running_mean is None and running_var is None and use_input_stats
    text = "running statistics are not supported; leave them out"
    need(plain, "instance_norm", text, error=ValueError)
    channels = _channels("instance_norm", input)
    several = math.prod(input.shape[2:]) != 1
    text = "expected more than 1 spatial element"
    need(several, "instance_norm", text, input, error=ValueError)
    return group_norm(input, channels or 1, weight, bias, eps)


def check_batch(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, eps: float,
    training: bool,
) -> int:  # fmt: skip
    """How many channels `input` has; raises as `batch_norm` for what does not go with it."""
    channels = _channels("batch_norm", input)
    word = "positive during training" if training else "non-negative"
    fits = eps > 0 or (eps == 0 and not training)
    need(fits, "batch_norm eps", f"must be {word}, but got {{}}", eps, error=ValueError)
    both = (running_mean is None) == (running_var is None)
    text = "running_mean and running_var go together: both or neither"
    need(both, "batch_norm", text, error=ValueError)
    running = {"running_mean": running_mean, "running_var": running_var}
    _check("batch_norm", input, (channels,), **running, weight=weight, bias=bias)
    return channels


@public
def batch_norm(
    input: T, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Every channel less its mean over the batch, divided by its standard deviation.

    Ioffe and Szegedy, 2015.

    Args:
        input: (n, channels, ...), of a float dtype.
        running_mean, running_var: (channels,), or both None. In training they are moved towards the
            mean and the unbiased variance of the batch, otherwise they are used instead.
        weight, bias: (channels,), or None.
        training: whether to use the batch's own statistics.
        momentum: how far the running statistics move, from 0 to 1; a number, or a float64 Tensor.
        eps: added to the variance; more than 0 in training.

    Raises ValueError for one value per channel in training, for a negative `eps` and for one
    running statistic without the other, RuntimeError for shapes or dtypes that do not fit, for
    integers, and for missing running statistics in evaluation.
    """
    channels = check_batch(input, running_mean, running_var, weight, bias, eps, training)
    spatial = (1,) * (input.ndim - 2)
    if spatial:
        weight, bias = (
            x if x is None else reshape_to(x, (channels, *spatial)) for x in (weight, bias)
        )
    if not training:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    count = input.shape[0] * math.prod(input.shape[2:])
    text = "expected more than 1 value per channel when training"
    need(count != 1, "batch_norm", text, input, error=ValueError)
    stats: list[Any] | None = None if running_mean is None or not count else []
    result = _apply(input, weight, bias, (1, channels, *spatial), eps, True, stats)
    if stats:
        _track((running_mean, running_var), stats, momentum, count)
    return result


def _with_running(input: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Batch norm with given statistics, which have no gradient."""
    need(mean is not None, "batch_norm", "running_mean must be defined in evaluation mode")
    dtype = input.dtype
    if dtype == float16:
        input, mean, var = (cast(x, float32) for x in (input, mean, var))
    shape = (input.shape[1], *(1,) * (input.ndim - 2))
    mean, var = (reshape_to(x.detach(), shape) for x in (mean, var))
    scale = rsqrt(var + eps)
    result = (input - mean) * (scale if weight is None else scale * weight)
    return cast(result if bias is None else result + bias, dtype)


def _track(running: tuple[Any, Any], stats: list[Any], momentum: Any, count: int) -> None:
    """Move the running mean and variance towards `stats`, those of `count` values."""
    factors = momentum, momentum * count / (count - 1)
    for old, new, factor in zip(running, stats, factors, strict=True):
        array = old._array
        xp = XP[type(array)]
        keep = 1 - momentum
        if type(momentum) in TENSORS:
            keep, factor = (cast(x, old.dtype)._array for x in (keep, factor))
        xp.multiply(array, keep, out=array)
        xp.add(array, xp.multiply(xp.reshape(new, array.shape), factor), out=array)
        old.version.n += 1


@public
def local_response_norm(
    input: T, size: Positive, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Every element divided by a power of the mean square of `size` channels around its own.

    `input / (k + alpha * mean) ** beta`, where channels outside count as 0: A. Krizhevsky et al.,
    "ImageNet classification with deep convolutional neural networks", 2012.

    Raises ValueError for fewer than three dimensions, RuntimeError for a size below 1.
    """
    text = "expected at least 3 dimensions"
    need(input.ndim > 2, "local_response_norm", text, input, error=ValueError)
    if not math.prod(input.shape):
        return clone(input)
    n, channels, *sizes = input.shape
    wide = cast(input, float32) if input.dtype == float16 else input
    lines = reshape_to(mul(wide, wide), (n, channels, math.prod(sizes)))
    lines = constant_pad(lines, ((size // 2, (size - 1) // 2), (0, 0)))
    total = window_sum(reshape_to(lines, (n, 1, *lines.shape[1:])), (size, 1), (1, 1))
    found = wide / (reshape_to(total, input.shape) * (alpha / size) + k) ** beta
    return cast(found, input.dtype)


# Lengths and angles -------------------------------------------------------------------------------


@public
def normalize(input: T, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """`input` divided by its p-norm along `dim`, or by `eps` where that is larger.

    Raises RuntimeError for integers, IndexError for a dimension out of range.
    """
    return input / norm_of_at_least(input, p, dim, eps)


@public
def cosine_similarity(x1: T, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between two vectors along `dim`: their product over their lengths.

    Args:
        x1, x2: Tensors of a float dtype, broadcast.
        dim: the dimension of the vectors.
        eps: the least length that a vector counts with.

    Raises RuntimeError for integers, IndexError for a dimension out of range.
    """
    if x1.shape != x2.shape:  # a vector may be longer than it was
        x1, x2 = x1 + zeros_like(x2), x2 + zeros_like(x1)
    return sum(_unit(x1, dim, eps) * _unit(x2, dim, eps), dim)


def _unit(x: Any, dim: int, eps: float) -> Any:
    x = reshape_to(x, x.shape)  # gradients add up here, whether or not a division follows
    length = norm(x, 2, dim, True)
    known = type(length._array) is np.ndarray and not MODES.capture.on
    if x.numel() and not (known and np.isfinite(length._array).all()):
        # Of vectors whose squares overflow shorter ones.
        size = norm(x.detach(), math.inf, dim, True)
        x = x / where(size > math.sqrt(float(np.finfo(x.dtype).max)) / 1e4, size, 1)
        length = norm(x, 2, dim, True)
    # As PyTorch: the gradient takes no notice of the limit.
    return x / (length + (clamp(length.detach(), min=eps) - length.detach()))


@public
def pairwise_distance(
    x1: T, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of `x1 - x2 + eps` along the last dimension."""
    return norm(x1 - x2 + eps, p, -1, keepdim)
