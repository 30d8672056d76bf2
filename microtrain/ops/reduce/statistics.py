"""Quantiles, the mode, counts in bins, covariance: what describes a sample."""

from __future__ import annotations

import warnings
from collections import namedtuple
from typing import Annotated, Any

import numpy as np

from ...backend import XP, as_dtype, int64
from ...errors import need, wrong
from ...tensor import TENSORS, wrap
from .. import fronts
from ..arguments import want_in_range, want_same_dtype, want_shape
from ..coercion import NUMBERS, cast, examine, to_float, underived
from ..fronts import Count, Dim, Float, Int, Positive, T, TensorOnly, of_dims, one_of, public
from ..index.indexing import gather_along, part, unselect
from ..matrix.linear_algebra import matmul
from ..pointwise.elementwise import clamp, isnan, logical_not, sqrt, where
from ..pointwise.elementwise import round as nearest
from ..pointwise.special import lerp
from ..registry import publish
from ..shape.joining import cat
from ..shape.rearranging import diagonal
from ..shape.shapes import line, permute_dims, reshape_to, squeeze, t, unsqueeze
from . import reductions
from .reductions import Chosen, amax_dims, amin_dims, any_dims, argmax_dim, chosen, sum_dims
from .scans import cummax, diff
from .sorting import argsort_dim, searchsorted, sort

# Ranks --------------------------------------------------------------------------------------------

_INTERPOLATIONS = "linear", "lower", "higher", "midpoint", "nearest"


def _chances(name: str, x: Any, q: Any) -> Any:
    """`q` as a Tensor; RuntimeError unless it is of the dtype of `x` and from 0 to 1."""
    if isinstance(q, NUMBERS):
        q = wrap(XP[type(x._array)].operand(float(q), x.dtype))
    elif type(q) not in TENSORS or q.ndim > 1:
        raise wrong(name, "q must be a number or a Tensor of 0 or 1 dimensions", q)
    want_same_dtype(name, "q", q, x)
    examine(q, lambda a: need(((a >= 0) & (a <= 1)).all(), name, "q must be in the range [0, 1]"))
    return q


def _quantile(
    name: str, x: Any, q: Any, dim: int | None, keepdim: bool, how: str, skip: bool
) -> Any:
    """The quantiles along `dim`; `skip` leaves NaN out."""
    q = _chances(name, x, q)
    need(x.numel(), name, "input tensor must be non-empty", x)
    if dim is None or not x.ndim:
        rows, kept = reshape_to(x, (-1,)), (1,) * x.ndim
    else:
        rest = [d for d in range(x.ndim) if d != dim]
        rows, kept = permute_dims(x, (*rest, dim)), (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    last = len(rows.shape) - 1
    n, nans = rows.shape[last], isnan(rows)
    if skip:
        top = clamp(cast(sum_dims(logical_not(nans), (last,), True), x.dtype) - 1, 0)
        rank = line(q) * top
    else:  # NaN comes last
        rank = where(any_dims(nans, (last,), True), n - 1, line(q) * (n - 1))
    rank = {"lower": lambda r: r // 1, "higher": lambda r: -(-r // 1), "nearest": nearest}.get(
        how, lambda r: r
    )(rank)
    ordered, low = sort(rows, last).values, cast(rank, int64)
    found = gather_along(ordered, low, last)
    if how in ("linear", "midpoint"):
        above = gather_along(ordered, cast(-(-rank // 1), int64), last)
        found = lerp(found, above, rank - low if how == "linear" else 0.5)
    shape = kept if keepdim else rows.shape[:-1]
    if not q.ndim:
        return reshape_to(found, shape)
    return reshape_to(permute_dims(found, (last, *range(last))), (*q.shape, *shape))


@public
def quantile(
    input: Float, q: Any, dim: Dim | None = None, keepdim: bool = False, *,
    interpolation: Annotated[str, one_of(*_INTERPOLATIONS)] = "linear",
) -> Any:  # fmt: skip
    """What the fraction `q` of the elements is below; NaN where one of them is.

    Args:
        input: a Tensor of floats with at least one element.
        q: a number from 0 to 1, or a vector of them in the dtype of `input`, which becomes the
            first dimension of the result.
        dim: the dimension; None for all elements.
        keepdim: leave `dim` in place with size 1.
        interpolation: "linear" between two elements, "lower" or "higher" one of them, "nearest",
            or "midpoint".

    Raises RuntimeError for a `q` out of range or of another dtype, and where there are no elements.

    Example:
        >>> mt.quantile(mt.tensor([3.0, 1.0, 2.0, 5.0]), 0.5)
        tensor(2.5000)
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@public
def nanquantile(
    input: Float, q: Any, dim: Dim | None = None, keepdim: bool = False, *,
    interpolation: Annotated[str, one_of(*_INTERPOLATIONS)] = "linear",
) -> Any:  # fmt: skip
    """`quantile` of what is not NaN; NaN where nothing else is."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


@public
def mode(input: TensorOnly, dim: Dim = -1, keepdim: bool = False) -> Chosen:
    """The most frequent element along `dim`, the smallest of several, and its last index.

    Returns `(values, indices)`. Raises IndexError where there are no elements along `dim`.
    """
    reductions.has_elements("mode", input, (dim,) if input.ndim else None)
    x = line(input)
    order = argsort_dim(x, dim)
    ordered = gather_along(x.detach(), order, dim)
    n = x.shape[dim]
    xp = XP[type(x._array)]
    number = wrap(xp.reshape(xp.arange(n), (n,) + (1,) * (x.ndim - dim - 1)))
    new = part(ordered, dim, 1, None) != part(ordered, dim, None, -1)
    new = cat([part(ordered, dim, None, 1) != part(ordered, dim, None, 1), new], dim)
    length = number - cummax(where(new, number, 0), dim).values  # of the run of equals so far
    index = gather_along(order, argmax_dim(length, dim, True), dim)
    if not input.ndim:
        return chosen(input, reshape_to(index, ()), 0, keepdim)
    return chosen(input, index, dim, keepdim)


# Counts -------------------------------------------------------------------------------------------


def _counted(places: Any, weights: Any, size: int) -> Any:
    """The sums of the `weights` at each of the `places` from 0 to `size` - 1."""
    return unselect(reshape_to(weights, (-1,)), (size,), (reshape_to(places, (-1,))._array,))


@public
def bincount(input: fronts.Vector, weights: Any = None, minlength: Count = 0) -> Any:
    """How often each of 0, 1, 2 ... occurs in a vector of integers, or the sum of its weights.

    The size of the result depends on the largest, so on a GPU this waits for it.

    Args:
        input: integers, none negative.
        weights: None, or a vector of as many numbers; the result is float64 then, or float32 for
            weights of float32.
        minlength: at least so many counts.

    Raises RuntimeError for negative numbers, shapes that do not fit, and in a backward pass to the
    weights.
    """
    need(input.dtype.kind in "iu", "bincount", "expected integers", input.dtype)
    places = cast(input, int64)
    if weights is not None:
        want_shape("bincount", "weights", weights, input.shape)
    size = max(places.max().item() + 1 if len(places) else 0, minlength)
    want_in_range("bincount", places._array, 0, 0, size, RuntimeError)
    if weights is None:
        ones = cast(places * 0 + 1, as_dtype("double"))  # CuPy adds no int64
        return cast(_counted(places, ones, size), int64)
    kind = as_dtype("float" if weights.dtype == as_dtype("float") else "double")
    return underived("bincount", _counted(places, cast(weights.detach(), kind), size), weights)


def _finite(width: Any) -> None:
    text = "the elements are not finite; give the range"
    need(np.isfinite(width).all(), "histogram", text)
    need(width.all(), "histogram", "no room for bins at so large a number; give the range")


def _range(x: Any, low: Any, high: Any, wide: float) -> tuple[Any, Any]:
    """The ends of a histogram, given or of all elements; apart by twice `wide` where equal."""
    if low == high and x.numel():
        low, high = amin_dims(x), amax_dims(x)
        low, high = where(low == high, low - wide, low), where(low == high, high + wide, high)
    else:
        low, high = (low - wide, high + wide) if low == high else (low, high)
        low, high = x.new_tensor(low), x.new_tensor(high)
    examine(high - low, _finite)
    return low, high


@public
def histc(input: Float, bins: Positive = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements are in each of `bins` equal parts of [min, max], in their dtype.

    Elements outside and NaN are not counted. Where `min` and `max` are equal the smallest and the
    largest element are taken. It has no gradient. Raises RuntimeError for no bins or `max` < `min`.
    """
    need(max >= min, "histc", "max must be at least min", min, max)
    x = input.detach()
    low, high = _range(x, min, max, 1.0)
    inside = (x >= low) & (x <= high)
    place = clamp(where(inside, x - low, 0) * bins / (high - low), 0, bins - 1)
    return _counted(cast(place, int64), cast(inside, x.dtype), bins)


# What `histogram` returns.
Histogram = namedtuple("Histogram", "hist bin_edges")


@public
def histogram(
    input: Float, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Histogram:
    """How many elements are between neighboring edges, the last included: `(hist, bin_edges)`.

    Args:
        input: a Tensor of floats.
        bins: the number of bins of one width, or a vector of ascending edges.
        range: the outermost edges, for a number of bins; without it the smallest and the largest
            element.
        weight: what each element counts, a Tensor of the shape and dtype of `input`.
        density: divide by the sum and by the widths, so that the integral is 1.

    Elements outside and NaN are not counted. Raises RuntimeError for edges that do not ascend, and
    in a backward pass through it.
    """
    x = reshape_to(input.detach(), (-1,))
    if weight is not None:
        want_same_dtype("histogram", "weight", weight, input)
        want_shape("histogram", "weight", weight, input.shape)
    if type(bins) in TENSORS:
        want_same_dtype("histogram", "bins", bins, input)
        edges = bins.detach()
        fits = edges.ndim == 1 and len(edges) > 1
        need(fits, "histogram", "expected a vector of two or more edges in bins", bins)
        text = "the edges in bins do not ascend; sort them"
        examine(edges, lambda a: need((a[1:] >= a[:-1]).all(), "histogram", text))
    else:
        low, high = range or (0, 0 if len(x) else 1)
        low, high = _range(x, low, high, 0.5)
        edges = lerp(low, high, x.new_tensor(np.linspace(0, 1, bins + 1)))
    n = len(edges) - 1
    place = searchsorted(edges, x, right=True) - 1
    place = where(x == edges[n], n - 1, place)
    inside = (place >= 0) & (place < n)
    ones = where(inside, 1 if weight is None else reshape_to(weight.detach(), (-1,)), 0)
    counts = _counted(where(inside, place, 0), cast(ones, x.dtype), n)
    if density:
        counts = counts / sum_dims(counts) / diff(edges)
    sources = input, bins, weight
    return Histogram(*(underived("histogram", part, *sources) for part in (counts, edges)))


# Covariance ---------------------------------------------------------------------------------------


@public
def cov(
    input: Annotated[T, of_dims(0, 2)], *, correction: Int = 1, fweights: Any = None,
    aweights: Any = None,
) -> Any:  # fmt: skip
    """The covariances of the rows of a matrix, whose columns are observations.

    Args:
        input: (variables, observations), or one variable: a vector or number.
        correction: what is taken from the number of observations; 1 is Bessel's correction.
        fweights: a vector of integers, how often each observation counts.
        aweights: a vector of numbers, how much each counts.

    Returns a symmetric matrix, for one variable the variance. Raises RuntimeError for weights that
    do not fit, warns where no degrees of freedom are left.
    """
    x = to_float(input)
    x = x if x.ndim == 2 else reshape_to(x, (1, -1))
    given = [w for w in (fweights, aweights) if w is not None]
    for weights in given:
        want_shape("cov", "weights", weights, x.shape[1:])
        examine(weights, _weights_of_cov)
    whole = fweights is None or fweights.dtype.kind in "iu"
    need(whole, "cov", "fweights are whole numbers")
    if not given:
        centered = weighted = x - reductions.mean_dims(x, (1,), True)
        left: Any = x.shape[1] - correction
        if left <= 0:
            warnings.warn("cov(): degrees of freedom is <= 0", UserWarning, stacklevel=2)
        left = max(left, 0)
    else:
        w = given[0] * given[1] if len(given) == 2 else given[0]
        total = sum_dims(w)
        centered = x - sum_dims(x * w, (1,), True) / total
        lost = correction
        if aweights is not None and correction:
            lost = sum_dims(w * aweights) / total * correction
        left, weighted = clamp(total - lost, 0), centered * w
    return squeeze(matmul(weighted, t(centered)) / left)


def _weights_of_cov(weights: Any) -> None:
    fits = (weights >= 0).all() and (not weights.size or weights.any())
    need(fits, "cov", "weights must not be negative, NaN or all 0")


@public
def corrcoef(input: Annotated[T, of_dims(0, 2)]) -> Any:
    """The correlations of the rows of a matrix, whose columns are observations; see `cov`."""
    found = cov(input)
    if not found.ndim:
        return found / found
    deviation = sqrt(diagonal(found))
    return clamp(found / unsqueeze(deviation, 1) / deviation, -1, 1)


publish(globals())
