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

# By NumPy's name of an elementwise function the operation that it is, where it has another name:
# those that are one instruction, and some others.
_INSTRUCTIONS = {getattr(op, "_call", None): name for name, op in ops.REGISTRY.items()}
_OTHER_NAMES = {theirs: name for theirs, name in _INSTRUCTIONS.items() if hasattr(np, theirs or "")}
_OTHER_NAMES |= {
    "conjugate": "positive", "degrees": "rad2deg", "fabs": "abs", "power": "pow",
    "radians": "deg2rad", "rint": "round",
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
    if taken.get("axis") == () and "keepdims" in inspect.signature(function).parameters:
        # No axis to NumPy's reductions, and all dimensions to operations.
        raise TypeError(f"axis=() is not supported for Tensors; {_ON_ARRAYS}")
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


def _spread(operation: Any) -> Any:
    """`np.std` or `np.var`, whose correction is 0 unless `ddof` says another."""

    def function(
        a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
    ) -> Any:
        given = ddof if correction is None else correction
        return operation(a, axis, keepdim=keepdims, correction=given)

    return function


def _product(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    if not isinstance(axis, tuple):
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


def _reversed_or(a: Any, axes: Any = None) -> Any:
    return ops.permute(a, *(range(a.ndim)[::-1] if axes is None else axes))


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    count = indices_or_sections
    if isinstance(count, int) and ary.shape[axis] % count:
        raise ValueError("array split does not result in an equal division")  # NumPy's words
    return ops.tensor_split(ary, count, axis)


def _alike(operation: Any, names: list[str]) -> Any:
    """`operation` with these names of its first arguments."""
    own = dict(zip(names, inspect.signature(operation).parameters, strict=False))

    def function(**given: Any) -> Any:
        return operation(**{own[name]: value for name, value in given.items()})

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.prod: _product, np.std: _spread(ops.std), np.var: _spread(ops.var),
    np.ptp: lambda a, axis=None: ops.amax(a, axis) - ops.amin(a, axis),
    np.cumsum: _flat(ops.cumsum), np.cumprod: _flat(ops.cumprod),
    np.sort: _sorted, np.argsort: _argsorted, np.clip: _clip,
    # shapes
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: numel(a) if axis is None else a.shape[axis],
    np.reshape: lambda a, shape: ops.reshape(a, shape),
    np.transpose: _reversed_or, np.permute_dims: _reversed_or,
    np.matrix_transpose: lambda x: x.mT,
    np.expand_dims: _expand_dims,
    np.flip: lambda m, axis=None: ops.flip(m, range(m.ndim) if axis is None else axis),
    np.tile: lambda A, reps: ops.tile(A, reps if isinstance(reps, tuple | list) else (reps,)),
    np.concatenate: lambda arrays, axis=0: ops.cat(
        [ops.flatten(one) for one in arrays] if axis is None else arrays, axis or 0
    ),
    np.split: _split, np.atleast_1d: ops.atleast_1d, np.atleast_2d: ops.atleast_2d,
    np.meshgrid: lambda *xi, indexing="xy": ops.meshgrid(*xi, indexing=indexing),
    np.take_along_axis: lambda arr, indices, axis=-1: ops.take_along_dim(arr, indices, axis),
    np.nonzero: lambda a: ops.nonzero(a, as_tuple=True),
    # matrices
    np.dot: _dot, np.outer: lambda a, b: ops.outer(ops.flatten(a), ops.flatten(b)),
    np.einsum: ops.einsum,
}  # fmt: skip

# Those that are an operation with the same arguments in this order, under NumPy's names, and with
# the same defaults: NumPy's name, the operation's where that is another, and the arguments.
_ALIKE = (
    (np, ops, """sum a axis keepdims dtype, mean a axis keepdims dtype, nansum a axis keepdims
    dtype, nanmean a axis keepdims dtype, all a axis keepdims, any a axis keepdims, max=amax a axis
    keepdims, amax a axis keepdims, min=amin a axis keepdims, amin a axis keepdims, argmax a axis
    keepdims, argmin a axis keepdims, count_nonzero a axis, squeeze a axis,
    round a, around=round a, isclose a b rtol atol equal_nan, nan_to_num x nan posinf neginf,
    ravel=flatten a, swapaxes=transpose a axis1 axis2, moveaxis=movedim a source destination,
    broadcast_to array shape, fliplr m, flipud m, roll a shift axis, rot90 m k axes,
    repeat=repeat_interleave a repeats axis, stack arrays axis, hstack tup, vstack tup, dstack tup,
    column_stack tup, inner a b, array_split=tensor_split ary indices_or_sections axis,
    diff a n axis, copy=clone a, tensordot a b axes, kron a b, trace a, diag v k, tril m k,
    triu m k, diagonal a offset axis1 axis2, where condition x y"""),
    (np, creation, """zeros_like a dtype, ones_like a dtype, empty_like a dtype,
    full_like a fill_value dtype"""),
    (np.linalg, linalg, """inv a, det a, slogdet a, solve a b, cholesky a, matrix_power a n,
    multi_dot arrays, norm x ord axis keepdims"""),
)  # fmt: skip
for _theirs, _ours, _text in _ALIKE:
    for _name, *_arguments in map(str.split, _text.split(",")):
        _name, _, _other = _name.partition("=")
        _operation = getattr(_ours, _other or _name)
        _FUNCTIONS[getattr(_theirs, _name)] = _alike(_operation, _arguments)

setattr(Tensor, "__array_ufunc__", array_ufunc)  # noqa: B010  a stub describes the class
setattr(Tensor, "__array_function__", array_function)  # noqa: B010
