"""Integrals and slopes of sampled functions, and `logcumsumexp`."""

from __future__ import annotations

import math
from operator import index as whole
from typing import Any

from ...backend import float16, float32
from ...tensor import TENSORS
from ..arguments import want_shape
from ..coercion import cast, to_float
from ..fronts import Dim, Float, Numeric, T, need, public
from ..index.gathering import line, shaped_like
from ..index.indexing import at_dim, part
from ..pointwise.elementwise import exp, where
from ..registry import primitive
from ..shape.joining import cat
from ..shape.shapes import normal_dim, reshape_to
from .reductions import sum_dims
from .scans import before, cumsum, recurrence

__all__ = ["cumulative_trapezoid", "gradient", "logcumsumexp", "trapezoid", "trapz"]

# The trapezoidal rule -----------------------------------------------------------------------------


def _trapezoids(name: str, y: Any, x: Any, dx: Any, dim: int) -> Any:
    """Twice the area between neighbours along `dim`."""
    need(x is None or dx is None, name, "expected either x or dx", error=TypeError)
    y, x = to_float(y), None if x is None else to_float(x)  # small integers would wrap around
    sums = part(y, dim, None, -1) + part(y, dim, 1, None)
    if x is None:
        return sums if dx is None else sums * dx
    fits = x.ndim != 1 or x.shape[0] == y.shape[dim]
    need(fits, name, "there must be one `x` value for each sample point", x, y)
    if x.ndim == 1:
        x = reshape_to(x, (-1,) + (1,) * (y.ndim - dim - 1))
    at = dim - (y.ndim - x.ndim)
    return sums * (part(x, at, 1, None) - part(x, at, None, -1))


@public
def trapezoid(y: Numeric, x: Any = None, *, dx: Any = None, dim: Dim = -1) -> Any:
    """The integral of samples `y` along `dim` by the trapezoidal rule.

    Args:
        y: the samples; integers become floats.
        x: where they are: a vector, or a Tensor that broadcasts with `y`.
        dx: without `x`, how far they are apart; 1 by default.
        dim: the dimension.

    Raises RuntimeError for booleans and for an `x` that does not fit, TypeError for both x and dx.
    """
    return sum_dims(_trapezoids("trapezoid", y, x, dx, dim), (dim,)) / 2


@public
def cumulative_trapezoid(y: Numeric, x: Any = None, *, dx: Any = None, dim: Dim = -1) -> Any:
    """The integrals from the first sample to each later one; arguments as for `trapezoid`."""
    return cumsum(_trapezoids("cumulative_trapezoid", y, x, dx, dim), dim) / 2


trapz = trapezoid

# Slopes -------------------------------------------------------------------------------------------


def _slopes(f: Any, dim: int, h: Any, order: int) -> Any:
    """The derivative along `dim`; `h` are the distances of neighbours, or one for all."""

    def cut(*ends: int | None) -> Any:
        return part(f, dim, *ends)

    if type(h) not in TENSORS:
        inner = (cut(2, None) - cut(None, -2)) / (2 * h)
        if order == 1:
            first, last = (cut(1, 2) - cut(0, 1)) / h, (cut(-1, None) - cut(-2, -1)) / h
        else:
            first = (cut(1, 2) * 2 - cut(0, 1) * 1.5 - cut(2, 3) * 0.5) / h
            last = (cut(-1, None) * 1.5 - cut(-2, -1) * 2 + cut(-3, -2) * 0.5) / h
        return cat([first, inner, last], dim)
    h = reshape_to(h, (-1,) + (1,) * (f.ndim - dim - 1))
    a, b = h[:-1], h[1:]  # distances to the neighbour before and to the one behind
    steps = (cut(1, None) - cut(None, -1)) / h
    rise, after = part(steps, dim, None, -1), part(steps, dim, 1, None)
    inner = (b * rise + a * after) / (a + b)
    first, last = part(steps, dim, None, 1), part(steps, dim, -1, None)
    if order == 2:  # the slope of the parabola through three points, at an end
        first = first + (first - part(steps, dim, 1, 2)) * (h[0] / (h[0] + h[1]))
        last = last + (last - part(steps, dim, -2, -1)) * (h[-1] / (h[-1] + h[-2]))
    return cat([first, inner, last], dim)


@public
def gradient(
    input: T, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Any, ...]:
    """The partial derivatives of samples on a grid, by differences of the second order inside.

    Args:
        input: the samples.
        spacing: how far they are apart, 1 by default: a number, a sequence of one for each
            dimension, or of a vector of coordinates for each.
        dim: an int or a sequence; all dimensions by default.
        edge_order: 1 or 2, of the differences at both ends.

    Returns one Tensor for each dimension. Raises RuntimeError where there are no more than
    `edge_order` samples along one of them, or another number of spacings.
    """
    dims = range(input.ndim) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    dims = [normal_dim(whole(d), input.ndim) for d in dims]
    spacing = 1 if spacing is None else spacing
    spacings = spacing if isinstance(spacing, tuple | list) else [spacing] * len(dims)
    need(len(set(dims)) == len(dims), "gradient", "a dimension appears more than once", dim)
    fits = len(spacings) == len(dims) and edge_order in (1, 2)
    text = f"expected {len(dims)} spacings and an edge_order of 1 or 2"
    need(fits, "gradient", text, len(spacings), edge_order)
    f, found = to_float(input), []
    for d, h in zip(dims, spacings, strict=True):
        text = "expected each dimension size to be at least edge_order+1"
        need(f.shape[d] > edge_order, "gradient", text, f)
        if type(h) in TENSORS and h.ndim:
            want_shape("gradient", "coordinates", h, (f.shape[d],))
            h = h[1:] - h[:-1]
        found.append(_slopes(f, d, h, edge_order))
    return tuple(found)


# Running log-sum-exp ------------------------------------------------------------------------------


def _logcumsumexp_rule(g, x, result, dim):
    # The share of the sum before in each sum, and of each element in its own: none above 1.
    top = where(result == -math.inf, 0, result)
    there = recurrence(exp(before(result, dim, -math.inf) - top), g, dim, True)
    return there * exp(x - top)


@primitive("logcumsumexp", x=_logcumsumexp_rule)
def logcumsumexp_dim(xp, x, *, dim):
    def cut(*ends: Any) -> Any:
        return xp.getitem(x, at_dim(dim, slice(*ends)))

    step = 1
    while step < x.shape[dim]:  # of the last 1, 2, 4 ... elements
        behind = xp.logaddexp(cut(step, None), cut(None, -step))
        x = xp.concatenate([cut(None, step), behind], dim)
        step *= 2
    return xp.copy(x)


@public
def logcumsumexp(input: Float, dim: Dim) -> Any:
    """`log(cumsum(exp(input)))` along `dim` without overflow; RuntimeError for integers."""
    x = cast(input, float32) if input.dtype == float16 else input  # as in `logsumexp`
    return cast(shaped_like(logcumsumexp_dim(line(x), dim), input), input.dtype)
