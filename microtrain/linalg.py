"""Linear algebra under the names of `torch.linalg`."""

from __future__ import annotations

import functools
import math
from typing import Any

from .backend import as_dtype
from .errors import need
from .ops import amax, amin, matmul, sum
from .ops.arguments import want_float
from .ops.coercion import LinAlgError, cast
from .ops.fronts import Front, Unchecked, public
from .ops.matrix import factorizations
from .ops.matrix.decompositions import eigh, lstsq, matrix_exp, matrix_rank, pinv
from .ops.matrix.decompositions import linalg_qr as qr
from .ops.matrix.decompositions import linalg_svd as svd
from .ops.matrix.factorizations import cholesky, matrix_power, solve, solve_triangular
from .ops.reduce.norms import norm as _norm
from .ops.reduce.norms import singular
from .ops.shape.joining import checked_tensors
from .ops.shape.rearranging import diagonal as _diagonal
from .ops.shape.shapes import normal_dims

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv",
    "lstsq", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot",
    "norm", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensorinv",
    "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


def _front(function: Any, name: str, first: str = "A") -> Any:
    """`function` with a first argument that is called as in `torch.linalg`."""
    own = function.front.function if hasattr(function, "front") else function
    apply = Front(own, name, first).apply
    apply.__module__ = __name__
    return apply


inv, det = _front(factorizations.inverse, "inv"), _front(factorizations.det, "det")
slogdet = _front(factorizations.slogdet, "slogdet")
svdvals = _front(factorizations.svdvals, "svdvals")
vander = _front(factorizations.vander, "vander", "x")
tensorinv, tensorsolve = factorizations.tensorinv, factorizations.tensorsolve


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """`mt.diagonal` of the last two dimensions."""
    return _diagonal(A, offset, dim1, dim2)


def eigvalsh(A: Any, UPLO: str = "L") -> Any:
    """The eigenvalues of a symmetric matrix, the smallest first; arguments as for `eigh`."""
    return eigh(A, UPLO).eigenvalues


def cond(A: Any, p: Any = None) -> Any:
    """The condition number of the matrices (..., m, n): how much errors can grow in a solution.

    Args:
        A: a Tensor of a float dtype.
        p: None or 2 for the largest singular value over the smallest, -2 for the reverse, else the
            `ord` of `matrix_norm`: the norm times that of the inverse.

    Raises what `matrix_norm` raises and, but for None, 2 and -2, RuntimeError for a matrix that is
    not square, LinAlgError for a singular one and for values that are not finite.
    """
    if p is not None and p not in (2, -2):
        return matrix_norm(A, p) * matrix_norm(inv(A), p)
    values = svdvals(A)
    need(values.shape[-1], "linalg.cond", "an empty matrix has no condition number", A)
    largest, smallest = values[..., 0], values[..., -1]
    return smallest / largest if p == -2 else largest / smallest


@public
def cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """The cross product of vectors of three elements along `dim`, broadcast."""
    return factorizations.cross(input, other, dim)


def _vecdot(x: Unchecked, y: Any, *, dim: int = -1) -> Any:
    """The sums of products of floats along `dim`, broadcast."""
    for tensor in checked_tensors("linalg.vecdot", (x, y)):
        want_float("linalg.vecdot", tensor)
    return sum(x * y, dim)


vecdot = _front(_vecdot, "vecdot", "x")


def multi_dot(tensors: Any) -> Any:
    """The product of two or more matrices, from left to right; the first and last may be vectors.

    A vector at the end is multiplied from right to left. Raises RuntimeError for fewer than two.
    """
    found = checked_tensors("linalg.multi_dot", tensors)
    several = len(found) > 1
    need(several, "linalg.multi_dot", "expected at least 2 tensors but got {}", len(found))
    fits = all(x.ndim == 2 for x in found[1:-1]) and {found[0].ndim, found[-1].ndim} <= {1, 2}
    text = "expected matrices, the first and the last perhaps vectors"
    need(fits, "linalg.multi_dot", text, *found)
    if found[-1].ndim == 1:
        return functools.reduce(lambda right, x: matmul(x, right), found[::-1])
    return functools.reduce(matmul, found)


def _vector_norm(
    x: Unchecked, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of the elements as vectors along `dim`, an int, a tuple or None for all.

    Args:
        x: a Tensor of a float dtype (or `dtype` says which).
        ord: a number: `sum(|x|^ord)^(1/ord)`, or inf or -inf for the largest or smallest absolute
            value, or 0 for the number of elements that are not 0.
        dim, keepdim: what to reduce, and whether to leave it in place with size 1.
        dtype: cast to this dtype first.

    Raises TypeError for another `ord`, RuntimeError for integers and where there is nothing to take
    the largest of.
    """
    checked_tensors("linalg.vector_norm", (x,))
    number = isinstance(ord, int | float)
    need(number, "linalg.vector_norm", "ord must be a number", ord, error=TypeError)
    x = x if dtype is None else cast(x, as_dtype(dtype))
    want_float("linalg.vector_norm", x)
    dims = None if dim is None else normal_dims(dim, x.ndim)
    sizes = x.shape if dims is None else [x.shape[d] for d in dims]
    defined = 0 not in sizes or 0 <= ord < math.inf
    need(defined, "linalg.vector_norm", "no {} norm of an empty Tensor, {} and dim {}", ord, x, dim)
    return _norm(x, ord, dims, keepdim)


vector_norm = _front(_vector_norm, "vector_norm", "x")


@public
def matrix_norm(
    x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of the matrices in the two dimensions `dim`.

    Args:
        x: a Tensor of a float dtype (or `dtype` says which).
        ord: "fro", the norm of all elements; 1 or -1, the largest or smallest sum of the absolute
            values of a column; inf or -inf, of a row; 2 or -2, the largest or smallest singular
            value; "nuc", the sum of these.
        dim, keepdim: the matrices' dimensions, and whether to leave them in place with size 1.
        dtype: cast to this dtype first.

    Raises RuntimeError for another `ord`, other than two dimensions, and integers.
    """
    dims = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    fits, text = x.ndim > 1 and len(dims) == 2, "expected two dimensions of a Tensor of two or more"
    need(fits, "linalg.matrix_norm", text, dim, x)
    if ord == "fro":
        return vector_norm(x, 2, dims, keepdim, dtype=dtype)
    known = ord in ("nuc", 1, -1, 2, -2, math.inf, -math.inf)
    text = "Order {} not supported; there are 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
    need(known, "linalg.matrix_norm", text, ord)
    empty = any(not x.shape[d] for d in normal_dims(dims, x.ndim) or ())
    largest = sum if empty else amax  # of nothing it is 0
    if ord in ("nuc", 2, -2):
        x = x if dtype is None else cast(x, as_dtype(dtype))
        combine = sum if ord == "nuc" else largest if ord > 0 else amin
        return singular("linalg.matrix_norm", x, dims, keepdim, combine)
    rows, columns = normal_dims(dims, x.ndim) or ()
    added, compared = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = vector_norm(x, 1, added, True, dtype=dtype)
    found = (largest if ord > 0 else amin)(sums, (compared,), True)
    return found if keepdim else found.squeeze((rows, columns))


@public
def norm(
    x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of a vector or matrix, by `ord` and the number of dimensions.

    Without `ord` it is that of all elements (along `dim`); with it `vector_norm` for one dimension
    and `matrix_norm` for two.

    Raises RuntimeError for another number of dimensions.
    """
    if ord is None:
        return vector_norm(x, 2, dim, keepdim, dtype=dtype)
    text = "If dim is not specified but ord is, the input must be 1D or 2D"
    need(dim is not None or x.ndim in (1, 2), "linalg.norm", text, x)
    dims = range(x.ndim) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    if isinstance(ord, str) or len(dims) == 2:
        return matrix_norm(x, ord, tuple(dims), keepdim, dtype=dtype)
    need(len(dims) == 1, "linalg.norm", "dim must name one or two dimensions", dim)
    return vector_norm(x, ord, tuple(dims), keepdim, dtype=dtype)
