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
from .ops.matrix import decompositions, factorisations
from .ops.matrix.decompositions import QR, SVD, Eigh, LeastSquares
from .ops.matrix.decompositions import matrix_exp as matrix_exp
from .ops.matrix.determinants import SignAndLog
from .ops.matrix.determinants import det as _det
from .ops.matrix.determinants import slogdet as _slogdet
from .ops.matrix.factorisations import cholesky as cholesky
from .ops.matrix.factorisations import inverse as _inverse
from .ops.matrix.factorisations import matrix_power as matrix_power
from .ops.matrix.factorisations import solve as solve
from .ops.matrix.factorisations import solve_triangular as solve_triangular
from .ops.matrix.factorisations import svdvals as _svdvals
from .ops.matrix.factorisations import tensorsolve as tensorsolve
from .ops.reduce.norms import norm as _norm
from .ops.reduce.norms import singular
from .ops.shape.joining import checked_tensors
from .ops.shape.shapes import normal_dims
from .ops.shape.triangles import diagonal as _diagonal

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv",
    "lstsq", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot",
    "norm", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensorinv",
    "tensorsolve", "vander", "vecdot", "vector_norm",
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


def svd(A: Any, full_matrices: bool = True, *, driver: Any = None) -> SVD:
    """The factors of `A = U @ diag(S) @ Vh` with orthonormal columns of U and rows of Vh.

    Args:
        A: (..., m, n), of a float dtype.
        full_matrices: whether U is (..., m, m) and Vh (..., n, n), not (..., m, k) and (..., k, n)
            with k = min(m, n). What that adds gets no gradient.
        driver: only None.

    Returns `(U, S, Vh)`, S (..., k) with the largest first. The gradient is that of J. Townsend,
    "Differentiating the singular value decomposition", 2016; of the vectors of equal values NaN.
    Raises RuntimeError for fewer than two dimensions and for integers, LinAlgError (a RuntimeError)
    for values that are not finite.

    Example:
        >>> U, S, Vh = mt.linalg.svd(mt.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> S
        tensor([4., 3.])
    """
    return decompositions.linalg_svd(A, full_matrices, driver=driver)


def qr(A: Any, mode: str = "reduced") -> QR:
    """The factors of `A = Q @ R`, Q with orthonormal columns and R upper triangular.

    Args:
        A: (..., m, n), of a float dtype.
        mode: "reduced" for Q (..., m, k) and R (..., k, n), k = min(m, n); "complete" for Q
            (..., m, m) and R (..., m, n); "r" for an empty Q.

    The gradient needs the first k columns of `A` to be independent. Raises RuntimeError for fewer
    than two dimensions, for integers and for another mode, LinAlgError (a RuntimeError) for values
    that are not finite, and in the backward pass for the columns that "complete" adds to Q.
    """
    return decompositions.linalg_qr(A, mode)


def eigh(A: Any, UPLO: str = "L") -> Eigh:
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
    return decompositions.eigh(A, UPLO)


def eigvalsh(A: Any, UPLO: str = "L") -> Any:
    """The eigenvalues of a symmetric matrix, the smallest first; arguments as for `eigh`."""
    return decompositions.eigh(A, UPLO).eigenvalues


def pinv(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
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
    return decompositions.pinv(A, atol=atol, rtol=rtol, hermitian=hermitian)


def matrix_rank(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """How many singular values are not 0, as int64; arguments and errors as for `pinv`."""
    return decompositions.matrix_rank(A, atol=atol, rtol=rtol, hermitian=hermitian)


def lstsq(A: Any, B: Any, rcond: Any = None, *, driver: str | None = None) -> LeastSquares:
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
    return decompositions.lstsq(A, B, rcond, driver=driver)


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
        return matrix_norm(A, p) * matrix_norm(_inverse(A), p)
    values = _svdvals(A)
    if not values.shape[-1]:
        raise RuntimeError(f"linalg.cond: no condition number of nothing (shape {A.shape})")
    largest, smallest = values[..., 0], values[..., -1]
    return smallest / largest if p == -2 else largest / smallest


@public
def cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """The cross product of vectors of three elements along `dim`, broadcast."""
    return factorisations.cross(input, other, dim)


def vander(x: Any, N: int | None = None) -> Any:
    """The powers 0 to N - 1 of every element of (..., n), as (..., n, N); N is n if not given."""
    return factorisations.vander(x, N)


def tensorinv(A: Any, ind: int = 2) -> Any:
    """The inverse of a Tensor as a matrix of its first `ind` dimensions by the others."""
    return factorisations.tensorinv(A, ind)


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
