"""The same elements elsewhere or several times: flip, roll, repeat, move dimensions, make grids."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Annotated, Any

import numpy as np

from ...backend import MODES, XP, as_dtype, int64, made, resolve_device, to_device, to_host
from ...errors import need
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import integer, integers, want_shape
from ..coercion import cast, promote
from ..fronts import Count, Int, IntOrInts, Ints, Matrices, Numeric, T, Vector, of_dims, public
from ..index.indexing import gather_index
from ..pointwise.elementwise import clone, contiguous_copy, where, zeros_like
from ..reduce.reductions import sum_dims
from ..registry import primitive, publish
from . import shapes
from .joining import atleast_2d, cat, checked_tensors, stack
from .shapes import broadcast_shape, dim_of, expand_to, flatten, permute_dims, reshape_to, transpose


def _distinct(name: str, x: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    """`dims` counted from the front; RuntimeError where one appears twice."""
    found = tuple(shapes.normal_dim(d, x.ndim) for d in dims)
    need(len(set(found)) == len(found), name, "a dimension appears multiple times", list(dims))
    return found


def _listed(name: str, what: str, sizes: tuple[Any, ...], keyword: Any) -> tuple[int, ...]:
    """The integers of a call that takes `f(2, 3)`, `f((2, 3))` and `f(what=(2, 3))`."""
    one = (keyword is None) != (not sizes)
    need(one, name, "expected {}, one by one or as a tuple", what, error=TypeError)
    return integers(name, what, shapes.sizes_of(sizes) if keyword is None else keyword)


# Another order of the elements --------------------------------------------------------------------


flip_dims = primitive(
    "flip",
    lambda xp, x, *, dims: xp.copy(xp.flip(x, axis=dims)),
    x=lambda g, dims: flip_dims(g, dims),
)
roll_dims = primitive(
    "roll",
    lambda xp, x, *, shifts, dims: xp.roll(x, shifts, axis=dims),
    x=lambda g, shifts, dims: roll_dims(g, tuple(-s for s in shifts), dims),
)


@public
def flip(x: T, *sizes: Any, dims: Any = None) -> Any:
    """A copy with the elements of dimensions `dims` in reverse order.

    Raises RuntimeError for a dimension named twice, IndexError for one out of range.
    """
    found = _distinct("flip", x, _listed("flip", "dims", sizes, dims))
    return flip_dims(x, found) if x.ndim else clone(x)


@public
def fliplr(x: Matrices) -> Any:
    """A copy with the columns in reverse order; RuntimeError for less than 2 dimensions."""
    return flip_dims(x, (1,))


@public
def flipud(x: Annotated[T, of_dims(1)]) -> Any:
    """A copy with the rows in reverse order; RuntimeError for a 0-d Tensor."""
    return flip_dims(x, (0,))


@public
def roll(x: T, shifts: IntOrInts, dims: IntOrInts = None) -> Any:
    """A copy with the elements moved by `shifts` along `dims`, the last ones to the front.

    Args:
        x: a Tensor.
        shifts: an int, or one for each dimension.
        dims: an int or a tuple; None rolls the flattened elements.

    Raises RuntimeError where the numbers of shifts and dimensions differ.
    """
    dims = dims or ()
    if not dims and len(shifts) == 1:
        return reshape_to(roll_dims(reshape_to(x, (math.prod(x.shape),)), shifts, (0,)), x.shape)
    same = shifts and len(shifts) == len(dims)
    need(same, "roll", "shifts and dimensions must align", shifts, dims)
    return roll_dims(x, shifts, tuple(dim_of("roll", x, d) for d in dims))


@public
def rot90(x: T, k: Int = 1, dims: Ints = (0, 1)) -> Any:
    """A copy turned `k` times by 90 degrees from the first of two `dims` towards the other.

    Raises RuntimeError unless there are two different dimensions.
    """
    need(len(dims) == 2 <= x.ndim, "rot90", "expected 2 dimensions of at least 2", list(dims))
    a, b = _distinct("rot90", x, dims)
    turns = k % 4
    if turns == 0:
        return clone(x)
    if turns == 2:
        return flip_dims(x, (a, b))
    return flip_dims(transpose(x, a, b), (a if turns == 1 else b,))


# Several times ------------------------------------------------------------------------------------


def _repeated(name: str, x: Any, counts: tuple[int, ...]) -> Any:
    """`x` side by side, `counts` times along each dimension."""
    need(min(counts, default=0) >= 0, name, "counts must not be negative", list(counts))
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    apart = reshape_to(x, tuple(n for size in shape for n in (1, size)))
    wide = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    joined = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape_to(contiguous_copy(expand_to(apart, wide)), joined)


def repeat(x: Any, *sizes: Any, repeats: Any = None) -> Any:
    """A copy of `x` repeated so many times along each dimension; more counts add dimensions.

    Raises RuntimeError for a negative count or fewer counts than dimensions.
    """
    counts = _listed("repeat", "repeats", sizes, repeats)
    text = "{} counts for {} dimensions; give one for each"
    need(len(counts) >= x.ndim, "repeat", text, len(counts), x.ndim)
    return _repeated("repeat", x, counts)


@public
def tile(x: T, *sizes: Any, dims: Any = None) -> Any:
    """Like `Tensor.repeat`, but counts that are missing in front are 1."""
    counts = _listed("tile", "dims", sizes, dims)
    return _repeated("tile", x, (1,) * (x.ndim - len(counts)) + counts)


@public
def repeat_interleave(
    x: T, repeats: Any = None, dim: Any = None, *, output_size: int | None = None
) -> Any:
    """Each element along `dim` repeated in place.

    Args:
        x: a Tensor; alone, with no `repeats`, it is the counts, and the result their indices.
        repeats: how often, an int, or an integer Tensor with one count or one for each element.
        dim: the dimension; None flattens first.
        output_size: what the counts add up to, checked.

    Raises RuntimeError for negative counts, another number of them, or another `output_size`.

    Example:
        >>> mt.repeat_interleave(mt.tensor([7, 8]), mt.tensor([1, 2]))
        tensor([7, 8, 8])
    """
    if repeats is None:
        places = _places(x, x.shape[0] if x.ndim else 1)
        return wrap(XP[type(x._array)].asarray(places))
    if dim is None:
        x, dim = flatten(x) if x.ndim else reshape_to(x, (1,)), 0
    at = dim_of("repeat_interleave", x, dim)
    size = x.shape[at]
    places = None
    if type(repeats) in TENSORS:
        places = _places(repeats, size)
        total = len(places)
    else:
        count = integer("repeat_interleave", "repeats", repeats)
        need(count >= 0, "repeat_interleave", "repeats must not be negative", count)
        total = size * count
    same = output_size in (None, total)
    text = "output_size is {}, but the repeats give {}"
    need(same, "repeat_interleave", text, output_size, total)
    if places is not None:
        index = XP[type(x._array)].asarray(places)
        return gather_index(x, (*(slice(None),) * at, index))
    wide = (*x.shape[: at + 1], count, *x.shape[at + 1 :])
    copies = contiguous_copy(expand_to(shapes.unsqueeze(x, at + 1), wide))
    return reshape_to(copies, (*x.shape[:at], total, *x.shape[at + 1 :]))


def _places(repeats: Any, size: int) -> Any:
    """The indices that take each of `size` elements as often as `repeats` says."""
    counts = to_host(repeats._array)
    fits = counts.dtype.name in ("int32", "int64") and counts.ndim < 2
    text = "repeats must be an int32 or int64 Tensor of 0 or 1 dimensions"
    need(fits, "repeat_interleave", text, counts.dtype, counts)
    fits = counts.size in (1, size) and not (counts < 0).any()
    text = f"repeats must be one count or {size}, none negative"
    need(fits, "repeat_interleave", text, counts.size)
    return np.repeat(np.arange(size), counts)


# Another order of the dimensions ------------------------------------------------------------------


@public
def movedim(x: T, source: IntOrInts, destination: IntOrInts) -> Any:
    """The dimensions `source` (one or several) moved to `destination`, the others in order; a view.

    Raises RuntimeError for a dimension named twice or different numbers of them.
    """
    source, destination = (_distinct("movedim", x, dims) for dims in (source, destination))
    text = "source and destination must have the same number of dimensions"
    need(len(source) == len(destination), "movedim", text, source, destination)
    order = [d for d in range(x.ndim) if d not in source]
    for to, dim in sorted(zip(destination, source, strict=True)):
        order.insert(to, dim)
    return permute_dims(x, tuple(order)) if x.ndim else x


@public
def swapaxes(x: T, axis0: int, axis1: int) -> Any:
    """Two dimensions exchanged, by NumPy's name for `transpose`; a view."""
    return transpose(x, axis0, axis1)


@public
def swapdims(x: T, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged, another name of `transpose`; a view."""
    return transpose(x, dim0, dim1)


moveaxis = movedim

# Broadcasting -------------------------------------------------------------------------------------


def broadcast_shapes(*given: Any) -> tuple[int, ...]:
    """The common shape of several; RuntimeError where there is none."""
    found = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in given]
    return broadcast_shape("broadcast_shapes", *found)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """The Tensors broadcast to their common shape; views. RuntimeError where there is none."""
    found = checked_tensors("broadcast_tensors", tensors)
    shape = broadcast_shape("broadcast_tensors", *(x.shape for x in found))
    return tuple(expand_to(x, shape) for x in found)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Any, ...]:
    """Coordinates of a grid: Tensor i, spread along dimension i of all results; views.

    Args:
        tensors: 0-d or 1-d Tensors of one dtype, one by one or as a list.
        indexing: "ij", or "xy", which exchanges the first two dimensions of the results. Without
            it there is a warning, as in PyTorch, and "ij".

    Raises RuntimeError for more dimensions, different dtypes, no Tensors or another `indexing`.
    """
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        tensors = tuple(tensors[0])
    found = checked_tensors("meshgrid", tensors)
    if indexing is None:
        warnings.warn(
            "meshgrid: it will be required to pass the indexing argument; write indexing='ij'",
            stacklevel=2,
        )
    fits = found and all(x.ndim < 2 and x.dtype == found[0].dtype for x in found)
    given = [f"{x.shape} {x.dtype.name}" for x in found]
    need(fits, "meshgrid", "expected 0-d or 1-d Tensors of the same dtype", given)
    need(indexing in (None, "ij", "xy"), "meshgrid", "indexing must be 'ij' or 'xy'", indexing)
    shape = tuple(math.prod(x.shape) for x in found)
    grids = tuple(
        expand_to(reshape_to(x, (size,) + (1,) * (len(found) - place - 1)), shape)
        for place, (x, size) in enumerate(zip(found, shape, strict=True))
    )
    if indexing != "xy" or len(found) < 2:
        return grids
    return tuple(transpose(grid, 0, 1) for grid in grids)


# Each with each, and on a diagonal ----------------------------------------------------------------


def block_diag(*tensors: Any) -> Any:
    """A matrix of zeros with the given matrices along its diagonal; vectors are rows.

    Of nothing it has the shape (1, 0).
    """
    if not tensors:
        return wrap(made(np.empty((1, 0), MODES.default_dtype)))
    found = atleast_2d(list(promote(checked_tensors("block_diag", tensors))))
    need(all(x.ndim < 3 for x in found), "block_diag", "expected at most 2 dimensions", *found)
    width, before, rows = sum(x.shape[1] for x in found), 0, []
    for x in found:
        behind = width - before - x.shape[1]
        sides = [x.new_zeros(x.shape[0], n) for n in (before, behind)]
        rows.append(cat([sides[0], x, sides[1]], 1))
        before += x.shape[1]
    return cat(rows)


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of one element of each of several vectors, as the rows of a matrix.

    Of one vector it is the vector itself.
    """
    found = checked_tensors("cartesian_prod", tensors)
    need(all(x.ndim == 1 for x in found), "cartesian_prod", "expected vectors", *found)
    if len(found) == 1:
        return found[0]
    return stack([flatten(x) for x in meshgrid(*found, indexing="ij")], 1)


@public
def combinations(input: Vector, r: Count = 2, with_replacement: bool = False) -> Any:
    """All choices of `r` elements of a vector, in their order, as the rows of a matrix.

    `with_replacement` allows an element several times. Raises RuntimeError for a negative `r`.
    """
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    if not r:
        return input[:0]
    chosen = np.array(list(choose(range(len(input)), r)), np.int64).reshape(-1, r)
    return gather_index(input, (XP[type(input._array)].asarray(made(chosen)),))


# Triangles ----------------------------------------------------------------------------------------


def _triangle(name: str, zeroed: str) -> Any:
    """The primitive and the public function `tril` or `triu`."""

    def kernel(xp, x, *, diagonal=0):
        return getattr(xp, name)(x, diagonal)

    operation = primitive(name, kernel, x=lambda g, diagonal: operation(g, diagonal))

    def function(x: Matrices, diagonal: Int = 0) -> Any:
        return operation(x, diagonal)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Matrices with zeros {zeroed} diagonal number `diagonal` (above the main one: positive)."
    )
    return operation, public(function)


lower_triangle, tril = _triangle("tril", "above")
upper_triangle, triu = _triangle("triu", "below")


def _indices(name: str) -> Any:
    find = getattr(np, name)

    def function(
        row: Count, col: Count, offset: Int = 0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        kind = int64 if dtype is None else as_dtype(dtype)
        need(kind.name in ("int32", "int64"), name, "expected dtype int32 or int64", kind)
        found = made(np.stack(find(row, offset, col)).astype(kind))
        return wrap(to_device(found, resolve_device(device)))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The rows and the columns, as a (2, n) Tensor, of what `{name[:4]}` keeps of a (row, col) "
        "matrix."
    )
    return public(function)


tril_indices, triu_indices = _indices("tril_indices"), _indices("triu_indices")

# Diagonals ----------------------------------------------------------------------------------------


def _diagonal_of(xp, x, *, offset=0):
    """Diagonal number `offset` of the last two dimensions, sharing memory."""
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(rows - down, columns - right), 0)
    if length:
        x = xp.getitem(x, (Ellipsis, slice(down, None), slice(right, None)))
    step = x.strides[-2] + x.strides[-1]
    return xp.as_strided(x, (*x.shape[:-2], length), (*x.strides[:-2], step))


diagonal_of = primitive(
    "diagonal",
    _diagonal_of,
    x=lambda g, x_shape, offset: with_diagonal(g, x_shape, offset),
    view=True,
)


@primitive("diag_embed", x=lambda g, offset: diagonal_of(g, offset))
def with_diagonal(xp, x, *, shape, offset=0):
    """Zeros of `shape` with `x` on diagonal number `offset`: the reverse of `diagonal`."""
    out = xp.zeros(shape, x.dtype)
    xp.copyto(_diagonal_of(xp, out, offset=offset), x)
    return out


def _plane(dim1: int, dim2: int, ndim: int) -> tuple[int, int]:
    found = shapes.normal_dim(dim1, ndim), shapes.normal_dim(dim2, ndim)
    need(found[0] != found[1], "diagonal", "dimensions cannot be identical", dim1, dim2)
    return found


@public
def diagonal(x: T, offset: Int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of dimensions `dim1` and `dim2`, as the last dimension; a view.

    Args:
        x: a Tensor of at least 2 dimensions.
        offset: 0 is the main diagonal, positive numbers are above it, negative ones below.
        dim1, dim2: the rows and the columns.

    Raises IndexError for a dimension out of range, RuntimeError where both are the same.
    """
    a, b = _plane(dim1, dim2, x.ndim)
    others = [d for d in range(x.ndim) if d not in (a, b)]
    return diagonal_of(permute_dims(x, (*others, a, b)), offset)


@public
def diag_embed(x: T, offset: Int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices of zeros with the last dimension of `x` on a diagonal; arguments: see `diagonal`."""
    a, b = _plane(dim1, dim2, x.ndim + 1)
    size = x.shape[-1] + abs(offset)
    made = with_diagonal(x, (*x.shape[:-1], size, size), offset)
    return movedim(made, (-2, -1), (a, b))


@public
def diag(x: Annotated[T, of_dims(1, 2)], diagonal: Int = 0) -> Any:
    """A matrix with the vector `x` on a diagonal, or a copy of a diagonal of the matrix `x`.

    Raises RuntimeError for another number of dimensions.
    """
    return diag_embed(x, diagonal) if x.ndim == 1 else clone(diagonal_of(x, diagonal))


@public
def diagflat(x: T, offset: Int = 0) -> Any:
    """A matrix with all elements of `x` on a diagonal."""
    return diag_embed(reshape_to(x, (-1,)), offset)


@public
def diagonal_scatter(input: T, src: T, offset: Int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A copy of `input` with `src` in place of a diagonal; arguments as for `diagonal`."""
    a, b = _plane(dim1, dim2, input.ndim)
    x = movedim(input, (a, b), (-2, -1))
    there = diagonal_of(x, offset)
    want_shape("diagonal_scatter", "src", src, there.shape)
    mask = with_diagonal(zeros_like(there) == 0, x.shape, offset)
    found = where(mask, with_diagonal(cast(src, x.dtype), x.shape, offset), x)
    return movedim(found, (-2, -1), (a, b))


@public
def trace(x: Annotated[Numeric, of_dims(2, 2)]) -> Any:
    """The sum of the diagonal of a matrix; RuntimeError for anything else and for booleans."""
    return sum_dims(diagonal_of(x))


publish(
    globals(), "block_diag", "broadcast_shapes", "broadcast_tensors", "cartesian_prod", "meshgrid"
)
