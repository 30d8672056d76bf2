"""Joining Tensors, and the node of the parts of one: cat, stack, hstack, atleast_2d.

Each is the gradient of the other. The parts of one Tensor share its memory. When all of them
together are the Tensor, they are the outputs of one node, whose gradient joins theirs in one pass;
a node for each part would make zeros of the whole for every one of them, quadratic work in a loop
over time steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ...autograd.graph import Backward, NodeOfMany, edge_of, record
from ...backend import XP
from ...tensor import TENSORS, wrap
from ..fronts import Unchecked, need, wrong
from ..index.indexing import at_dim, select
from ..registry import Variadic
from .shapes import normal_dim, reshape_to, unsqueeze

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "cat", "column_stack", "concat", "concatenate",
    "dstack", "hstack", "row_stack", "stack", "vstack",
]  # fmt: skip


cat_operation = Variadic(
    "cat",
    lambda xp, tensors, *, dim: xp.concatenate(tensors, axis=dim),
    lambda g, shapes, dim: pieces(g, dim, [shape[dim] for shape in shapes]),
)


def checked_tensors(name: str, tensors: Any) -> tuple[Any, ...]:
    """`tensors` as a tuple; TypeError unless all of them are Tensors, or all are arrays."""
    found = tuple(tensors)
    cat_operation.check(found, name)
    return found


def listed_tensors(name: str, tensors: Any) -> tuple[Any, ...]:
    """`checked_tensors` of a list that is not empty."""
    one = type(tensors) in TENSORS
    need(not one, name, "expected a list or tuple of Tensors, got one Tensor", error=TypeError)
    found = checked_tensors(name, tensors)
    error = ValueError if name == "cat" else RuntimeError  # PyTorch's kinds
    need(found, name, "expected a non-empty list of Tensors", error=error)
    return found


def _fitting(tensors: tuple[Any, ...], dim: int) -> list[Any]:
    """`tensors` with those of shape (0,) in the shape of the others, empty along `dim`."""
    sizes = list(next(x.shape for x in tensors if x.shape != (0,)))
    if sizes:
        sizes[normal_dim(dim, len(sizes))] = 0
    return [reshape_to(x, tuple(sizes)) if sizes and x.shape == (0,) else x for x in tensors]


def cat(tensors: Unchecked, dim: int = 0) -> Any:
    """The Tensors joined along an existing dimension; they agree in all other sizes.

    An empty Tensor of shape (0,) fits to all others.

    Raises ValueError for an empty list, RuntimeError for a 0-d Tensor or sizes that do not agree.
    """
    tensors = listed_tensors("cat", tensors)
    count = tensors[0].ndim
    for number, tensor in enumerate(tensors):
        ndim = tensor.ndim
        if ndim != count and (0,) in (tensor.shape, tensors[0].shape):
            return cat(_fitting(tensors, dim), dim)
        text = "zero-dimensional tensor (at position {}) cannot be concatenated; use stack"
        need(ndim, "cat", text, number)
    return cat_operation.apply(tensors, dim=normal_dim(dim, count))


def stack(tensors: Unchecked, dim: int = 0) -> Any:
    """Tensors of one shape joined along a new dimension before `dim`.

    Raises RuntimeError for an empty list or shapes that differ.
    """
    tensors = listed_tensors("stack", tensors)
    for tensor in tensors:
        if tensor.shape != tensors[0].shape:
            raise wrong("stack", "expects each tensor to be equal size", tensors[0], tensor)
    at = normal_dim(dim, tensors[0].ndim + 1)
    return cat([unsqueeze(x, at) for x in tensors], at)


# All parts of a Tensor ---------------------------------------------------------------------------


class _Parts(Backward):
    """All parts of a Tensor; its gradient is theirs, joined."""

    saves_arrays = False

    def __init__(self, node_name: str, join: Callable[[Any, int], Any]) -> None:
        self.node_name = node_name
        self.join = join

    def apply(self, x: Any, dim: int, indices: list[Any]) -> tuple[Any, ...]:
        """The views at `indices`, which cover dimension `dim` once and in order."""
        parts = tuple(select(x, at_dim(dim, index)) for index in indices)
        if len(parts) > 1 and type(x) in TENSORS and parts[0]._rg:
            node = NodeOfMany()
            record(node, self, (edge_of(x),), (dim,), *[part._array.shape for part in parts])
            for number, part in enumerate(parts):
                part._edge = node, number
        return parts

    def backward_arrays(self, node: Any, grads: Any) -> tuple[Any]:
        """The gradient of the whole; parts that got none count as zeros."""
        like = next(g for g in grads if g is not None)
        found = [
            _zeros(like, shape) if g is None else g
            for g, shape in zip(grads, node._shapes, strict=True)
        ]
        return (self.join(found, *node._saved),)

    backward_tensors = backward_arrays


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    array = like._array if type(like) in TENSORS else like
    zeros = XP[type(array)].zeros(shape, array.dtype)
    return wrap(zeros) if type(like) in TENSORS else zeros


split_parts = _Parts("SplitBackward0", cat)
unbind_parts = _Parts("UnbindBackward0", stack)


def pieces(x: Any, dim: int, sizes: list[int]) -> tuple[Any, ...]:
    """Parts of these sizes along `dim`, which add up to all of it: the reverse of `cat`."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return split_parts.apply(x, dim, [slice(a, b) for a, b in pairwise(ends)])


# At least so many dimensions ---------------------------------------------------------------------


def _at_least(count: int) -> Callable[..., Any]:
    name = f"atleast_{count}d"

    def convert(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], tuple | list):
            return _with_dims(checked_tensors(name, tensors)[0], count)
        given = tensors[0] if len(tensors) == 1 else tensors
        return tuple(_with_dims(x, count) for x in checked_tensors(name, given))

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"One Tensor, or each of several, with at least {count} dimension(s); views."
    return convert


def _with_dims(x: Any, count: int) -> Any:
    """A matrix gets a third dimension behind it, a vector one before and one behind."""
    if x.ndim >= count:
        return x
    if not x.ndim:
        return reshape_to(x, (1,) * count)
    if x.ndim == 1:
        return reshape_to(x, (1, *x.shape) if count == 2 else (1, *x.shape, 1))
    return reshape_to(x, (*x.shape, 1))


atleast_1d, atleast_2d, atleast_3d = (_at_least(count) for count in (1, 2, 3))


def _given(name: str, tensors: Any, count: int) -> list[Any]:
    """The Tensors of a list with at least `count` dimensions."""
    return [_with_dims(x, count) for x in listed_tensors(name, tensors)]


def hstack(tensors: Any) -> Any:
    """Joined along the second dimension; vectors along the first."""
    found = _given("hstack", tensors, 1)
    return cat(found, min(found[0].ndim - 1, 1))


def vstack(tensors: Any) -> Any:
    """Joined along the first dimension; vectors are rows."""
    return cat(_given("vstack", tensors, 2), 0)


def dstack(tensors: Any) -> Any:
    """Joined along the third dimension."""
    return cat(_given("dstack", tensors, 3), 2)


def column_stack(tensors: Any) -> Any:
    """Joined along the second dimension; vectors are columns."""
    found = _given("column_stack", tensors, 0)
    return cat([reshape_to(x, (math.prod(x.shape), 1)) if x.ndim < 2 else x for x in found], 1)


row_stack = vstack
concat = concatenate = cat
