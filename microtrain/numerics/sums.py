"""Sums whose rounding errors do not grow with the number of their terms.

NumPy adds pairwise along memory, and one term after the other across it, where 1e6 terms of float32
are off by 1%. So more than `SHORT` terms that it would add one by one are added in blocks, and then
the sums of the blocks (N. J. Higham, "The accuracy of floating point summation", 1993).

`xp` is a namespace of instructions, or what writes them down in a captured step.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

SHORT = 128  # terms that are added one by one
FEW = 256  # rows that a product with ones adds: BLAS mostly adds four of them at a time
WIDE = 4096  # elements of a row, of several rows in one, that stay in the first level cache
LONG = 8192  # elements of a row that a product with ones adds, in 16 sums or more; of longer
PART = 1024  # ones it adds so many at a time


class Way(NamedTuple):
    """How to sum over some dimensions of an array.

    Attributes:
        order: the dimensions by their strides, None where they are in this order.
        shape: with those that lie together as one, `gone` those of it to sum, innermost first.
        kept: the sizes of the others, `back` their order in the result, None where it is this.
        ones: the shape of the result with the dimensions that were summed.
    """

    order: tuple[int, ...] | None
    shape: tuple[int, ...]
    gone: list[int]
    kept: tuple[int, ...]
    back: tuple[int, ...] | None
    ones: tuple[int, ...]


@functools.lru_cache(1024)
def way_of(shape: tuple[int, ...], strides: tuple[int, ...], axis: Any) -> Way | None:
    """How to sum over `axis`: None where NumPy is exact enough, else for `blocked_sum`."""
    if axis is None:
        axes = tuple(range(len(shape)))
    else:
        axes = tuple(d % len(shape) for d in (axis if type(axis) is tuple else (axis,)))
    # As NumPy goes through memory: the outermost dimension first, what lies together as one.
    order = sorted(range(len(shape)), key=lambda d: -abs(strides[d]) if strides[d] else -math.inf)
    found: list[list[Any]] = []  # length, stride, whether it is summed
    for d in order:
        n, step, gone = shape[d], strides[d], d in axes
        if n == 1:
            continue
        if found and found[-1][2] is gone and found[-1][1] == step * n:
            found[-1] = [found[-1][0] * n, step, gone]
        else:
            found.append([n, step, gone])
    across = [n for n, _, gone in found if gone]
    # Dimensions that are expanded NumPy leaves where they are.
    if found and found[-1][2] and (0 not in strides or order == sorted(order)):
        across.pop()
    if math.prod(across) <= SHORT or not math.prod(shape):
        return None
    kept = [d for d in order if d not in axes]
    summed = [number for number, part in enumerate(found) if part[2]]
    back = [kept.index(d) for d in sorted(kept)]
    return Way(
        tuple(order) if order != sorted(order) else None,
        tuple(n for n, *_ in found),
        summed[::-1],
        tuple(shape[d] for d in kept),
        tuple(back) if kept != sorted(kept) else None,
        tuple(1 if d in axes else n for d, n in enumerate(shape)),
    )


def blocked_sum(xp: Any, x: Any, way: Way, keepdims: bool) -> Any:
    """The sum of `x` over some of its dimensions, which `way_of` has looked at."""
    if way.order is not None:
        x = xp.transpose(x, way.order)
    if x.shape != way.shape:
        x = xp.reshape(x, way.shape)
    for axis in way.gone:
        x = _along(xp, x, axis)
    if x.shape != way.kept:
        x = xp.reshape(x, way.kept)
    if way.back is not None:
        x = xp.transpose(x, way.back)
    return xp.reshape(x, way.ones) if keepdims else x


def _along(xp: Any, x: Any, axis: int) -> Any:
    """The sum over one dimension."""
    n, before, after = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    if n <= SHORT or not after:
        return xp.sum(x, axis=axis)
    if x.flags.c_contiguous:
        if len(after) == 1:
            return sum_rows(xp, x)
        rows = xp.reshape(x, (*before, n, math.prod(after)))
        return xp.reshape(sum_rows(xp, rows), (*before, *after))
    count = n // SHORT
    here = (slice(None),) * axis
    total = xp.empty((*before, -(-n // SHORT), *after), x.dtype)
    whole = xp.getitem(x, (*here, slice(count * SHORT)))
    whole = xp.reshape(whole, (*before, count, SHORT, *after))
    xp.copyto(xp.getitem(total, (*here, slice(count))), xp.sum(whole, axis=axis + 1))
    if n % SHORT:
        rest = xp.sum(xp.getitem(x, (*here, slice(count * SHORT, None))), axis=axis)
        xp.copyto(xp.getitem(total, (*here, count)), rest)
    return xp.sum(total, axis=axis)


def sum_rows(xp: Any, x: Any, out: Any = None) -> Any:
    """The sum over the rows of a matrix (n, c), or of each in (..., n, c), as products with ones.

    These are several times as fast as `sum`. Of more rows than `FEW` several side by side are one
    row, so that there are fewer of them to add.
    """
    dtype, shape = x.dtype, x.shape
    if dtype == np.float16:
        found = xp.asarray(sum_rows(xp, xp.asarray(x, np.float32)), np.float16)
        return written(xp, found, out)
    n, c = shape[-2], shape[-1]
    if n <= FEW or (c == 1 and n <= 8 * FEW) or xp.kind != "cpu":
        product = xp.dot if len(shape) == 2 else xp.matmul
        return product(xp.ones_of((n,), dtype), x, out=out)
    lead = shape[:-2]
    if not x.flags.c_contiguous:
        return written(xp, xp.sum(x, axis=len(lead)), out)
    joined = -(-n // (2 * SHORT))
    if joined * c <= WIDE:
        rows = n // joined
    else:
        joined, rows = max(1, WIDE // c), SHORT
    blocks = n // (joined * rows)
    end = blocks * joined * rows
    whole = xp.getitem(x, (..., slice(end), slice(None)))
    whole = xp.reshape(whole, (*lead, blocks, rows, joined * c))
    total = xp.empty((*lead, blocks * joined + (end < n), c), x.dtype)
    target = xp.getitem(total, (..., slice(blocks * joined), slice(None)))
    target = xp.reshape(target, (*lead, blocks, joined * c))
    xp.matmul(xp.ones_of((rows,), x.dtype), whole, out=target)
    if end < n:
        rest = sum_rows(xp, xp.getitem(x, (..., slice(end, None), slice(None))))
        xp.copyto(xp.getitem(total, (..., -1, slice(None))), rest)
    return sum_rows(xp, total, out)


def written(xp: Any, found: Any, out: Any) -> Any:
    """`found`, in the memory `out` if there is one."""
    if out is None or out is found:
        return found
    xp.copyto(out, found)
    return out


def sum_columns(xp: Any, x: Any) -> Any:
    """The sum of each row of a matrix (n, c), as a product with ones."""
    n, c = x.shape
    if c <= LONG or xp.kind != "cpu":
        return xp.dot(x, xp.ones_of((c,), x.dtype))
    blocks = c // PART
    total = xp.empty((n, blocks + 1), x.dtype)
    whole = xp.getitem(x, (slice(None), slice(blocks * PART)))
    target = xp.getitem(total, (slice(None), slice(blocks)))
    xp.matmul(xp.reshape(whole, (n, blocks, PART)), xp.ones_of((PART,), x.dtype), out=target)
    rest = xp.getitem(x, (slice(None), slice(blocks * PART, None)))
    xp.copyto(xp.getitem(total, (slice(None), blocks)), xp.sum(rest, axis=1))
    return sum_columns(xp, total)


def dot_itself(xp: Any, x: Any) -> Any:
    """The sum of the squares of a vector."""
    n = x.shape[0]
    if n <= LONG or xp.kind != "cpu":
        return xp.dot(x, x)
    blocks = n // PART
    parts = xp.reshape(xp.getitem(x, slice(blocks * PART)), (blocks, 1, PART))
    total = xp.sum(xp.matmul(parts, xp.transpose(parts, (0, 2, 1))))
    rest = xp.getitem(x, slice(blocks * PART, None))
    return xp.add(total, xp.dot(rest, rest))


def running_sum(xp: Any, x: Any, axis: int) -> Any:
    """The running sum along `axis`, of many terms of float32 in float64."""
    if x.shape[axis] <= SHORT or x.dtype != np.float32 or xp.kind != "cpu":
        return xp.cumsum(x, axis=axis, dtype=x.dtype)
    wide = xp.asarray(x, np.float64)
    xp.cumsum(wide, axis=axis, out=wide)  # in place: fresh memory takes longer than the sum
    return xp.asarray(wide, x.dtype)


def add_rows(xp: Any, x: Any, index: Any, values: Any) -> None:
    """`x[index] += values` of NumPy's arrays (rows, c), (n,) and (n, c), every time.

    What is added to one row more than `FEW` times is added up in blocks, or in float64.
    """
    (rows, c), n = x.shape, len(index)
    index = index.astype(np.int64, copy=False)  # int8 has no room for places
    single = n > FEW and x.dtype == np.float32
    if single and c == 1 and rows <= n:
        wide = x[:, 0].astype(np.float64)
        for start in range(0, n, WIDE):  # so few that their copies stay in the cache
            part = slice(start, start + WIDE)
            np.add.at(wide, index[part], values[part, 0].astype(np.float64))
        x[:, 0] = wide
        return
    if single and index.view(np.uint64).max() >= rows:
        wrapped = np.where(index < 0, index + rows, index)
        single = bool(wrapped.min() >= 0 and wrapped.max() < rows)  # else NumPy is to raise
        index = wrapped if single else index
    if single:
        counts = np.bincount(index, minlength=rows)
        (heavy,) = (counts > FEW).nonzero()
        if len(heavy):
            number = np.full(rows, len(heavy))  # of each row among these, the last of any other
            number[heavy] = np.arange(len(heavy))
            number = number[index]
            # A short dtype is sorted in one pass.
            order = number.astype(np.min_scalar_type(len(heavy))).argsort(kind="stable")
            start = 0
            for row in heavy:
                stop = start + counts[row]
                x[row] += sum_rows(xp, values[order[start:stop]])
                start = stop
            index, values = index[order[start:]], values[order[start:]]
    if n * c < 512:
        np.add.at(x, index, values)
        return
    # Element by element in flat memory, which NumPy does several times as fast as row by row.
    places = index if c == 1 else (index.reshape(-1, 1) * c + np.arange(c)).reshape(-1)
    np.add.at(x.reshape(-1), places, values.reshape(-1))
