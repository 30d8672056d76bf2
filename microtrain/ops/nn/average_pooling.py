"""Average pooling: the mean of every window, from sums along one dimension after the other."""

from __future__ import annotations

import math
from typing import Any

from ...backend import XP, float16, float32
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import numbers
from ..coercion import cast
from ..fronts import Flag, Float, Front, Number, need, spatial
from ..index.indexing import part
from ..pointwise.elementwise import abs as absolute
from ..pointwise.elementwise import clone, div, relu, sign
from ..reduce.reductions import mean_dims
from ..registry import primitive
from ..shape.joining import cat
from .padding import constant_pad
from .pooling import adaptive_windows, pool_geometry, window_ends
from .windows import batched, unbatched

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
]  # fmt: skip


def _steps(lead: int, kernel: int, stride: int, size: int) -> Any:
    """For every element of the kernel its places along dimension `lead`, over all windows."""
    found = (size - kernel) // stride + 1
    front = (slice(None),) * lead
    for k in range(kernel):
        yield (*front, slice(k, k + (found - 1) * stride + 1, stride))


@primitive(
    "window_sum",
    input=lambda g, input_shape, kernel, stride: window_spread(g, input_shape[2:], kernel, stride),
    node_name="avg_pool",
)
def window_sum(xp, input, *, kernel, stride):
    for dim, (k, s) in enumerate(zip(kernel, stride, strict=True), start=2):
        first, *others = _steps(dim, k, s, input.shape[dim])
        total = xp.getitem(input, first)
        for number, place in enumerate(others):
            part = xp.getitem(input, place)
            total = xp.add(total, part, out=total if number else None)
        input = total
    return xp.copy(input)


@primitive("window_spread", input=lambda g, kernel, stride: window_sum(g, kernel, stride))
def window_spread(xp, input, *, sizes, kernel, stride):
    for dim, (size, k, s) in enumerate(zip(sizes, kernel, stride, strict=True), start=2):
        whole = xp.zeros((*input.shape[:dim], size, *input.shape[dim + 1 :]), input.dtype)
        for place in _steps(dim, k, s, size):
            part = xp.getitem(whole, place)
            if k <= s:
                xp.copyto(part, input)
            else:
                xp.add(part, input, out=part)
        input = whole
    return input


# What users call ----------------------------------------------------------------------------------


def _avg_pool(
    name: str, dims: int, input: Float, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: Flag = False, count_include_pad: Flag = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    """The average of every window of a signal or an image.

    Args:
        input: (N, C, *sizes) or (C, *sizes), of a float dtype: as many sizes as the name
            says.
        kernel_size, stride, ceil_mode: as for `max_pool2d`.
        padding: zeros around the input, at most half the kernel size.
        count_include_pad: whether these zeros count.
        divisor_override: what to divide the sums by, instead of the number of elements (not in 1d).

    Raises TypeError for arguments of a wrong kind, RuntimeError for shapes, dtypes and numbers that
    do not fit.
    """
    given = batched(name, input, dims)
    x, sizes = _wide(given), given.shape[2:]
    kernel, step, around, _, found = pool_geometry(
        name, sizes, kernel_size, stride, padding, 1, ceil_mode
    )
    if divisor_override is not None:
        (divisor_override,) = numbers(name, "divisor_override", divisor_override, 1)
        need(divisor_override, name, "divisor must be not zero")
    pads, counts = [], []
    for n, k, s, p, f in zip(sizes, kernel, step, around, found, strict=True):
        pads.append((p, max(p, (f - 1) * s + k - n - p)))
        low, high = (-p, n + p) if count_include_pad else (0, n)
        starts = [i * s - p for i in range(f)]
        counts.append([min(at + k, high) - max(at, low) for at in starts])
    total = window_sum(constant_pad(x, tuple(pads)) if any(map(any, pads)) else x, kernel, step)
    if divisor_override is None and any(len(set(c)) > 1 for c in counts):
        divisor = _grid(x, counts)
    else:
        divisor = divisor_override or math.prod(c[0] for c in counts)
    return unbatched(cast(div(total, divisor), input.dtype), given, input)


def _wide(x: Any) -> Any:
    """Half precision as single: it has not the digits for a sum, nor room for a large one."""
    return cast(x, float32) if x.dtype == float16 else x


def _grid(x: Any, counts: list[list[int]]) -> Any:
    """The products of one count for each dimension, in the dtype and on the device of `x`."""
    xp = XP[type(x._array) if type(x) in TENSORS else type(x)]
    grid = xp.asarray(counts[0], x.dtype)
    for one in counts[1:]:
        grid = xp.multiply(xp.reshape(grid, (*grid.shape, 1)), xp.asarray(one, x.dtype))
    return wrap(grid) if type(x) in TENSORS else grid


avg_pool1d = Front(_avg_pool, "avg_pool1d", name="avg_pool1d", dims=1, divisor_override=None).apply
avg_pool2d, avg_pool3d = spatial(_avg_pool, "avg_pool2d", "avg_pool3d")


def _adaptive_avg_pool(name: str, dims: int, input: Float, output_size: Any) -> Tensor:
    """The averages of so many windows over a signal or an image, whatever its size.

    Args:
        input: (N, C, *sizes) or (C, *sizes), of a float dtype: as many sizes as the name
            says.
        output_size: an int, or one for each size; None keeps that size (not in 1d).

    Window i of n over a size s is from floor(i s / n) to ceil((i + 1) s / n). Raises TypeError for
    numbers of a wrong kind, RuntimeError for shapes, dtypes and numbers that do not fit.
    """
    given, found = adaptive_windows(name, input, output_size, dims)
    x, sizes = _wide(given), given.shape[2:]
    if max(found) == 1:
        result = mean_dims(x, tuple(range(2, dims + 2)), True)
        return unbatched(cast(result, input.dtype), given, input)
    pairs = zip(sizes, found, strict=True)
    kernel = tuple(n // f if n % f == 0 else 1 for n, f in pairs)
    result = x if max(kernel) == 1 else div(window_sum(x, kernel, kernel), math.prod(kernel))
    for dim, f in enumerate(found, start=2):
        n = result.shape[dim]
        if n != f:
            parts = (part(result, dim, *ends) for ends in window_ends(n, f))
            result = cat([mean_dims(one, (dim,), True) for one in parts], dim)
    result = clone(x) if result is x else result
    return unbatched(cast(result, input.dtype), given, input)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = spatial(
    _adaptive_avg_pool, "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"
)


def _lp_pool(
    name: str, dims: int, input: Float, norm_type: Number, kernel_size: Any, stride: Any = None,
    ceil_mode: Flag = False,
) -> Tensor:  # fmt: skip
    """The p-norm of every window, p = `norm_type`: the root of the sum of powers.

    Powers are signed as the elements are: with p = 1 it is their sum, with an odd p it is NaN where
    the sum is below 0.

    Other arguments and errors are those of `avg_pool2d`.
    """
    count = math.prod(numbers(name, "kernel_size", kernel_size, dims))
    pools = avg_pool1d, avg_pool2d, avg_pool3d
    mean = pools[dims - 1](_wide(input) ** norm_type, kernel_size, stride, 0, ceil_mode)
    found = (sign(mean) * relu(absolute(mean)) * count) ** (1.0 / norm_type)
    return cast(found, input.dtype)


lp_pool1d, lp_pool2d, lp_pool3d = spatial(_lp_pool, "lp_pool1d", "lp_pool2d", "lp_pool3d")
