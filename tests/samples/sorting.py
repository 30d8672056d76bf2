"""Samples of the operations that put elements in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, coin, normal, spread, turned, whole

TIES = np.array([2.0, np.nan, 1.0, 2.0, -np.inf, np.nan, 2.0])

SAMPLES: dict[str, list[Sample]] = {
    "argsort": [
        Sample((a,), {"dim": d, "descending": down}, smooth=False)
        for a, d, down in [(normal(3, 4), 1, False), (turned(normal), 1, True), (TIES, 0, False)]
        + [
            (TIES, 0, True),
            (whole(3, 20, high=3), 1, True),
            (coin(9), 0, True),
            (normal(), 0, True),
        ]
        + [(normal(2, 0), 1, True), (normal(0, 3), 1, False)]
    ],
    "topk": [
        Sample((a,), {"k": k, "dim": d, "largest": most}, smooth=False)
        for a, k, d, most in [(normal(3, 9), 4, 1, True), (turned(normal), 2, 1, False)]
        + [(normal(9, 2), 9, 0, True), (normal(5, 3), 0, 0, True), (normal(0, 4), 2, 1, True)]
        + [(np.array([2.0, np.nan, -np.inf, 1]), 3, 0, big) for big in (True, False)]
        + [(np.array([7, 3, 9, 1]), 1, 0, False)]
    ],
    "median": [
        *(Sample((a,)) for a in (spread(5), spread(3, 4), turned(spread), spread(), spread(1))),
        *(Sample((a,), smooth=False) for a in (TIES, TIES[[0, 2, 3, 4, 6]], whole(7))),
        Sample((np.zeros((0, 3)),), smooth=False),
    ],
}


def _argsort(x: Any, dim: int, descending: bool) -> Any:
    def key(line: Any, i: int) -> Any:
        value = line[i]
        size = (1, 0.0) if np.isnan(value) else (0, float(value))
        return (*((-s for s in size) if descending else size), i)

    def order(line: Any) -> Any:
        return np.array(sorted(range(len(line)), key=lambda i: key(line, i)), int)

    if not x.size or not x.ndim:
        return np.zeros(x.shape, int)
    return np.apply_along_axis(order, dim, x)


def _median(x: Any) -> Any:
    if not x.size:
        return np.array(np.nan)
    line = sorted(x.reshape(-1).tolist(), key=lambda v: (v != v, v))
    value = line[-1] if line[-1] != line[-1] else line[(len(line) - 1) // 2]
    return np.asarray(value, x.dtype)


def _topk(x: Any, k: int, dim: int, largest: bool) -> Any:
    return np.take(_argsort(x, dim, largest), range(k), dim)


REFERENCE: dict[str, Callable[..., Any]] = {"argsort": _argsort, "topk": _topk, "median": _median}

TORCH: dict[str, Callable[..., Any]] = {
    "argsort": lambda torch, x, dim, descending: (
        torch.sort(x, dim=dim, descending=descending, stable=True).indices
    ),
    "topk": lambda torch, x, k, dim, largest: torch.topk(x, k, dim, largest).indices,
    "median": lambda torch, x: torch.median(x),
}
