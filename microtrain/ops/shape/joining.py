"""Joining Tensors and taking them apart: cat, stack, atleast_2d; split, chunk, unbind.

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
from ...tensor import TENSORS, kind_of, wrap
from ..arguments import integer, integers
from ..fronts import Int, Int0d, Ints, OwnDim, Positive, RealDim, T, Unchecked, need, public, wrong
from ..index import indexing
from ..pointwise.elementwise import clone
from ..registry import Variadic
from .shapes import flatten, normal_dim, reshape_to, unsqueeze

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "cat", "chunk", "column_stack", "concat",
    "concatenate", "dsplit", "dstack", "hsplit", "hstack", "narrow", "narrow_copy", "ravel",
    "row_stack", "select", "split", "split_with_sizes", "stack", "tensor_split", "unbind",
    "unflatten", "vsplit", "vstack",
]  # fmt: skip

cat_operation = Variadic(
    "cat",
    lambda xp, tensors, *, dim: xp.concatenate(tensors, axis=dim),
    lambda g, shapes, dim: pieces(g, dim, [shape[dim] for shape in shapes]),
)


def checked_tensors(name: str, tensors: Any) -> tuple[Any, ...]:
    """`tensors` as a tuple; TypeError unless all of them are Tensors, or all are arrays."""
    found = tuple(tensors)
    wanted = TENSORS if any(type(t) in TENSORS for t in found) else XP
    for number, tensor in enumerate(found):
        if type(tensor) not in wanted:
            text = f"expected Tensors, got at position {number} {kind_of(tensor)}"
            raise wrong(name, text, error=TypeError)
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
        parts = tuple(indexing.select(x, indexing.at_dim(dim, index)) for index in indices)
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


# One part -----------------------------------------------------------------------------------------


# Taking apart -------------------------------------------------------------------------------------


@public
def narrow(x: T, dim: RealDim, start: Int0d, length: Int) -> Any:
    """The elements `start` to `start + length` of dimension `dim`; a view.

    Raises IndexError for a start outside the dimension, RuntimeError for a 0-d Tensor and a length
    that is negative or too large.
    """
    size = x.shape[dim]
    text = "start out of range (expected to be in range of [{}, {}], but got {})"
    need(-size <= start <= size, "narrow", text, -size, size, start, error=IndexError)
    start += size if start < 0 else 0
    fits = length >= 0 and start + length <= size
    text = "start ({}) + length ({}) does not fit dimension {} of size {}"
    need(fits, "narrow", text, start, length, dim, size)
    return indexing.part(x, dim, start, start + length)


@public
def narrow_copy(x: T, dim: RealDim, start: Int0d, length: Int) -> Any:
    """`narrow` that copies."""
    return clone(narrow(x, dim, start, length))


@public
def select(x: T, dim: OwnDim, index: Int) -> Any:
    """The elements with `index` in dimension `dim`, without that dimension; a view."""
    inside = -x.shape[dim] <= index < x.shape[dim]
    text = "index {} out of range for tensor of {} at dimension {}"
    need(inside, "select", text, index, x, dim, error=IndexError)
    return indexing.select(x, indexing.at_dim(dim, index))


# All parts ----------------------------------------------------------------------------------------


@public
def split(x: T, split_size_or_sections: Any, dim: RealDim = 0) -> tuple[Any, ...]:
    """Parts of one size along `dim`, the last perhaps smaller, or of the sizes in a list; views.

    Raises RuntimeError for a 0-d Tensor, a negative size and sizes that do not add up to that of
    the dimension.

    Example:
        >>> mt.arange(5).split(2)
        (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """
    if isinstance(split_size_or_sections, tuple | list):
        return split_with_sizes(x, split_size_or_sections, dim)
    size, have = integer("split", "split_size", split_size_or_sections), x.shape[dim]
    text = "split_size must be positive (0 only where the dimension is), got {} for {} of size {}"
    need(size > 0 or (size == 0 and not have), "split", text, size, dim, have)
    return pieces(x, dim, [min(size, have - i) for i in range(0, have, size or 1)] or [0])


@public
def split_with_sizes(x: T, split_sizes: Ints, dim: OwnDim = 0) -> tuple[Any, ...]:
    """Parts of the given sizes along `dim`, which add up to its size; views."""
    fits = all(size >= 0 for size in split_sizes) and sum(split_sizes) == x.shape[dim]
    text = f"expects split_sizes that are not negative and sum exactly to {x.shape[dim]}"
    need(fits, "split_with_sizes", text, list(split_sizes))
    return pieces(x, dim, list(split_sizes))


@public
def chunk(x: T, chunks: Positive, dim: RealDim = 0) -> tuple[Any, ...]:
    """At most `chunks` parts of one size along `dim`, the last perhaps smaller; views."""
    if not x.shape[dim]:
        return pieces(x, dim, [0] * chunks)
    return split(x, -(-x.shape[dim] // chunks), dim)


@public
def tensor_split(x: T, indices_or_sections: Any, dim: RealDim = 0) -> tuple[Any, ...]:
    """So many parts along `dim`, the first ones larger by one, or the parts between indices; views.

    Args:
        x: a Tensor.
        indices_or_sections: a number of parts, or a tuple, list or 1-d Tensor of indices.
        dim: the dimension to split.

    Raises RuntimeError for a 0-d Tensor or no parts.
    """
    have, wanted = x.shape[dim], indices_or_sections
    if type(wanted) in TENSORS:
        wanted = wanted.tolist()
    if isinstance(wanted, tuple | list):
        places = [0, *integers("tensor_split", "indices", wanted), have]
        cuts = [slice(a, b).indices(have)[:2] for a, b in pairwise(places)]
        if all(0 <= a <= b <= have for a, b in pairwise(places)):
            return pieces(x, dim, [b - a for a, b in cuts])
        return tuple(indexing.part(x, dim, a, max(a, b)) for a, b in cuts)
    count = integer("tensor_split", "sections", wanted)
    need(count >= 1, "tensor_split", "number of sections must be larger than 0", count)
    size, more = divmod(have, count)
    return pieces(x, dim, [size + (i < more) for i in range(count)])


def _split_at(name: str, x: Any, wanted: Any, dim: int, least: int) -> tuple[Any, ...]:
    need(x.ndim >= least, name, f"requires at least {least} dimensions", x)
    fits = not isinstance(wanted, int) or (wanted > 0 and not x.shape[dim] % wanted)
    need(fits, name, "dimension {} of {} is not divisible by {}", dim, x, wanted)
    return tensor_split(x, wanted, dim)


@public
def hsplit(x: T, indices_or_sections: Any) -> tuple[Any, ...]:
    """`tensor_split` along the second dimension, of a vector the first, in equal parts; views."""
    return _split_at("hsplit", x, indices_or_sections, min(x.ndim - 1, 1), 1)


@public
def vsplit(x: T, indices_or_sections: Any) -> tuple[Any, ...]:
    """`tensor_split` along the first dimension, in equal parts; views."""
    return _split_at("vsplit", x, indices_or_sections, 0, 2)


@public
def dsplit(x: T, indices_or_sections: Any) -> tuple[Any, ...]:
    """`tensor_split` along the third dimension, in equal parts; views."""
    return _split_at("dsplit", x, indices_or_sections, 2, 3)


@public
def unbind(x: T, dim: OwnDim = 0) -> tuple[Any, ...]:
    """The Tensors along `dim`, without that dimension; views."""
    return unbind_parts.apply(x, dim, list(range(x.shape[dim])))


# Dimensions ---------------------------------------------------------------------------------------


@public
def unflatten(x: T, dim: RealDim, sizes: Ints) -> Any:
    """Dimension `dim` as several of `sizes`, one of which may be -1; a view where possible."""
    known = math.prod(size for size in sizes if size != -1)
    have = x.shape[dim]
    inferred = sizes.count(-1)
    fits = known and not have % known if inferred else known == have
    fits = sizes and inferred < 2 and min(sizes) >= -1 and fits
    text = f"sizes {list(sizes)} don't multiply up to the size of dim {dim} ({have})"
    need(fits, "unflatten", text)
    found = tuple(have // known if size == -1 else size for size in sizes)
    return reshape_to(x, (*x.shape[:dim], *found, *x.shape[dim + 1 :]))


@public
def ravel(x: T) -> Any:
    """All elements in one dimension; a view where the memory allows it."""
    return flatten(x) if x.ndim else reshape_to(x, (1,))


def view_as(x: Any, other: Any) -> Any:
    """`x.view(other.shape)`."""
    return x.view(other.shape)


def reshape_as(x: Any, other: Any) -> Any:
    """`x.reshape(other.shape)`."""
    return x.reshape(other.shape)
