"""Images of another size: interpolation, and pixels moved between space and channels.

Interpolation goes through the dimensions one after the other. Along one of them every result is a
weighted sum of few elements (taps), and the gradient of that is such a sum as well.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from ...backend import float16, float32
from ...tensor import Tensor
from ..arguments import numbers, want_float
from ..coercion import cast
from ..fronts import Int, T, need, one_of, public, wrong
from ..registry import primitive
from ..shape.shapes import permute_dims, reshape_to
from . import pooling

__all__ = ["channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample"]

Rows = tuple[tuple[Any, ...], ...]  # of every tap one number for each result


@lru_cache(maxsize=256)
def _turned(taps: Rows, weights: Rows | None, size: int) -> tuple[Rows, Rows]:
    """The taps and weights of the gradient, which has `size` elements along the dimension."""
    places: Any = np.asarray(taps)
    factors = np.ones(places.shape) if weights is None else np.asarray(weights)
    order = np.argsort(places, axis=None, kind="stable")
    element = places.reshape(-1)[order]
    number = np.arange(len(order)) - np.searchsorted(element, element)  # among those of its element
    shape = (int(number.max(initial=0)) + 1, size)
    results, weight = np.zeros(shape, np.int64), np.zeros(shape)
    results[number, element] = order % places.shape[1]
    weight[number, element] = factors.reshape(-1)[order]
    spare = np.arange(shape[0])[:, None] > 0
    results = np.where(spare & (weight == 0), results[0], results)  # no other result's NaN
    return _rows(results), _rows(weight)


def _rows(table: Any) -> Rows:
    return tuple(map(tuple, table.tolist()))


@primitive(
    "resample",
    x=lambda g, x_shape, dim, taps, weights: resample(
        g, dim, *_turned(taps, weights, x_shape[dim])
    ),
    node_name="upsample",
)
def resample(xp, x, *, dim, taps, weights=None):
    """Elements of `x` along `dim`: of each tap one for each result, weighted and added up."""
    places = xp.asarray(taps)
    found = xp.take(x, places, axis=dim)
    if weights is not None:
        shape = (*places.shape, *(1,) * (len(x.shape) - dim - 1))
        factors = xp.reshape(xp.asarray(weights, x.dtype), shape)
        found = xp.multiply(found, factors, out=found)
    return xp.sum(found, axis=dim, dtype=x.dtype)


# Where elements come from -------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _taps(
    mode: str, size: int, found: int, align: bool, factor: float | None
) -> tuple[Rows, Rows | None]:
    """The elements of `size`, and their weights, that `found` results are made of.

    `factor` is how many times larger a result is meant to be, None for found / size.
    """
    at: Any = np.arange(found)
    if mode.startswith("nearest"):  # in single precision, as PyTorch counts
        step = float32.type(1 / factor if factor else size / found)
        at = (at.astype(float32) + float32.type(0.5 * (mode == "nearest-exact"))) * step
        return _rows(np.minimum(np.floor(at).astype(np.int64), size - 1)[None]), None
    if align:
        place = at * ((size - 1) / (found - 1) if found > 1 else 0.0)
    else:
        place = (at + 0.5) * (1 / factor if factor else size / found) - 0.5
    if mode != "bicubic":
        place = np.maximum(place, 0)
        low = np.minimum(np.floor(place), size - 1)
        part = place - low if size > 1 else np.zeros(found)
        part = np.clip(part, 0, 1)
        taps, weights = (low, low + 1), (1 - part, part)
    else:
        low = np.floor(place)
        part = place - low
        taps = tuple(low + i for i in (-1, 0, 1, 2))
        weights = tuple(_cubic(np.abs(part - i)) for i in (-1, 0, 1, 2))
    return _rows(np.clip(taps, 0, size - 1).astype(np.int64)), _rows(np.asarray(weights))


def _cubic(x: Any, a: float = -0.75) -> Any:
    """The kernel of cubic convolution: Keys, 1981, equation 15 for any a."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x <= 1, near, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


# What users call ----------------------------------------------------------------------------------

_DIMS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # None: any
_PLAIN = ("nearest", "nearest-exact", "area")


@public
def interpolate(
    input: T, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: Annotated[bool, one_of(False)] = False,
) -> Tensor:  # fmt: skip
    """Signals, images or volumes of another size.

    Args:
        input: (N, C, *sizes), with one to three sizes; of a float dtype, or for the nearest
            elements of any.
        size: of the result, an int or one for each size.
        scale_factor: how many times larger it is instead, a number or one for each size.
        mode: "nearest", "nearest-exact" (the nearest to the middle of a pixel), "area" (averages),
            "linear", "bilinear" and "trilinear" for one, two and three sizes, "bicubic" for two
            (R. Keys, "Cubic convolution interpolation for digital image processing", 1981, with
            a = -0.75).
        align_corners: whether the first and last elements keep their place, for linear and cubic
            modes; else the edges of the pixels do.
        recompute_scale_factor: whether to go by the size that results, rather than by the factor.
        antialias: only False.

    Raises ValueError for a size and a factor, none of them or another number of them,
    NotImplementedError for a mode that does not go with the number of dimensions, RuntimeError for
    integers and sizes below 1.

    Example:
        >>> mt.nn.functional.interpolate(mt.tensor([[[1.0, 2.0]]]), scale_factor=2)
        tensor([[[1., 1., 2., 2.]]])
    """
    dims = input.ndim - 2
    if not 1 <= dims <= 3 or mode not in (*_PLAIN, *_DIMS) or _DIMS.get(mode, dims) != dims:
        known = ", ".join(m for m in (*_PLAIN, *_DIMS) if _DIMS.get(m, dims) == dims)
        known = known if 1 <= dims <= 3 else "one to three sizes"
        text = f"no mode {{}} for {{}}; it takes {known}"
        raise wrong("interpolate", text, mode, input, error=NotImplementedError)
    plain = mode not in _PLAIN or align_corners is None
    text = "align_corners has no meaning for mode {}"
    need(plain, "interpolate", text, mode, error=ValueError)
    found, factors = _sizes(input, dims, size, scale_factor, recompute_scale_factor)
    fits = min(found) > 0 and 0 not in input.shape[1:]
    need(fits, "interpolate", "input and output sizes must be at least 1", input, found)
    if mode == "area":
        pools = (pooling.adaptive_avg_pool1d, pooling.adaptive_avg_pool2d)
        return (*pools, pooling.adaptive_avg_pool3d)[dims - 1](input, found)
    if not mode.startswith("nearest"):
        want_float("interpolate", input)
    half = input.dtype == float16
    result = cast(input, float32) if half else input
    for dim in range(dims):
        one = _taps(mode, input.shape[dim + 2], found[dim], bool(align_corners), factors[dim])
        result = resample(result, dim + 2, *one)
    return cast(result, float16) if half else result


def _sizes(
    input: Any, dims: int, size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The sizes of the result, and the factors to go by, None where the sizes say it."""
    one = (size is None) != (scale_factor is None)
    need(one, "interpolate", "expected either size or scale_factor", error=ValueError)
    given = scale_factor if size is None else size
    many = tuple(given) if isinstance(given, tuple | list) else (given,) * dims
    text = f"expected one number or {dims} for an input of {{}}, got {{}}"
    need(len(many) == dims, "interpolate", text, input, given, error=ValueError)
    if size is not None:
        text = "recompute_scale_factor has no meaning beside a size"
        need(not recompute, "interpolate", text, error=ValueError)
        return numbers("interpolate", "size", many, dims), (None,) * dims
    found = tuple(math.floor(n * f) for n, f in zip(input.shape[2:], many, strict=True))
    return found, (None,) * dims if recompute else tuple(map(float, many))


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


# Pixels and channels ------------------------------------------------------------------------------


def _check_shuffle(name: str, what: str, input: Any, factor: int, least: int = 3) -> None:
    fits = input.ndim >= least and factor > 0
    text = f"expected an input of at least {least} dimensions and {what} of at least 1"
    need(fits, name, text, input, factor)


@public
def pixel_shuffle(input: T, upscale_factor: Int) -> Tensor:
    """Channels as pixels: (..., C r², H, W) to (..., C, H r, W r).

    W. Shi et al., "Real-time single image and video super-resolution using an efficient sub-pixel
    convolutional neural network", 2016. Raises RuntimeError for channels that are no multiple of
    the square of the factor r, and fewer than three dimensions.
    """
    r = upscale_factor
    _check_shuffle("pixel_shuffle", "upscale_factor", input, r)
    *lead, channels, height, width = input.shape
    text = f"the channels must be a multiple of {r}² = {r * r}"
    need(not channels % (r * r), "pixel_shuffle", text, input)
    parts = reshape_to(input, (*lead, channels // (r * r), r, r, height, width))
    n = len(lead)
    parts = permute_dims(parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape_to(parts, (*lead, channels // (r * r), height * r, width * r))


@public
def pixel_unshuffle(input: T, downscale_factor: Int) -> Tensor:
    """Pixels as channels: (..., C, H r, W r) to (..., C r², H, W), the reverse of `pixel_shuffle`.

    Raises RuntimeError for sizes that are no multiple of the factor r, fewer than three dimensions.
    """
    r = downscale_factor
    _check_shuffle("pixel_unshuffle", "downscale_factor", input, r)
    *lead, channels, height, width = input.shape
    fits = not height % r and not width % r
    need(fits, "pixel_unshuffle", f"height and width must be multiples of {r}", input)
    parts = reshape_to(input, (*lead, channels, height // r, r, width // r, r))
    n = len(lead)
    parts = permute_dims(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape_to(parts, (*lead, channels * r * r, height // r, width // r))


@public
def channel_shuffle(input: T, groups: Int) -> Tensor:
    """The channels of (N, C, *sizes) dealt out anew: the first of each group, then the second ...

    X. Zhang et al., "ShuffleNet", 2018. Raises RuntimeError for channels that are no multiple of
    `groups`, and fewer than three dimensions.
    """
    _check_shuffle("channel_shuffle", "groups", input, groups)
    n, channels, *sizes = input.shape
    text = f"the channels must be a multiple of {groups} groups"
    need(not channels % groups, "channel_shuffle", text, input)
    parts = reshape_to(input, (n, groups, channels // groups, *sizes))
    parts = permute_dims(parts, (0, 2, 1, *range(3, len(sizes) + 3)))
    return reshape_to(parts, input.shape)
