"""Inverses, solutions of linear systems, Cholesky factors and singular values.

All take one matrix or a batch (..., n, n) of a float type; only singular values need no square.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ..arguments import want_float, want_square
from ..coercion import LinAlgError, examine
from ..fronts import FLOAT, FloatSquare, Matrices, need, public, wrong
from ..index.indexing import part
from ..pointwise.elementwise import abs, where, zeros_like
from ..reduce.reductions import sum_dims
from ..registry import primitive
from ..shape.joining import checked_tensors
from ..shape.shapes import broadcast_shape, expand_to, matrix_transpose, reshape_to
from ..shape.triangles import lower_triangle, with_diagonal
from .linear_algebra import batched, check_dtypes

__all__ = ["cholesky", "inverse"]


def _attempt(instruction: Any, *arrays: Any) -> Any:
    """The result, or a LinAlgError of our own kind; some libraries give NaN instead."""
    try:
        return instruction(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(str(error)) from error


# Inverse and solution -----------------------------------------------------------------------------


def _inverse_rule(g, result):
    turned = matrix_transpose(result)
    return -batched(turned, batched(g, turned))


inverse_of = primitive("inverse", lambda xp, x: _attempt(xp.inverse, x), x=_inverse_rule)


@public
def inverse(x: FloatSquare) -> Any:
    """The inverse of a square matrix, or of each of a batch.

    Raises RuntimeError for other shapes and for integers, LinAlgError (a RuntimeError) for a matrix
    that is singular or holds values that are not finite.
    """
    return inverse_of(x)


def _solve_turned(g, a, lower):
    return solve_systems(matrix_transpose(a), g, lower=None if lower is None else not lower)


@primitive(
    "linalg_solve",
    a=lambda g, a, result, lower: -batched(_solve_turned(g, a, lower), matrix_transpose(result)),
    b=_solve_turned,
)
def solve_systems(xp, a, b, *, lower=None):
    """`lower` says which triangle of `a` there is, if it is one.

    From the end where nothing is to be eliminated no rows are exchanged: that is substitution,
    whose result does not depend on how the rows are scaled.
    """
    if not lower:
        return _attempt(xp.solve, a, b)
    rows, columns = len(a.shape) - 2, len(a.shape) - 1
    a = xp.flip(xp.flip(a, rows), columns)
    return xp.flip(_attempt(xp.solve, a, xp.flip(b, rows)), rows)


def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """The `X` with `A @ X = B`, more exact and faster than with the inverse.

    Args:
        A: (..., n, n), invertible.
        B: (..., n, k); or a vector (n,), or a batch (..., n) of vectors just as large as `A`'s
            batch. Other leading dimensions broadcast.
        left: False solves `X @ A = B` for matrices `B` (..., k, n).

    Raises RuntimeError for sizes or dtypes that do not fit, LinAlgError (a RuntimeError) for a
    matrix that is singular or holds values that are not finite.
    """
    checked_tensors("linalg.solve", (A, B))
    want_square("linalg.solve", A)
    want_float("linalg.solve", A)
    check_dtypes("linalg.solve", A, B)
    vector = B.ndim == 1 or (B.ndim and B.shape == A.shape[:-1])
    given = B
    if vector:
        B = reshape_to(B, (*B.shape, 1))
    fits = B.ndim > 1 and (left or not vector) and B.shape[-2 if left else -1] == A.shape[-1]
    text = "incompatible shapes of the matrix and the other side (left=False takes no vectors)"
    need(fits, "linalg.solve", text, A, given)
    if not left:
        A, B = matrix_transpose(A), matrix_transpose(B)
    batch = broadcast_shape("linalg.solve", A.shape[:-2], B.shape[:-2])
    found = solve_systems(
        expand_to(A, (*batch, *A.shape[-2:])), expand_to(B, (*batch, *B.shape[-2:]))
    )
    if vector:
        return reshape_to(found, found.shape[:-1])
    return found if left else matrix_transpose(found)


# Cholesky -----------------------------------------------------------------------------------------


def _cholesky_rule(g, result):
    """Murray, "Differentiation of the Cholesky decomposition" (2016), equation 10."""
    turned = matrix_transpose(result)
    inside = batched(turned, g)
    inside = lower_triangle(inside, 0) + matrix_transpose(lower_triangle(inside, -1))
    half = solve_systems(turned, inside * 0.5)
    return matrix_transpose(solve_systems(turned, matrix_transpose(half)))


@primitive("cholesky", x=_cholesky_rule)
def cholesky_of(xp, x):
    """The factor of the symmetric part; the gradient is symmetric, too."""
    turned = xp.transpose(x, (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2))
    return _attempt(xp.cholesky, xp.multiply(xp.add(x, turned), xp.constant(0.5, x.dtype)))


def _symmetric(array: Any) -> None:
    """LinAlgError unless the matrices are symmetric, to a thousandth of the largest element."""
    apart = np.abs(array - array.swapaxes(-1, -2)).max() if array.size else 0
    if apart and apart > 1e-3 * np.abs(array).max():
        text = "the matrix is not symmetric (elements differ by {}); symmetrise it: (x + x.mT) / 2"
        raise wrong("cholesky", text, apart, error=LinAlgError)


@public
def cholesky(x: FloatSquare, upper: bool = False) -> Any:
    """The lower triangular matrix L with `x = L @ L.mT`; with `upper` its transpose.

    Args:
        x: (..., n, n), symmetric and positive definite. On a GPU its symmetry is not checked, and
            the symmetric part is taken.
        upper: whether to return the upper triangular factor.

    Raises RuntimeError for other shapes and for integers, LinAlgError (a RuntimeError) for a matrix
    that is not symmetric, not positive definite or not finite.
    """
    examine(x, _symmetric)
    found = cholesky_of(x)
    return matrix_transpose(found) if upper else found


# Singular values ----------------------------------------------------------------------------------


def undetermined(apart: Any, *gradients: Any) -> Any:
    """NaN where two values are equal and the gradient of vectors is not 0; else 0."""
    sizes = [sum_dims(abs(g), (g.ndim - 2, g.ndim - 1), True) for g in gradients]
    unknown = where((apart == 0) & (sum(sizes) != 0), zeros_like(apart) + math.nan, 0)
    return lower_triangle(unknown, -1) + matrix_transpose(lower_triangle(unknown, -1))


def _svd_rule(g, x_shape, result):
    """Townsend, "Differentiating the singular value decomposition" (2016).

    Equal singular values leave the gradient of their vectors open: it is NaN, as in PyTorch. That
    of the values alone is there.
    """
    m, rows = x_shape[-2], len(x_shape) - 2
    ends = (0, m), (m, m + 1), (m + 1, None)
    u, values, v = (part(result, rows, *some) for some in ends)
    g_u, g_values, g_v = (part(g, rows, *some) for some in ends)
    column = matrix_transpose(values)
    apart = values * values - column * column
    alike = apart == 0
    unknown = undetermined(apart, g_u, g_v)
    apart = where(alike, 1, apart)
    inverted = where(values == 0, 0, 1 / where(values == 0, 1, values))

    def turned(factor, g):
        """What of `g` turns the columns of `factor` among themselves, and what leaves them."""
        along = batched(matrix_transpose(factor), g)
        among = where(alike, unknown, (along - matrix_transpose(along)) / apart)
        return among, (g - batched(factor, along)) * inverted

    among_u, leaving_u = turned(u, g_u)
    among_v, leaving_v = turned(v, g_v)
    inside = with_diagonal(reshape_to(g_values, column.shape[:-1]), apart.shape, 0)
    inside = inside + among_u * values + column * among_v
    right = matrix_transpose(v)
    found = batched(batched(u, inside) + leaving_u, right)
    return found + batched(u, matrix_transpose(leaving_v))


svd_of = primitive("svd", lambda xp, x: _attempt(xp.svd, x), x=_svd_rule)


@public
def svdvals(x: Annotated[Matrices, FLOAT]) -> Any:
    """The singular values of a matrix, or of each of a batch (..., m, n), the largest first.

    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.
    """
    m, n = x.shape[-2:]
    return reshape_to(part(svd_of(x), x.ndim - 2, m, m + 1), (*x.shape[:-2], min(m, n)))
