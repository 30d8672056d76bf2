"""The gamma function and its derivatives, Bessel functions, and what the normal distribution needs.

All take integers too, which become the default float type. How they are computed: `numerics`.
"""

from __future__ import annotations

import math
from typing import Any

from ...backend import MODES, float16, float32
from ...tensor import TENSORS
from ..coercion import to_float
from ..fronts import Int, T, public
from ..registry import primitive
from ..registry import real_function as real
from .elementwise import clamp, exp, log, sign, where
from .special import erfc, log1p

__all__ = [
    "digamma", "erfinv", "i0", "lgamma", "logit", "mvlgamma", "polygamma", "sinc",
]  # fmt: skip

_REAL = {"floating": True}

# The gamma function -------------------------------------------------------------------------------

lgamma = real(
    "lgamma", "The logarithm of `|gamma(x)|`", lambda g, x: g * digamma(x), instruction="gammaln"
)
digamma = real(
    "digamma",
    "The derivative of `lgamma` (NaN at negative integers)",
    lambda g, x: g * polygamma_of(x, 1),
)


def _polygamma(xp, x, *, order):
    factor = math.factorial(order) if order % 2 else -math.factorial(order)
    return xp.multiply(xp.zeta(xp.constant(order + 1, x.dtype), x), xp.constant(factor, x.dtype))


polygamma_of = primitive(
    "polygamma", _polygamma, x=lambda g, x, order: g * polygamma_of(x, order + 1), options=_REAL
)


def polygamma(n: int, input: Any) -> Any:
    """The `n`-th derivative of `digamma`, elementwise; infinite at 0 and the negative integers.

    Raises RuntimeError for a negative `n`.
    """
    if n < 0:
        raise RuntimeError(f"polygamma(): n must not be negative, got {n}")
    return polygamma_of(input, n) if n else digamma(input)


@public
def mvlgamma(x: T, p: Int) -> Any:
    """The logarithm of the multivariate gamma function of dimension `p`, elementwise.

    It is `log(pi) * p * (p - 1) / 4 + sum(lgamma(x - j / 2))` over j from 0 to p - 1. Raises
    RuntimeError for a `p` below 1.
    """
    if p < 1:
        raise RuntimeError(f"mvlgamma(): p must be at least 1, got {p}")
    result = lgamma(x) + math.log(math.pi) * p * (p - 1) / 4
    for j in range(1, p):
        result = result + lgamma(x - j / 2)
    return result


zeta_of = primitive(
    "zeta",
    lambda xp, input, other: xp.zeta(input, other),
    other=lambda g, input, other: -g * (input * zeta_of(input + 1, other)),
    options={"promote": ("input", "other"), "floating": True},
)


def zeta(input: Any, other: Any) -> Any:
    """Hurwitz's zeta function, the sum of `(other + k) ** -input` over all k from 0, elementwise.

    Infinite for an input of 1 and where `other` is 0, -1 ...; NaN for an input below 1. Raises
    RuntimeError for an input that requires grad: only the derivative in `other` is known.
    """
    if MODES.grad and type(input) in TENSORS and input.requires_grad:
        raise RuntimeError("zeta(): no derivative in its first argument; detach() that")
    return zeta_of(input, other)


# Bessel functions ---------------------------------------------------------------------------------


def _growing(order: int) -> Any:
    """The kernel of a Bessel function, from the one that is scaled by `exp(-|x|)`."""

    def kernel(xp, x):
        bound = xp.constant(3000, x.dtype)  # from far below it the result is infinite
        x = xp.minimum(xp.maximum(x, xp.negative(bound)), bound)
        # In two halves: the exponential overflows before the result does.
        half = xp.exp(xp.multiply(xp.absolute(x), xp.constant(0.5, x.dtype)))
        return xp.multiply(xp.multiply(getattr(xp, f"i{order}e")(x), half), half)

    return kernel


def _not_zero(x: Any) -> Any:
    return where(x == 0, 1, x)


i0 = primitive(
    "i0",
    _growing(0),
    "The modified Bessel function of the first kind of order 0, elementwise.",
    x=lambda g, x: g * i1(x),
    options=_REAL,
)
i1 = primitive(
    "i1",
    _growing(1),
    "The modified Bessel function of the first kind of order 1, elementwise.",
    x=lambda g, x, result: g * where(x == 0, 0.5, i0(x) - result / _not_zero(x)),
    options=_REAL,
)
i0e = real("i0e", "`exp(-|x|) * i0(x)`", lambda g, x, result: g * (i1e(x) - sign(x) * result))
i1e = real(
    "i1e",
    "`exp(-|x|) * i1(x)`",
    lambda g, x, result: g * where(x == 0, 0.5, i0e(x) - result * (sign(x) + 1 / _not_zero(x))),
)

# The normal distribution --------------------------------------------------------------------------

erfinv = real(
    "erfinv",
    "The inverse of `erf` (infinite at -1 and 1, NaN beyond)",
    lambda g, result: g * (exp(result * result) * (math.sqrt(math.pi) / 2)),
)
erfcx = real(
    "erfcx",
    "`exp(x * x) * erfc(x)` without overflow",
    lambda g, x, result: g * (x * result * 2 - 2 / math.sqrt(math.pi)),
)
ndtri = real(
    "ndtri",
    "The inverse of `ndtr`",
    lambda g, result: g * (exp(result * result * 0.5) * math.sqrt(2 * math.pi)),
)


@public
def ndtr(x: T) -> Any:
    """The chance that a standard normal number is below `x`, elementwise."""
    return erfc(to_float(x) * -math.sqrt(0.5)) * 0.5


@public
def log_ndtr(x: T) -> Any:
    """`log(ndtr(x))`, elementwise, without underflow."""
    x = to_float(x)
    low, high = clamp(x, None, -1), clamp(x, -1, None)
    below = log(erfcx(low * -math.sqrt(0.5)) * 0.5) - low * low * 0.5
    return where(x < -1, below, log1p(erfc(high * math.sqrt(0.5)) * -0.5))


# Logarithms ---------------------------------------------------------------------------------------


def _logit(xp, x):
    return xp.log(xp.divide(x, xp.subtract(xp.constant(1, x.dtype), x)))


_logit_of = primitive(
    "logit",
    _logit,
    x=lambda g, x: where((x < 0) | (x > 1), math.nan, g / (x * (1 - x))),
    options=_REAL,
)


@public
def logit(x: T, eps: float | None = None) -> Any:
    """`log(x / (1 - x))`, elementwise, the inverse of `sigmoid`; NaN outside [0, 1].

    With `eps`, `x` is limited to [eps, 1 - eps] first.
    """
    return _logit_of(x if eps is None else clamp(to_float(x), eps, 1 - eps))


def _sinc(xp, x, *, order=0):
    """Of `sin(t) / t` the derivative of `order` at `t = pi * x`.

    Near 0 its series, whose terms are `(-1)^k t^(2k - n) / (2k - n)! / (2k + 1)`; beyond, by
    integration by parts of the integral of `s^n cos(s t + n pi / 2)`, from one order to the next.
    """
    if x.dtype == float16:
        return xp.asarray(_sinc(xp, xp.asarray(x, float32), order=order), float16)

    def number(value):
        return xp.constant(value, x.dtype)

    t = xp.multiply(x, number(math.pi))
    size, first = xp.absolute(t), (order + 1) // 2
    near = xp.less(size, number(order + 1)) if order else xp.equal(t, number(0))
    inside = xp.where(near, t, number(0))
    square, series = xp.multiply(inside, inside), number(0)
    for k in reversed(range(first, first + (14 + 2 * order if order else 1))):
        term = (-1) ** k / math.factorial(2 * k - order) / (2 * k + 1)
        series = xp.add(xp.multiply(series, square), number(term))
    series = xp.multiply(series, inside) if order % 2 else series
    t = xp.where(near, number(1), t)
    waves = xp.sin(t), xp.cos(t) if order else None
    beyond = xp.divide(waves[0], t)
    for n in range(1, order + 1):
        wave = waves[n % 2] if n % 4 < 2 else xp.negative(waves[n % 2])
        beyond = xp.divide(xp.subtract(wave, xp.multiply(beyond, number(n))), t)
    return xp.where(near, series, beyond)


sinc_of = primitive(
    "sinc",
    _sinc,
    x=lambda g, x, order: g * (sinc_of(x, order + 1) * math.pi),
    options=_REAL,
)


@public
def sinc(x: T) -> Any:
    """`sin(pi * x) / (pi * x)`, elementwise, and 1 at 0."""
    return sinc_of(x)


def _xlog1py(xp, input, other):
    """`input * log1p(other)`, elementwise; 0 where `input` is 0, unless `other` is NaN."""
    nothing = xp.logical_and(xp.equal(input, 0), xp.equal(other, other))
    return xp.multiply(input, xp.log1p(xp.where(nothing, xp.constant(0, other.dtype), other)))


xlog1py = primitive(
    "xlog1py",
    _xlog1py,
    input=lambda g, input, other: g * log1p(where((input == 0) & (other <= -1), 0, other)),
    other=lambda g, input, other: g * (input / (other + 1)),
    options={"promote": ("input", "other"), "floating": True},
)


def _entr(xp, x):
    """`-x * log(x)`, elementwise; 0 at 0 and minus infinity below."""
    zero, one = xp.constant(0, x.dtype), xp.constant(1, x.dtype)
    found = xp.multiply(x, xp.log(xp.where(xp.greater(x, zero), x, one)))
    return xp.where(xp.less(x, zero), xp.constant(-math.inf, x.dtype), xp.subtract(zero, found))


entr = primitive("entr", _entr, x=lambda g, x: g * (-1 - log(x)), options=_REAL)
