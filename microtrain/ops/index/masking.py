"""Reading and writing where a mask says, or at places in all dimensions at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backend import MODES, XP, int64
from ..arguments import scalar_like, want_in_range, want_tensors
from ..coercion import examine
from ..fronts import Index, Mask, SameDtype, TensorOnly, need, public, wrong
from ..pointwise.elementwise import add, clamp, clone, instead_of
from ..pointwise.elementwise import where as choose
from ..reduce.scans import cumsum
from ..registry import primitive
from ..shape.shapes import expand, reshape_to
from .gathering import line, shaped_like
from .indexing import gather_index, kept_index, normal_index, select, unselect
from .indexing import index_put as put_at

__all__ = [
    "argwhere", "fill", "index_put", "masked_fill", "masked_scatter", "masked_select", "nonzero",
    "take", "where",
]  # fmt: skip


@public
def fill(input: TensorOnly, value: Any) -> Any:
    """A Tensor like `input` full of `value`, a number or a 0-d Tensor."""
    return instead_of(input, scalar_like("fill", input, value))


# Masks --------------------------------------------------------------------------------------------


@public
def masked_fill(input: TensorOnly, mask: Mask, value: Any) -> Any:
    """`input` with `value` where `mask` is True, broadcast.

    Args:
        input: a Tensor.
        mask: a Tensor of booleans that broadcasts with `input`.
        value: a number or a 0-d Tensor that the dtype of `input` can hold.

    Raises RuntimeError for another mask or value.
    """
    return choose(mask, scalar_like("masked_fill", input, value), input)


def _together(x: Any, mask: Any) -> tuple[Any, Any]:
    """Both broadcast to one shape."""
    if x.shape == mask.shape:
        return x, mask
    try:
        shape = np.broadcast_shapes(x.shape, mask.shape)
    except ValueError:
        raise wrong("mask", "{} does not broadcast with {}", mask, x) from None
    return expand(x, shape), expand(mask, shape)


@public
def masked_select(input: TensorOnly, mask: Mask) -> Any:
    """The elements where `mask` is True, broadcast, as a vector.

    Its length depends on the values, so on a GPU this waits for them. Raises RuntimeError for a
    mask that is not boolean or does not broadcast.
    """
    x, mask = _together(input, mask)
    return gather_index(line(x), kept_index((line(mask)._array,)))


@public
def masked_scatter(input: TensorOnly, mask: Mask, source: SameDtype) -> Any:
    """`input` with the first elements of `source`, in order, where `mask` is True.

    Raises RuntimeError for a mask that is not boolean, another dtype, or a source with too few
    elements (on a GPU, where looking would wait for it, the last one is repeated).
    """
    x, mask = _together(input, mask)
    n = source.numel()

    def check(mask: Any) -> None:
        fits = mask.sum() <= n
        need(fits, "masked_scatter", "the mask has {} places, source only {}", mask.sum(), n)

    examine(mask, check)
    if not n:
        return clone(x)
    number = clamp(cumsum(reshape_to(mask, (-1,)), 0) - 1, 0, n - 1)
    values = gather_index(reshape_to(source, (-1,)), (number._array,))
    return choose(mask, reshape_to(values, x.shape), x)


# Places in all dimensions -------------------------------------------------------------------------


@public
def take(input: TensorOnly, index: Index) -> Any:
    """The elements of the flattened `input` at `index`, in its shape; negatives from the end.

    Raises IndexError for an index out of range.
    """
    parts = (line(index)._array,)
    result = gather_index(reshape_to(input, (-1,)), kept_index(parts) if MODES.grad else parts)
    return shaped_like(result, index)


@public
def index_put(input: TensorOnly, indices: Any, values: SameDtype, accumulate: bool = False) -> Any:
    """`input` with `values` written at `input[indices]`, or added there with `accumulate`.

    Args:
        input: a Tensor.
        indices: a tuple of Tensors of integers or booleans, as in `input[indices]`.
        values: a Tensor of the dtype of `input` that broadcasts to `input[indices]`.
        accumulate: add, for a repeated index every time. Without it the last value stays.

    Raises IndexError for an index out of range, RuntimeError for a dtype or shape that does not
    fit.
    """
    listed = isinstance(indices, tuple | list)
    need(listed, "index_put", "indices must be a tuple", type(indices), error=TypeError)
    for index in indices:
        want_tensors("index_put", indices=index)
    parts, _ = normal_index(tuple(indices), XP[type(input._array)])
    parts = kept_index(parts)
    if not accumulate:
        return put_at(input, values, parts)
    dim = 0
    for part in parts:
        fits = dim < input.ndim or part is Ellipsis
        need(fits, "index_put", "too many indices for dimensions", input.ndim, error=IndexError)
        mask = getattr(part, "dtype", int64).kind == "b"
        if not mask and part is not Ellipsis:
            index = np.asarray(part) if type(part) is int else part
            want_in_range("index_put", index, dim, -input.shape[dim], input.shape[dim], IndexError)
        dim += part.ndim if mask else 1
    return add(input, unselect(values, input.shape, parts))


@primitive("nonzero")
def nonzero_rows(xp, x):
    """The indices of the elements that are not 0, one row each."""
    found = xp.nonzero(x if x.shape else xp.reshape(x, -1))
    if not x.shape:
        return xp.empty((found[0].shape[0], 0), int64)
    return xp.concatenate([xp.reshape(column, (-1, 1)) for column in found], axis=1)


@public
def nonzero(input: TensorOnly, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not 0, in row-major order.

    Their number depends on the values, so on a GPU this waits for them.

    Returns an (n, ndim) Tensor of int64; with `as_tuple` one vector a dimension, which is an index
    for those elements.
    """
    if not as_tuple:
        return nonzero_rows(input)
    rows = nonzero_rows(line(input))
    return tuple(select(rows, (slice(None), column, Ellipsis)) for column in range(rows.shape[1]))


@public
def argwhere(input: TensorOnly) -> Any:
    """The indices of the elements that are not 0, one row each; `nonzero(input)`."""
    return nonzero_rows(input)


@public
def where(condition: TensorOnly, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition`, else `other`, broadcast; alone, `nonzero(condition, as_tuple)`.

    Args:
        condition: a Tensor of booleans (alone: of anything).
        input, other: Tensors or numbers; both or none.

    Raises RuntimeError for a condition that is not boolean, TypeError for only one of two.
    """
    if input is not None and other is not None:
        return choose(condition, input, other)
    alone = input is None and other is None
    text = "expected a condition alone, or with both input and other"
    need(alone, "where", text, error=TypeError)
    return nonzero(condition, as_tuple=True)
