"""Samples of the normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, positive, turned

# input, weight and bias, shape of the statistics, with a center or without
CASES: list[tuple[Any, Any, Any, Any, bool]] = [
    (normal(3, 4), normal(4), normal(4), (3, 1), True),
    (normal(3, 4), normal(4), None, (3, 1), False),
    (normal(4, 3), normal(3), normal(3), (1, 3), True),
    (normal(2, 3, 2, 2), normal(3, 1, 1), None, (1, 3, 1, 1), True),
    (normal(2, 2, 3, 4), normal(2, 3, 1), normal(2, 3, 1), (2, 2, 1, 1), True),
    (turned(normal), None, None, (2, 1, 1), True),
    (turned(normal), None, normal(3, 4), (2, 3, 1), False),
    (normal(0, 3), normal(3), normal(3), (0, 1), True),
    (normal(0, 3), normal(3), normal(3), (1, 3), True),
    (normal(2, 0), normal(0), normal(0), (2, 1), True),
]

SAMPLES: dict[str, list[Sample]] = {
    "standardize": [
        Sample((x, w, b), {"shape": shape, "eps": 1e-3, "center": center})
        for x, w, b, shape, center in CASES
    ],
    "standardize_backward": [
        Sample((x, normal(*x.shape), positive(*shape)), {"shape": shape, "center": center})
        for x, _, _, shape, center in CASES
    ],
    "inverse_std": [
        Sample((x,), {"shape": shape, "eps": 0.1, "center": center})
        for x, _, _, shape, center in CASES[:1] + CASES[3:4] + CASES[5:8]
    ],
}


def _axes(x: Any, shape: Any) -> tuple[int, ...]:
    """The dimensions that statistics of `shape` are taken over."""
    return tuple(i for i, n in enumerate(shape) if n == 1)


def _inverse_std(x: Any, shape: Any, eps: float, center: bool) -> Any:
    x = x - (x.mean(_axes(x, shape), keepdims=True) if center else 0)
    return (np.mean(x * x, _axes(x, shape), keepdims=True) + eps) ** -0.5


def _standardize(x: Any, w: Any, b: Any, shape: Any, eps: float, center: bool) -> Any:
    if not x.size:
        return np.zeros_like(x)
    mean = x.mean(_axes(x, shape), keepdims=True) if center else 0
    normal = (x - mean) * _inverse_std(x, shape, eps, center)
    return normal * (1 if w is None else w) + (0 if b is None else b)


def _backward(x: Any, normal: Any, scale: Any, shape: Any, center: bool) -> Any:
    """For each statistic the product with a matrix that projects."""
    found = np.zeros_like(x)
    for place in np.ndindex(*shape) if x.size else ():
        group = tuple(i if n > 1 else slice(None) for i, n in zip(place, shape, strict=True))
        values, along = x[group].reshape(-1), normal[group].reshape(-1)
        matrix = np.eye(values.size) - np.outer(along, along) / values.size
        matrix -= 1 / values.size if center else 0
        found[group] = (matrix @ values).reshape(x[group].shape) * scale[place]
    return found


REFERENCE: dict[str, Callable[..., Any]] = {
    "standardize": _standardize,
    "standardize_backward": _backward,
    "inverse_std": lambda x, **attrs: (
        _inverse_std(x, **attrs) if x.size else np.full(attrs["shape"], attrs["eps"] ** -0.5)
    ),
}


def _torch_inverse_std(torch: Any, x: Any, shape: Any, eps: float, center: bool) -> Any:
    dims = _axes(x, shape)
    x = x - x.mean(dims, keepdim=True) if center else x
    return (x * x).mean(dims, keepdim=True).add(eps).rsqrt()


def _torch_standardize(
    torch: Any, x: Any, w: Any, b: Any, shape: Any, eps: float, center: bool
) -> Any:
    dims = _axes(x, shape)
    mean = x.mean(dims, keepdim=True) if center else 0
    result = (x - mean) * _torch_inverse_std(torch, x, shape, eps, center)
    result = result if w is None else result * w
    return result if b is None else result + b


def _torch_backward(torch: Any, x: Any, normal: Any, scale: Any, shape: Any, center: bool) -> Any:
    dims = _axes(x, shape)
    along = normal * (x * normal).mean(dims, keepdim=True)
    return (x - along - (x.mean(dims, keepdim=True) if center else 0)) * scale


TORCH: dict[str, Callable[..., Any]] = {
    "standardize": _torch_standardize,
    "standardize_backward": _torch_backward,
    "inverse_std": _torch_inverse_std,
}
