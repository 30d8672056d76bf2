"""Layers and losses as functions: those of `ops`, which also take arrays for gradient rules."""

from __future__ import annotations

from ..ops import (
    activations,
    average_pooling,
    classification_losses,
    convolution,
    embedding_losses,
    max_pooling,
    probability_losses,
    regression_losses,
)
from ..ops.activations import *  # noqa: F403
from ..ops.attention import scaled_dot_product_attention
from ..ops.average_pooling import *  # noqa: F403
from ..ops.classification_losses import *  # noqa: F403
from ..ops.convolution import *  # noqa: F403
from ..ops.dropout import dropout, dropout1d, dropout2d
from ..ops.elementwise import sigmoid, tanh
from ..ops.embedding import embedding, one_hot
from ..ops.embedding_losses import *  # noqa: F403
from ..ops.linear_algebra import linear
from ..ops.max_pooling import *  # noqa: F403
from ..ops.normalization import (
    batch_norm,
    cosine_similarity,
    group_norm,
    instance_norm,
    layer_norm,
    normalize,
    pairwise_distance,
    rms_norm,
)
from ..ops.padding import pad
from ..ops.probability_losses import *  # noqa: F403
from ..ops.reductions import log_softmax, softmax
from ..ops.regression_losses import *  # noqa: F403
from ..ops.windows import fold, unfold

__all__ = [
    "batch_norm", "cosine_similarity", "dropout", "dropout1d", "dropout2d", "embedding", "fold",
    "group_norm", "instance_norm", "layer_norm", "linear", "log_softmax", "normalize", "one_hot",
    "pad", "pairwise_distance", "rms_norm", "scaled_dot_product_attention", "sigmoid", "softmax",
    "tanh", "unfold",
]  # fmt: skip
__all__ += activations.__all__
__all__ += classification_losses.__all__
__all__ += convolution.__all__
__all__ += embedding_losses.__all__
__all__ += average_pooling.__all__
__all__ += max_pooling.__all__
__all__ += probability_losses.__all__
__all__ += regression_losses.__all__
