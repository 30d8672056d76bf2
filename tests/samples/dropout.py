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
    ]
}


def _dropout_scale(x: Any, p: float, draw: int, features: bool) -> Any:
    """Read from the first word of the stream on, wherever it stands now."""
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if features else x.shape
    state, (row, batch, *_) = get_rng_state(), place()
    purpose = (state["seed"], "forward", state["step"], *batch, draw)
    key = int.from_bytes(hashlib.sha256(repr(purpose).encode()).digest()[:16], "little")
    start, size = row * math.prod(shape[1:]), math.prod(shape)
    words = np.random.Philox(key=key).random_raw(start + size + 1).view(np.uint32)
    kept = words[start : start + size].reshape(shape) >= p * 2**32
    return kept / (1 - p) if p < 1 else np.zeros(shape)


REFERENCE = {"dropout_scale": _dropout_scale}
# PyTorch's generator gives other bits.
TORCH = {
    "dropout_scale": lambda torch, x, **attrs: torch.tensor(
        _dropout_scale(x.detach().numpy(), **attrs)
    )
}
