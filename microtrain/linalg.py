"""Linear algebra under the names of `torch.linalg`."""

from __future__ import annotations

import functools
import math
from typing import Any

from .backend import as_dtype
from .ops import amax, amin, sum
from .ops import matmul as matmul
from .ops.arguments import want_float
from .ops.coercion import LinAlgError as LinAlgError
from .ops.coercion import cast
from .ops.fronts import Front, Unchecked, public
from .ops.matrix.factorisations import SignAndLog
from .ops.matrix.factorisations import cholesky as cholesky
from .ops.matrix.factorisations import det as _det
from .ops.matrix.factorisations import inverse as _inverse
from .ops.matrix.factorisations import slogdet as _slogdet
from .ops.matrix.factorisations import solve as solve
from .ops.matrix.factorisations import svdvals as _svdvals
from .ops.matrix.products import matrix_power as matrix_power
from .ops.reduce.norms import norm as _norm
from .ops.reduce.norms import singular
from .ops.shape.joining import checked_tensors
from .ops.shape.shapes import normal_dims
from .ops.shape.triangles import diagonal as _diagonal

__all__ = [
    "LinAlgError", "cholesky", "det", "diagonal", "inv", "matmul", "matrix_norm", "matrix_power",
    "multi_dot", "norm", "slogdet", "solve", "svdvals", "vecdot", "vector_norm",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


class _FrontOfX(Front):
    """A front whose first argument is `x`, as in `torch.linalg`."""

    first = "x"


# What PyTorch calls A here is `input` elsewhere.
def inv(A: Any) -> Any:
    """`mt.inverse`."""
    return _inverse(A)


def det(A: Any) -> Any:
    """`mt.det`."""
    return _det(A)


def slogdet(A: Any) -> SignAndLog:
    """`mt.slogdet`."""
    return _slogdet(A)


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """`mt.diagonal` of the last two dimensions."""
    return _diagonal(A, offset, dim1, dim2)


def svdvals(A: Any) -> Any:
    """The singular values of a matrix, or of each of a batch (..., m, n), the largest first.

    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.
    """
    return _svdvals(A)


def _vecdot(x: Unchecked, y: Any, *, dim: int = -1) -> Any:
    """The sums of products of floats along `dim`, broadcast."""
    for tensor in checked_tensors("linalg.vecdot", (x, y)):
        want_float("linalg.vecdot", tensor)
    return sum(x * y, dim)


vecdot = _FrontOfX(_vecdot, "vecdot").apply


def multi_dot(tensors: Any) -> Any:
    """The product of two or more matrices, from left to right; the first and last may be vectors.

    A vector at the end is multiplied from right to left. Raises RuntimeError for fewer than two.
    """
    found = checked_tensors("linalg.multi_dot", tensors)
    if len(found) < 2:
        raise RuntimeError(f"linalg.multi_dot: expected at least 2 tensors but got {len(found)}")
    if any(x.ndim != 2 for x in found[1:-1]) or not {found[0].ndim, found[-1].ndim} <= {1, 2}:
        raise RuntimeError(
            "linalg.multi_dot: expected matrices, the first and the last perhaps vectors, got "
            f"shapes {', '.join(str(x.shape) for x in found)}"
        )
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
    if not isinstance(ord, int | float):
        raise TypeError(f"linalg.vector_norm: ord must be a number, got {ord!r}")
    x = x if dtype is None else cast(x, as_dtype(dtype))
    want_float("linalg.vector_norm", x)
    dims = None if dim is None else normal_dims(dim, x.ndim)
    sizes = x.shape if dims is None else [x.shape[d] for d in dims]
    if (math.isinf(ord) or ord < 0) and 0 in sizes:
        raise RuntimeError(
            f"linalg.vector_norm: no {ord} norm of nothing (shape {x.shape}, dim {dim})"
        )
    return _norm(x, ord, dims, keepdim)


vector_norm = _FrontOfX(_vector_norm, "vector_norm").apply


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
    if x.ndim < 2 or len(dims) != 2:
        raise RuntimeError(
            f"linalg.matrix_norm: expected two dimensions of a Tensor of at least two, got {dim} "
            f"and shape {x.shape}"
        )
    if ord == "fro":
        return vector_norm(x, 2, dims, keepdim, dtype=dtype)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(
            f"linalg.matrix_norm: Order {ord} not supported; there are 'fro', 'nuc', 1, -1, 2, -2, "
            "inf, -inf"
        )
    if ord in ("nuc", 2, -2):
        x = x if dtype is None else cast(x, as_dtype(dtype))
        combine = sum if ord == "nuc" else amax if ord > 0 else amin
        return singular("linalg.matrix_norm", x, dims, keepdim, combine)
    rows, columns = normal_dims(dims, x.ndim) or ()
    added, compared = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = vector_norm(x, 1, added, True, dtype=dtype)
    found = (amax if ord > 0 else amin)(sums, (compared,), True)
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
    if dim is None and x.ndim not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{x.ndim}D."
        )
    dims = range(x.ndim) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    if isinstance(ord, str) or len(dims) == 2:
        return matrix_norm(x, ord, tuple(dims), keepdim, dtype=dtype)
    if len(dims) != 1:
        raise RuntimeError(f"linalg.norm: dim must name one or two dimensions, got {dim}")
    return vector_norm(x, ord, tuple(dims), keepdim, dtype=dtype)
