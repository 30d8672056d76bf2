"""Pooling: the maximum or the average of every window.

Both go through the dimensions one after the other: the maxima (or sums) of a line, then those of
these. A maximum is found as a position first; its value and its gradient are read and written
there.
"""

from __future__ import annotations

import math
from typing import Any

from ..backend import XP, int16, int64
from ..tensor import TENSORS, Tensor, wrap
from .arguments import numbers, want_flag, want_float
from .coercion import public
from .elementwise import clone, div
from .indexing import part
from .padding import constant_pad
from .reductions import mean_dims
from .registry import primitive
from .shapes import cat
from .windows import batched, geometric, unbatched

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d",
]  # fmt: skip

# The maximum --------------------------------------------------------------------------------------


def _max_positions(xp, input, *, windows, out=None):
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
            choice = higher if first else xp.where(higher, xp.asarray(number, int16), choice)
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
    return xp.store(total, out)


def _flat(xp, positions, size):
    """Positions in planes of `size` elements, counted through all planes."""
    n, channels = positions.shape[:2]
    start = xp.reshape(xp.multiply(xp.arange(n * channels), size), (n * channels, 1))
    inner = math.prod(positions.shape[2:])
    return xp.reshape(xp.add(xp.reshape(positions, (n * channels, inner)), start), -1)


def _pool_gather(xp, input, positions, *, out=None):
    places = _flat(xp, positions, math.prod(input.shape[2:]))
    return xp.store(xp.reshape(xp.take(input, places), positions.shape), out)


def _pool_scatter(xp, input, positions, *, sizes, out=None):
    n, channels = positions.shape[:2]
    total = xp.zeros((n * channels * math.prod(sizes),), input.dtype)
    places = _flat(xp, positions, math.prod(sizes))
    xp.scatter_add(total, places, xp.reshape(input, -1))  # windows may share an element
    return xp.store(xp.reshape(total, (n, channels, *sizes)), out)


max_positions = primitive("max_positions", _max_positions)
pool_gather = primitive(
    "pool_gather",
    _pool_gather,
    input=lambda g, positions, input_shape: pool_scatter(g, positions, input_shape[2:]),
    options={"node_name": "max_pool_with_indices"},
)
pool_scatter = primitive(
    "pool_scatter",
    _pool_scatter,
    input=lambda g, positions: pool_gather(g, positions),
)


# The sum ------------------------------------------------------------------------------------------


def _steps(lead: int, kernel: int, stride: int, size: int) -> Any:
    """For every element of the kernel its places along dimension `lead`, over all windows."""
    found = (size - kernel) // stride + 1
    front = (slice(None),) * lead
    for k in range(kernel):
        yield (*front, slice(k, k + (found - 1) * stride + 1, stride))


def _window_sum(xp, input, *, kernel, stride, out=None):
    for dim, (k, s) in enumerate(zip(kernel, stride, strict=True), start=2):
        first, *others = _steps(dim, k, s, input.shape[dim])
        total = xp.getitem(input, first)
        for number, place in enumerate(others):
            part = xp.getitem(input, place)
            total = xp.add(total, part, out=total if number else None)
        input = total
    return xp.store(input, xp.empty(input.shape, input.dtype) if out is None else out)


def _window_spread(xp, input, *, sizes, kernel, stride, out=None):
    for dim, (size, k, s) in enumerate(zip(sizes, kernel, stride, strict=True), start=2):
        whole = xp.zeros((*input.shape[:dim], size, *input.shape[dim + 1 :]), input.dtype)
        for place in _steps(dim, k, s, size):
            part = xp.getitem(whole, place)
            if k <= s:
                xp.copyto(part, input)
            else:
                xp.add(part, input, out=part)
        input = whole
    return xp.store(input, out)


window_sum = primitive(
    "window_sum",
    _window_sum,
    input=lambda g, input_shape, kernel, stride: window_spread(g, input_shape[2:], kernel, stride),
    options={"node_name": "avg_pool"},
)
window_spread = primitive(
    "window_spread",
    _window_spread,
    input=lambda g, kernel, stride: window_sum(g, kernel, stride),
)


# What users call ----------------------------------------------------------------------------------


def _geometry(
    name: str, sizes: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding, dilation and the number of windows along every size."""
    dims = len(sizes)
    kernel, around, wide = geometric(
        name, dims, kernel_size=kernel_size, padding=padding, dilation=dilation
    )
    (step,) = [kernel] if stride in (None, (), []) else geometric(name, dims, stride=stride)
    want_flag(name, "ceil_mode", ceil)
    if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise RuntimeError(
            f"{name}: padding {around} should be at most half of the kernel size {kernel}"
        )
    found = []
    for n, k, s, p, d in zip(sizes, kernel, step, around, wide, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil else room // s) + 1
        # A window that would start behind the input and its left padding is left out.
        found.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
    if min(found) < 1 or 0 in sizes:
        raise RuntimeError(
            f"{name}: a kernel of size {kernel} with dilation {wide} does not fit into an input "
            f"of size {tuple(sizes)} with padding {around}"
        )
    return kernel, step, around, wide, tuple(found)


def _taps(name: str, size: int, k: int, s: int, p: int, d: int, found: int) -> tuple[Any, ...]:
    """The places of every element of a kernel along one dimension, over all windows.

    An element in the padding is replaced by the nearest of the same window, so that no value has to
    stand for "none".
    """
    starts = range(-p, found * s - p, s)
    if starts[0] >= 0 and starts[-1] + d * (k - 1) < size:
        return tuple(slice(i * d, i * d + starts[-1] + 1, s) for i in range(k))
    inside = [(max(0, -(at // d)), min(k - 1, (size - 1 - at) // d)) for at in starts]
    if any(low > high for low, high in inside):
        raise RuntimeError(f"{name}: a window has no element that is not padding")
    return tuple(
        tuple(
            at + d * min(max(i, low), high) for at, (low, high) in zip(starts, inside, strict=True)
        )
        for i in range(k)
    )


def _best(name: str, input: Any, batch: Any, windows: Any, return_indices: bool) -> Any:
    """The maxima of the windows and, if asked for, where they are."""
    want_flag(name, "return_indices", return_indices)
    if input.dtype.kind == "b":
        raise RuntimeError(f"{name}: not defined for booleans")
    positions = max_positions(batch, windows)
    values = unbatched(pool_gather(batch, positions), batch, input)
    return (values, unbatched(positions, batch, input)) if return_indices else values


def _max_pool(
    name: str, dims: int, input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    x = batched(name, input, dims)
    geometry = _geometry(name, x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    windows = tuple(_taps(name, *one) for one in zip(x.shape[2:], *geometry, strict=True))
    return _best(name, input, x, windows, return_indices)


@public
def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of every window of a signal, (N, C, L) or (C, L); see `max_pool2d`."""
    return _max_pool(
        "max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@public
def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of every window of an image; the first of equal ones gets the gradient.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size: an int, or one for the height and one for the width.
        stride: the step from window to window, the kernel size if not given.
        padding: how far windows reach over the edge, at most half the kernel size; what is there
            is never the maximum.
        dilation: the step from element to element of a window.
        ceil_mode: whether windows may reach over the far edge, so that no element is left out.
        return_indices: whether to return as well where in its H x W plane each maximum stands.

    Raises TypeError for arguments of a wrong kind, RuntimeError for shapes and numbers that do not
    fit.
    """
    return _max_pool(
        "max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def _avg_pool(
    name: str, dims: int, input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    x = batched(name, input, dims)
    sizes = x.shape[2:]
    kernel, step, around, _, found = _geometry(
        name, sizes, kernel_size, stride, padding, 1, ceil_mode
    )
    want_flag(name, "count_include_pad", count_include_pad)
    want_float(name, x)
    if divisor_override is not None:
        (divisor_override,) = numbers(name, "divisor_override", divisor_override, 1)
        if not divisor_override:
            raise RuntimeError(f"{name}: divisor must be not zero")
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
    return unbatched(div(total, divisor), x, input)


def _grid(x: Any, counts: list[list[int]]) -> Any:
    """The products of one count for each dimension, in the dtype and on the device of `x`."""
    xp = XP[type(x._array) if type(x) in TENSORS else type(x)]
    grid = xp.asarray(counts[0], x.dtype)
    for one in counts[1:]:
        grid = xp.multiply(xp.reshape(grid, (*grid.shape, 1)), xp.asarray(one, x.dtype))
    return wrap(grid) if type(x) in TENSORS else grid


@public
def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The average of every window of a signal, (N, C, L) or (C, L); see `avg_pool2d`."""
    return _avg_pool(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None
    )


@public
def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of every window of an image.

    Args:
        input: (N, C, H, W) or (C, H, W), of a float dtype.
        kernel_size, stride, ceil_mode: as for `max_pool2d`.
        padding: zeros around the input, at most half the kernel size.
        count_include_pad: whether these zeros count.
        divisor_override: what to divide the sums by, instead of the number of elements.

    Raises TypeError for arguments of a wrong kind, RuntimeError for shapes, dtypes and numbers that
    do not fit.
    """
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override,
    )  # fmt: skip


# Windows that follow from the number of results ---------------------------------------------------


def _adaptive(name: str, input: Any, output_size: Any, dims: int) -> tuple[Any, tuple[int, ...]]:
    """The input with samples, and the number of windows along every size."""
    x = batched(name, input, dims)
    sizes = x.shape[2:]
    if isinstance(output_size, tuple | list):
        wanted = tuple(output_size)
    else:
        wanted = (output_size,) * dims
    if len(wanted) != dims:
        raise RuntimeError(f"{name}: output_size must be {dims} numbers, got {output_size!r}")
    wanted = tuple(n if dims > 1 and w is None else w for n, w in zip(sizes, wanted, strict=True))
    (found,) = geometric(name, dims, output_size=wanted)
    want_float(name, x)
    if 0 in sizes:
        raise RuntimeError(f"{name}: expected an input with elements, got {tuple(input.shape)}")
    return x, found


def _bounds(size: int, found: int) -> list[tuple[int, int]]:
    """Where every window begins and ends: they cover the size, and share elements where needed."""
    return [(i * size // found, -(-(i + 1) * size // found)) for i in range(found)]


def _adaptive_avg_pool(name: str, dims: int, input: Any, output_size: Any) -> Any:
    x, found = _adaptive(name, input, output_size, dims)
    sizes = x.shape[2:]
    if max(found) == 1:
        return unbatched(mean_dims(x, tuple(range(2, dims + 2)), True), x, input)
    pairs = zip(sizes, found, strict=True)
    kernel = tuple(n // f if n % f == 0 else 1 for n, f in pairs)
    result = x if max(kernel) == 1 else div(window_sum(x, kernel, kernel), math.prod(kernel))
    for dim, f in enumerate(found, start=2):
        n = result.shape[dim]
        if n != f:
            parts = (part(result, dim, *ends) for ends in _bounds(n, f))
            result = cat([mean_dims(one, (dim,), True) for one in parts], dim)
    return unbatched(clone(x) if result is x else result, x, input)


def _adaptive_max_pool(
    name: str, dims: int, input: Any, output_size: Any, return_indices: bool
) -> Any:
    x, found = _adaptive(name, input, output_size, dims)
    windows: list[tuple[Any, ...]] = []
    for n, f in zip(x.shape[2:], found, strict=True):
        bounds = _bounds(n, f)
        longest = max(stop - start for start, stop in bounds)
        windows.append(
            tuple(tuple(min(start + i, stop - 1) for start, stop in bounds) for i in range(longest))
        )
    return _best(name, input, x, tuple(windows), return_indices)


@public
def adaptive_avg_pool1d(input: Any, output_size: Any) -> Tensor:
    """The averages of `output_size` windows over a signal, (N, C, L) or (C, L)."""
    return _adaptive_avg_pool("adaptive_avg_pool1d", 1, input, output_size)


@public
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Tensor:
    """The averages of so many windows over an image, whatever its size.

    Args:
        input: (N, C, H, W) or (C, H, W), of a float dtype.
        output_size: an int, or one for the height and one for the width; None keeps that size.

    Window i of n over a size s is from floor(i s / n) to ceil((i + 1) s / n). Raises TypeError for
    numbers of a wrong kind, RuntimeError for shapes, dtypes and numbers that do not fit.
    """
    return _adaptive_avg_pool("adaptive_avg_pool2d", 2, input, output_size)


@public
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` windows over a signal, (N, C, L) or (C, L)."""
    return _adaptive_max_pool("adaptive_max_pool1d", 1, input, output_size, return_indices)


@public
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of so many windows over an image; see `adaptive_avg_pool2d`, `max_pool2d`."""
    return _adaptive_max_pool("adaptive_max_pool2d", 2, input, output_size, return_indices)
