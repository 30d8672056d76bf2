"""Embedding: rows of a table by number; and class numbers as rows of zeros and a one."""

from __future__ import annotations

import math
from typing import Any

from ...backend import XP, float16, float32, int64
from ...tensor import Tensor
from ..arguments import want_in_range
from ..coercion import examine
from ..fronts import Index, Matrix, T, need, public
from ..index.indexing import one_hot_rows
from ..pointwise.elementwise import where
from ..registry import primitive
from ..shape.shapes import reshape_to


def _add_rows(xp, x, indices, *, rows, out=None):
    """A table of zeros with the vectors of `x` added in the rows `indices`."""
    if x.dtype == float16:  # where 2048 + 1 is not 2048
        table = _add_rows(xp, xp.asarray(x, float32), indices, rows=rows)
        if out is None:
            return xp.asarray(table, float16)
        xp.copyto(out, xp.asarray(table, float16))
        return out
    size = x.shape[-1]
    direct = out is not None and out.flags.c_contiguous
    table = out if direct else xp.empty((rows, size), x.dtype)
    xp.copyto(table, 0)
    vectors = xp.reshape(x, (math.prod(indices.shape), size))
    xp.scatter_add(table, xp.reshape(indices, -1), vectors)
    if out is None or direct:
        return table
    xp.copyto(out, table)
    return out


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
