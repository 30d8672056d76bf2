"""Samples of interpolation: weighted sums of elements along a dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, turned

CASES: list[tuple[Any, dict[str, Any]]] = [
    (normal(2, 3), {"dim": 1, "taps": ((0, 0, 2, 2),), "weights": None}),
    (
        normal(2, 3, 2),
        {"dim": 1, "taps": ((0, 1), (1, 2)), "weights": ((0.25, 0.5), (0.75, 0.5))},
    ),
    (
        turned(normal),
        {"dim": 2, "taps": ((3, 0, 3), (1, 1, 2)), "weights": ((1, 2, -3), (4, 0, 6))},
    ),
    (normal(0, 2), {"dim": 1, "taps": ((1, 0),), "weights": ((0.5, 2.0),)}),
]

SAMPLES: dict[str, list[Sample]] = {"resample": [Sample((x,), attrs) for x, attrs in CASES]}


def _resample(x: Any, dim: int, taps: Any, weights: Any) -> Any:
    """As a product with a matrix."""
    matrix = np.zeros((x.shape[dim], len(taps[0])))
    for number, tap in enumerate(taps):
        for result, element in enumerate(tap):
            matrix[element, result] += 1 if weights is None else weights[number][result]
    return np.moveaxis(np.moveaxis(x, dim, -1) @ matrix, -1, dim)


def _in_torch(torch: Any, x: Any, dim: int, taps: Any, weights: Any) -> Any:
    matrix = torch.tensor(_resample(np.eye(x.shape[dim]), 1, taps, weights))
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


REFERENCE: dict[str, Callable[..., Any]] = {"resample": _resample}
TORCH: dict[str, Callable[..., Any]] = {"resample": _in_torch}
