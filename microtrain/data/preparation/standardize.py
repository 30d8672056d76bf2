"""The affine map that brings inputs to a common scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

__all__ = ["Preprocessing"]

Statistic = NDArray[np.float64]  # of each feature


@dataclass(frozen=True)
class Preprocessing:
    """The affine map of the inputs, (x - mean) / scale per feature; float64 arrays.

    A model trained behind it needs it wherever it is used: it belongs in the checkpoint.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def identity(cls, x: NDArray[Any], origin: str = "data") -> Preprocessing:
        """Leaves rows like those of `x` as they are."""
        return cls(np.zeros(x.shape[1:]), np.ones(x.shape[1:]))

    @classmethod
    def standardizing(cls, x: NDArray[Any], origin: str = "data") -> Preprocessing:
        """Gives the rows of `x` mean 0 and standard deviation 1 per feature.

        A feature that is constant in `x` is only shifted to 0: its scale is 1. DataError naming
        `origin` for values so large that these are not finite.
        """
        x = x.astype(np.float64, copy=False)
        lowest = x.min(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(axis=0), x.std(axis=0)
        return cls.of_statistics(mean, std, lowest, x.max(axis=0), origin)

    @classmethod
    def of_statistics(
        cls, mean: Statistic, std: Statistic, lowest: Statistic, highest: Statistic, origin: str
    ) -> Preprocessing:
        """`standardizing` of rows with this mean, standard deviation and extremes, float64."""
        # By its extremes: rounding gives a constant 0.1 a standard deviation of 1e-17.
        constant = (lowest == highest) | (std == 0.0)
        mean, std = np.where(constant, lowest, mean), np.where(constant, 1.0, std)
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise DataError(f"{origin}: input values are too large to standardise; rescale them")
        return cls(mean, std)

    @property
    def is_identity(self) -> bool:
        return not self.mean.any() and bool((self.scale == 1.0).all())

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Raw inputs as the model wants them: `x` itself for the identity, else float64."""
        return x if self.is_identity else self.scaled(x)

    def scaled(self, x: NDArray[Any]) -> NDArray[Any]:
        """(x - mean) / scale as float64, with one array of that size."""
        wide = x.astype(np.result_type(x.dtype, np.float64))
        wide -= self.mean
        wide /= self.scale
        return wide

    def to_json(self) -> dict[str, Any]:
        """Nested lists that JSON keeps to the last bit."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Preprocessing:
        return cls(np.array(state["mean"], np.float64), np.array(state["scale"], np.float64))
