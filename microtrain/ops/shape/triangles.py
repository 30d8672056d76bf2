"""Triangles and diagonals of matrices, and matrices made of them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ...backend import as_dtype, int64, resolve_device, to_device
from ...tensor import Tensor, wrap
from ..arguments import want_shape
from ..coercion import cast
from ..fronts import NUMERIC, Count, Int, Matrices, Matrix, T, need, of_dims, public
from ..pointwise.elementwise import clone, where, zeros_like
from ..reduce.reductions import sum
from ..registry import primitive
from .shapes import normal_dim, permute_dims, reshape_to

__all__ = [
    "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "trace", "tril",
    "tril_indices", "triu", "triu_indices",
]  # fmt: skip

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
        found = np.stack(find(row, offset, col)).astype(kind)
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
    found = normal_dim(dim1, ndim), normal_dim(dim2, ndim)
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
    """Matrices of zeros with the last dimension of `x` on a diagonal; arguments as `diagonal`'s."""
    a, b = _plane(dim1, dim2, x.ndim + 1)
    size = x.shape[-1] + abs(offset)
    made = with_diagonal(x, (*x.shape[:-1], size, size), offset)
    order = list(range(x.ndim - 1))
    for place, dim in sorted([(a, x.ndim - 1), (b, x.ndim)]):
        order.insert(place, dim)
    return permute_dims(made, tuple(order))


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
    order = (*(d for d in range(input.ndim) if d not in (a, b)), a, b)
    x = permute_dims(input, order)
    there = diagonal_of(x, offset)
    want_shape("diagonal_scatter", "src", src, there.shape)
    mask = with_diagonal(zeros_like(there) == 0, x.shape, offset)
    found = where(mask, with_diagonal(cast(src, x.dtype), x.shape, offset), x)
    return permute_dims(found, tuple(order.index(d) for d in range(input.ndim)))


@public
def trace(x: Annotated[Matrix, NUMERIC]) -> Any:
    """The sum of the diagonal of a matrix; RuntimeError for anything else and for booleans."""
    return sum(diagonal_of(x))
