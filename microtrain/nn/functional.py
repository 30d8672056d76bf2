"""Layers and losses as functions: those of `ops`, which also take arrays for gradient rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops import log_softmax, softmax
from ..ops.loss import (
    classification_losses,
    embedding_losses,
    margin_losses,
    probability_losses,
    regression_losses,
)
from ..ops.loss.classification_losses import *  # noqa: F403
from ..ops.loss.embedding_losses import *  # noqa: F403
from ..ops.loss.margin_losses import *  # noqa: F403
from ..ops.loss.probability_losses import *  # noqa: F403
from ..ops.loss.regression_losses import *  # noqa: F403
from ..ops.matrix.bilinear import bilinear
from ..ops.matrix.distances import pdist
from ..ops.matrix.linear_algebra import linear
from ..ops.nn import average_pooling, convolution, max_pooling, resizing
from ..ops.nn.attention import scaled_dot_product_attention
from ..ops.nn.average_pooling import *  # noqa: F403
from ..ops.nn.convolution import *  # noqa: F403
from ..ops.nn.dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
    rrelu,
)
from ..ops.nn.embedding import embedding, one_hot
from ..ops.nn.embedding_bag import embedding_bag
from ..ops.nn.max_pooling import *  # noqa: F403
from ..ops.nn.normalization import (
    batch_norm,
    cosine_similarity,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    pairwise_distance,
    rms_norm,
)
from ..ops.nn.padding import pad
from ..ops.nn.resizing import *  # noqa: F403
from ..ops.nn.windows import fold, unfold
from ..ops.pointwise import activations
from ..ops.pointwise.activations import *  # noqa: F403
from ..ops.pointwise.elementwise import sigmoid, tanh


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, inplace=True, **kwargs)

    call.__name__ = call.__qualname__ = f"{function.__name__}_"
    call.__doc__ = f"`{function.__name__}`, written into `input`, which is returned."
    return call


celu_, elu_, hardtanh_, leaky_relu_, relu_, rrelu_, selu_, threshold_ = (
    _in_place(one)
    for one in (celu, elu, hardtanh, leaky_relu, relu, rrelu, selu, threshold)  # noqa: F405
)

__all__ = [
    "alpha_dropout", "batch_norm", "bilinear", "celu_", "cosine_similarity", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "elu_", "embedding", "embedding_bag", "feature_alpha_dropout", "fold",
    "group_norm", "hardtanh_", "instance_norm", "layer_norm", "leaky_relu_", "linear",
    "local_response_norm", "log_softmax", "normalize", "one_hot", "pad", "pairwise_distance",
    "pdist", "relu_", "rms_norm", "rrelu", "rrelu_", "scaled_dot_product_attention", "selu_",
    "sigmoid", "softmax", "tanh", "threshold_", "unfold",
]  # fmt: skip
__all__ += activations.__all__
__all__ += classification_losses.__all__
__all__ += convolution.__all__
__all__ += embedding_losses.__all__
__all__ += margin_losses.__all__
__all__ += average_pooling.__all__
__all__ += max_pooling.__all__
__all__ += probability_losses.__all__
__all__ += regression_losses.__all__
__all__ += resizing.__all__


def __dir__() -> list[str]:
    return __all__
