"""The largest and the smallest: values, indices, and who gets the gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import wrong
from ...tensor import TENSORS
from ..index.indexing import gather_along
from ..pointwise.comparison import isnan
from ..pointwise.elementwise import clone, maximum, minimum, to_dtype
from ..registry import primitive
from ..shape.shapes import normal_dim, normal_dims, reshape_to, restore_dims
from .reductions import count_of, reduction, sum_dims

__all__ = ["amax", "amin", "argmax", "argmin", "max", "min"]


class Chosen(NamedTuple):
    """Elements along a dimension and their indices: what `max(dim)`, `sort` and others return."""

    values: Any
    indices: Any


def has_elements(name: str, x: Any, dims: Any, error: type[Exception] = IndexError) -> None:
    if not count_of(x.shape, dims):
        text = "Expected reduction dim to have non-zero size; there are no elements to choose from"
        raise wrong(name, text, x, error=error)


def share(g, x, result, dims, keepdim):
    """The gradient of an extremum: split evenly among the elements that reach it."""
    reached = (x == restore_dims(result, x.shape, dims, keepdim)) | isnan(x)
    ones = to_dtype(reached, g.dtype)
    return ones * (restore_dims(g, x.shape, dims, keepdim) / sum_dims(ones, dims, True))


amax_dims, amin_dims = reduction("amax", "max", x=share), reduction("amin", "min", x=share)


def amax(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest element over `dim`, NaN where there is one; ties share the gradient evenly."""
    dims = normal_dims(dim, x.ndim)
    has_elements("amax", x, dims)
    return amax_dims(x, dims, keepdim)


def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The smallest element over `dim`, NaN where there is one; ties share the gradient evenly."""
    dims = normal_dims(dim, x.ndim)
    has_elements("amin", x, dims)
    return amin_dims(x, dims, keepdim)


def _position(name: str) -> Any:
    def kernel(xp, x, *, dim=None, keepdim=False):
        return getattr(xp, name)(x, axis=dim if x.ndim else None, keepdims=keepdim)

    return primitive(name, kernel)


argmax_dim, argmin_dim = _position("argmax"), _position("argmin")


def _index_of(name: str, operation: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    shape = x.shape
    at = None if dim is None else normal_dim(dim, len(shape))
    if 0 in shape:
        has_elements(name, x, None if at is None else (at,))
    return operation(x, at, keepdim)


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the largest element, the first among equals; a NaN counts as largest.

    Without `dim` the index is into the flattened elements. Raises IndexError where there are none.
    """
    return _index_of("argmax", argmax_dim, x, dim, keepdim)


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index (int64) of the smallest element, the first among equals; a NaN counts as smallest.

    Without `dim` the index is into the flattened elements. Raises IndexError where there are none.
    """
    return _index_of("argmin", argmin_dim, x, dim, keepdim)


def _extremum(
    name: str, pair: Any, position: Any, all_of: Any, x: Any, dim: Any, keepdim: bool
) -> Any:
    """Of two Tensors, along a dimension, or of all elements."""
    if type(dim) in TENSORS:
        return pair(x, dim)
    if dim is None:
        if 0 in x.shape:
            has_elements(name, x, None, RuntimeError)
        return all_of(x)
    return chosen(x, _index_of(name, position, x, dim, True), normal_dim(dim, x.ndim), keepdim)


def chosen(x: Any, indices: Any, dim: int, keepdim: bool) -> Chosen:
    """The elements that `indices` name along `dim`, which so get the gradient.

    Without `keepdim` there is one index along `dim`, and the dimension goes.
    """
    if not x.ndim:
        return Chosen(clone(x), indices)
    values = gather_along(x, indices, dim)
    if keepdim:
        return Chosen(values, indices)
    shape = x.shape
    shape = shape[:dim] + shape[dim + 1 :]
    return Chosen(reshape_to(values, shape), reshape_to(indices, shape))


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element, or `(values, indices)` along `dim`; with a Tensor, `maximum`.

    Ties share the gradient evenly without `dim`; with it the first of them gets it. NaN counts as
    largest. Raises RuntimeError or, with `dim`, IndexError where there are no elements.
    """
    return _extremum("max", maximum, argmax_dim, amax_dims, x, dim, keepdim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element, or `(values, indices)` along `dim`; with a Tensor, `minimum`.

    Ties share the gradient evenly without `dim`; with it the first of them gets it. NaN counts as
    smallest. Raises RuntimeError or, with `dim`, IndexError where there are no elements.
    """
    return _extremum("min", minimum, argmin_dim, amin_dims, x, dim, keepdim)
