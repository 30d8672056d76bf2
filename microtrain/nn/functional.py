"""Layers and losses as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..ops import (
    activations,
    attention,
    classification_losses,
    convolution,
    elementwise,
    embedding_losses,
    linear_algebra,
    normalization,
    padding,
    pooling,
    probability_losses,
    reductions,
    regression_losses,
    windows,
)
from ..ops import dropout as _dropout
from ..ops import embedding as embeddings
from ..tensor import Tensor

# The operations also take and return arrays, for the gradient rules; users need not know.
_Function: TypeAlias = Callable[..., Tensor]

adaptive_avg_pool1d: _Function = pooling.adaptive_avg_pool1d
adaptive_avg_pool2d: _Function = pooling.adaptive_avg_pool2d
adaptive_max_pool1d: _Function = pooling.adaptive_max_pool1d
adaptive_max_pool2d: _Function = pooling.adaptive_max_pool2d
avg_pool1d: _Function = pooling.avg_pool1d
avg_pool2d: _Function = pooling.avg_pool2d
batch_norm: _Function = normalization.batch_norm
binary_cross_entropy: _Function = probability_losses.binary_cross_entropy
binary_cross_entropy_with_logits: _Function = probability_losses.binary_cross_entropy_with_logits
celu: _Function = activations.celu
conv1d: _Function = convolution.conv1d
conv2d: _Function = convolution.conv2d
conv_transpose1d: _Function = convolution.conv_transpose1d
conv_transpose2d: _Function = convolution.conv_transpose2d
cosine_embedding_loss: _Function = embedding_losses.cosine_embedding_loss
cosine_similarity: _Function = normalization.cosine_similarity
cross_entropy: _Function = classification_losses.cross_entropy
dropout: _Function = _dropout.dropout
dropout1d: _Function = _dropout.dropout1d
dropout2d: _Function = _dropout.dropout2d
elu: _Function = activations.elu
embedding: _Function = embeddings.embedding
fold: _Function = windows.fold
gaussian_nll_loss: _Function = regression_losses.gaussian_nll_loss
gelu: _Function = activations.gelu
glu: _Function = activations.glu
group_norm: _Function = normalization.group_norm
hardsigmoid: _Function = activations.hardsigmoid
hardswish: _Function = activations.hardswish
hardtanh: _Function = activations.hardtanh
hinge_embedding_loss: _Function = embedding_losses.hinge_embedding_loss
huber_loss: _Function = regression_losses.huber_loss
instance_norm: _Function = normalization.instance_norm
kl_div: _Function = probability_losses.kl_div
l1_loss: _Function = regression_losses.l1_loss
layer_norm: _Function = normalization.layer_norm
leaky_relu: _Function = activations.leaky_relu
linear: _Function = linear_algebra.linear
log_softmax: _Function = reductions.log_softmax
logsigmoid: _Function = activations.logsigmoid
margin_ranking_loss: _Function = embedding_losses.margin_ranking_loss
max_pool1d: _Function = pooling.max_pool1d
max_pool2d: _Function = pooling.max_pool2d
mish: _Function = activations.mish
mse_loss: _Function = regression_losses.mse_loss
nll_loss: _Function = classification_losses.nll_loss
normalize: _Function = normalization.normalize
one_hot: _Function = embeddings.one_hot
pad: _Function = padding.pad
pairwise_distance: _Function = normalization.pairwise_distance
poisson_nll_loss: _Function = regression_losses.poisson_nll_loss
prelu: _Function = activations.prelu
relu: _Function = activations.relu
relu6: _Function = activations.relu6
rms_norm: _Function = normalization.rms_norm
scaled_dot_product_attention: _Function = attention.scaled_dot_product_attention
selu: _Function = activations.selu
sigmoid: _Function = elementwise.sigmoid
silu: _Function = activations.silu
smooth_l1_loss: _Function = regression_losses.smooth_l1_loss
soft_margin_loss: _Function = embedding_losses.soft_margin_loss
softmax: _Function = reductions.softmax
softmin: _Function = activations.softmin
softplus: _Function = activations.softplus
softsign: _Function = activations.softsign
tanh: _Function = elementwise.tanh
tanhshrink: _Function = activations.tanhshrink
threshold: _Function = activations.threshold
triplet_margin_loss: _Function = embedding_losses.triplet_margin_loss
unfold: _Function = windows.unfold

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "elu",
    "embedding",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "unfold",
]
