"""Samples of the operations that put elements elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, turned

SAMPLES: dict[str, list[Sample]] = {
    "flip": [
        Sample((a,), {"dims": d})
        for a, d in [(normal(3, 4), (1,)), (turned(normal), (0, 2)), (normal(0, 3), (0, 1))]
        + [(normal(3), ())]
    ],
    "roll": [
        Sample((a,), {"shifts": s, "dims": d})
        for a, s, d in [
            (normal(3, 4), (1,), (0,)),
            (turned(normal), (-5, 2), (1, 2)),
            (normal(5), (2, 1), (0, 0)),
            (normal(0, 3), (1,), (0,)),
        ]
    ],
}


def _roll(x: Any, shifts: Any, dims: Any) -> Any:
    for shift, dim in zip(shifts, dims, strict=True):
        x = np.take(x, (np.arange(x.shape[dim]) - shift) % max(x.shape[dim], 1), dim)
    return x


def _flip(x: Any, dims: Any) -> Any:
    return x[tuple(slice(None, None, -1 if d in dims else 1) for d in range(x.ndim))]


REFERENCE: dict[str, Callable[..., Any]] = {"flip": _flip, "roll": _roll}
TORCH: dict[str, Callable[..., Any]] = {
    "flip": lambda torch, x, dims: torch.flip(x, dims),
    "roll": lambda torch, x, shifts, dims: torch.roll(x, shifts, dims),
}
