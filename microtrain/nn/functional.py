"""Layers and losses as functions: those of `ops`, which also take arrays for gradient rules."""

from __future__ import annotations

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

__all__ = [
    "alpha_dropout", "batch_norm", "bilinear", "cosine_similarity", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "embedding", "embedding_bag", "feature_alpha_dropout", "fold",
    "group_norm", "instance_norm", "layer_norm", "linear", "local_response_norm", "log_softmax",
    "normalize", "one_hot", "pad", "pairwise_distance", "pdist", "rms_norm", "rrelu",
    "scaled_dot_product_attention", "sigmoid", "softmax", "tanh", "unfold",
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
