"""Initialisation of parameters, in place, from the random stream that is equal on all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import XP
from ..random import default_generator
from ..tensor import Tensor


def _fill(tensor: Tensor, values: Any) -> Tensor:
    xp = XP[type(tensor._array)]
    tensor._array[...] = xp.asarray(values)
    tensor.version.n += 1
    return tensor


def _draw_dtype(tensor: Tensor) -> Any:
    return np.float32 if tensor.dtype == np.float32 else np.float64


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform numbers in [a, b)."""
    draw = default_generator().random(tensor.shape, _draw_dtype(tensor))
    return _fill(tensor, draw * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers."""
    draw = default_generator().standard_normal(tensor.shape, _draw_dtype(tensor))
    return _fill(tensor, draw * std + mean)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return _fill(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return _fill(tensor, 1)


def constant_(tensor: Tensor, value: float) -> Tensor:
    """`value` everywhere."""
    return _fill(tensor, value)


def fan_in(tensor: Tensor) -> int:
    """The number of inputs of one output: (out, in, ...) gives in * ...

    Raises ValueError for fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError("fan in can not be computed for a Tensor with fewer than 2 dimensions")
    return math.prod(tensor.shape[1:])


def kaiming_uniform_(tensor: Tensor, a: float = 0.0) -> Tensor:
    """Uniform numbers whose variance keeps that of the signal through leaky ReLUs of slope `a`.

    He et al., "Delving Deep into Rectifiers", 2015; PyTorch's Linear uses a = sqrt(5).
    """
    bound = math.sqrt(6.0 / ((1 + a * a) * max(fan_in(tensor), 1)))
    return uniform_(tensor, -bound, bound)
