"""Samples of reductions into places that an index names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, spread, upper, whole

TIES = np.array([2.0, 1, 2]), np.array([0, 0, 1, 1]), np.array([2.0, 2, 0, 1])


def _samples() -> list[Sample]:
    found = [
        Sample((spread(3, 4), whole(5, 4, high=3), upper(5, 4)), {"dim": 0}),
        Sample((spread(3, 4), whole(2, 6, high=4), upper(2, 6)), {"dim": 1}),
        Sample((spread(3), np.zeros(0, np.int64), upper(0)), {"dim": 0}),
        Sample((spread(4, 2).T, whole(2, 3, high=4), upper(3, 2).T), {"dim": 1}),
    ]
    return [*found, Sample(TIES, {"dim": 0}, smooth=False)]


SAMPLES: dict[str, list[Sample]] = {"scatter_amax": _samples(), "scatter_amin": _samples()}


def _reference(ufunc: Any) -> Callable[..., Any]:
    def reduce(x: Any, index: Any, src: Any, dim: int) -> Any:
        out = x.copy()
        places = list(np.indices(index.shape))
        places[dim] = index
        ufunc.at(out, tuple(places), src)
        return out

    return reduce


def _torch(name: str) -> Callable[..., Any]:
    return lambda torch, x, index, src, dim: torch.scatter_reduce(x, dim, index, src, name)


REFERENCE: dict[str, Callable[..., Any]] = {
    "scatter_amax": _reference(np.maximum),
    "scatter_amin": _reference(np.minimum),
}
TORCH: dict[str, Callable[..., Any]] = {name: _torch(name[8:]) for name in SAMPLES}
