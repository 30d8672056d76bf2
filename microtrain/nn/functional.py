"""Layers and losses as functions: those of `ops`, which also take arrays for gradient rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops import log_softmax as log_softmax
from ..ops import softmax as softmax
from ..ops.loss.classification_losses import *  # noqa: F403
from ..ops.loss.losses import *  # noqa: F403
from ..ops.loss.margin_losses import *  # noqa: F403
from ..ops.matrix.einstein import bilinear as bilinear
from ..ops.matrix.linear_algebra import linear as linear
from ..ops.nn import dropout as _drop
from ..ops.nn import normalization as _norm
from ..ops.nn.attention import scaled_dot_product_attention as scaled_dot_product_attention
from ..ops.nn.convolution import *  # noqa: F403
from ..ops.nn.embedding import embedding as embedding
from ..ops.nn.embedding import embedding_bag as embedding_bag
from ..ops.nn.embedding import one_hot as one_hot
from ..ops.nn.pooling import *  # noqa: F403
from ..ops.nn.resizing import *  # noqa: F403
from ..ops.nn.windows import fold as fold
from ..ops.nn.windows import pad as pad
from ..ops.nn.windows import unfold as unfold
from ..ops.pointwise.activations import *  # noqa: F403
from ..ops.pointwise.elementwise import sigmoid as sigmoid
from ..ops.pointwise.elementwise import tanh as tanh
from ..ops.reduce.norms import pdist as pdist

dropout, alpha_dropout, rrelu = _drop.dropout, _drop.alpha_dropout, _drop.rrelu
dropout1d, dropout2d, dropout3d = _drop.dropout1d, _drop.dropout2d, _drop.dropout3d
feature_alpha_dropout = _drop.feature_alpha_dropout
batch_norm, group_norm, layer_norm = _norm.batch_norm, _norm.group_norm, _norm.layer_norm
instance_norm, rms_norm, normalize = _norm.instance_norm, _norm.rms_norm, _norm.normalize
cosine_similarity, pairwise_distance = _norm.cosine_similarity, _norm.pairwise_distance
local_response_norm = _norm.local_response_norm


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

# The functions of `ops` above, under all their names.
__all__ = [
    name
    for name, value in globals().copy().items()
    if callable(value) and not name.startswith("_") and name not in ("Any", "Callable")
]
