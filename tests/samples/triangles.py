"""Samples of triangles and diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, turned

MATRICES: list[tuple[Any, int]] = [
    (normal(3, 4), 0),
    (normal(4, 3), 1),
    (normal(3, 3), -2),
    (turned(normal), -1),
    (normal(2, 3, 2), 5),
    (normal(0, 3), 0),
    (normal(2, 3, 0), 1),
]
DIAGONALS: list[tuple[Any, int, tuple[int, ...]]] = [
    (normal(3), 0, (3, 3)),
    (normal(2, 3), 1, (2, 4, 4)),
    (normal(3, 2).T, -1, (2, 4, 5)),
    (normal(0), 0, (0, 4)),
    (normal(2, 0), 3, (2, 3, 3)),
]

SAMPLES: dict[str, list[Sample]] = {
    "tril": [Sample((a,), {"diagonal": d}) for a, d in MATRICES],
    "triu": [Sample((a,), {"diagonal": d}) for a, d in MATRICES],
    "diagonal": [Sample((a,), {"offset": d}) for a, d in MATRICES],
    "diag_embed": [Sample((a,), {"shape": s, "offset": d}) for a, d, s in DIAGONALS],
}


def _distance(shape: tuple[int, ...]) -> Any:
    """The number of the diagonal that each element of a matrix is on."""
    return np.arange(shape[-1]) - np.arange(shape[-2])[:, None]


def _embed(x: Any, shape: Any, offset: int) -> Any:
    result = np.zeros(shape)
    for i in range(x.shape[-1]):
        result[..., i + max(-offset, 0), i + max(offset, 0)] = x[..., i]
    return result


REFERENCE: dict[str, Callable[..., Any]] = {
    "tril": lambda x, diagonal: np.where(_distance(x.shape) <= diagonal, x, 0),
    "triu": lambda x, diagonal: np.where(_distance(x.shape) >= diagonal, x, 0),
    "diagonal": lambda x, offset: np.diagonal(x, offset, -2, -1),
    "diag_embed": _embed,
}
TORCH: dict[str, Callable[..., Any]] = {
    "tril": lambda torch, x, diagonal: torch.tril(x, diagonal),
    "triu": lambda torch, x, diagonal: torch.triu(x, diagonal),
    "diagonal": lambda torch, x, offset: torch.diagonal(x, offset, -2, -1),
    "diag_embed": lambda torch, x, shape, offset: torch.diagonal_scatter(
        torch.zeros(shape, dtype=x.dtype), x, offset, -2, -1
    ),
}
