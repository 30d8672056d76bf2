"""Embedding: rows of a table by number; and class numbers as rows of zeros and a one."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...backend import XP, float16, float32, int32, int64
from ...errors import need
from ...numerics.sums import written
from ...tensor import TENSORS, Tensor
from ..arguments import want_in_range, want_shape, want_tensors
from ..coercion import cast, examine
from ..fronts import Flag, Index, Matrix, T, of_dims, one_of, public
from ..index.indexing import gather_along, one_hot_rows
from ..pointwise.elementwise import clamp, where
from ..reduce.scans import cumsum
from ..reduce.sorting import argsort_dim
from ..registry import primitive
from ..shape.shapes import expand_to, reshape_to


def _add_rows(xp, x, indices, *, rows, out=None):
    """A table of zeros with the vectors of `x` added in the rows `indices`."""
    if x.dtype == float16:  # where 2048 + 1 is not 2048
        table = _add_rows(xp, xp.asarray(x, float32), indices, rows=rows)
        return written(xp, xp.asarray(table, float16), out)
    size = x.shape[-1]
    direct = out is not None and out.flags.c_contiguous
    table = out if direct else xp.empty((rows, size), x.dtype)
    xp.copyto(table, 0)
    vectors = xp.reshape(x, (math.prod(indices.shape), size))
    xp.scatter_add(table, xp.reshape(indices, -1), vectors)
    return table if out is None or direct else written(xp, table, out)


def _weight_rule(g, indices, weight_shape, padding, out):
    if padding is not None:
        g = where(reshape_to(indices != padding, (*indices.shape, 1)), g, 0)
    if out is None:
        return add_rows(g, indices, weight_shape[0])
    return _add_rows(XP[type(g)], g, indices, rows=weight_shape[0], out=out)


@primitive("embedding", weight=_weight_rule)
def take_rows(xp, weight, indices, *, padding=None):
    """The rows of `weight` that `indices` name; the row `padding` gets no gradient."""
    return xp.take(weight, indices, axis=0)


add_rows = primitive(
    "embedding_dense_backward", _add_rows, x=lambda g, indices: take_rows(g, indices)
)


@public
def embedding(
    input: Index, weight: Matrix, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` that `input` names.

    Args:
        input: row numbers, int64 or int32, any shape.
        weight: the table, (rows, size).
        padding_idx: a row that gets no gradient; a negative one counts from the end.
        max_norm, norm_type, scale_grad_by_freq, sparse: not supported: leave them as they are.

    Returns a Tensor (*input.shape, size). Raises IndexError for a number that is no row (not
    checked on a GPU), RuntimeError for another dtype or a weight that is no matrix, ValueError for
    what is not supported, AssertionError for a `padding_idx` that is no row.
    """
    check_unsupported("embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
    rows = weight.shape[0]
    want_in_range("embedding", input._array, 0, 0, rows, IndexError)
    return take_rows(weight, input, normal_padding(padding_idx, rows))


def check_unsupported(
    name: str, max_norm: Any, norm_type: float, scale_grad_by_freq: bool, sparse: bool
) -> None:
    """ValueError for the options of PyTorch's embedding that are not here."""
    plain = max_norm is None and norm_type == 2.0 and not scale_grad_by_freq and not sparse
    text = "max_norm, norm_type, scale_grad_by_freq and sparse are not supported"
    need(plain, name, f"{text}; leave them as they are", error=ValueError)


def normal_padding(padding_idx: int | None, rows: int) -> int | None:
    """`padding_idx` counted from the front; AssertionError, as in PyTorch, if it is no row."""
    if padding_idx is None:
        return None
    there = -rows <= padding_idx < rows
    text = f"must be within the {rows} rows"
    need(there, "padding_idx", text, padding_idx, error=AssertionError)
    return padding_idx % rows


@public
def one_hot(tensor: T, num_classes: int = -1) -> Tensor:
    """For each class number a row of zeros with a one in its place.

    Args:
        tensor: class numbers from 0, int64, any shape.
        num_classes: the length of a row; -1 is the largest number and 1.

    Returns an int64 Tensor (*tensor.shape, num_classes). Raises RuntimeError for another dtype, a
    number outside the classes (not checked on a GPU where num_classes is given), and no numbers to
    tell the classes from.
    """
    need(tensor.dtype == int64, "one_hot", "expected class numbers as int64", tensor.dtype)
    some = math.prod(tensor.shape) or num_classes > 0
    need(some, "one_hot", "no numbers to tell the classes from; give num_classes")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1

    def check(array: Any) -> None:
        fits = num_classes > 0 and (not array.size or 0 <= array.min() <= array.max() < num_classes)
        need(fits, "one_hot", "class numbers must be from 0 and below num_classes", num_classes)

    examine(tensor, check)
    return one_hot_rows(tensor, num_classes, int64)


# Bags: the sum, mean or maximum of the rows that each of many bags names --------------------------


_Mode = Annotated[str, one_of("sum", "mean", "max", error="ValueError")]


@primitive("bag_numbers")
def bag_numbers(xp, offsets, *, count):
    """For each of `count` places the number of the last bag that begins there or before."""
    marks = xp.zeros((count + 1,), int32)
    xp.scatter_add(marks, offsets, xp.ones_of(offsets.shape, int32))
    begun = xp.cumsum(xp.getitem(marks, slice(0, count)), axis=0, dtype=int64)
    return xp.subtract(begun, xp.constant(1, int64))


def _offsets(input: Any, offsets: Any, include_last_offset: bool) -> Any:
    """Where each bag begins in the flattened input; ValueError or RuntimeError if it does not."""
    if input.ndim == 2:
        text = "a matrix of bags takes no offsets"
        need(offsets is None, "embedding_bag", text, error=ValueError)
        bags, size = input.shape
        return input.new_tensor(np.arange(bags) * size)
    vector = type(offsets) in TENSORS and offsets.ndim == 1
    text = "a vector of row numbers needs offsets, a vector as well: where each bag begins"
    need(vector, "embedding_bag", text, error=ValueError)
    whole = offsets.dtype in (int64, int32)
    need(whole, "embedding_bag", "offsets must be integers", offsets.dtype)
    n = input.shape[0]
    text = "offsets[0] must be 0"
    examine(offsets, lambda a: need(not a[:1].any(), "embedding_bag", text, *a[:1]))
    want_in_range("embedding_bag", cast(offsets, int64)._array, 0, 0, n + 1, RuntimeError)
    return cast(offsets[:-1] if include_last_offset else offsets, int64)


def _largest(rows: Any, bags: Any, sizes: Any) -> Any:
    """The maxima of every bag, the first of equals, and 0 where a bag is empty.

    Rows are sorted by value and then, stably, by their bag.
    """
    shape = (sizes.shape[0], rows.shape[1])
    order = argsort_dim(rows.detach(), 0, True)
    there = reshape_to(gather_along(bags, reshape_to(order, (-1,)), 0), rows.shape)
    order = gather_along(order, argsort_dim(there, 0), 0)
    begin = clamp(cumsum(sizes, 0) - sizes, max=rows.shape[0] - 1)
    chosen = gather_along(order, expand_to(cast(begin, int64), shape), 0)
    return where(sizes == 0, 0, gather_along(rows, chosen, 0))


@public
def embedding_bag(
    input: Annotated[Index, of_dims(1, 2)], weight: Matrix, offsets: Any = None,
    max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
    mode: _Mode = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: Flag = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or maximum of the rows of `weight` that each bag names; 0 for an empty bag.

    Args:
        input: row numbers, int64 or int32: a matrix, of which each row is a bag, or a vector.
        weight: the table, (rows, size).
        offsets: for a vector where each bag begins, the first at 0.
        mode: "sum", "mean" or "max".
        per_sample_weights: for "sum" a factor for each row number, in the shape of `input`.
        include_last_offset: whether the last offset is the end of the last bag.
        padding_idx: a row that does not count and gets no gradient.
        max_norm, norm_type, scale_grad_by_freq, sparse: not supported: leave them as they are.

    Returns a Tensor (bags, size). Raises ValueError for offsets or weights that do not fit and what
    is not supported, NotImplementedError for weights of another mode, IndexError for a number that
    is no row (not checked on a GPU), RuntimeError for offsets out of range.
    """
    check_unsupported("embedding_bag", max_norm, norm_type, scale_grad_by_freq, sparse)
    padding = normal_padding(padding_idx, weight.shape[0])
    begin = _offsets(input, offsets, include_last_offset)
    want_in_range("embedding_bag", input._array, 0, 0, weight.shape[0], IndexError)
    count, indices = begin.shape[0], reshape_to(input, (-1,))
    rows, bags = take_rows(weight, indices, padding), bag_numbers(begin, indices.shape[0])
    kept = None if padding is None else reshape_to(indices != padding, (-1, 1))
    if per_sample_weights is not None:
        rows = rows * _factors(input, weight, mode, per_sample_weights)
    total = add_rows(rows if kept is None else where(kept, rows, 0), bags, count)
    if mode == "sum" or not indices.shape[0]:
        return total
    ones = cast(reshape_to(bags == bags, (-1, 1)) if kept is None else kept, weight.dtype)
    sizes = add_rows(ones, bags, count)
    if mode == "mean":
        return total / clamp(sizes, min=1)
    bags = bags if kept is None else where(reshape_to(kept, (-1,)), bags, count)  # at the end
    return _largest(rows, bags, sizes)


def _factors(input: Any, weight: Any, mode: str, factors: Any) -> Any:
    """`per_sample_weights` as a column; errors where they do not fit."""
    text = "per_sample_weights are for mode 'sum'"
    need(mode == "sum", "embedding_bag", text, mode, error=NotImplementedError)
    want_tensors("embedding_bag", per_sample_weights=factors)
    want_shape("embedding_bag", "per_sample_weights", factors, input.shape, ValueError)
    text = "per_sample_weights must have the dtype of the weight"
    need(factors.dtype == weight.dtype, "embedding_bag", text, factors.dtype, error=ValueError)
    return reshape_to(factors, (-1, 1))
