"""Elementwise operations: arithmetic, comparison, functions of one number, selection."""

from __future__ import annotations

from typing import Any

from ..backend import as_dtype
from ..tensor import TENSORS
from .coercion import cast
from .registry import comparison, primitive, ufunc

# Arithmetic ---------------------------------------------------------------------------------

add = ufunc("add", "add", x=lambda g: g, y=lambda g: g)
sub = ufunc("sub", "subtract", x=lambda g: g, y=lambda g: -g)
mul = ufunc("mul", "multiply", x=lambda g, y: g * y, y=lambda g, x: g * x)
div = ufunc(
    "div",
    "divide",
    x=lambda g, y: g / y,
    y=lambda g, x, y: -g * (x / y / y),
    options={"floating": True},
)
neg = ufunc("neg", "negative", x=lambda g: -g)


def _pow(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    """`x ** y`, elementwise."""
    return xp.power(x, y, out=out)


pow_tensor = primitive(
    "pow_tensor",
    _pow,
    x=lambda g, x, y: where(y == 0, 0.0, g * (y * x ** (y - 1))),
    y=lambda g, x, y, result: g * where((x == 0) & (y >= 0), 0.0, result * log(x)),
    options={"promote": ("x", "y"), "node_name": "pow"},
)


def _pow_scalar(xp: Any, x: Any, *, exponent: Any, out: Any = None) -> Any:
    """`x ** exponent` for a number; the common exponents without `power`, as PyTorch."""
    if exponent == 2:
        return xp.multiply(x, x, out=out)
    if exponent == 3:
        return xp.multiply(xp.multiply(x, x), x, out=out)
    if exponent == 1:
        return xp.add(x, 0, out=out)
    if x.dtype.kind == "f":
        if exponent == 0.5:
            return xp.sqrt(x, out=out)
        if exponent == -1:
            return xp.reciprocal(x, out=out)
    return xp.power(x, exponent, out=out)


pow_scalar = primitive(
    "pow_scalar",
    _pow_scalar,
    x=lambda g, x, exponent: (
        zeros_like(g) if exponent == 0 else g * (pow_scalar(x, exponent - 1) * exponent)
    ),
    options={"node_name": "pow"},
)


def pow(x: Any, exponent: Any) -> Any:
    """`x ** exponent`, elementwise; either may be a number.

    Raises RuntimeError for integers to a negative integer power.
    """
    if type(exponent) in (int, float) and type(x) in TENSORS:
        if type(exponent) is float and x._array.dtype.kind != "f":
            x = cast(x, as_dtype(float))
        if x._array.dtype.kind == "b":
            x = cast(x, as_dtype("long"))
        return pow_scalar(x, exponent)
    return pow_tensor(x, exponent)


def add_scaled(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    """`x + alpha * y`, broadcast."""
    return add(x, y if alpha == 1 else mul(y, alpha))


def div_scaled(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """`x / y`, broadcast; integers give the default float type."""
    if rounding_mode is not None:
        raise ValueError("div: rounding_mode is not yet available; use floor on the quotient")
    return div(x, y)


def sub_scaled(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    """`x - alpha * y`, broadcast."""
    return sub(x, y if alpha == 1 else mul(y, alpha))


# Functions of one real number -----------------------------------------------------------------

_REAL = {"floating": True}
exp = ufunc("exp", "exp", x=lambda g, result: g * result, options=_REAL)
log = ufunc("log", "log", x=lambda g, x: g / x, options=_REAL)
sqrt = ufunc("sqrt", "sqrt", x=lambda g, result: g / (result * 2), options=_REAL)
tanh = ufunc("tanh", "tanh", x=lambda g, result: g * (1 - result * result), options=_REAL)
abs = ufunc("abs", "absolute", x=lambda g, x: g * sign(x))
sign = ufunc("sign", "sign", x=lambda g: zeros_like(g))


def _sigmoid(xp: Any, x: Any, out: Any = None) -> Any:
    """`1 / (1 + exp(-x))`, without overflow and accurate in both tails."""
    e = xp.exp(xp.negative(xp.absolute(x)))
    top = xp.where(xp.greater_equal(x, 0), 1, e)
    return xp.divide(top, xp.add(e, 1), out=out)


sigmoid = primitive(
    "sigmoid", _sigmoid, x=lambda g, result: g * (result * (1 - result)), options=_REAL
)


def _relu(xp: Any, x: Any, out: Any = None) -> Any:
    """`max(x, 0)`; the gradient at 0 is 0."""
    return xp.maximum(x, xp.constant(0, x.dtype), out=out)


relu = primitive("relu", _relu, x=lambda g, result: where(result > 0, g, 0))


def _clamp(xp: Any, x: Any, *, min: Any = None, max: Any = None, out: Any = None) -> Any:
    """`x` limited to [min, max]; the gradient passes at the bounds."""
    if min is not None:
        x = xp.maximum(x, xp.constant(min, x.dtype), out=out)
    if max is not None:
        x = xp.minimum(x, xp.constant(max, x.dtype), out=out)
    return x


def _inside(x: Any, low: Any, high: Any) -> Any:
    if low is None:
        return x <= high
    return x >= low if high is None else (x >= low) & (x <= high)


clamp_numbers = primitive(
    "clamp", _clamp, x=lambda g, x, min, max: where(_inside(x, min, max), g, 0)
)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """`x` limited to [min, max], numbers or Tensors; the gradient passes at the bounds.

    Raises RuntimeError where both bounds are missing.
    """
    if min is None and max is None:
        raise RuntimeError("clamp: at least one of min and max must not be None")
    if type(min) in TENSORS or type(max) in TENSORS:
        x = x if min is None else where(x < min, min, x)
        return x if max is None else where(x > max, max, x)
    if type(x) in TENSORS and x._array.dtype.kind in "iu" and float in (type(min), type(max)):
        x = cast(x, as_dtype(float))
    return clamp_numbers(x, min, max)


# Two numbers to one ---------------------------------------------------------------------------

# A tie splits in halves; a NaN passes to both, as in PyTorch.
maximum = ufunc(
    "maximum",
    "maximum",
    x=lambda g, x, y: where(x < y, 0, where(x == y, g / 2, g)),
    y=lambda g, x, y: where(y < x, 0, where(x == y, g / 2, g)),
)
minimum = ufunc(
    "minimum",
    "minimum",
    x=lambda g, x, y: where(x > y, 0, where(x == y, g / 2, g)),
    y=lambda g, x, y: where(y > x, 0, where(x == y, g / 2, g)),
)


def _where(xp: Any, condition: Any, x: Any, y: Any, out: Any = None) -> Any:
    """`x` where `condition`, else `y`, broadcast."""
    if out is None:
        return xp.where(condition, x, y)
    xp.copyto(out, y)
    xp.copyto(out, x, where=condition)
    return out


where = primitive(
    "where",
    _where,
    x=lambda g, condition: where(condition, g, 0),
    y=lambda g, condition: where(condition, 0, g),
    options={"promote": ("x", "y")},
)

# Without a gradient ---------------------------------------------------------------------------

eq = comparison("eq", "equal")
ne = comparison("ne", "not_equal")
lt = comparison("lt", "less")
le = comparison("le", "less_equal")
gt = comparison("gt", "greater")
ge = comparison("ge", "greater_equal")
logical_and = comparison("logical_and", "logical_and")
logical_or = comparison("logical_or", "logical_or")
logical_not = comparison("logical_not", "logical_not", ("x",))
isnan = comparison("isnan", "isnan", ("x",))
isfinite = comparison("isfinite", "isfinite", ("x",))


def _zeros_like(xp: Any, x: Any, out: Any = None) -> Any:
    """Zeros in the shape and dtype of `x`."""
    if out is None:
        return xp.zeros(x.shape, x.dtype)
    xp.copyto(out, 0)
    return out


zeros_like = primitive("zeros_like", _zeros_like)


# Copies ---------------------------------------------------------------------------------------


def _to(xp: Any, x: Any, *, dtype: Any, out: Any = None) -> Any:
    """`x` in another dtype, always a copy."""
    out = xp.empty(x.shape, dtype) if out is None else out
    xp.copyto(out, x, casting="unsafe")
    return out


def _clone(xp: Any, x: Any, out: Any = None) -> Any:
    """A copy that keeps its place in the graph."""
    out = xp.empty_like(x) if out is None else out
    xp.copyto(out, x)
    return out


# The gradient is cast back to the dtype that the input had.
to_dtype = primitive(
    "to", _to, x=lambda g, x: to_dtype(g, dtype=x.dtype), options={"node_name": "to_copy"}
)
clone = primitive("clone", _clone, x=lambda g: g)
