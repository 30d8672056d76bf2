"""Singular vectors, QR, eigenvectors of symmetric matrices, and what follows from singular values.

A factorization is one operation, whose factors lie under each other in one array, which functions
cut up. Vectors are determined up to their sign: use them in functions that do not depend on it.
Those of equal values are determined up to a rotation, and their gradient is NaN.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Annotated, Any

import numpy as np

from ...backend import int64
from ...tensor import TENSORS, wrap
from ..arguments import IS_SQUARE
from ..coercion import cast, underived
from ..fronts import Alike, Flag, FloatMatrices, FloatSquare, need, one_of, public
from ..index.indexing import part
from ..pointwise.elementwise import abs, maximum, where
from ..reduce.reductions import amax, sum_dims
from ..registry import primitive
from ..shape.joining import cat
from ..shape.rearranging import lower_triangle, upper_triangle, with_diagonal
from ..shape.shapes import matrix_transpose, reshape_to
from .factorizations import _attempt, solve_systems, svd_of, svdvals, transposed, undetermined
from .linear_algebra import batched

__all__ = ["matrix_exp", "pinverse", "qr", "svd"]


def _completed(xp, x):
    """Orthonormal columns that make those of `x`, (..., m, k), a basis: (..., m, m - k)."""
    return xp.copy(xp.getitem(_attempt(xp.basis, x), (Ellipsis, slice(x.shape[-1], None))))


completion_of = primitive("orthonormal_completion", _completed)


def completion(x: Any) -> Any:
    """The columns of `_completed`, open up to a rotation: only a gradient of 0 may reach them."""
    found = completion_of(x.detach())
    return underived("the columns that complete a basis (full_matrices)", found, x, open=True)


# Singular value decomposition ---------------------------------------------------------------------


# What `linalg.svd` returns.
SVD = namedtuple("SVD", "U S Vh")


# What `svd` returns.
SVDOfOld = namedtuple("SVDOfOld", "U S V")


def _parts_of_svd(x: Any, full: bool) -> tuple[Any, Any, Any]:
    """U, the singular values and V."""
    m, n = x.shape[-2:]
    found, rows = svd_of(x), x.ndim - 2
    u, v = part(found, rows, 0, m), part(found, rows, m + 1, None)
    values = reshape_to(part(found, rows, m, m + 1), (*x.shape[:-2], min(m, n)))
    if full and m > n:
        u = cat([u, completion(u)], -1)
    if full and m < n:
        v = cat([v, completion(v)], -1)
    return u, values, v


@public
def linalg_svd(A: FloatMatrices, full_matrices: Flag = True) -> SVD:
    """The factors of `A = U @ diag(S) @ Vh` with orthonormal columns of U and rows of Vh.

    Args:
        A: (..., m, n), of a float dtype.
        full_matrices: whether U is (..., m, m) and Vh (..., n, n), not (..., m, k) and (..., k, n)
            with k = min(m, n). What that adds gets no gradient.

    Returns `(U, S, Vh)`, S (..., k) with the largest first. The gradient is that of J. Townsend,
    "Differentiating the singular value decomposition", 2016; of the vectors of equal values NaN.
    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.

    Example:
        >>> U, S, Vh = mt.linalg.svd(mt.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> S
        tensor([4., 3.])
    """
    u, values, v = _parts_of_svd(A, full_matrices)
    return SVD(u, values, matrix_transpose(v))


@public
def svd(x: FloatMatrices, some: Flag = True, compute_uv: Flag = True) -> SVDOfOld:
    """The older form of `linalg.svd`: `x = U @ diag(S) @ V.mT`.

    Args:
        x: (..., m, n), of a float dtype.
        some: False for all columns of U and V.
        compute_uv: False for zeros instead of U and V.
    """
    m, n = x.shape[-2:]
    if compute_uv:
        return SVDOfOld(*_parts_of_svd(x, not some))
    u, v = (x.new_zeros(*x.shape[:-2], k, k) for k in (m, n))
    return SVDOfOld(u, svdvals(x), v)


# QR -----------------------------------------------------------------------------------------------


def _qr_square(q: Any, r: Any, g_q: Any, g_r: Any) -> Any:
    """The gradient of `q @ r` with an invertible r."""
    inside = batched(r, matrix_transpose(g_r)) - batched(matrix_transpose(g_q), q)
    inside = lower_triangle(inside, 0) + matrix_transpose(lower_triangle(inside, -1))
    return matrix_transpose(solve_systems(r, matrix_transpose(g_q + batched(q, inside))))


def _qr_rule(g, x_shape, result):
    """S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions with
    application in optimum experimental design", 2018, and J. Roberts and Z. Roberts, "QR and LQ
    decomposition matrix backpropagation algorithms for square, wide, and deep matrices", 2020.
    """
    m, n = x_shape[-2:]
    lead = len(x_shape) - 2
    q, r = part(result, lead, 0, m), matrix_transpose(part(result, lead, m, None))
    g_q, g_r = part(g, lead, 0, m), upper_triangle(matrix_transpose(part(g, lead, m, None)))
    if m >= n:
        return _qr_square(q, r, g_q, g_r)
    # The columns behind the first m are q @ rest, and rest is what q makes of them.
    square, rest = part(r, lead + 1, 0, m), part(r, lead + 1, m, None)
    g_square, g_rest = part(g_r, lead + 1, 0, m), part(g_r, lead + 1, m, None)
    first = g_q + batched(batched(q, rest), matrix_transpose(g_rest))
    return cat([_qr_square(q, square, first, g_square), batched(q, g_rest)], -1)


qr_of = primitive("linalg_qr", lambda xp, x: _attempt(xp.qr, x), x=_qr_rule)


# What `linalg.qr` returns.
QR = namedtuple("QR", "Q R")


@public
def linalg_qr(
    A: FloatMatrices, mode: Annotated[str, one_of("reduced", "complete", "r")] = "reduced"
) -> QR:
    """The factors of `A = Q @ R`, Q with orthonormal columns and R upper triangular.

    Args:
        A: (..., m, n), of a float dtype.
        mode: "reduced" for Q (..., m, k) and R (..., k, n), k = min(m, n); "complete" for Q
            (..., m, m) and R (..., m, n); "r" for an empty Q.

    The gradient needs the first k columns of `A` to be independent. Raises RuntimeError for fewer
    than two dimensions, for integers and for another mode, LinAlgError (a RuntimeError) for values
    that are not finite, and in the backward pass for the columns that "complete" adds to Q.
    """
    m, n = A.shape[-2:]
    found, lead = qr_of(A), A.ndim - 2
    q, r = part(found, lead, 0, m), matrix_transpose(part(found, lead, m, None))
    if mode == "r":
        return QR(A.new_zeros(0), r)
    if mode == "complete" and m > n:
        q = cat([q, completion(q)], -1)
        return QR(q, cat([r, A.new_zeros(*A.shape[:-2], m - n, n)], -2))
    return QR(q, r)


@public
def qr(x: FloatMatrices, some: Flag = True) -> QR:
    """The older form of `linalg.qr`: "reduced", or "complete" where `some` is False."""
    return linalg_qr(x, "reduced" if some else "complete")


# Eigenvalues of symmetric matrices ----------------------------------------------------------------


def _eigh_rule(g, x_shape, result):
    """M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
    differentiation", 2008, section 3.1. Equal eigenvalues leave the gradient of their vectors open,
    which is NaN, as in PyTorch; that of the values alone is there.

    As in PyTorch, half of what moves an element of the triangle goes to its mirror image.
    """
    n, lead = x_shape[-1], len(x_shape) - 2
    values, vectors = part(result, lead, 0, 1), part(result, lead, 1, None)
    g_values, g_vectors = part(g, lead, 0, 1), part(g, lead, 1, None)
    apart = values - matrix_transpose(values)
    alike = apart == 0
    turned = matrix_transpose(vectors)
    along = batched(turned, g_vectors) / where(alike, 1, apart)
    inside = where(alike, undetermined(apart, g_vectors), along)
    straight = with_diagonal(reshape_to(g_values, (*x_shape[:-2], n)), x_shape, 0)
    found = batched(vectors, batched(inside + straight, turned))
    return (found + matrix_transpose(found)) * 0.5


eigh_of = primitive(
    "linalg_eigh", lambda xp, x, *, uplo="L": _attempt(xp.eigh, x, uplo), x=_eigh_rule
)


# What `linalg.eigh` returns.
Eigh = namedtuple("Eigh", "eigenvalues eigenvectors")


_Triangle = Annotated[str, one_of("L", "U", "l", "u")]


@public
def eigh(A: FloatSquare, UPLO: _Triangle = "L") -> Eigh:
    """Eigenvalues and eigenvectors of a symmetric matrix, or of each of a batch.

    Args:
        A: (..., n, n), of a float dtype; one triangle is read.
        UPLO: "L" for the lower triangle, "U" for the upper.

    Returns `(eigenvalues, eigenvectors)`: (..., n), the smallest first, and (..., n, n), of which a
    column belongs to each. Raises RuntimeError for other shapes and for integers, LinAlgError (a
    RuntimeError) for values that are not finite.

    Example:
        >>> mt.linalg.eigh(mt.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
        tensor([1., 2.])
    """
    found = eigh_of(A, UPLO.upper())
    lead = A.ndim - 2
    return Eigh(reshape_to(part(found, lead, 0, 1), A.shape[:-1]), part(found, lead, 1, None))


# The pseudo-inverse -------------------------------------------------------------------------------


def _pinv_rule(g, x, result):
    """G. Golub and V. Pereyra, "The differentiation of pseudo-inverses", 1973, equation 4.12."""
    p, turned = matrix_transpose(result), matrix_transpose(g)
    left = batched(turned, batched(result, p))
    right = batched(batched(p, result), turned)
    left = left - batched(x, batched(result, left))
    return left + right - batched(batched(right, result), x) - batched(p, batched(g, p))


@primitive("linalg_pinv", x=_pinv_rule)
def pinv_of(xp, x, atol, rtol, *, hermitian=False):
    m = x.shape[-2]
    if hermitian:  # the lower triangle and its mirror
        x = xp.add(xp.tril(x), transposed(xp, xp.tril(x, -1)))
    found = _attempt(xp.svd, x)
    u = xp.getitem(found, (Ellipsis, slice(0, m), slice(None)))
    values = xp.getitem(found, (Ellipsis, slice(m, m + 1), slice(None)))
    v = xp.getitem(found, (Ellipsis, slice(m + 1, None), slice(None)))
    if 0 in values.shape:
        return xp.zeros((*x.shape[:-2], x.shape[-1], m), x.dtype)
    largest = xp.max(values, axis=-1, keepdims=True)
    atol, rtol = (xp.reshape(t, (*t.shape, 1, 1)) for t in (atol, rtol))
    kept = xp.greater(values, xp.maximum(atol, xp.multiply(rtol, largest)))
    inverted = xp.where(kept, xp.reciprocal(xp.where(kept, values, 1)), 0)
    return xp.matmul(xp.multiply(v, xp.asarray(inverted, x.dtype)), transposed(xp, u))


def _limits(x: Any, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """The tolerances as Tensors in the dtype of `x`; by default as many units as the larger size.

    A relative one holds by default only where there is no absolute one.
    """
    if rtol is None:
        none = type(atol) not in TENSORS and not atol
        default = float(np.finfo(x.dtype).eps) * max(x.shape[-2:])
        rtol = default if none else 0.0
        if type(atol) in TENSORS:
            rtol = cast(atol == 0, x.dtype) * default
    atol = 0.0 if atol is None else atol
    atol, rtol = (
        cast(value.detach(), x.dtype) if type(value) in TENSORS else x.new_tensor(float(value))
        for value in (atol, rtol)
    )
    return atol, rtol


@public
def pinv(A: FloatMatrices, *, atol: Any = None, rtol: Any = None, hermitian: Flag = False) -> Any:
    """The pseudo-inverse (Moore, Penrose) of a matrix (..., m, n), or of each of a batch.

    Args:
        A: of a float dtype.
        atol, rtol: singular values at most `max(atol, rtol * the largest)` count as 0; numbers, or
            Tensors with one for each matrix. By default atol is 0 and rtol the larger size times
            the distance from 1 to the next float, or 0 beside an atol.
        hermitian: whether `A` is symmetric, and only its lower triangle is read.

    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.
    """
    if hermitian:
        need(A.shape[-1] == A.shape[-2], "linalg.pinv", IS_SQUARE, A)
    return pinv_of(A, *_limits(A, atol, rtol), hermitian)


def _limit(values: Any, atol: Any, rtol: Any) -> Any:
    """What singular values must be larger than: one for each matrix."""
    largest = amax(values, (-1,))
    found = maximum(atol + largest * 0, rtol * largest)
    return reshape_to(found, (*found.shape, 1))


@public
def pinverse(x: FloatMatrices, rcond: Any = 1e-15) -> Any:
    """`linalg.pinv` with singular values up to `rcond` times the largest as 0."""
    return pinv(x, atol=0.0, rtol=rcond)


@public
def matrix_rank(
    A: FloatMatrices, *, atol: Any = None, rtol: Any = None, hermitian: Flag = False
) -> Any:
    """How many singular values are not 0, as int64; arguments and errors as for `pinv`."""
    found = wrap(A._array)
    values = abs(eigh(found).eigenvalues) if hermitian else svdvals(found)
    if not values.shape[-1] or not math.prod(values.shape):
        return A.new_zeros(A.shape[:-2], dtype=int64)
    limit = _limit(values, *_limits(A, atol, rtol))
    return sum_dims(cast(values > limit, int64), (values.ndim - 1,), False)


# Least squares ------------------------------------------------------------------------------------


# What `linalg.lstsq` returns.
LeastSquares = namedtuple("LeastSquares", "solution residuals rank singular_values")


_Driver = Annotated[str | None, one_of("gels", "gelsy", "gelsd", "gelss")]


@public
def lstsq(A: FloatMatrices, B: Alike, rcond: Any = None, *, driver: _Driver = None) -> LeastSquares:
    """The X that makes `A @ X - B` smallest, of several the smallest: `pinv(A) @ B`.

    Args:
        A: (..., m, n), of a float dtype.
        B: (..., m, k); or a vector for each matrix, (..., m).
        rcond: singular values at most this times the largest count as 0; by default as in `pinv`.
        driver: for "gels" `A` has full rank. As in PyTorch it also says what else is returned: the
            rank but for "gels", the residuals but for "gelsy", which is the default, the singular
            values for "gelsd" and "gelss".

    Returns `(solution, residuals, rank, singular_values)`, empty where there is nothing to say; the
    residuals, the squared distances of the columns, only where m > n.
    Raises RuntimeError for shapes or dtypes that do not fit.
    """
    vector = A.ndim - 1 == B.ndim and B.shape == A.shape[:-1]
    right = reshape_to(B, (*B.shape, 1)) if vector else B
    text = f"expected B of shape (..., {A.shape[-2]}, k) or {A.shape[:-1]}"
    need(right.ndim > 1 and right.shape[-2] == A.shape[-2], "linalg.lstsq", text, B)
    driver = driver or "gelsy"
    m, n = A.shape[-2:]
    solution = batched(pinv(A, rtol=rcond), right)
    residuals = part(reshape_to(solution, (-1,)), 0, 0, 0)
    values, rank = A.new_zeros(0), A.new_zeros(0, dtype=int64)
    if driver != "gelsy" and m > n:
        apart = batched(A, solution) - right
        residuals = sum_dims(apart * apart, (apart.ndim - 2,), False)
    if driver != "gels":
        rank = matrix_rank(A, rtol=rcond)
    if driver in ("gelsd", "gelss"):
        values = svdvals(wrap(A._array))
    if vector:
        solution = reshape_to(solution, solution.shape[:-1])
    return LeastSquares(solution, residuals, rank, values)


# The exponential ----------------------------------------------------------------------------------


def _exp_rule(g, x):
    """What the exponential of a block matrix has in its corner: N. Higham, "Functions of matrices",
    2008, theorem 3.6.
    """
    turned, n = matrix_transpose(x), x.shape[-1]
    above = cat([turned, g], -1)
    whole = cat([above, cat([g * 0, turned], -1)], -2)
    return part(part(matrix_exp_of(whole), x.ndim - 2, 0, n), x.ndim - 1, n, None)


matrix_exp_of = primitive("matrix_exp", lambda xp, x: _attempt(xp.matrix_exp, x), x=_exp_rule)


@public
def matrix_exp(x: FloatSquare) -> Any:
    """The exponential of a square matrix, or of each of a batch: the sum of `x^k / k!`.

    Raises RuntimeError for other shapes and for integers, LinAlgError (a RuntimeError) for a norm
    that leaves no digit of the result right: above 2e16, in float32 4e7, of the matrix less the
    mean of its diagonal.
    """
    return matrix_exp_of(x)
