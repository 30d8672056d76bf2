"""Samples of the functions of real numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, binary, normal, positive, spread, unary

KINKED = np.array([0.0, -0.0, np.nan, np.inf, -np.inf])


def inside(*shape: int) -> Any:
    """Numbers between -0.9 and 0.9."""
    return np.asarray(np.tanh(normal(*shape)) * 0.9)


def above_one(*shape: int) -> Any:
    return np.asarray(positive(*shape) + 1)


def away(*shape: int) -> Any:
    """Numbers of both signs, none near 0."""
    return np.asarray(positive(*shape) * np.sign(normal(*shape)))


def _points(function: Callable[[float], float]) -> Callable[..., Any]:
    return np.vectorize(function, otypes=[float])


# name: where its samples are, and the function computed another way.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sin": (normal, lambda x: np.exp(1j * x).imag),
    "cos": (normal, lambda x: np.exp(1j * x).real),
    "tan": (inside, lambda x: np.sin(2 * x) / (1 + np.cos(2 * x))),
    "asin": (inside, lambda x: np.arctan2(x, np.sqrt(1 - x * x))),
    "acos": (inside, lambda x: np.arctan2(np.sqrt(1 - x * x), x)),
    "atan": (normal, lambda x: np.angle(1 + 1j * x)),
    "sinh": (normal, lambda x: (np.exp(x) - np.exp(-x)) / 2),
    "cosh": (normal, lambda x: (np.exp(x) + np.exp(-x)) / 2),
    "asinh": (normal, lambda x: np.sign(x) * np.log(np.abs(x) + np.sqrt(x * x + 1))),
    "acosh": (above_one, lambda x: np.log(x + np.sqrt(x * x - 1))),
    "atanh": (inside, lambda x: np.log((1 + x) / (1 - x)) / 2),
    "log1p": (positive, lambda x: np.log(1 + x)),
    "log2": (positive, lambda x: np.log(x) / np.log(2)),
    "log10": (positive, lambda x: np.log(x) / np.log(10)),
    "exp2": (normal, lambda x: 2.0**x),
    "expm1": (normal, lambda x: np.exp(x) - 1),
    "rsqrt": (positive, lambda x: x**-0.5),
    "erf": (normal, _points(math.erf)),
    "erfc": (normal, _points(math.erfc)),
}

SAMPLES: dict[str, list[Sample]] = {
    **{name: unary(make) for name, (make, _) in FUNCTIONS.items()},
    "signbit": unary(normal, KINKED, smooth=False),
    "atan2": binary(away, away),
    "hypot": binary(away, away),
    "copysign": [*binary(away, away), Sample((KINKED[:2], np.array([-1.0, 0.0])), smooth=False)],
    "logaddexp": [
        *binary(normal, normal),
        Sample((np.array([900.0, 0]), np.array([0.0, 800])), second=False),
    ],
    "fmod": binary(spread, positive),
    "xlogy": [
        *binary(normal, positive),
        Sample((np.zeros(3), np.array([2.0, -1.0, np.nan])), smooth=False),
    ],
}
SAMPLES["erf"] += [Sample((np.linspace(-7, 7, 57),)), Sample((KINKED,), smooth=False)]
SAMPLES["erfc"] += [Sample((np.linspace(-7, 7, 57),)), Sample((KINKED,), smooth=False)]


def _xlogy(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where((x == 0) & ~np.isnan(y), 0, x * np.log(y))


REFERENCE: dict[str, Callable[..., Any]] = {
    **{name: function for name, (_, function) in FUNCTIONS.items()},
    "signbit": lambda x: np.copysign(1, x) < 0,
    "atan2": lambda x, y: np.angle(y + 1j * x),
    "hypot": lambda x, y: np.sqrt(x * x + y * y),
    "copysign": lambda x, y: np.abs(x) * np.where(np.signbit(y), -1, 1),
    "logaddexp": lambda x, y: np.maximum(x, y) + np.log(1 + np.exp(-np.abs(x - y))),
    "fmod": lambda x, y: x - y * np.trunc(x / y),
    "xlogy": _xlogy,
}


def _named(name: str) -> Callable[..., Any]:
    return lambda torch, *tensors: getattr(torch, name)(*tensors)


TORCH: dict[str, Callable[..., Any]] = {name: _named(name) for name in SAMPLES}
