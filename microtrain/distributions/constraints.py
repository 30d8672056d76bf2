"""What values may be: of parameters, and of what a distribution is asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.missing_names import namespace
from ..tensor import TENSORS, wrap

__all__ = [
    "Constraint", "boolean", "greater_than_eq", "integer_interval", "interval", "lower_cholesky",
    "nonnegative", "one_hot", "positive", "real", "real_vector", "simplex", "unit_interval",
]  # fmt: skip


@dataclass(frozen=True)
class Constraint:
    """A condition on the values of an array.

    Attributes:
        words: what it demands.
        met: whether it is met: a function of an array to booleans, one for each event.
        event_dim: how many dimensions of the array it is about together.
        is_discrete: whether the values that meet it can be counted.
    """

    words: str
    met: Callable[[Any], Any]
    event_dim: int = 0
    is_discrete: bool = False

    def check(self, value: Any) -> Any:
        """Whether each event of a Tensor or array meets it: booleans, of the same kind.

        Their shape is that of `value` without its last `event_dim` dimensions.
        """
        tensor = type(value) in TENSORS
        met = np.asarray(self.met(np.asarray(value.detach() if tensor else value)), bool)
        return wrap(met) if tensor else met

    def __repr__(self) -> str:
        return self.words


def _lower(x: Any) -> Any:
    positive = np.all(np.diagonal(x, axis1=-2, axis2=-1) > 0, -1)
    return np.all(np.tril(x) == x, (-2, -1)) & positive


def interval(low: Any, high: Any) -> Constraint:
    """Numbers from `low` to `high`."""
    return Constraint(f"from {low} to {high}", lambda x: (x >= low) & (x <= high))


def integer_interval(low: int, high: int) -> Constraint:
    """Whole numbers from `low` to `high`."""
    met = interval(low, high).met
    whole = f"whole, from {low} to {high}"
    return Constraint(whole, lambda x: met(x) & (x % 1 == 0), is_discrete=True)


def greater_than_eq(low: Any) -> Constraint:
    """Numbers of at least `low`."""
    return Constraint(f"at least {low}", lambda x: x >= low)


real = Constraint("real", lambda x: x == x)
real_vector = Constraint("a real vector", lambda x: np.all(x == x, -1), 1)
true = Constraint("true", lambda x: x)
boolean = Constraint("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
positive = Constraint("positive", lambda x: x > 0)
nonnegative = greater_than_eq(0)
unit_interval = interval(0, 1)
simplex = Constraint(
    "not negative with the sum 1", lambda x: np.all(x >= 0, -1) & (np.abs(x.sum(-1) - 1) < 1e-6), 1
)
one_hot = Constraint(
    "0 with a single 1", lambda x: np.all((x == 0) | (x == 1), -1) & (x.sum(-1) == 1), 1, True
)
lower_cholesky = Constraint("lower triangular with a positive diagonal", _lower, 2)


namespace(globals())
