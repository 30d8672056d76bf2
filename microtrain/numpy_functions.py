"""NumPy's functions of Tensors: `np.sin(x)`, `np.sum(x, axis=0)` are the operations here.

So gradients flow and results are Tensors (NumPy's NEP 13 and NEP 18). A function that has no
operation here is refused by name, as are `out=`, `where=` and arrays beside Tensors; what only
looks at values (`np.allclose`, `np.savez` ...) gets the arrays. Kernels call NumPy with arrays,
which never comes here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from . import creation, linalg, ops
from .ops.inspection import numel
from .tensor import TENSORS, Tensor

# Elementwise functions with another name here; all others have the same.
_OTHER_NAMES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "positive",
    "degrees": "rad2deg", "divide": "div", "equal": "eq", "fabs": "abs", "greater": "gt",
    "greater_equal": "ge", "invert": "bitwise_not", "left_shift": "bitwise_left_shift",
    "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "power": "pow", "radians": "deg2rad", "right_shift": "bitwise_right_shift", "rint": "round",
    "subtract": "sub",
}  # fmt: skip

_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """What NumPy calls for an elementwise function, and for an array beside a Tensor."""
    shown, known, operation = _elementwise(ufunc)
    if method != "__call__" or operation is None:
        raise _absent(shown if method == "__call__" else f"{shown}.{method}")
    if options:
        if options.get("out") and type(options["out"][0]) not in TENSORS:
            raise TypeError(
                f"{shown}(): the result with a Tensor cannot be written into an array; write "
                "array += tensor.numpy(), or wrap the array: mt.from_numpy(array)"
            )
        given = sorted(options)[0]
        raise TypeError(f"{shown}(): {given}= is not supported for Tensors; {_ON_ARRAYS}")
    if known in _COMPARISONS:  # NumPy makes a 0-d array of its scalar on the left
        inputs = tuple(one[()] if type(one) is np.ndarray else one for one in inputs)
    for one in inputs:
        if isinstance(one, np.ndarray):
            raise TypeError(
                f"{known}(): an array beside a Tensor; wrap it: mt.from_numpy(array), or write "
                "tensor.numpy() for NumPy"
            )
    return operation(*inputs)


@functools.cache
def _elementwise(ufunc: Any) -> tuple[str, str, Any]:
    """The name of a function of NumPy's, that of the operation here, and the operation or None."""
    name = ufunc.__name__
    if getattr(np, name, None) is not ufunc:  # somebody's own
        return name, name, None
    known = _OTHER_NAMES.get(name, name)
    return f"np.{name}", known, getattr(ops, known) if known in ops.__all__ else None


_ON_ARRAYS = "for NumPy's own write tensor.numpy(), or tensor.detach().numpy() if it requires grad"


def _absent(name: str) -> TypeError:
    return TypeError(f"{name}(): microtrain has no such operation on Tensors; {_ON_ARRAYS}")


def array_function(
    self: Tensor, function: Any, kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What NumPy calls for all its other functions."""
    if function in _LOOKING:
        return function(*_arrays(args), **{name: _arrays(value) for name, value in kwargs.items()})
    own = _FUNCTIONS.get(function)
    module = function.__module__.replace("numpy", "np", 1)
    name = f"{module}.{function.__name__}"
    if own is None:
        raise _absent(name)
    parameters, spread = _parameters(own)
    if spread:
        taken = kwargs
    else:
        bound = inspect.signature(function).bind(*args, **kwargs)
        args, taken = (), bound.arguments
    for argument in taken:
        if argument not in parameters:
            raise TypeError(f"{name}(): {argument}= is not supported for Tensors; {_ON_ARRAYS}")
    return own(*args, **taken)


@functools.cache
def _parameters(function: Any) -> tuple[list[str], bool]:
    """The names of the parameters, and whether there is a `*args` among them."""
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found], any(p.kind is p.VAR_POSITIONAL for p in found)


def _arrays(value: Any) -> Any:
    """`value` with the arrays of the Tensors in it."""
    if type(value) in TENSORS:
        return value.numpy()
    return type(value)(map(_arrays, value)) if type(value) in (list, tuple) else value


# Functions whose results are no function of elements that one would differentiate.
_LOOKING = {
    np.allclose, np.array_equal, np.array_equiv, np.array2string, np.array_repr, np.array_str,
    np.broadcast_arrays, np.can_cast, np.common_type, np.copyto, np.histogram, np.histogram2d,
    np.histogram_bin_edges,
    np.histogramdd, np.iscomplexobj, np.isrealobj, np.may_share_memory, np.min_scalar_type,
    np.result_type, np.save, np.savetxt, np.savez, np.savez_compressed, np.shares_memory,
}  # fmt: skip


# Each with the arguments of NumPy's that there are here, under NumPy's names and with its defaults.


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(a, axis, dtype)`, which for the axis None takes the flattened elements."""

    def along(a: Any, axis: Any = None, dtype: Any = None) -> Any:
        return function(ops.flatten(a) if axis is None else a, axis or 0, dtype=dtype)

    return along


def _axes(axis: Any) -> Any:
    """`axis`; TypeError for (), which is no axis to NumPy and all dimensions to operations."""
    if axis == ():
        raise TypeError(f"axis=() is not supported for Tensors; {_ON_ARRAYS}")
    return axis


def _spread(operation: Any) -> Any:
    """`np.std` or `np.var`, whose correction is 0 unless `ddof` says another."""

    def function(
        a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
    ) -> Any:
        given = ddof if correction is None else correction
        return operation(a, _axes(axis), keepdim=keepdims, correction=given)

    return function


def _extremum(operation: Any) -> Any:
    def function(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return operation(a, () if axis is None else _axes(axis), keepdims)

    return function


def _totalled(operation: Any) -> Any:
    def function(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        return operation(a, _axes(axis), keepdims, dtype=dtype)

    return function


def _over(operation: Any) -> Any:
    def function(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return operation(a, _axes(axis), keepdims)

    return function


def _product(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    if not isinstance(_axes(axis), tuple):
        return ops.prod(a, axis, keepdims, dtype=dtype)
    for at in sorted((at % a.ndim for at in axis), reverse=True):
        a = ops.prod(a, at, keepdims, dtype=dtype)
    return a


def _sorted(a: Any, axis: Any = -1) -> Any:
    return (ops.sort(ops.flatten(a)) if axis is None else ops.sort(a, axis)).values


def _argsorted(a: Any, axis: Any = -1) -> Any:
    return ops.argsort(ops.flatten(a)) if axis is None else ops.argsort(a, axis)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    return ops.clamp(a, min if a_min is None else a_min, max if a_max is None else a_max)


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return ops.nonzero(condition, as_tuple=True)
    return ops.where(condition, x, y)


def _expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    ndim = a.ndim + len(axes)
    for at in sorted(at % ndim for at in axes):
        a = ops.unsqueeze(a, at)
    return a


def _dot(a: Any, b: Any) -> Any:
    if not (np.ndim(a) and np.ndim(b)):
        return ops.mul(a, b)
    if b.ndim < 3:
        return ops.matmul(a, b)
    return ops.tensordot(a, b, ([a.ndim - 1], [b.ndim - 2]))


def _inner(a: Any, b: Any) -> Any:
    if not (np.ndim(a) and np.ndim(b)):
        return ops.mul(a, b)
    return ops.tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    return linalg.norm(x, ord, axis, keepdims)


def _reversed_or(a: Any, axes: Any = None) -> Any:
    return ops.permute(a, *(range(a.ndim)[::-1] if axes is None else axes))


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    count = indices_or_sections
    if isinstance(count, int) and ary.shape[axis] % count:
        raise ValueError("array split does not result in an equal division")  # NumPy's words
    return ops.tensor_split(ary, count, axis)


def _repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    return ops.repeat_interleave(a, repeats, axis)


def _like(make: Any) -> Any:
    return lambda a, dtype=None: make(a, dtype=dtype)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _totalled(ops.sum), np.mean: _totalled(ops.mean), np.prod: _product,
    np.nansum: _totalled(ops.nansum), np.nanmean: _totalled(ops.nanmean),
    np.all: _over(ops.all), np.any: _over(ops.any),
    np.std: _spread(ops.std), np.var: _spread(ops.var),
    np.max: _extremum(ops.amax), np.min: _extremum(ops.amin),
    np.amax: _extremum(ops.amax), np.amin: _extremum(ops.amin),
    np.ptp: lambda a, axis=None: (
        _extremum(ops.amax)(a, axis) - _extremum(ops.amin)(a, axis)
    ),
    np.argmax: _over(ops.argmax), np.argmin: _over(ops.argmin),
    np.count_nonzero: lambda a, axis=None: ops.count_nonzero(a, _axes(axis)),
    np.cumsum: _flat(ops.cumsum), np.cumprod: _flat(ops.cumprod),
    np.sort: _sorted, np.argsort: _argsorted, np.clip: _clip, np.where: _where,
    np.round: lambda a: ops.round(a), np.around: lambda a: ops.round(a),
    np.isclose: lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: ops.isclose(
        a, b, rtol, atol, equal_nan
    ),
    np.nan_to_num: lambda x, nan=0.0, posinf=None, neginf=None: ops.nan_to_num(
        x, nan, posinf, neginf
    ),
    # shapes
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: numel(a) if axis is None else a.shape[axis],
    np.reshape: lambda a, shape: ops.reshape(a, shape), np.ravel: lambda a: ops.flatten(a),
    np.transpose: _reversed_or, np.permute_dims: _reversed_or,
    np.matrix_transpose: lambda x: x.mT,
    np.swapaxes: lambda a, axis1, axis2: ops.transpose(a, axis1, axis2),
    np.moveaxis: lambda a, source, destination: ops.movedim(a, source, destination),
    np.squeeze: lambda a, axis=None: ops.squeeze(a, axis), np.expand_dims: _expand_dims,
    np.broadcast_to: lambda array, shape: ops.broadcast_to(array, shape),
    np.flip: lambda m, axis=None: ops.flip(m, range(m.ndim) if axis is None else axis),
    np.fliplr: lambda m: ops.fliplr(m), np.flipud: lambda m: ops.flipud(m),
    np.roll: lambda a, shift, axis=None: ops.roll(a, shift, axis),
    np.rot90: lambda m, k=1, axes=(0, 1): ops.rot90(m, k, axes),
    np.tile: lambda A, reps: ops.tile(A, reps if isinstance(reps, tuple | list) else (reps,)),
    np.repeat: _repeat,
    np.concatenate: lambda arrays, axis=0: ops.cat(
        [ops.flatten(one) for one in arrays] if axis is None else arrays, axis or 0
    ),
    np.stack: lambda arrays, axis=0: ops.stack(arrays, axis),
    np.hstack: lambda tup: ops.hstack(tup), np.vstack: lambda tup: ops.vstack(tup),
    np.dstack: lambda tup: ops.dstack(tup), np.column_stack: lambda tup: ops.column_stack(tup),
    np.split: _split,
    np.array_split: lambda ary, indices_or_sections, axis=0: ops.tensor_split(
        ary, indices_or_sections, axis
    ),
    np.atleast_1d: lambda *arys: ops.atleast_1d(*arys),
    np.atleast_2d: lambda *arys: ops.atleast_2d(*arys),
    np.meshgrid: lambda *xi, indexing="xy": ops.meshgrid(*xi, indexing=indexing),
    np.diff: lambda a, n=1, axis=-1: ops.diff(a, n, axis),
    np.take_along_axis: lambda arr, indices, axis=-1: ops.take_along_dim(arr, indices, axis),
    np.nonzero: lambda a: ops.nonzero(a, as_tuple=True), np.copy: lambda a: ops.clone(a),
    np.zeros_like: _like(creation.zeros_like), np.ones_like: _like(creation.ones_like),
    np.empty_like: _like(creation.empty_like),
    np.full_like: lambda a, fill_value, dtype=None: creation.full_like(a, fill_value, dtype=dtype),
    # matrices
    np.dot: _dot, np.inner: _inner, np.outer: lambda a, b: ops.outer(
        ops.flatten(a), ops.flatten(b)
    ),
    np.tensordot: lambda a, b, axes=2: ops.tensordot(a, b, axes),
    np.einsum: lambda *operands: ops.einsum(*operands), np.kron: lambda a, b: ops.kron(a, b),
    np.trace: lambda a: ops.trace(a), np.diag: lambda v, k=0: ops.diag(v, k),
    np.diagonal: lambda a, offset=0, axis1=0, axis2=1: ops.diagonal(a, offset, axis1, axis2),
    np.tril: lambda m, k=0: ops.tril(m, k), np.triu: lambda m, k=0: ops.triu(m, k),
    np.linalg.norm: _norm, np.linalg.inv: lambda a: linalg.inv(a),
    np.linalg.det: lambda a: linalg.det(a), np.linalg.slogdet: lambda a: linalg.slogdet(a),
    np.linalg.solve: lambda a, b: linalg.solve(a, b),
    np.linalg.cholesky: lambda a: linalg.cholesky(a),
    np.linalg.matrix_power: lambda a, n: linalg.matrix_power(a, n),
    np.linalg.multi_dot: lambda arrays: linalg.multi_dot(arrays),
}  # fmt: skip

setattr(Tensor, "__array_ufunc__", array_ufunc)  # noqa: B010  a stub describes the class
setattr(Tensor, "__array_function__", array_function)  # noqa: B010
