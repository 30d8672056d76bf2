"""Functions of real numbers: trigonometric, hyperbolic, logarithms, the error function and others.

Functions of one number take integers too, which become the default float type.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np

from ...backend import as_dtype, int32
from ...errors import need
from ...tensor import TENSORS
from ..arguments import want_same_dtype, want_tensors
from ..coercion import NUMBERS, cast, promote, to_float, underived
from ..fronts import Alike, AtLeast0, Float, Numeric, T, TensorOnly, public
from ..registry import no_gradient, primitive, real_function, ufunc
from . import elementwise as e
from .elementwise import clamp, div, eq, exp, isfinite, isnan, log, logistic, trunc, where

__all__ = [
    "absolute", "acos", "acosh", "addcdiv", "addcmul", "angle", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh",
    "clamp_max", "clamp_min", "clip", "conj", "conj_physical", "copysign", "cos", "cosh", "deg2rad",
    "divide", "erf", "erfc", "exp2", "expm1", "fix", "float_power", "fmax", "fmin", "fmod", "frac",
    "frexp", "heaviside", "hypot", "isclose", "isneginf", "isposinf", "isreal", "ldexp", "lerp",
    "log1p", "log2", "log10", "logaddexp", "logaddexp2", "multiply", "nan_to_num", "negative",
    "nextafter", "positive", "rad2deg", "real", "resolve_conj", "resolve_neg", "rsqrt", "rsub",
    "sgn", "signbit", "sin", "sinh", "subtract", "tan", "true_divide", "xlogy",
]  # fmt: skip

# One number ---------------------------------------------------------------------------------------


sin = real_function("sin", "The sine", lambda g, x: g * cos(x))
cos = real_function("cos", "The cosine", lambda g, x: -g * sin(x))
tan = real_function("tan", "The tangent", lambda g, result: g * (1 + result * result))
asin = real_function("asin", "The angle of a sine", lambda g, x: g * rsqrt(1 - x * x), "arcsin")
acos = real_function("acos", "The angle of a cosine", lambda g, x: -g * rsqrt(1 - x * x), "arccos")
atan = real_function("atan", "The angle of a tangent", lambda g, x: g / (x * x + 1), "arctan")
sinh = real_function("sinh", "The hyperbolic sine", lambda g, x: g * cosh(x))
cosh = real_function("cosh", "The hyperbolic cosine", lambda g, x: g * sinh(x))
asinh = real_function(
    "asinh", "The inverse of `sinh`", lambda g, x: g * rsqrt(x * x + 1), "arcsinh"
)
acosh = real_function(
    "acosh", "The inverse of `cosh`", lambda g, x: g * rsqrt(x * x - 1), "arccosh"
)
atanh = real_function("atanh", "The inverse of `tanh`", lambda g, x: g / (1 - x * x), "arctanh")
log1p = real_function("log1p", "`log(1 + x)`, exact also for small x", lambda g, x: g / (x + 1))
log2 = real_function("log2", "The logarithm to base 2", lambda g, x: g / (x * math.log(2)))
log10 = real_function("log10", "The logarithm to base 10", lambda g, x: g / (x * math.log(10)))
exp2 = real_function("exp2", "`2 ** x`", lambda g, result: g * (result * math.log(2)))
expm1 = real_function("expm1", "`exp(x) - 1`, exact also for small x", lambda g, x: g * exp(x))


@primitive("rsqrt", x=lambda g, result: g * (result * result * result * -0.5), floating=True)
def rsqrt(xp, x):
    """`1 / sqrt(x)`, elementwise; infinite at 0, NaN below."""
    return xp.reciprocal(xp.sqrt(x))


def _bell(g, x, height):
    return g * (exp(-(x * x)) * height)


_HEIGHT = 2 / math.sqrt(math.pi)
erf = real_function(
    "erf",
    "The error function: the chance that a normal number of variance 1/2 is in ±x",
    lambda g, x: _bell(g, x, _HEIGHT),
)
erfc = real_function(
    "erfc",
    "`1 - erf(x)`, accurate also where that is next to nothing",
    lambda g, x: _bell(g, x, -_HEIGHT),
)

signbit = no_gradient("signbit", "signbit", "Whether `x` is below 0 or -0.0", ("x",))


@public
def frac(x: Float) -> Any:
    """What `trunc` leaves: the part after the point, with the sign of `x`.

    Raises RuntimeError for integers and booleans.
    """
    return x - trunc(x)


@public
def rad2deg(x: T) -> Any:
    """Angles in degrees from angles in radians."""
    return to_float(x) * (180 / math.pi)


@public
def deg2rad(x: T) -> Any:
    """Angles in radians from angles in degrees."""
    return to_float(x) * (math.pi / 180)


@public
def positive(x: Numeric) -> Any:
    """`x` itself; RuntimeError for booleans."""
    return x


@public
def nan_to_num(x: T, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`x` with numbers in place of NaN and infinities, whose gradient is 0.

    Args:
        x: a Tensor; integers have nothing to replace.
        nan: for NaN; None is 0.
        posinf, neginf: for the infinities; None is the largest or smallest number of the dtype.
    """
    if x.dtype.kind != "f":
        return e.clone(x)
    limits = np.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    x = where(x != x, 0.0 if nan is None else nan, x)
    return where(x == math.inf, high, where(x == -math.inf, low, x))


# Two numbers --------------------------------------------------------------------------------------


def _distance(x: Any, y: Any) -> Any:
    """The squared distance of (x, y) from 0; 1 at 0, so that the gradient of `atan2` is 0 there."""
    square = x * x + y * y
    return where(square == 0, 1, square)


atan2 = ufunc(
    "atan2",
    "arctan2",
    "The angle of the point (other, input), from -pi to pi, elementwise.",
    input=lambda g, input, other: g * (other / _distance(input, other)),
    other=lambda g, input, other: -g * (input / _distance(input, other)),
    floating=True,
)
copysign = ufunc(
    "copysign",
    "copysign",
    "`|input|` with the sign of `other` (also of -0.0), elementwise.",
    input=lambda g, input, result: g * where(input == 0, 0, result / where(input == 0, 1, input)),
    other=lambda g: e.zeros_like(g),
    floating=True,
)


def of_floats(name: str, doc: str, **rules: Any) -> Any:
    """Declare a function of two float Tensors that is one instruction of its name."""

    def kernel(xp, input, other):
        text = "not defined for integers; convert them, such as with .float()"
        need(input.dtype.kind == "f", name, text, error=TypeError)
        return getattr(xp, name)(input, other)

    return primitive(name, kernel, doc, promote=("input", "other"), **rules)


hypot = of_floats(
    "hypot",
    "`sqrt(input ** 2 + other ** 2)` without overflow, elementwise.",
    input=lambda g, input, result: g * (input / result),
    other=lambda g, other, result: g * (other / result),
)
logaddexp = of_floats(
    "logaddexp",
    "`log(exp(input) + exp(other))` without overflow, elementwise.",
    input=lambda g, input, other: g * logistic(input - other),
    other=lambda g, input, other: g * logistic(other - input),
)


@primitive(
    "fmod",
    input=lambda g: g,
    other=lambda g, input, other: -g * trunc(input / other),
    promote=("input", "other"),
)
def fmod(xp, input, other):
    """What division rounded towards 0 leaves, elementwise: it has the sign of `input`."""
    e.no_booleans("fmod", input, other)
    e.no_zeros(input, other)
    return xp.fmod(input, other)


@primitive(
    "xlogy",
    input=lambda g, input, other: g * log(where((input == 0) & (other <= 0), 1, other)),
    other=lambda g, input, other: g * (input / other),
    promote=("input", "other"),
    floating=True,
)
def xlogy(xp, input, other):
    """`input * log(other)`, elementwise; 0 where `input` is 0, unless `other` is NaN."""
    nothing = xp.logical_and(xp.equal(input, 0), xp.equal(other, other))
    one = xp.constant(1, other.dtype)
    return xp.multiply(input, xp.log(xp.where(nothing, one, other)))


@public
def isclose(
    input: T, other: Alike, rtol: AtLeast0 = 1e-05, atol: AtLeast0 = 1e-08, equal_nan: bool = False
) -> Any:
    """Whether `|input - other| <= atol + rtol * |other|`, elementwise; infinities equal themselves.

    Raises RuntimeError for two dtypes, or a tolerance below 0.
    """
    same = input == other
    if equal_nan:
        same = same | ((input != input) & (other != other))
    finite = isfinite(input) & isfinite(other)
    x, y = where(finite, input, 0), where(finite, other, 0)
    return same | (finite & (e.abs(x - y) <= e.abs(y) * rtol + atol))


# Three numbers ------------------------------------------------------------------------------------


@public
def lerp(input: Float, end: Alike, weight: Any) -> Any:
    """`input + weight * (end - input)`, broadcast: exactly `input` at weight 0, `end` at 1.

    Args:
        input, end: Tensors of one float dtype.
        weight: a number, or a Tensor of that dtype (of any, where it has no dimensions).

    Raises TypeError for numbers as `end`, RuntimeError for integers and for other dtypes.
    """
    way = end - input
    if isinstance(weight, NUMBERS):
        share = float(weight)
        return input + way * share if abs(share) < 0.5 else end - way * (1 - share)
    want_tensors("lerp", True, weight=weight)
    if weight.ndim:
        want_same_dtype("lerp", "weight", weight, input)
    return where(e.abs(weight) < 0.5, input + way * weight, end - way * (1 - weight))


@public
def addcmul(input: TensorOnly, tensor1: T, tensor2: T, *, value: Any = 1) -> Any:
    """`input + value * tensor1 * tensor2`, broadcast.

    Raises TypeError for numbers in place of Tensors, RuntimeError for booleans, and for a `value`
    with a fraction where all else is integers.
    """
    kinds = {tensor.dtype.kind for tensor in (input, tensor1, tensor2)}
    integers = kinds != {"b"} and ("f" in kinds or not isinstance(value, float))
    text = "not defined for these dtypes and value {}; convert the Tensors, such as with .float()"
    need(integers, "addcmul", text, value)
    input, tensor1, tensor2 = promote((input, tensor1, tensor2))
    return input + (tensor1 * tensor2 if value == 1 else tensor1 * tensor2 * value)


@public
def addcdiv(input: TensorOnly, tensor1: T, tensor2: T, *, value: Any = 1) -> Any:
    """`input + value * tensor1 / tensor2`, broadcast.

    Raises TypeError for numbers in place of Tensors, RuntimeError for integers divided by integers.
    """
    floats = "f" in (tensor1.dtype.kind, tensor2.dtype.kind)
    text = "integers are not divided by integers here; convert one of them, such as with .float()"
    need(floats, "addcdiv", text)
    input, tensor1, tensor2 = promote((input, tensor1, tensor2))
    return input + (tensor1 / tensor2 if value == 1 else tensor1 / tensor2 * value)


# Bounds and other names ---------------------------------------------------------------------------


@public
def clamp_min(x: T, min: Any) -> Any:
    """`x`, at least `min`, a number or a Tensor."""
    return clamp(x, _bound("clamp_min", min), None)


@public
def clamp_max(x: T, max: Any) -> Any:
    """`x`, at most `max`, a number or a Tensor."""
    return clamp(x, None, _bound("clamp_max", max))


def _bound(name: str, bound: Any) -> Any:
    need(bound is not None, name, "the bound must be a number or a Tensor", bound, error=TypeError)
    return bound


absolute, divide, multiply, negative, subtract = e.abs, e.div_rounded, e.mul, e.neg, e.sub_scaled
arccos, arccosh, arcsin, arcsinh, arctan, arctanh = acos, acosh, asin, asinh, atan, atanh
arctan2, clip, fix, sgn, true_divide = atan2, public(clamp), trunc, e.sign, div


# More functions of two numbers, and of the parts of one -------------------------------------------


@public
def fmax(input: T, other: T) -> Any:
    """The larger of two, elementwise; a NaN only where both are. A tie's gradient goes to `input`.

    Raises TypeError for numbers.
    """
    x, y = promote((input, other))
    return where((x >= y) | isnan(y), x, y)


@public
def fmin(input: T, other: T) -> Any:
    """The smaller of two, elementwise; a NaN only where both are. See `fmax`."""
    x, y = promote((input, other))
    return where((x <= y) | isnan(y), x, y)


def float_power(input: Any, exponent: Any) -> Any:
    """`input ** exponent` in float64, elementwise; either may be a number."""
    double = as_dtype("double")
    x, y = (cast(v, double) if type(v) in TENSORS else float(v) for v in (input, exponent))
    return e.pow(x, y)


@public
def heaviside(input: TensorOnly, values: TensorOnly) -> Any:
    """0 where `input` is negative, 1 where it is positive, elementwise, and `values` where it is 0.

    Raises RuntimeError for two dtypes, and in a backward pass through it.
    """
    want_same_dtype("heaviside", "values", values, input)
    x = input.detach()
    found = where(x == 0, values.detach(), cast(x > 0, input.dtype))
    return underived("heaviside", found, input, values)


logaddexp2 = of_floats(
    "logaddexp2",
    "`log2(2 ** input + 2 ** other)` without overflow, elementwise.",
    input=lambda g, input, other: g * logistic((input - other) * math.log(2)),
    other=lambda g, input, other: g * logistic((other - input) * math.log(2)),
)
nextafter = of_floats(
    "nextafter",
    "The next number from `input` towards `other`, elementwise.",
    input=lambda g: g,
    other=lambda g: e.zeros_like(g),
)


@public
def rsub(input: TensorOnly, other: Any, *, alpha: Any = 1) -> Any:
    """`other - alpha * input`, broadcast."""
    return e.sub_scaled(other, input, alpha=alpha)


# Mantissa and exponent ----------------------------------------------------------------------------


def ldexp(input: Any, other: Any) -> Any:
    """`input * 2 ** other`, elementwise; integers give the default float type."""
    want_tensors("ldexp", input=input, other=other)
    x, exponent = promote((input, other), True)
    exponent = clamp(exponent, -6000, 6000)
    third = e.floor(exponent / 3)  # as the whole power may be out of range
    step = exp2(third)
    return e.mul(e.mul(e.mul(x, step), step), exp2(exponent - third * 2))


# What `frexp` returns.
MantissaAndExponent = namedtuple("MantissaAndExponent", "mantissa exponent")


_exponent = primitive("frexp", lambda xp, x: xp.asarray(xp.frexp(x)[1], int32))


@public
def frexp(x: Float) -> MantissaAndExponent:
    """`(mantissa, exponent)` with `x = mantissa * 2 ** exponent` and a mantissa from 0.5 to 1.

    Exponents are int32. Raises RuntimeError for integers and booleans.
    """
    exponent = _exponent(x)
    half = cast(exponent // 2, x.dtype)  # twice, as the whole power may be out of range
    rest = cast(exponent, x.dtype) - half
    return MantissaAndExponent(x * exp2(-half) * exp2(-rest), exponent)


# Infinities and signs -----------------------------------------------------------------------------


@public
def isposinf(x: T) -> Any:
    """Whether `x` is plus infinity, elementwise."""
    return eq(x, math.inf)


@public
def isneginf(x: T) -> Any:
    """Whether `x` is minus infinity, elementwise."""
    return eq(x, -math.inf)


@public
def isreal(x: T) -> Any:
    """Whether `x` is a real number, elementwise; here all are."""
    return eq(e.zeros_like(x), 0)


@public
def angle(x: T) -> Any:
    """pi where `x` is below 0, else 0, and NaN where it is NaN; its gradient is 0."""
    x = to_float(x)
    return where(isnan(x), x, where(x < 0, math.pi, e.zeros_like(x)))


@public
def real(x: T) -> Any:
    """`x` itself: there are no complex numbers."""
    return x


@public
def conj_physical(x: T) -> Any:
    """A copy of `x`: there are no complex numbers."""
    return e.clone(x)


conj = resolve_conj = resolve_neg = real
