"""Elementwise operations: arithmetic, comparison, functions of one number, selection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backend import XP, as_dtype, bool_, float16, float32, get_default_dtype
from ...errors import need, wrong
from ...tensor import TENSORS, Tensor, wrap
from ..coercion import NUMBERS, cast, examine, promote
from ..registry import no_gradient, primitive, real_function, ufunc

__all__ = [
    "abs", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "ceil", "clone", "eq", "exp", "floor", "floor_divide", "gcd", "ge", "greater",
    "greater_equal", "gt", "isfinite", "isinf", "isnan", "lcm", "le", "less", "less_equal", "log",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul",
    "ne", "neg", "not_equal", "pow", "reciprocal", "relu", "remainder", "round", "sigmoid", "sign",
    "sqrt", "square", "tanh", "trunc",
]  # fmt: skip

# Arithmetic ---------------------------------------------------------------------------------

add = ufunc("add", "add", "`x + y`, broadcast.", x=lambda g: g, y=lambda g: g)
sub = ufunc("sub", "subtract", "`x - y`, broadcast.", x=lambda g: g, y=lambda g: -g)
mul = ufunc("mul", "multiply", "`x * y`, broadcast.", x=lambda g, y: g * y, y=lambda g, x: g * x)
div = ufunc(
    "div",
    "divide",
    "`x / y`, broadcast; integers give the default float type.",
    x=lambda g, y: g / y,
    y=lambda g, x, y: -g * (x / y / y),
    floating=True,
)
neg = ufunc("neg", "negative", "`-x`, elementwise.", x=lambda g: -g)


def add_scaled(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """`input + alpha * other`, broadcast; for integers `alpha` must be one."""
    return add(input, other) if alpha == 1 else add(*_scaled("add", input, other, alpha))


def sub_scaled(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """`input - alpha * other`, broadcast; for integers `alpha` must be one."""
    return sub(input, other) if alpha == 1 else sub(*_scaled("sub", input, other, alpha))


def _scaled(name: str, x: Any, y: Any, alpha: Any) -> tuple[Any, Any]:
    """`x`, and `alpha * y` in the type that both have together."""
    fits = not isinstance(alpha, float) or _fraction(x, y)
    need(fits, name, "for integers alpha must not be a fraction", alpha)
    if type(x) in TENSORS and type(y) in TENSORS:
        x, y = promote((x, y))
    return x, (y * alpha if isinstance(y, NUMBERS) else mul(y, alpha))


def _fraction(*values: Any) -> bool:
    """Whether one of these Tensors and numbers has a float type."""
    return any(v.dtype.kind == "f" if hasattr(v, "dtype") else isinstance(v, float) for v in values)


def div_rounded(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """`input / other`, broadcast; integers give the default float type.

    Args:
        input, other: Tensors or numbers.
        rounding_mode: None; "floor", which is `floor_divide`; "trunc" rounds towards 0. With a
            mode integers stay integers.

    Raises RuntimeError for another rounding mode.
    """
    x, y = input, other
    if rounding_mode is None:
        return div(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if rounding_mode == "trunc":
        if _fraction(x, y):
            return trunc_divide(x, y)
        quotient = floor_divide(x, y)
        return quotient + ((quotient < 0) & (remainder(x, y) != 0))
    raise wrong("div", "rounding_mode must be None, 'floor' or 'trunc'", rounding_mode)


def no_booleans(name: str, *arrays: Any) -> None:
    """NumPy would turn booleans into int8 here."""
    if all(array.dtype.kind == "b" for array in arrays):
        raise wrong(
            name, "not defined for booleans; cast them, such as with .long()", error=TypeError
        )


def no_zeros(x: Any, y: Any) -> None:
    """Integers have no infinity to be the result."""
    if x.dtype.kind != "f":
        examine(y, _not_zero)


def _not_zero(divisor: Any) -> None:
    if not divisor.all():
        raise RuntimeError("integer division by zero")


@primitive("floor_divide", x=lambda g: zeros_like(g), y=lambda g: zeros_like(g), promote=("x", "y"))
def floor_divide(xp, x, y):
    """`x / y` rounded down, elementwise; integers stay integers."""
    no_booleans("floor_divide", x, y)
    no_zeros(x, y)
    return xp.floor_divide(x, y)


trunc_divide = primitive(
    "trunc_divide",
    lambda xp, x, y: xp.trunc(xp.divide(x, y)),
    x=lambda g: zeros_like(g),
    y=lambda g: zeros_like(g),
    promote=("x", "y"),
)


@primitive(
    "remainder", x=lambda g: g, y=lambda g, x, y: -g * floor_divide(x, y), promote=("x", "y")
)
def remainder(xp, x, y):
    """What `floor_divide` leaves, elementwise: it has the sign of `y`."""
    no_booleans("remainder", x, y)
    no_zeros(x, y)
    return xp.remainder(x, y)


# Powers -------------------------------------------------------------------------------------


def _pow_exponent(g, x, y, result):
    # At 0 the power is constant in y; the inner `where` keeps log(0) out of higher derivatives.
    zero = (x == 0) & (y >= 0)
    return where(zero, 0.0, g * (result * log(where(zero, 1.0, x))))


def _pow_of_base(g, x, y):
    # At the exponent 0 the slope is y / x: 0, but not for a derivative in y.
    flat = (y == 0) & ~(abs(x) >= float(np.finfo(x.dtype).tiny))
    return where(flat, cusp(y), g * (y * where(flat, 1, x) ** (y - 1)))


@primitive("pow", x=_pow_of_base, y=_pow_exponent, promote=("x", "y"))
def pow_tensor(xp, x, y):
    """`x ** y`, elementwise."""
    no_booleans("pow", x, y)
    return xp.power(x, y)


def _pow_base(g, x, exponent):
    if exponent == 0:
        return zeros_like(g)
    if exponent == 1:
        return g
    lower = x if exponent == 2 else pow_scalar(x, exponent - 1)
    return g * (lower * exponent)


@primitive("pow_scalar", x=_pow_base, node_name="pow")
def pow_scalar(xp, x, *, exponent):
    """`x ** exponent` for a number; the common exponents without `power`, as PyTorch."""
    if exponent == 2:
        return xp.multiply(x, x)
    if exponent == 3:
        return xp.multiply(xp.multiply(x, x), x)
    if x.dtype.kind == "f":
        if exponent == 0.5:
            return xp.sqrt(x)
        if exponent == -1:
            return xp.reciprocal(x)
    return xp.power(x, xp.constant(exponent, x.dtype))


def pow(input: Any, exponent: Any) -> Any:
    """`input ** exponent`, elementwise; either may be a number.

    Raises RuntimeError for integers to a negative integer power.
    """
    if type(exponent) in (int, float) and type(input) in TENSORS:
        kind = input._array.dtype.kind
        if kind != "f":
            if type(exponent) is float:
                input = cast(input, get_default_dtype())
            elif exponent < 0:
                text = "Integers to negative integer powers are not allowed"
                raise wrong("pow", f"{text}; make the base or the exponent a float")
            elif kind == "b":
                input = cast(input, as_dtype("long"))
        return pow_scalar(input, exponent)
    return pow_tensor(input, exponent)


def square(input: Any) -> Any:
    """`input * input`, elementwise."""
    return pow(input, 2)


# Functions of one real number -----------------------------------------------------------------

exp = real_function("exp", "`e ** x`", lambda g, result: g * result)
log = real_function("log", "The natural logarithm (-inf at 0, NaN below)", lambda g, x: g / x)
sqrt = real_function(
    "sqrt",
    "The square root (at 0 with an infinite slope, NaN below)",
    lambda g, result: g / (result * 2),
)
tanh = real_function("tanh", "The hyperbolic tangent", lambda g, result: g * (1 - result * result))
reciprocal = real_function("reciprocal", "`1 / x`", lambda g, result: -g * (result * result))
abs = ufunc(
    "abs",
    "absolute",
    "The absolute value, elementwise; its gradient at 0 is 0.",
    x=lambda g, x: g * sign(x),
)


@primitive("sign", x=lambda g: zeros_like(g))
def sign(xp, x):
    """-1, 0 or 1, elementwise, 0 for NaN; its gradient is 0."""
    if x.dtype.kind == "b":
        return _clone(xp, x)
    result = xp.sign(x)
    if x.dtype.kind != "f":
        return result
    return xp.where(xp.equal(x, x), result, xp.constant(0, x.dtype))


def _rounding(name: str, instruction: str, doc: str) -> Any:
    """Declare a function that rounds; constant almost everywhere, so its gradient is 0."""

    def kernel(xp, x):
        if x.dtype.kind == "f":
            return getattr(xp, instruction)(x)
        no_booleans(name, x)
        return _clone(xp, x)

    return primitive(name, kernel, doc, x=lambda g: zeros_like(g))


floor = _rounding("floor", "floor", "`x` rounded down, elementwise; its gradient is 0.")
ceil = _rounding("ceil", "ceil", "`x` rounded up, elementwise; its gradient is 0.")
trunc = _rounding("trunc", "trunc", "`x` rounded towards 0, elementwise; its gradient is 0.")


@primitive("round", x=lambda g: zeros_like(g))
def round(xp, x, *, decimals=0):
    """`x` rounded to `decimals` places, halves to the even neighbor; its gradient is 0.

    A negative number of `decimals` rounds to tens, hundreds ...; integers have none to round.
    """
    if x.dtype.kind != "f":
        no_booleans("round", x)
        need(not decimals, "round", "{} has no decimals; take x.float()", x.dtype)
        return _clone(xp, x)
    if not decimals:
        return xp.rint(x)
    integer = type(decimals) is int
    need(integer, "round", "argument 'decimals' must be an int", decimals, error=TypeError)
    scale = xp.constant(10.0 ** max(decimals, -decimals), x.dtype)
    if decimals > 0:
        return xp.divide(xp.rint(xp.multiply(x, scale)), scale)
    return xp.multiply(xp.rint(xp.divide(x, scale)), scale)


# The largest exponents whose exponential is finite; from far below them e / (1 + e) is 1.
_EXPONENT = {"float32": 88.0, "float64": 709.0}


def sigmoid_kernel(xp, x):
    """`e / (1 + e)` with `e = exp(x)`: exact to the last bit above 0, and without overflow."""
    if x.dtype == float16:  # exp(12) is infinite there
        return xp.asarray(sigmoid_kernel(xp, xp.asarray(x, float32)), float16)
    e = xp.asarray(xp.minimum(x, xp.constant(_EXPONENT[x.dtype.name], x.dtype)))
    xp.exp(e, out=e)
    return xp.divide(e, xp.add(e, xp.constant(1, x.dtype)), out=e)


sigmoid = primitive(
    "sigmoid", sigmoid_kernel, x=lambda g, result: g * (result * (1 - result)), floating=True
)
# The same function for gradient rules. It saves its argument, not its result: where that rounds to
# 1, higher derivatives would lose their digits.
logistic = primitive("logistic", sigmoid_kernel, x=lambda g, x: g * (logistic(x) * logistic(-x)))


@primitive("threshold_backward", x=lambda g, output: threshold_backward(g, output))
def threshold_backward(xp, x, output):
    """`x` where the output of a ReLU is not 0 (a NaN lets it through), else 0."""
    zero = xp.constant(0, x.dtype)
    return xp.where(xp.less_equal(output, zero), zero, x)


@primitive("relu", x=lambda g, result: threshold_backward(g, result))
def relu(xp, x):
    """`max(x, 0)`; the gradient at 0 is 0."""
    return xp.maximum(x, xp.constant(0, x.dtype))


# Two numbers to one ---------------------------------------------------------------------------

# A tie splits in halves; a NaN passes to both, as in PyTorch.
maximum = ufunc(
    "maximum",
    "maximum",
    "The larger of two, elementwise, NaN where one is; a tie shares the gradient in halves.",
    x=lambda g, x, y: where(x < y, 0, where(x == y, g / 2, g)),
    y=lambda g, x, y: where(y < x, 0, where(x == y, g / 2, g)),
)
minimum = ufunc(
    "minimum",
    "minimum",
    "The smaller of two, elementwise, NaN where one is; a tie shares the gradient in halves.",
    x=lambda g, x, y: where(x > y, 0, where(x == y, g / 2, g)),
    y=lambda g, x, y: where(y > x, 0, where(x == y, g / 2, g)),
)


@primitive(
    "where",
    x=lambda g, condition: where(condition, g, 0),
    y=lambda g, condition: where(condition, 0, g),
    promote=("x", "y"),
)
def where(xp, condition, x, y):
    """`x` where `condition`, else `y`, broadcast.

    Raises RuntimeError for a condition that is not boolean.
    """
    if condition.dtype.kind != "b":
        text = "expected a condition of dtype bool, got {}; use .bool()"
        raise wrong("where", text, condition.dtype, error=TypeError)
    return xp.where(condition, x, y)


def instead_of(x: Tensor, value: Any) -> Any:
    """`value`, connected to `x` in the graph: the gradient of `x` is 0 rather than None."""
    return where(wrap(XP[type(x._array)].zeros((), bool_)), x, value)


def _inside(x: Any, low: Any, high: Any) -> Any:
    if low is None:
        return x <= high
    return x >= low if high is None else (x >= low) & (x <= high)


@primitive("clamp", x=lambda g, x, min, max: where(_inside(x, min, max), g, 0))
def clamp_numbers(xp, x, *, min=None, max=None):
    """`x` limited to [min, max]; the gradient passes at the bounds."""
    if min is not None:
        x = xp.maximum(x, xp.constant(min, x.dtype))
    if max is not None:
        x = xp.minimum(x, xp.constant(max, x.dtype))
    return x


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """`x` limited to [min, max]; the gradient passes at the bounds.

    Args:
        x: a Tensor.
        min, max: numbers or Tensors; one may be missing. Where min > max the result is max.

    Raises RuntimeError where both bounds are missing.
    """
    if min is None and max is None:
        raise wrong("clamp", "at least one of min and max must not be None")
    if type(min) in TENSORS or type(max) in TENSORS:
        min, max = (_numbers(b) if type(b) in TENSORS and b._rg else b for b in (min, max))
        # `x != x` keeps a NaN; a bound that is NaN makes the result NaN.
        x = x if min is None else where((x >= min) | (x != x), x, min)
        return x if max is None else where((x <= max) | (x != x), x, max)
    fraction = isinstance(min, float | np.floating) or isinstance(max, float | np.floating)
    if fraction and x.dtype.kind != "f":
        x = cast(x, get_default_dtype())
    return clamp_numbers(x, min, max)


def _numbers(bound: Any) -> Any:
    """`bound` with a gradient of 0 where it is NaN: `where` takes that from a constant."""
    return where(bound == bound, bound, math.nan)


# Copies ---------------------------------------------------------------------------------------


def _clone(xp, x):
    """A copy, in the same memory order, that keeps its place in the graph."""
    if 0 in x.strides:  # what `expand` returns has no order of its own
        return xp.copy(x)
    out = xp.empty_like(x)
    xp.copyto(out, x)
    return out


@primitive("zeros_like")
def zeros_like(xp, x):
    """Zeros in the shape and dtype of `x`."""
    return xp.zeros(x.shape, x.dtype)


# For gradient rules, at a point where a slope is 0 by convention and has no derivative: 0, and NaN
# in the next derivative.
cusp = primitive(
    "cusp", lambda xp, x: xp.zeros(x.shape, x.dtype), x=lambda g: where(g == 0, g, math.nan)
)


# The gradient is cast back to the dtype that the input had; a tangent to that of the result.
@primitive("to", x=lambda g, x_dtype, dtype: to_dtype(g, x_dtype), node_name="to_copy")
def to_dtype(xp, x, *, dtype):
    """`x` in another dtype, always a copy."""
    out = xp.empty(x.shape, dtype)
    xp.copyto(out, x, casting="unsafe")
    return out


clone = primitive("clone", _clone, x=lambda g: g)


@primitive("contiguous", x=lambda g: g, node_name="clone")
def contiguous_copy(xp, x):
    """A copy in row-major memory."""
    return xp.copy(x)


# Comparison, logic, tests of numbers and of integers, without a gradient --------------------------


eq = no_gradient("eq", "equal", "`x == y`")
ne = no_gradient("ne", "not_equal", "`x != y`")
lt = no_gradient("lt", "less", "`x < y`")
le = no_gradient("le", "less_equal", "`x <= y`")
gt = no_gradient("gt", "greater", "`x > y`")
ge = no_gradient("ge", "greater_equal", "`x >= y`")
logical_and = no_gradient("logical_and", "logical_and", "Whether both are true (not 0)")
logical_or = no_gradient("logical_or", "logical_or", "Whether one is true (not 0)")
logical_xor = no_gradient("logical_xor", "logical_xor", "Whether exactly one is true (not 0)")
logical_not = no_gradient("logical_not", "logical_not", "Whether `x` is false (0)", ("x",))
bitwise_and = no_gradient("bitwise_and", "bitwise_and", "`x & y` for booleans and integers")
bitwise_or = no_gradient("bitwise_or", "bitwise_or", "`x | y` for booleans and integers")
bitwise_xor = no_gradient("bitwise_xor", "bitwise_xor", "`x ^ y` for booleans and integers")
bitwise_not = no_gradient("bitwise_not", "invert", "`~x` for booleans and integers", ("x",))
_PAIR = "input", "other"
bitwise_left_shift = no_gradient(
    "bitwise_left_shift", "left_shift", "`input << other` for integers", _PAIR
)
bitwise_right_shift = no_gradient(
    "bitwise_right_shift", "right_shift", "`input >> other` for integers", _PAIR
)
gcd = no_gradient("gcd", "gcd", "The greatest common divisor of integers", _PAIR)
lcm = no_gradient("lcm", "lcm", "The least common multiple of integers", _PAIR)
isnan = no_gradient("isnan", "isnan", "Whether `x` is NaN", ("x",))
isinf = no_gradient("isinf", "isinf", "Whether `x` is infinite", ("x",))
isfinite = no_gradient("isfinite", "isfinite", "Whether `x` is neither infinite nor NaN", ("x",))

greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne
