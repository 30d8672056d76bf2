"""Indexing: `x[...]` for reading (a view or a copy), `x[...] = v`, and choosing along a dimension.

An index is normalised once to what both NumPy and CuPy take: Tensors become arrays, a tuple stays a
tuple. Integers, slices, `...` and None give a view; arrays of integers or booleans give a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tensor import TENSORS, Tensor
from .registry import primitive

_BASIC = (int, slice, type(Ellipsis), type(None), np.integer)


def normal_index(index: Any) -> tuple[tuple[Any, ...], bool]:
    """`index` as a tuple of what array libraries take, and whether it gives a view.

    Raises IndexError for anything else, such as floats and text.
    """
    parts = index if type(index) is tuple else (index,)
    found: list[Any] = []
    basic = True
    for part in parts:
        if type(part) in TENSORS:
            array = part._array
            if array.dtype.kind not in "iub":
                raise IndexError(
                    "tensors used as indices must be long, int, byte or bool tensors, got "
                    f"{array.dtype.name}"
                )
            if not array.ndim and array.dtype.kind != "b":
                found.append(int(array))
                continue
            found.append(array)
            basic = False
        elif isinstance(part, bool | np.bool_ | list | np.ndarray):
            found.append(np.asarray(part) if isinstance(part, list) else part)
            basic = False
        elif isinstance(part, slice):
            found.append(slice(*(_whole(p) for p in (part.start, part.stop, part.step))))
            if found[-1].step is not None and found[-1].step <= 0:
                raise ValueError("step must be greater than zero")
        elif isinstance(part, _BASIC):
            found.append(part)
        else:
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`), None and long or byte Tensors are "
                f"valid indices (got {type(part).__name__})"
            )
    return tuple(found), basic


def _whole(value: Any) -> Any:
    return int(value) if type(value) in TENSORS else value


def _getitem(xp: Any, x: Any, *, index: Any, out: Any = None) -> Any:
    """`x[index]`."""
    return x[index]


# The index is part of the operation, not an input: a mask or list of rows has no gradient.
select = primitive(
    "select",
    _getitem,
    x=lambda g, x_shape, index: unselect(g, x_shape, index),
    options={"view": True},
)
gather_index = primitive(
    "index", _getitem, x=lambda g, x_shape, index: unselect(g, x_shape, index)
)


def _unselect(xp: Any, x: Any, *, shape: Any, index: Any, out: Any = None) -> Any:
    """Zeros of `shape` with `x` added at `index`: the reverse of `x[index]`."""
    if out is None:
        out = xp.zeros(shape, x.dtype)
    else:
        xp.copyto(out, 0)
    if all(isinstance(part, _BASIC) for part in index):
        out[index] = x
    else:
        xp.scatter_add(out, index, x)
    return out


unselect = primitive("unselect", _unselect, x=lambda g, index: gather_index(g, index))


def getitem(x: Tensor, index: Any) -> Tensor:
    """`x[index]`: a view for integers, slices, `...` and None, a copy for masks and index lists."""
    found, basic = normal_index(index)
    return (select if basic else gather_index)(x, found)  # type: ignore[no-any-return]


def _index_put(xp: Any, x: Any, value: Any, *, index: Any, out: Any = None) -> Any:
    """A copy of `x` with `value` written at `index`."""
    out = xp.empty_like(x) if out is None else out
    xp.copyto(out, x)
    out[index] = value
    return out


def _index_put_input(g: Any, index: Any) -> Any:
    return index_put(g, zeros_at(g, index), index)


def zeros_at(g: Any, index: Any) -> Any:
    """Zeros in the shape of `g[index]`."""
    from .elementwise import zeros_like

    return zeros_like(gather_index(g, index))


# Repeated indices keep one of the values, as assignment does.
index_put = primitive(
    "index_put",
    _index_put,
    x=_index_put_input,
    value=lambda g, index: gather_index(g, index),
)


def _take_along_dim(xp: Any, x: Any, indices: Any, *, dim: int, out: Any = None) -> Any:
    """The elements of `x` that `indices` choose along `dim`."""
    return xp.take_along_axis(x, indices, axis=dim)


take_along_dim = primitive(
    "gather",
    _take_along_dim,
    x=lambda g, indices, x_shape, dim: put_along_dim(g, indices, dim, x_shape[dim]),
)


def _put_along_dim(
    xp: Any, x: Any, indices: Any, *, dim: int, size: int, out: Any = None
) -> Any:
    """Zeros with `x` added along `dim` where `indices` say: the reverse of `gather`."""
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    result = xp.zeros(shape, x.dtype)
    grid = tuple(
        indices
        if axis == dim
        else xp.reshape(xp.arange(n), tuple(n if a == axis else 1 for a in range(len(shape))))
        for axis, n in enumerate(x.shape)
    )
    xp.scatter_add(result, grid, x)
    return result


put_along_dim = primitive(
    "put_along_dim",
    _put_along_dim,
    x=lambda g, indices, dim: take_along_dim(g, indices, dim),
)


def _one_hot(xp: Any, x: Any, *, classes: int, dtype: Any, out: Any = None) -> Any:
    """For each class index a row of zeros with a one in its place."""
    grid = xp.arange(classes)
    return xp.asarray(xp.equal(xp.reshape(x, (*x.shape, 1)), grid), dtype)


one_hot_rows = primitive("one_hot", _one_hot)
