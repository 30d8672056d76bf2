"""Samples of pooling: positions of maxima, values there, sums of windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .convolution import slices
from .sample import Sample, normal, spread, turned, whole

PAIRS = (slice(0, 3, 2), slice(1, 4, 2))  # two windows of two elements in four


def _places(tap: Any, size: int) -> list[int]:
    return list(range(size))[tap] if isinstance(tap, slice) else list(tap)


def _max_positions(x: Any, windows: Any) -> Any:
    lead, sizes = x.ndim - len(windows), x.shape[x.ndim - len(windows) :]
    grids = [[_places(t, n) for t in taps] for taps, n in zip(windows, sizes, strict=True)]
    shape = [len(grid[0]) for grid in grids]
    found = np.zeros((*x.shape[:lead], *shape), np.int64)
    for place in np.ndindex(found.shape):
        best = -np.inf
        spot = None
        for taps in itertools.product(*(range(len(grid)) for grid in grids)):
            at = tuple(g[t][o] for g, t, o in zip(grids, taps, place[lead:], strict=True))
            value = x[place[:lead] + at]
            if spot is None or value > best or np.isnan(value):
                best, spot = value, np.ravel_multi_index(at, sizes)
        found[place] = spot
    return found


def _gather(x: Any, positions: Any) -> Any:
    flat = x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))
    spots = positions.reshape(*x.shape[:2], int(np.prod(positions.shape[2:])))
    return np.take_along_axis(flat, spots, 2).reshape(positions.shape)


def _scatter(x: Any, positions: Any, sizes: Any) -> Any:
    total = np.zeros((*x.shape[:2], int(np.prod(sizes))))
    for place in np.ndindex(x.shape):
        total[(*place[:2], positions[place])] += x[place]
    return total.reshape(*x.shape[:2], *sizes)


def _window_sum(x: Any, kernel: Any, stride: Any) -> Any:
    ones = (1,) * len(kernel)
    return sum(x[place] for _, place in slices(x, kernel, stride, ones))


def _window_spread(x: Any, sizes: Any, kernel: Any, stride: Any) -> Any:
    total = np.zeros((*x.shape[:2], *sizes))
    for _, place in slices(total, kernel, stride, (1,) * len(kernel)):
        total[place] += x
    return total


POSITIONS = [
    ((2, 3, 4), (2, 3, 2), (4,)),
    ((1, 2, 3, 3), (1, 2, 2, 2), (3, 3)),
    ((0, 2, 4), (0, 2, 2), (4,)),
]
SUMS: list[tuple[Any, Any, dict[str, Any]]] = [  # input, result, attributes
    (normal(2, 3, 4, 6), normal(2, 3, 2, 2), {"kernel": (2, 3), "stride": (2, 3)}),
    (turned(normal), normal(2, 3, 3), {"kernel": (2,), "stride": (1,)}),
    (normal(1, 2, 5, 6), normal(1, 2, 2, 2), {"kernel": (3, 1), "stride": (2, 3)}),
    (normal(0, 2, 4), normal(0, 2, 2), {"kernel": (2,), "stride": (2,)}),
]

SAMPLES: dict[str, list[Sample]] = {
    "max_positions": [
        Sample((spread(2, 3, 4, 4),), {"windows": (PAIRS, PAIRS)}, smooth=False),
        Sample((turned(spread),), {"windows": (PAIRS,)}, smooth=False),
        Sample((whole(2, 2, 4, 3, high=2),), {"windows": (PAIRS, ((0, 1), (1, 2)))}, smooth=False),
        Sample(
            (np.array([[[1.0, np.nan, 2, np.nan], [-np.inf] * 4]]),),
            {"windows": (((0, 0, 1), (0, 1, 2), (1, 2, 3)),)},
            smooth=False,
        ),
        Sample((spread(2, 1, 3, 3),), {"windows": ((slice(0, 3, 2),),) * 2}, smooth=False),
        Sample((spread(0, 2, 4),), {"windows": (PAIRS,)}, smooth=False),
    ],
    "pool_gather": [
        *(Sample((normal(*x), whole(*p, high=int(np.prod(sizes))))) for x, p, sizes in POSITIONS),
        Sample((turned(normal), whole(2, 3, 5, high=4))),
    ],
    "pool_scatter": [
        *(
            Sample((normal(*p), whole(*p, high=int(np.prod(sizes)))), {"sizes": sizes})
            for _, p, sizes in POSITIONS
        ),
        Sample((turned(normal), whole(2, 3, 4, high=4)), {"sizes": (2, 2)}),
    ],
    "window_sum": [Sample((x,), attrs) for x, _, attrs in SUMS],
    "window_spread": [Sample((y,), {"sizes": x.shape[2:], **attrs}) for x, y, attrs in SUMS],
}

REFERENCE: dict[str, Callable[..., Any]] = {
    "max_positions": _max_positions,
    "pool_gather": _gather,
    "pool_scatter": _scatter,
    "window_sum": _window_sum,
    "window_spread": _window_spread,
}


# What PyTorch says --------------------------------------------------------------------------------


def _torch_sum(torch: Any, x: Any, kernel: Any, stride: Any) -> Any:
    if len(kernel) == 1:
        return torch.nn.functional.avg_pool1d(x, kernel, stride) * kernel[0]
    return torch.nn.functional.avg_pool2d(x, kernel, stride, divisor_override=1)


def _torch_spread(torch: Any, x: Any, sizes: Any, kernel: Any, stride: Any) -> Any:
    functional = torch.nn.functional
    turn = functional.conv_transpose2d if len(kernel) == 2 else functional.conv_transpose1d
    ones = torch.ones(x.shape[1], 1, *kernel, dtype=x.dtype)
    found = turn(x, ones, stride=stride, groups=x.shape[1])
    pads = zip(reversed(sizes), reversed(found.shape), strict=False)
    return functional.pad(found, [p for n, m in pads for p in (0, n - m)])


TORCH: dict[str, Callable[..., Any]] = {
    "max_positions": lambda torch, x, windows: torch.from_numpy(_max_positions(x.numpy(), windows)),
    "pool_gather": lambda torch, x, p: x.flatten(2).gather(2, p.flatten(2)).reshape(p.shape),
    "pool_scatter": lambda torch, x, p, sizes: (
        torch.zeros(*x.shape[:2], int(np.prod(sizes)), dtype=x.dtype)
        .scatter_add(2, p.flatten(2), x.flatten(2))
        .reshape(*x.shape[:2], *sizes)
    ),
    "window_sum": _torch_sum,
    "window_spread": _torch_spread,
}
