"""Writing into a Tensor: who may, and what becomes of the graph.

Outside recording an in-place operation computes and copies into the same memory. Inside, the Tensor
takes the place of the result in the graph: an alias with the old history goes into the node, so the
node does not hold its own output, and the Tensor's history starts at the new node. Either way the
version counter rises, which is how backward notices that a saved value is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS, Tensor, wrap
from .coercion import cast
from .indexing import index_put, normal_index



def in_place(x: Tensor, operation: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """`x` holding `operation(x)`.

    Raises RuntimeError for a leaf that requires grad (outside no_grad), for a result of another
    shape or a dtype of a higher category, and for Tensors tied to views in the graph.
    """
    alias = wrap(x._array)
    alias._version = x.version
    if not MODES.grad:
        _store(x, operation(alias), name)
        return x
    alias._edge, alias._rg = x._edge, x._rg
    if x._rg and x._edge is None:
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation; "
            "write to it under no_grad(), or to x.data"
        )
    result = operation(alias)
    if result._rg:
        _check_views(x, name)
    _store(x, result, name)
    if result._rg:
        x._edge = result._edge
        x._rg = True
    return x


def _store(x: Tensor, result: Tensor, name: str) -> None:
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
    XP[type(mine)].copyto(mine, other, casting="unsafe")
    x.version.n += 1


def _check_views(x: Tensor, name: str) -> None:
    """Refuse to rewrite history that a view shares: its own would silently be wrong."""
    node = x.grad_fn
    if node is not None and getattr(node.op, "view", False):
        raise RuntimeError(
            f"{name}: this Tensor is a view (made by {node.name()}) that is part of a graph; "
            "writing to it would change its base as well. clone() it first."
        )
    viewers = x.version.viewers
    if viewers and any(one() is not None and one() is not x for one in viewers):
        raise RuntimeError(
            f"{name}: a view of this Tensor is part of a graph and would silently change with it; "
            "clone() the view or write before taking it."
        )


def put(x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`, for a number or a Tensor that broadcasts to `x[index]`."""
    found, _ = normal_index(index)
    if type(value) not in TENSORS:
        value = wrap(XP[type(x._array)].asarray(value, x._array.dtype))
    value = cast(value, x._array.dtype)
    if not MODES.grad or not (x._rg or value._rg):
        try:
            x._array[found] = value._array
        except ValueError as error:
            raise RuntimeError(
                f"shape mismatch: a value of shape {tuple(value.shape)} cannot be broadcast to "
                f"x[index] of a Tensor of shape {tuple(x.shape)}"
            ) from error
        x.version.n += 1
        return
    in_place(x, lambda old: index_put(old, value, found), "x[index] = value")  # type: ignore[no-any-return]
