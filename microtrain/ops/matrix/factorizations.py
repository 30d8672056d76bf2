"""Inverses, solutions of linear systems, Cholesky factors and singular values.

All take one matrix or a batch (..., n, n) of a float type; only singular values need no square.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np

from ...autograd.differentiate import grad, messages_set_aside
from ...autograd.grad_mode import enable_grad
from ...backend import int64
from ...errors import need, wrong
from ...tensor import TENSORS, Tensor, wrap
from ..coercion import LinAlgError, cast, examine
from ..fronts import Alike, Flag, Float, FloatMatrices, FloatSquare, Int, Ints, Square, T, public
from ..index.indexing import part
from ..pointwise.elementwise import abs, clone, exp, instead_of, mul, where, zeros_like
from ..reduce.reductions import sum_dims
from ..reduce.scans import cumprod, cumsum_dim
from ..registry import primitive
from ..shape import shapes
from ..shape.joining import cat
from ..shape.rearranging import diagonal, lower_triangle, upper_triangle, with_diagonal
from ..shape.shapes import broadcast_shape, dim_of, expand_to, matrix_transpose, reshape_to
from .linear_algebra import batched, check_dtypes, matmul

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "cross", "det", "inverse", "logdet",
    "matrix_power", "slogdet",
]  # fmt: skip


def _attempt(instruction: Any, *arrays: Any) -> Any:
    """The result, or a LinAlgError of our own kind; some libraries give NaN instead."""
    try:
        return instruction(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(str(error)) from error


def transposed(xp: Any, x: Any) -> Any:
    """The transposes of a batch of matrices, in a kernel."""
    order = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
    return xp.transpose(x, order)


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


@public
def solve(A: FloatSquare, B: Alike, *, left: bool = True) -> Any:
    """The `X` with `A @ X = B`, more exact and faster than with the inverse.

    Args:
        A: (..., n, n), invertible.
        B: (..., n, k); or a vector (n,), or a batch (..., n) of vectors just as large as `A`'s
            batch. Other leading dimensions broadcast.
        left: False solves `X @ A = B` for matrices `B` (..., k, n).

    Raises RuntimeError for sizes or dtypes that do not fit, LinAlgError (a RuntimeError) for a
    matrix that is singular or holds values that are not finite.
    """
    vector = B.ndim == 1 or (B.ndim and B.shape == A.shape[:-1])
    need(left or not vector, "linalg.solve", "left=False takes no vectors", A, B)
    A, B = _together("linalg.solve", A, reshape_to(B, (*B.shape, 1)) if vector else B, left)
    if not left:
        return matrix_transpose(solve_systems(matrix_transpose(A), matrix_transpose(B)))
    found = solve_systems(A, B)
    return reshape_to(found, found.shape[:-1]) if vector else found


def _together(name: str, A: Any, B: Any, left: bool = True) -> tuple[Any, Any]:
    """Both with the same batch; RuntimeError where they do not fit."""
    fits = B.ndim > 1 and B.shape[-2 if left else -1] == A.shape[-1]
    need(fits, name, "incompatible shapes of the matrix and the other side", A, B)
    batch = broadcast_shape(name, A.shape[:-2], B.shape[:-2])
    return expand_to(A, (*batch, *A.shape[-2:])), expand_to(B, (*batch, *B.shape[-2:]))


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
    both = xp.add(x, transposed(xp, x))
    return _attempt(xp.cholesky, xp.multiply(both, xp.constant(0.5, x.dtype)))


def _symmetric(array: Any) -> None:
    """LinAlgError unless the matrices are symmetric, to a thousandth of the largest element."""
    apart = np.abs(array - array.swapaxes(-1, -2)).max() if array.size else 0
    if apart and apart > 1e-3 * np.abs(array).max():
        text = "the matrix is not symmetric (elements differ by {}); symmetrize it: (x + x.mT) / 2"
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
def svdvals(x: FloatMatrices) -> Any:
    """The singular values of a matrix, or of each of a batch (..., m, n), the largest first.

    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.
    """
    m, n = x.shape[-2:]
    return reshape_to(part(svd_of(x), x.ndim - 2, m, m + 1), (*x.shape[:-2], min(m, n)))


# Linear systems of special shapes -----------------------------------------------------------------


# Triangular matrices ------------------------------------------------------------------------------


@public
def solve_triangular(
    A: FloatSquare, B: Alike, *, upper: bool, left: bool = True, unitriangular: bool = False
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
    A, B = _together("linalg.solve_triangular", A, B, left)
    triangle = upper_triangle if upper else lower_triangle
    matrix = triangle(A, 0)
    if unitriangular:
        ones = with_diagonal(A.new_ones(A.shape[:-1]), A.shape, 0)
        matrix = triangle(A, 1 if upper else -1) + ones
    if left:
        return solve_systems(matrix, B, lower=not upper)
    turned = solve_systems(matrix_transpose(matrix), matrix_transpose(B), lower=bool(upper))
    return matrix_transpose(turned)


@public
def cholesky_solve(B: T, L: FloatSquare, upper: bool = False) -> Any:
    """The `X` with `A @ X = B` for a matrix A whose Cholesky factor is L.

    Args:
        B: (..., n, k).
        L: (..., n, n), of which only the triangle is read.
        upper: whether it is the upper triangular factor.

    Raises RuntimeError for sizes or dtypes that do not fit.
    """
    check_dtypes("cholesky_solve", L, B)
    L, B = _together("cholesky_solve", L, B)
    lower = matrix_transpose(upper_triangle(L, 0)) if upper else lower_triangle(L, 0)
    found = solve_systems(lower, B, lower=True)
    return solve_systems(matrix_transpose(lower), found, lower=False)


@public
def cholesky_inverse(L: FloatSquare, upper: Flag = False) -> Any:
    """The inverse of the matrix whose Cholesky factor is L, of which only the triangle is read."""
    lower = matrix_transpose(upper_triangle(L, 0)) if upper else lower_triangle(L, 0)
    ones = with_diagonal(L.new_ones(L.shape[:-1]), L.shape, 0)
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


@public
def tensorsolve(A: Float, B: Alike, dims: Ints | None = None) -> Any:
    """The X with `tensordot(A, X, X.ndim) = B`.

    Args:
        A: (*B.shape, *X.shape), as many elements in both.
        B: the right hand side.
        dims: dimensions of A that are moved to its end first.

    Raises RuntimeError for shapes or dtypes that do not fit.
    """
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
def matrix_power(x: Square, n: Int) -> Any:
    """The product of `n` times the same square matrix, or of each of a batch.

    Args:
        x: (..., m, m).
        n: 0 gives the identity, a negative number powers of the inverse.

    Raises RuntimeError for matrices that are not square; where n < 0, also for singular ones and
    for integers.
    """
    if not n:
        return instead_of(x, x.new_tensor(np.eye(x.shape[-1])))
    if n < 0:
        x, n = inverse(x), -n
    if n == 1:
        return clone(x)
    result = None
    while True:  # x is the first matrix to the power 1, 2, 4 ...
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        if not n:
            return result
        x = matmul(x, x)


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
        return x.new_ones(*x.shape, powers)
    lines = expand_to(reshape_to(x, (*x.shape, 1)), (*x.shape, powers - 1))
    return cat([x.new_ones(*x.shape, 1), cumprod(lines, x.ndim)], -1)


# Determinants, their signs and their logarithms ---------------------------------------------------


def _as_matrix(g):
    """A number for each matrix of a batch, to be broadcast over its elements."""
    return reshape_to(g, (*g.shape, 1, 1))


def _few_cofactors(xp, x):
    """Those of matrices of 1 to 3 rows."""
    n = x.shape[-1]
    if n == 1:
        return xp.ones(x.shape, x.dtype)
    down, right = (lambda y, axis=axis: xp.roll(y, -1, axis) for axis in (-2, -1))
    if n == 2:
        odd = xp.equal(xp.reshape(xp.arange(2), (2, 1)), xp.subtract(1, xp.arange(2)))
        across = right(down(x))
        return xp.asarray(xp.where(odd, xp.negative(across), across), x.dtype)
    first, second = down(x), down(down(x))
    ahead = xp.multiply(right(first), right(right(second)))
    return xp.subtract(ahead, xp.multiply(right(right(first)), right(second)))


FEW = 8  # rows of a matrix; of more what is added without a division begins to cancel


def _division_free(x: Any) -> Any:
    """R. Bird, "A simple division-free algorithm for computing determinants", 2011."""
    found, n = x, x.shape[-1]
    for _ in range(n - 1):
        line = diagonal(found, 0, -2, -1)
        last = x.ndim - 2
        rest = cat([part(line, last, 1, None), part(line, last, 0, 1) * 0], last)
        traces = with_diagonal(cumsum_dim(rest, last, True), x.shape, 0)
        found = batched(traces - upper_triangle(found, 1), x)
    return found[..., 0, 0]


def _polynomial(x: Any) -> Any:
    """The determinant, in operations whose derivatives of every order are exact.

    In the bases that make x diagonal, kept fixed: without a division where there are few singular
    values or they are next to nothing, by an inverse for the others.
    """
    n, rows = x.shape[-1], x.ndim - 2
    found = svd_of(x.detach())
    u, s, v = (part(found, rows, *ends) for ends in ((0, n), (n, n + 1), (n + 1, None)))
    k = 0
    if n > FEW:
        small = s <= s[..., :1] * float(np.finfo(x.dtype).eps) ** 0.25
        k = n - int(sum_dims(cast(small, int64), (rows + 1,), False).max().item())
    y = batched(matrix_transpose(u), batched(x, v))
    left, right = (part(y, rows + 1, *ends) for ends in ((0, k), (k, None)))
    a, c = (part(left, rows, *ends) for ends in ((0, k), (k, None)))
    b, d = (part(right, rows, *ends) for ends in ((0, k), (k, None)))
    result = det_of(u) * det_of(v)
    if k:
        logarithm = logabsdet_of(a)
        result = result * det_of(a.detach()) * exp(logarithm - logarithm.detach())
        d = d - batched(c, solve_systems(a, b))
    return result * _division_free(d) if k < n else result


def _minors_rule(g, w, x):
    """The third derivative, and from it those of higher orders."""
    if x.shape[-1] < 3 or 0 in x.shape:
        return x * 0
    arrays = type(x) not in TENSORS
    with enable_grad(), messages_set_aside():
        g, w, at = (wrap(y) for y in (g, w, x)) if arrays else (g, w, x)
        at = at.requires_grad_() if arrays else at
        (first,) = grad(sum_dims(_polynomial(at), None, False), at, create_graph=True)
        (second,) = grad(first, at, w, create_graph=True)
        (third,) = grad(second, at, g, create_graph=not arrays, materialize_grads=True)
    return third._array if arrays else third


det_of = primitive(
    "det", lambda xp, x: xp.asarray(xp.det(x)), x=lambda g, x: _as_matrix(g) * cofactor(x)
)


@primitive("cofactor", x=lambda g, x: minors(g, x))
def cofactor(xp, x):
    """The gradient of the determinant: the determinant times the transposed inverse.

    Of up to three rows it is written out, which is exact where products are. It is finite for a
    singular matrix as well. That is moved by rounding errors, so that it has an inverse; what they
    do to the determinant and to the inverse cancels.
    """
    if 0 in x.shape:
        return xp.zeros(x.shape, x.dtype)
    n = x.shape[-1]
    if n <= 3:
        return _few_cofactors(xp, x)
    largest = xp.max(xp.absolute(x), axis=(-2, -1), keepdims=True)
    step = xp.where(xp.equal(largest, 0), 1, largest)
    step = xp.multiply(step, xp.constant(16 * np.finfo(x.dtype).eps, x.dtype))
    singular = xp.equal(xp.reshape(xp.asarray(xp.det(x)), (*x.shape[:-2], 1, 1)), 0)
    diagonal = xp.equal(xp.reshape(xp.arange(n), (n, 1)), xp.arange(n))
    x = xp.asarray(xp.where(xp.logical_and(singular, diagonal), xp.add(x, step), x), x.dtype)
    scale = xp.reshape(xp.asarray(xp.det(x)), (*x.shape[:-2], 1, 1))
    return transposed(xp, xp.multiply(scale, _attempt(xp.inverse, x)))


@primitive("minors", w=lambda g, x: minors(g, x), x=_minors_rule)
def minors(xp, w, x):
    """The gradient of `sum(w * cofactor(x))`, finite for a singular matrix as well.

    In the bases that make x diagonal, `diag(s)`: there the determinant of `x + d` is to the second
    order `sum((d[i, i] * d[j, j] - d[i, j] * d[j, i]) * p[i, j])` over i < j, where p[i, j] is the
    product of all s but the i-th and the j-th.
    """
    n = x.shape[-1]
    if 0 in x.shape:
        return xp.zeros(x.shape, x.dtype)
    found = _attempt(xp.svd, x)

    def rows(*ends):
        return xp.getitem(found, (Ellipsis, slice(*ends), slice(None)))

    u, s, v = rows(0, n), rows(n, n + 1), rows(n + 1, None)
    one, alike = xp.ones((*x.shape[:-1], 1), x.dtype), xp.arange(n)
    alike = xp.equal(xp.reshape(alike, (n, 1)), alike)
    others = xp.where(alike, xp.constant(1, x.dtype), s)  # but the i-th, in row i
    ahead = xp.cumprod(xp.concatenate([one, others], -1), -1)
    behind = xp.flip(xp.cumprod(xp.flip(xp.concatenate([others, one], -1), -1), -1), -1)
    p = xp.multiply(
        xp.getitem(ahead, (Ellipsis, slice(None, -1))),
        xp.getitem(behind, (Ellipsis, slice(1, None))),
    )
    zero = xp.constant(0, x.dtype)
    p = xp.where(alike, zero, p)
    d = xp.matmul(xp.matmul(transposed(xp, u), w), v)
    inside = xp.matmul(p, xp.sum(xp.where(alike, d, zero), axis=-1, keepdims=True))
    inside = xp.subtract(xp.where(alike, inside, zero), transposed(xp, xp.multiply(p, d)))
    sign = xp.reshape(xp.multiply(xp.det(u), xp.det(v)), (*x.shape[:-2], 1, 1))
    found = xp.matmul(xp.matmul(u, inside), transposed(xp, v))
    return xp.asarray(xp.multiply(sign, found), x.dtype)


def _logabsdet_rule(g, x):
    try:
        return _as_matrix(g) * matrix_transpose(inverse_of(x))
    except LinAlgError as error:
        raise LinAlgError(f"slogdet, logdet: no gradient of this matrix: {error}") from error


logabsdet_of = primitive("logabsdet", lambda xp, x: xp.asarray(xp.slogdet(x)[1]), x=_logabsdet_rule)
det_sign = primitive(
    "det_sign", lambda xp, x: xp.asarray(xp.slogdet(x)[0]), x=lambda g, x: zeros_like(x)
)


# What `slogdet` returns.
SignAndLog = namedtuple("SignAndLog", "sign logabsdet")


@public
def det(x: FloatSquare) -> Any:
    """The determinant of a square matrix, or of each of a batch; of a (0, 0) matrix it is 1.

    Its derivatives of all orders exist, also where it is singular. Raises RuntimeError for other
    shapes and for integers.
    """
    return det_of(x)


@public
def slogdet(x: FloatSquare) -> SignAndLog:
    """The sign of the determinant and the logarithm of its absolute value, without overflow.

    Of a singular matrix they are 0 and -inf. Raises RuntimeError for other shapes and for integers.
    """
    return SignAndLog(det_sign(x), logabsdet_of(x))


@public
def logdet(x: FloatSquare) -> Any:
    """The logarithm of the determinant: NaN where that is negative, -inf where it is 0."""
    sign, logarithm = slogdet(x)
    return logarithm + where(sign < 0, math.nan, 0.0)
