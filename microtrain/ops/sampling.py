"""Random draws into a Tensor and from probabilities in one; none of them is recorded.

They come from the stream of `manual_seed`, which is equal on all ranks, and in a training step from
one of the global batch (`microtrain.random`); so the bits are not PyTorch's.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ..backend import XP, drawn, float64
from ..random import draw_dtype
from ..tensor import TENSORS, Tensor, is_state, wrap
from .coercion import examine
from .fronts import Float, T, need, of_dims, public, wrong
from .inplace import put

__all__ = ["bernoulli", "multinomial"]


def _drawn(name: str, kind: str, x: Tensor, dtype: Any = float64) -> Any:
    """Numbers of a `kind` in the shape of `x`, as an array."""
    return drawn(name, kind, x.shape, dtype, like=type(x._array), state=is_state(x))


def _written(x: Tensor, values: Any) -> Tensor:
    """`x` with the array `values` written into it."""
    put(x, ..., wrap(XP[type(x._array)].asarray(values, x.dtype)))
    return x


def want_range(name: str, dtype: Any, low: float, high: float) -> None:
    """RuntimeError unless `low <= high` and all in that range, and its width, is a number."""
    most = float(np.finfo(dtype).max)
    fits = low <= high and high - low <= most and -most <= low and high <= most
    need(fits, name, f"expected a range [low, high) within {most:.4g}", low, high)


def want_spread(name: str, middle: float, width: float, positive: bool = False) -> None:
    """RuntimeError unless both are finite and the width is not negative, or `positive`."""
    met = (width > 0 if positive else width >= 0) and math.isfinite(width + middle)
    need(met, name, f"expected finite numbers, std {'>' if positive else '>='} 0", middle, width)


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers in [low, high), in place.

    Raises RuntimeError where low > high, or the range is larger than the dtype's largest number;
    NotImplementedError for a dtype that is not a float.
    """
    dtype = draw_dtype(self.dtype, "uniform")
    want_range("uniform_", self.dtype, low, high)
    draw = _drawn("uniform_", "uniform", self, dtype)
    return _written(self, draw * (high - low) + low)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers, in place.

    Raises RuntimeError for std < 0 or numbers that are not finite, NotImplementedError for a dtype
    that is not a float.
    """
    want_spread("normal_", mean, std)
    draw = _drawn("normal_", "normal", self, draw_dtype(self.dtype))
    return _written(self, draw * std + mean)


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """Numbers whose logarithms are normal, of `mean` and `std`, in place.

    Raises RuntimeError for std <= 0 or numbers that are not finite, NotImplementedError for a dtype
    that is not a float.
    """
    want_spread("log_normal_", mean, std, True)
    draw = _drawn("log_normal_", "normal", self, draw_dtype(self.dtype))
    return _written(self, XP[type(draw)].exp(draw * std + mean))


def exponential_(self: Tensor, lambd: float = 1.0) -> Tensor:
    """Exponential numbers of mean 1 / lambd, in place.

    Raises RuntimeError for lambd <= 0, NotImplementedError for a dtype that is not a float.
    """
    need(lambd > 0, "exponential_", "expected lambd > 0", lambd)
    return _written(
        self, _drawn("exponential_", "exponential", self, draw_dtype(self.dtype)) / lambd
    )


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Numbers of the Cauchy distribution, in place.

    Raises RuntimeError for sigma <= 0 or numbers that are not finite, NotImplementedError for a
    dtype that is not a float.
    """
    want_spread("cauchy_", median, sigma, True)
    draw_dtype(self.dtype)  # refuses integers
    draw = _drawn("cauchy_", "uniform", self)
    return _written(self, XP[type(draw)].tan((draw - 0.5) * math.pi) * sigma + median)


def _probabilities(name: str, p: Any) -> None:
    need(np.all((p >= 0) & (p <= 1)), name, "expected probabilities from 0 to 1")


def bernoulli_(self: Tensor, p: Any = 0.5) -> Tensor:
    """1 with probability `p`, a number or a Tensor that broadcasts, else 0, in place.

    Raises RuntimeError for probabilities outside [0, 1] and a shape that does not fit.
    """
    chance = p._array if type(p) in TENSORS else np.asarray(p)
    try:
        np.broadcast_to(np.empty(chance.shape, bool), self.shape)
    except ValueError as error:
        raise wrong("bernoulli_", "p of {} does not fit a Tensor of {}", chance, self) from error
    if type(p) in TENSORS:
        examine(p, lambda a: _probabilities("bernoulli_", a))
    else:
        _probabilities("bernoulli_", chance)
        chance = float(p)
    return _written(self, _drawn("bernoulli_", "uniform", self) < chance)


@public
def bernoulli(input: T) -> Tensor:
    """1 with the probability that each element of `input` says, else 0, in its shape and dtype.

    Raises RuntimeError for probabilities outside [0, 1], NotImplementedError for integers.
    """
    draw_dtype(input.dtype)  # refuses integers
    examine(input, lambda a: _probabilities("bernoulli", a))
    draw = _drawn("bernoulli", "uniform", input)
    return wrap(XP[type(draw)].asarray(draw < input._array, input.dtype))


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
    fits = num_samples > 0 and (replacement or input.shape[-1] >= num_samples)
    text = "cannot draw {} of {} without replacement"
    need(fits, "multinomial", text, num_samples, input.shape[-1])

    def check(weights: Any) -> None:
        fine = np.all((weights >= 0) & np.isfinite(weights))
        need(fine, "multinomial", "a weight is negative, inf or NaN")
        enough = (weights > 0).sum(-1) >= (1 if replacement else num_samples)
        need(np.all(enough), "multinomial", "a row has too few weights above 0")

    examine(input, check)
    like = type(input._array)
    xp = XP[like]
    weights = xp.asarray(input._array, float64)
    shape = (*input.shape[:-1], num_samples)
    if replacement:
        bounds = xp.cumsum(weights, -1)
        places = drawn("multinomial", "uniform", shape, like=like) * bounds[..., -1:]
        return wrap(_found(xp, bounds, places))
    # Of exponential times, each as fast as its weight, the least is at an index with the
    # probability asked for; the next ones are draws without it.
    times = drawn("multinomial", "exponential", input.shape, like=like)
    never = weights <= 0
    times = xp.where(never, math.inf, times / (weights + never))
    return wrap(xp.argsort(times, -1)[..., :num_samples].copy())


def _found(xp: Any, bounds: Any, places: Any) -> Any:
    """For each of `places` how many of the `bounds` of its row are not beyond it."""
    if type(bounds) is not np.ndarray or type(places) is not np.ndarray:
        return (bounds[..., None, :] <= places[..., :, None]).sum(-1)
    found = np.empty(places.shape, np.int64)  # without an array of rows x draws x weights
    rows = zip(np.atleast_2d(bounds), np.atleast_2d(places), strict=True)
    for row, (bound, place) in zip(np.atleast_2d(found), rows, strict=True):
        row[:] = np.searchsorted(bound, place, "right")
    return found
