"""Random draws into a Tensor and from probabilities in one; none of them is recorded.

They come from the stream of `manual_seed`, which is equal on all ranks, so the bits are not
PyTorch's.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..backend import XP, to_host
from ..random import default_generator, draw_dtype
from ..tensor import TENSORS, Tensor, wrap
from .fronts import Float, T, of_dims, public
from .inplace import put

__all__ = ["bernoulli", "multinomial"]


def _written(x: Tensor, values: Any) -> Tensor:
    """`x` with the NumPy array `values` written into it."""
    put(x, ..., wrap(XP[type(x._array)].asarray(values)))
    return x


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers in [low, high), in place.

    Raises RuntimeError where low > high, NotImplementedError for a dtype that is not a float.
    """
    if not low <= high:
        raise RuntimeError(f"uniform_: expected a range [low, high), got low={low}, high={high}")
    draw = default_generator().random(self.shape, draw_dtype(self.dtype))
    return _written(self, draw * (high - low) + low)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers, in place.

    Raises RuntimeError for std < 0, NotImplementedError for a dtype that is not a float.
    """
    if not std >= 0:
        raise RuntimeError(f"normal_: expected std >= 0, got {std}")
    draw = default_generator().standard_normal(self.shape, draw_dtype(self.dtype))
    return _written(self, draw * std + mean)


def _bernoulli(name: str, p: Any, shape: tuple[int, ...]) -> Any:
    """True with probability `p`, a number or an array that broadcasts to `shape`."""
    if not np.all((p >= 0) & (p <= 1)):
        raise RuntimeError(f"{name}: expected probabilities from 0 to 1")
    return default_generator().random(shape) < p


def bernoulli_(self: Tensor, p: Any = 0.5) -> Tensor:
    """1 with probability `p`, a number or a Tensor that broadcasts, else 0, in place.

    Raises RuntimeError for probabilities outside [0, 1] and a shape that does not fit.
    """
    chance = to_host(p._array) if type(p) in TENSORS else np.asarray(p)
    try:
        chance = np.broadcast_to(chance, self.shape)
    except ValueError as error:
        raise RuntimeError(
            f"bernoulli_: p of shape {chance.shape} does not fit a Tensor of shape {self.shape}"
        ) from error
    return _written(self, _bernoulli("bernoulli_", chance, self.shape))


@public
def bernoulli(input: T) -> Tensor:
    """1 with the probability that each element of `input` says, else 0, in its shape and dtype.

    Raises RuntimeError for probabilities outside [0, 1], NotImplementedError for integers.
    """
    draw_dtype(input.dtype)  # refuses integers
    drawn = _bernoulli("bernoulli", to_host(input._array), input.shape).astype(input.dtype)
    return wrap(XP[type(input._array)].asarray(drawn))


@public
def multinomial(
    input: Annotated[Float, of_dims(1, 2)], num_samples: int, replacement: bool = False
) -> Tensor:
    """Indices drawn with the probabilities in every row of `input`.

    Args:
        input: weights of shape (n) or (rows, n), not negative; a row needs not sum to 1.
        num_samples: how many draws from each row.
        replacement: whether an index may be drawn again.

    Returns int64 of shape (num_samples) or (rows, num_samples). Raises RuntimeError for other
    shapes and dtypes, a row without a positive weight or with one that is negative or not finite,
    and without replacement where a row has fewer positive weights than draws.
    """
    if num_samples <= 0 or (input.shape[-1] < num_samples and not replacement):
        raise RuntimeError(
            f"multinomial: cannot draw {num_samples} of {input.shape[-1]} without replacement"
        )
    weights = to_host(input._array).astype(np.float64)
    if not np.all((weights >= 0) & np.isfinite(weights)):
        raise RuntimeError("multinomial: a weight is negative, inf or NaN")
    positive = weights > 0
    if np.any(positive.sum(-1) < (1 if replacement else num_samples)):
        raise RuntimeError("multinomial: a row has too few weights above 0")
    stream = default_generator()
    if replacement:
        bounds = weights.cumsum(-1)
        places = stream.random((*weights.shape[:-1], num_samples)) * bounds[..., -1:]
        rows = zip(np.atleast_2d(bounds), np.atleast_2d(places), strict=True)
        found = np.empty(places.shape, np.int64)
        for row, (bound, place) in zip(np.atleast_2d(found), rows, strict=True):
            row[:] = np.searchsorted(bound, place, "right")
    else:
        # Of exponential times, each as fast as its weight, the least is at an index with the
        # probability asked for; the next ones are draws without it.
        times = stream.standard_exponential(weights.shape)
        times = np.divide(times, weights, out=np.full(weights.shape, np.inf), where=positive)
        found = times.argsort(-1)[..., :num_samples]
    return wrap(XP[type(input._array)].asarray(np.ascontiguousarray(found)))
