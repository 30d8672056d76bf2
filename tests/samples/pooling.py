"""Samples of pooling: which elements of windows are maxima, values there, sums of windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from microtrain.ops.nn.pooling import adaptive_along, windows_along

from .convolution import slices
from .sample import Sample, normal, spread, turned, whole


def _elements(windows: Any) -> list[dict[int, int]]:
    """Of every window where its elements stand, by their numbers."""
    found: dict[int, dict[int, int]] = {}
    for number, tap in enumerate(windows.taps):
        for ours, place in tap:
            for at in range(windows.size)[place]:
                first = range(windows.size)[place][0]
                window = ours.start + (at - first) // (place.step or 1)
                found.setdefault(window, {})[number] = at
    return [found[window] for window in sorted(found)]


def _max_choice(x: Any, dim: int, windows: Any) -> Any:
    lines, windows = np.moveaxis(x, dim, -1), _elements(windows)
    found = np.zeros((*lines.shape[:-1], len(windows)), np.int8)
    for *place, window in np.ndindex(found.shape):
        best = None
        for number, at in windows[window].items():
            value = lines[(*place, at)]
            if best is None or value > best or np.isnan(value):
                best, found[(*place, window)] = value, number
    return np.moveaxis(found, -1, dim)


def _places(choice: Any, dim: int, windows: Any) -> Any:
    """Where along `dim` the chosen elements stand."""
    chosen, elements = np.moveaxis(choice, dim, -1), _elements(windows)
    found = np.zeros(chosen.shape, np.int64)
    for place in np.ndindex(found.shape):
        found[place] = elements[place[-1]][int(chosen[place])]
    return np.moveaxis(found, -1, dim)


def _carried(x: Any, choice: Any, dim: int, windows: Any, back: bool = False) -> Any:
    places = _places(choice, dim, windows)
    if not back:
        return np.take_along_axis(x, places, dim)
    total = np.zeros((*x.shape[:dim], windows.size, *x.shape[dim + 1 :]))
    for place in np.ndindex(x.shape):
        total[(*place[:dim], places[place], *place[dim + 1 :])] += x[place]
    return total


def _window_sum(x: Any, kernel: Any, stride: Any) -> Any:
    ones = (1,) * len(kernel)
    return sum(x[place] for _, place in slices(x, kernel, stride, ones))


def _window_spread(x: Any, sizes: Any, kernel: Any, stride: Any) -> Any:
    total = np.zeros((*x.shape[:2], *sizes))
    for _, place in slices(total, kernel, stride, (1,) * len(kernel)):
        total[place] += x
    return total


LINES = [  # shape, dimension, size, kernel, stride, padding, dilation, windows
    ((2, 3, 4, 6), 3, (6, 2, 2, 0, 1, 3)),
    ((2, 3, 7), 2, (7, 3, 2, 1, 1, 4)),
    ((1, 2, 5, 3), 2, (5, 2, 1, 1, 3, 4)),
    ((1, 2, 4), 2, (4, 1, 3, 0, 1, 2)),
    ((0, 2, 4), 2, (4, 2, 2, 0, 1, 2)),
]
CHOSEN: list[tuple[Any, Any, dict[str, Any]]] = [  # input, choice, dimension and windows
    (x, _max_choice(x, dim, windows), {"dim": dim, "windows": windows})
    for x, dim, windows in (
        *((spread(*x), dim, windows_along("", *line)[1]) for x, dim, line in LINES),
        (turned(spread), 2, adaptive_along(4, 3)[1]),
    )
]
SUMS: list[tuple[Any, Any, dict[str, Any]]] = [  # input, result, attributes
    (normal(2, 3, 4, 6), normal(2, 3, 2, 2), {"kernel": (2, 3), "stride": (2, 3)}),
    (turned(normal), normal(2, 3, 3), {"kernel": (2,), "stride": (1,)}),
    (normal(1, 2, 5, 6), normal(1, 2, 2, 2), {"kernel": (3, 1), "stride": (2, 3)}),
    (normal(0, 2, 4), normal(0, 2, 2), {"kernel": (2,), "stride": (2,)}),
]

SAMPLES: dict[str, list[Sample]] = {
    "max_choice": [
        *(Sample((x,), attrs, smooth=False) for x, _, attrs in CHOSEN),
        Sample((whole(2, 2, 4, 6, high=2),), CHOSEN[0][2], smooth=False),
        Sample(
            (np.array([[[1.0, np.nan, 2, np.nan, 1, 1, np.nan], [-np.inf] * 7]]),),
            CHOSEN[1][2],
            smooth=False,
        ),
    ],
    "max_along": [Sample((x, choice), attrs) for x, choice, attrs in CHOSEN],
    "carry_along": [
        Sample((part, choice), {**attrs, "back": back})
        for x, choice, attrs in CHOSEN
        for part, back in ((x, False), (normal(*choice.shape), True))
    ],
    "window_sum": [Sample((x,), attrs) for x, _, attrs in SUMS],
    "window_spread": [Sample((y,), {"sizes": x.shape[2:], **attrs}) for x, y, attrs in SUMS],
}

REFERENCE: dict[str, Callable[..., Any]] = {
    "max_choice": _max_choice,
    "max_along": _carried,
    "carry_along": _carried,
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


def _torch_carried(
    torch: Any, x: Any, choice: Any, dim: int, windows: Any, back: bool = False
) -> Any:
    places = torch.from_numpy(_places(choice.numpy(), dim, windows))
    if not back:
        return x.gather(dim, places)
    shape = (*x.shape[:dim], windows.size, *x.shape[dim + 1 :])
    return torch.zeros(shape, dtype=x.dtype).scatter_add(dim, places, x)


TORCH: dict[str, Callable[..., Any]] = {
    "max_choice": lambda torch, x, dim, windows: torch.from_numpy(
        _max_choice(x.numpy(), dim, windows)
    ),
    "max_along": _torch_carried,
    "carry_along": _torch_carried,
    "window_sum": _torch_sum,
    "window_spread": _torch_spread,
}
