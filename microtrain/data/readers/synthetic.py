"""Data made from a seed: what the tutorials train on, with the truth written beside it.

Inputs, noise and teacher each draw from a stream of their own, row by row. So other noise leaves
the inputs as they are, and more samples only add rows. Arrays are float64; the trainer casts.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from ...random import generator
from ..source import ArrayDataset

Array = NDArray[np.float64]
Count = Annotated[int, Ge(1)]
Seed = Annotated[int, Ge(0)]
NotNegative = Annotated[float, Ge(0)]


def synthetic_linear(
    samples: Count,
    weights: list[float],
    bias: float = 0.0,
    noise: NotNegative = 0.0,
    seed: Seed = 0,
) -> ArrayDataset:
    """A line, or a plane: y = x @ weights + bias + noise * N(0, 1), with x ~ N(0, 1).

    Args:
        samples: number of rows.
        weights: one weight per feature.
        bias: the value at x = 0.
        noise: standard deviation of what is added to each target.
        seed: random seed.

    Returns:
        x of shape (samples, len(weights)) and y of shape (samples, 1), float64; `truth` holds
        weights, bias and noise.

    Example:
        >>> data = synthetic_linear(10000, [2.0], bias=3.0, noise=0.5)
    """
    name = "synthetic_linear"
    x = generator(seed, f"{name}/inputs").standard_normal((samples, len(weights)))
    # A sum instead of a matrix product: BLAS rounds differently with its number of threads.
    y = (x * np.array(weights, np.float64)).sum(axis=1, keepdims=True) + bias
    truth = {"weights": [float(w) for w in weights], "bias": float(bias), "noise": float(noise)}
    return _regression(x, y + _noise(name, y.shape, noise, seed), truth)


def synthetic_random(
    samples: Count, features: Count, targets: Count, seed: Seed = 0
) -> ArrayDataset:
    """Inputs and targets that have nothing to do with each other, all N(0, 1).

    The data of PyTorch's two-layer tutorial: a large enough network learns them by heart.

    Args:
        samples: number of rows.
        features: columns of the input.
        targets: columns of the target.
        seed: random seed.

    Returns:
        x of shape (samples, features) and y of shape (samples, targets), float64.
    """
    name = "synthetic_random"
    x = generator(seed, f"{name}/inputs").standard_normal((samples, features))
    return _regression(x, generator(seed, f"{name}/targets").standard_normal((samples, targets)))


def synthetic_relu(
    samples: Count,
    features: Count,
    hidden: Count,
    targets: Count,
    noise: NotNegative = 0.0,
    seed: Seed = 0,
) -> ArrayDataset:
    """Targets computed by a random two-layer ReLU network, so that a student can reach zero loss.

    y = relu(x @ w1) @ w2 + noise * N(0, 1) with x ~ N(0, 1), w1 ~ N(0, 1 / features) and
    w2 ~ N(0, 2 / hidden): averaged over seeds the mean square of y - noise is 1 at every size. The
    least mean squared error in reach is noise^2.

    Args:
        samples: number of rows.
        features: columns of the input.
        hidden: hidden width of the network that computes the targets.
        targets: columns of the target.
        noise: standard deviation of what is added to each target.
        seed: random seed.

    Returns:
        x of shape (samples, features) and y of shape (samples, targets), float64.
    """
    name = "synthetic_relu"
    x = generator(seed, f"{name}/inputs").standard_normal((samples, features))
    teacher = generator(seed, f"{name}/teacher")
    w1 = teacher.standard_normal((features, hidden)) / math.sqrt(features)
    w2 = teacher.standard_normal((hidden, targets)) * math.sqrt(2.0 / hidden)
    y = np.maximum(x @ w1, 0.0) @ w2
    return _regression(x, y + _noise(name, y.shape, noise, seed))


def _noise(name: str, shape: tuple[int, ...], scale: float, seed: int) -> Array:
    noise: Array = generator(seed, f"{name}/noise").standard_normal(shape)
    return scale * noise


def _regression(x: Array, y: Array, truth: dict[str, Any] | None = None) -> ArrayDataset:
    features = x.shape[1]
    names = ["x"] if features == 1 else [f"x{i + 1}" for i in range(features)]
    return ArrayDataset(x, y, feature_names=names, target_name="y", truth=truth)
