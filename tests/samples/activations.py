"""Samples of the activation functions that are an operation each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, spread, turned, unary

_WIDE = np.array([-60.0, -8.0, -0.1, 0.0, 0.1, 8.0, 60.0])

SAMPLES: dict[str, list[Sample]] = {
    **{name: unary(normal, _WIDE) for name in ("gelu", "gelu_tanh", "silu", "mish")},
    "hardswish": unary(normal, np.array([-9.0, -2.9, 2.9, 9.0])),
    "softsign": unary(spread, _WIDE[:3]),
    "softplus": [
        Sample((a,), {"beta": beta, "threshold": threshold})
        for a, beta, threshold in [
            (normal(3, 4), 1.0, 20.0),
            (normal(), 2.5, 20.0),
            (normal(2, 0), 1.0, math.inf),
            (turned(normal), -0.5, 0.25),
            (_WIDE * 5, 1.0, math.inf),
            (_WIDE * 20, 3.0, 15.0),
        ]
    ],
    "elu": [
        Sample((a,), {"alpha": alpha, "scale": scale, "input_scale": input_scale})
        for a, alpha, scale, input_scale in [
            (spread(3, 4), 1.0, 1.0, 1.0),
            (spread(), 1.5, 1.0, 1.0),
            (spread(2, 0), 1.0, 1.0, 1.0),
            (turned(spread), 1.5, 1.25, 1.0),
            (spread(5), 2.0, 1.0, 0.5),
        ]
    ]
    + [Sample((np.array([0.0, -0.0, np.nan, 9e9]),), {"alpha": 2.0}, smooth=False)],
    "leaky_relu": [
        Sample((a,), {"negative_slope": slope})
        for a, slope in [(spread(3, 4), 0.01), (spread(), -0.5), (spread(2, 0), 2)]
        + [(turned(spread), 0.25)]
    ]
    + [Sample((np.array([0.0, -0.0, np.nan, np.inf]),), {"negative_slope": 0.5}, smooth=False)],
}


def _gelu(x: Any) -> Any:
    return x * np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2, otypes=[float])(x)


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    z = beta * x
    return np.where(z > threshold, x, np.logaddexp(z, 0) / beta)


REFERENCE: dict[str, Callable[..., Any]] = {
    "gelu": _gelu,
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((x + 0.044715 * x**3) * math.sqrt(2 / math.pi))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "elu": lambda x, alpha, scale=1.0, input_scale=1.0: (
        scale * np.where(x > 0, x, alpha * (np.exp(input_scale * np.minimum(x, 0)) - 1))
    ),
    "leaky_relu": lambda x, negative_slope: np.where(x > 0, x, negative_slope * x),
}


def _functional(name: str, **more: Any) -> Callable[..., Any]:
    return lambda torch, x, **attrs: getattr(torch.nn.functional, name)(x, **attrs, **more)


TORCH: dict[str, Callable[..., Any]] = {
    **{
        name: _functional(name)
        for name in "gelu silu softplus leaky_relu mish hardswish softsign".split()
    },
    "elu": lambda torch, *arguments, **attrs: torch.ops.aten.elu(*arguments, **attrs),
    "gelu_tanh": _functional("gelu", approximate="tanh"),
}
