"""Samples of running integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, turned

SAMPLES: dict[str, list[Sample]] = {
    "logcumsumexp": [
        *(Sample((normal(3, 4),), {"dim": dim}) for dim in (0, 1)),
        Sample((turned(normal),), {"dim": 1}),
        Sample((normal(0, 3),), {"dim": 0}),
        Sample((np.array([-900.0, 900, 0, 901]),), {"dim": 0}, second=False),
    ],
}


def _logcumsumexp(x: Any, dim: int) -> Any:
    return np.logaddexp.accumulate(x, axis=dim)


REFERENCE: dict[str, Callable[..., Any]] = {"logcumsumexp": _logcumsumexp}
TORCH: dict[str, Callable[..., Any]] = {
    "logcumsumexp": lambda torch, x, dim: torch.logcumsumexp(x, dim)
}
