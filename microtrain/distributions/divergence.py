"""The Kullback-Leibler divergence of pairs of distributions, from one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import need
from ..linalg import solve
from ..nn.functional import softplus
from ..ops import abs, exp, log, tril, where
from .continuous import Exponential, Laplace, LogNormal, MultivariateNormal, Normal, Uniform
from .discrete import Bernoulli, Categorical, OneHotCategorical
from .distribution import Distribution, Independent, summed

_TABLE: dict[tuple[type, type], Callable[[Any, Any], Any]] = {}


def register_kl(p: type, q: type) -> Callable[[Any], Any]:
    """Make the decorated function of two distributions the divergence of `p` from `q`.

    Raises TypeError for what is no class of distributions.

    Example:
        >>> class Mine(mt.distributions.Normal):
        ...     pass
        >>> @mt.distributions.register_kl(Mine, mt.distributions.Normal)
        ... def kl(p, q):
        ...     return p.loc - q.loc
    """
    for kind in (p, q):
        fits, text = issubclass(kind, Distribution), "expected a subclass of Distribution"
        need(fits, "register_kl", text, kind, error=TypeError)

    def registered(function: Any) -> Any:
        _TABLE[p, q] = function
        return function

    return registered


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """`E_p[log p - log q]`, of shape `batch_shape`, exactly.

    Raises NotImplementedError for a pair that `register_kl` does not know.
    """
    for mine in type(p).__mro__:
        for other in type(q).__mro__:
            if (mine, other) in _TABLE:
                return _TABLE[mine, other](p, q)
    raise NotImplementedError(
        f"kl_divergence of {type(p).__name__} and {type(q).__name__} is not known; give a formula "
        "with register_kl, or estimate it by (p.log_prob(x) - q.log_prob(x)).mean(0) of draws x"
    )


@register_kl(Normal, Normal)
@register_kl(LogNormal, LogNormal)
def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


@register_kl(MultivariateNormal, MultivariateNormal)
def _vectors(p: MultivariateNormal, q: MultivariateNormal) -> Any:
    apart = (q.loc - p.loc).unsqueeze(-1)
    shape = (p.scale_tril + q.scale_tril * 0).shape
    factor = tril(q.scale_tril.expand(*shape))
    spread = (solve(factor, p.scale_tril.expand(*shape)) ** 2).sum((-2, -1))
    distance = (solve(factor, apart.expand(*shape[:-1], 1)) ** 2).sum((-2, -1))
    return q.half_log_det() - p.half_log_det() + 0.5 * (spread + distance - shape[-1])


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Any:
    def part(mine: Any, other: Any, sign: int) -> Any:
        found = mine * (softplus(sign * q.logits) - softplus(sign * p.logits))
        return where(mine == 0, 0.0, where(other == 0, math.inf, found))

    return part(p.probs, q.probs, -1) + part(1 - p.probs, 1 - q.probs, 1)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _categorical(p: Any, q: Any) -> Any:
    terms = where(p.probs > 0, p.probs * (p.logits - q.logits), 0.0)
    return where((q.probs == 0) & (p.probs > 0), math.inf, terms).sum(-1)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Any:
    found = log((q.high - q.low) / (p.high - p.low))
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Any:
    ratio, apart = p.scale / q.scale, abs(p.loc - q.loc)
    return apart / q.scale + ratio * exp(-apart / p.scale) - 1 - log(ratio)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "kl_divergence of Independent distributions with different reinterpreted_batch_ndims"
        )
    return summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
