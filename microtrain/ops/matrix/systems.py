"""Linear systems of special shapes: triangular, with a Cholesky factor, of tensors; and powers."""

from __future__ import annotations

import math
from typing import Any

from ...backend import XP
from ...tensor import Tensor, wrap
from ..arguments import want_float, want_square, want_tensors
from ..fronts import Flag, Float, FloatSquare, Int, Ints, T, need, public
from ..index.indexing import part
from ..pointwise.elementwise import mul
from ..reduce.scans import cumprod
from ..shape import shapes
from ..shape.joining import cat
from ..shape.shapes import broadcast_shape, dim_of, expand_to, matrix_transpose, reshape_to
from ..shape.triangles import lower_triangle, upper_triangle, with_diagonal
from .factorisations import inverse_of, solve_systems
from .linear_algebra import batched, check_dtypes

__all__ = ["cholesky_inverse", "cholesky_solve", "cross"]

# Triangular matrices ------------------------------------------------------------------------------


def _check_sides(name: str, A: Any, B: Any, left: bool = True) -> tuple[Any, Any]:
    """Both with the same batch; RuntimeError where they do not fit."""
    want_tensors(name, A=A, B=B)
    want_square(name, A)
    want_float(name, A)
    check_dtypes(name, A, B)
    fits = B.ndim > 1 and B.shape[-2 if left else -1] == A.shape[-1]
    need(fits, name, "incompatible shapes of the matrix and the other side", A, B)
    batch = broadcast_shape(name, A.shape[:-2], B.shape[:-2])
    return expand_to(A, (*batch, *A.shape[-2:])), expand_to(B, (*batch, *B.shape[-2:]))


def _ones(x: Any, shape: Any) -> Any:
    """Ones in the dtype and on the device of `x`."""
    return wrap(XP[type(x._array)].ones(shape, x.dtype))


def solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """The `X` with `A @ X = B` for a triangular A.

    Args:
        A: (..., n, n), of which only the triangle is read.
        B: (..., n, k), or with `left=False` (..., k, n). Leading dimensions broadcast.
        upper: whether the upper triangle is meant, else the lower.
        left: False solves `X @ A = B`.
        unitriangular: whether the diagonal is taken as ones, and not read.

    Raises RuntimeError for sizes or dtypes that do not fit, LinAlgError (a RuntimeError) for a zero
    on the diagonal.
    """
    A, B = _check_sides("linalg.solve_triangular", A, B, left)
    triangle = upper_triangle if upper else lower_triangle
    matrix = triangle(A, 0)
    if unitriangular:
        ones = with_diagonal(_ones(A, A.shape[:-1]), A.shape, 0)
        matrix = triangle(A, 1 if upper else -1) + ones
    if left:
        return solve_systems(matrix, B, lower=not upper)
    turned = solve_systems(matrix_transpose(matrix), matrix_transpose(B), lower=bool(upper))
    return matrix_transpose(turned)


def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:
    """The `X` with `A @ X = B` for a matrix A whose Cholesky factor is L.

    Args:
        B: (..., n, k).
        L: (..., n, n), of which only the triangle is read.
        upper: whether it is the upper triangular factor.

    Raises RuntimeError for sizes or dtypes that do not fit.
    """
    L, B = _check_sides("cholesky_solve", L, B)
    lower = matrix_transpose(upper_triangle(L, 0)) if upper else lower_triangle(L, 0)
    found = solve_systems(lower, B, lower=True)
    return solve_systems(matrix_transpose(lower), found, lower=False)


@public
def cholesky_inverse(L: FloatSquare, upper: Flag = False) -> Any:
    """The inverse of the matrix whose Cholesky factor is L, of which only the triangle is read."""
    lower = matrix_transpose(upper_triangle(L, 0)) if upper else lower_triangle(L, 0)
    ones = with_diagonal(_ones(L, L.shape[:-1]), L.shape, 0)
    found = solve_systems(lower, ones, lower=True)
    return batched(matrix_transpose(found), found)


# Tensors as matrices ------------------------------------------------------------------------------


@public
def tensorinv(A: Float, ind: Int = 2) -> Any:
    """The inverse of a Tensor as a matrix of its first `ind` dimensions by the others.

    (*rows, *columns) to (*columns, *rows): `tensordot(tensorinv(A), B, ind)` solves for B. Raises
    RuntimeError for `ind` below 1 and for another number of rows than of columns.
    """
    rows, columns = A.shape[:ind], A.shape[ind:]
    square = ind >= 1 and math.prod(rows) == math.prod(columns)
    text = "expected ind of at least 1 and as many elements in {} as in {}"
    need(square, "linalg.tensorinv", text, rows, columns)
    n = math.prod(rows)
    return reshape_to(inverse_of(reshape_to(A, (n, n))), (*columns, *rows))


def tensorsolve(A: Any, B: Any, dims: Ints | None = None) -> Any:
    """The X with `tensordot(A, X, X.ndim) = B`.

    Args:
        A: (*B.shape, *X.shape), as many elements in both.
        B: the right hand side.
        dims: dimensions of A that are moved to its end first.

    Raises RuntimeError for shapes or dtypes that do not fit.
    """
    want_tensors("linalg.tensorsolve", A=A, B=B)
    want_float("linalg.tensorsolve", A)
    check_dtypes("linalg.tensorsolve", A, B)
    if dims is not None:
        last = [dim_of("linalg.tensorsolve", A, d) for d in dims]
        A = shapes.permute_dims(A, (*(d for d in range(A.ndim) if d not in last), *last))
    n, found = math.prod(B.shape), A.shape[B.ndim :]
    fits = math.prod(A.shape) == n * n and math.prod(found) == n
    text = f"expected {n} elements in the other dimensions"
    need(fits, "linalg.tensorsolve", text, A, B)
    solved = solve_systems(reshape_to(A, (n, n)), reshape_to(B, (n, 1)))
    return reshape_to(solved, found)


# Products and powers ------------------------------------------------------------------------------


@public
def cross(input: T, other: T, dim: Any = None) -> Tensor:
    """The cross product of vectors of three elements along `dim`, broadcast.

    Without `dim` it is the first dimension of size 3. Raises RuntimeError for other sizes, dtypes
    or numbers of dimensions.
    """
    check_dtypes("cross", input, other)
    text = "inputs must have the same number of dimensions"
    need(input.ndim == other.ndim, "cross", text, input, other)
    if dim is None:
        dim = next((d for d, n in enumerate(input.shape) if n == other.shape[d] == 3), None)
        need(dim is not None, "cross", "no dimension of size 3", input, other)
    at = dim_of("cross", input, dim)
    fits = input.shape[at] == other.shape[at] == 3
    need(fits, "cross", f"dimension {dim} must have size 3", input, other)

    def turned(x: Any, by: int) -> Any:
        """The elements moved up by `by` places."""
        return cat([part(x, at, by, None), part(x, at, 0, by)], at)

    return mul(turned(input, 1), turned(other, 2)) - mul(turned(input, 2), turned(other, 1))


@public
def vander(x: T, N: Int | None = None) -> Tensor:
    """The powers 0 to N - 1 of every element of (..., n), as (..., n, N); N is n if not given.

    Raises RuntimeError for an N below 2.
    """
    x = x if x.ndim else reshape_to(x, (1,))
    powers = x.shape[-1] if N is None else N
    need(powers > 1 or N is None, "linalg.vander", "N must be greater than 1", N)
    if powers < 2:
        return _ones(x, (*x.shape, powers))
    lines = expand_to(reshape_to(x, (*x.shape, 1)), (*x.shape, powers - 1))
    return cat([_ones(x, (*x.shape, 1)), cumprod(lines, x.ndim)], -1)
