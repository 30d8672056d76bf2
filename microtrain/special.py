"""The error function for NumPy, which has none; CuPy brings its own.

The method and the numbers are those of Sun's FDLIBM (s_erf.c, 1993), which most C libraries have:
quotients of polynomials in four intervals, off by one unit in the last place or less (and by what
`exp` adds in the tail of erfc). Each interval computes only the elements beyond the one before it.

In float32 erf takes a shorter way: `tanh(x * q(x * x))`, where q is the quotient of two cubic
polynomials that is closest to `atanh(erf(x)) / x`. That is one formula for all x, well-conditioned
everywhere; it is off by 3e-9 and by about four roundings, and three times as fast.

Blocks that fit in the cache go through all steps before the next block begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 8192  # elements

# Coefficients of numerator and denominator, lowest power first. The first quotient is one of x * x,
# the second of |x| - 1, the last two are of 1 / (x * x).
NEAR = 0.84375
_NEAR = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
MIDDLE = 1.25
_ERF_OF_1 = 8.45062911510467529297e-01  # about, in few bits
_MIDDLE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
FAR = 1 / 0.35
_FAR = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
     -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
     -8.12874355063065934246e01, -9.81432934416914548592e00),
    (1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
     6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02,
     6.57024977031928170135e00, -6.04244152148580987438e-02),
)  # fmt: skip
NOTHING_LEFT = 28.0  # erfc is 0 from here on
_FARTHEST = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
     -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
     -4.83519191608651397019e02),
    (1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
     3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02,
     -2.24409524465858183362e01),
)  # fmt: skip

# From here on tanh, as erf, rounds to 1 in float32.
_ONE = 4.3
_SINGLE = (
    (1.12837917084, 0.279806809035, 0.0426465463463, 0.00217828084761),
    (1.0, 0.156892560322, 0.0236899187598, 0.000324924158157),
)

# The next dtype with about half the digits: the square of a number rounded to it is exact.
_HALF = {"float64": np.float32, "float32": np.float16}


def erf(x: Any, out: Any = None) -> Any:
    """The error function of an array of floats, elementwise, into `out` where that is given."""
    return _blockwise(_erf, x, out)


def erfc(x: Any, out: Any = None) -> Any:
    """`1 - erf(x)`, elementwise, accurate also where that is next to nothing."""
    return _blockwise(_erfc, x, out)


def _blockwise(function: Callable[..., Any], x: Any, out: Any) -> Any:
    """`function(block, its result)` over all blocks of `x`; float16 is computed in float32."""
    x = np.asarray(x)
    flat = x.reshape(-1)
    if out is None:
        out = np.empty(x.shape, x.dtype)
    direct = out.flags.c_contiguous
    result = out.reshape(-1) if direct else np.empty(flat.shape, x.dtype)
    wide = np.promote_types(x.dtype, np.float32)
    for start in range(0, flat.shape[0], BLOCK):
        block = flat[start : start + BLOCK].astype(wide, copy=False)
        function(block, result[start : start + BLOCK])
    if not direct:
        out[...] = result.reshape(x.shape)
    return out


class _Steps(threading.local):
    """What the steps of a block of float32 are computed in: kept, for each thread."""

    def __init__(self) -> None:
        self.memory = np.empty((4, BLOCK), np.float32)


_STEPS = _Steps()


def _erf(x: Any, out: Any) -> None:
    if x.dtype == np.float32:
        within, square, above, below = _STEPS.memory[:, : x.shape[0]]
        np.minimum(np.maximum(x, -_ONE, out=within), _ONE, out=within)
        np.multiply(within, within, out=square)
        np.multiply(_quotient(_SINGLE, square, above, below), within, out=within)
        np.tanh(within, out=out)
        return
    size, result = _near(x)
    result += x
    beyond = np.flatnonzero(size >= NEAR)
    result[beyond] = np.copysign(1 - _complement(size[beyond]), x[beyond])
    out[...] = result


def _erfc(x: Any, out: Any) -> None:
    size, result = _near(x)
    result += x - 0.5
    np.subtract(0.5, result, out=result)
    beyond = np.flatnonzero(size >= NEAR)
    rest = _complement(size[beyond])
    result[beyond] = np.where(x[beyond] < 0, 2 - rest, rest)
    out[...] = result


def _near(x: Any) -> tuple[Any, Any]:
    """`|x|`, and `erf(x) - x` where that is below NEAR."""
    size = np.abs(x)
    inside = np.minimum(size, NEAR)
    result = _quotient(_NEAR, inside * inside)
    result *= np.copysign(inside, x)
    return size, result


def _complement(size: Any) -> Any:
    """`erfc(size)` for sizes of at least NEAR."""
    result = 1 - _ERF_OF_1 - _quotient(_MIDDLE, np.minimum(size, MIDDLE) - 1)
    beyond = np.flatnonzero(size >= MIDDLE)
    y = np.minimum(size[beyond], NOTHING_LEFT)
    s = 1 / (y * y)
    t = _quotient(_FAR, s)
    farthest = np.flatnonzero(y >= FAR)
    t[farthest] = _quotient(_FARTHEST, s[farthest])
    # exp(-y * y) from a part that is exact and a small rest: the digits of y * y do not suffice.
    head = y.astype(_HALF[y.dtype.name]).astype(y.dtype)
    t += (head - y) * (head + y)
    result[beyond] = np.exp(-head * head - 0.5625) * np.exp(t) / y
    return result


def _quotient(polynomials: Any, s: Any, *outs: Any) -> Any:
    above, below = map(_horner, polynomials, (s, s), outs or (None, None))
    above /= below
    return above


def _horner(coefficients: tuple[float, ...], s: Any, out: Any) -> Any:
    result = np.multiply(s, coefficients[-1], out=out)
    for c in coefficients[-2:0:-1]:
        result += c
        result *= s
    result += coefficients[0]
    return result


# The exponential of a matrix: its Padé approximation of order 13 of the matrix over a power of two,
# and squares of that: N. Higham, "The scaling and squaring method for the matrix exponential
# revisited", 2005, table 2.3 and algorithm 2.3.
_LARGEST_NORM = 5.371920351148152
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def matrix_exp(xp: Any, x: Any) -> Any:
    """The exponential of each matrix of (..., n, n), with the functions of NumPy or CuPy, `xp`."""
    if 0 in x.shape:
        return xp.zeros(x.shape, x.dtype)
    n, norm = x.shape[-1], xp.absolute(x).sum(-2).max(-1)
    norm = xp.where(xp.isfinite(norm), norm, 0)
    steps = xp.ceil(xp.log2(xp.maximum(norm, _LARGEST_NORM) / _LARGEST_NORM))
    steps = steps.reshape((*steps.shape, 1, 1))
    x = x / xp.asarray(xp.exp2(steps), x.dtype)
    one = xp.asarray(xp.arange(n).reshape((n, 1)) == xp.arange(n), x.dtype)
    second = x @ x
    fourth, b = second @ second, _PADE
    sixth = fourth @ second
    odd, even = (
        sixth @ (b[k + 12] * sixth + b[k + 10] * fourth + b[k + 8] * second)
        + b[k + 6] * sixth + b[k + 4] * fourth + b[k + 2] * second + b[k] * one
        for k in (1, 0)
    )  # fmt: skip
    odd = x @ odd
    found = xp.linalg.solve(even - odd, even + odd)
    for number in range(int(steps.max().item())):
        found = xp.where(steps > number, found @ found, found)
    return found
