"""Samples of constant padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .convolution import torch_pads
from .sample import Sample, normal, turned, whole


def _constant_pad(x: Any, pads: Any, value: Any = 0) -> Any:
    if not pads:
        return x
    pads = ((0, 0),) * (x.ndim - len(pads)) + tuple(pads)
    grown = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pads], constant_values=value)
    ends = zip(grown.shape, pads, strict=True)
    return grown[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in ends)]


SAMPLES: dict[str, list[Sample]] = {
    "constant_pad": [
        Sample((normal(2, 3, 4),), {"pads": ((1, 0), (0, 2)), "value": 1.5}),
        Sample((turned(normal),), {"pads": ((-1, 2), (0, -2))}),
        Sample((normal(3, 4),), {"pads": ((0, -1),)}),
        Sample((normal(),), {"pads": ()}),
        Sample((whole(2, 2),), {"pads": ((1, 1),), "value": 3}, smooth=False),
        Sample((normal(0, 3),), {"pads": ((2, 0), (1, 1)), "value": -1}),
    ]
}

REFERENCE: dict[str, Callable[..., Any]] = {"constant_pad": _constant_pad}

TORCH: dict[str, Callable[..., Any]] = {
    "constant_pad": lambda torch, x, pads, value=0: torch.nn.functional.pad(
        x, torch_pads(pads), value=value
    )
}
