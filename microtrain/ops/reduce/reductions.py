"""Reductions: many elements to one, over all dimensions or over some."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from ...backend import as_dtype, float16, float32, float64, int64
from ...errors import wrong
from ...tensor import TENSORS, Tensor
from ..arguments import want_float
from ..coercion import cast
from ..index.indexing import gather_along
from ..pointwise.elementwise import clone, cusp, exp, isnan, maximum, minimum, ne, to_dtype, where
from ..registry import primitive
from ..shape.shapes import expand_to, normal_dim, normal_dims, reshape_to, restore_dims

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "log_softmax", "max", "mean", "min",
    "softmax", "std", "sum", "var",
]  # fmt: skip


def _spread(g, shape, dims, keepdim):
    """The gradient of a sum over `dims`: every summand gets it."""
    return expand_to(restore_dims(g, shape, dims, keepdim), shape)


def count_of(shape: tuple[int, ...], dims: Any) -> int:
    return math.prod(shape) if dims is None else math.prod(shape[d] for d in dims)


def in_single(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel(xp, x, ...)` that computes half precision in single, where 2048 + 1 is not 2048."""

    @functools.wraps(kernel)
    def wide(xp, x, *others, **attrs):
        if x.dtype != float16:
            return kernel(xp, x, *others, **attrs)
        return xp.asarray(kernel(xp, xp.asarray(x, float32), *others, **attrs), float16)

    return wide


def reduction(name: str, instruction: str, **rules: Any) -> Any:
    """Declare a reduction over `dims` that is one instruction."""

    def kernel(xp, x, *, dims=None, keepdim=False):
        return getattr(xp, instruction)(x, axis=dims, keepdims=keepdim)

    return primitive(name, kernel, **rules)


# Sum, mean, variance ------------------------------------------------------------------------------


def _sum(xp, x, *, dims=None, keepdim=False):
    dtype = x.dtype
    if dtype is float32 or dtype is float64:  # most of the time, and the fastest to tell
        return xp.sum(x, axis=dims, keepdims=keepdim)
    if dtype == float16:
        return in_single(_sum)(xp, x, dims=dims, keepdim=keepdim)
    # NumPy sums uint8 as uint64, which Tensors do not have; all other integers as int64.
    dtype = int64 if dtype.kind == "u" else None
    return xp.sum(x, axis=dims, dtype=dtype, keepdims=keepdim)


sum_dims = primitive(
    "sum", _sum, x=lambda g, x_shape, dims, keepdim: _spread(g, x_shape, dims, keepdim)
)


def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of the elements; of no elements it is 0.

    Args:
        x: a Tensor; integers and booleans are summed as int64.
        dim: an int, a tuple of ints, None for all.
        keepdim: leave the summed dimensions in place with size 1.
        dtype: cast to this dtype before summing.

    Raises IndexError for a dimension out of range, RuntimeError for one named twice.
    """
    dims = None if dim is None else normal_dims(dim, x.ndim)
    if dtype is None:
        return sum_dims(x, dims, keepdim)
    dtype = as_dtype(dtype)
    return cast(sum_dims(cast(x, dtype), dims, keepdim), dtype)


def _mean(xp, x, *, dims=None, keepdim=False):
    """The mean, and what was divided where that is one number."""
    if x.dtype == float16:
        found, total = _mean(xp, xp.asarray(x, float32), dims=dims, keepdim=keepdim)
        return xp.asarray(found, float16), total
    n = count_of(x.shape, dims)
    total = xp.asarray(xp.sum(x, axis=dims, keepdims=keepdim))
    one = None if total.shape else total
    if not n:
        return xp.full(total.shape, math.nan, x.dtype), one
    return xp.divide(total, xp.constant(n, x.dtype)), one


def _mean_rule(g, x_shape, dims, keepdim, total):
    # Where there was nothing to average there is no element to get a gradient either.
    return _spread(g / (count_of(x_shape, dims) or 1), x_shape, dims, keepdim)


# The node keeps the total for data parallelism, which asks there what a mean is over.
mean_dims = primitive(
    "mean",
    _mean,
    x=_mean_rule,
    extras=("total",),
    recompute={"total": lambda: None},
    small=("total",),
)


def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean of the elements; of no elements it is NaN.

    Args:
        x: a Tensor of a float dtype (or `dtype` says which).
        dim: an int, a tuple of ints, None for all.
        keepdim: leave the averaged dimensions in place with size 1.
        dtype: cast to this dtype before averaging.

    Raises RuntimeError for integers and booleans, IndexError for a dimension out of range.
    """
    x = x if dtype is None else cast(x, as_dtype(dtype))
    want_float("mean", x)
    return mean_dims(x, None if dim is None else normal_dims(dim, x.ndim), keepdim)


@in_single
def _var(xp, x, *, dims=None, correction=1, keepdim=False):
    n = count_of(x.shape, dims)
    center = xp.divide(xp.sum(x, axis=dims, keepdims=True), xp.constant(n or 1, x.dtype))
    d = xp.subtract(x, center)
    total = xp.asarray(xp.sum(xp.multiply(d, d), axis=dims, keepdims=keepdim))
    if n > correction:
        return xp.divide(total, xp.constant(n - correction, x.dtype))
    # A division by 0, spelled out: infinite for any spread, undefined for none.
    return xp.asarray(xp.where(xp.greater(total, 0), math.inf, math.nan), x.dtype)


def _from_mean(x: Any, dims: Any, correction: Any) -> Any:
    """The distances from the mean, divided by n - correction."""
    n = count_of(x.shape, dims)
    scale = 1 / (n - correction) if n > correction else math.nan
    return (x - mean_dims(x, dims, True)) * scale


def _var_rule(g, x, dims, correction, keepdim):
    return _spread(g * 2, x.shape, dims, keepdim) * _from_mean(x, dims, correction)


var_dims = primitive("var", _var, x=_var_rule)


def _std_rule(g, x, result, dims, correction, keepdim):
    # 0 where all elements are equal, as in PyTorch; the inner `where` keeps 0 / 0 away.
    flat = result == 0
    g = where(flat, 0, g / where(flat, 1, result))
    found = _spread(g, x.shape, dims, keepdim) * _from_mean(x, dims, correction)
    if type(x) not in TENSORS:
        return found
    return where(_spread(flat, x.shape, dims, keepdim), cusp(x), found)


@primitive("std", x=_std_rule)
@in_single
def std_dims(xp, x, *, dims=None, correction=1, keepdim=False):
    return xp.sqrt(_var(xp, x, dims=dims, correction=correction, keepdim=keepdim))


def _dispersion(
    name: str, operation: Any, x: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any
) -> Any:
    want_float(name, x)
    if isinstance(dim, bool):  # var(unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return operation(x, None if dim is None else normal_dims(dim, x.ndim), correction, keepdim)


def var(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: Any = None,
) -> Any:  # fmt: skip
    """The variance: squared distances from the mean, summed, divided by n - correction.

    Args:
        x: a Tensor of a float dtype.
        dim: an int, a tuple of ints, None for all.
        unbiased: True is correction 1, the default; False is correction 0.
        keepdim: leave the reduced dimensions in place with size 1.
        correction: subtracted from the number of elements. Where nothing is left the result is
            infinite, or NaN where all elements are equal.

    Raises RuntimeError for integers and booleans, IndexError for a dimension out of range.
    """
    return _dispersion("var", var_dims, x, dim, unbiased, keepdim, correction)


def std(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: Any = None,
) -> Any:  # fmt: skip
    """The standard deviation, the square root of `var`; its gradient where it is 0 is 0."""
    return _dispersion("std", std_dims, x, dim, unbiased, keepdim, correction)


# Truth --------------------------------------------------------------------------------------------


all_dims, any_dims = reduction("all", "all"), reduction("any", "any")


def _truth(operation: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    # As in PyTorch an empty tuple means no dimension, unlike everywhere else, and uint8 stays.
    none = isinstance(dim, tuple | list) and not dim
    result = ne(x, 0) if none else operation(x, normal_dims(dim, x.ndim), keepdim)
    return cast(result, x.dtype) if x.dtype.kind == "u" else result


def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are true (not 0); of no elements it is True.

    Args:
        x: a Tensor.
        dim: an int, a tuple of ints (an empty one reduces nothing), None for all.
        keepdim: leave the reduced dimensions in place with size 1.

    Returns booleans, for uint8 uint8. Raises IndexError for a dimension out of range.
    """
    return _truth(all_dims, x, dim, keepdim)


def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is true (not 0); of no elements it is False. Arguments as for `all`."""
    return _truth(any_dims, x, dim, keepdim)


# Softmax ------------------------------------------------------------------------------------------


def _shifted(xp, x, dim):
    """`x` less its largest element along `dim`, so that `exp` does not overflow."""
    return xp.subtract(x, xp.max(x, axis=dim, keepdims=True))


@primitive("softmax", x=lambda g, result, dim: result * (g - sum(g * result, dim, True)))
@in_single
def softmax_dim(xp, x, *, dim):
    if 0 in x.shape:
        return xp.ones(x.shape, x.dtype)
    if not x.shape:
        return xp.exp(xp.subtract(x, x))
    e = xp.exp(_shifted(xp, x, dim))
    return xp.divide(e, xp.sum(e, axis=dim, keepdims=True))


@primitive("log_softmax", x=lambda g, result, dim: g - exp(result) * sum(g, dim, True))
@in_single
def log_softmax_dim(xp, x, *, dim):
    if 0 in x.shape:
        return xp.zeros(x.shape, x.dtype)
    if not x.shape:
        return xp.subtract(x, x)
    z = _shifted(xp, x, dim)
    return xp.subtract(z, xp.log(xp.sum(xp.exp(z), axis=dim, keepdims=True)))


def softmax(x: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along `dim`: positive numbers that add up to 1, without overflow.

    Args:
        x: a Tensor of a float dtype (or `dtype` says which), any shape.
        dim: the dimension that adds up to 1.
        dtype: cast to this dtype first.

    Raises RuntimeError for integers and booleans, IndexError for a dimension out of range.
    """
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if x.dtype.kind != "f":
        want_float("softmax", x)
    return softmax_dim(x, normal_dim(dim, x.ndim))


def log_softmax(x: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax(x, dim)`, without its underflow; arguments and errors as there."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if x.dtype.kind != "f":
        want_float("log_softmax", x)
    return log_softmax_dim(x, normal_dim(dim, x.ndim))


# The largest and the smallest: values, indices, and who gets the gradient -------------------------


# Elements along a dimension and their indices: what `max(dim)`, `sort` and others return.
Chosen = namedtuple("Chosen", "values indices")


def has_elements(name: str, x: Any, dims: Any, error: type[Exception] = IndexError) -> None:
    if not count_of(x.shape, dims):
        text = "Expected reduction dim to have non-zero size; there are no elements to choose from"
        raise wrong(name, text, x, error=error)


def share(g, x, result, dims, keepdim):
    """The gradient of an extremum: split evenly among the elements that reach it."""
    reached = (x == restore_dims(result, x.shape, dims, keepdim)) | isnan(x)
    ones = to_dtype(reached, g.dtype)
    return ones * (restore_dims(g, x.shape, dims, keepdim) / sum_dims(ones, dims, True))


amax_dims, amin_dims = reduction("amax", "max", x=share), reduction("amin", "min", x=share)


def amax(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest element over `dim`, NaN where there is one; ties share the gradient evenly."""
    dims = normal_dims(dim, x.ndim)
    has_elements("amax", x, dims)
    return amax_dims(x, dims, keepdim)


def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The smallest element over `dim`, NaN where there is one; ties share the gradient evenly."""
    dims = normal_dims(dim, x.ndim)
    has_elements("amin", x, dims)
    return amin_dims(x, dims, keepdim)


def _position(name: str) -> Any:
    def kernel(xp, x, *, dim=None, keepdim=False):
        return getattr(xp, name)(x, axis=dim if x.ndim else None, keepdims=keepdim)

    return primitive(name, kernel)


argmax_dim, argmin_dim = _position("argmax"), _position("argmin")


def _index_of(name: str, operation: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    shape = x.shape
    at = None if dim is None else normal_dim(dim, len(shape))
    if 0 in shape:
        has_elements(name, x, None if at is None else (at,))
    return operation(x, at, keepdim)


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the largest element, the first among equals; a NaN counts as largest.

    Without `dim` the index is into the flattened elements. Raises IndexError where there are none.
    """
    return _index_of("argmax", argmax_dim, x, dim, keepdim)


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the smallest element, the first among equals; a NaN counts as smallest.

    Without `dim` the index is into the flattened elements. Raises IndexError where there are none.
    """
    return _index_of("argmin", argmin_dim, x, dim, keepdim)


def _extremum(
    name: str, pair: Any, position: Any, all_of: Any, x: Any, dim: Any, keepdim: bool
) -> Any:
    """Of two Tensors, along a dimension, or of all elements."""
    if type(dim) in TENSORS:
        return pair(x, dim)
    if dim is None:
        if 0 in x.shape:
            has_elements(name, x, None, RuntimeError)
        return all_of(x)
    return chosen(x, _index_of(name, position, x, dim, True), normal_dim(dim, x.ndim), keepdim)


def chosen(x: Any, indices: Any, dim: int, keepdim: bool) -> Chosen:
    """The elements that `indices` name along `dim`, which so get the gradient.

    Without `keepdim` there is one index along `dim`, and the dimension goes.
    """
    if not x.ndim:
        return Chosen(clone(x), indices)
    values = gather_along(x, indices, dim)
    if keepdim:
        return Chosen(values, indices)
    shape = x.shape
    shape = shape[:dim] + shape[dim + 1 :]
    return Chosen(reshape_to(values, shape), reshape_to(indices, shape))


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element, or `(values, indices)` along `dim`; with a Tensor, `maximum`.

    Ties share the gradient evenly without `dim`; with it the first of them gets it. NaN counts as
    largest. Raises RuntimeError or, with `dim`, IndexError where there are no elements.
    """
    return _extremum("max", maximum, argmax_dim, amax_dims, x, dim, keepdim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element, or `(values, indices)` along `dim`; with a Tensor, `minimum`.

    Ties share the gradient evenly without `dim`; with it the first of them gets it. NaN counts as
    smallest. Raises RuntimeError or, with `dim`, IndexError where there are no elements.
    """
    return _extremum("min", minimum, argmin_dim, amin_dims, x, dim, keepdim)
