"""Writing into a Tensor: who may, and what becomes of the graph.

Outside recording an in-place operation computes and copies into the same memory. Inside, the Tensor
takes the place of the result in the graph: an alias with the old history and the old values goes
into the node, so the node does not hold its own output, and the Tensor's history starts at the new
node. A write to a view re-bases its base likewise: from then on the base is what it was with the
view's elements replaced, and all other views are parts of that. Either way the version counter
rises, which is how backward notices that a saved value is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from ..backend import MODES, XP, address
from ..errors import need, wrong
from ..tensor import TENSORS, Tensor, kind_of, wrap
from .coercion import NUMBERS, cast
from .index import indexing
from .index.indexing import gather_index, index_put, integers_first, kept_index, normal_index
from .shape.shapes import line, shaped_like


def in_place(x: Tensor, operation: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """`x` holding `operation(x)`.

    Raises RuntimeError for a leaf that requires grad (outside no_grad), for a result of another
    shape or a dtype of a higher category, and where views would be left with a stale history.
    """
    version = x.version
    if version.base is None:
        version.base = ref(x)
    alias = wrap(x._array)
    alias._version = version
    if not MODES.grad:
        _store(x, operation(alias), name)
        return x
    root = _root(x, name)
    if root._rg and root._edge is None:
        what = "a leaf" if root is x else "a view of a leaf"
        text = f"{what} Variable that requires grad is being used in an in-place operation"
        raise wrong(name, f"{text}; write to it under no_grad(), or to its .data")
    alias._edge, alias._rg = x._edge, x._rg
    if x._rg:
        _keep_values(alias)
    result = operation(alias)
    if result._rg or root._rg:
        _check_view(x, root, name)
    if not result._rg:
        _store(x, result, name)
        return x
    _check_memory(x, name)
    _check_result(x, result, name)
    result = cast(result, x._array.dtype)
    if not x._rg:
        _keep_values(alias)
    if root is not x:
        whole = _outside_views(root)
        written = index_put(whole, result, _places(whole._array, x._array))
        _continue(root, shaped_like(written, root))
    _store(x, result, name)
    if root is x:
        _continue(x, result)
    _renew_views(root)
    return x


def _check_view(x: Tensor, root: Tensor, name: str) -> None:
    """RuntimeError for a view of `root` that the graph does not know of."""
    text = "this view was created in no_grad mode (or by a Function): its base would not know"
    if root is not x and getattr(x, "_base", None) is not root:  # set while views are recorded
        raise wrong(name, f"{text} of the write; take it outside no_grad, or clone() it first")


def _keep_values(alias: Tensor) -> None:
    """What nodes save of a Tensor that is written to are its old values, in memory of their own."""
    alias._array, alias._version = alias._array.copy(order="K"), None


def change_shape(x: Tensor, operation: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """`x` with the shape, and where it is recorded the history, of the view `operation(x)`.

    Raises RuntimeError for Parameters, leaves that require grad and, under no_grad, recorded ones;
    CaptureError while a step is captured, as the Tensor of another call would keep its shape.
    """
    instead = f"write x = x.{name[:-1]}(...)"
    MODES.capture.refuse(f"{name}: the shape of a Tensor cannot change in a step; {instead}")
    root = _root(x, name)
    leaf = any(t._rg and t._edge is None for t in (x, root))
    text = "a Parameter, a leaf that requires grad (or a view of one), or under no_grad a recorded"
    if leaf or type(x) is not Tensor or (x._rg and not MODES.grad):
        raise wrong(name, f"{text} Tensor keeps its shape; {instead}")
    if root._rg and MODES.grad:
        _check_view(x, root, name)
    alias = wrap(x._array)
    alias._version, alias._edge, alias._rg = x.version, x._edge, x._rg
    view = operation(alias)
    x._array = view._array
    if view._rg:
        _continue(x, view)
    x.version.n += 1
    return x


def _root(x: Tensor, name: str) -> Tensor:
    """The Tensor whose memory `x` is a part of: the base while that is alive, else `x` itself."""
    version = x.version
    base = None if version.base is None else version.base()
    if base is x:
        return x
    if base is None or base._version is not version:
        text = "the base of this view is gone, and other views of it would silently change"
        others = any(one() is not None and one() is not x for one in version.viewers or ())
        need(not others, name, f"{text}; keep the base, or clone() this view first")
        version.base = ref(x)
        return x
    if base._array is x._array:
        text = "this is the output of a Function that returned its input, and writing to it would"
        raise wrong(name, f"{text} change the input as well; clone() it first")
    return base


def _outside_views(x: Tensor) -> Tensor:
    """`x` for an operation of our own, which neither makes nor meets views.

    It has at least one dimension, along which the elements of a view of it have a place.
    """
    alias = wrap(x._array)
    alias._edge, alias._rg = x._edge, x._rg
    return line(alias)


def _renew_views(root: Tensor) -> None:
    """Let the history of every view, the written one too, start at the new one of its base."""
    for view in [one() for one in root.version.viewers or ()]:
        if view is not None and view is not root:
            whole = _outside_views(root)
            part = gather_index(whole, _places(whole._array, view._array))
            _continue(view, part)


def _continue(x: Tensor, result: Tensor) -> None:
    """Let the history of `x` start where that of `result` does."""
    retains = x.retains_grad
    if retains:
        x.grad_fn._retain(x, False)
    x._edge, x._rg = result._edge, True
    if retains:
        x.grad_fn._retain(x)


def _check_result(x: Tensor, result: Tensor, name: str) -> None:
    mine, other = x._array, result._array
    if mine.shape != other.shape:
        text = "output with {} doesn't match the broadcast {}"
        raise wrong(name, text, mine, other)
    if mine.dtype != other.dtype and "biuf".index(other.dtype.kind) > "biuf".index(mine.dtype.kind):
        text = "result type {} can't be cast to the desired output type {}"
        raise wrong(name, text, other.dtype, mine.dtype)


def _check_memory(x: Tensor, name: str) -> None:
    """Refuse memory that several elements share, as in what `expand` returns, or NumPy protects."""
    array = x._array
    if 0 in array.strides and array.size:
        steps = zip(array.strides, array.shape, strict=True)
        text = "more than one element of the written-to tensor refers to a single memory location"
        shared = any(not stride and size > 1 for stride, size in steps)
        need(not shared, name, f"unsupported operation: {text}; clone() it first")
    if type(array) is np.ndarray and not array.flags.writeable:
        raise wrong(name, "the memory of this Tensor is read-only; clone() it first")


def _store(x: Tensor, result: Tensor, name: str) -> None:
    _check_memory(x, name)
    _check_result(x, result, name)
    n = x.version.n  # of a result of inference_mode this raises, before anything is written
    XP[type(x._array)].copyto(x._array, result._array, casting="unsafe")
    x.version.n = n + 1


def _places(base: Any, view: Any) -> tuple[Any, ...]:
    """Where in the array `base` the elements of its view `view` are: an index array a dimension."""
    item = base.dtype.itemsize
    steps = [step // item for step in view.strides]
    first = (address(view) - address(base)) // item
    return indexing.places_in_memory(base, view.shape, steps, first)


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
            hint = "" if hasattr(value, "numpy") else "; wrap it: mt.tensor(...) or mt.from_numpy"
            text = f"the value must be a Tensor or a number, got {kind_of(value)}{hint}"
            raise wrong("x[index] = value", text, error=TypeError)
        value = wrap(xp.operand(value, x._array.dtype))
    elif value._version is x._version and _same_memory(x, found, value):
        return  # the end of `x[index] += ...`, which has written and recorded everything
    value = indexing.without_leading_ones(cast(value, x._array.dtype))
    if MODES.grad and (x._rg or value._rg or _is_part_of_recorded(x)):
        index = kept_index(found)
        in_place(x, lambda old: index_put(old, value, index), "x[index] = value")
        return
    _check_memory(x, "x[index] = value")
    n = x.version.n
    try:
        xp.setitem(x._array, found, value._array)
    except ValueError as error:
        text = "shape mismatch: a value of {} cannot be broadcast to x[index] of a Tensor of {}"
        raise wrong("x[index] = value", text, value, x) from error
    x.version.n = n + 1


def _is_part_of_recorded(x: Tensor) -> bool:
    """Whether `x`, a view, has a base that requires grad."""
    version = x._version
    base = None if version is None or version.base is None else version.base()
    return base is not None and base._rg


def _same_memory(x: Tensor, index: Any, value: Tensor) -> bool:
    here, there = XP[type(x._array)].getitem(x._array, index), value._array
    return (
        here.base is not None
        and (here.shape, here.strides) == (there.shape, there.strides)
        and address(here) == address(there)
    )
