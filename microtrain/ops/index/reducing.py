"""Reductions into places that an index names: scatter_reduce, index_reduce; `put`, `slice_scatter`.

Products are made pairwise over the elements in the order of their places, and never divided; so
zeros need no special case in any derivative, and what is not finite stays in its place.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...backend import XP, bool_, float64, int64
from ...tensor import wrap
from ..arguments import want_in_range, want_shape
from ..coercion import cast
from ..fronts import Dim, Index, Int, OwnDim, SameDtype, T, TensorOnly, need, one_of, public
from ..pointwise.elementwise import add, clamp, div, floor_divide, mul, to_dtype, where
from ..reduce.scans import doubling
from ..reduce.sorting import argsort_dim
from ..registry import primitive, publish
from ..shape.joining import cat
from ..shape.shapes import expand_to, reshape_to, shaped_like
from .gathering import check_source, scatter_along, scattered, slices
from .indexing import at_dim, gather_along, part, places_along, select, ungather, unselect
from .indexing import index_put as put_at

# The extreme of all values for a place ------------------------------------------------------------


def _extreme(instruction: str) -> Any:
    """The kernel of `x` with the extreme of it and all `src` for a place.

    `own` says whether `x` has a share in it where something arrives; else it is the identity there.
    """

    def kernel(xp, x, index, src, *, dim, own=True):
        n, size = math.prod(index.shape), math.prod(x.shape)
        flat = xp.concatenate([xp.reshape(x, -1), xp.zeros(1, x.dtype)])
        places = xp.reshape(places_along(xp, index, x.shape, dim), -1)
        order = xp.argsort(places, 0)
        places, values = xp.take(places, order), xp.take(xp.reshape(src, -1), order)
        better = getattr(xp, instruction)

        def join(late: Any, early: Any) -> Any:  # values for the same place
            same = xp.equal(late[0], early[0])
            return late[0], xp.where(same, better(late[1], early[1]), late[1])

        places, values = doubling(xp, 0, join, places, values)
        if n:  # all but the last for each place go behind the end
            ends = xp.getitem(places, slice(1, None)), xp.getitem(places, slice(None, -1))
            last = xp.concatenate([xp.not_equal(*ends), xp.ones(1, bool_)])
            places = xp.where(last, places, xp.constant(size, int64))
            xp.setitem(flat, places, better(xp.take(flat, places), values))
        return xp.reshape(xp.getitem(flat, slice(size)), x.shape)

    return kernel


def _share(g: Any, x: Any, index: Any, src: Any, result: Any, dim: int, own: bool) -> Any:
    """The gradient for each of all that reach the extreme."""
    reached = to_dtype(src == gather_along(result, index, dim), g.dtype)
    mine = to_dtype(x == result, g.dtype)
    if not own:  # an infinite value is equal to the identity
        mine = where(ungather(reached * 0 + 1, index, dim, x.shape) > 0, 0, mine)
    return g / (mine + ungather(reached, index, dim, x.shape))


def _of_x(g, x, index, src, result, dim, own):
    return to_dtype(x == result, g.dtype) * _share(g, x, index, src, result, dim, own)


def _of_src(g, x, index, src, result, dim, own):
    reached = to_dtype(src == gather_along(result, index, dim), g.dtype)
    return reached * gather_along(_share(g, x, index, src, result, dim, own), index, dim)


scatter_amax = primitive("scatter_amax", _extreme("maximum"), x=_of_x, src=_of_src)
scatter_amin = primitive("scatter_amin", _extreme("minimum"), x=_of_x, src=_of_src)

# All reductions -----------------------------------------------------------------------------------


def _sum(x: Any, index: Any, src: Any, dim: int, own: bool) -> Any:
    return add(x, ungather(src, index, dim, x.shape))


def _prod(x: Any, index: Any, src: Any, dim: int, own: bool) -> Any:
    n, size, xp = math.prod(index.shape), math.prod(x.shape), XP[type(x._array)]
    if not n:
        return add(x, 0)
    places = reshape_to(wrap(places_along(xp, index._array, x.shape, dim)), (-1,))
    order = argsort_dim(places, 0)
    places = gather_along(places, order, 0)
    values = gather_along(reshape_to(src, (-1,)), order, 0)
    step = 1
    while step < n:  # of the last 1, 2, 4 ... values for the same place
        before = where(places[step:] == places[:-step], values[:-step], 1)
        values = cat([values[:step], mul(values[step:], before)])
        step *= 2
    last = cat([places[1:] != places[:-1], x.new_ones(1, dtype=bool_)])
    # All but the last product for each place go behind the end.
    factors = put_at(x.new_ones(size + 1), values, (where(last, places, size)._array,))
    return mul(x, reshape_to(part(factors, 0, None, size), x.shape))


# What reduces, and what stays as it is in that reduction, by dtype.
_REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "sum": (_sum, lambda dtype: 0),
    "prod": (_prod, lambda dtype: 1),
    "mean": (_sum, lambda dtype: 0),
    "amax": (scatter_amax, lambda dtype: _limit(dtype, "min")),
    "amin": (scatter_amin, lambda dtype: _limit(dtype, "max")),
}


def _limit(dtype: Any, end: str) -> Any:
    if dtype.kind == "f":
        return -math.inf if end == "min" else math.inf
    return end == "max" if dtype.kind == "b" else int(getattr(np.iinfo(dtype), end))


def _reduced(x: Any, index: Any, src: Any, dim: int, reduce: str, include_self: bool) -> Any:
    if x.dtype.kind == "b":  # a sum of truths is whether there is one, a product whether all are
        text = "a mean of booleans is not defined; cast them, such as with .int()"
        need(reduce != "mean", "reduce='mean'", text)
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    operation, identity = _REDUCTIONS[reduce]
    if not include_self:
        x = scatter_along(x, index, identity(x.dtype), dim)
    result = operation(x, index, src, dim, include_self)
    if reduce != "mean":
        return result
    ones = cast(index * 0 + 1, float64)  # CuPy adds no int64
    counts = cast(clamp(ungather(ones, index, dim, x.shape) + include_self, 1, None), x.dtype)
    return div(result, counts) if x.dtype.kind == "f" else floor_divide(result, counts)


@public
def scatter_reduce(
    input: TensorOnly, dim: Dim, index: Index, src: SameDtype,
    reduce: Annotated[str, one_of(*_REDUCTIONS)], *, include_self: bool = True,
) -> Any:  # fmt: skip
    """`input` reduced with the values of `src` at the places that `index` says, as in `scatter`.

    Args:
        input, dim, index: as for `scatter`.
        src: a Tensor of the dtype of `input`.
        reduce: "sum", "prod", "mean" (of integers rounded down), "amax" or "amin".
        include_self: whether the elements of `input` count where something arrives.

    Equal extremes share the gradient evenly. Raises RuntimeError for shapes and dtypes that do not
    fit and for an index out of range.
    """

    def operation(x: Any, places: Any, values: Any, at: int) -> Any:
        return _reduced(x, places, values, at, reduce, bool(include_self))

    return scattered("scatter_reduce", input, dim, index, src, operation)


@public
def index_reduce(
    input: TensorOnly, dim: Dim, index: Index, source: SameDtype,
    reduce: Annotated[str, one_of("prod", "mean", "amax", "amin")], *, include_self: bool = True,
) -> Any:  # fmt: skip
    """`input` with its slices along `dim` that `index` names reduced with those of `source`.

    Arguments as for `index_add` and `scatter_reduce`.
    """
    x, _, index = slices("index_reduce", input, dim, index)
    source = check_source("index_reduce", input, dim, index, source)
    places = expand_to(reshape_to(index, (-1,) + (1,) * (x.ndim - dim - 1)), source.shape)
    return shaped_like(_reduced(x, places, source, dim, reduce, bool(include_self)), input)


# Values in given places ---------------------------------------------------------------------------


@public
def put(input: TensorOnly, index: Index, source: SameDtype, accumulate: bool = False) -> Any:
    """The flattened `input` with `source` written at `index`, or added, in the shape of `input`.

    Negative indices count from the end. Raises IndexError for one out of range, RuntimeError for
    another number of elements or another dtype.
    """
    same = index.numel() == source.numel()
    need(same, "put", "expected as many elements in source as in index", source, index)
    n, places = input.numel(), reshape_to(index, (-1,))
    want_in_range("put", places._array, 0, -n, n, IndexError)
    parts, values = (places._array.copy(),), reshape_to(source, (-1,))
    if accumulate:
        return add(input, reshape_to(unselect(values, (n,), parts), input.shape))
    return shaped_like(put_at(reshape_to(input, (-1,)), values, parts), input)


def _put_part(name: str, x: Any, src: Any, parts: tuple[Any, ...]) -> Any:
    want_shape(name, "src", src, select(x, parts).shape)
    return put_at(x, cast(src, x.dtype), parts)


@public
def select_scatter(input: T, src: T, dim: OwnDim, index: Int) -> Any:
    """A copy of `input` with `src` in place of `input.select(dim, index)`."""
    return _put_part("select_scatter", input, src, at_dim(dim, index))


@public
def slice_scatter(
    input: T, src: T, dim: OwnDim = 0, start: Any = None, end: Any = None, step: Int = 1
) -> Any:
    """A copy of `input` with `src` in place of the elements `start:end:step` along `dim`."""
    return _put_part("slice_scatter", input, src, at_dim(dim, slice(start, end, step)))


@public
def unravel_index(indices: Index, shape: Any) -> tuple[Any, ...]:
    """Indices into a flattened Tensor of `shape` as one Tensor of indices for each dimension."""
    found = []
    for size in reversed([shape] if isinstance(shape, int) else list(shape)):
        found.append(indices % size)
        indices = indices // size
    return tuple(reversed(found))


publish(globals())
