"""Dropout: elements or whole channels set to 0 at random while training.

Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014; what
is left is scaled up, so that evaluation needs no change.
"""

from __future__ import annotations

from typing import Any

from ...random import next_draw
from ...tensor import Tensor
from ..arguments import want_float
from ..fronts import Float, Number, T, need, public, spatial
from ..inplace import in_place
from ..pointwise.activations import leaky_relu
from ..pointwise.elementwise import mul, ne, where
from ..registry import primitive

_WORDS = 2**32
_LEAST = -1.7580993408473766  # what selu tends to: -scale * alpha


@primitive("dropout_scale")
def dropout_scale(xp, x, *, p, draw, features):
    """1 / (1 - p) where an element of `x` (or a channel, `features`) is kept, 0 with probability p.

    p counts to a resolution of 2 ** -32.
    """
    shape = x.shape
    if features:
        shape = (*shape[:2], *(1 for _ in shape[2:]))
    if p == 1:
        return xp.zeros(shape, x.dtype)
    words = xp.random_words(shape, draw)
    threshold = xp.constant(min(round(p * _WORDS), _WORDS - 1), words.dtype)
    kept = xp.greater_equal(words, threshold)
    return xp.multiply(kept, xp.constant(1 / (1 - p), x.dtype))


def _dropout(
    name: str, x: Any, p: float, on: bool, inplace: bool, features: bool = False, selu: bool = False
) -> Any:
    check_probability(name, p)
    need(not inplace, name, "inplace=True is not supported; use the result instead")
    if not on or not p:
        return x
    want_float(name, x)
    scale = dropout_scale(x, float(p), next_draw(), features)
    if not selu or p == 1:
        return mul(x, scale)
    a = ((1 - p) * (1 + p * _LEAST**2)) ** -0.5
    return where(ne(scale, 0), x, _LEAST) * a + -a * _LEAST * p


def check_probability(name: str, p: Any) -> None:
    """ValueError unless 0 <= p <= 1."""
    text = "the probability has to be between 0 and 1"
    need(0 <= p <= 1, name, text, p, error=ValueError)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Every element set to 0 with probability `p`, and divided by 1 - p otherwise.

    The leading dimension is samples: each rank draws its rows of one mask of the global batch, the
    same at any number of ranks (see `microtrain.random`). PyTorch's masks are other ones.

    Args:
        input: a Tensor of a float dtype, any shape.
        p: the probability of a 0, from 0 to 1.
        training: False returns `input` itself.
        inplace: only False.

    Raises ValueError for another probability, RuntimeError for integers and `inplace=True`.

    Example:
        >>> set(mt.nn.functional.dropout(mt.ones(50), 0.5).tolist()) == {0.0, 2.0}
        True
    """
    return _dropout("dropout", input, p, training, inplace)


def _dropout_channels(
    name: str, dims: int, input: T, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of (N, C, *sizes) set to 0 together; else as `dropout`.

    Raises RuntimeError for another number of dimensions: without the dimension of samples the masks
    would depend on the number of ranks.
    """
    text = f"expected an input of {dims + 2} dimensions, samples first"
    need(input.ndim == dims + 2, name, text, input)
    return _dropout(name, input, p, training, inplace, features=True)


dropout1d, dropout2d, dropout3d = spatial(_dropout_channels, "dropout1d", "dropout2d", "dropout3d")


# Units that dropout would upset -------------------------------------------------------------------


@public
def alpha_dropout(
    input: T, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Dropout for `selu`: what is dropped takes its least value, and mean and variance stay.

    G. Klambauer et al., "Self-normalizing neural networks", 2017. Arguments as `dropout`.
    """
    return _dropout("alpha_dropout", input, p, training, inplace, selu=True)


@public
def feature_alpha_dropout(
    input: T, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, ...)."""
    fits = input.ndim > 1 or not training
    need(fits, "feature_alpha_dropout", "expected (N, C, ...)", input)
    return _dropout("feature_alpha_dropout", input, p, training, inplace, True, True)


@primitive("random_slopes")
def random_slopes(xp, x, *, lower, upper, draw):
    """A number from `lower` to `upper` for each element of `x`."""
    words = xp.asarray(xp.random_words(x.shape, draw), x.dtype)
    width = xp.constant((upper - lower) / _WORDS, x.dtype)
    return xp.add(xp.multiply(words, width), xp.constant(lower, x.dtype))


@public
def rrelu(
    input: Float, lower: Number = 1 / 8, upper: Number = 1 / 3, training: bool = False,
    inplace: bool = False,
) -> Tensor:  # fmt: skip
    """`x` above 0, elsewhere times a slope that is drawn from [lower, upper] while training.

    In evaluation the slope is their mean: B. Xu et al., "Empirical evaluation of rectified
    activations in convolutional network", 2015. `inplace` writes it into `input`. Raises
    RuntimeError for integers and lower > upper.
    """
    if inplace:
        return in_place(input, lambda x: rrelu(x, lower, upper, training), "rrelu_")
    need(lower <= upper, "rrelu", "lower must not be greater than upper", lower, upper)
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    slopes = random_slopes(input, float(lower), float(upper), next_draw())
    return where(input > 0, input, mul(input, slopes))
