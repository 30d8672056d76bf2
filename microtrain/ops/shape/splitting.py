"""Taking Tensors apart: narrow, select, split, chunk, unbind, unflatten."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from ...tensor import TENSORS
from ..arguments import integer, integers
from ..fronts import Int, Int0d, Ints, OwnDim, Positive, RealDim, T, need, public
from ..index import indexing
from ..pointwise.elementwise import clone
from .joining import pieces, unbind_parts
from .shapes import flatten, reshape_to

__all__ = [
    "chunk", "dsplit", "hsplit", "narrow", "narrow_copy", "ravel", "select", "split",
    "split_with_sizes", "tensor_split", "unbind", "unflatten", "vsplit",
]  # fmt: skip


# One part -----------------------------------------------------------------------------------------


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
