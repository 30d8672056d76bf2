"""Dropout: elements or whole channels set to 0 at random while training.

Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014; what
is left is scaled up, so that evaluation needs no change.
"""

from __future__ import annotations

from typing import Any

from ...random import next_draw
from ...tensor import Tensor
from ..arguments import want_float
from ..fronts import T, spatial
from ..pointwise.elementwise import mul
from ..registry import primitive

_WORDS = 2**32


def _keep(xp, x, *, p, draw, features):
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


dropout_scale = primitive("dropout_scale", _keep)


def _dropout(
    name: str, x: Any, p: float, training: bool, inplace: bool, features: bool = False
) -> Any:
    check_probability(name, p)
    if inplace:
        raise RuntimeError(f"{name}: inplace=True is not supported; use the result instead")
    if not training or not p:
        return x
    want_float(name, x)
    return mul(x, dropout_scale(x, float(p), next_draw(), features))


def check_probability(name: str, p: Any) -> None:
    """ValueError unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: the probability has to be between 0 and 1, but got {p!r}")


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
    """Whole channels of (N, C, L), (N, C, H, W) or (N, C, D, H, W) set to 0 together; else as `dropout`.

    Raises RuntimeError for another number of dimensions: without the dimension of samples the masks
    would depend on the number of ranks.
    """
    if input.ndim != dims + 2:
        raise RuntimeError(
            f"{name}: expected an input of {dims + 2} dimensions, samples first, got shape "
            f"{input.shape}"
        )
    return _dropout(name, input, p, training, inplace, features=True)


dropout1d, dropout2d, dropout3d = spatial(
    _dropout_channels, "dropout1d", "dropout2d", "dropout3d"
)
