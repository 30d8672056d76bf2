"""The line that a linear model has learned, in the units of the data and not of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import to_host
from ..data import Prepared
from ..nn import Linear

__all__ = ["learned_line"]


def learned_line(model: Any, data: Prepared) -> tuple[list[float], float] | None:
    """Weights and bias of a linear model with one output; None of all others."""
    if not isinstance(model, Linear) or model.out_features != 1:
        return None
    mean, scale = data.preprocessing.mean, data.preprocessing.scale
    weight = to_host(model.weight._array).astype(np.float64)[0] / scale
    bias = 0.0 if model.bias is None else float(to_host(model.bias._array)[0])
    return [float(w) for w in weight], bias - float((weight * mean).sum())
