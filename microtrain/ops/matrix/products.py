"""Products of vectors, matrices and batches of them: bmm, outer, addmm, tensordot, kron.

All are made of `mm`, `matmul` and rearranging, so they have gradients of any order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backend import XP, bool_
from ...tensor import TENSORS, wrap
from ..arguments import integer, integers
from ..coercion import cast
from ..fronts import Batch, Int, Matrix, Square, T, Vector, need, public
from ..pointwise.elementwise import add, clone, mul, where
from ..reduce.reductions import sum_dims
from ..shape.shapes import normal_dim, permute_dims, reshape_to
from .factorisations import inverse
from .linear_algebra import batched, check_dtypes, matmul, mm, mm_matrices

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "ger", "inner", "kron",
    "matrix_power", "mv", "outer", "tensordot", "vdot",
]  # fmt: skip


# Two factors --------------------------------------------------------------------------------------


@public
def bmm(x: Batch, mat2: Batch) -> Any:
    """The products of a batch (b, n, m) of matrices with a batch (b, m, p).

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    check_dtypes("bmm", x, mat2)
    fits = mat2.shape[:2] == (x.shape[0], x.shape[2])
    need(fits, "bmm", "expected batches (b, n, m) and (b, m, p)", x, mat2)
    return batched(x, mat2)


@public
def mv(x: Matrix, vec: Vector) -> Any:
    """The product of an (n, m) matrix and a vector of m elements."""
    return matmul(x, vec)


@public
def dot(x: Vector, tensor: Vector) -> Any:
    """The sum of the products of the elements of two vectors."""
    return matmul(x, tensor)


@public
def vdot(x: Vector, other: Vector) -> Any:
    """`dot`, for there are no complex numbers here."""
    return matmul(x, other)


@public
def inner(x: T, other: T) -> Any:
    """The sums of products over the last dimension of both; of numbers the product.

    (..., n) and (*, n) give (..., *). Raises RuntimeError for sizes or dtypes that differ.
    """
    check_dtypes("inner", x, other)
    if not x.ndim or not other.ndim:
        return mul(x, other)
    fits = x.shape[-1] == other.shape[-1]
    need(fits, "inner", "the last dimension must match on both input tensors", x, other)
    return tensordot(x, other, ([-1], [-1]))


@public
def outer(x: Vector, vec2: Vector) -> Any:
    """The (n, m) matrix of all products of the elements of two vectors."""
    return mul(reshape_to(x, (*x.shape, 1)), vec2)


ger = outer


@public
def kron(x: T, other: T) -> Any:
    """The Kronecker product: every element of `x` times all of `other`, in blocks."""
    ndim = max(x.ndim, other.ndim)
    a, b = ((1,) * (ndim - t.ndim) + t.shape for t in (x, other))
    blocks = mul(
        reshape_to(x, tuple(n for size in a for n in (size, 1))),
        reshape_to(other, tuple(n for size in b for n in (1, size))),
    )
    return reshape_to(blocks, tuple(m * n for m, n in zip(a, b, strict=True)))


@public
def tensordot(x: T, other: T, dims: Any = 2) -> Any:
    """The sums of products over dimensions of both.

    Args:
        x, other: Tensors of one dtype.
        dims: how many of the last dimensions of `x` to pair with the first of `other`, or two lists
            of dimensions. Paired dimensions have the same size, or one of them size 1.

    Returns a Tensor with the other dimensions of `x`, then those of `other`.
    Raises RuntimeError for sizes or dtypes that do not fit, IndexError for a missing dimension.
    """
    check_dtypes("tensordot", x, other)
    if type(dims) in TENSORS:
        dims = dims.tolist()
    if isinstance(dims, tuple | list):
        need(len(dims) == 2, "tensordot", "expected two lists of dimensions", dims)
        left, right = (integers("tensordot", "a list of dims", d) for d in dims)
    else:
        count = integer("tensordot", "dims", dims)
        most = min(x.ndim, other.ndim)
        need(0 <= count <= most, "tensordot", f"expects dims from 0 to {most} here", count)
        left, right = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    need(len(left) == len(right), "tensordot", "both dimension lists should have same length")
    left = tuple(normal_dim(d, x.ndim) for d in left)
    right = tuple(normal_dim(d, other.ndim) for d in right)
    once = len(set(left)) == len(left) and len(set(right)) == len(right)
    need(once, "tensordot", "a dimension appears multiple times", dims)
    for a, b in zip(left, right, strict=True):
        m, n = x.shape[a], other.shape[b]
        text = "contracted dimensions need to match: dim {} of {}, dim {} of {}"
        need(m == n or 1 in (m, n), "tensordot", text, a, x, b, other)
        if m != n and n == 1:
            x = cast(sum_dims(x, (a,), True), x.dtype)
        elif m != n:
            other = cast(sum_dims(other, (b,), True), other.dtype)
    rest = [d for d in range(x.ndim) if d not in left]
    more = [d for d in range(other.ndim) if d not in right]
    size = math.prod(x.shape[d] for d in left)
    a_shape, b_shape = tuple(x.shape[d] for d in rest), tuple(other.shape[d] for d in more)
    product = mm_matrices(
        reshape_to(permute_dims(x, (*rest, *left)), (math.prod(a_shape), size)),
        reshape_to(permute_dims(other, (*right, *more)), (size, math.prod(b_shape))),
    )
    return reshape_to(product, (*a_shape, *b_shape))


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
        xp = XP[type(x._array)]
        one = wrap(xp.asarray(np.eye(x.shape[-1], dtype=x.dtype)))
        return where(wrap(xp.zeros((), bool_)), x, one)  # whose gradient is 0
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


# A product added ----------------------------------------------------------------------------------


def _add_product(name: str, x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """`beta * x + alpha * product`; where beta is 0 what `x` holds does not matter, even NaN."""
    check_dtypes(name, x, product)
    shape = product.shape
    lead = len(shape) - x.ndim
    fits = lead >= 0 and all(m in (1, n) for m, n in zip(x.shape, shape[lead:], strict=True))
    need(fits, name, "an input of {} cannot be broadcast to the product of {}", x, product)
    if x.dtype.kind != "f":
        beta, alpha = _whole(name, "beta", beta), _whole(name, "alpha", alpha)
    if alpha != 1:
        product = mul(product, alpha)
    if beta == 0:
        never = wrap(XP[type(x._array)].zeros((), np.bool_))
        return where(never, x, product)  # the gradient of x is 0, not missing
    return add(product, x if beta == 1 else mul(x, beta))


def _whole(name: str, what: str, value: Any) -> int:
    text = f"for integers argument {what} must not be a fraction, got {{}}; convert with .float()"
    need(int(value) == value, name, text, value)
    return int(value)


@public
def addmm(x: T, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * x + alpha * (mat1 @ mat2)` for matrices.

    Args:
        x: broadcast to the shape of the product. Where `beta` is 0 its values are ignored.
        mat1, mat2: (n, m) and (m, p), of the dtype of `x`.

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    return _add_product("addmm", x, mm(mat1, mat2), beta, alpha)


@public
def addr(x: T, vec1: Vector, vec2: Vector, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * x + alpha * outer(vec1, vec2)`; arguments as for `addmm`."""
    return _add_product("addr", x, outer(vec1, vec2), beta, alpha)


@public
def addmv(x: T, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * x + alpha * (mat @ vec)` for a matrix and a vector; see `addmm`."""
    return _add_product("addmv", x, mv(mat, vec), beta, alpha)


@public
def baddbmm(x: T, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * x + alpha * bmm(batch1, batch2)`; see `addmm`."""
    return _add_product("baddbmm", x, bmm(batch1, batch2), beta, alpha)


@public
def addbmm(x: T, batch1: Batch, batch2: Batch, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * x + alpha * bmm(batch1, batch2).sum(0)`; see `addmm`."""
    if batch2.shape[:2] != (batch1.shape[0], batch1.shape[2]):
        bmm(batch1, batch2)  # which refuses
    product = tensordot(batch1, batch2, ([0, 2], [0, 1]))
    return _add_product("addbmm", x, product, beta, alpha)
