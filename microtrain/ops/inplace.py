"""Writing into a Tensor: who may, and what becomes of the graph.

Outside recording an in-place operation computes and copies into the same memory. Inside, the Tensor
takes the place of the result in the graph: an alias with the old history and the old values goes
into the node, so the node does not hold its own output, and the Tensor's history starts at the new
node. A write to a view re-bases its base likewise: from then on the base is what it was with the
view's elements replaced. Either way the version counter rises, which is how backward notices that a
saved value is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import MODES, XP, address
from ..tensor import TENSORS, Tensor, wrap
from .coercion import NUMBERS, cast, watch
from .indexing import (
    index_put,
    integers_first,
    kept_index,
    normal_index,
    without_leading_ones,
)


def in_place(x: Tensor, operation: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """`x` holding `operation(x)`.

    Raises RuntimeError for a leaf that requires grad (outside no_grad), for a result of another
    shape or a dtype of a higher category, and where views would be left with a stale history.
    """
    alias = wrap(x._array)
    alias._version = x.version
    if not MODES.grad:
        _store(x, operation(alias), name)
        return x
    base = _base(x)
    if base is not None and base._rg and not x._rg:
        base = None  # x is a view of what detach() returned, or was taken under no_grad
    for leaf, what in ((x, "a leaf"), (base, "a view of a leaf")):
        if leaf is not None and leaf._rg and leaf._edge is None:
            raise RuntimeError(
                f"{name}: {what} Variable that requires grad is being used in an in-place "
                "operation; write to it under no_grad(), or to its .data"
            )
    alias._edge, alias._rg = x._edge, x._rg
    result = operation(alias)
    if not result._rg:
        _store(x, result, name)
        return x
    _check_views(x, name)
    _check_memory(x, name)
    _check_result(x, result, name)
    result = cast(result, x._array.dtype)
    # What the nodes saved of x are its old values, in memory of their own.
    alias._array = x._array.copy(order="K")
    alias._version = None
    if base is not None:
        whole = wrap(base._array)
        whole._edge, whole._rg = base._edge, base._rg
        _continue(base, index_put(whole, result, _places(base._array, x._array)))
        watch(x.version, x)
    _store(x, result, name)
    _continue(x, result)
    return x


def _continue(x: Tensor, result: Tensor) -> None:
    """Let the history of `x` start where that of `result` does."""
    retains = x.retains_grad
    if retains:
        x.grad_fn.retain(x, False)
    x._edge, x._rg = result._edge, True
    if retains:
        x.grad_fn.retain(x)


def _check_result(x: Tensor, result: Tensor, name: str) -> None:
    mine, other = x._array, result._array
    if mine.shape != other.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(mine.shape)} doesn't match the broadcast shape "
            f"{list(other.shape)}"
        )
    if mine.dtype != other.dtype and "biuf".index(other.dtype.kind) > "biuf".index(mine.dtype.kind):
        raise RuntimeError(
            f"{name}: result type {other.dtype.name} can't be cast to the desired output type "
            f"{mine.dtype.name}"
        )


def _check_memory(x: Tensor, name: str) -> None:
    """Refuse memory that several elements share, as in what `expand` returns, or NumPy protects."""
    array = x._array
    if (
        0 in array.strides
        and array.size
        and any(
            not stride and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)
        )
    ):
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers "
            "to a single memory location; clone() it first"
        )
    if type(array) is np.ndarray and not array.flags.writeable:
        raise RuntimeError(f"{name}: the memory of this Tensor is read-only; clone() it first")


def _store(x: Tensor, result: Tensor, name: str) -> None:
    _check_memory(x, name)
    _check_result(x, result, name)
    n = x.version.n  # of a result of inference_mode this raises, before anything is written
    XP[type(x._array)].copyto(x._array, result._array, casting="unsafe")
    x.version.n = n + 1


def _check_views(x: Tensor, name: str) -> None:
    """Refuse to give x a history that another view of the same memory would not have."""
    for view in (one() for one in x.version.viewers or ()):
        if view is not None and view is not x:
            raise RuntimeError(
                f"{name}: a view of the same memory is part of a graph and would silently change; "
                "clone() the view or write before taking it"
            )


def _base(x: Tensor) -> Tensor | None:
    """The Tensor that `x` is a view of, while it is alive; None where x is no view."""
    version = x.version
    base = None if version.base is None else version.base()
    if base is None or base._version is not version or base._array is x._array:
        return None
    return base


def _places(base: Any, view: Any) -> tuple[Any, ...]:
    """Where in the array `base` the elements of its view `view` are: an index array a dimension."""
    size = base.dtype.itemsize
    rest = np.full(view.shape, (address(view) - address(base)) // size)
    for dim, (count, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        steps = np.arange(count) * (stride // size)
        rest += steps.reshape((-1,) + (1,) * (view.ndim - dim - 1))
    found: list[Any] = [None] * base.ndim
    for dim in sorted(range(base.ndim), key=lambda d: -base.strides[d]):
        if base.shape[dim] == 1:
            found[dim] = np.zeros_like(rest)
        else:
            found[dim], rest = np.divmod(rest, base.strides[dim] // size)
    asarray = XP[type(base)].asarray
    return tuple(asarray(index) for index in found)


def put(x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`, for a number or a Tensor that broadcasts to `x[index]`.

    Raises TypeError for another value, RuntimeError for a shape that does not fit, IndexError.
    """
    xp = XP[type(x._array)]
    found, basic = normal_index(index, xp)
    if not basic:
        x, found = integers_first(x, found)
    if type(value) not in TENSORS:
        if not isinstance(value, NUMBERS):
            raise TypeError(
                f"x[index] = value: the value must be a Tensor or a number, got "
                f"{type(value).__name__}; wrap it: mt.tensor(...) or mt.from_numpy(array)"
            )
        value = wrap(xp.asarray(value, x._array.dtype))
    elif value._version is x._version and _same_memory(x, found, value):
        return  # the end of `x[index] += ...`, which has written and recorded everything
    value = without_leading_ones(cast(value, x._array.dtype))
    if MODES.grad and (x._rg or value._rg):
        index = kept_index(found)
        in_place(x, lambda old: index_put(old, value, index), "x[index] = value")
        return
    _check_memory(x, "x[index] = value")
    n = x.version.n
    try:
        x._array[found] = value._array
    except ValueError as error:
        raise RuntimeError(
            f"shape mismatch: a value of shape {tuple(value.shape)} cannot be broadcast to "
            f"x[index] of a Tensor of shape {tuple(x.shape)}"
        ) from error
    x.version.n = n + 1


def _same_memory(x: Tensor, index: Any, value: Tensor) -> bool:
    here, there = x._array[index], value._array
    return (
        here.base is not None
        and (here.shape, here.strides) == (there.shape, there.strides)
        and address(here) == address(there)
    )
