"""Operations that move elements without computing: reshape, permute, expand.

Those marked as views share memory with their input and cost nothing on replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as whole
from typing import Any

import numpy as np

from ...backend import address, float16, float32
from ...errors import need, wrong
from ...numerics.sums import sum_columns, sum_rows
from ..registry import VIEW_IF_SHARED, primitive

__all__ = [
    "broadcast_to", "expand", "expand_as", "flatten", "permute", "reshape", "squeeze", "t",
    "transpose", "unsqueeze", "view",
]  # fmt: skip


def normal_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front; IndexError out of range, in PyTorch's words."""
    span = ndim or 1
    if type(dim) is not int:
        dim = whole(dim)
    if not -span <= dim < span:
        words = f"Dimension out of range (expected to be in range of [{-span}, {span - 1}]"
        raise IndexError(f"{words}, but got {dim})")
    return dim % span


def dim_of(name: str, x: Any, dim: int, error: type[Exception] = IndexError) -> int:
    """`dim` counted from the front; a 0-d Tensor, which has none, is an error."""
    if not x.ndim:
        text = "expects at least a 1-dimensional tensor, got a 0-dim tensor"
        raise wrong(name, text, error=error)
    return normal_dim(dim, x.ndim)


def normal_dims(dim: Any, ndim: int) -> tuple[int, ...] | None:
    """One, several or all (None, or an empty tuple) dimensions as a tuple counted from the front.

    All of them are None. Raises RuntimeError for a dimension that appears twice.
    """
    if dim is None:
        return None
    if type(dim) is int and -ndim <= dim < ndim:  # the common case
        return (dim % ndim,)
    if not isinstance(dim, tuple | list):
        dims: tuple[int, ...] = (normal_dim(dim, ndim),)
    else:
        dims = tuple(normal_dim(d, ndim) for d in dim)
        need(len(set(dims)) == len(dims), "several dims", "a dimension appears multiple times", dim)
    return dims if dims and ndim else None


def sizes_of(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape in a call that takes `f(2, 3)` as well as `f((2, 3))`."""
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    return tuple(whole(size) for size in sizes)


# Other shapes of the same elements --------------------------------------------------------------


reshape_to = primitive(
    "reshape",
    lambda xp, x, *, shape: xp.reshape(x, shape),
    x=lambda g, x_shape: reshape_to(g, x_shape),
    view=VIEW_IF_SHARED,
    node_name="view",
)


def reshape(x: Any, *sizes: Any, shape: Any = None) -> Any:
    """The same elements in another shape: a view where the memory allows it, else a copy.

    Args:
        x: a Tensor.
        shape: sizes, one by one or as a tuple; one may be -1 and follows from the others.

    Raises RuntimeError where the sizes do not fit.

    Example:
        >>> mt.arange(6).reshape(2, -1)
        tensor([[0, 1, 2],
                [3, 4, 5]])
    """
    sizes = sizes_of(sizes if shape is None else (*sizes, shape))
    known = math.prod(s for s in sizes if s != -1)
    have = math.prod(x.shape)
    wrong_sizes = sizes.count(-1) > 1 or any(s < -1 for s in sizes)
    if wrong_sizes or (have != known if -1 not in sizes else (known == 0 or have % known)):
        raise wrong("reshape", "shape {} is invalid for input of size {}", list(sizes), have)
    return reshape_to(x, sizes)


def view(x: Any, *shape: Any) -> Any:
    """Like `reshape`, but never a copy: RuntimeError for memory that does not allow it."""
    if len(shape) == 1 and (isinstance(shape[0], np.dtype) or hasattr(shape[0], "itemsize")):
        text = "to read its memory as a different dtype write mt.from_numpy(x.numpy().view(dtype))"
        raise wrong("view", f"expected sizes; {text}", shape[0], error=TypeError)
    out = reshape(x, *shape)
    if out.numel() and address(out._array) != address(x._array):
        text = "memory of {} is not contiguous and cannot be seen as {}. Use .reshape(...) instead."
        raise wrong("view", text, x, out)
    return out


def squeeze(x: Any, dim: Any = None) -> Any:
    """Without the dimensions of size 1, or without those of `dim` that have size 1."""
    dims = range(x.ndim) if dim is None else normal_dims(dim, x.ndim) or ()
    return reshape_to(x, tuple(s for i, s in enumerate(x.shape) if i not in dims or s != 1))


def unsqueeze(x: Any, dim: int) -> Any:
    """With a dimension of size 1 inserted before `dim`."""
    shape = x.shape
    at = normal_dim(dim, len(shape) + 1)
    return reshape_to(x, (*shape[:at], 1, *shape[at:]))


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dimensions `start_dim` to `end_dim`, both included, joined into one."""
    first, last = normal_dim(start_dim, x.ndim), normal_dim(end_dim, x.ndim)
    need(first <= last, "flatten", "has invalid args: start_dim cannot come after end_dim")
    joined = math.prod(x.shape[first : last + 1])
    return reshape_to(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def restore_dims(g, shape, dims, keepdim):
    """The gradient of a reduction of `shape` over `dims`, with those dimensions as size 1."""
    if keepdim or not shape:
        return g
    kept = range(len(shape)) if dims is None else dims
    return reshape_to(g, tuple(1 if i in kept else s for i, s in enumerate(shape)))


def line(x: Any) -> Any:
    """A 0-d Tensor with one dimension; any other as it is."""
    return x if x.ndim else reshape_to(x, (1,))


def shaped_like(result: Any, other: Any) -> Any:
    """`result` in the shape of `other`."""
    return result if result.shape == other.shape else reshape_to(result, other.shape)


# Another order of the dimensions ----------------------------------------------------------------


permute_dims = primitive(
    "permute",
    lambda xp, x, *, dims: xp.transpose(x, dims),
    x=lambda g, dims: permute_dims(g, _inverse(dims)),
    view=True,
)


def _inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(dims)), key=dims.__getitem__))


def permute(x: Any, *sizes: Any, dims: Any = None) -> Any:
    """The dimensions in the order `dims`, each once; a view."""
    given = sizes_of(sizes if dims is None else (*sizes, dims))
    order = tuple(normal_dim(d, x.ndim) for d in given)
    ordered = sorted(order) == list(range(x.ndim))
    need(ordered, "permute", "expected an order of the dimensions of {}, got {}", x, given)
    return permute_dims(x, order)


def transpose(x: Any, dim0: Any = None, dim1: Any = None) -> Any:
    """Two dimensions exchanged; a view."""
    text = "NumPy's x.transpose() is x.t() of a matrix, x.permute(*reversed(range(x.ndim))) of any"
    if dim1 is None:
        raise wrong("transpose", f"expected two dimensions; {text}", error=TypeError)
    a, b = normal_dim(dim0, x.ndim), normal_dim(dim1, x.ndim)
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute_dims(x, tuple(order))


def t(x: Any) -> Any:
    """The transpose of a matrix; a vector or number as it is. A view."""
    if x.ndim > 2:
        raise wrong("t", "expects a tensor with <= 2 dimensions; use transpose or permute", x)
    return permute_dims(x, tuple(range(x.ndim))[::-1])


def adjoint(x: Any) -> Any:
    """The transpose of a matrix, here without complex numbers; a view."""
    need(x.ndim in (0, 2), "H", "only supported on matrices, got {}; use .mT", x)
    return t(x)


def matrix_transpose(x: Any) -> Any:
    """The transposes of a batch of matrices, shape (..., n, m); a view."""
    need(x.ndim != 1, "mT", "only supported on matrices or batches of them", x)
    return transpose(x, -2, -1)


# Broadcasting -------------------------------------------------------------------------------------


expand_to = primitive(
    "expand",
    lambda xp, x, *, shape: xp.broadcast_to(x, shape),
    x=lambda g, x_shape: sum_to(g, x_shape),
    view=True,
)


def expand(x: Any, *sizes: Any) -> Any:
    """`x` broadcast to a shape without copying; -1 keeps a size.

    Raises RuntimeError for a dimension that is neither 1 nor the size asked for.
    """
    wanted = list(sizes_of(sizes))
    lead = len(wanted) - x.ndim
    text = "the number of sizes ({}) must not be less than the number of dimensions ({})"
    need(lead >= 0, "expand", text, len(wanted), x.ndim)
    for i, size in enumerate(wanted):
        if size == -1 and i >= lead:
            wanted[i] = x.shape[i - lead]
        elif size < 0:
            raise wrong("expand", "size {} is not allowed in dimension {}", size, i)
    return expand_to(x, tuple(wanted))


def broadcast_shape(name: str, *shapes: Any) -> tuple[int, ...]:
    """The common shape that `shapes` broadcast to; RuntimeError where there is none."""
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise wrong(name, "no common shape", *map(tuple, shapes)) from None


def broadcast_to(x: Any, size: Any) -> Any:
    """`x` broadcast to the shape `size` without copying."""
    return expand(x, size)


def expand_as(x: Any, other: Any) -> Any:
    """`x` broadcast to the shape of `other` without copying."""
    return expand(x, other.shape)


def _sum_to(xp, x, *, shape):
    if x.dtype == float16:  # added in single, as in `reductions`
        return xp.asarray(_sum_to(xp, xp.asarray(x, float32), shape=shape), float16)
    lead = len(x.shape) - len(shape)
    kept = [i + lead for i, size in enumerate(shape) if size != 1]
    summed = [i for i, size in enumerate(x.shape) if size != 1 and i not in kept]
    if summed and kept and x.dtype.kind == "f":
        first, last = kept[0], kept[-1] + 1
        if all(i < first or i >= last for i in summed):
            return xp.reshape(_sum_around(xp, x, first, last), shape)
    if summed:
        x = xp.sum(x, axis=tuple(summed), keepdims=True)
    return xp.reshape(xp.asarray(x), shape)


def _sum_around(xp, x, first, last):
    """The sum over the dimensions before `first` and from `last` on, flat."""
    before, kept = math.prod(x.shape[:first]), math.prod(x.shape[first:last])
    after = math.prod(x.shape[last:])
    if after != 1:
        x = sum_columns(xp, xp.reshape(x, (before * kept, after)))
    if before != 1:
        x = sum_rows(xp, xp.reshape(x, (before, kept)))
    return x


sum_to_shape = primitive("sum_to_size", _sum_to, x=lambda g, x_shape: expand_to(g, x_shape))


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """The reverse of broadcasting: `x` itself where it has `shape` already."""
    return x if x.shape == shape else sum_to_shape(x, shape)
