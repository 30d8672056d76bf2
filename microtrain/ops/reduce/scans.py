"""Reductions and running reductions beyond `sum` and `mean`: prod, cumsum, logsumexp ...

The gradients of products divide by nothing, so zeros in the input change nothing: that of element i
is the product of all before it times a sum over all after it, which `_recurrence` computes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import namedtuple
from typing import Any

from ...backend import as_dtype, float16, float32, get_default_dtype, int64
from ...errors import need
from ...numerics.sums import running_sum
from ...tensor import TENSORS
from ..arguments import want_shape
from ..coercion import cast, to_float
from ..fronts import Count, Dim, Dims, Float, Numeric, RealDim, T, public
from ..index.indexing import at_dim, part
from ..loss.losses import counting, mean_loss
from ..pointwise.elementwise import clone, div, exp, isnan, ne, where, zeros_like
from ..registry import primitive, publish
from ..shape.joining import cat
from ..shape.shapes import line, normal_dim, normal_dims, reshape_to, restore_dims, shaped_like
from . import reductions
from .reductions import Chosen, amax_dims, amin_dims, chosen, has_elements, in_single, sum_dims


def before(x: Any, dim: int, first: float) -> Any:
    """Each element's predecessor along `dim`; that of the first is the number `first`."""
    return cat([zeros_like(part(x, dim, 1)) + first, part(x, dim, None, -1)], dim)


def _accumulated(x: Any, dtype: Any) -> Any:
    """`x` in the dtype that sums and products of it have."""
    if dtype is not None:
        return cast(x, as_dtype(dtype))
    return x if x.dtype.kind == "f" else cast(x, int64)


# Running sums and products ------------------------------------------------------------------------


def doubling(xp, dim, join, *arrays):
    """What `join` makes of the last 1, 2, 4 ... elements along `dim`, from that of the arrays.

    `join(late, early)` gets lists of parts and returns one: what each array is in place of `late`.
    """
    step = 1
    while step < arrays[0].shape[dim]:
        begin, late, early = (
            [xp.getitem(x, at_dim(dim, slice(*ends))) for x in arrays]
            for ends in ((None, step), (step, None), (None, -step))
        )
        pairs = zip(begin, join(late, early), strict=True)
        arrays = tuple(xp.concatenate(pair, dim) for pair in pairs)
        step *= 2
    return arrays


def _recurrence(xp, a, b, *, dim, reverse=False):
    """`s[i] = b[i] + a[i] * s[i - 1]` along `dim`; in reverse `s[i] = b[i] + a[i + 1] * s[i + 1]`.

    Each is the other's adjoint. Neighboring steps are composed pairwise, which takes about log2(n)
    rounds over whole arrays (Hillis and Steele, 1986).
    """
    if reverse:  # the same from behind, where the factor of a step stands one place earlier
        a, b = xp.flip(xp.roll(a, -1, dim), dim), xp.flip(b, dim)

    def join(late: Any, early: Any) -> Any:
        factors, sums = (xp.multiply(late[0], x) for x in early)
        return factors, xp.add(late[1], sums)

    _, b = doubling(xp, dim, join, a, b)
    return xp.copy(xp.flip(b, dim) if reverse else b)


def _recurrence_factor(g, a, result, dim, reverse):
    """The gradient of the factors: what arrives at a step times what came from the one before."""
    there = recurrence(a, g, dim, not reverse)
    return before(there, dim, 0) * result if reverse else there * before(result, dim, 0)


@primitive("cumsum", x=lambda g, dim, reverse: cumsum_dim(g, dim, not reverse))
@in_single
def cumsum_dim(xp, x, *, dim, reverse=False):
    """The sum of each element and all before it; in reverse, of all behind it."""
    if not reverse:
        return running_sum(xp, x, dim)
    return xp.copy(xp.flip(running_sum(xp, xp.flip(x, dim), dim), dim))


cumprod_dim = primitive(
    "cumprod",
    in_single(lambda xp, x, *, dim: xp.cumprod(x, axis=dim, dtype=x.dtype)),
    x=lambda g, x, result, dim: before(result, dim, 1) * recurrence(x, g, dim, True),
)
recurrence = primitive(
    "linear_recurrence",
    _recurrence,
    a=_recurrence_factor,
    b=lambda g, a, dim, reverse: recurrence(a, g, dim, not reverse),
)


def _running(operation: Any, x: Any, dim: int, dtype: Any) -> Any:
    x = _accumulated(x, dtype)
    return operation(x, dim) if x.ndim else reshape_to(operation(reshape_to(x, (1,)), 0), ())


@public
def cumsum(input: T, dim: Dim, *, dtype: Any = None) -> Any:
    """The sum of each element and all before it along `dim`.

    Args:
        input: a Tensor; integers and booleans give int64.
        dim: the dimension to run along.
        dtype: cast to this dtype first.

    Raises IndexError for a dimension out of range.
    """
    return _running(cumsum_dim, input, dim, dtype)


@public
def cumprod(input: T, dim: Dim, *, dtype: Any = None) -> Any:
    """The product of each element and all before it along `dim`; arguments as for `cumsum`."""
    return _running(cumprod_dim, input, dim, dtype)


def _running_extremum(name: str, better: str) -> Any:
    def kernel(xp, x, *, dim):
        n = x.shape[dim]
        shape = (n,) + (1,) * (len(x.shape) - dim - 1)
        index = xp.broadcast_to(xp.reshape(xp.arange(n), shape), x.shape)

        def join(late: Any, early: Any) -> Any:
            # Of equals the later one; a NaN against everything, the later one too.
            stays = xp.logical_or(getattr(xp, better)(late[0], early[0]), xp.isnan(late[0]))
            return [xp.where(stays, *pair) for pair in zip(late, early, strict=True)]

        return xp.copy(doubling(xp, dim, join, x, index)[1])

    return primitive(name, kernel, f"The indices of the values of `{name}`.")


cummax_dim = _running_extremum("cummax", "greater_equal")
cummin_dim = _running_extremum("cummin", "less_equal")


def _cumulative(operation: Any, x: Any, dim: int) -> Chosen:
    found = chosen(line(x), operation(line(x), dim), dim, True)
    return Chosen(*(shaped_like(part, x) for part in found))


@public
def cummax(input: T, dim: Dim) -> Chosen:
    """The largest of each element and all before it along `dim`: `(values, indices)`.

    Of equal elements the last is chosen and gets the gradient. From a NaN on all are NaN.
    """
    return _cumulative(cummax_dim, input, dim)


@public
def cummin(input: T, dim: Dim) -> Chosen:
    """The smallest of each element and all before it along `dim`; see `cummax`."""
    return _cumulative(cummin_dim, input, dim)


# Reductions ---------------------------------------------------------------------------------------


def _others(x: Any, dim: int) -> Any:
    """The product of all other elements along `dim`: all before times all behind."""
    back = None, None, -1
    behind = part(before(cumprod_dim(part(x, dim, *back), dim), dim, 1), dim, *back)
    return before(cumprod_dim(x, dim), dim, 1) * behind


prod_dim = primitive(
    "prod",
    lambda xp, x, *, dim, keepdim=False: xp.prod(x, axis=dim, dtype=x.dtype, keepdims=keepdim),
    x=lambda g, x, dim, keepdim: restore_dims(g, x.shape, (dim,), keepdim) * _others(x, dim),
)


@public
def prod(input: T, dim: Dim | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product of the elements; of no elements it is 1.

    Args:
        input: a Tensor; integers and booleans give int64.
        dim: one dimension, None for all.
        keepdim: leave `dim` in place with size 1.
        dtype: cast to this dtype first.

    Raises IndexError for a dimension out of range.
    """
    x = _accumulated(input, dtype)
    if dim is not None and x.ndim:
        return prod_dim(x, dim, keepdim)
    result = prod_dim(reshape_to(x, (-1,)), 0)
    return reshape_to(result, (1,) * x.ndim) if keepdim else result


def _logsumexp_rule(g, x, result, dims, keepdim):
    share = exp(x - restore_dims(result, x.shape, dims, keepdim))
    return restore_dims(g, x.shape, dims, keepdim) * share


@primitive("logsumexp", x=_logsumexp_rule)
@in_single
def logsumexp_dims(xp, x, *, dims=None, keepdim=False):
    if not reductions.count_of(x.shape, dims):
        nothing = xp.asarray(xp.sum(x, axis=dims, keepdims=keepdim))
        return xp.full(nothing.shape, -math.inf, x.dtype)
    most = xp.asarray(xp.max(x, axis=dims, keepdims=True))
    center = xp.where(xp.isfinite(most), most, xp.constant(0, x.dtype))
    total = xp.sum(xp.exp(xp.subtract(x, center)), axis=dims, keepdims=True)
    # The sum is at least 1, but 0 where all are -inf, and then the maximum says so already.
    result = xp.add(xp.log(xp.maximum(total, xp.constant(1, x.dtype))), most)
    kept = range(len(x.shape)) if dims is None else dims
    shape = tuple(n for d, n in enumerate(result.shape) if keepdim or d not in kept)
    return xp.reshape(result, shape)


@public
def logsumexp(input: T, dim: Dims, keepdim: bool = False) -> Any:
    """`log(sum(exp(input)))` over `dim` without overflow; of no elements it is -inf.

    Args:
        input: a Tensor; integers and booleans become floats.
        dim: an int or a tuple of ints.
        keepdim: leave the reduced dimensions in place with size 1.

    Raises IndexError for a dimension out of range.
    """
    x = input if input.dtype.kind == "f" else cast(input, get_default_dtype())
    if x.dtype == float16:  # the gradient is the exponential of what its result is rounded by
        return cast(logsumexp_dims(cast(x, float32), dim, keepdim), float16)
    return logsumexp_dims(x, dim, keepdim)


@public
def count_nonzero(input: T, dim: Dims = None) -> Any:
    """How many elements are not 0, over all dimensions or over `dim`, an int or a tuple of ints."""
    return sum_dims(ne(input, 0), dim)


@public
def nansum(input: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """`sum` with every NaN as 0."""
    return reductions.sum(where(isnan(input), 0, input), dim, keepdim, dtype=dtype)


@public
def nanmean(input: Float, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """`mean` of what is not NaN; NaN where nothing else is.

    Of all elements, it is a loss that knows what it divides by, as `nn.functional.weighted_mean`.
    """
    total = nansum(input, dim, keepdim, dtype=dtype)
    numbers = sum_dims(~isnan(input), dim, keepdim)
    loss = type(total) in TENSORS and total.requires_grad and total.numel() == 1
    if not loss or not counting(total):
        return div(total, numbers)
    count = cast(reshape_to(numbers, ()), total.dtype)
    found = mean_loss("nanmean", reshape_to(total, ()), count, input.numel())
    return reshape_to(found, total.shape)


def _with_mean(dispersion: Any) -> Any:
    """`std_mean` or `var_mean`."""

    @functools.wraps(dispersion)
    def both(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **options: Any
    ) -> tuple[Any, Any]:
        found = dispersion(input, dim, unbiased, keepdim, **options)
        return found, reductions.mean(input, None if isinstance(dim, bool) else dim, keepdim)

    both.__name__ = both.__qualname__ = f"{dispersion.__name__}_mean"
    both.__module__ = __name__
    both.__doc__ = f"`({dispersion.__name__}(input), mean(input))`, with the arguments there."
    return public(both)


std_mean, var_mean = _with_mean(reductions.std), _with_mean(reductions.var)


# What `aminmax` returns.
MinMax = namedtuple("MinMax", "min max")


@public
def aminmax(input: T, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """The smallest and the largest element, of all or along `dim`; ties as for `amin` and `amax`.

    Raises RuntimeError or, with `dim`, IndexError where there are no elements.
    """
    dims = None if dim is None else normal_dims(operator.index(dim), input.ndim)
    has_elements("aminmax", input, dims, RuntimeError if dim is None else IndexError)
    return MinMax(amin_dims(input, dims, keepdim), amax_dims(input, dims, keepdim))


@public
def diff(input: T, n: Count = 1, dim: RealDim = -1, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbors along `dim`, taken `n` times; of booleans, whether they differ.

    Args:
        input: a Tensor of at least one dimension.
        n: how often, 0 or more; each time makes `dim` shorter by one.
        dim: the dimension.
        prepend, append: Tensors to join on before and behind along `dim`.

    Raises RuntimeError for a 0-d Tensor, a negative `n` or shapes that do not fit.
    """
    parts = [x for x in (prepend, input, append) if x is not None]
    x = cat(parts, dim) if len(parts) > 1 else input
    if not n:  # what was to be joined on fits, and is not
        return clone(input)
    minus = operator.xor if x.dtype.kind == "b" else operator.sub
    for _ in range(n):
        x = minus(part(x, dim, 1, None), part(x, dim, None, -1))
    return x


# Integrals and slopes of samples ------------------------------------------------------------------


# The trapezoidal rule -----------------------------------------------------------------------------


def _trapezoids(name: str, y: Any, x: Any, dx: Any, dim: int) -> Any:
    """Twice the area between neighbors along `dim`."""
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
    """The derivative along `dim`; `h` are the distances of neighbors, or one for all."""

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
    a, b = h[:-1], h[1:]  # distances to the neighbor before and to the one behind
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
    dims = [normal_dim(operator.index(d), input.ndim) for d in dims]
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
    # From an infinite sum on there is no share, and nothing that could be multiplied.
    sums = before(result, dim, -math.inf)
    share = exp(where(sums == math.inf, -math.inf, sums) - top)
    there = recurrence(share, g, dim, True)
    return there * exp(x - top)


@primitive("logcumsumexp", x=_logcumsumexp_rule)
def logcumsumexp_dim(xp, x, *, dim):
    found = doubling(xp, dim, lambda late, early: [xp.logaddexp(late[0], early[0])], x)
    return xp.copy(found[0])


@public
def logcumsumexp(input: Float, dim: Dim) -> Any:
    """`log(cumsum(exp(input)))` along `dim` without overflow; RuntimeError for integers."""
    x = cast(input, float32) if input.dtype == float16 else input  # as in `logsumexp`
    return cast(shaped_like(logcumsumexp_dim(line(x), dim), input), input.dtype)


publish(globals())
