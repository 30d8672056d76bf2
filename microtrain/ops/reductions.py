"""Reductions: many elements to one, over all dimensions or over some."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..backend import as_dtype
from ..tensor import TENSORS
from .coercion import cast
from .elementwise import exp, where, zeros_like
from .indexing import put_along_dim
from .registry import primitive
from .shapes import expand_to, normal_dim, normal_dims, reshape_to, restore_dims


def _spread(g: Any, shape: tuple[int, ...], dims: Any, keepdim: bool) -> Any:
    """The gradient of a sum over `dims`: every summand gets it."""
    return expand_to(restore_dims(g, shape, dims, keepdim), shape)


def _count(shape: tuple[int, ...], dims: Any) -> int:
    return math.prod(shape) if dims is None else math.prod(shape[d] for d in dims)


def _sum(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """The sum of the elements; integers and booleans are summed as int64."""
    return xp.sum(x, axis=dims, keepdims=keepdim, out=out)


sum_dims = primitive(
    "sum", _sum, x=lambda g, x_shape, dims, keepdim: _spread(g, x_shape, dims, keepdim)
)


def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum over `dim` (an int, a tuple, None for all); zero elements give 0."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    return sum_dims(x, None if dim is None else normal_dims(dim, x.ndim), keepdim)


def _mean(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """The mean of the elements; nothing to average gives NaN."""
    n = _count(x.shape, dims)
    total = xp.asarray(xp.sum(x, axis=dims, keepdims=keepdim))
    if not n:
        return xp.full(total.shape, math.nan, x.dtype)
    return xp.divide(total, xp.constant(n, x.dtype), out=out)


mean_dims = primitive(
    "mean",
    _mean,
    x=lambda g, x_shape, dims, keepdim: _spread(
        g / max_int(_count(x_shape, dims)), x_shape, dims, keepdim
    ),
)


def max_int(n: int) -> int:
    """At least 1: the divisor in the gradient of a mean, which has no elements where n is 0."""
    return n or 1


def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean over `dim` (an int, a tuple, None for all); RuntimeError for integers."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if x.dtype.kind != "f":
        raise RuntimeError(
            f"mean(): input dtype must be a floating point type, got {x.dtype.name}"
        )
    return mean_dims(x, None if dim is None else normal_dims(dim, x.ndim), keepdim)


def _var(
    xp: Any, x: Any, *, dims: Any = None, correction: Any = 1, keepdim: bool = False, out: Any = None
) -> Any:
    """The variance: squared distances from the mean, summed, over n - correction."""
    n = _count(x.shape, dims)
    centre = xp.sum(x, axis=dims, keepdims=True)
    d = xp.subtract(x, xp.divide(centre, n)) if n else x
    total = xp.asarray(xp.sum(xp.multiply(d, d), axis=dims, keepdims=keepdim))
    if n - correction <= 0:
        return xp.full(total.shape, math.nan if n <= 1 or not correction else math.inf, x.dtype)
    return xp.divide(total, xp.constant(n - correction, x.dtype), out=out)


def _var_rule(g: Any, x: Any, dims: Any, correction: Any, keepdim: bool) -> Any:
    n = _count(x.shape, dims)
    spread = _spread(g, x.shape, dims, keepdim)
    scale = 2 / (n - correction) if n > correction else math.nan
    return spread * ((x - mean_dims(x, dims, True)) * scale)


var_dims = primitive("var", _var, x=_var_rule)


def var(
    x: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """The variance over `dim`, divided by n - correction (default 1: unbiased)."""
    if x.dtype.kind != "f":
        raise RuntimeError(f"var(): expected a floating point type, got {x.dtype.name}")
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return var_dims(x, None if dim is None else normal_dims(dim, x.ndim), correction, keepdim)


def std(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """The standard deviation: the square root of `var`."""
    return var(x, dim, correction=correction, keepdim=keepdim) ** 0.5


# Largest and smallest ------------------------------------------------------------------------


class Extremum(NamedTuple):
    """What `max(dim)` and `min(dim)` return."""

    values: Any
    indices: Any


def _share(g: Any, x: Any, result: Any, dims: Any, keepdim: bool) -> Any:
    """The gradient of an extremum: split evenly among the elements that reach it."""
    reached = x == restore_dims(result, x.shape, dims, keepdim)
    ones = where(reached, zeros_like(x) + 1, 0)
    count = sum_dims(ones, dims, True)
    return ones * (restore_dims(g, x.shape, dims, keepdim) / count)


def _amax(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """The largest element; NaN where there is one."""
    return xp.max(x, axis=dims, keepdims=keepdim, out=out)


def _amin(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """The smallest element; NaN where there is one."""
    return xp.min(x, axis=dims, keepdims=keepdim, out=out)


amax_dims = primitive("amax", _amax, x=_share)
amin_dims = primitive("amin", _amin, x=_share)


def amax(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest element over `dim`; ties share the gradient evenly."""
    _not_empty("amax", x, normal_dims(dim, x.ndim))
    return amax_dims(x, normal_dims(dim, x.ndim), keepdim)


def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The smallest element over `dim`; ties share the gradient evenly."""
    _not_empty("amin", x, normal_dims(dim, x.ndim))
    return amin_dims(x, normal_dims(dim, x.ndim), keepdim)


def _not_empty(name: str, x: Any, dims: Any) -> None:
    if not _count(x.shape, dims):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0; shape "
            f"{tuple(x.shape)} has no elements to choose from"
        )


def _extremum_kernel(instruction: str) -> Any:
    def kernel(xp: Any, x: Any, *, dim: int, keepdim: bool = False, out: Any = None) -> Any:
        """The extreme values along `dim` and the index of the first of each."""
        if not x.ndim:
            return x, xp.zeros((), "int64")
        index = getattr(xp, instruction)(x, axis=dim)
        wide = xp.reshape(index, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
        values = xp.take_along_axis(x, wide, axis=dim)
        if not keepdim:
            values, wide = xp.reshape(values, index.shape), index
        return values, wide

    return kernel


def _extremum_rule(g: Any, indices: Any, x_shape: Any, dim: int, keepdim: bool) -> Any:
    if not x_shape:
        return g
    wide = restore_dims(g, x_shape, (dim,), keepdim)
    return put_along_dim(wide, reshape_to(indices, wide.shape), dim, x_shape[dim])


def _extremum(name: str, instruction: str) -> Any:
    operation = primitive(
        f"{name}_dim",
        _extremum_kernel(instruction),
        x=_extremum_rule,
        options={
            "extras": ("indices",),
            "recompute": {
                "indices": lambda x, dim, keepdim: arg_dim(x, dim, keepdim, instruction)
            },
            "node_name": name,
        },
    )
    return operation


def arg_dim(x: Any, dim: int, keepdim: bool, instruction: str) -> Any:
    """The index of the extremum along `dim`."""
    return (argmax if instruction == "argmax" else argmin)(x, dim, keepdim)


max_dim = _extremum("max", "argmax")
min_dim = _extremum("min", "argmin")


def _max_or_min(name: str, x: Any, dim: Any, keepdim: bool, whole: Any, along: Any) -> Any:
    if dim is None:
        _not_empty(name, x, None)
        return whole(x, None, False)
    if type(dim) in TENSORS:
        from .elementwise import maximum, minimum

        return (maximum if name == "max" else minimum)(x, dim)
    at = normal_dim(dim, x.ndim)
    if x.ndim and not x.shape[at]:
        raise IndexError(
            f"{name}(): Expected reduction dim {at} to have non-zero size, shape {tuple(x.shape)}"
        )
    values = along(x, at, keepdim)
    indices = arg_dim(x, at, keepdim, "argmax" if name == "max" else "argmin")
    return Extremum(values, indices)


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element, or `(values, indices)` along `dim`; with a Tensor, `maximum`."""
    return _max_or_min("max", x, dim, keepdim, amax_dims, max_dim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element, or `(values, indices)` along `dim`; with a Tensor, `minimum`."""
    return _max_or_min("min", x, dim, keepdim, amin_dims, min_dim)


def _arg_kernel(instruction: str) -> Any:
    def kernel(
        xp: Any, x: Any, *, dim: Any = None, keepdim: bool = False, out: Any = None
    ) -> Any:
        """The index of the first extremum, of the flattened elements or along `dim`."""
        index = xp.asarray(getattr(xp, instruction)(x, axis=dim if x.ndim else None))
        if keepdim and x.ndim:
            shape = [1] * x.ndim if dim is None else list(x.shape)
            shape[dim or 0] = 1
            return xp.reshape(index, tuple(shape))
        return index

    return kernel


argmax_dim = primitive("argmax", _arg_kernel("argmax"))
argmin_dim = primitive("argmin", _arg_kernel("argmin"))


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the largest element, the first among equals."""
    return argmax_dim(x, None if dim is None else normal_dim(dim, x.ndim), keepdim)


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the smallest element, the first among equals."""
    return argmin_dim(x, None if dim is None else normal_dim(dim, x.ndim), keepdim)


def _all(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """Whether all elements are true."""
    return xp.all(x, axis=dims, keepdims=keepdim)


def _any(xp: Any, x: Any, *, dims: Any = None, keepdim: bool = False, out: Any = None) -> Any:
    """Whether any element is true."""
    return xp.any(x, axis=dims, keepdims=keepdim)


all_dims = primitive("all", _all)
any_dims = primitive("any", _any)


def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are true."""
    return all_dims(x, None if dim is None else normal_dims(dim, x.ndim), keepdim)


def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is true."""
    return any_dims(x, None if dim is None else normal_dims(dim, x.ndim), keepdim)


# Softmax ----------------------------------------------------------------------------------------


def _softmax(xp: Any, x: Any, *, dim: int, out: Any = None) -> Any:
    """`exp(x) / sum(exp(x))` along `dim`, shifted by the largest element."""
    if not x.shape or not x.size:
        return xp.ones(x.shape, x.dtype) if not x.shape else xp.empty_like(x)
    e = xp.exp(xp.subtract(x, xp.max(x, axis=dim, keepdims=True)))
    return xp.divide(e, xp.sum(e, axis=dim, keepdims=True), out=out)


def _log_softmax(xp: Any, x: Any, *, dim: int, out: Any = None) -> Any:
    """The logarithm of `softmax`, without its underflow."""
    if not x.shape or not x.size:
        return xp.zeros(x.shape, x.dtype)
    z = xp.subtract(x, xp.max(x, axis=dim, keepdims=True))
    total = xp.log(xp.sum(xp.exp(z), axis=dim, keepdims=True))
    return xp.subtract(z, total, out=out)


softmax_dim = primitive(
    "softmax",
    _softmax,
    x=lambda g, result, dim: result * (g - sum(g * result, dim, True)),
    options={"floating": True},
)
log_softmax_dim = primitive(
    "log_softmax",
    _log_softmax,
    x=lambda g, result, dim: g - exp(result) * sum(g, dim, True),
    options={"floating": True},
)


def softmax(x: Any, dim: int) -> Any:
    """Positive numbers that add up to 1 along `dim`, in the ratios of `exp(x)`."""
    return softmax_dim(x, normal_dim(dim, x.ndim))


def log_softmax(x: Any, dim: int) -> Any:
    """The logarithm of `softmax(x, dim)`, without its underflow."""
    return log_softmax_dim(x, normal_dim(dim, x.ndim))


