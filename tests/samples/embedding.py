"""Samples of the embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, turned, whole

# table, row numbers
CASES: list[tuple[Any, Any]] = [
    (normal(5, 3), np.array([4, 0, 4, 1])),
    (normal(3, 5).T, whole(2, 3)),
    (normal(5, 2), np.array(3)),
    (normal(5, 2), turned(whole)),
    (normal(5, 2), np.zeros((0, 3), np.int64)),
    (normal(5, 0), np.array([1, 1])),
]

SAMPLES: dict[str, list[Sample]] = {
    "embedding": [
        # PyTorch's second derivative of no indices fails
        *(Sample(case, second=case[1].size > 0) for case in CASES),
        Sample(CASES[0], {"padding": 4}, smooth=False),
        Sample(CASES[3], {"padding": 0}, smooth=False),
    ],
    "embedding_dense_backward": [
        Sample((normal(*i.shape, w.shape[1]), i), {"rows": 5}) for w, i in CASES
    ]
    + [Sample((normal(2, 2, 3).T, np.array([[1, 1], [0, 1], [4, 0]])), {"rows": 6})],
    "bag_numbers": [
        Sample((np.array(offsets, np.int64),), {"count": count})
        for offsets, count in [([0, 2, 2, 5], 7), ([0], 3), ([0, 4], 4), ([0, 0], 0), ([], 0)]
    ],
}


def _add_rows(x: Any, indices: Any, rows: int) -> Any:
    table = np.zeros((rows, x.shape[-1]))
    for place in np.ndindex(indices.shape):
        table[indices[place]] += x[place]
    return table


REFERENCE: dict[str, Callable[..., Any]] = {
    "embedding": lambda weight, indices, padding=None: weight[indices],
    "embedding_dense_backward": _add_rows,
    "bag_numbers": lambda offsets, count: (
        np.searchsorted(offsets, np.arange(count), side="right") - 1
    ),
}

TORCH: dict[str, Callable[..., Any]] = {
    "embedding": lambda torch, weight, indices, padding=None: torch.nn.functional.embedding(
        indices, weight, padding
    ),
    "embedding_dense_backward": lambda torch, x, indices, rows: torch.zeros(
        rows, x.shape[-1], dtype=x.dtype
    ).index_add(0, indices.reshape(-1), x.reshape(indices.numel(), x.shape[-1])),
    "bag_numbers": lambda torch, offsets, count: (
        torch.searchsorted(offsets, torch.arange(count), right=True) - 1
    ),
}
