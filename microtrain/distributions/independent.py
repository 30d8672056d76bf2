"""Dimensions of a batch as dimensions of one event."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..errors import need
from .distribution import Distribution, same_as, summed


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
