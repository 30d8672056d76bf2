"""What a sample is, and the makers of arrays for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_draws = itertools.count()


@dataclass(frozen=True)
class Sample:
    """The arguments of one call of an operation."""

    arrays: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True
    second: bool = True

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, getattr(a, "shape", "n"))) or "0d" for a in self.arrays)
        attrs = ",".join(f"{k}={_short(v)}" for k, v in self.attrs.items())
        return f"{shapes} {attrs}".strip().replace(" ", "_")


def _short(value: Any) -> str:
    return str(value).replace(" ", "").replace("\n", "")[:24]


def normal(*shape: int) -> Any:
    """Normal numbers, other ones at each call, the same in each run."""
    return np.asarray(np.random.default_rng(next(_draws)).standard_normal(shape))


def positive(*shape: int) -> Any:
    """Numbers between 0.5 and 2."""
    return np.asarray(np.random.default_rng(next(_draws)).uniform(0.5, 2, shape))


def spread(*shape: int, off: float = 0.3) -> Any:
    """Distinct numbers at least 0.3 from every integer: no ties, no kinks."""
    n = int(np.prod(shape))
    order = np.random.default_rng(next(_draws)).permutation(n)
    return (order - n // 2 + off).reshape(shape)


def coin(*shape: int) -> Any:
    """Booleans."""
    return np.asarray(np.random.default_rng(next(_draws)).random(shape) < 0.5)


def whole(*shape: int, high: int = 5) -> Any:
    """Integers from 0 up to `high`."""
    return np.asarray(np.random.default_rng(next(_draws)).integers(0, high, shape))


def turned(make: Callable[..., Any]) -> Any:
    """A (2, 3, 4) array that is not contiguous."""
    return make(4, 3, 2).T


def unary(make: Callable[..., Any], *extra: Any, smooth: bool = True) -> list[Sample]:
    """Samples for a function of one number."""
    arrays = [make(), make(3, 4), make(2, 0), turned(make), *extra]
    return [Sample((a,), smooth=smooth) for a in arrays]


SHAPES = [((2, 3), (2, 3)), ((3, 1), (2, 1, 4)), ((), (3,)), ((2, 1), ()), ((0, 3), (1, 3))]


def binary(
    left: Callable[..., Any], right: Callable[..., Any], smooth: bool = True
) -> list[Sample]:
    """Samples for a function of two numbers: equal shapes, broadcasting, 0-d and zero size."""
    found = [Sample((left(*a), right(*b)), smooth=smooth) for a, b in SHAPES]
    return [*found, Sample((turned(left), right(4)), smooth=smooth)]


def upper(*shape: int) -> Any:
    return spread(*shape, off=0.7)


def comparison() -> list[Sample]:
    ties = np.array([1.0, 2.0, np.nan]), np.array([1.0, 1.0, np.nan])
    return [*binary(spread, upper, smooth=False), Sample(ties, smooth=False)]


def reduction(make: Callable[..., Any] = spread, **more: Any) -> list[Sample]:
    """Samples for a reduction over `dims`."""
    smooth = more.pop("smooth", True)
    cases: list[tuple[Any, Any, bool]] = [
        (make(3, 4), None, False),
        (make(3, 4), None, True),
        (make(), None, False),
        (make(2, 3, 4), (1,), False),
        (turned(make), (0, 2), True),
        (make(0, 3), (1,), False),
    ]
    return [Sample((a,), {"dims": d, "keepdim": k, **more}, smooth) for a, d, k in cases]


ZERO_SIZE_ALL = Sample((np.zeros((0, 3)),), {"dims": (0,)}, smooth=False)


def argument() -> list[Sample]:
    cases = [(spread(3, 4), None, False), (spread(3, 4), 1, False), (turned(spread), 0, True)]
    cases += [(spread(), None, False), (spread(0, 3), 1, True), (np.array([1.0, 3, 3]), 0, False)]
    return [Sample((a,), {"dim": d, "keepdim": k}, smooth=False) for a, d, k in cases]


def truth() -> list[Sample]:
    return [*reduction(coin, smooth=False), ZERO_SIZE_ALL]
