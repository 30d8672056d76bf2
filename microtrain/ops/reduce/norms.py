"""Vector norms, the length of all elements or of those along dimensions, and distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from ...backend import XP, as_dtype, made
from ...tensor import TENSORS
from ..arguments import want_float
from ..coercion import cast
from ..fronts import Float, Matrix, Number, OwnDim, T, need, of_dims, one_of, public, wrong
from ..index.indexing import gather_index
from ..matrix.factorizations import svdvals
from ..pointwise.elementwise import abs, clamp, cusp, isnan, sign, where, zeros_like
from ..reduce.reductions import any, sum_dims
from ..registry import primitive
from ..shape.shapes import expand_to, normal_dims, permute_dims, restore_dims, unsqueeze
from .reductions import amax, amin, in_single, sum

__all__ = [
    "cdist", "dist", "norm", "renorm",
]  # fmt: skip


@in_single
def _norm(xp, x, *, p=2, dims=None, keepdim=False, least=0):
    """The p-norms along `dims`, but at least `least`."""
    if p == 2:
        found = xp.sqrt(xp.sum(xp.multiply(x, x), axis=dims, keepdims=keepdim))
    elif p == 0:
        found = xp.sum(xp.not_equal(x, 0), axis=dims, dtype=x.dtype, keepdims=keepdim)
    else:
        powers = xp.power(xp.absolute(x), xp.constant(p, x.dtype))
        total = xp.sum(powers, axis=dims, keepdims=keepdim)
        found = xp.power(total, xp.constant(1 / p, x.dtype))
    return xp.maximum(found, xp.constant(least, x.dtype)) if least else found


def _norm_rule(g, x, result, p, dims, keepdim, least):
    if p == 0:
        return zeros_like(x)

    def whole(y):
        return expand_to(restore_dims(y, x.shape, dims, keepdim), x.shape)

    # 0 where the norm is 0, as in PyTorch; the inner `where` keeps 0 / 0 away.
    flat = result <= least
    scale = whole(where(flat, 0, g / where(flat, 1, result) ** (p - 1)))
    if p == 2:
        found = scale * x
    else:
        size = where(x == 0, 1, abs(x))  # below p = 1 the power of 0 is infinite
        found = scale * (sign(x) * size ** (p - 1))
    if type(x) not in TENSORS:
        return found
    found = found if least else where(whole(flat), cusp(x), found)
    return where(x == 0, cusp(x), found) if p < 2 else found


norm_dims = primitive("norm", _norm, x=_norm_rule)


def singular(name: str, x: Any, dim: Any, keepdim: bool, combine: Callable[..., Any]) -> Any:
    """`combine(values, -1)` of the singular values of the matrices in the two dimensions `dim`."""
    dims = normal_dims(dim, x.ndim) or ()
    need(len(dims) == 2, name, "expected two dimensions", dim)
    others = tuple(d for d in range(x.ndim) if d not in dims)
    found = combine(svdvals(permute_dims(x, (*others, *dims))), -1)
    return restore_dims(found, x.shape, dims, False) if keepdim else found


def norm(
    x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The p-norm of the elements as one vector, `sum(|x|^p)^(1/p)`; 0 has the gradient 0.

    Args:
        x: a Tensor of a float dtype (or `dtype` says which).
        p: a number; "fro" is 2; `inf` is the largest and `-inf` the smallest absolute value, 0 the
            number of elements that are not 0. "nuc" is the sum of the singular values of matrices.
        dim: an int, a tuple of ints, None for all.
        keepdim: leave the reduced dimensions in place with size 1.
        dtype: cast to this dtype first.

    Raises RuntimeError for integers and booleans and for another `p`, IndexError for a dimension
    out of range.

    Example:
        >>> mt.norm(mt.tensor([3.0, 4.0]))
        tensor(5.)
    """
    x = x if dtype is None else cast(x, as_dtype(dtype))
    want_float("norm", x)
    p = 2 if p == "fro" else p
    if p == "nuc":
        return singular("norm", x, tuple(range(x.ndim)) if dim is None else dim, keepdim, sum)
    if not isinstance(p, int | float):
        raise wrong("norm", "expected a number, 'fro' or 'nuc' for p", p)
    dims = None if dim is None else normal_dims(dim, x.ndim)
    if math.isinf(p):
        return (amax if p > 0 else amin)(abs(x), () if dims is None else dims, keepdim)
    if p == 1:
        return sum(abs(x), dims, keepdim)
    return norm_dims(x, p, dims, keepdim)


def norm_of_at_least(x: Any, p: Any, dim: Any, least: float) -> Any:
    """The p-norm along `dim`, which stays, or `least` where that is larger."""
    want_float("norm", x)
    if math.isinf(p) or p == 1 or least <= 0:
        return clamp(norm(x, p, dim, True), min=least)
    return norm_dims(x, p, None if dim is None else normal_dims(dim, x.ndim), True, least)


@public
def renorm(input: Float, p: Number, dim: OwnDim, maxnorm: Number) -> Any:
    """`input` with the slices along `dim` whose p-norm is above `maxnorm` scaled down to that.

    Raises RuntimeError for less than 2 dimensions and where `p` or `maxnorm` is negative.
    """
    fits = input.ndim > 1 and p > 0 and maxnorm >= 0
    need(fits, "renorm", "expected at least 2-d, p > 0 and maxnorm >= 0", input, p, maxnorm)
    length = norm(input, float(p), tuple(d for d in range(input.ndim) if d != dim), True)
    return input * where(length > maxnorm, maxnorm / (length + 1e-7), 1)


# Distances ----------------------------------------------------------------------------------------


_MODES = (
    "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)  # fmt: skip


@public
def dist(input: T, other: T, p: Number = 2) -> Any:
    """The p-norm of `input - other` as one vector; see `norm`."""
    return norm(input - other, float(p))


def _lengths(x: Any, p: float) -> Any:
    """The p-norms along the last dimension; NaN is not one of the numbers that p = 0 counts."""
    found = norm(x, p, -1) if x.shape[-1] else sum_dims(x, (x.ndim - 1,))
    return found if p else where(any(isnan(x), -1), math.nan, found)


@public
def cdist(
    x1: Annotated[Float, of_dims(2)], x2: Annotated[Float, of_dims(2)], p: Number = 2.0,
    compute_mode: Annotated[str | None, one_of(None, *_MODES)] = None,
) -> Any:  # fmt: skip
    """The p-norm distances of all rows of (..., n, k) from all rows of (..., m, k): (..., n, m).

    Takes memory for n * m * k numbers: no `compute_mode` takes the short way of a matrix product,
    which loses digits. Raises RuntimeError for integers, shapes that do not fit and a negative `p`.
    """
    fits = x1.shape[-1] == x2.shape[-1] and p >= 0
    need(fits, "cdist", "expected rows of one length and p >= 0", x1, x2, p)
    return _lengths(unsqueeze(x1, -2) - unsqueeze(x2, -3), float(p))


@public
def pdist(input: Matrix, p: Number = 2.0) -> Any:
    """The p-norm distances of each row of a matrix from all rows behind it, as one vector."""
    xp = XP[type(input._array)]
    rows, columns = (xp.asarray(made(at)) for at in np.triu_indices(len(input), 1))
    return _lengths(gather_index(input, (rows,)) - gather_index(input, (columns,)), float(p))
