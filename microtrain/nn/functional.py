"""Layers and losses as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..ops import (
    attention,
    classification_losses,
    elementwise,
    embedding_losses,
    linear_algebra,
    normalization,
    probability_losses,
    reductions,
    regression_losses,
)
from ..ops import dropout as _dropout
from ..ops import embedding as embeddings
from ..ops import activations, elementwise, linear_algebra, losses, reductions
from ..tensor import Tensor

# The operations also take and return arrays, for the gradient rules; users need not know.
_Function: TypeAlias = Callable[..., Tensor]

batch_norm: _Function = normalization.batch_norm
binary_cross_entropy: _Function = probability_losses.binary_cross_entropy
binary_cross_entropy_with_logits: _Function = probability_losses.binary_cross_entropy_with_logits
cosine_embedding_loss: _Function = embedding_losses.cosine_embedding_loss
cosine_similarity: _Function = normalization.cosine_similarity
cross_entropy: _Function = classification_losses.cross_entropy
dropout: _Function = _dropout.dropout
dropout1d: _Function = _dropout.dropout1d
dropout2d: _Function = _dropout.dropout2d
embedding: _Function = embeddings.embedding
gaussian_nll_loss: _Function = regression_losses.gaussian_nll_loss
group_norm: _Function = normalization.group_norm
hinge_embedding_loss: _Function = embedding_losses.hinge_embedding_loss
huber_loss: _Function = regression_losses.huber_loss
instance_norm: _Function = normalization.instance_norm
kl_div: _Function = probability_losses.kl_div
l1_loss: _Function = regression_losses.l1_loss
layer_norm: _Function = normalization.layer_norm
linear: _Function = linear_algebra.linear
log_softmax: _Function = reductions.log_softmax
margin_ranking_loss: _Function = embedding_losses.margin_ranking_loss
mse_loss: _Function = regression_losses.mse_loss
nll_loss: _Function = classification_losses.nll_loss
normalize: _Function = normalization.normalize
one_hot: _Function = embeddings.one_hot
pairwise_distance: _Function = normalization.pairwise_distance
poisson_nll_loss: _Function = regression_losses.poisson_nll_loss
relu: _Function = elementwise.relu
rms_norm: _Function = normalization.rms_norm
scaled_dot_product_attention: _Function = attention.scaled_dot_product_attention
sigmoid: _Function = elementwise.sigmoid
smooth_l1_loss: _Function = regression_losses.smooth_l1_loss
soft_margin_loss: _Function = embedding_losses.soft_margin_loss
celu: _Function = activations.celu
cross_entropy: _Function = losses.cross_entropy
elu: _Function = activations.elu
gelu: _Function = activations.gelu
glu: _Function = activations.glu
hardsigmoid: _Function = activations.hardsigmoid
hardswish: _Function = activations.hardswish
hardtanh: _Function = activations.hardtanh
leaky_relu: _Function = activations.leaky_relu
linear: _Function = linear_algebra.linear
log_softmax: _Function = reductions.log_softmax
logsigmoid: _Function = activations.logsigmoid
mish: _Function = activations.mish
mse_loss: _Function = losses.mse_loss
prelu: _Function = activations.prelu
relu6: _Function = activations.relu6
relu: _Function = activations.relu
selu: _Function = activations.selu
sigmoid: _Function = elementwise.sigmoid
silu: _Function = activations.silu
softmax: _Function = reductions.softmax
softmin: _Function = activations.softmin
softplus: _Function = activations.softplus
softsign: _Function = activations.softsign
tanh: _Function = elementwise.tanh
triplet_margin_loss: _Function = embedding_losses.triplet_margin_loss

__all__ = [
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "embedding",
    "gaussian_nll_loss",
    "group_norm",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "linear",
    "log_softmax",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pairwise_distance",
    "poisson_nll_loss",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "smooth_l1_loss",
    "soft_margin_loss",
tanhshrink: _Function = activations.tanhshrink
threshold: _Function = activations.threshold

__all__ = [
    "celu",
    "cross_entropy",
    "elu",
    "gelu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "mish",
    "mse_loss",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softsign",
    "tanh",
    "triplet_margin_loss",
    "tanhshrink",
    "threshold",
]
