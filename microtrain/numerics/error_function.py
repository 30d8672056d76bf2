"""The error function, which GELU needs: without SciPy, and in float32 in a fifth of the time.

The method and the numbers are those of Sun's FDLIBM (s_erf.c, 1993), which most C libraries have:
quotients of polynomials in four intervals, off by one unit in the last place or less. Each interval
computes only the elements beyond the one before it.

In float32 erf takes a shorter way: `tanh(x * q(x * x))`, where q is the quotient of two cubic
polynomials that is closest to `atanh(erf(x)) / x`. That is one formula for all x, well-conditioned
everywhere; it is off by 3e-9 and by about four roundings, and three times as fast.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

BLOCK = 8192  # elements, which stay in the cache until all steps are taken

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
    """`1 - erf(x)`, elementwise, accurate also where that is next to nothing: SciPy's is not."""
    return _blockwise(_erfc, x, out)


def _blockwise(function: Any, x: Any, out: Any) -> Any:
    x = np.asarray(x)
    flat = x.reshape(-1)
    if out is None:
        out = np.empty(x.shape, x.dtype)
    direct = out.flags.c_contiguous
    result = out.reshape(-1) if direct else np.empty(flat.shape, x.dtype)
    wide = np.promote_types(x.dtype, np.float32)  # of float16
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
        np.multiply(quotient(_SINGLE, square, above, below), within, out=within)
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
    result = quotient(_NEAR, inside * inside)
    result *= np.copysign(inside, x)
    return size, result


def _complement(size: Any) -> Any:
    """`erfc(size)` for sizes of at least NEAR."""
    result = 1 - _ERF_OF_1 - quotient(_MIDDLE, np.minimum(size, MIDDLE) - 1)
    beyond = np.flatnonzero(size >= MIDDLE)
    y = np.minimum(size[beyond], NOTHING_LEFT)
    s = 1 / (y * y)
    t = quotient(_FAR, s)
    farthest = np.flatnonzero(y >= FAR)
    t[farthest] = quotient(_FARTHEST, s[farthest])  # log(y * erfc(y) * exp(y * y)) + 0.5625
    # exp(-y * y) from a part that is exact and a small rest: the digits of y * y do not suffice.
    head = y.astype(_HALF[y.dtype.name]).astype(y.dtype)
    t += (head - y) * (head + y)
    result[beyond] = np.exp(-head * head - 0.5625) * np.exp(t) / y
    return result


def quotient(polynomials: Any, s: Any, *outs: Any) -> Any:
    above, below = map(horner, polynomials, (s, s), outs or (None, None))
    above /= below
    return above


def horner(coefficients: tuple[float, ...], s: Any, out: Any = None) -> Any:
    result = np.multiply(s, coefficients[-1], out=out)
    for c in coefficients[-2:0:-1]:
        result += c
        result *= s
    result += coefficients[0]
    return result
