"""Distributions of numbers with simple densities: uniform, exponential, Laplace."""

from __future__ import annotations

import math
from typing import Any

from ..creation import rand
from ..ops import abs, expm1, log, log1p, sign, where
from ..ops.inspection import finfo
from . import constraints
from .distribution import Distribution, LocScale, together


class Uniform(Distribution):
    """Numbers from `low` to before `high`, all alike.

    Raises ValueError unless low < high.

    Example:
        >>> angle = mt.distributions.Uniform(mt.tensor(0.0), mt.tensor(4.0))
        >>> angle.mean, angle.cdf(mt.tensor(1.0))
        (tensor(2.), tensor(0.2500))
    """

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = together(low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validate_args:
            self._check("high - low", self.high - self.low, constraints.positive)

    @property
    def support(self) -> Any:
        """Numbers from `low` to `high`."""
        return constraints.interval(self.low.detach().numpy(), self.high.detach().numpy())

    def _value(self, value: Any) -> Any:
        value = super()._value(value)
        if self._validate_args:
            inside = (value >= self.low) & (value <= self.high)
            self._check("a value from low to high:", inside, constraints.true)
        return value

    def _check_support(self, value: Any) -> None:
        """Done above: the bounds are Tensors."""

    @property
    def mean(self) -> Any:
        """The middle."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Any:
        """NaN: there are many."""
        return self.high * math.nan

    @property
    def variance(self) -> Any:
        """`(high - low)^2 / 12`."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Any:
        """`low + (high - low) * noise`."""
        noise = self._drawn(rand, sample_shape, self.low, ())
        return self.low + noise * (self.high - self.low)

    def log_prob(self, value: Any) -> Any:
        """`-log(high - low)` inside, -inf outside."""
        value = self._value(value)
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def cdf(self, value: Any) -> Any:
        """The share of what is below."""
        return ((self._value(value) - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Any) -> Any:
        """`low + (high - low) * value`."""
        return self.low + value * (self.high - self.low)

    def entropy(self) -> Any:
        """`log(high - low)`."""
        return log(self.high - self.low)


class Exponential(Distribution):
    """Times of mean 1 / `rate`.

    Example:
        >>> waiting = mt.distributions.Exponential(mt.tensor(0.5))
        >>> waiting.mean, waiting.cdf(mt.tensor(2.0))
        (tensor(2.), tensor(0.6321))
    """

    has_rsample = True
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Any:
        """`1 / rate`."""
        return 1 / self.rate

    @property
    def mode(self) -> Any:
        """0."""
        return self.rate * 0

    @property
    def variance(self) -> Any:
        """`1 / rate^2`."""
        return self.rate**-2

    def rsample(self, sample_shape: Any = ()) -> Any:
        """`-log(1 - u) / rate` of uniform u."""
        return -log1p(-self._drawn(rand, sample_shape, self.rate, ())) / self.rate

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        return log(self.rate) - self.rate * self._value(value)

    def cdf(self, value: Any) -> Any:
        """`1 - exp(-rate * value)`."""
        return -expm1(-self.rate * self._value(value))

    def icdf(self, value: Any) -> Any:
        """`-log(1 - value) / rate`."""
        return -log1p(-value) / self.rate

    def entropy(self) -> Any:
        """`1 - log(rate)`."""
        return 1 - log(self.rate)


class Laplace(LocScale):
    """Numbers whose distance from `loc` is exponential, of mean `scale`.

    Example:
        >>> error = mt.distributions.Laplace(mt.tensor(0.0), mt.tensor(1.0))
        >>> error.log_prob(mt.tensor([0.0, 2.0]))
        tensor([-0.6931, -2.6931])
    """

    @property
    def variance(self) -> Any:
        """`2 scale^2`."""
        return 2 * self.scale**2

    @property
    def stddev(self) -> Any:
        """`scale * sqrt(2)`."""
        return self.scale * math.sqrt(2)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """By `icdf`, of uniform noise."""
        noise = self._drawn(rand, sample_shape, self.loc, ())
        eps = finfo(noise.dtype).eps
        return self._at(noise * (2 - eps) + (eps - 1))  # not -1, which is at -inf

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        return -log(2 * self.scale) - abs(self._value(value) - self.loc) / self.scale

    def cdf(self, value: Any) -> Any:
        """The probability of less."""
        apart = self._value(value) - self.loc
        return 0.5 - 0.5 * sign(apart) * expm1(-abs(apart) / self.scale)

    def icdf(self, value: Any) -> Any:
        """The number that `value` of all are below."""
        return self._at(2 * value - 1)

    def _at(self, u: Any) -> Any:
        return self.loc - self.scale * sign(u) * log1p(-abs(u))

    def entropy(self) -> Any:
        """`1 + log(2 scale)`."""
        return 1 + log(2 * self.scale)
