"""Convolution of any number of dimensions, and its transpose.

Three operations, each linear in both inputs and each made of the others' derivatives: the
convolution of an input with a weight, the gradient of its input and the gradient of its weight. So
derivatives of every order are there, and the transposed convolution is the second of them.

Each is products of matrices over columns, the windows of the input (Chellapilla et al., "High
performance convolutional neural networks for document processing", 2006). The columns are made for
a few samples at a time and again in the backward pass: a part that stays in the cache is made
faster than all columns, which are as large as the input times the size of the kernel, are read back
from memory, and holding them from forward to backward would cost that memory for every layer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from ...backend import XP, is_plain
from ...numerics.sums import written
from ...tensor import Tensor
from ..arguments import want_shape
from ..fronts import Int, NumericOnly, SameDtype, need, spatial, wrong
from ..matrix.linear_algebra import sum_rows
from ..reduce.reductions import sum_dims
from ..registry import primitive, publish
from ..shape.shapes import reshape_to
from . import windows
from .windows import Geometry, batched, both_sides, geometric, padded, unbatched

# Bytes of columns at a time: about half of a core's second level cache; a GPU wants few products.
PART = {"cpu": 1 << 19, "cuda": 1 << 28}
JOINED_PART = 1 << 21  # every part adds to the whole gradient of the weight, so they are fewer
# With stride 1 the rows of a kernel share columns, shifted by a line: less to copy, but one product
# for each row. That pays from so many elements in a row.
SHARED_ROW = 32
# Windows per sample below which the samples of a part make one product together.
FEW_FORWARD, FEW_WEIGHT = 8, 64


def _as_one(kernel: Any) -> Any:
    """The kernel as one instruction of a captured step: native code has a way of its own."""

    @functools.wraps(kernel)
    def call(xp, *arrays, out=None, **settings):
        return xp.as_one(kernel, arrays, settings, out)

    return call


def _columns(xp, x, geometry, few):
    """The windows of some samples at a time as matrices (1 or samples, groups, rows, windows).

    Returns the number of matrices that the rows of the kernel are in (1, or one for each of its
    first size), whether the samples of a part are joined in one matrix, and an iterator over the
    parts: which samples, and their matrices.
    """
    kernel, stride, padding, dilation, groups = geometry
    found = geometry.places(x.shape[2:])
    x = padded(xp, x, padding)
    n, channels = x.shape[:2]
    count = math.prod(found)
    joined = count < few and n > 1
    wide = channels // groups * math.prod(kernel[1:])
    shared = not joined and stride[0] == 1 and kernel[0] > 1 and wide >= SHARED_ROW
    lines, shift = (kernel[0], dilation[0] * math.prod(found[1:])) if shared else (1, 0)
    if shared:
        kernel, found = (1, *kernel[1:]), (x.shape[2], *found[1:])
    view = windows.view(xp, x, geometry._replace(kernel=kernel), found)
    rows = channels // groups * math.prod(kernel)
    each = groups * rows * math.prod(found)
    most = max(PART[xp.kind], JOINED_PART if joined else 0)
    step = max(1, min(n, most // max(each * x.dtype.itemsize, 1)))
    middle = len(kernel) + 2
    order = (*range(1, middle), 0, *range(middle, len(view.shape)))
    plain = not joined and max(*kernel, *stride) == 1  # every element in one window: no copy
    memory = None if plain else xp.empty((step * each,), x.dtype)

    def parts() -> Iterator[tuple[slice, list[Any]]]:
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            some = xp.getitem(view, part)
            samples = part.stop - start
            if joined:
                some = xp.transpose(some, order)
            if memory is not None:
                copy = xp.reshape(xp.getitem(memory, slice(0, samples * each)), some.shape)
                xp.copyto(copy, some)
                some = copy
            if joined:
                yield part, [xp.reshape(some, (1, groups, rows, samples * count))]
                continue
            matrix = xp.reshape(some, (samples, groups, rows, math.prod(found)))
            lots = (slice(i * shift, i * shift + count) for i in range(lines))
            yield part, [xp.getitem(matrix, (..., lot)) for lot in lots] if shared else [matrix]

    return lines, joined, parts()


def _convolution(xp, input, weight, bias=None, *, geometry=(), out=None):
    kernel, groups = geometry.kernel, geometry.groups
    found = geometry.places(input.shape[2:])
    n, channels = input.shape[0], weight.shape[0]
    # CuPy's product of one matrix with many takes seven kernels.
    few = FEW_FORWARD if xp.kind == "cpu" else math.inf
    lines, joined, parts = _columns(xp, input, geometry, few)
    each, count = channels // groups, math.prod(found)
    rows = weight.shape[1] * math.prod(kernel) // lines
    matrices = xp.reshape(weight, (channels, weight.shape[1], lines, math.prod(kernel) // lines))
    matrices = xp.reshape(xp.transpose(matrices, (2, 0, 1, 3)), (lines, groups, each, rows))
    if bias is not None:
        bias = xp.reshape(bias, (groups, each, 1))
    plain = out is not None and is_plain(out)
    result = out if plain else xp.empty((n, channels, *found), input.dtype)
    flat = xp.reshape(result, (n, groups, each, count))
    spare = None
    for part, columns in parts:
        target = xp.getitem(flat, part)
        if joined:
            product = xp.reshape(xp.matmul(matrices, columns[0]), (groups, each, -1, count))
            xp.copyto(target, xp.transpose(product, (2, 0, 1, 3)))
        else:
            for line, column in enumerate(columns):
                matrix = xp.getitem(matrices, line)
                if not line:
                    xp.matmul(matrix, column, out=target)
                    continue
                if spare is None:  # for the first part, which is the largest
                    spare = xp.empty(target.shape, input.dtype)
                product = xp.getitem(spare, slice(0, target.shape[0]))
                xp.add(target, xp.matmul(matrix, column, out=product), out=target)
        if bias is not None:
            xp.add(target, bias, out=target)
    return written(xp, result, out)


def _convolution_weight(xp, gradient, input, *, geometry, out=None):
    kernel, groups = geometry.kernel, geometry.groups
    n, channels = gradient.shape[:2]
    each, theirs = channels // groups, input.shape[1] // groups
    lines, joined, parts = _columns(xp, input, geometry, FEW_WEIGHT)
    flat = xp.reshape(gradient, (n, groups, each, math.prod(gradient.shape[2:])))
    rows = theirs * math.prod(kernel) // lines
    total = xp.zeros((lines, groups, rows, each), gradient.dtype)
    spare = None
    for part, columns in parts:
        some = xp.getitem(flat, part)
        if joined:
            some = xp.reshape(xp.transpose(some, (1, 2, 0, 3)), (1, groups, each, -1))
        turned = xp.transpose(some, (0, 1, 3, 2))
        for line, column in enumerate(columns):
            if spare is None:
                spare = xp.empty((column.shape[0], groups, rows, each), gradient.dtype)
            product = xp.getitem(spare, slice(0, column.shape[0]))
            # Columns on the left: OpenBLAS is up to a half slower the other way round.
            xp.matmul(column, turned, out=product)
            so_far = xp.getitem(total, line)
            more = xp.getitem(product, 0) if joined else xp.sum(product, axis=0)
            xp.add(so_far, more, out=so_far)
    total = xp.reshape(total, (lines, groups, theirs, math.prod(kernel) // lines, each))
    total = xp.transpose(total, (1, 4, 2, 0, 3))
    total = xp.reshape(total, (channels, theirs, *kernel))
    return xp.copy(total) if out is None else written(xp, total, out)


def _channel_sums(g):
    n, channels, *found = g.shape
    each = reshape_to(g, (n, channels * math.prod(found)))
    return sum_dims(reshape_to(sum_rows(each), (channels, math.prod(found))), (1,), False)


convolution = primitive(
    "convolution",
    _as_one(_convolution),
    input=lambda g, weight, input_shape, geometry: convolution_input(
        g, weight, input_shape[2:], geometry
    ),
    weight=lambda g, input, geometry, out: weight_into(g, input, geometry, out),
    bias=_channel_sums,
)


def _convolution_input(xp, gradient, weight, *, sizes, geometry, out=None):
    kernel, stride, padding, dilation, groups = geometry
    channels, theirs = weight.shape[:2]
    each, count = channels // groups, math.prod(gradient.shape[2:])
    by_group = xp.reshape(weight, (groups, each, theirs, *kernel))
    around = tuple(
        (d * (k - 1) - low, d * (k - 1) - high)
        for d, k, (low, high) in zip(dilation, kernel, padding, strict=True)
    )
    # With stride 1 this is a convolution of the gradient with the weight turned round. It copies
    # windows of the gradient, where the general way adds up windows of the result: four times the
    # work for each channel.
    if max(stride) == 1 and min(map(min, around)) >= 0 and each <= 4 * theirs:
        axes = tuple(range(3, len(kernel) + 3))
        turned = xp.transpose(xp.flip(by_group, axis=axes), (0, 2, 1, *axes))
        turned = xp.reshape(turned, (groups * theirs, each, *kernel))
        turning = geometry._replace(padding=around)
        return _convolution(xp, gradient, turned, geometry=turning, out=out)
    n, rows = gradient.shape[0], theirs * math.prod(kernel)
    matrices = xp.transpose(xp.reshape(weight, (groups, each, rows)), (0, 2, 1))
    flat = xp.reshape(gradient, (n, groups, each, count))
    total = windows.zeros(xp, (n, groups * theirs), sizes, geometry, gradient.dtype)
    step = max(1, PART[xp.kind] // max(1, groups * rows * count * gradient.dtype.itemsize))
    for start in range(0, n, step):
        part = slice(start, start + step)
        product = xp.matmul(matrices, xp.getitem(flat, part))
        shape = (product.shape[0], groups * theirs, *kernel, *gradient.shape[2:])
        windows.add(xp, xp.reshape(product, shape), xp.getitem(total, part), geometry)
    return written(xp, padded(xp, total, geometry.border(-1)), out)


convolution_input = primitive(
    "convolution_input",
    _as_one(_convolution_input),
    gradient=lambda g, weight, geometry: convolution(g, weight, None, geometry),
    weight=lambda g, gradient, geometry, out: weight_into(gradient, g, geometry, out),
    node_name="convolution",
)
convolution_weight = primitive(
    "convolution_weight",
    _as_one(_convolution_weight),
    gradient=lambda g, input, geometry: convolution(input, g, None, geometry),
    input=lambda g, gradient, input_shape, geometry: convolution_input(
        gradient, g, input_shape[2:], geometry
    ),
)


def weight_into(gradient: Any, input: Any, geometry: Geometry, out: Any) -> Any:
    """`convolution_weight`, written to `out` where a rule was given memory."""
    if out is None:
        return convolution_weight(gradient, input, geometry)
    settings = {"geometry": geometry}
    return XP[type(gradient)].as_one(_convolution_weight, (gradient, input), settings, out)


# What users call ----------------------------------------------------------------------------------


def _check(
    name: str, dims: int, input: Any, weight: Any, bias: Any, groups: int, transposed: bool
) -> None:
    """RuntimeError unless dimensions, dtypes, channels and groups fit."""
    need(weight.ndim == dims + 2, name, f"expected a weight of {dims + 2} dimensions", weight)
    need(0 not in weight.shape[2:], name, "a kernel needs elements", weight)
    first, second = weight.shape[:2]
    fits = groups > 0 and not first % groups and first >= groups
    need(fits, name, "groups {} must divide the first size of the weight, {}", groups, first)
    channels, outputs = (first, second * groups) if transposed else (second * groups, first)
    fits = input.ndim not in (dims + 1, dims + 2) or input.shape[-dims - 1] == channels
    need(fits, name, "the weight takes {} channels, got an input of {}", channels, input)
    if bias is not None:
        want_shape(name, "a bias", bias, (outputs,))


def _convolve(
    name: str, dims: int, input: NumericOnly, weight: SameDtype, bias: SameDtype | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Int = 1,
) -> Tensor:  # fmt: skip
    """The convolution (cross-correlation) of signals or images with kernels.

    Args:
        input: (N, channels, *sizes) or (channels, *sizes): one size in 1d, height and width in 2d,
            and a depth before them in 3d.
        weight: (outputs, channels / groups, *kernel sizes), of the input's dtype.
        bias: (outputs,), or None.
        stride: the step from window to window, an int or one for each size.
        padding: zeros around the input, likewise; "same" keeps the size, "valid" is 0.
        dilation: the step from element to element of the kernel, likewise.
        groups: parts that the channels are cut into, each with its own outputs.

    Returns (N, outputs, *sizes'), or without N, where
    size' = (size + 2 padding - dilation (kernel size - 1) - 1) // stride + 1.

    Raises:
        TypeError: not Tensors, or numbers of a wrong kind.
        RuntimeError: shapes, dtypes or groups that do not fit, a kernel larger than the padded
            input, numbers out of range.
    """
    _check(name, dims, input, weight, bias, groups, transposed=False)
    x = batched(name, input, dims)
    kernel = weight.shape[2:]
    step, wide = geometric(name, len(kernel), stride=stride, dilation=dilation)
    pairs = _pairs(name, padding, kernel, step, wide)
    geometry = Geometry(kernel, step, pairs, wide, groups)
    if min(geometry.places(x.shape[2:])) < 1 or 0 in x.shape[2:]:
        text = "a kernel of size {} with dilation {} is larger than an input of {} with padding {}"
        raise wrong(name, text, kernel, wide, x, padding)
    return unbatched(convolution(x, weight, bias, geometry), x, input)


def _pairs(name: str, padding: Any, kernel: Any, stride: Any, dilation: Any) -> Any:
    """The padding before and after every size."""
    if isinstance(padding, str):
        if padding == "valid":
            return both_sides((0,) * len(kernel))
        need(padding == "same", name, "padding must be 'valid', 'same' or ints", padding)
        need(max(stride) == 1, name, "padding='same' is not supported for strided convolutions")
        spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((span // 2, span - span // 2) for span in spans)
    return both_sides(*geometric(name, len(kernel), padding=padding))


conv1d, conv2d, conv3d = spatial(_convolve, "conv1d", "conv2d", "conv3d")


def _convolve_transposed(
    name: str, dims: int, input: NumericOnly, weight: SameDtype, bias: SameDtype | None = None,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: Int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """The transposed convolution of signals or images: the gradient of `conv2d` in its input.

    Args:
        input: (N, channels, *sizes) or (channels, *sizes): one size in 1d, height and width in 2d,
            and a depth before them in 3d.
        weight: (channels, outputs / groups, *kernel sizes), of the input's dtype.
        bias: (outputs,), or None.
        stride, padding, dilation, groups: those of the convolution that this is the transpose of.
        output_padding: added to the size of the output at its end: of the sizes that the
            convolution maps to this input's, the one that is meant.

    Returns (N, outputs, *sizes'), or without N, where size' =
    (size - 1) stride - 2 padding + dilation (kernel size - 1) + output_padding + 1.

    Raises the errors of `conv2d`, and RuntimeError for an output padding that is not smaller than
    the stride or the dilation.
    """
    _check(name, dims, input, weight, bias, groups, transposed=True)
    x = batched(name, input, dims)
    kernel = weight.shape[2:]
    step, wide, around, more = geometric(
        name, len(kernel),
        stride=stride, dilation=dilation, padding=padding, output_padding=output_padding,
    )  # fmt: skip
    if any(m >= max(s, d) for m, s, d in zip(more, step, wide, strict=True)):
        text = "output padding {} must be smaller than stride {} or dilation {}"
        raise wrong(name, text, more, step, wide)
    sizes = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, s, p, d, k, m in zip(x.shape[2:], step, around, wide, kernel, more, strict=True)
    )
    fits = min(sizes) > 0 and 0 not in x.shape[2:]
    need(fits, name, "nothing is left of the output: its size would be {}", sizes)
    # The convolution that this is the transpose of does not look at what output_padding adds.
    pairs = tuple((p, p - m) for p, m in zip(around, more, strict=True))
    result = convolution_input(x, weight, sizes, Geometry(kernel, step, pairs, wide, groups))
    if bias is not None:
        result = result + reshape_to(bias, (bias.shape[0], *(1,) * len(kernel)))
    return unbatched(result, x, input)


conv_transpose1d, conv_transpose2d, conv_transpose3d = spatial(
    _convolve_transposed, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"
)


publish(globals())
