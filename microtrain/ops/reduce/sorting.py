"""Order: sort, argsort, topk, median, unique.

Nearly everything follows from one stable `argsort`, in which equal elements keep their order and a
NaN comes after all numbers; `gather` then brings the values and their gradient.
"""

from __future__ import annotations

import math
from operator import index as whole
from typing import Any

import numpy as np

from ...backend import MODES, XP, bool_, int8, int32, int64
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import want_tensors
from ..coercion import NUMBERS, cast, promote, underived
from ..fronts import Dim, NumericOnly, TensorOnly, need, public
from ..index.gathering import nonzero_rows, take_along_dim
from ..index.indexing import at_dim, gather_along, index_put, part, places_along
from ..pointwise.elementwise import clamp, isnan, ne, to_dtype, where, zeros_like
from ..registry import primitive, publish
from ..shape.joining import cat
from ..shape.shapes import permute_dims, reshape_to
from .reductions import Chosen, any_dims, chosen, has_elements, share, sum_dims
from .scans import cumsum


def _argsort(xp, x, *, dim, descending=False):
    if not x.shape:
        return xp.zeros((), int64)
    if not descending:
        return xp.argsort(x, dim)
    # Backwards on both sides, so that equal elements keep their order.
    back = xp.flip(xp.argsort(xp.flip(x, dim), dim), dim)
    return xp.subtract(xp.constant(x.shape[dim] - 1, int64), back)


argsort_dim = primitive("argsort", _argsort)


@public
def argsort(
    input: TensorOnly, dim: Dim = -1, descending: bool = False, stable: bool = False
) -> Any:
    """The indices (int64) that sort along `dim`; always stable, see `sort`."""
    return argsort_dim(input, dim, bool(descending))


@public
def sort(
    input: TensorOnly, dim: Dim = -1, descending: bool = False, *, stable: bool = False
) -> Any:
    """The elements in order along `dim`, and where they were.

    Args:
        input: a Tensor.
        dim: the dimension to sort.
        descending: the largest first.
        stable: equal elements keep their order; here they do so always.

    Returns `(values, indices)`, indices as int64. A NaN counts as larger than every number.

    Example:
        >>> mt.sort(mt.tensor([3.0, 1.0, 2.0])).indices
        tensor([1, 2, 0])
    """
    return chosen(input, argsort_dim(input, dim, bool(descending)), dim, True)


@public
def msort(input: TensorOnly) -> Any:
    """The elements in order along the first dimension."""
    return sort(input, 0).values


def _tied(x, last, k, dim, largest):
    """Whether it is open which `k` are the most extreme: more equal the `last` of them, or NaN."""
    reached = np.greater_equal(x, last) if largest else np.less_equal(x, last)
    return not (np.count_nonzero(reached, dim) == k).all()


def _first(xp, x, last, k, dim, largest):
    """The indices of those beyond the `last`, and of the first that equal it."""
    x_nan, last_nan = xp.not_equal(x, x), xp.not_equal(last, last)
    equal = xp.logical_or(xp.equal(x, last), xp.logical_and(x_nan, last_nan))
    above, nans = (x, last), (x_nan, xp.logical_not(last_nan))
    if not largest:
        above, nans = (last, x), (xp.logical_not(x_nan), last_nan)
    beyond = xp.logical_or(xp.greater(*above), xp.logical_and(*nans))
    left = xp.subtract(k, xp.sum(beyond, axis=dim, keepdims=True))
    equal = xp.logical_and(equal, xp.less_equal(xp.cumsum(equal, dim), left))
    rest = xp.asarray(xp.logical_not(xp.logical_or(beyond, equal)), int8)
    return xp.getitem(xp.argpartition(rest, k - 1, dim), at_dim(dim, slice(k)))


@primitive("topk")
def topk_dim(xp, x, *, k, dim, largest):
    """The indices of the `k` largest or smallest along `dim`, the most extreme first."""
    n = x.shape[dim]
    if 0 < k < n and math.prod(x.shape) > 2048:  # of many a partition takes a fraction of a sort
        at = n - k if largest else k - 1
        order = xp.argpartition(x, at, dim)
        last = xp.getitem(order, at_dim(dim, slice(at, at + 1)))
        last = xp.take(x, places_along(xp, last, x.shape, dim))
        chosen = xp.getitem(order, at_dim(dim, slice(n - k, n) if largest else slice(k)))
        if type(last) is not np.ndarray or _tied(x, last, k, dim, largest):
            chosen = _first(xp, x, last, k, dim, largest)
        chosen = xp.sort(chosen, dim)
        x = xp.take(x, places_along(xp, chosen, x.shape, dim))
        order = _argsort(xp, x, dim=dim, descending=largest)
        return xp.take(chosen, places_along(xp, order, chosen.shape, dim))
    order = _argsort(xp, x, dim=dim, descending=largest)
    return xp.getitem(order, at_dim(dim, slice(k)))


@public
def topk(
    input: TensorOnly, k: int, dim: Dim = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """The `k` largest (or smallest) elements along `dim`, and where they were.

    Args:
        input: a Tensor.
        k: how many, 0 to the size of `dim`.
        dim: the dimension to choose along.
        largest: the largest; False for the smallest.
        sorted: the most extreme first; here they come so always.

    Returns `(values, indices)`. Of equal elements the first are chosen, and they keep their order,
    as in `sort` (PyTorch leaves it open). A NaN counts as larger than every number. Raises
    RuntimeError for a `k` out of range.
    """
    fits = 0 <= whole(k) <= (input.shape[dim] if input.ndim else 1)
    need(fits, "topk", "selected index k={} out of range for dimension {} of {}", k, dim, input)
    if not input.ndim:
        return sort(input)
    return chosen(input, topk_dim(input, whole(k), dim, bool(largest)), dim, True)


@public
def kthvalue(input: TensorOnly, k: int, dim: Dim = -1, keepdim: bool = False) -> Any:
    """The `k`-th smallest element along `dim` (the smallest is number 1), and where it was.

    Returns `(values, indices)`; of equal elements the one that a stable sort brings there (PyTorch
    leaves it open). Raises RuntimeError for a `k` out of range, IndexError where there are no
    elements.
    """
    has_elements("kthvalue", input, (dim,) if input.ndim else None)
    fits = 1 <= whole(k) <= (input.shape[dim] if input.ndim else 1)
    need(fits, "kthvalue", "selected number k={} out of range for dim {} of {}", k, dim, input)
    order = argsort_dim(input, dim)
    if input.ndim:
        order = part(order, dim, k - 1, k)
    return chosen(input, order, dim, keepdim)


# The median ---------------------------------------------------------------------------------------


def _median_rule(g, x, result, skip):
    if not math.prod(x.shape):
        return zeros_like(x)
    if not skip:
        return share(g, x, result, None, False)
    ones = to_dtype((x == result) | (isnan(x) & isnan(result)), g.dtype)  # NaN: all are
    return ones * (g / clamp(sum_dims(ones, None, False), 1))


@primitive("median", x=_median_rule)
def median_all(xp, x, *, skip=False):
    """The lower median of all elements, NaN where there is one; `skip` leaves NaN out."""
    ordered = xp.sort(xp.reshape(x, -1))  # NaN comes last
    n = ordered.shape[0]
    if not n:
        return xp.full((), math.nan, x.dtype)
    if skip:
        left = xp.subtract(n - 1, xp.sum(xp.isnan(ordered)))
        return xp.take(ordered, xp.maximum(xp.floor_divide(left, 2), 0))
    middle, last = (xp.getitem(ordered, (i, Ellipsis)) for i in ((n - 1) // 2, n - 1))
    return xp.where(xp.isnan(last), last, middle)


def _of_all(name: str, x: Any, skip: bool) -> Any:
    some = x.numel() or x.dtype.kind == "f"
    need(some, name, "no elements, and integers have no NaN to say so")
    return median_all(x, skip)


def _along(name: str, x: Any, dim: int, keepdim: bool, rank: Any) -> Chosen:
    """The element of rank `rank(n, nans)` along `dim`, for n elements of which some are NaN."""
    has_elements(name, x, (dim,) if x.ndim else None)
    order = argsort_dim(x, dim)
    if x.ndim:
        ranks = rank(x.shape[dim], sum_dims(isnan(x), (dim,), True))
        order = gather_along(order, ranks, dim)
    return chosen(x, order, dim, keepdim)


@public
def median(input: NumericOnly, dim: Dim | None = None, keepdim: bool = False) -> Any:
    """The median, of an even number of elements the lower of two; `(values, indices)` along `dim`.

    Args:
        input: a Tensor of numbers.
        dim: the dimension; None for all elements, and then equal ones share the gradient evenly.
        keepdim: leave `dim` in place with size 1.

    NaN where there is one, with the index of the first; else the index, where elements are equal,
    is that of a stable sort (PyTorch leaves it open). Raises IndexError where there are no elements
    along `dim`, RuntimeError for booleans.
    """
    if dim is None:
        return _of_all("median", input, False)
    return _along(
        "median", input, dim, keepdim, lambda n, nans: where(nans > 0, n - nans, (n - 1) // 2)
    )


@public
def nanmedian(input: NumericOnly, dim: Dim | None = None, keepdim: bool = False) -> Any:
    """`median` of what is not NaN; NaN where nothing else is."""
    if dim is None:
        return _of_all("nanmedian", input, True)
    return _along("nanmedian", input, dim, keepdim, lambda n, nans: clamp((n - 1 - nans) // 2, 0))


# Distinct elements --------------------------------------------------------------------------------


def _distinct(
    name: str, x: Any, dim: int | None, inverse: bool, counts: bool, ordered: bool
) -> Any:
    """The distinct elements, or slices along `dim`, of all (ordered) or of each run of equals."""
    source, x = x, wrap(x._array)
    shape: tuple[int, ...] = (-1,)
    front: tuple[int, ...] = (0,)
    rows = reshape_to(x, (-1, 1))
    if dim is not None:
        need(x.ndim, name, "dim {} of a Tensor without dimensions", dim, error=IndexError)
        need(x.numel() or not x.shape[dim], name, "the slices along {} of {} are empty", dim, x)
        front = (dim, *(d for d in range(x.ndim) if d != dim))
        moved = permute_dims(x, front)
        shape = (-1 if x.numel() else 0, *moved.shape[1:])
        rows = reshape_to(moved, (len(moved), math.prod(shape[1:])))
    xp, n = XP[type(x._array)], len(rows)
    order = wrap(xp.arange(n))
    if ordered:  # by the last column first, so that the first one decides
        for column in reversed(range(rows.shape[1])):
            order = order[argsort_dim(rows[order, column], 0)]
        rows = rows[order]
    # A row is new where it differs from the one before; the first always is.
    new = cat([x.new_ones(min(n, 1), dtype=bool_), any_dims(ne(rows[1:], rows[:-1]), (1,))])
    starts = nonzero_rows(new)[:, 0]
    back = tuple(front.index(d) for d in range(len(front)))
    found = [underived(name, permute_dims(reshape_to(rows[starts], shape), back), source)]
    if inverse:
        group = cumsum(new, 0) - 1
        group = index_put(group, group, (order._array,))
        found.append(group if dim is not None else reshape_to(group, x.shape))
    if counts:
        found.append(cat([starts[1:], x.new_full((min(n, 1),), n, dtype=int64)]) - starts)
    return tuple(found) if len(found) > 1 else found[0]


@public
def unique(
    input: TensorOnly, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False, dim: Dim | None = None,
) -> Any:  # fmt: skip
    """The distinct elements in order; every NaN is one of its own.

    Their number depends on the values, so on a GPU this waits for them.

    Args:
        input: a Tensor.
        sorted: in order; here they are so always.
        return_inverse: also, for each element, the index of its value in the result.
        return_counts: also how often each value occurs.
        dim: distinct slices along this dimension, ordered by their first element, then the second
            ...; takes one sort for each element of a slice.

    Returns the values, or `(values, inverse, counts)` without what was not asked for. Raises
    IndexError for a dimension out of range, RuntimeError for empty slices and in a backward pass
    through the values.
    """
    return _distinct("unique", input, dim, return_inverse, return_counts, True)


@public
def unique_consecutive(
    input: TensorOnly, return_inverse: bool = False, return_counts: bool = False,
    dim: Dim | None = None,
) -> Any:  # fmt: skip
    """`unique` without sorting: one element for each run of equal ones."""
    return _distinct("unique_consecutive", input, dim, return_inverse, return_counts, False)


# Places in an ordered sequence --------------------------------------------------------------------


@public
def searchsorted(
    sorted_sequence: TensorOnly, input: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    """Where to insert each element of `input` so that the sequence stays in order.

    Args:
        sorted_sequence: (m,), or (..., m) with the leading dimensions of `input`; ascending along
            the last dimension (not checked).
        input: a Tensor of any shape, or (..., k), or for (m,) a number.
        out_int32: int32 instead of int64.
        right: behind equal elements instead of before them.
        side: "right" or "left", another way to say so.
        sorter: indices that sort the sequence, as of `argsort`.

    Returns indices from 0 to m in the shape of `input`. Raises RuntimeError for shapes that do not
    fit, another side, or a side that contradicts `right`.
    """
    fits = side in (None, "left", "right") and not (right and side == "left")
    need(fits, "searchsorted", "side {} with right={}: say one of the two", side, right)
    sequence = wrap(sorted_sequence._array)
    if type(input) not in TENSORS:
        number = isinstance(input, NUMBERS)
        text = "expected a Tensor or number"
        need(number, "searchsorted", text, type(input), error=TypeError)
        dtype = MODES.default_dtype if isinstance(input, float) else int64
        input = wrap(XP[type(sequence._array)].asarray(input, dtype))
    text = "a sequence of {} needs one dimension, or the leading dimensions of the input of {}"
    alike = sequence.ndim > 1 and sequence.shape[:-1] == input.shape[:-1]
    need(sequence.ndim == 1 or alike, "searchsorted", text, sequence, input)
    if sorter is not None:
        sequence = take_along_dim(sequence, sorter, -1)
    at, m = sequence.ndim - 1, sequence.shape[-1]
    values = wrap(input._array) if at else reshape_to(wrap(input._array), (-1,))
    low = cast(zeros_like(values), int64)
    high = low + m
    for _ in range(m.bit_length()):  # halves the stretch from low to high, where the place is
        middle = (low + high) // 2
        there = gather_along(sequence, clamp(middle, None, m - 1), at)
        # Said this way round a NaN goes to the end.
        behind = ~(there > values if right or side == "right" else there >= values)
        behind = behind & (low < high)
        low, high = where(behind, middle + 1, low), where(behind, high, middle)
    low = reshape_to(low, input.shape)
    return cast(low, int32) if out_int32 else low


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """The number of the bucket of each element, between ascending (m,) boundaries: 0 to m.

    An element equal to a boundary is in the bucket before it, with `right` in the one behind it.
    Raises RuntimeError for boundaries of another number of dimensions.
    """
    want_tensors("bucketize", boundaries=boundaries)
    need(boundaries.ndim == 1, "bucketize", "boundaries must be of 1 dimension", boundaries)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Whether each element is one of `test_elements`, or with `invert`, is not one of them.

    Either may be a number. `assume_unique` changes nothing here. A NaN is in nothing.
    """
    kinds = [type(x) in TENSORS for x in (elements, test_elements)]
    known = [isinstance(x, (Tensor, *NUMBERS)) for x in (elements, test_elements)]
    text = "expected a Tensor or number twice, one of them a Tensor"
    need(any(kinds) and all(known), "isin", text, error=TypeError)
    if all(kinds):
        x, tests = promote((wrap(elements._array), wrap(test_elements._array)))
        tests = msort(reshape_to(tests, (-1,)))
        if len(tests):
            place = clamp(searchsorted(tests, x), None, len(tests) - 1)
            found = reshape_to(gather_along(tests, reshape_to(place, (-1,)), 0), x.shape) == x
        else:
            found = zeros_like(x) != 0
    elif isinstance(test_elements, NUMBERS):
        found = elements == test_elements
    else:
        found = any_dims(test_elements == elements)
    return ~found if invert else found


publish(globals(), "bucketize", "isin")
