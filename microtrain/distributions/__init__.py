"""Probability distributions, named as in `torch.distributions`: draws, densities, divergences.

Parameters are numbers or Tensors, which broadcast; gradients flow through `log_prob`, `entropy`,
`kl_divergence` and `rsample`. In a training step draws belong to samples (`microtrain.random`): the
first dimension of the batch shape, or of `sample_shape`, that is the rows of the batch.

Example:
    >>> policy = mt.distributions.Categorical(logits=mt.zeros(4, 2))
    >>> action = policy.sample()
    >>> policy.log_prob(action)
    tensor([-0.6931, -0.6931, -0.6931, -0.6931])
"""

from __future__ import annotations

from ..common.missing_names import namespace
from . import constraints
from .continuous import Exponential, Laplace, LogNormal, MultivariateNormal, Normal, Uniform
from .discrete import Bernoulli, Categorical, OneHotCategorical
from .distribution import Distribution, Independent, kl_divergence, register_kl

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace",
    "LogNormal", "MultivariateNormal", "Normal", "OneHotCategorical", "Uniform", "constraints",
    "kl_divergence", "register_kl",
]  # fmt: skip


namespace(globals())
