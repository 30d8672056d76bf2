"""Pooling: the mean or the maximum of every window.

All goes through the dimensions one after the other: the maxima (or sums) of a line, then those of
these.
"""

from __future__ import annotations

import math
from typing import Any

from ...backend import XP, float16, float32, int16, int64
from ...errors import wrong
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import numbers, want_in_range
from ..coercion import cast
from ..fronts import Flag, Float, Front, Index, Number, Numeric, T, need, spatial
from ..index.gathering import scatter_along
from ..index.indexing import part
from ..pointwise.elementwise import abs as absolute
from ..pointwise.elementwise import clone, div, relu, sign
from ..reduce.reductions import in_single, mean_dims
from ..registry import primitive
from ..shape.joining import cat
from ..shape.shapes import reshape_to
from .windows import batched, constant_pad, geometric, unbatched

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d",
    "max_unpool2d", "max_unpool3d",
]  # fmt: skip

# Windows along a size: each is listed.
MOST = 2**31


def pool_geometry(
    name: str, sizes: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding, dilation and the number of windows along every size."""
    dims = len(sizes)
    kernel, around, wide = geometric(
        name, dims, kernel_size=kernel_size, padding=padding, dilation=dilation
    )
    (step,) = [kernel] if stride in (None, (), []) else geometric(name, dims, stride=stride)
    half = all(2 * p <= k for p, k in zip(around, kernel, strict=True))
    need(half, name, "padding {} should be at most half of the kernel size {}", around, kernel)
    found = []
    for n, k, s, p, d in zip(sizes, kernel, step, around, wide, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil else room // s) + 1
        # A window that would start behind the input and its left padding is left out.
        found.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
    if min(found) < 1 or 0 in sizes:
        text = "a kernel of size {} with dilation {} does not fit into {} with padding {}"
        raise wrong(name, text, kernel, wide, tuple(sizes), around)
    return kernel, step, around, wide, tuple(found)


def adaptive_windows(
    name: str, input: Any, output_size: Any, dims: int
) -> tuple[Any, tuple[int, ...]]:
    """The input with samples, and the number of windows along every size."""
    x = batched(name, input, dims)
    sizes = x.shape[2:]
    several = isinstance(output_size, tuple | list)
    wanted = tuple(output_size) if several else (output_size,) * dims
    need(len(wanted) == dims, name, f"output_size must be {dims} numbers", output_size)
    wanted = tuple(n if dims > 1 and w is None else w for n, w in zip(sizes, wanted, strict=True))
    (found,) = geometric(name, dims, output_size=wanted)
    need(max(found) <= MOST, name, f"output_size must be at most {MOST:,}", found)
    need(0 not in sizes, name, "expected an input with elements", input)
    return x, found


def window_ends(size: int, found: int) -> list[tuple[int, int]]:
    """Where every window begins and ends: they cover the size, and share elements where needed."""
    return [(i * size // found, -(-(i + 1) * size // found)) for i in range(found)]


# Means of windows, from sums along one dimension after the other ----------------------------------


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


# Maxima: their positions first, where values and gradients are read and written -------------------


def _flat(xp, positions, size):
    """Positions in planes of `size` elements, counted through all planes."""
    n, channels = positions.shape[:2]
    start = xp.reshape(xp.multiply(xp.arange(n * channels), size), (n * channels, 1))
    inner = math.prod(positions.shape[2:])
    return xp.reshape(xp.add(xp.reshape(positions, (n * channels, inner)), start), -1)


@primitive("max_positions")
def max_positions(xp, input, *, windows):
    """Where the first maximum of every window stands, counted through the last dimensions.

    `windows` has for each of these dimensions one entry per element of the kernel: the positions of
    that element in all windows, a slice or a tuple. A NaN is larger than anything, and the last of
    them is taken, as in PyTorch.
    """
    lead = len(input.shape) - len(windows)
    values = input
    chosen: dict[int, Any] = {}  # which element of the kernel was the largest, by dimension
    # The last dimension first: of equal maxima the one in the first line, and there the first.
    for dim in reversed(range(len(windows))):
        front = (slice(None),) * (lead + dim)
        best = choice = None
        kept: dict[int, Any] = {}
        for number, tap in enumerate(windows[dim]):
            place = (*front, tap if type(tap) is slice else xp.asarray(tap))
            value = xp.getitem(values, place)
            others = {d: xp.getitem(one, place) for d, one in chosen.items()}
            if best is None:
                best, kept = value, others
                continue
            higher = xp.greater(value, best)
            if input.dtype.kind == "f":
                xp.logical_or(higher, xp.isnan(value), out=higher)
            best = xp.maximum(best, value)
            kept = {d: xp.where(higher, others[d], one) for d, one in kept.items()}
            first = choice is None
            choice = higher if first else xp.where(higher, xp.operand(number, int16), choice)
        values, chosen = best, kept if choice is None else {**kept, dim: choice}
    total, inner = xp.zeros(values.shape, int64), 1
    for dim in reversed(range(len(windows))):
        size, found = input.shape[lead + dim], values.shape[lead + dim]
        places = [
            inner * at
            for tap in windows[dim]
            for at in (range(size)[tap] if type(tap) is slice else tap)
        ]
        window = xp.reshape(xp.arange(found), (found, *(1,) * (len(windows) - dim - 1)))
        if dim in chosen:
            window = xp.add(xp.multiply(chosen[dim], found, dtype=int64), window)
        xp.add(total, xp.take(xp.asarray(places), window), out=total)
        inner *= size
    return total


@primitive(
    "pool_gather",
    input=lambda g, positions, input_shape: pool_scatter(g, positions, input_shape[2:]),
    node_name="max_pool_with_indices",
)
def pool_gather(xp, input, positions):
    places = _flat(xp, positions, math.prod(input.shape[2:]))
    return xp.reshape(xp.take(input, places), positions.shape)


@primitive("pool_scatter", input=lambda g, positions: pool_gather(g, positions))
@in_single
def pool_scatter(xp, input, positions, *, sizes):
    n, channels = positions.shape[:2]
    total = xp.zeros((n * channels * math.prod(sizes),), input.dtype)
    places = _flat(xp, positions, math.prod(sizes))
    xp.scatter_add(total, places, xp.reshape(input, -1))  # windows may share an element
    return xp.reshape(total, (n, channels, *sizes))


# What users call ----------------------------------------------------------------------------------


def _taps(name: str, size: int, k: int, s: int, p: int, d: int, found: int) -> tuple[Any, ...]:
    """The places of every element of a kernel along one dimension, over all windows.

    An element in the padding is replaced by the nearest of the same window, so that no value has to
    stand for "none".
    """
    starts = range(-p, found * s - p, s)
    if starts[0] >= 0 and starts[-1] + d * (k - 1) < size:
        return tuple(slice(i * d, i * d + starts[-1] + 1, s) for i in range(k))
    inside = [(max(0, -(at // d)), min(k - 1, (size - 1 - at) // d)) for at in starts]
    some = all(low <= high for low, high in inside)
    need(some, name, "a window has no element that is not padding")
    return tuple(
        tuple(
            at + d * min(max(i, low), high) for at, (low, high) in zip(starts, inside, strict=True)
        )
        for i in range(k)
    )


def _best(input: Any, batch: Any, windows: Any, return_indices: bool) -> Any:
    """The maxima of the windows and, if asked for, where they are."""
    positions = max_positions(batch, windows)
    values = unbatched(pool_gather(batch, positions), batch, input)
    return (values, unbatched(positions, batch, input)) if return_indices else values


def _max_pool(
    name: str, dims: int, input: Numeric, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: Flag = False, return_indices: Flag = False,
) -> Any:  # fmt: skip
    """The maximum of every window of a signal or an image; the first of equals has the gradient.

    Args:
        input: (N, C, *sizes) or (C, *sizes): one size in 1d, height and width in 2d, and
            a depth before them in 3d.
        kernel_size: an int, or one for each size.
        stride: the step from window to window, the kernel size if not given.
        padding: how far windows reach over the edge, at most half the kernel size; what is there
            is never the maximum.
        dilation: the step from element to element of a window.
        ceil_mode: whether windows may reach over the far edge, so that no element is left out.
        return_indices: whether to return as well where in its plane each maximum stands.

    Raises TypeError for arguments of a wrong kind, RuntimeError for shapes and numbers that do not
    fit.
    """
    x = batched(name, input, dims)
    geometry = pool_geometry(name, x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    windows = tuple(_taps(name, *one) for one in zip(x.shape[2:], *geometry, strict=True))
    return _best(input, x, windows, return_indices)


max_pool1d, max_pool2d, max_pool3d = spatial(_max_pool, "max_pool1d", "max_pool2d", "max_pool3d")


def _adaptive_max_pool(
    name: str, dims: int, input: Float, output_size: Any, return_indices: Flag = False
) -> Any:
    """The maxima of so many windows; see `adaptive_avg_pool2d`, `max_pool2d`."""
    x, found = adaptive_windows(name, input, output_size, dims)
    windows: list[tuple[Any, ...]] = []
    for n, f in zip(x.shape[2:], found, strict=True):
        bounds = window_ends(n, f)
        longest = max(stop - start for start, stop in bounds)
        windows.append(
            tuple(tuple(min(start + i, stop - 1) for start, stop in bounds) for i in range(longest))
        )
    return _best(input, x, tuple(windows), return_indices)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = spatial(
    _adaptive_max_pool, "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"
)


def _max_unpool(
    name: str, dims: int, input: T, indices: Index, kernel_size: Any, stride: Any = None,
    padding: Any = 0, output_size: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros with the maxima of `max_pool2d` where they stood: its partial reverse.

    Args:
        input: (N, C, *sizes) or (C, *sizes), the maxima.
        indices: what `max_pool2d` returned with `return_indices=True`.
        kernel_size, stride, padding: those of the pool.
        output_size: the sizes (or the whole shape) of what was pooled, where several fit.

    Where indices repeat it is open which value stays. Raises ValueError for an output size that the
    pool does not map to this input's, RuntimeError for shapes and indices that do not fit.
    """
    x, at = batched(name, input, dims), batched(name, indices, dims)
    need(at.shape == x.shape, name, "indices and input must have one shape", at, x)
    kernel, around = geometric(name, dims, kernel_size=kernel_size, padding=padding)
    (step,) = [kernel] if stride in (None, (), []) else geometric(name, dims, stride=stride)
    lines = zip(x.shape[2:], kernel, step, around, strict=True)
    sizes = tuple((n - 1) * s - 2 * p + k for n, k, s, p in lines)
    if output_size is not None:
        wanted = tuple(output_size)[-dims:]
        near = all(abs(w - n) < s for w, n, s in zip(wanted, sizes, step, strict=True))
        text = "output_size {} is not within {} of {}"
        need(near, name, text, wanted, step, sizes, error=ValueError)
        sizes = wanted
    n, channels = x.shape[:2]
    room, line = math.prod(sizes), (n, channels, math.prod(x.shape[2:]))
    want_in_range(name, at._array, 2, 0, room, RuntimeError)
    empty = wrap(XP[type(x._array)].zeros((n, channels, room), x.dtype))
    found = scatter_along(empty, reshape_to(at, line), reshape_to(x, line), 2)
    return unbatched(reshape_to(found, (n, channels, *sizes)), x, input)


max_unpool1d, max_unpool2d, max_unpool3d = spatial(
    _max_unpool, "max_unpool1d", "max_unpool2d", "max_unpool3d"
)
