"""Samples of the operations that read and write at indices given by Tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, coin, normal, turned, whole

DISTINCT = np.array([[2, 0], [0, 1]])

SAMPLES: dict[str, list[Sample]] = {
    "gather": [
        Sample((a, whole(*i, high=3)), {"dim": d})
        for a, i, d in [(normal(3, 4), (2, 4), 0), (normal(4, 3), (4, 5), 1), (normal(3), (0,), 0)]
        + [(turned(normal), (2, 1, 4), 1), (normal(5, 3, 4), (2, 2, 3), 1), (normal(3), (7,), 0)]
    ],
    "gather_backward": [
        Sample((a, whole(*a.shape, high=3)), {"dim": d, "shape": s})
        for a, d, s in [(normal(2, 4), 0, (3, 4)), (normal(4, 5), 1, (6, 3)), (normal(0), 0, (3,))]
        + [(turned(normal), 1, (2, 3, 4)), (normal(2, 1, 3), 1, (3, 3, 3)), (normal(7), 0, (3,))]
    ],
    "scatter": [
        Sample((normal(3, 4), DISTINCT, normal(2, 2)), {"dim": 0}),
        Sample((normal(4, 3), DISTINCT, normal(2, 2)), {"dim": 1}),
        Sample((turned(normal), DISTINCT.reshape(2, 2, 1), normal(1, 2, 2).T), {"dim": 1}),
        Sample((normal(3), whole(0), normal(0)), {"dim": 0}),
        Sample((normal(3, 2), DISTINCT, normal()), {"dim": 0}),
    ],
    "standing_along": [
        Sample((normal(3, 2), i), {"dim": 0}, smooth=False)
        for i in (DISTINCT, np.zeros((4, 1), int), np.array([[0, 1], [2, 1], [0, 1]]))
    ]
    + [Sample((normal(3, 0), np.zeros((2, 0), int)), {"dim": 0}, smooth=False)],
    "nonzero": [
        Sample((a,), smooth=False)
        for a in [coin(3, 4), normal(3), np.zeros((2, 0)), turned(coin), np.zeros(()), np.ones(())]
    ],
}


# Another way to the same value, with NumPy ------------------------------------------------------


def _targets(index: Any, dim: int) -> Any:
    """Every place in the index with the place in the other array that it names."""
    for place in np.ndindex(index.shape):
        yield place, (*place[:dim], int(index[place]), *place[dim + 1 :])


def _gather(x: Any, index: Any, dim: int) -> Any:
    result = np.empty(index.shape)
    for place, target in _targets(index, dim):
        result[place] = x[target]
    return result


def _gather_backward(x: Any, index: Any, dim: int, shape: Any) -> Any:
    result = np.zeros(shape)
    for place, target in _targets(index, dim):
        result[target] += x[place]
    return result


def _scatter(x: Any, index: Any, src: Any, dim: int) -> Any:
    result = x.copy()
    for place, target in _targets(index, dim):
        result[target] = src[place] if src.ndim else src
    return result


def _nonzero(x: Any) -> Any:
    found = [place for place in np.ndindex(x.shape) if x[place]]
    return np.array(found, int).reshape(len(found), x.ndim)


def _standing(x: Any, index: Any, dim: int) -> Any:
    columns = [list(column) for column in np.asarray(index).T]
    last = [[row not in c[n + 1 :] for n, row in enumerate(c)] for c in columns]
    return np.array(last, bool).reshape(index.T.shape).T


REFERENCE: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "gather_backward": _gather_backward,
    "scatter": _scatter,
    "standing_along": _standing,
    "nonzero": _nonzero,
}


# What PyTorch says ------------------------------------------------------------------------------


def _torch_scatter(torch: Any, x: Any, index: Any, src: Any, dim: int) -> Any:
    return x.scatter(dim, index, src.expand(index.shape))


TORCH: dict[str, Callable[..., Any]] = {
    "gather": lambda torch, x, index, dim: x.gather(dim, index),
    "gather_backward": lambda torch, x, index, dim, shape: torch.zeros(
        shape, dtype=x.dtype
    ).scatter_add(dim, index, x),
    "scatter": _torch_scatter,
    "standing_along": lambda torch, x, index, dim: torch.from_numpy(_standing(x, index, dim)),
    "nonzero": lambda torch, x: x.nonzero(),
}
