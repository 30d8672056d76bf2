"""Products of matrices, and the linear layer as one operation.

Matrix products are `dot` wherever both sides are matrices: half the call cost of `matmul`, and the
same BLAS routine. `mm_into` is the one place that knows how to write a product into given memory.
"""

from __future__ import annotations

from typing import Any

from ..backend import XP
from .registry import primitive
from .shapes import reshape_to


def _mm(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    """The product of two matrices."""
    if out is None:
        return xp.dot(x, y)
    if out.flags.c_contiguous:
        return xp.dot(x, y, out=out)
    # BLAS wants row-major memory to write to; a transposed slot is that of the transposed product.
    xp.dot(y.T, x.T, out=out.T)
    return out


mm_matrices = primitive(
    "mm",
    _mm,
    x=lambda g, y, out: mm_into(g, y.T, out),
    y=lambda g, x, out: mm_into(x.T, g, out),
)


def mm_into(x: Any, y: Any, out: Any) -> Any:
    """`x @ y` for matrices, written to `out` where a rule was given memory."""
    return mm_matrices(x, y) if out is None else _mm(XP[type(x)], x, y, out)


def _check_matrices(name: str, x: Any, y: Any) -> None:
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"{name}: expected both inputs to have the same dtype, got {x.dtype.name} and "
            f"{y.dtype.name}"
        )


def mm(x: Any, y: Any) -> Any:
    """The product of an (n, m) and an (m, p) matrix.

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    if x.ndim != 2 or y.ndim != 2:
        raise RuntimeError(f"mm: expected two matrices, got shapes {x.shape} and {y.shape}")
    _check_product("mm", x, y)
    return mm_matrices(x, y)


def _check_product(name: str, x: Any, y: Any) -> None:
    _check_matrices(name, x, y)
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else -1]:
        raise RuntimeError(
            f"{name}: mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, x.shape))} and {'x'.join(map(str, y.shape))})"
        )


def _matmul(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    """Products of the matrices in the last two dimensions, broadcast over the others."""
    return xp.matmul(x, y, out=out)


def swap(x: Any) -> Any:
    """The last two dimensions exchanged."""
    from .shapes import transpose

    return transpose(x, -2, -1)


batched = primitive(
    "matmul",
    _matmul,
    x=lambda g, y: batched(g, swap(y)),
    y=lambda g, x: batched(swap(x), g),
)


def matmul(x: Any, y: Any) -> Any:
    """The matrix product, with PyTorch's and NumPy's rules for vectors and batches.

    A vector on the left is a row, on the right a column; leading dimensions broadcast.
    Raises RuntimeError for 0-d inputs, sizes that do not fit, or different dtypes.
    """
    if x.ndim == 2 and y.ndim == 2:
        return mm(x, y)
    if not x.ndim or not y.ndim:
        raise RuntimeError("matmul: both arguments need to be at least 1D, but one is 0D")
    _check_product("matmul", x, y)
    if x.ndim == 1 and y.ndim == 1:
        return reshape_to(mm(reshape_to(x, (1, -1)), reshape_to(y, (-1, 1))), ())
    if x.ndim == 1:
        out = matmul(reshape_to(x, (1, -1)), y)
        return reshape_to(out, (*out.shape[:-2], out.shape[-1]))
    if y.ndim == 1:
        out = matmul(x, reshape_to(y, (-1, 1)))
        return reshape_to(out, out.shape[:-1])
    if y.ndim == 2:  # one large product instead of many small ones
        rows = mm(reshape_to(x, (_rows(x.shape), x.shape[-1])), y)
        return reshape_to(rows, (*x.shape[:-1], y.shape[-1]))
    return batched(x, y)


def _rows(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape[:-1]:
        n *= size
    return n


def _sum_rows(xp: Any, x: Any, out: Any = None) -> Any:
    """The sum over the rows of a matrix, as a product with ones (faster than `sum`)."""
    return xp.dot(xp.ones_of(x.shape[:1], x.dtype), x, out=out)


sum_rows = primitive("sum_rows", _sum_rows, x=lambda g, x_shape: sum_to_rows(g, x_shape))


def sum_to_rows(g: Any, shape: tuple[int, ...]) -> Any:
    """`g` repeated for every row."""
    from .shapes import expand_to

    return expand_to(g, shape)


def _linear(xp: Any, input: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Any:
    """`input @ weight.T + bias`."""
    if len(input.shape) == 2:
        result = xp.dot(input, weight.T, out=out)
    else:
        result = xp.matmul(input, weight.T, out=out)
    return result if bias is None else xp.add(result, bias, out=result if result.shape else None)


def _matrix(x: Any) -> Any:
    """All dimensions but the last as rows."""
    return x if x.ndim == 2 else reshape_to(x, (_rows(x.shape), x.shape[-1]))


def _linear_input(g: Any, weight: Any) -> Any:
    return mm_matrices(g, weight) if g.ndim == 2 else matmul(g, weight)


def _linear_bias(g: Any, out: Any) -> Any:
    rows = _matrix(g)
    return sum_rows(rows) if out is None else _sum_rows(XP[type(rows)], rows, out)


linear_layer = primitive(
    "linear",
    _linear,
    input=_linear_input,
    weight=lambda g, input, out: mm_into(_matrix(g).T, _matrix(input), out),
    bias=_linear_bias,
    options={"node_name": "addmm"},
)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """`input @ weight.T + bias`: (..., in) with (out, in) and (out,) gives (..., out).

    Raises RuntimeError where sizes or dtypes do not fit.
    """
    if input.shape[-1:] != weight.shape[1:] or input.dtype is not weight.dtype:
        _refuse_linear(input, weight)
    return linear_layer(input, weight, bias)


def _refuse_linear(input: Any, weight: Any) -> None:
    if weight.ndim != 2 or not input.ndim or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"linear: an input of shape {tuple(input.shape)} does not fit a weight of shape "
            f"{tuple(weight.shape)} (out_features, in_features): expected {weight.shape[-1]} in "
            "the input's last dimension"
        )
    _check_matrices("linear", input, weight)


