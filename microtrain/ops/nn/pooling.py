"""Pooling: the mean or the maximum of every window.

All goes through the dimensions one after the other: the maxima (or sums) of a line, then those of
these.
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...backend import MODES, XP, float16, float32
from ...errors import wrong
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import numbers, want_in_range
from ..coercion import cast
from ..fronts import Flag, Float, Front, Index, Number, Numeric, T, need, spatial
from ..index.gathering import scatter_along
from ..index.indexing import at_dim, gather_index, part
from ..pointwise.elementwise import abs as absolute
from ..pointwise.elementwise import clone, div, relu, sign
from ..reduce.reductions import in_single, mean_dims
from ..registry import primitive, publish
from ..shape.joining import cat
from ..shape.shapes import expand_to, reshape_to
from .windows import batched, constant_pad, geometric, unbatched

MOST = 2**31  # windows along a size: each is listed
MOST_RUNS = 16  # of windows that are one slice, above which they are gathered first


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
        make = xp.empty if size == input.shape[dim] * k and k <= s else xp.zeros
        whole = make((*input.shape[:dim], size, *input.shape[dim + 1 :]), input.dtype)
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
        need(divisor_override, name, "divisor must not be zero")
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
    mean = _avg_pool(name, dims, _wide(input) ** norm_type, kernel_size, stride, 0, ceil_mode)
    found = (sign(mean) * relu(absolute(mean)) * count) ** (1.0 / norm_type)
    return cast(found, input.dtype)


lp_pool1d, lp_pool2d, lp_pool3d = spatial(_lp_pool, "lp_pool1d", "lp_pool2d", "lp_pool3d")


# Maxima: of the windows along a dimension, and of these along the one before it -------------------


class Windows(NamedTuple):
    """Windows along a dimension of `size` elements.

    Attributes:
        runs: of neighboring windows, equal but for their place: which is the first element of them
            that is no padding, and where all their first elements are, their second ones ...
        taps: for every element of a window, of which windows it is no padding, and where it is.
        shared, gaps: whether windows share an element, and whether an element is in none.
    """

    size: int
    runs: list[tuple[int, list[slice]]]
    taps: list[list[tuple[slice, slice]]]
    shared: bool
    gaps: bool


def _at(xp, x, dim, place):
    return xp.getitem(x, at_dim(dim, place))


def _joined(xp, parts, dim):
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, dim)


@primitive("max_choice")
def max_choice(xp, input, *, dim, windows):
    """Which element of every window along `dim` is the first maximum.

    A NaN is larger than anything, and the last of them is taken, as in PyTorch.
    """
    dtype, parts = np.min_scalar_type(-len(windows.taps)), []
    for low, places in windows.runs:
        best, *others = (_at(xp, input, dim, place) for place in places)
        choice = xp.full(best.shape, low, dtype)
        for number, value in enumerate(others, start=low + 1):
            higher = xp.greater(value, best)
            if input.dtype.kind == "f":
                xp.logical_or(higher, xp.isnan(value), out=higher)
            # No `where`: its branches cost more than these.
            xp.maximum(choice, xp.multiply(higher, xp.constant(number, dtype)), out=choice)
            best = xp.maximum(value, best)
        parts.append(choice)
    return _joined(xp, parts, dim)


@primitive(
    "max_along",
    input=lambda g, choice, dim, windows: carry_along(g, choice, dim, windows, True),
    node_name="max_pool_with_indices",
)
def max_along(xp, input, choice, *, dim, windows):
    """The maximum of every window along `dim`; `choice` tells the gradient where it was."""
    parts = []
    for _, places in windows.runs:
        best, *others = (_at(xp, input, dim, place) for place in places)
        for value in others:
            best = xp.maximum(value, best)  # of two zeros the second
        parts.append(best if others else xp.copy(best))
    return _joined(xp, parts, dim)


@primitive(
    "carry_along",
    input=lambda g, choice, dim, windows, back: carry_along(g, choice, dim, windows, not back),
)
@in_single
def carry_along(xp, input, choice, *, dim, windows, back):
    """The element that was chosen of every window along `dim`.

    With `back` the reverse: what every window has, added where its chosen element stands.
    """
    adds = windows.shared or windows.gaps or not back
    size = windows.size if back else choice.shape[dim]
    shape = (*choice.shape[:dim], size, *choice.shape[dim + 1 :])
    total = (xp.zeros if adds else xp.empty)(shape, input.dtype)
    zero = xp.constant(0, input.dtype)
    # The last element first: what windows have for the same one is added up in their order.
    for number, tap in reversed([*enumerate(windows.taps)]):
        for ours, place in tap:
            here = xp.equal(_at(xp, choice, dim, ours), xp.constant(number, choice.dtype))
            part = xp.kept(_at(xp, input, dim, ours if back else place), here)
            to = _at(xp, total, dim, place if back else ours)
            xp.add(part, to if adds else zero, out=to)  # -0 becomes 0, as in a sum
    return total


# What users call ----------------------------------------------------------------------------------


def _stretches(at: Any, *same: Any) -> list[tuple[int, int, int]]:
    """First, end and step of every stretch of `at` equally far apart, where `same` are equal."""
    gaps = np.diff(at)
    cut = (gaps < 1) | np.any([np.diff(one) != 0 for one in same], 0)
    cut[1:] |= (np.diff(gaps) != 0) & ~cut[:-1]
    ends = [0, *(np.flatnonzero(cut) + 1).tolist(), len(at)]
    return [(a, b, int(gaps[a]) if b > a + 1 else 1) for a, b in pairwise(ends)]


def _along(size: int, starts: Any, low: Any, high: Any, step: int) -> tuple[list[int], Windows]:
    """Windows that begin at `starts`, their elements from `low` to `high`; what to gather before.

    Where they are too irregular, all elements of all windows are gathered one behind the other, the
    last of a window as often as it has fewer than the longest one.
    """

    def elements(i: int, first: int, stop: int, apart: int) -> slice:
        at = int(starts[first]) + i * step
        return slice(at, at + (stop - first - 1) * apart + 1, apart)

    count, stretches = int(high.max()) + 1, _stretches(starts, low, high)
    if len(stretches) > MOST_RUNS:
        every = np.clip(np.arange(count), low[:, None], high[:, None])
        places = (starts[:, None] + step * every).ravel()
        at = np.arange(0, places.size, count)
        return places.tolist(), _along(places.size, at, 0 * at, 0 * at + count - 1, 1)[1]
    runs = [
        (int(low[run[0]]), [elements(i, *run) for i in range(low[run[0]], high[run[0]] + 1)])
        for run in stretches
    ]
    times, taps = np.zeros(size, int), []
    for i in range(count):
        inside = (low <= i) & (i <= high)
        found = [run for run in _stretches(starts, inside) if inside[run[0]]]
        taps.append([(slice(*run[:2]), elements(i, *run)) for run in found])
        for _, place in taps[-1]:
            times[place] += 1
    return [], Windows(size, runs, taps, times.max() > 1, times.min() < 1)


@functools.lru_cache(1024)
def windows_along(name: str, size: int, k: int, s: int, p: int, d: int, found: int) -> Any:
    """The windows along one dimension, without what is in the padding."""
    at = np.arange(found) * s - p
    low, high = np.maximum(-(at // d), 0), np.minimum((size - 1 - at) // d, k - 1)
    need((low <= high).all(), name, "a window has no element that is not padding")
    return _along(size, at, low, high, d)


@functools.lru_cache(1024)
def adaptive_along(size: int, found: int) -> Any:
    starts, stops = np.transpose(window_ends(size, found))
    return _along(size, starts, 0 * starts, stops - starts - 1, 1)


def _best(input: Any, batch: Any, lines: list[Any], return_indices: bool) -> Any:
    """The maxima of the windows and, if asked for, where they are."""
    xp, found = XP[type(batch._array)], [batch]
    if return_indices:
        sizes = batch.shape[2:]
        numbers = reshape_to(wrap(xp.arange(math.prod(sizes))), (1, 1, *sizes))
        found.append(expand_to(numbers, batch.shape))
    # The last dimension first: of equal maxima the one in the first line, and there the first.
    for dim, (places, windows) in reversed([*enumerate(lines, start=2)]):
        if places:
            index = (*(slice(None),) * dim, xp.asarray(places))
            found = [gather_index(one, index) for one in found]
        values, *positions = found
        wanted = positions or (values._rg and MODES.grad)  # else nobody looks at it
        choice = max_choice(values, dim, windows) if wanted else values
        found = [max_along(values, choice, dim, windows)]
        found += [carry_along(one, choice, dim, windows, False) for one in positions]
    values, *positions = (unbatched(one, batch, input) for one in found)
    return (values, *positions) if return_indices else values


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
    lines = [windows_along(name, *one) for one in zip(x.shape[2:], *geometry, strict=True)]
    return _best(input, x, lines, return_indices)


max_pool1d, max_pool2d, max_pool3d = spatial(_max_pool, "max_pool1d", "max_pool2d", "max_pool3d")


def _adaptive_max_pool(
    name: str, dims: int, input: Float, output_size: Any, return_indices: Flag = False
) -> Any:
    """The maxima of so many windows; see `adaptive_avg_pool2d`, `max_pool2d`."""
    x, found = adaptive_windows(name, input, output_size, dims)
    lines = [adaptive_along(*line) for line in zip(x.shape[2:], found, strict=True)]
    return _best(input, x, lines, return_indices)


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
    empty = x.new_zeros(n, channels, room)
    found = scatter_along(empty, reshape_to(at, line), reshape_to(x, line), 2)
    return unbatched(reshape_to(found, (n, channels, *sizes)), x, input)


max_unpool1d, max_unpool2d, max_unpool3d = spatial(
    _max_unpool, "max_unpool1d", "max_unpool2d", "max_unpool3d"
)


publish(globals())
