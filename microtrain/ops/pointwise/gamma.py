"""The gamma function and its derivatives, Bessel functions, and what the normal distribution needs.

All take integers too, which become the default float type. How they are computed: `numerics`.
"""

from __future__ import annotations

import math
from typing import Any

from ...backend import MODES, float16, float32
from ...tensor import TENSORS
from ..coercion import to_float
from ..fronts import Positive, T, need, public
from ..registry import primitive
from ..registry import real_function as real
from .elementwise import clamp, exp, log, sign, where, zeros_like
from .special import erfc, log1p

__all__ = [
    "digamma", "erfinv", "i0", "lgamma", "logit", "mvlgamma", "polygamma", "sinc",
]  # fmt: skip


# The gamma function -------------------------------------------------------------------------------

lgamma = real(
    "lgamma", "The logarithm of `|gamma(x)|`", lambda g, x: g * digamma(x), instruction="gammaln"
)
digamma = real(
    "digamma",
    "The derivative of `lgamma` (NaN at negative integers)",
    lambda g, x: g * polygamma_of(x, 1),
)


@primitive("polygamma", x=lambda g, x, order: g * polygamma_of(x, order + 1), floating=True)
def polygamma_of(xp, x, *, order):
    factor = math.factorial(order) if order % 2 else -math.factorial(order)
    return xp.multiply(xp.zeta(xp.constant(order + 1, x.dtype), x), xp.constant(factor, x.dtype))


def polygamma(n: int, input: Any) -> Any:
    """The `n`-th derivative of `digamma`, elementwise; infinite at 0 and the negative integers.

    Raises RuntimeError for a negative `n`.
    """
    need(n >= 0, "polygamma", "n must not be negative", n)
    return polygamma_of(input, n) if n else digamma(input)


@public
def mvlgamma(x: T, p: Positive) -> Any:
    """The logarithm of the multivariate gamma function of dimension `p`, elementwise.

    It is `log(pi) * p * (p - 1) / 4 + sum(lgamma(x - j / 2))` over j from 0 to p - 1. Raises
    RuntimeError for a `p` below 1.
    """
    result = lgamma(x) + math.log(math.pi) * p * (p - 1) / 4
    for j in range(1, p):
        result = result + lgamma(x - j / 2)
    return result


zeta_of = primitive(
    "zeta",
    lambda xp, input, other: xp.zeta(input, other),
    other=lambda g, input, other: -g * (input * zeta_of(input + 1, other)),
    promote=("input", "other"),
    floating=True,
)


def zeta(input: Any, other: Any) -> Any:
    """Hurwitz's zeta function, the sum of `(other + k) ** -input` over all k from 0, elementwise.

    Infinite for an input of 1 and where `other` is 0, -1 ...; NaN for an input below 1, and mostly
    from 1e14 on. Raises RuntimeError for an input that requires grad: only the derivative in
    `other` is known.
    """
    known = not MODES.grad or type(input) not in TENSORS or not input.requires_grad
    need(known, "zeta", "no derivative in its first argument; detach() that")
    return zeta_of(input, other)


# Bessel functions ---------------------------------------------------------------------------------


def _growing(scaled: Any) -> Any:
    """The kernel of a Bessel function, from `scaled(xp, x)`, the one times `exp(-|x|)`."""

    def kernel(xp, x):
        bound = xp.constant(3000, x.dtype)  # from far below it the result is infinite
        x = xp.minimum(xp.maximum(x, xp.negative(bound)), bound)
        # In two halves: the exponential overflows before the result does.
        half = xp.exp(xp.multiply(xp.absolute(x), xp.constant(0.5, x.dtype)))
        return xp.multiply(xp.multiply(scaled(xp, x), half), half)

    return kernel


def _bessel(xp, x, *, order, scaled=False):
    """The modified Bessel function of an order from 2, perhaps times `exp(-|x|)`.

    Near 0 its series; beyond, by the recurrence of the orders.
    """
    if not scaled:
        return _growing(lambda xp, x: _bessel(xp, x, order=order, scaled=True))(xp, x)

    def number(value):
        return xp.constant(value, x.dtype)

    near = xp.less(xp.absolute(x), number(2 * order))
    inside = xp.where(near, x, number(0))
    half = xp.multiply(inside, number(0.5))
    square, series = xp.multiply(half, half), number(0)
    for k in reversed(range(12 + 4 * order)):
        term = 1 / math.factorial(k) / math.factorial(k + order)
        series = xp.add(xp.multiply(series, square), number(term))
    for _ in range(order):
        series = xp.multiply(series, half)
    series = xp.multiply(series, xp.exp(xp.negative(xp.absolute(inside))))
    x = xp.where(near, number(2 * order), x)
    low, high = xp.i0e(x), xp.i1e(x)
    for n in range(1, order):
        low, high = high, xp.subtract(low, xp.multiply(xp.divide(high, x), number(2 * n)))
    return xp.where(near, series, high)


def _bessel_rule(g, x, order, scaled):
    slope = (_of_order(x, order - 1, scaled) + bessel_of(x, order + 1, scaled)) * 0.5
    return g * (slope - sign(x) * bessel_of(x, order, True) if scaled else slope)


def _of_order(x: Any, order: int, scaled: bool) -> Any:
    if order > 1:
        return bessel_of(x, order, scaled)
    return i1e(x) if scaled else i1(x)


bessel_of = primitive("bessel", _bessel, x=_bessel_rule)


i0 = primitive(
    "i0",
    _growing(lambda xp, x: xp.i0e(x)),
    "The modified Bessel function of the first kind of order 0, elementwise.",
    x=lambda g, x: g * i1(x),
    floating=True,
)
i1 = primitive(
    "i1",
    _growing(lambda xp, x: xp.i1e(x)),
    "The modified Bessel function of the first kind of order 1, elementwise.",
    x=lambda g, x: g * ((i0(x) + bessel_of(x, 2)) * 0.5),
    floating=True,
)
i0e = real("i0e", "`exp(-|x|) * i0(x)`", lambda g, x, result: g * (i1e(x) - sign(x) * result))
i1e = real(
    "i1e",
    "`exp(-|x|) * i1(x)`",
    lambda g, x, result: g * ((i0e(x) + bessel_of(x, 2, True)) * 0.5 - sign(x) * result),
)

# The normal distribution --------------------------------------------------------------------------

erfinv = real(
    "erfinv",
    "The inverse of `erf` (infinite at -1 and 1, NaN beyond)",
    lambda g, result: g * (exp(result * result) * (math.sqrt(math.pi) / 2)),
)


TAIL = 10.0


@primitive("erfcx_tail", x=lambda g, x, order: g * tail_of_erfcx(x, order + 1))
def tail_of_erfcx(xp, x, *, order):
    """The derivative of `order` of `erfcx` beyond TAIL, by its asymptotic series."""
    y = xp.reciprocal(xp.maximum(x, xp.constant(TAIL, x.dtype)))
    square, found = xp.multiply(y, y), xp.constant(0, x.dtype)
    for k in reversed(range(14)):
        odd = math.prod(range(1, 2 * k, 2)) / (-2) ** k * (-1) ** order
        term = odd * math.prod(range(2 * k + 1, 2 * k + 1 + order)) / math.sqrt(math.pi)
        found = xp.add(xp.multiply(found, square), xp.constant(term, x.dtype))
    for _ in range(order + 1):
        found = xp.multiply(found, y)
    return found


def _erfcx_rule(g, x, result):
    far = x > TAIL  # where the difference of two nearly equal numbers would be left
    near = where(far, 0, x) * result * 2 - 2 / math.sqrt(math.pi)
    return g * where(far, tail_of_erfcx(x, 1), near)


erfcx = real("erfcx", "`exp(x * x) * erfc(x)` without overflow", _erfcx_rule)
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


def _logit_rule(g, x):
    x = x + where((x < 0) | (x > 1), math.nan, zeros_like(x))
    return g / (x * (1 - x))


@primitive("logit", x=_logit_rule, floating=True)
def _logit_of(xp, x):
    return xp.log(xp.divide(x, xp.subtract(xp.constant(1, x.dtype), x)))


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
    "sinc", _sinc, x=lambda g, x, order: g * (sinc_of(x, order + 1) * math.pi), floating=True
)


@public
def sinc(x: T) -> Any:
    """`sin(pi * x) / (pi * x)`, elementwise, and 1 at 0."""
    return sinc_of(x)


@primitive(
    "xlog1py",
    input=lambda g, input, other: g * log1p(where((input == 0) & (other <= -1), 0, other)),
    other=lambda g, input, other: g * (input / (other + 1)),
    promote=("input", "other"),
    floating=True,
)
def xlog1py(xp, input, other):
    """`input * log1p(other)`, elementwise; 0 where `input` is 0, unless `other` is NaN."""
    nothing = xp.logical_and(xp.equal(input, 0), xp.equal(other, other))
    return xp.multiply(input, xp.log1p(xp.where(nothing, xp.constant(0, other.dtype), other)))


@primitive("entr", x=lambda g, x: g * (-1 - log(x)), floating=True)
def entr(xp, x):
    """`-x * log(x)`, elementwise; 0 at 0 and minus infinity below."""
    zero, one = xp.constant(0, x.dtype), xp.constant(1, x.dtype)
    found = xp.multiply(x, xp.log(xp.where(xp.greater(x, zero), x, one)))
    return xp.where(xp.less(x, zero), xp.constant(-math.inf, x.dtype), xp.subtract(zero, found))
