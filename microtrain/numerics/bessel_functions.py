"""Modified Bessel functions of order 0 and 1, scaled by `exp(-|x|)`.

Up to 30 the integral `I_n(x) = 1/pi int_0^pi exp(x cos t) cos(n t) dt` by the trapezoidal rule,
whose error falls faster than exponentially with the number of points (Trefethen and Weideman, SIAM
Review 56, 2014); beyond, the asymptotic series (Abramowitz and Stegun, 9.7.1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .blocks import in_double

FAR = 30.0
POINTS = 64
TERMS = 30
# Points of a quarter turn, each of which stands for four, but for the first.
_COSINES = [(math.cos(2 * math.pi * k / POINTS), 4 if k else 2) for k in range(POINTS // 4)]


def _scaled(order: int, wave: Any, x: Any) -> Any:
    size = np.abs(x)
    a = np.minimum(size, FAR)
    near = np.full_like(a, 2 if order == 0 else 0)  # of the last point, where the cosine is 0
    for cosine, weight in _COSINES:
        near += wave(a * cosine) * (weight * cosine**order)
    near *= np.exp(-a) / POINTS
    b = np.maximum(size, FAR)
    far = term = np.ones_like(b)
    for k in range(1, TERMS):
        term = term * ((2 * k - 1) ** 2 - 4 * order) / (8 * k * b)
        far = far + term
    result = np.where(size < FAR, near, far / np.sqrt(2 * np.pi * b))
    return np.where(np.isnan(x), x, np.where(np.isinf(x), 0, result))


@in_double
def i0e(x: Any) -> Any:
    """`exp(-|x|) * I_0(x)`."""
    return _scaled(0, np.cosh, x)


@in_double
def i1e(x: Any) -> Any:
    """`exp(-|x|) * I_1(x)`."""
    return np.copysign(_scaled(1, np.sinh, x), x)
