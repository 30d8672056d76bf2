"""Samples of the losses that are one operation each, beside those in `core`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, binary, normal, positive, turned


def _probability(*shape: int) -> Any:
    return np.asarray(positive(*shape) / 2.5)


SAMPLES: dict[str, list[Sample]] = {
    "binary_cross_entropy": binary(_probability, _probability),
    "binary_cross_entropy_with_logits": [
        Sample((normal(3, 4), _probability(3, 4)), {"reduction": r})
        for r in ("mean", "sum", "none")
    ]
    + [
        Sample((normal(), _probability()), {"reduction": "mean"}),
        Sample((turned(normal), _probability(2, 3, 4)), {"reduction": "mean"}),
        Sample((np.array([-800.0, 800.0, -36.0]), np.array([1.0, 0.0, 0.5])), {"reduction": "sum"}),
        Sample((normal(0, 3), _probability(0, 3)), {"reduction": "sum"}),
        Sample((normal(0, 3), _probability(0, 3)), {"reduction": "mean"}, smooth=False),
    ],
    "mean_over": [
        Sample((normal(), positive())),
        Sample((normal(), np.asarray(positive() + 1)), {"elements": 4}),  # at least one counts
        Sample((normal(3), positive(3)), {"defined": True}),
        Sample((normal(0), positive(0))),
        Sample((np.array([0.0, 2.0]), np.array([0.0, 4.0])), {"defined": True}, smooth=False),
    ],
}


def _bce(input: Any, target: Any) -> Any:
    return -target * np.log(input) - (1 - target) * np.log(1 - input)


def _bce_with_logits(input: Any, target: Any, reduction: str) -> Any:
    losses = np.logaddexp(0, input) - target * input
    if reduction == "none":
        return losses
    return losses.sum() / (losses.size or np.nan) if reduction == "mean" else losses.sum()


def _mean_over(total: Any, count: Any, elements: Any = None, defined: bool = False) -> Any:
    return total / np.where(count == 0, 1, count) if defined else total / count


REFERENCE: dict[str, Callable[..., Any]] = {
    "mean_over": _mean_over,
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_with_logits,
}

TORCH: dict[str, Callable[..., Any]] = {
    "mean_over": lambda torch, total, count, elements=None, defined=False: (
        total / torch.where(count == 0, 1, count) if defined else total / count
    ),
    "binary_cross_entropy": lambda torch, x, y: torch.nn.functional.binary_cross_entropy(
        *torch.broadcast_tensors(x, y), reduction="none"
    ),
    "binary_cross_entropy_with_logits": lambda torch, x, y, reduction: (
        torch.nn.functional.binary_cross_entropy_with_logits(x, y, reduction=reduction)
    ),
}
