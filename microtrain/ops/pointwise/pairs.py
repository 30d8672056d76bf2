"""More functions of two numbers, and of the parts of one: fmax, heaviside, ldexp, frexp, angle."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...backend import as_dtype, int32
from ...tensor import TENSORS
from ..arguments import want_same_dtype, want_tensors
from ..coercion import cast, promote, to_float, underived
from ..fronts import Float, T, TensorOnly, public
from ..registry import primitive
from .comparison import eq, isnan
from .elementwise import clamp, clone, floor, logistic, mul, pow, sub_scaled, where, zeros_like
from .special import exp2, of_floats

__all__ = [
    "angle", "conj", "conj_physical", "float_power", "fmax", "fmin", "frexp", "heaviside",
    "isneginf", "isposinf", "isreal", "ldexp", "logaddexp2", "nextafter", "real", "resolve_conj",
    "resolve_neg", "rsub",
]  # fmt: skip


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
    return pow(x, y)


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
    other=lambda g: zeros_like(g),
)


@public
def rsub(input: TensorOnly, other: Any, *, alpha: Any = 1) -> Any:
    """`other - alpha * input`, broadcast."""
    return sub_scaled(other, input, alpha=alpha)


# Mantissa and exponent ----------------------------------------------------------------------------


def ldexp(input: Any, other: Any) -> Any:
    """`input * 2 ** other`, elementwise; integers give the default float type."""
    want_tensors("ldexp", input=input, other=other)
    x, exponent = promote((input, other), True)
    exponent = clamp(exponent, -6000, 6000)
    third = floor(exponent / 3)  # as the whole power may be out of range
    step = exp2(third)
    return mul(mul(mul(x, step), step), exp2(exponent - third * 2))


class MantissaAndExponent(NamedTuple):
    """What `frexp` returns."""

    mantissa: Any
    exponent: Any


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
    return eq(zeros_like(x), 0)


@public
def angle(x: T) -> Any:
    """pi where `x` is below 0, else 0, and NaN where it is NaN; its gradient is 0."""
    x = to_float(x)
    return where(isnan(x), x, where(x < 0, math.pi, zeros_like(x)))


@public
def real(x: T) -> Any:
    """`x` itself: there are no complex numbers."""
    return x


@public
def conj_physical(x: T) -> Any:
    """A copy of `x`: there are no complex numbers."""
    return clone(x)


conj = resolve_conj = resolve_neg = real
