"""Products of matrices, and the linear layer as one operation.

Matrix products are `dot` wherever both sides are matrices: half the call cost of `matmul`, and the
same BLAS routine. `_mm` is the one place that knows how to write a product into given memory.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from ...backend import XP
from ...numerics.sums import sum_rows as _sum_rows
from ...tensor import TENSORS, Tensor, kind_of
from ..arguments import need, want_shape, wrong
from ..registry import primitive
from ..shape.shapes import expand_to, reshape_to, transpose

__all__ = ["matmul", "mm"]


def _mm(xp, x, y, out=None):
    if out is None:
        return xp.dot(x, y)
    if out.flags.c_contiguous:
        return xp.dot(x, y, out=out)
    # BLAS writes row-major memory. `dot(y.T, x.T, out=out.T)` would need no copy, but on some
    # processors it rounds otherwise, and the bits must not depend on where a product is written.
    xp.copyto(out, xp.dot(x, y))
    return out


mm_matrices = primitive(
    "mm", _mm, x=lambda g, y, out: mm_into(g, y.T, out), y=lambda g, x, out: mm_into(x.T, g, out)
)


def mm_into(x: Any, y: Any, out: Any) -> Any:
    """`x @ y` for matrices, written to `out` where a rule was given memory."""
    return mm_matrices(x, y) if out is None else _mm(XP[type(x)], x, y, out)


def mm(input: Any, mat2: Any) -> Any:
    """The product of an (n, m) and an (m, p) matrix.

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    try:
        dims = input.ndim, mat2.ndim
    except AttributeError:
        _refuse_kinds("mm", input, mat2)
    if dims != (2, 2):
        raise wrong("mm", "expected two matrices", input, mat2)
    check_product("mm", input, mat2)
    return mm_matrices(input, mat2)


def _refuse_kinds(name: str, *arguments: Any) -> NoReturn:
    others = [a for a in arguments if type(a) not in TENSORS and hasattr(a, "numpy")]
    kinds = ", ".join(type(a).__name__ for a in arguments)
    found = kind_of(others[0]) if others else f"{kinds}; mt.from_numpy(array) makes one of an array"
    raise wrong(name, f"expected Tensors, got {found}", error=TypeError) from None


def check_product(name: str, x: Any, y: Any) -> None:
    if (type(x) in TENSORS) != (type(y) in TENSORS):
        _refuse_kinds(name, x, y)
    check_dtypes(name, x, y)
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else -1]:
        raise wrong(name, "mat1 and mat2 shapes cannot be multiplied", x, y)


def check_dtypes(name: str, x: Any, y: Any) -> None:
    if x.dtype != y.dtype or x.dtype.kind == "b":
        text = "expected both inputs to have the same dtype, and not bool"
        raise wrong(name, text, x.dtype, y.dtype)


def _swap(x: Any) -> Any:
    """The last two dimensions exchanged."""
    return transpose(x, -2, -1)


batched = primitive(
    "matmul",
    lambda xp, x, y: xp.matmul(x, y),
    x=lambda g, y: batched(g, _swap(y)),
    y=lambda g, x: batched(_swap(x), g),
)


def matmul(input: Any, other: Any) -> Any:
    """The matrix product, with PyTorch's and NumPy's rules for vectors and batches.

    A vector on the left is a row, on the right a column; leading dimensions broadcast:
    (..., n, m) and (..., m, p) give (..., n, p).
    Raises RuntimeError for 0-d inputs, sizes that do not fit, or different dtypes.
    """
    try:
        left, right = input.ndim, other.ndim
    except AttributeError:
        _refuse_kinds("matmul", input, other)
    if left == 2 and right == 2:
        return mm(input, other)
    if not left or not right:
        raise wrong("matmul", "both arguments need to be at least 1D", input, other)
    check_product("matmul", input, other)
    if left == 1 and right == 1:
        return reshape_to(mm(reshape_to(input, (1, -1)), reshape_to(other, (-1, 1))), ())
    if left == 1:
        out = matmul(reshape_to(input, (1, -1)), other)
        return reshape_to(out, (*out.shape[:-2], out.shape[-1]))
    if right == 1:
        out = matmul(input, reshape_to(other, (-1, 1)))
        return reshape_to(out, out.shape[:-1])
    if right == 2:  # one large product instead of many small ones
        return reshape_to(mm(_matrix(input), other), (*input.shape[:-1], other.shape[-1]))
    return batched(input, other)


def _matrix(x: Any) -> Any:
    """All dimensions but the last as rows."""
    return x if x.ndim == 2 else reshape_to(x, (math.prod(x.shape[:-1]), x.shape[-1]))


# The linear layer ---------------------------------------------------------------------------------


# The sum over the rows of a matrix, as a product with ones: faster than `sum`.
sum_rows = primitive("sum_rows", _sum_rows, x=lambda g, x_shape: expand_to(g, x_shape))


def _linear(xp, input, weight, bias=None):
    if len(input.shape) == 2:
        result = xp.dot(input, weight.T)
        return result if bias is None else xp.add(result, bias, result)
    # Other numbers of dimensions as one large product over all rows.
    shape = (*input.shape[:-1], weight.shape[0])
    rows = xp.reshape(input, (math.prod(shape[:-1]), weight.shape[1]))
    return xp.reshape(_linear(xp, rows, weight, bias), shape)


def _linear_input(g, weight):
    if g.ndim != 2:
        return matmul(g, weight)
    return mm_matrices(g, weight) if type(g) in TENSORS else XP[type(g)].dot(g, weight)


# A rule is given memory in the pass of an ordinary `backward` alone, which is one of arrays.


def _linear_weight(g, input, out):
    if g.ndim != 2:
        g, input = _matrix(g), _matrix(input)
    return mm_into(g.T, input, out)


def _linear_bias(g, out):
    if g.ndim != 2:
        g = _matrix(g)
    return sum_rows(g) if out is None else _sum_rows(XP[type(g)], g, out)


linear_layer = primitive(
    "linear",
    _linear,
    input=_linear_input,
    weight=_linear_weight,
    bias=_linear_bias,
    node_name="addmm",
)


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """`input @ weight.T + bias`.

    Args:
        input: (..., in_features).
        weight: (out_features, in_features), of the dtype of `input`.
        bias: (out_features,), or None.

    Returns a Tensor (..., out_features). Raises RuntimeError where sizes or dtypes do not fit,
    TypeError for anything but Tensors.
    """
    try:
        x, w = input._array, weight._array
        b = None if bias is None else bias._array
    except AttributeError:
        x, w, b = input, weight, bias
        _check_linear(x, w, b)
    shape, dtype = w.shape, w.dtype
    if (
        x.shape[-1:] != shape[1:]
        or x.dtype is not dtype
        or (b is not None and (b.shape != shape[:1] or b.dtype is not dtype))
    ):
        _check_linear(x, w, b)
    return linear_layer(input, weight, bias)


def _check_linear(input: Any, weight: Any, bias: Any) -> None:
    """TypeError or RuntimeError unless the three fit."""
    given = (input, weight) if bias is None else (input, weight, bias)
    if any(type(a) not in XP and type(a) not in TENSORS for a in given):
        _refuse_kinds("linear", *given)
    fits = weight.ndim == 2 and input.ndim and input.shape[-1] == weight.shape[1]
    text = "an input of {} does not fit a weight (out_features, in_features) of {}"
    need(fits, "linear", text, input, weight)
    check_dtypes("linear", input, weight)
    if bias is not None:
        check_dtypes("linear", weight, bias)
        want_shape("linear", "a bias", bias, weight.shape[:1])
