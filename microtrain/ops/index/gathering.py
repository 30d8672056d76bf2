"""Reading and writing at indices given by Tensors, and where a mask says: gather, scatter ...

Indices out of range are refused on the CPU; on a GPU looking at the values would wait for it.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...backend import MODES, XP, address, bool_, int64, owner_of
from ...tensor import TENSORS, wrap
from .. import arguments
from ..arguments import integer, scalar_like, want_in_range, want_integers, want_same_dtype
from ..coercion import cast, examine
from ..fronts import Dim, Index, Ints, Mask, SameDtype, TensorOnly, need, one_of, public, wrong
from ..pointwise import elementwise as e
from ..reduce.scans import cumsum
from ..registry import primitive, publish
from ..shape.shapes import expand, line, reshape_to, shaped_like
from . import indexing
from .indexing import gather_along, gather_index, kept_index, select, unselect
from .indexing import index_put as put_at


@public
def as_strided(input: TensorOnly, size: Ints, stride: Ints, storage_offset: Any = None) -> Any:
    """Elements by their place in memory, to be read: at index i that at offset + sum(i * stride).

    A copy, with a gradient, that refuses to be written to: PyTorch's is a view.

    Args:
        input: what has the memory; no element of it may be left.
        size, stride: of the result, strides in elements.
        storage_offset: the first element, as `storage_offset()`; None for that of `input`.

    Raises RuntimeError for sizes and strides of other numbers or below 0, and for elements outside.
    """
    x, base = line(input), line(input)._array
    fits = len(size) == len(stride) and min((*size, *stride), default=0) >= 0
    need(fits, "as_strided", "expected as many sizes as strides, none below 0", size, stride)
    first = 0
    if storage_offset is not None:
        first = integer("as_strided", "storage_offset", storage_offset)
        first -= (address(base) - address(owner_of(base))) // base.dtype.itemsize
    out = gather_index(x, indexing.places_in_memory(base, size, stride, first))
    if type(out._array) is np.ndarray:
        out._array.flags.writeable = False
    return out


# Elements along one dimension ---------------------------------------------------------------------


def _check_sizes(name: str, index: Any, what: str, x: Any, free: int = -1) -> None:
    """RuntimeError for an index of other dimensions than `x`, or larger in any but `free`."""
    text = f"the index must have the number of dimensions of {what}"
    need(index.ndim == x.ndim, name, text, index, x)
    for axis, n in enumerate(index.shape):
        if n > x.shape[axis] and axis != free:
            raise wrong(
                name, f"expected an index no larger than {what} in dimension {axis}", index, x
            )


@public
def gather(input: TensorOnly, dim: Dim, index: TensorOnly) -> Any:
    """The elements that `index` names along `dim`: `out[i][j] = input[index[i][j]][j]` for dim 0.

    Args:
        input: a Tensor.
        dim: the dimension to choose along.
        index: int64 or int32, with as many dimensions as `input` and in all but `dim` no larger;
            an empty one may be of any dtype and shape.

    Returns a Tensor in the shape of `index`. Raises RuntimeError for an index that does not fit or
    is out of range; a negative one is.
    """
    x = line(input)
    if index.numel():
        places = line(want_integers("gather", index))
    else:
        places = cast(reshape_to(index, (0,) * x.ndim), int64)
    _check_sizes("gather", places, "self", x, dim)
    want_in_range("gather", places._array, dim, 0, x.shape[dim], RuntimeError)
    return shaped_like(gather_along(x, places, dim), index)


@public
def take_along_dim(input: TensorOnly, indices: Index, dim: Dim | None = None) -> Any:
    """The elements that `indices` names along `dim`, both broadcast in the other dimensions.

    Without `dim` both are flattened; negative indices count from the end. It is what fits the
    results of `argsort` and `argmax`.
    Raises RuntimeError for numbers of dimensions that differ and for an index out of range.
    """
    if dim is None:
        return take_along_dim(reshape_to(input, (-1,)), reshape_to(indices, (-1,)), 0)
    text = "input and indices must have the same number of dimensions"
    need(input.ndim == indices.ndim, "take_along_dim", text, input, indices)
    pairs = list(zip(input.shape, indices.shape, strict=True))
    joint = [b if a == 1 else a for a, b in pairs]
    x = expand(input, *joint[:dim], -1, *joint[dim + 1 :]) if pairs else input
    places = expand(indices, *joint[:dim], -1, *joint[dim + 1 :]) if pairs else indices
    size = x.shape[dim] if pairs else 1
    want_in_range("take_along_dim", places._array, dim, -size, size, RuntimeError)
    return gather(x, dim, e.where(places < 0, places + size, places))


@primitive("standing_along")
def standing_along(xp, x, index, *, dim):
    places = indexing.places_along(xp, index, x.shape, dim)
    return indexing.standing(xp, (math.prod(x.shape),), (places,))


def _of_source(g, index, dim):
    found = gather_along(g, index, dim)
    if index.shape[dim] == 1:  # one each cannot repeat
        return found
    return e.where(standing_along(g, index, dim), found, 0)


@primitive(
    "scatter",
    x=lambda g, index, dim: scatter_along(g, index, 0, dim),
    src=_of_source,
    promote=("x", "src"),
)
def scatter_along(xp, x, index, src, *, dim):
    """A copy of `x` with `src` written where `index` says along `dim`."""
    out = xp.copy(x)
    xp.setitem(xp.reshape(out, -1), indexing.places_along(xp, index, x.shape, dim), src)
    return out


def scattered(name: str, input: Any, dim: int, index: Any, src: Any, operation: Any) -> Any:
    """`operation(x, index, src, dim)` on arguments that fit."""
    x, places, src = line(input), line(index), line(src)
    if not places.numel():  # which may have any shape
        places = reshape_to(places, (0,) * x.ndim)
        src = reshape_to(select(reshape_to(src, (-1,)), (slice(0), Ellipsis)), places.shape)
    _check_sizes(name, places, "self", x, dim)
    _check_sizes(name, places, "src", src)
    want_in_range(name, places._array, dim, 0, x.shape[dim], RuntimeError)
    if src.shape != places.shape:
        src = select(src, (*(slice(n) for n in places.shape), Ellipsis))
    return shaped_like(operation(x, places, src, dim), input)


@public
def scatter(
    input: TensorOnly, dim: Dim, index: Index, src: Any = None, *, value: Any = None,
    reduce: Annotated[str | None, one_of("add")] = None,
) -> Any:  # fmt: skip
    """A copy of `input` with `src` written where `index` says: `out[index[i][j]][j] = src[i][j]`.

    Args:
        input: a Tensor.
        dim: the dimension that `index` counts along (0 above).
        index: int64 or int32, with as many dimensions as `input`, no larger than `src`, and in all
            but `dim` no larger than `input`. Of several values for one place the last stays (on a
            GPU it is open which).
        src: a Tensor of the dtype of `input`, or a number, which may also be called `value`.
        reduce: None, or "add", which is `scatter_add`; "multiply" is refused.

    Raises RuntimeError for shapes and dtypes that do not fit and for an index out of range,
    TypeError for anything but Tensors and numbers.
    """
    one = (src is None) != (value is None)
    need(one, "scatter", "expected either src or value", error=TypeError)
    if type(src) in TENSORS:
        want_same_dtype("scatter", "src", src, input)
    else:
        one = scalar_like("scatter", input, value if src is None else src)
        src = expand(one, index.shape)
    operation = scatter_along if reduce is None else _add_scattered
    return scattered("scatter", input, dim, index, src, operation)


@public
def scatter_add(input: TensorOnly, dim: Dim, index: Index, src: SameDtype) -> Any:
    """`input` with `src` added where `index` says, every time: `out[index[i][j]][j] += src[i][j]`.

    Arguments and errors are those of `scatter`; `src` is a Tensor. On a GPU the dtypes are those of
    CuPy's `scatter_add`, all floats and int32.
    """
    return scattered("scatter_add", input, dim, index, src, _add_scattered)


def _add_scattered(x: Any, index: Any, src: Any, dim: int) -> Any:
    return e.add(x, indexing.ungather(src, index, dim, x.shape))


# Whole slices along one dimension -----------------------------------------------------------------


def slices(name: str, x: Any, dim: int, index: Any, low: int = 0) -> tuple[Any, Any, Any]:
    """`x` with at least one dimension, the index of slices along `dim` of it, and that vector."""
    index = line(index)
    need(index.ndim < 2, name, "index must be a vector", index, error=IndexError)
    x = line(x)
    size = x.shape[dim]
    want_in_range(name, index._array, dim, low * size, size, IndexError)
    parts = (slice(None),) * dim + (index._array,)
    return x, kept_index(parts) if MODES.grad else parts, index


@public
def index_select(input: TensorOnly, dim: Dim, index: Index) -> Any:
    """The slices of `input` along `dim` that the vector `index` names; a copy.

    Raises IndexError for an index out of range; a negative one is. RuntimeError for another dtype
    than int64 and int32.
    """
    x, parts, index = slices("index_select", input, dim, index)
    fits = input.ndim or index.shape == (1,)
    need(fits, "index_select", "a 0-d Tensor has one element to select", index)
    result = gather_index(x, parts)
    return result if input.ndim else reshape_to(result, ())


def check_source(name: str, x: Any, dim: int, index: Any, source: Any) -> Any:
    """`source`, where it has one slice of `x` for each index."""
    source, shape = line(source), line(x).shape
    wanted = (*shape[:dim], index.shape[0], *shape[dim + 1 :])
    arguments.want_shape(
        name, "a source", source, wanted, RuntimeError if name == "index_add" else IndexError
    )
    return source


@public
def index_add(
    input: TensorOnly, dim: Dim, index: Index, source: SameDtype, *, alpha: Any = 1
) -> Any:
    """`input` with `alpha * source` added to the slices along `dim` that `index` names, each time.

    Args:
        input: a Tensor.
        dim: the dimension that `index` counts along.
        index: a vector of int64 or int32.
        source: of the dtype of `input`, with one slice for each index.
        alpha: a number; for integers an integer.

    Raises IndexError for an index out of range; a negative one is. RuntimeError for shapes or
    dtypes that do not fit.
    """
    x, parts, index = slices("index_add", input, dim, index)
    source = check_source("index_add", input, dim, index, source)
    if alpha != 1:
        source = e.mul(source, scalar_like("index_add", source, alpha))
    return shaped_like(e.add(x, unselect(source, x.shape, parts)), input)


@public
def index_copy(input: TensorOnly, dim: Dim, index: Index, source: SameDtype) -> Any:
    """`input` with the slices along `dim` that `index` names replaced by those of `source`.

    Of several slices for one place the last stays (on a GPU it is open which). Arguments as for
    `index_add`; shapes that do not fit are an IndexError.
    """
    x, parts, index = slices("index_copy", input, dim, index)
    source = check_source("index_copy", input, dim, index, source)
    return shaped_like(put_at(x, source, parts), input)


@public
def index_fill(input: TensorOnly, dim: Dim, index: Index, value: Any) -> Any:
    """`input` with the slices along `dim` that `index` names set to a number or a 0-d Tensor.

    Negative indices count from the end. Raises IndexError for one out of range, RuntimeError for a
    value that the dtype of `input` cannot hold.
    """
    x, parts, _ = slices("index_fill", input, dim, index, -1)
    xp = XP[type(x._array)]
    value = scalar_like("index_fill", input, value)
    # A mask, because the gradient of the value must count a repeated index once.
    shape = (x.shape[len(parts) - 1], *(1,) * (x.ndim - len(parts)))
    mask = xp.zeros(shape, bool_)
    xp.setitem(mask, parts[-1:], True)
    return shaped_like(e.where(wrap(mask), value, x), input)


# Where a mask says, and at places in all dimensions at once ---------------------------------------


@public
def fill(input: TensorOnly, value: Any) -> Any:
    """A Tensor like `input` full of `value`, a number or a 0-d Tensor."""
    return e.instead_of(input, scalar_like("fill", input, value))


# Masks --------------------------------------------------------------------------------------------


@public
def masked_fill(input: TensorOnly, mask: Mask, value: Any) -> Any:
    """`input` with `value` where `mask` is True, broadcast.

    Args:
        input: a Tensor.
        mask: a Tensor of booleans that broadcasts with `input`.
        value: a number or a 0-d Tensor that the dtype of `input` can hold.

    Raises RuntimeError for another mask or value.
    """
    return e.where(mask, scalar_like("masked_fill", input, value), input)


def _together(x: Any, mask: Any) -> tuple[Any, Any]:
    """Both broadcast to one shape."""
    if x.shape == mask.shape:
        return x, mask
    try:
        shape = np.broadcast_shapes(x.shape, mask.shape)
    except ValueError:
        raise wrong("mask", "{} does not broadcast with {}", mask, x) from None
    return expand(x, shape), expand(mask, shape)


@public
def masked_select(input: TensorOnly, mask: Mask) -> Any:
    """The elements where `mask` is True, broadcast, as a vector.

    Its length depends on the values, so on a GPU this waits for them. Raises RuntimeError for a
    mask that is not boolean or does not broadcast.
    """
    x, mask = _together(input, mask)
    return gather_index(line(x), kept_index((line(mask)._array,)))


@public
def masked_scatter(input: TensorOnly, mask: Mask, source: SameDtype) -> Any:
    """`input` with the first elements of `source`, in order, where `mask` is True.

    Raises RuntimeError for a mask that is not boolean, another dtype, or a source with too few
    elements (on a GPU, where looking would wait for it, the last one is repeated).
    """
    x, mask = _together(input, mask)
    n = source.numel()
    text = "the mask has {} places, source only {}"
    examine(mask, lambda a: need(a.sum() <= n, "masked_scatter", text, a.sum(), n))
    if not n:
        return e.clone(x)
    number = e.clamp(cumsum(reshape_to(mask, (-1,)), 0) - 1, 0, n - 1)
    values = gather_index(reshape_to(source, (-1,)), (number._array,))
    return e.where(mask, reshape_to(values, x.shape), x)


# Places in all dimensions -------------------------------------------------------------------------


@public
def take(input: TensorOnly, index: Index) -> Any:
    """The elements of the flattened `input` at `index`, in its shape; negatives from the end.

    Raises IndexError for an index out of range.
    """
    parts = (line(index)._array,)
    result = gather_index(reshape_to(input, (-1,)), kept_index(parts) if MODES.grad else parts)
    return shaped_like(result, index)


@public
def index_put(input: TensorOnly, indices: Any, values: SameDtype, accumulate: bool = False) -> Any:
    """`input` with `values` written at `input[indices]`, or added there with `accumulate`.

    Args:
        input: a Tensor.
        indices: a tuple of Tensors of integers or booleans, as in `input[indices]`.
        values: a Tensor of the dtype of `input` that broadcasts to `input[indices]`.
        accumulate: add, for a repeated index every time. Without it the last value stays.

    Raises IndexError for an index out of range, RuntimeError for a dtype or shape that does not
    fit.
    """
    listed = isinstance(indices, tuple | list)
    need(listed, "index_put", "indices must be a tuple", type(indices), error=TypeError)
    for index in indices:
        arguments.want_tensors("index_put", indices=index)
    parts, _ = indexing.normal_index(tuple(indices), XP[type(input._array)])
    parts = kept_index(parts)
    if not accumulate:
        return put_at(input, values, parts)
    dim = 0
    for part in parts:
        fits = dim < input.ndim or part is Ellipsis
        need(fits, "index_put", "too many indices for dimensions", input.ndim, error=IndexError)
        mask = getattr(part, "dtype", int64).kind == "b"
        if not mask and part is not Ellipsis:
            index = np.asarray(part) if type(part) is int else part
            want_in_range("index_put", index, dim, -input.shape[dim], input.shape[dim], IndexError)
        dim += part.ndim if mask else 1
    return e.add(input, unselect(values, input.shape, parts))


@primitive("nonzero")
def nonzero_rows(xp, x):
    """The indices of the elements that are not 0, one row each."""
    found = xp.nonzero(x if x.shape else xp.reshape(x, -1))
    if not x.shape:
        return xp.empty((found[0].shape[0], 0), int64)
    return xp.concatenate([xp.reshape(column, (-1, 1)) for column in found], axis=1)


@public
def nonzero(input: TensorOnly, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not 0, in row-major order.

    Their number depends on the values, so on a GPU this waits for them.

    Returns an (n, ndim) Tensor of int64; with `as_tuple` one vector a dimension, which is an index
    for those elements.
    """
    if not as_tuple:
        return nonzero_rows(input)
    rows = nonzero_rows(line(input))
    return tuple(select(rows, (slice(None), column, Ellipsis)) for column in range(rows.shape[1]))


@public
def argwhere(input: TensorOnly) -> Any:
    """The indices of the elements that are not 0, one row each; `nonzero(input)`."""
    return nonzero_rows(input)


@public
def where(condition: TensorOnly, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition`, else `other`, broadcast; alone, `nonzero(condition, as_tuple)`.

    Args:
        condition: a Tensor of booleans (alone: of anything).
        input, other: Tensors or numbers; both or none.

    Raises RuntimeError for a condition that is not boolean, TypeError for only one of two.
    """
    if input is not None and other is not None:
        return e.where(condition, input, other)
    alone = input is None and other is None
    text = "expected a condition alone, or with both input and other"
    need(alone, "where", text, error=TypeError)
    return nonzero(condition, as_tuple=True)


publish(globals())
