"""Products of vectors, matrices and batches of them, and the linear layer as one operation.

Matrix products are `dot` wherever both sides are matrices: half the call cost of `matmul`, and the
same BLAS routine. `_mm` is the one place that knows how to write a product into given memory.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from ...backend import XP
from ...numerics.sums import sum_rows as _sum_rows
from ...numerics.sums import written
from ...tensor import TENSORS, Tensor, kind_of
from ..arguments import integer, integers, want_shape
from ..coercion import cast
from ..fronts import Batch, Matrix, T, Vector, need, public, wrong
from ..pointwise.elementwise import add, instead_of, mul
from ..reduce.reductions import sum_dims
from ..registry import primitive, publish
from ..shape.shapes import expand_to, normal_dim, permute_dims, reshape_to, transpose


def _mm(xp, x, y, out=None):
    if out is None:
        return xp.dot(x, y)
    if out.flags.c_contiguous:
        return xp.dot(x, y, out=out)
    # BLAS writes row-major memory. `dot(y.T, x.T, out=out.T)` would need no copy, but on some
    # processors it rounds otherwise, and the bits must not depend on where a product is written.
    return written(xp, xp.dot(x, y), out)


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


def check_dtypes(
    name: str, x: Any, y: Any, one: str = "one input", other: str = "the other"
) -> None:
    if x.dtype.kind == "b" and y.dtype.kind == "b":
        raise wrong(name, "expected numbers", x.dtype, y.dtype)
    if x.dtype != y.dtype:
        way = {"float32": "; use x.float()", "float64": "; use x.double()"}.get(y.dtype.name, "")
        raise wrong(name, f"{one} is {x.dtype}, {other} {y.dtype}: expected one dtype{way}")


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
    check_dtypes("linear", input, weight, "the input", "the weight")
    if bias is not None:
        check_dtypes("linear", weight, bias, "the weight", "the bias")
        want_shape("linear", "a bias", bias, weight.shape[:1])


# Two factors --------------------------------------------------------------------------------------


# Products made of these, with gradients of any order ----------------------------------------------


@public
def bmm(x: Batch, mat2: Batch) -> Any:
    """The products of a batch (b, n, m) of matrices with a batch (b, m, p).

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    check_dtypes("bmm", x, mat2)
    fits = mat2.shape[:2] == (x.shape[0], x.shape[2])
    need(fits, "bmm", "expected batches (b, n, m) and (b, m, p)", x, mat2)
    return batched(x, mat2)


@public
def mv(x: Matrix, vec: Vector) -> Any:
    """The product of an (n, m) matrix and a vector of m elements."""
    return matmul(x, vec)


@public
def dot(x: Vector, tensor: Vector) -> Any:
    """The sum of the products of the elements of two vectors."""
    return matmul(x, tensor)


@public
def vdot(x: Vector, other: Vector) -> Any:
    """`dot`, for there are no complex numbers here."""
    return matmul(x, other)


@public
def inner(x: T, other: T) -> Any:
    """The sums of products over the last dimension of both; of numbers the product.

    (..., n) and (*, n) give (..., *). Raises RuntimeError for sizes or dtypes that differ.
    """
    check_dtypes("inner", x, other)
    if not x.ndim or not other.ndim:
        return mul(x, other)
    fits = x.shape[-1] == other.shape[-1]
    need(fits, "inner", "the last dimension must match on both input tensors", x, other)
    return tensordot(x, other, ([-1], [-1]))


@public
def outer(x: Vector, vec2: Vector) -> Any:
    """The (n, m) matrix of all products of the elements of two vectors."""
    return mul(reshape_to(x, (*x.shape, 1)), vec2)


ger = outer


@public
def kron(x: T, other: T) -> Any:
    """The Kronecker product: every element of `x` times all of `other`, in blocks."""
    ndim = max(x.ndim, other.ndim)
    a, b = ((1,) * (ndim - t.ndim) + t.shape for t in (x, other))
    blocks = mul(
        reshape_to(x, tuple(n for size in a for n in (size, 1))),
        reshape_to(other, tuple(n for size in b for n in (1, size))),
    )
    return reshape_to(blocks, tuple(m * n for m, n in zip(a, b, strict=True)))


@public
def tensordot(x: T, other: T, dims: Any = 2) -> Any:
    """The sums of products over dimensions of both.

    Args:
        x, other: Tensors of one dtype.
        dims: how many of the last dimensions of `x` to pair with the first of `other`, or two lists
            of dimensions. Paired dimensions have the same size, or one of them size 1.

    Returns a Tensor with the other dimensions of `x`, then those of `other`.
    Raises RuntimeError for sizes or dtypes that do not fit, IndexError for a missing dimension.
    """
    check_dtypes("tensordot", x, other)
    if type(dims) in TENSORS:
        dims = dims.tolist()
    if isinstance(dims, tuple | list):
        need(len(dims) == 2, "tensordot", "expected two lists of dimensions", dims)
        left, right = (integers("tensordot", "a list of dims", d) for d in dims)
    else:
        count = integer("tensordot", "dims", dims)
        most = min(x.ndim, other.ndim)
        need(0 <= count <= most, "tensordot", f"expects dims from 0 to {most} here", count)
        left, right = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    need(len(left) == len(right), "tensordot", "both dimension lists should have same length")
    left = tuple(normal_dim(d, x.ndim) for d in left)
    right = tuple(normal_dim(d, other.ndim) for d in right)
    once = len(set(left)) == len(left) and len(set(right)) == len(right)
    need(once, "tensordot", "a dimension appears multiple times", dims)
    for a, b in zip(left, right, strict=True):
        m, n = x.shape[a], other.shape[b]
        text = "contracted dimensions need to match: dim {} of {}, dim {} of {}"
        need(m == n or 1 in (m, n), "tensordot", text, a, x, b, other)
        if m != n and n == 1:
            x = cast(sum_dims(x, (a,), True), x.dtype)
        elif m != n:
            other = cast(sum_dims(other, (b,), True), other.dtype)
    rest = [d for d in range(x.ndim) if d not in left]
    more = [d for d in range(other.ndim) if d not in right]
    size = math.prod(x.shape[d] for d in left)
    a_shape, b_shape = tuple(x.shape[d] for d in rest), tuple(other.shape[d] for d in more)
    product = mm_matrices(
        reshape_to(permute_dims(x, (*rest, *left)), (math.prod(a_shape), size)),
        reshape_to(permute_dims(other, (*right, *more)), (size, math.prod(b_shape))),
    )
    return reshape_to(product, (*a_shape, *b_shape))


# A product added ----------------------------------------------------------------------------------


def _add_product(name: str, x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """`beta * x + alpha * product`; where beta is 0 what `x` holds does not matter, even NaN."""
    check_dtypes(name, x, product)
    shape = product.shape
    lead = len(shape) - x.ndim
    fits = lead >= 0 and all(m in (1, n) for m, n in zip(x.shape, shape[lead:], strict=True))
    need(fits, name, "an input of {} cannot be broadcast to the product of {}", x, product)
    if x.dtype.kind != "f":
        beta, alpha = _whole(name, "beta", beta), _whole(name, "alpha", alpha)
    if alpha != 1:
        product = mul(product, alpha)
    if beta == 0:
        return instead_of(x, product)
    return add(product, x if beta == 1 else mul(x, beta))


def _whole(name: str, what: str, value: Any) -> int:
    text = f"for integers argument {what} must not be a fraction, got {{}}; convert with .float()"
    need(int(value) == value, name, text, value)
    return int(value)


@public
def addmm(x: T, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * input + alpha * (mat1 @ mat2)` for matrices.

    Args:
        input: broadcast to the shape of the product. Where `beta` is 0 its values are ignored.
        mat1, mat2: (n, m) and (m, p), of the dtype of `x`.

    Raises RuntimeError for other dimensions, sizes that do not fit, or different dtypes.
    """
    return _add_product("addmm", x, mm(mat1, mat2), beta, alpha)


@public
def addr(x: T, vec1: Vector, vec2: Vector, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * input + alpha * outer(vec1, vec2)`; arguments as for `addmm`."""
    return _add_product("addr", x, outer(vec1, vec2), beta, alpha)


@public
def addmv(x: T, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * input + alpha * (mat @ vec)` for a matrix and a vector; see `addmm`."""
    return _add_product("addmv", x, mv(mat, vec), beta, alpha)


@public
def baddbmm(x: T, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * input + alpha * bmm(batch1, batch2)`; see `addmm`."""
    return _add_product("baddbmm", x, bmm(batch1, batch2), beta, alpha)


@public
def addbmm(x: T, batch1: Batch, batch2: Batch, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """`beta * input + alpha * bmm(batch1, batch2).sum(0)`; see `addmm`."""
    if batch2.shape[:2] != (batch1.shape[0], batch1.shape[2]):
        bmm(batch1, batch2)  # which refuses
    product = tensordot(batch1, batch2, ([0, 2], [0, 1]))
    return _add_product("addbmm", x, product, beta, alpha)


publish(globals(), "matmul", "mm")
