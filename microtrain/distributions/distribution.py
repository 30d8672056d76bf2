"""What all distributions have in common: shapes, checks, draws; one of several; divergence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from ..autograd import no_grad
from ..backend import MODES
from ..creation import tensor
from ..errors import need, wrong
from ..ops import broadcast_tensors, exp, sqrt
from ..ops.coercion import examine
from ..random import step_now
from ..tensor import TENSORS
from . import constraints
from .constraints import Constraint


def same_as(path: str) -> Any:
    """A property that is what `path` names: `same_as("base_dist.mean")`."""
    return property(attrgetter(path), doc=f"`{path}`.")


def _unknown(name: str, doc: str) -> Any:
    """What a distribution may not know."""

    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {name}")

    refuse.__name__, refuse.__doc__ = name, doc
    return refuse


class Distribution:
    """The base of all distributions.

    Args:
        batch_shape: the shape of the parameters: so many distributions side by side.
        event_shape: the shape of one draw.
        validate_args: whether parameters, and values that `log_prob` and `cdf` get, are checked;
            None is the default of `set_default_validate_args`, True. On a GPU nothing is checked.

    Raises ValueError for parameters or values outside their constraints.

    Example:
        >>> rolls = mt.distributions.Categorical(mt.full((6,), 1 / 6))
        >>> rolls.batch_shape, rolls.event_shape, rolls.sample((1000,)).shape
        ((), (), (1000,))
    """

    has_rsample: ClassVar[bool] = False  # whether gradients flow through draws
    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    _validate_args: bool = __debug__

    def __init__(
        self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if name in vars(self):
                    self._check(f"parameter {name}", getattr(self, name), constraint)

    def _check(self, what: str, value: Any, constraint: Constraint) -> None:
        kind = type(self).__name__

        def check(array: Any) -> None:
            if not np.all(constraint.check(array)):
                raise ValueError(
                    f"{kind}: expected {what} (of shape {np.shape(array)}) to be {constraint}, "
                    f"found\n{array}"
                )

        examine(value, check)

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions made from now on check what they get."""
        name, known = "set_default_validate_args", value in (True, False)
        need(known, name, "expected True or False", value, error=ValueError)
        Distribution._validate_args = value

    # Shapes ---------------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one draw of one distribution."""
        return self._event_shape

    support = property(_unknown("support", "What draws are like."))

    def expand(self, batch_shape: Any) -> Self:
        """The same distributions, repeated to `batch_shape` without copies."""
        made = type(self).__new__(type(self))
        for name, value in vars(self).items():
            if type(value) in TENSORS:
                own = value.shape[len(self._batch_shape) :]
                value = value.expand(*batch_shape, *own)
            setattr(made, name, value)
        made._batch_shape = tuple(batch_shape)
        return made

    # Draws ----------------------------------------------------------------------------------------

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draws of shape `sample_shape + batch_shape + event_shape`, outside any graph."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draws as a function of the parameters, through which gradients flow."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample; use sample, log_prob")

    def _drawn(self, make: Callable[..., Any], sample_shape: Any, like: Any, event: Any) -> Any:
        """Numbers of `make` (`randn`, `rand`) for draws, `event` the shape of those of one."""
        sample, own = tuple(sample_shape), (*self._batch_shape, *event)
        options = {"dtype": like.dtype, "device": like.device}
        rows, ranks, _ = step_now()
        if sample and own and own[0] == rows:  # those of a step come first
            if sample[0] == rows and ranks > 1:
                text = "draws of shape {} in a step over {} ranks, where this one has {} rows: it "
                text += "is open which of the first two dimensions is the rows; give each of them "
                text += "a distribution by expand(), and draw one"
                raise wrong(type(self).__name__, text, sample + own, ranks, rows)
            found = make(*own, *sample, **options)
            return found.permute(*range(len(own), found.ndim), *range(len(own)))
        return make((*sample, *own), **options)

    # What is known of them ------------------------------------------------------------------------

    mean = property(_unknown("mean", "The mean."))
    mode = property(_unknown("mode", "Where the density is highest."))
    variance = property(_unknown("variance", "The variance."))

    stddev = property(lambda self: sqrt(self.variance), doc="The standard deviation.")
    log_prob = _unknown("log_prob", "The logarithm of the density, or probability, of `value`.")
    cdf = _unknown("cdf", "The probability of a draw that is not greater than `value`.")
    icdf = _unknown("icdf", "The draw whose `cdf` is `value`.")
    entropy = _unknown("entropy", "The entropy, in nats.")

    def perplexity(self) -> Any:
        """`exp(entropy)`."""
        return exp(self.entropy())

    enumerate_support = _unknown("enumerate_support", "All values, along a new first dimension.")

    def _value(self, value: Any) -> Any:
        """What `log_prob` and `cdf` are asked about, checked."""
        if not self._validate_args:
            return value
        name, own = type(self).__name__, self._batch_shape + self._event_shape
        need(type(value) in TENSORS, name, "expected a Tensor", value, error=ValueError)
        pairs = zip(own[::-1], value.shape[::-1], strict=False)
        fits = value.shape[value.ndim - len(self._event_shape) :] == self._event_shape
        fits = fits and all(a == b or 1 in (a, b) for a, b in pairs)
        text = f"a value of {{}} does not fit the batch and event shape {own}"
        need(fits, name, text, value, error=ValueError)
        self._check_support(value)
        return value

    def _check_support(self, value: Any) -> None:
        self._check("a value", value, self.support)

    def __repr__(self) -> str:
        parts = []
        for name, value in vars(self).items():
            if type(value) in TENSORS:
                short = value.numel() == 1 and not MODES.capture.on
                parts.append(f"{name.strip('_')}: {value.item() if short else value.shape}")
        return f"{type(self).__name__}({', '.join(parts)})"


def together(*parameters: Any) -> list[Any]:
    """Numbers and Tensors as Tensors of one shape; numbers in the dtype of the Tensors."""
    like = next((p for p in parameters if type(p) in TENSORS), None)
    dtype, device = (None, None) if like is None else (like.dtype, like.device)
    given = (
        p if type(p) in TENSORS else tensor(float(p), dtype=dtype, device=device)
        for p in parameters
    )
    return [*broadcast_tensors(*given)]


def summed(x: Any, dims: int) -> Any:
    """The sum over the last `dims` dimensions."""
    return x.sum(tuple(range(-dims, 0))) if dims else x


class LocScale(Distribution):
    """What the distributions share that are one of numbers, moved by `loc` and stretched."""

    has_rsample = True
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    mean = mode = same_as("loc")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = together(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)


class Independent(Distribution):
    """`base_distribution` whose last batch dimensions are one event: `log_prob` adds them up.

    Args:
        base_distribution: any distribution.
        reinterpreted_batch_ndims: how many dimensions.

    Raises ValueError where the base has fewer.

    Example:
        >>> normal = mt.distributions.Normal(mt.zeros(5, 3), mt.ones(5, 3))
        >>> mt.distributions.Independent(normal, 1).log_prob(mt.zeros(5, 3)).shape
        (5,)
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        batch = base_distribution.batch_shape
        count = reinterpreted_batch_ndims
        text = f"expected reinterpreted_batch_ndims from 0 to {len(batch)}, the batch dimensions"
        need(0 <= count <= len(batch), "Independent", text, count, error=ValueError)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        cut = len(batch) - count
        super().__init__(batch[:cut], batch[cut:] + base_distribution.event_shape, validate_args)

    has_rsample = same_as("base_dist.has_rsample")

    def expand(self, batch_shape: Any) -> Independent:
        """The same distributions, repeated to `batch_shape` without copies."""
        own = self._event_shape[: self.reinterpreted_batch_ndims]
        base = self.base_dist.expand((*batch_shape, *own))
        return Independent(base, self.reinterpreted_batch_ndims, validate_args=False)

    @property
    def support(self) -> Any:
        """That of the base, for all of an event."""
        base, count = self.base_dist.support, self.reinterpreted_batch_ndims

        def met(x: Any) -> Any:
            found = np.asarray(base.met(x))
            return found.all(tuple(range(-count, 0))) if count and found.ndim >= count else found

        return dataclasses.replace(base, met=met, event_dim=base.event_dim + count)

    mean = same_as("base_dist.mean")
    mode = same_as("base_dist.mode")
    variance = same_as("base_dist.variance")
    stddev = same_as("base_dist.stddev")

    def sample(self, sample_shape: Any = ()) -> Any:
        """Those of the base."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Those of the base."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Those of the base, added up."""
        return summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Any:
        """Those of the base, added up."""
        return summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


# The Kullback-Leibler divergence of pairs ---------------------------------------------------------

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


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "kl_divergence of Independent distributions with different reinterpreted_batch_ndims"
        )
    return summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
