"""Determinants, their signs and their logarithms."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...autograd.differentiate import grad
from ...autograd.grad_mode import enable_grad
from ...backend import int64
from ...tensor import TENSORS, wrap
from ..coercion import LinAlgError, cast
from ..fronts import FloatSquare, public
from ..index.indexing import part
from ..pointwise.elementwise import exp, where, zeros_like
from ..reduce.reductions import sum_dims
from ..reduce.scans import cumsum_dim
from ..registry import primitive
from ..shape.joining import cat
from ..shape.shapes import matrix_transpose, reshape_to
from ..shape.triangles import diagonal, upper_triangle, with_diagonal
from .factorisations import _attempt, inverse_of, solve_systems, svd_of
from .linear_algebra import batched

__all__ = ["det", "logdet", "slogdet"]


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
    with enable_grad():
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
    found = xp.multiply(scale, _attempt(xp.inverse, x))
    order = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
    return xp.transpose(found, order)


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
    found, lead = _attempt(xp.svd, x), (*range(len(x.shape) - 2),)

    def turned(y):
        return xp.transpose(y, (*lead, len(lead) + 1, len(lead)))

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
    d = xp.matmul(xp.matmul(turned(u), w), v)
    inside = xp.matmul(p, xp.sum(xp.where(alike, d, zero), axis=-1, keepdims=True))
    inside = xp.subtract(xp.where(alike, inside, zero), turned(xp.multiply(p, d)))
    sign = xp.reshape(xp.multiply(xp.det(u), xp.det(v)), (*x.shape[:-2], 1, 1))
    return xp.asarray(xp.multiply(sign, xp.matmul(xp.matmul(u, inside), turned(v))), x.dtype)


def _logabsdet_rule(g, x):
    try:
        return _as_matrix(g) * matrix_transpose(inverse_of(x))
    except LinAlgError as error:
        raise LinAlgError(f"slogdet, logdet: no gradient of this matrix: {error}") from error


logabsdet_of = primitive("logabsdet", lambda xp, x: xp.asarray(xp.slogdet(x)[1]), x=_logabsdet_rule)
det_sign = primitive(
    "det_sign", lambda xp, x: xp.asarray(xp.slogdet(x)[0]), x=lambda g, x: zeros_like(x)
)


class SignAndLog(NamedTuple):
    """What `slogdet` returns."""

    sign: Any
    logabsdet: Any


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
