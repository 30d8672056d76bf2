"""Reductions: many elements to one, over all dimensions or over some."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ...backend import as_dtype, float16, float32, float64, int64
from ...tensor import TENSORS, Tensor
from ..arguments import want_float
from ..coercion import cast
from ..pointwise.comparison import ne
from ..pointwise.elementwise import cusp, exp, where
from ..registry import primitive
from ..shape.shapes import expand_to, normal_dim, normal_dims, restore_dims

__all__ = ["all", "any", "log_softmax", "mean", "softmax", "std", "sum", "var"]


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
    centre = xp.divide(xp.sum(x, axis=dims, keepdims=True), xp.constant(n or 1, x.dtype))
    d = xp.subtract(x, centre)
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
