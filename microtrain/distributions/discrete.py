"""Distributions of whole numbers: a coin, and a choice, as its number or as a vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..autograd import no_grad
from ..backend import float64, int64
from ..creation import arange, full, rand
from ..errors import need
from ..nn.functional import binary_cross_entropy_with_logits, one_hot, softplus
from ..ops import broadcast_tensors, gather, log, log1p, logsumexp, sigmoid, softmax, where
from ..ops.inspection import finfo
from . import constraints
from .distribution import Distribution, register_kl, same_as, together


def _clamped(probs: Any) -> Any:
    """Away from 0 and 1, whose logarithms are infinite."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class _OfProbabilities(Distribution):
    """One of `probs` and `logits` is given, and the other computed from it."""

    _probs: Any
    _logits: Any
    _probs_of: Callable[[Any], Any]
    _logits_of: Callable[[Any], Any]

    def _one_of(self, probs: Any, logits: Any) -> Any:
        one = (probs is None) != (logits is None)
        text = "expected either probs or logits, and not both"
        need(one, type(self).__name__, text, error=ValueError)
        return probs if logits is None else logits

    @property
    def _parameter(self) -> Any:
        return vars(self).get("_probs", vars(self).get("_logits"))

    @property
    def probs(self) -> Any:
        """The probabilities."""
        return self._probs if "_probs" in vars(self) else self._probs_of(self._logits)

    @property
    def logits(self) -> Any:
        """Their logarithms, or that of the odds."""
        return self._logits if "_logits" in vars(self) else self._logits_of(_clamped(self._probs))


class Bernoulli(_OfProbabilities):
    """1 with probability `probs`, else 0.

    Args:
        probs, logits: one of them: the probability of a 1, or the logarithm of its odds.

    Example:
        >>> mt.distributions.Bernoulli(mt.tensor([0.25])).log_prob(mt.tensor([1.0]))
        tensor([-1.3863])
    """

    arg_constraints = {"_probs": constraints.unit_interval, "_logits": constraints.real}
    support = constraints.boolean
    mean = same_as("probs")
    _probs_of = staticmethod(sigmoid)
    _logits_of = staticmethod(lambda p: log(p) - log1p(-p))

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        (given,) = together(self._one_of(probs, logits))
        setattr(self, "_probs" if logits is None else "_logits", given)
        super().__init__(self._parameter.shape, (), validate_args)

    @property
    def mode(self) -> Any:
        """What is likelier; NaN where both are alike."""
        p = self.probs
        return where(p == 0.5, math.nan, (p >= 0.5).to(p.dtype))

    variance = property(lambda self: self.probs * (1 - self.probs), doc="`probs * (1 - probs)`.")

    def sample(self, sample_shape: Any = ()) -> Any:
        """Zeros and ones in the dtype of the parameter."""
        with no_grad():
            p = self.probs
            return (self._drawn(rand, sample_shape, p, ()) < p).to(p.dtype)

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the probability."""
        logits, value = broadcast_tensors(self.logits, self._value(value))
        value = value.to(logits.dtype)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Any:
        """The entropy."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Any:
        """0 and 1."""
        values = arange(2, dtype=self._parameter.dtype, device=self._parameter.device)
        values = values.reshape(2, *(1 for _ in self._batch_shape))
        return values.expand(2, *self._batch_shape) if expand else values


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Any:
    def part(mine: Any, other: Any, sign: int) -> Any:
        found = mine * (softplus(sign * q.logits) - softplus(sign * p.logits))
        return where(mine == 0, 0.0, where(other == 0, math.inf, found))

    return part(p.probs, q.probs, -1) + part(1 - p.probs, 1 - q.probs, 1)


class Categorical(_OfProbabilities):
    """One of the numbers from 0 to n - 1.

    Args:
        probs, logits: one of them, (..., n): probabilities, which need not sum to 1, or
            their logarithms up to a constant.

    Example:
        >>> choice = mt.distributions.Categorical(mt.tensor([1.0, 1.0, 2.0]))
        >>> choice.probs
        tensor([0.2500, 0.2500, 0.5000])
    """

    arg_constraints = {"_probs": constraints.simplex, "_logits": constraints.real_vector}
    _probs_of = staticmethod(lambda logits: softmax(logits, -1))
    _logits_of = staticmethod(log)

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        parameter = self._one_of(probs, logits)
        text = "expected probs or logits of at least 1 dimension"
        need(parameter.ndim, "Categorical", text, error=ValueError)
        if logits is None:
            self._probs = probs / probs.sum(-1, keepdim=True)
        else:
            self._logits = logits - logsumexp(logits, -1, keepdim=True)
        super().__init__(parameter.shape[:-1], (), validate_args)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return tuple(self._parameter.shape)

    @property
    def _events(self) -> int:
        return int(self._parameter.shape[-1])

    @property
    def support(self) -> Any:
        """The numbers from 0 to n - 1."""
        return constraints.integer_interval(0, self._events - 1)

    @property
    def mean(self) -> Any:
        """NaN: numbers of choices have no mean."""
        parameter = self._parameter
        return full(self._batch_shape, math.nan, dtype=parameter.dtype, device=parameter.device)

    mode = property(lambda self: self.probs.argmax(-1), doc="The likeliest.")
    variance = same_as("mean")

    def sample(self, sample_shape: Any = ()) -> Any:
        """Numbers of choices, int64."""
        with no_grad():
            bounds = self.probs.to(float64).cumsum(-1)
            places = self._drawn(rand, sample_shape, bounds, ()) * bounds[..., -1]
            return (bounds[..., :-1] <= places.unsqueeze(-1)).sum(-1)

    def log_prob(self, value: Any) -> Any:
        """The logarithms of the probabilities of `value`."""
        value = self._value(value).to(int64)
        shape = (self._parameter[..., 0] + 0 * value).shape
        logits = self.logits.expand(*shape, self._events)
        return gather(logits, -1, value.expand(*shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Any:
        """The entropy."""
        logits = self.logits.clamp(min=finfo(self._parameter.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        """0 to n - 1."""
        values = arange(self._events, device=self._parameter.device)
        values = values.reshape(-1, *(1 for _ in self._batch_shape))
        return values.expand(self._events, *self._batch_shape) if expand else values


class OneHotCategorical(Distribution):
    """A choice as a vector of zeros with a 1 at its number; arguments as of `Categorical`.

    Example:
        >>> choice = mt.distributions.OneHotCategorical(mt.tensor([0.25, 0.75]))
        >>> choice.log_prob(mt.tensor([0.0, 1.0]))
        tensor(-0.2877)
    """

    support = constraints.one_hot
    probs = mean = same_as("choice.probs")
    logits = same_as("choice.logits")

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.choice = Categorical(probs, logits, validate_args)
        super().__init__(self.choice.batch_shape, self.choice.param_shape[-1:], validate_args)

    def expand(self, batch_shape: Any) -> OneHotCategorical:
        """The same distributions, repeated to `batch_shape` without copies."""
        made = super().expand(batch_shape)
        made.choice = self.choice.expand(batch_shape)
        return made

    @property
    def mode(self) -> Any:
        """That of the likeliest choice."""
        return one_hot(self.choice.mode, self._event_shape[0]).to(self.probs.dtype)

    variance = property(lambda self: self.probs * (1 - self.probs), doc="`probs * (1 - probs)`.")

    def sample(self, sample_shape: Any = ()) -> Any:
        """Vectors in the dtype of the parameter."""
        n, dtype = self._event_shape[0], self.probs.dtype
        return one_hot(self.choice.sample(sample_shape), n).to(dtype)

    def log_prob(self, value: Any) -> Any:
        """The logarithms of the probabilities."""
        return self.choice.log_prob(self._value(value).argmax(-1))

    def entropy(self) -> Any:
        """The entropy."""
        return self.choice.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        """All vectors there are."""
        n, dtype = self._event_shape[0], self.probs.dtype
        return one_hot(self.choice.enumerate_support(expand), n).to(dtype)

    def __repr__(self) -> str:
        return repr(self.choice).replace("Categorical", "OneHotCategorical", 1)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _categorical(p: Any, q: Any) -> Any:
    terms = where(p.probs > 0, p.probs * (p.logits - q.logits), 0.0)
    return where((q.probs == 0) & (p.probs > 0), math.inf, terms).sum(-1)
