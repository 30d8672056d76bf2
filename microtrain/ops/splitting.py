"""Taking Tensors apart: narrow, select, split, chunk, unbind, unflatten."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from ..tensor import TENSORS
from . import indexing
from .arguments import integer, integers
from .coercion import public
from .joining import pieces, unbind_parts
from .shapes import flatten, normal_dim, reshape_to

__all__ = [
    "chunk", "narrow", "ravel", "select", "split", "split_with_sizes", "tensor_split", "unbind",
    "unflatten",
]  # fmt: skip


def dim_of(name: str, x: Any, dim: int, error: type[Exception] = IndexError) -> int:
    """`dim` counted from the front; a 0-d Tensor, which has none, is an error."""
    if not x.ndim:
        raise error(f"{name}() expects at least a 1-dimensional tensor, got a 0-dim tensor")
    return normal_dim(dim, x.ndim)


# One part -----------------------------------------------------------------------------------------


@public
def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    """The elements `start` to `start + length` of dimension `dim`; a view.

    Raises IndexError for a start outside the dimension, RuntimeError for a 0-d Tensor and a length
    that is negative or too large.
    """
    at = dim_of("narrow", x, dim, RuntimeError)
    size = x.shape[at]
    first, count = integer("narrow", "start", start), integer("narrow", "length", length)
    if not -size <= first <= size:
        raise IndexError(
            f"narrow(): start out of range (expected to be in range of [{-size}, {size}], but got "
            f"{first})"
        )
    first += size if first < 0 else 0
    if count < 0 or first + count > size:
        raise RuntimeError(
            f"narrow(): start ({first}) + length ({count}) does not fit dimension {at} of size "
            f"{size}"
        )
    return indexing.part(x, at, first, first + count)


@public
def select(x: Any, dim: int, index: Any) -> Any:
    """The elements with `index` in dimension `dim`, without that dimension; a view."""
    at, place = dim_of("select", x, dim), integer("select", "index", index)
    if not -x.shape[at] <= place < x.shape[at]:
        raise IndexError(
            f"select(): index {place} out of range for tensor of size {list(x.shape)} at "
            f"dimension {at}"
        )
    return indexing.select(x, indexing.at_dim(at, place))


# All parts ----------------------------------------------------------------------------------------


@public
def split(x: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Parts of one size along `dim`, the last perhaps smaller, or of the sizes in a list; views.

    Raises RuntimeError for a 0-d Tensor, a negative size and sizes that do not add up to that of
    the dimension.

    Example:
        >>> mt.arange(5).split(2)
        (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """
    at = dim_of("split", x, dim, RuntimeError)
    if isinstance(split_size_or_sections, tuple | list):
        return split_with_sizes(x, split_size_or_sections, at)
    size, have = integer("split", "split_size", split_size_or_sections), x.shape[at]
    if size < 0 or (have and not size):
        raise RuntimeError(
            f"split(): split_size must be positive (0 only where the dimension is), got {size} for "
            f"dimension {at} of size {have}"
        )
    return pieces(x, at, [min(size, have - i) for i in range(0, have, size or 1)] or [0])


@public
def split_with_sizes(x: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Parts of the given sizes along `dim`, which add up to its size; views."""
    at = dim_of("split_with_sizes", x, dim)
    sizes = integers("split_with_sizes", "split_sizes", split_sizes)
    if any(size < 0 for size in sizes) or sum(sizes) != x.shape[at]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes that are not negative and sum exactly to "
            f"{x.shape[at]}, the size of dimension {at}, but got split_sizes={list(sizes)}"
        )
    return pieces(x, at, list(sizes))


@public
def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """At most `chunks` parts of one size along `dim`, the last perhaps smaller; views."""
    at, count = dim_of("chunk", x, dim, RuntimeError), integer("chunk", "chunks", chunks)
    if count < 1:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {count}")
    if not x.shape[at]:
        return pieces(x, at, [0] * count)
    return split(x, -(-x.shape[at] // count), at)


@public
def tensor_split(x: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """So many parts along `dim`, the first ones larger by one, or the parts between indices; views.

    Args:
        x: a Tensor.
        indices_or_sections: a number of parts, or a tuple, list or 1-d Tensor of indices.
        dim: the dimension to split.

    Raises RuntimeError for a 0-d Tensor or no parts.
    """
    at = dim_of("tensor_split", x, dim, RuntimeError)
    have, wanted = x.shape[at], indices_or_sections
    if type(wanted) in TENSORS:
        wanted = wanted.tolist()
    if isinstance(wanted, tuple | list):
        places = [0, *integers("tensor_split", "indices", wanted), have]
        cuts = [slice(a, b).indices(have)[:2] for a, b in pairwise(places)]
        if all(0 <= a <= b <= have for a, b in pairwise(places)):
            return pieces(x, at, [b - a for a, b in cuts])
        return tuple(indexing.part(x, at, a, max(a, b)) for a, b in cuts)
    count = integer("tensor_split", "sections", wanted)
    if count < 1:
        raise RuntimeError(f"number of sections must be larger than 0, got {count}")
    size, more = divmod(have, count)
    return pieces(x, at, [size + (i < more) for i in range(count)])


@public
def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """The Tensors along `dim`, without that dimension; views."""
    at = dim_of("unbind", x, dim)
    return unbind_parts.apply(x, at, list(range(x.shape[at])))


# Dimensions ---------------------------------------------------------------------------------------


@public
def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    """Dimension `dim` as several of `sizes`, one of which may be -1; a view where possible."""
    at = dim_of("unflatten", x, dim, RuntimeError)
    parts = integers("unflatten", "sizes", sizes)
    known = math.prod(size for size in parts if size != -1)
    have = x.shape[at]
    inferred = parts.count(-1)
    fits = known and not have % known if inferred else known == have
    if not parts or inferred > 1 or min(parts) < -1 or not fits:
        raise RuntimeError(
            f"unflatten: sizes {list(parts)} don't multiply up to the size of dim {at} ({have})"
        )
    found = tuple(have // known if size == -1 else size for size in parts)
    return reshape_to(x, (*x.shape[:at], *found, *x.shape[at + 1 :]))


@public
def ravel(x: Any) -> Any:
    """All elements in one dimension; a view where the memory allows it."""
    return flatten(x) if x.ndim else reshape_to(x, (1,))


def view_as(x: Any, other: Any) -> Any:
    """`x.view(other.shape)`."""
    return x.view(other.shape)


def reshape_as(x: Any, other: Any) -> Any:
    """`x.reshape(other.shape)`."""
    return x.reshape(other.shape)
