"""Samples of running sums and products, and of reductions beyond sum and mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal, positive, reduction, spread, turned, whole


def _zeros_in(*shape: int, number: int = 1) -> Any:
    """Normal numbers, of which the first `number` in every column are 0."""
    found = normal(*shape)
    found[:number] = 0
    return found


def running(make: Callable[..., Any], **more: Any) -> list[Sample]:
    """Samples for a function along one dimension."""
    cases = [(make(3, 4), 1), (make(5), 0), (turned(make), 1), (make(2, 0), 1), (make(0, 2), 1)]
    return [Sample((a,), {"dim": d, **more}) for a, d in cases]


def _pairs(reverse: bool) -> list[Sample]:
    cases = [((3, 4), 0), ((2, 7), 1), ((1,), 0), ((3, 0), 1), ((2, 5, 2), 1)]
    return [
        *(Sample((normal(*s), normal(*s)), {"dim": d, "reverse": reverse}) for s, d in cases),
        Sample((turned(normal), turned(normal)), {"dim": 2, "reverse": reverse}),
    ]


def _products() -> list[Sample]:
    cases = [(normal(3, 4), 1, False), (turned(normal), 1, True), (normal(0, 3), 0, False)]
    cases += [(_zeros_in(4), 0, False), (_zeros_in(4, 2, number=2), 0, True), (normal(1), 0, False)]
    return [Sample((a,), {"dim": d, "keepdim": k}) for a, d, k in cases]


def _extrema() -> list[Sample]:
    ties = Sample((np.array([1.0, 3, 3, np.nan, 4]),), {"dim": 0}, smooth=False)
    return [*running(spread), ties, Sample((whole(3, 9),), {"dim": 1}, smooth=False)]


SAMPLES: dict[str, list[Sample]] = {
    "cumsum": [*running(normal), Sample((normal(3, 4),), {"dim": 0, "reverse": True})],
    "cumprod": [
        *running(positive),
        Sample((_zeros_in(5),), {"dim": 0}),
        Sample((_zeros_in(5, 2, number=2)[::-1],), {"dim": 0}),
    ],
    "linear_recurrence": [*_pairs(False), *_pairs(True)],
    "cummax": _extrema(),
    "cummin": _extrema(),
    "prod": _products(),
    "logsumexp": [
        *reduction(normal),
        Sample((np.array([1000.0, 999.0, -1000.0]),), {"dims": (0,)}),
        Sample((np.array([-np.inf, 1.0]),), {"dims": (0,)}, smooth=False),
        Sample((np.zeros((2, 0)),), {"dims": (1,), "keepdim": True}, smooth=False),
    ],
}


# Another way to the same value, with NumPy ------------------------------------------------------


def _cumsum(x: Any, dim: int, reverse: bool = False) -> Any:
    n = x.shape[dim]
    reached = np.triu(np.ones((n, n)))
    return np.moveaxis(np.moveaxis(x, dim, -1) @ (reached.T if reverse else reached), -1, dim)


def _recurrence(a: Any, b: Any, dim: int, reverse: bool) -> Any:
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    result, state = np.zeros_like(b), np.zeros(b.shape[1:])
    for i in reversed(range(len(b))) if reverse else range(len(b)):
        factor = a[(i + 1) % len(b)] if reverse else a[i]
        result[i] = state = b[i] + factor * state
    return np.moveaxis(result, 0, dim)


def _running_extremum(better: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, dim: int) -> Any:
        x = np.moveaxis(x, dim, 0)
        result = np.zeros(x.shape, np.int64)
        for place in np.ndindex(x.shape):
            best = 0
            for i in range(place[0] + 1):
                value, old = x[(i, *place[1:])], x[(best, *place[1:])]
                if better(value, old) or np.isnan(value):
                    best = i
            result[place] = best
        return np.moveaxis(result, 0, dim)

    return call


def _logsumexp(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    with np.errstate(divide="ignore"):
        offset = max(x.max(initial=0), 0)
        return np.log(np.exp(x - offset).sum(dims, keepdims=keepdim)) + offset


REFERENCE: dict[str, Callable[..., Any]] = {
    "cumsum": _cumsum,
    "cumprod": lambda x, dim: np.multiply.accumulate(x, dim),
    "linear_recurrence": _recurrence,
    "cummax": _running_extremum(np.greater_equal),
    "cummin": _running_extremum(np.less_equal),
    "prod": lambda x, dim, keepdim: np.multiply.reduce(x, axis=dim, keepdims=keepdim),
    "logsumexp": _logsumexp,
}


# What PyTorch says ------------------------------------------------------------------------------


def _torch_cumsum(torch: Any, x: Any, dim: int, reverse: bool = False) -> Any:
    return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)


def _torch_recurrence(torch: Any, a: Any, b: Any, dim: int, reverse: bool) -> Any:
    n = b.shape[dim]
    found, state = [], torch.zeros_like(b.select(dim, 0)) if n else None
    for i in reversed(range(n)) if reverse else range(n):
        state = b.select(dim, i) + a.select(dim, (i + 1) % n if reverse else i) * state
        found.append(state)
    return torch.stack(found[::-1] if reverse else found, dim) if n else b + a


def _torch_logsumexp(torch: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return x.logsumexp(tuple(range(x.ndim)) if dims is None else dims, keepdim)


TORCH: dict[str, Callable[..., Any]] = {
    "cumsum": _torch_cumsum,
    "cumprod": lambda torch, x, dim: x.cumprod(dim),
    "linear_recurrence": _torch_recurrence,
    "cummax": lambda torch, x, dim: x.cummax(dim).indices,
    "cummin": lambda torch, x, dim: x.cummin(dim).indices,
    "prod": lambda torch, x, dim, keepdim: x.prod(dim, keepdim),
    "logsumexp": _torch_logsumexp,
}
