"""Samples of the gamma function, Bessel functions and those of the normal distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, binary, normal, positive, unary, whole
from .special import _named, _points, away, inside

TERMS = 1000  # after which the rest of a sum is as good as an integral
SPECIAL = np.array([np.nan, np.inf])


def chance(*shape: int) -> Any:
    """Numbers between 0.05 and 0.95."""
    return np.asarray(0.5 + inside(*shape) / 2)


def _digamma(x: float) -> float:
    far = x + TERMS
    terms = math.fsum(-1 / (x + k) for k in range(TERMS))
    return math.fsum([math.log(far), -0.5 / far, -1 / (12 * far * far), terms])


def _zeta(s: float, q: float) -> float:
    far = q + TERMS
    rest = far ** (1 - s) / (s - 1) + far**-s / 2 + s * far ** (-s - 1) / 12
    return math.fsum([rest, *((q + k) ** -s for k in range(TERMS))])


def _polygamma(x: Any, order: int) -> Any:
    sign = -1 if order % 2 == 0 else 1
    return sign * math.factorial(order) * _points(lambda q: _zeta(order + 1, q))(x)


def _bessel(order: int, scaled: bool = False) -> Callable[..., Any]:
    def series(x: float) -> float:
        terms = [(x / 2) ** (2 * k + order) / math.factorial(k) / math.factorial(k + order)
                 for k in range(60)]  # fmt: skip
        return math.fsum(terms) * (math.exp(-abs(x)) if scaled else 1)

    return _points(series)


def _inverse(function: Callable[[float], float]) -> Callable[..., Any]:
    """The inverse of an increasing function, by bisection."""

    def bisect(y: float) -> float:
        low, high = -9.0, 9.0
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if function(middle) < y else (low, middle)
        return low

    return _points(bisect)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lgamma": (positive, _points(math.lgamma)),
    "digamma": (positive, _points(_digamma)),
    "i0": (normal, _bessel(0)),
    "i1": (normal, _bessel(1)),
    "i0e": (away, _bessel(0, True)),
    "i1e": (away, _bessel(1, True)),
    "erfinv": (inside, _inverse(math.erf)),
    "erfcx": (normal, _points(lambda x: math.exp(x * x) * math.erfc(x))),
    "ndtri": (chance, _inverse(lambda x: math.erfc(-x * math.sqrt(0.5)) / 2)),
    "logit": (chance, lambda x: np.log(x) - np.log1p(-x)),
    "entr": (positive, lambda x: -x * np.log(x)),
}


_CLOSE = np.array([0.0, 1e-9, -0.02, 0.3, 0.33, 0.95, -1.3, 4.0])


def _sinc(x: Any, order: int) -> Any:
    """Of the integral of cos(s t) from 0 to 1, by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    s, t = (nodes + 1) / 2, np.asarray(x)[..., None] * np.pi
    return (s**order * np.cos(s * t + order * np.pi / 2) * weights / 2).sum(-1)


def _tail(x: Any, order: int) -> Any:
    """Of erfcx, which is the integral of 2 / sqrt(pi) * exp(-t * t - 2 * t * x), by t = u / x."""
    u, weights = np.polynomial.laguerre.laggauss(80)
    t = u / 2 / np.asarray(x)[..., None]
    scale = (-2) ** order / math.sqrt(math.pi) / np.asarray(x)
    return (t**order * np.exp(-t * t) * weights).sum(-1) * scale


def integers(*shape: int) -> Any:
    return np.asarray(whole(*shape, high=40) - 7)


SAMPLES: dict[str, list[Sample]] = {
    **{name: unary(make) for name, (make, _) in FUNCTIONS.items()},
    "polygamma": [
        Sample((x,), {"order": k}) for k in (1, 2, 3) for x in (positive(3, 2), positive(2, 0))
    ],
    "zeta": [
        Sample((positive(*a) + 1.5, positive(*b)))
        for a, b in [((2, 3), (3,)), ((1,), ()), ((0,), ())]
    ],
    "xlog1py": [
        *binary(normal, positive),
        Sample((np.zeros(3), np.array([2.0, -2.0, np.nan])), smooth=False),
    ],
    "logaddexp2": binary(normal, normal),
    "nextafter": binary(away, away),
    "frexp": unary(away, smooth=False),
    "gcd": binary(integers, integers, smooth=False),
    "lcm": binary(integers, integers, smooth=False),
    "bitwise_left_shift": binary(integers, whole, smooth=False),
    "bitwise_right_shift": binary(integers, whole, smooth=False),
}
SAMPLES["sinc"] = [
    Sample((x,), {"order": n}) for n in range(5) for x in (normal(3, 2), normal(2, 0), _CLOSE)
]
_ORDERS = np.array([0.0, 1e-3, -0.4, 3.9, 4.1, -7.0, 12.5])
SAMPLES["bessel"] = [
    Sample((x,), {"order": n, "scaled": s})
    for n, s in ((2, False), (3, False), (2, True), (5, False))
    for x in (_ORDERS[s:], away(2, 3), away(2, 0))
]
SAMPLES["erfcx_tail"] = [
    Sample((x,), {"order": n})
    for n in (1, 2, 3)
    for x in (10 + 5 * positive(3, 2), positive(2, 0) + 10)
]
SAMPLES["lgamma"] += [Sample((np.linspace(-3.7, 9.3, 40),)), Sample((SPECIAL,), smooth=False)]
SAMPLES["i0"] += [Sample((np.array([0.0, 25, -29.9]),))]
SAMPLES["i1"] += [Sample((np.array([0.0, 25, -29.9]),))]


def _xlog1py(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where((x == 0) & ~np.isnan(y), 0, x * np.log1p(y))


REFERENCE: dict[str, Callable[..., Any]] = {
    **{name: function for name, (_, function) in FUNCTIONS.items()},
    "polygamma": _polygamma,
    "sinc": _sinc,
    "bessel": lambda x, order, scaled: _bessel(order, scaled)(x),
    "erfcx_tail": _tail,
    "zeta": np.vectorize(_zeta, otypes=[float]),
    "xlog1py": _xlog1py,
    "logaddexp2": lambda x, y: np.log2(2**x + 2**y),
    "nextafter": np.vectorize(math.nextafter, otypes=[float]),
    "frexp": lambda x: np.floor(np.log2(np.abs(x)) + 1).astype(np.int32),
    "gcd": np.vectorize(math.gcd, otypes=[np.int64]),
    "lcm": np.vectorize(math.lcm, otypes=[np.int64]),
    "bitwise_left_shift": lambda x, y: x * 2**y,
    "bitwise_right_shift": lambda x, y: x // 2**y,
}


def _special(name: str) -> Callable[..., Any]:
    return lambda torch, *tensors: getattr(torch.special, name)(*tensors)


def _torch_sinc(torch: Any, x: Any, order: int) -> Any:
    """The derivatives of PyTorch's own are wrong near 0."""
    nodes, weights = (torch.tensor(a) for a in np.polynomial.legendre.leggauss(60))
    s, t = (nodes + 1) / 2, x[..., None] * math.pi
    return (s**order * torch.cos(s * t + order * math.pi / 2) * weights / 2).sum(-1)


def _torch_bessel(torch: Any, x: Any, order: int, scaled: bool) -> Any:
    terms = [(x / 2) ** (2 * k + order) * (1 / math.factorial(k) / math.factorial(k + order))
             for k in range(40)]  # fmt: skip
    return sum(terms) * (torch.exp(-abs(x)) if scaled else 1)


def _torch_tail(torch: Any, x: Any, order: int) -> Any:
    u, weights = (torch.tensor(a) for a in np.polynomial.laguerre.laggauss(80))
    t = u / 2 / x[..., None]
    scale = (-2) ** order / math.sqrt(math.pi) / x
    return (t**order * torch.exp(-t * t) * weights).sum(-1) * scale


TORCH: dict[str, Callable[..., Any]] = {
    **{name: _named(name) for name in SAMPLES},
    **{name: _special(name) for name in ("i1", "i0e", "i1e", "erfcx", "ndtri", "entr", "zeta",
                                         "xlog1py")},
    # PyTorch's polygamma of order 1 has nine digits, its zeta all.
    "polygamma": lambda torch, x, order: (
        torch.special.zeta(order + 1, x) * ((-1) ** (order + 1) * math.factorial(order))
    ),
    "frexp": lambda torch, x: torch.frexp(x).exponent,
    "sinc": _torch_sinc,
    "bessel": _torch_bessel,
    "erfcx_tail": _torch_tail,
}  # fmt: skip
