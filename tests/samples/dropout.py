"""Samples of dropout: its masks."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from microtrain.random import get_rng_state, place

from .sample import Sample, normal, turned

SAMPLES: dict[str, list[Sample]] = {
    "dropout_scale": [
        Sample((x,), {"p": p, "draw": draw, "features": features})
        for x, p, draw, features in [
            (normal(4, 5), 0.5, 0, False),
            (turned(normal), 0.25, 3, True),
            (normal(), 0.1, 0, False),
            (normal(0, 3), 0.5, 1, False),
            (normal(3, 2), 1.0, 0, False),
        ]
    ],
    "random_slopes": [
        Sample((x,), {"lower": 0.125, "upper": upper, "draw": draw})
        for x, upper, draw in [
            (normal(4, 5), 0.5, 0),
            (turned(normal), 0.25, 3),
            (normal(), 0.125, 0),
            (normal(0, 3), 0.5, 1),
        ]
    ],
}


def _dropout_scale(x: Any, p: float, draw: int, features: bool) -> Any:
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if features else x.shape
    kept = _words(shape, draw) >= p * 2**32
    return kept / (1 - p) if p < 1 else np.zeros(shape)


def _random_slopes(x: Any, lower: float, upper: float, draw: int) -> Any:
    return lower + (upper - lower) * (_words(x.shape, draw) / 2**32)


def _words(shape: Any, draw: int) -> Any:
    """Read from the first word of the stream on, wherever it stands now."""
    state, (row, batch, *_) = get_rng_state(), place()
    purpose = (state["seed"], "forward", state["step"], *batch, draw)
    key = int.from_bytes(hashlib.sha256(repr(purpose).encode()).digest()[:16], "little")
    start, size = row * math.prod(shape[1:]), math.prod(shape)
    words = np.random.Philox(key=key).random_raw(start + size + 1).view(np.uint32)
    return words[start : start + size].reshape(shape)


REFERENCE = {"dropout_scale": _dropout_scale, "random_slopes": _random_slopes}
# PyTorch's generator gives other bits.
TORCH = {
    name: lambda torch, x, draws=draws, **attrs: torch.tensor(draws(x.detach().numpy(), **attrs))
    for name, draws in REFERENCE.items()
}
