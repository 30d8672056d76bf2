"""Indexing: `x[...]` for reading (a view or a copy), `x[...] = v`, and choosing along a dimension.

An index is normalized once to what both NumPy and CuPy take: a tuple of integers, slices, `...`,
None, and arrays on the device of the indexed Tensor. Without arrays it gives a view, with arrays of
integers or booleans a copy.
"""

from __future__ import annotations

import math
from operator import index as whole
from typing import Any

import numpy as np

from ...autograd.graph import MARKS
from ...backend import ARRAYS, MODES, XP, float16, float32, int64, made, to_host
from ...errors import need, wrong
from ...numerics.sums import FEW
from ...tensor import TENSORS, Tensor
from ..pointwise.elementwise import where
from ..registry import primitive
from ..shape.shapes import reshape_to


def normal_index(index: Any, xp: Any) -> tuple[tuple[Any, ...], bool]:
    """`index` as a tuple for arrays of `xp`, and whether it gives a view.

    Raises IndexError for anything else, such as floats and text, ValueError for a slice backwards.
    """
    parts = index if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    basic = True
    for part in parts:
        if part is None or part is Ellipsis:
            found.append(part)
        elif isinstance(part, slice):
            found.append(_normal_slice(part))
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            found.append(int(part))
        else:
            array = _index_array(part)
            if not array.ndim and array.dtype.kind == "i":
                found.append(to_host(array).item())
                continue
            found.append(array if XP[type(array)] is xp else xp.asarray(to_host(array)))
            basic = False
    if basic and Ellipsis not in found:
        # Else NumPy would give a number, not a 0-d view, where every dimension has an integer.
        found.append(Ellipsis)
    return tuple(found), basic


def _normal_slice(part: slice) -> slice:
    start, stop, step = (
        None if p is None else whole(p) for p in (part.start, part.stop, part.step)
    )
    text = "step must be greater than zero, got {}; index with a list instead"
    need(step is None or step > 0, "x[index]", text, step, error=ValueError)
    return slice(start, stop, step)


def _index_array(part: Any) -> Any:
    """An index that is a Tensor, an array, a sequence or a boolean, as an array."""
    if type(part) in TENSORS:
        array = part._array
    elif type(part) in ARRAYS:
        array = part
    elif isinstance(part, bool | np.bool_):
        array = np.asarray(part)
    elif isinstance(part, list | tuple | range):
        try:
            array = np.asarray(part) if len(part) else np.empty(0, np.int64)
        except ValueError:
            array = np.asarray(None)
        text = "a {} in an index holds positions along one dimension, no slices, `...` or None; "
        text += "for several dimensions write x[:, positions] or x[(...)]"
        need(array.dtype.kind != "O", "x[index]", text, type(part), error=IndexError)
        array = made(array)
    else:
        text = "expected integers, slices, `...`, None and long or bool Tensors as index"
        raise wrong("x[index]", text, type(part), error=IndexError)
    if array.dtype.kind not in "ib":
        hint = "; for a mask use .bool()" if array.dtype.kind == "u" else ""
        text = f"tensors used as indices must be of a signed integer dtype or bool, got {{}}{hint}"
        raise wrong("x[index]", text, array.dtype, error=IndexError)
    return array


def integers_first(x: Any, index: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """`x[integers]` and the rest of an index with arrays.

    PyTorch's order. NumPy broadcasts integers with the arrays, which moves dimensions where a slice
    stands between them: x[0, :, [1, 2]] has the shape (2, n) there and (n, 2) here.
    """
    if not any(type(part) is int for part in index):
        return x, index
    first: list[Any] = []
    rest: list[Any] = []
    for part in index:
        if type(part) is int:
            first.append(part)
        elif type(part) in ARRAYS:
            first += [slice(None)] * (part.ndim if part.dtype.kind == "b" else 1)
            rest.append(part)
        else:
            first.append(part)
            rest.append(part if part is Ellipsis else slice(None))
    if Ellipsis not in first:
        first.append(Ellipsis)
    return select(x, tuple(first)), tuple(rest)


def kept_index(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """`index` with arrays of its own: a graph must not see later writes to the user's."""
    if any(type(part) in ARRAYS and part.dtype.kind == "b" for part in index):
        MARKS[0] += 1
    return tuple(part.copy() if type(part) in ARRAYS else part for part in index)


def _may_repeat(index: tuple[Any, ...]) -> bool:
    return any(type(part) in ARRAYS and part.dtype.kind != "b" for part in index)


# Reading ------------------------------------------------------------------------------------------


def _unselect(xp, x, *, shape, index):
    """Zeros of `shape` with `x` added at `index`: the reverse of `x[index]`."""
    repeated = _may_repeat(index)
    if repeated and x.dtype == float16:  # where 2048 + 1 is not 2048
        x = xp.asarray(x, float32)
        return xp.asarray(_unselect(xp, x, shape=shape, index=index), float16)
    out = xp.zeros(shape, x.dtype)
    if not repeated:
        xp.setitem(out, index, x)
        return out
    dim = len(index) - 1
    last = index[dim]
    many = math.prod(x.shape) > FEW
    if many and _is_along(index) and x.shape == (*shape[:dim], *last.shape, *shape[dim + 1 :]):
        n, rows, size = math.prod(last.shape), last, shape[dim]
        if math.prod(shape[:dim]) != 1:
            rows = xp.remainder(xp.asarray(last, int64), size)
            rows = xp.reshape(rows, (n,) + (1,) * (len(shape) - dim - 1))
            rows = places_along(xp, rows, shape, dim, (*shape[:dim], n, *shape[dim + 1 :]))
            size = math.prod(shape)
        _add_rows(xp, out, xp.reshape(rows, -1), x, size)
    else:
        xp.scatter_add(out, index, x)
    return out


def _add_rows(xp, out, rows, x, count):
    """Add `x` to `out`, both seen as rows of one length, `count` in all."""
    size = math.prod(out.shape) // count
    xp.scatter_add(xp.reshape(out, (count, size)), rows, xp.reshape(x, (rows.shape[0], size)))


def _is_along(index: tuple[Any, ...]) -> bool:
    """Whether `index` is an array of integers behind full slices."""
    *lead, last = index
    full = all(type(part) is slice and part == slice(None) for part in lead)
    return full and type(last) in ARRAYS and last.dtype.kind != "b"


# The index is part of the operation, not an input: a mask or list of rows has no gradient.
select = primitive(
    "select",
    lambda xp, x, *, index: xp.getitem(x, index),
    x=lambda g, x_shape, index: unselect(g, x_shape, index),
    view=True,
)


@primitive("index", x=lambda g, x_shape, index: unselect(g, x_shape, index))
def gather_index(xp, x, *, index):
    if _is_along(index):
        return xp.take(x, index[-1], axis=len(index) - 1)
    found = xp.asarray(xp.getitem(x, index))
    # NumPy leaves some results in memory of another order, which `view` would refuse.
    return found if found.flags.c_contiguous else xp.copy(found)


unselect = primitive("unselect", _unselect, x=lambda g, index: gather_index(g, index))


def at_dim(dim: int, index: Any) -> tuple[Any, ...]:
    """The index that is `index` in dimension `dim` and everything elsewhere."""
    return (*(slice(None),) * dim, index, Ellipsis)


def part(x: Any, dim: int, *ends: int | None) -> Any:
    """`x[start:stop:step]` along `dim`; a view."""
    return select(x, at_dim(dim, slice(*ends)))


def getitem(x: Tensor, index: Any) -> Tensor:
    """`x[index]`: a view for integers, slices, `...` and None, a copy for masks and index lists."""
    found, basic = normal_index(index, XP[type(x._array)])
    if basic:
        return select(x, found)
    x, found = integers_first(x, found)
    return gather_index(x, kept_index(found) if x._rg and MODES.grad else found)


# Writing ------------------------------------------------------------------------------------------


def standing(xp, shape, index):
    """Which of the values written at `index` of an array no later one covers."""
    numbers = xp.empty(shape, int64)
    here = xp.getitem(numbers, index).shape
    order = xp.reshape(xp.arange(math.prod(here)), here)
    xp.setitem(numbers, index, order)
    return xp.equal(xp.getitem(numbers, index), order)


standing_at = primitive("standing_at", lambda xp, x, *, index: standing(xp, x.shape, index))


def _of_written(g, index):
    found = gather_index(g, index)
    # A value that a repeated index has overwritten has no part in the result.
    return where(standing_at(g, index), found, 0) if _may_repeat(index) else found


# Repeated indices keep the last of the values, as assignment does.
@primitive(
    "index_put",
    x=lambda g, index: index_put(g, 0, index),
    value=_of_written,
    promote=("x", "value"),
)
def index_put(xp, x, value, *, index):
    """A copy of `x` with `value` written at `index`."""
    out = xp.empty_like(x)
    xp.copyto(out, x)
    xp.setitem(out, index, value)
    return out


def without_leading_ones(value: Tensor) -> Tensor:
    """A value to assign without leading dimensions of size 1, which assignment may ignore."""
    shape = value._array.shape
    lead = 0
    while lead < len(shape) and shape[lead] == 1:
        lead += 1
    return reshape_to(value, shape[lead:]) if lead else value


# Along one dimension ------------------------------------------------------------------------------


def _steps(shape: tuple[int, ...]) -> list[int]:
    """How far apart neighbors are along each dimension of the flattened array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def places_along(xp, index, shape, dim, sizes=None):
    """Where in the flattened array of `shape` the elements lie that `index` names along `dim`.

    `sizes` is the shape of the result where `index` is yet to be broadcast to it.
    """
    steps = _steps(shape)
    places = index if steps[dim] == 1 else xp.multiply(index, steps[dim], dtype=int64)
    for axis, n in enumerate(sizes or index.shape):
        if axis != dim and n > 1:
            step = steps[axis] or 1  # 0 where there are no elements, which arange does not take
            here = xp.reshape(xp.arange(0, n * step, step), (n,) + (1,) * (len(shape) - axis - 1))
            own = sizes is None and places is not index
            places = xp.add(places, here, out=places if own else None)
    return places


def _ungather(xp, x, index, *, dim, shape):
    """Zeros of `shape` with `x` added where `index` says along `dim`: the reverse of `gather`."""
    if x.dtype == float16:
        x = xp.asarray(x, float32)
        return xp.asarray(_ungather(xp, x, index, dim=dim, shape=shape), float16)
    out = xp.zeros(shape, x.dtype)
    places = xp.reshape(places_along(xp, index, shape, dim), -1)
    if index.shape[dim] == 1:  # one each cannot repeat
        xp.setitem(xp.reshape(out, -1), places, xp.reshape(x, -1))
    elif index.shape and places.shape[0]:
        _add_rows(xp, out, places, x, math.prod(shape))
    return out


@primitive("gather", x=lambda g, index, x_shape, dim: ungather(g, index, dim, x_shape))
def gather_along(xp, x, index, *, dim):
    """The elements of `x` that `index` names along `dim`."""
    # A flat `take` at computed places costs half of `take_along_axis`.
    return xp.take(x, places_along(xp, index, x.shape, dim))


ungather = primitive(
    "gather_backward", _ungather, x=lambda g, index, dim: gather_along(g, index, dim)
)


@primitive("one_hot")
def one_hot_rows(xp, x, *, classes, dtype):
    """For each class index a row of zeros with a one in its place."""
    hot = xp.equal(xp.reshape(x, (*x.shape, 1)), xp.arange(classes))
    return xp.asarray(hot, dtype)


def places_in_memory(base: Any, sizes: Any, steps: Any, first: int) -> tuple[Any, ...]:
    """An index array a dimension of the elements of `base` at first + sum(i * step).

    `first` and `steps` are numbers of elements in memory, from the first one of `base` on. Raises
    RuntimeError where nothing of `base` lies.
    """
    item = base.dtype.itemsize
    low = sum(step * (n - 1) for n, step in zip(base.shape, base.strides, strict=True) if step < 0)
    rest = np.full(sizes, first - low // item)  # counted from its lowest one
    for n, step, number in zip(sizes, steps, range(len(sizes), 0, -1), strict=True):
        rest += (np.arange(n) * step).reshape((n, *(1,) * (number - 1)))
    # They are so many strides of the longest, of the next, and so on.
    found: list[Any] = [np.zeros_like(rest)] * base.ndim
    for dim in sorted(range(base.ndim), key=lambda d: -abs(base.strides[d])):
        if base.shape[dim] > 1 and base.strides[dim]:
            found[dim], rest = np.divmod(rest, abs(base.strides[dim]) // item)
            if np.any((found[dim] < 0) | (found[dim] >= base.shape[dim])):
                break
            if base.strides[dim] < 0:
                found[dim] = base.shape[dim] - 1 - found[dim]
    else:
        if rest.size == 0 or (base.size and not rest.any()):
            asarray = XP[type(base)].asarray
            return tuple(asarray(made(index)) for index in found)
    raise wrong("as_strided", "the elements reach outside of the memory of the Tensor")
