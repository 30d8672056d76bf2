"""Sliding windows: what convolution, pooling, unfold and fold share.

Arrays are (samples, channels, *sizes) with one size or more. The windows of such an array are
(samples, channels, *kernel, *places): a view that repeats elements without copying them.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from ...tensor import Tensor
from ..arguments import integer, numbers
from ..fronts import Ints, T, need, one_of, public, wrong
from ..index.indexing import part, select
from ..pointwise.elementwise import clone
from ..reduce.reductions import in_single
from ..registry import primitive
from ..shape.joining import cat
from ..shape.shapes import expand_to, normal_dim, reshape_to

BATCH = (slice(None), slice(None))  # all samples, all channels


class Geometry(NamedTuple):
    """Which windows of an array are meant: one number for each of its sizes.

    Attributes:
        padding: a (before, after) pair for each size.
        groups: parts that the channels of a convolution are cut into.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def places(self, sizes: Any) -> tuple[int, ...]:
        """How many windows fit along every size; 0 or less where the kernel is larger than it."""
        lines = zip(sizes, *self[:4], strict=True)
        return tuple((n + sum(p) - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in lines)

    def border(self, sign: int = 1) -> tuple[tuple[int, int], ...]:
        """The padding; with sign -1 what takes it away."""
        return tuple((sign * low, sign * high) for low, high in self.padding)


def geometric(name: str, count: int, **values: Any) -> list[tuple[int, ...]]:
    """Each of `values` as `count` numbers; RuntimeError for a padding below 0, others below 1."""
    found = []
    for what, value in values.items():
        one, least = numbers(name, what, value, count), int("padding" not in what)
        need(min(one) >= least, name, "{} must be at least {}, got {}", what, least, one)
        found.append(one)
    return found


def both_sides(padding: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The same number before and after, for every size."""
    return tuple((p, p) for p in padding)


def batched(name: str, input: Any, dims: int) -> Any:
    """`input` with a dimension of samples; RuntimeError for other numbers of dimensions."""
    if input.ndim not in (dims + 1, dims + 2):
        text = f"expected an input of {dims + 1} (unbatched) or {dims + 2} (batched) dimensions"
        raise wrong(name, text, input)
    return input if input.ndim == dims + 2 else reshape_to(input, (1, *input.shape))


def unbatched(result: Any, batch: Any, input: Any) -> Any:
    """`result` without the dimension of samples that `batched` gave the input."""
    return result if batch is input else reshape_to(result, result.shape[1:])


def view(xp, x, geometry, found):
    """The windows of a padded array: (samples, channels, *kernel, *found), a view."""
    first, second, *steps = x.strides
    inner = (n * d for n, d in zip(steps, geometry.dilation, strict=True))
    outer = (n * s for n, s in zip(steps, geometry.stride, strict=True))
    shape = (*x.shape[:2], *geometry.kernel, *found)
    return xp.as_strided(x, shape, (first, second, *inner, *outer))


def add(xp, windows, target, geometry):
    """Add every window to its place in `target`: the reverse of `view`."""
    found = windows.shape[2 + len(geometry.kernel) :]
    for offset in itertools.product(*map(range, geometry.kernel)):
        lines = zip(offset, geometry.dilation, found, geometry.stride, strict=True)
        place = (slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in lines)
        part = xp.getitem(target, (*BATCH, *place))
        xp.add(part, xp.getitem(windows, (*BATCH, *offset)), out=part)


# Columns ------------------------------------------------------------------------------------------


def zeros(xp, lead, sizes, geometry, dtype):
    """Room to add windows in: `sizes` with their padding."""
    room = (n + sum(p) for n, p in zip(sizes, geometry.padding, strict=True))
    return xp.zeros((*lead, *room), dtype)


@primitive(
    "unfold",
    input=lambda g, input_shape, geometry: fold_windows(g, input_shape[2:], geometry),
    node_name="im2col",
)
def unfold_windows(xp, input, *, geometry):
    found = geometry.places(input.shape[2:])
    windows = view(xp, padded(xp, input, geometry.padding), geometry, found)
    n, channels = input.shape[:2]
    shape = (n, channels * math.prod(geometry.kernel), math.prod(found))
    return xp.reshape(xp.copy(windows), shape)  # never a view of the input


@primitive("fold", input=lambda g, geometry: unfold_windows(g, geometry), node_name="col2im")
@in_single
def fold_windows(xp, input, *, sizes, geometry):
    """Windows added up to (samples, channels, *sizes); what falls into the padding is dropped."""
    n, channels = input.shape[0], input.shape[1] // math.prod(geometry.kernel)
    total = zeros(xp, (n, channels), sizes, geometry, input.dtype)
    shape = (n, channels, *geometry.kernel, *geometry.places(sizes))
    add(xp, xp.reshape(input, shape), total, geometry)
    return padded(xp, total, geometry.border(-1))


def _geometry(
    name: str, sizes: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Geometry:
    """The windows of images; RuntimeError where none fits."""
    kernel, step, around, wide = geometric(
        name, 2, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation
    )
    geometry = Geometry(kernel, step, both_sides(around), wide)
    if min(geometry.places(sizes)) < 1:
        text = "a kernel of size {} with dilation {} is larger than {} with padding {}"
        raise wrong(name, text, kernel, wide, tuple(sizes), around)
    return geometry


@public
def unfold(
    input: T, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """All windows of an image as columns.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, dilation, padding, stride: an int, or one for the height and one for the width.

    Returns (N, C * kernel height * kernel width, number of windows), or without N. Raises
    RuntimeError for other dimensions, sizes out of range, or a kernel larger than the padded input.
    """
    x = batched("unfold", input, 2)
    geometry = _geometry("unfold", x.shape[2:], kernel_size, dilation, padding, stride)
    return unbatched(unfold_windows(x, geometry), x, input)


@public
def fold(
    input: T, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Tensor:  # fmt: skip
    """Columns added up to an image: the reverse of `unfold`, which adds where windows overlap.

    Args:
        input: (N, C * kernel height * kernel width, number of windows), or without N.
        output_size: height and width of the image, or one int for both.
        kernel_size, dilation, padding, stride: as for `unfold`.

    Returns (N, C, height, width), or without N. Raises RuntimeError where the input does not have
    the shape that `unfold` gives for such an image.
    """
    x = batched("fold", input, 1)
    sizes = numbers("fold", "output_size", output_size, 2)
    geometry = _geometry("fold", sizes, kernel_size, dilation, padding, stride)
    columns, count = input.shape[-2:]
    elements, expected = math.prod(geometry.kernel), math.prod(geometry.places(sizes))
    fits = not columns % elements and count == expected
    text = f"expected a multiple of {elements} rows and {expected} windows for a size of {sizes}"
    need(fits, "fold", text, input)
    return unbatched(fold_windows(x, sizes, geometry), x, input)


# Windows along one dimension ----------------------------------------------------------------------


def _slide(xp, x, *, dim, size, step):
    count = (x.shape[dim] - size) // step + 1
    shape, strides = list(x.shape), list(x.strides)
    shape[dim] = count
    strides[dim] *= step
    return xp.as_strided(x, (*shape, size), (*strides, x.strides[dim]))


slide = primitive(
    "sliding_windows",
    _slide,
    x=lambda g, x_shape, dim, step: slide_back(g, dim, x_shape[dim], step),
    view=True,
    node_name="Unfold",
)


@primitive(
    "sliding_windows_sum",
    windows=lambda g, windows_shape, dim, step: slide(g, dim, windows_shape[-1], step),
    node_name="UnfoldBackward",
)
@in_single
def slide_back(xp, windows, *, dim, length, step):
    """Windows added up to `length` places along `dim`: the reverse of `_slide`."""
    *shape, size = windows.shape
    count, shape[dim] = shape[dim], length
    total = xp.zeros(tuple(shape), windows.dtype)
    for offset in range(size):
        place = slice(offset, offset + (count - 1) * step + 1, step)
        part = xp.getitem(total, (slice(None),) * dim + (place,))
        xp.add(part, xp.getitem(windows, (..., offset)), out=part)
    return total


def sliding(x: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of `size` elements along `dimension`, `step` apart, as a last dimension; a view.

    Raises IndexError for a dimension out of range, RuntimeError for a size below 0 or above that of
    the dimension and a step below 1.
    """
    dim = normal_dim(dimension, x.ndim)
    if not x.ndim:  # one window of a line, without its number
        return select(sliding(reshape_to(x, (1,)), 0, size, step), (0,))
    size, step = integer("unfold", "size", size), integer("unfold", "step", step)
    if not 0 <= size <= x.shape[dim] or step < 1:
        text = "expected a size from 0 to {} and a step of at least 1 along dim {}, got {} and {}"
        raise wrong("unfold", text, x.shape[dim], dim, size, step)
    return slide(x, dim, size, step)


# Borders: a constant, mirrored, repeated or wrapped around ----------------------------------------


def padded(xp, x, pads, value=0):
    """`x` with (before, after) elements added to its last dimensions, or taken away where negative.

    `x` itself where there is nothing to do.
    """
    if not any(map(any, pads)):
        return x
    lead = len(x.shape) - len(pads)
    ends = tuple(zip(x.shape[lead:], pads, strict=True))
    if all(low <= 0 and high <= 0 for low, high in pads):
        part = xp.getitem(x, (*(slice(None),) * lead, *(slice(-a, n + b) for n, (a, b) in ends)))
        return xp.copy(part)
    shape = (*x.shape[:lead], *(n + sum(pad) for n, pad in ends))
    out = xp.full(shape, value, x.dtype) if value else xp.zeros(shape, x.dtype)
    theirs = tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in ends)
    ours = tuple(slice(max(a, 0), a + n + min(b, 0)) for n, (a, b) in ends)
    front = (slice(None),) * lead
    xp.setitem(out, (*front, *ours), xp.getitem(x, (*front, *theirs)))
    return out


@primitive(
    "constant_pad",
    input=lambda g, pads: constant_pad(g, tuple((-low, -high) for low, high in pads)),
    node_name="constant_pad_nd",
)
def constant_pad(xp, input, *, pads, value=0):
    result = padded(xp, input, pads, value)
    return xp.copy(result) if result is input else result


def _extended(x: Any, dim: int, low: int, high: int, mode: str) -> Any:
    """One dimension with `low` elements before and `high` after it, made of its own."""
    n = x.shape[dim]
    if mode == "circular":
        before, after = part(x, dim, n - low, n), part(x, dim, 0, high)
    elif mode == "reflect":
        before = part(x, dim, low, 0, -1)
        after = part(x, dim, n - 2, n - 2 - high if n - 2 - high >= 0 else None, -1)
    else:
        before, after = (
            expand_to(part(x, dim, at, at + 1), (*x.shape[:dim], count, *x.shape[dim + 1 :]))
            for at, count in ((0, low), (n - 1, high))
        )
    parts = [some for some, count in ((before, low), (x, 1), (after, high)) if count]
    return cat(parts, dim) if len(parts) > 1 else x


# The largest border that a dimension of n elements can give, of which `left` are not cut off.
_MOST = {
    "reflect": lambda n, left: n - 1,
    "replicate": lambda n, left: math.inf,
    "circular": lambda n, left: left,
}


_Mode = Annotated[str, one_of("constant", *_MOST)]


def _check_pads(input: Any, pad: Any, mode: str, value: Any) -> None:
    text = f"expected two numbers for each dimension to pad, at most {2 * input.ndim}"
    need(not len(pad) % 2 and len(pad) <= 2 * input.ndim, "pad", text, pad)
    if value is None:
        return
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    need(number, "pad", "argument 'value' must be a number", value, error=TypeError)
    need(mode == "constant", "pad", "mode {} doesn't take a value", mode)
    fits = input.dtype.kind == "f" or value == int(value)
    need(fits, "pad", "{} cannot be written into {}", value, input.dtype)


@public
def pad(input: T, pad: Ints, mode: _Mode = "constant", value: float | None = None) -> Tensor:
    """`input` with a border.

    Args:
        input: any shape; for other modes than "constant" with one or two dimensions before the
            padded ones.
        pad: two numbers for each padded dimension, before and after, the last dimension first:
            (left, right, top, bottom, ...). Negative ones cut off, from what is wrapped around
            before and from what is mirrored or repeated after that is made.
        mode: "constant"; "reflect" mirrors without repeating the edge; "replicate" repeats the
            edge; "circular" wraps around.
        value: of a constant border, 0 if not given.

    Raises:
        TypeError: `pad` or `value` of a wrong kind.
        RuntimeError: a number of pads that does not fit, a border wider than the mode can make, an
            unknown mode.

    Example:
        >>> mt.nn.functional.pad(mt.tensor([[1.0, 2.0, 3.0]]), (2, 1), mode="reflect")
        tensor([[3., 2., 1., 2., 3., 2.]])
    """
    _check_pads(input, pad, mode, value)
    pairs = tuple((pad[i], pad[i + 1]) for i in range(0, len(pad), 2))[::-1]
    lead = input.ndim - len(pairs)
    ends = tuple(zip(range(lead, input.ndim), input.shape[lead:], pairs, strict=True))
    if mode == "constant":
        for dim, n, (low, high) in ends:
            left = n + min(low, 0) + min(high, 0) >= 0 and n + low + high >= 0
            need(left, "pad", "{} cuts more than the {} of dimension {}", (low, high), n, dim)
        return constant_pad(input, pairs, 0 if value is None else value)
    fits = len(pairs) in (1, 2, 3) and lead in (1, 2)
    text = "mode {} pads the last 1 to 3 dimensions behind 1 or 2 others, got {} for {}"
    need(fits, "pad", text, mode, pad, input)
    result = input
    for dim, n, pair in ends:
        added, cut = (tuple(end(count, 0) for count in pair) for end in (max, min))
        most = _MOST[mode](n, n + sum(cut))
        text = f"mode {mode!r} cannot pad dimension {dim} of size {n} by {{}}: at most {most}"
        left = n > 0 and n + sum(pair) > 0
        need(max(pair) <= most and left, "pad", f"{text}, and something left", pair)
        cuts = (cut, *((0, 0),) * (input.ndim - 1 - dim)) if any(cut) else ()
        if cuts and mode == "circular":
            result = constant_pad(result, cuts)
        result = _extended(result, dim, added[0], added[1], mode)
        if cuts and mode != "circular":
            result = constant_pad(result, cuts)
    return clone(result) if result is input else result
