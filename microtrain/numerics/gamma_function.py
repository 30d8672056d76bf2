"""The logarithm of the gamma function, its derivatives, and Hurwitz's zeta function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .blocks import horner, in_double, quotient

# From Sun's FDLIBM (e_lgamma_r.c, 1993): of 2 - x for x from 1.73 to 2, the even powers and the odd
# ones; of x - 2 for x from 2 to 3; of 1 / (x * x) for large x.
_BELOW_2 = (
    (7.72156649015328655494e-02, 6.73523010531292681824e-02, 7.38555086081402883957e-03,
     1.19270763183362067845e-03, 2.20862790713908385557e-04, 2.52144565451257326939e-05),
    (3.22467033424113591611e-01, 2.05808084325167332806e-02, 2.89051383673415629091e-03,
     5.10069792153511336608e-04, 1.08011567247583939954e-04, 4.48640949618915160150e-05),
)  # fmt: skip
_FROM_2 = (
    (-7.72156649015328655494e-02, 2.14982415960608852501e-01, 3.25778796408930981787e-01,
     1.46350472652464452805e-01, 2.66422703033638609560e-02, 1.84028451407337715652e-03,
     3.19475326584100867617e-05),
    (1.0, 1.39200533467621045958e00, 7.21935547567138069525e-01, 1.71933865632803078993e-01,
     1.86459191715652901344e-02, 7.77942496381893596434e-04, 7.32668430744625636189e-06),
)  # fmt: skip
_LARGE = (
    8.33333333333329678849e-02, -2.77777777728775536470e-03, 7.93650558643019558500e-04,
    -5.95187557450339963135e-04, 8.36339918996282139126e-04, -1.63092934096575273989e-03,
)  # fmt: skip
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)

# B(2k) / (2k) and B(2k) / (2k)! of Bernoulli's numbers B.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510,
              43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730)  # fmt: skip
_OF_DIGAMMA = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI[:8], 1))
_OF_ZETA = tuple(b / math.factorial(2 * k) for k, b in enumerate(_BERNOULLI, 1))
FAR = 10.0  # from here on the asymptotic series have all digits


@in_double
def gammaln(x: Any) -> Any:
    """`log(|gamma(x)|)`; infinite at 0 and the negative integers."""
    size = np.abs(x)
    result = _log_gamma(np.where(size == 0, 1, size))
    below = np.flatnonzero(x < 0)
    y = size[below]
    # gamma(x) * gamma(1 - x) = pi / sin(pi * x), and gamma(1 + y) = y * gamma(y).
    reflected = np.log(np.pi / (y * np.abs(_sin_pi(y)))) - result[below]
    result[below] = np.where(y < 1e-20, -np.log(y), reflected)  # whose square would underflow
    return np.where((x == 0) | ((x < 0) & (x == np.floor(x))), np.inf, result)


def _log_gamma(x: Any) -> Any:
    """The logarithm of gamma, for x above 0."""
    result = (x - 0.5) * (np.log(x) - 1) + (_HALF_LOG_2PI - 0.5)
    result += horner(_LARGE, 1 / (x * x)) / x
    result = np.where(np.isinf(x), np.inf, result)
    inner = np.flatnonzero(x < 8)
    y = x[inner]
    # gamma(y + 1) = y * gamma(y), to where y is 1.73 to 3; its distance from 2 without rounding.
    low, lowest = y < 1.7316, y < 0.7316
    change = np.where(low, -np.log(y), 0) - np.where(lowest, np.log1p(y), 0)
    y = np.where(lowest, y, np.where(low, y - 1, y - 2))
    factor = np.ones_like(y)
    for _ in range(5):
        high = y >= 1
        y = np.where(high, y - 1, y)
        factor *= np.where(high, y + 2, 1)
    result[inner] = np.where(y < 0, _below_2(-y), _from_2(y)) + np.log(factor) + change
    return result


def _below_2(y: Any) -> Any:
    square = y * y
    even, odd = (horner(c, square) for c in _BELOW_2)
    return y * even + square * odd - 0.5 * y


def _from_2(y: Any) -> Any:
    return 0.5 * y + y * quotient(_FROM_2, y)


def _sin_pi(x: Any) -> Any:
    """`sin(pi * x)` for x of at least 0, exactly 0 at integers."""
    y = np.remainder(x, 2)
    return np.sin(np.pi * np.where(y > 1.5, y - 2, np.where(y > 0.5, 1 - y, y)))


@in_double
def digamma(x: Any) -> Any:
    """The derivative of `gammaln`; NaN at the negative integers, infinite at 0."""
    below = x <= 0
    y = np.where(below, 1 - x, x)
    result = np.zeros_like(y)
    for _ in range(int(FAR)):  # digamma(y) = digamma(y + 1) - 1 / y
        low = y < FAR
        result -= np.where(low, 1 / y, 0)
        y = np.where(low, y + 1, y)
    s = 1 / (y * y)
    result += np.log(y) - 0.5 / y - s * horner(_OF_DIGAMMA, s)
    turn = x - np.rint(x)  # digamma(1 - x) - digamma(x) = pi / tan(pi * x)
    result -= np.where(below, np.pi / np.tan(np.pi * turn), 0)
    result = np.where(below & (turn == 0), np.nan, result)
    return np.where(x == 0, np.copysign(np.inf, -x), result)


def zeta(s: Any, q: Any) -> Any:
    """Hurwitz's zeta function, the sum of `(q + k) ** -s` over all k from 0.

    Infinite at s = 1 and at q = 0, -1 ...; NaN for s below 1, and for q below 0 unless s is whole.
    """
    s, q = np.broadcast_arrays(s, q)
    wide = s.astype(np.float64).reshape(-1), q.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        return _zeta(*wide).astype(q.dtype).reshape(q.shape)


def _zeta(s: Any, q: Any) -> Any:
    result = _zeta_of_positive(s, q)
    below = np.flatnonzero((q < 0) & (s == np.floor(s)) & np.isfinite(q))
    t, p = s[below], q[below]
    above = p - np.floor(p)
    # Below 0 are finitely many terms: those from 1 - above on, without those from 1 - p on.
    terms = _zeta_of_positive(t, 1 - above) - _zeta_of_positive(t, 1 - p)
    result[below] = _zeta_of_positive(t, above) + np.where(t % 2 == 0, 1, -1) * terms
    near = np.flatnonzero((q < 0) & (q > -0.5) & (s == np.floor(s)))
    t, p = s[near], q[near]
    result[near] = p**-t + _zeta_of_positive(t, 1 + p)
    result = np.where((q < 0) & (s != np.floor(s)), np.nan, result)
    result = np.where((q <= 0) & (q == np.floor(q)), np.inf, result)
    return np.where(s == 1, np.inf, np.where(s < 1, np.nan, result))


def _zeta_of_positive(s: Any, q: Any) -> Any:
    """Ten terms, and the rest by the formula of Euler and Maclaurin."""
    result = np.zeros_like(q)
    for k in range(int(FAR)):
        result += (q + k) ** -s
    a = q + FAR
    power = a**-s
    result += a ** (1 - s) / (s - 1) + 0.5 * power
    factor = s * power / a
    for k, coefficient in enumerate(_OF_ZETA):
        result += np.where(power > 0, coefficient * factor, 0)
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / (a * a)
    return result
