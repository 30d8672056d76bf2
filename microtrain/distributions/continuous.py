"""Distributions of numbers and vectors with densities: uniform, exponential, Laplace, normal."""

from __future__ import annotations

import math
from typing import Any

from ..creation import rand, randn
from ..errors import need
from ..linalg import cholesky, inv, solve
from ..ops import abs, diagonal, erf, erfinv, exp, expm1, log, log1p, matmul, sign, tril, where
from ..ops.inspection import finfo
from ..tensor import Tensor
from . import constraints
from .distribution import Distribution, LocScale, register_kl, same_as, together


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

    mean = property(lambda self: (self.high + self.low) / 2, doc="The middle.")
    mode = property(lambda self: self.high * math.nan, doc="NaN: there are many.")
    variance = property(lambda self: (self.high - self.low) ** 2 / 12, doc="`(high - low)^2 / 12`.")

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


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Any:
    found = log((q.high - q.low) / (p.high - p.low))
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


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

    mean = property(lambda self: 1 / self.rate, doc="`1 / rate`.")
    mode = property(lambda self: self.rate * 0, doc="0.")
    variance = property(lambda self: self.rate**-2, doc="`1 / rate^2`.")

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


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


class Laplace(LocScale):
    """Numbers whose distance from `loc` is exponential, of mean `scale`.

    Example:
        >>> error = mt.distributions.Laplace(mt.tensor(0.0), mt.tensor(1.0))
        >>> error.log_prob(mt.tensor([0.0, 2.0]))
        tensor([-0.6931, -2.6931])
    """

    variance = property(lambda self: 2 * self.scale**2, doc="`2 scale^2`.")
    stddev = property(lambda self: self.scale * math.sqrt(2), doc="`scale * sqrt(2)`.")

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


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Any:
    ratio, apart = p.scale / q.scale, abs(p.loc - q.loc)
    return apart / q.scale + ratio * exp(-apart / p.scale) - 1 - log(ratio)


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Normal(LocScale):
    """The normal distribution.

    Args:
        loc: the mean.
        scale: the standard deviation, positive.

    Example:
        >>> prior = mt.distributions.Normal(0.0, 1.0)
        >>> posterior = mt.distributions.Normal(mt.tensor([1.0]), mt.tensor([0.5]))
        >>> mt.distributions.kl_divergence(posterior, prior)
        tensor([0.8181])
    """

    stddev = same_as("scale")

    variance = property(lambda self: self.scale**2, doc="The square of `scale`.")

    def rsample(self, sample_shape: Any = ()) -> Any:
        """`loc + scale * noise`."""
        noise = self._drawn(randn, sample_shape, self.loc, ())
        return self.loc + noise * self.scale

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        z = (self._value(value) - self.loc) / self.scale
        return -0.5 * z**2 - log(self.scale) - _HALF_LOG_2PI

    def cdf(self, value: Any) -> Any:
        """By the error function."""
        return 0.5 * (1 + erf((self._value(value) - self.loc) / (self.scale * math.sqrt(2))))

    def icdf(self, value: Any) -> Any:
        """By the inverse of the error function."""
        return self.loc + self.scale * erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Any:
        """`log(scale) + (1 + log(2 pi)) / 2`."""
        return log(self.scale) + (0.5 + _HALF_LOG_2PI)


class LogNormal(LocScale):
    """The distribution of `exp` of normal numbers of mean `loc` and standard deviation `scale`."""

    support = constraints.positive

    @property
    def mean(self) -> Any:
        """`exp(loc + scale^2 / 2)`."""
        return exp(self.loc + 0.5 * self.scale**2)

    mode = property(lambda self: exp(self.loc - self.scale**2), doc="`exp(loc - scale^2)`.")

    @property
    def variance(self) -> Any:
        """The variance."""
        return expm1(self.scale**2) * exp(2 * self.loc + self.scale**2)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """The exponential of normal draws."""
        return exp(self._normal().rsample(sample_shape))

    def _normal(self) -> Normal:
        return Normal(self.loc, self.scale, validate_args=False)

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        y = log(self._value(value))
        return self._normal().log_prob(y) - y

    def cdf(self, value: Any) -> Any:
        """That of the logarithm."""
        return self._normal().cdf(log(self._value(value)))

    def icdf(self, value: Any) -> Any:
        """The exponential of that of the logarithm."""
        return exp(self._normal().icdf(value))

    def entropy(self) -> Any:
        """The entropy."""
        return self._normal().entropy() + self.loc


@register_kl(Normal, Normal)
@register_kl(LogNormal, LogNormal)
def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


class MultivariateNormal(Distribution):
    """Normal vectors.

    Args:
        loc: the mean, (..., n).
        covariance_matrix, precision_matrix, scale_tril: one of them, (..., n, n): the covariance,
            its inverse, or its lower Cholesky factor.

    Raises ValueError for none or several of these, and a `loc` without dimensions.

    Example:
        >>> noise = mt.distributions.MultivariateNormal(mt.zeros(2), mt.eye(2))
        >>> noise.log_prob(mt.tensor([3.0, 4.0]))
        tensor(-14.3379)
    """

    has_rsample = True
    arg_constraints = {"loc": constraints.real_vector, "scale_tril": constraints.lower_cholesky}
    support = constraints.real_vector
    mean = mode = same_as("loc")

    def __init__(
        self, loc: Tensor, covariance_matrix: Any = None, precision_matrix: Any = None,
        scale_tril: Any = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        text = "expected a vector loc and exactly one of covariance_matrix, precision_matrix and "
        fits = len(given) == 1 and loc.ndim
        need(fits, "MultivariateNormal", f"{text}scale_tril", error=ValueError)
        factor = scale_tril
        if factor is None:
            covariance = inv(precision_matrix) if covariance_matrix is None else covariance_matrix
            factor = cholesky(covariance)
        n = loc.shape[-1]
        whole = (loc.unsqueeze(-1) + factor * 0).shape[:-2]
        self.loc, self.scale_tril = loc.expand(*whole, n), factor.expand(*whole, n, n)
        super().__init__(whole, (n,), validate_args)

    @property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        return matmul(self.scale_tril, self.scale_tril.mT)

    @property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return inv(self.covariance_matrix)

    @property
    def variance(self) -> Any:
        """The diagonal of the covariance."""
        return (self.scale_tril**2).sum(-1)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """`loc + scale_tril @ noise`."""
        noise = self._drawn(randn, sample_shape, self.loc, self._event_shape)
        return self.loc + matmul(self.scale_tril, noise.unsqueeze(-1)).squeeze(-1)

    def half_log_det(self) -> Any:
        """Half the logarithm of the determinant of the covariance."""
        return log(diagonal(self.scale_tril, 0, -2, -1)).sum(-1)

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        apart = self._value(value) - self.loc
        factor = self.scale_tril.expand(*apart.shape, apart.shape[-1])
        z = solve(tril(factor), apart.unsqueeze(-1)).squeeze(-1)
        return -0.5 * (z**2).sum(-1) - self.half_log_det() - self.loc.shape[-1] * _HALF_LOG_2PI

    def entropy(self) -> Any:
        """The entropy."""
        return self.half_log_det() + self.loc.shape[-1] * (0.5 + _HALF_LOG_2PI)


@register_kl(MultivariateNormal, MultivariateNormal)
def _vectors(p: MultivariateNormal, q: MultivariateNormal) -> Any:
    apart = (q.loc - p.loc).unsqueeze(-1)
    shape = (p.scale_tril + q.scale_tril * 0).shape
    factor = tril(q.scale_tril.expand(*shape))
    spread = (solve(factor, p.scale_tril.expand(*shape)) ** 2).sum((-2, -1))
    distance = (solve(factor, apart.expand(*shape[:-1], 1)) ** 2).sum((-2, -1))
    return q.half_log_det() - p.half_log_det() + 0.5 * (spread + distance - shape[-1])
