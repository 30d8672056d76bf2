"""Max pooling: the maximum of every window.

A maximum is found as a position first; its value and its gradient are read and written there.
"""

from __future__ import annotations

import math
from typing import Any

from ...backend import XP, int16, int64
from ...tensor import Tensor, wrap
from ..arguments import want_in_range
from ..fronts import Flag, Float, Index, Numeric, T, need, spatial
from ..index.gathering import scatter_along
from ..reduce.reductions import in_single
from ..registry import primitive
from ..shape.shapes import reshape_to
from .pooling import adaptive_windows, pool_geometry, window_ends
from .windows import batched, geometric, unbatched

__all__ = [
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool1d", "max_pool2d",
    "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip


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
