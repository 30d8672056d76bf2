"""Samples of convolution, its two gradients, and windows as columns."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from microtrain.ops.nn.windows import Geometry

from .sample import Sample, normal, turned


def geometry(
    kernel: Any, stride: Any, padding: Any = None, dilation: Any = None, groups: int = 1
) -> Geometry:
    """A geometry in full; a number of padding stands for both sides."""
    pairs = tuple(p if isinstance(p, tuple) else (p, p) for p in padding or (0,) * len(stride))
    return Geometry(kernel, stride, pairs, dilation or (1,) * len(stride), groups)


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of the parts of a geometry that it names."""
    names = inspect.signature(function).parameters

    def call(*arguments: Any, geometry: Geometry, **attrs: Any) -> Any:
        parts = {name: part for name, part in geometry._asdict().items() if name in names}
        return function(*arguments, **parts, **attrs)

    return call


ONE = (1, 1)
# shapes of input, weight and gradient (with a bias where the number of outputs is odd), geometry
CASES: list[tuple[Any, Any, Any, Geometry]] = [
    ((2, 2, 5, 4), (3, 2, 3, 2), (2, 3, 5, 4), geometry((3, 2), ONE, (1, (0, 1)))),
    ((2, 3, 4), (2, 3, 2), (2, 2, 2), geometry((2,), (2,))),
    ((1, 4, 7, 6), (6, 2, 2, 3), (1, 6, 3, 4), geometry((2, 3), (2, 1), (0, 1), (2, 2), 2)),
    ((2, 1, 9, 9), (1, 1, 2, 2), (2, 1, 8, 8), geometry((2, 2), ONE)),
    # a row of the kernel in one product: more elements than SHARED_ROW
    ((1, 11, 4, 4), (2, 11, 3, 3), (1, 2, 4, 4), geometry((3, 3), ONE, ONE)),
    ((1, 1, 6), (5, 1, 2), (1, 5, 2), geometry((2,), (3,), ((1, 0),))),
    ((0, 2, 4), (3, 2, 2), (0, 3, 3), geometry((2,), (1,))),
]


def array(shape: Any) -> Any:
    """Normal numbers; where there are three dimensions, in memory of another order."""
    return normal(*shape[::-1]).T if len(shape) == 3 else normal(*shape)


def slices(
    x: Any, kernel: Any, stride: Any, dilation: Any
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Every element of a kernel and the places of a padded array that it meets."""
    for offset in itertools.product(*map(range, kernel)):
        yield (
            offset,
            (
                ...,
                *(
                    slice(o * d, n - d * (k - 1 - o), s)
                    for o, d, k, s, n in zip(
                        offset, dilation, kernel, stride, x.shape[-len(kernel) :], strict=True
                    )
                ),
            ),
        )


def enlarged(x: Any, padding: Any) -> Any:
    return np.pad(x, ((0, 0),) * (x.ndim - len(padding)) + tuple(padding))


def _convolution(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    x, found = enlarged(x, padding), []
    for part, weight in zip(np.split(x, groups, 1), np.split(w, groups), strict=True):
        found.append(
            sum(
                np.einsum("nc...,oc->no...", part[place], weight[(slice(None),) * 2 + offset])
                for offset, place in slices(part, w.shape[2:], stride, dilation)
            )
        )
    shift = 0 if bias is None else bias.reshape(-1, *(1,) * len(stride))
    return np.concatenate(found, 1) + shift


def _convolution_input(
    g: Any, w: Any, sizes: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    room = [n + sum(p) for n, p in zip(sizes, padding, strict=True)]
    total = np.zeros((len(g), w.shape[1] * groups, *room))
    parts = zip(
        np.split(g, groups, 1), np.split(w, groups), np.split(total, groups, 1), strict=True
    )
    for part, weight, target in parts:
        for offset, place in slices(total, w.shape[2:], stride, dilation):
            target[place] += np.einsum("no...,oc->nc...", part, weight[(slice(None),) * 2 + offset])
    inside = tuple(slice(low, n + low) for n, (low, _) in zip(sizes, padding, strict=True))
    return total[(..., *inside)]


def _convolution_weight(
    g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    x = enlarged(x, padding)
    total = np.zeros((g.shape[1], x.shape[1] // groups, *kernel))
    axes = (0, *range(2, g.ndim))
    parts = zip(
        np.split(g, groups, 1), np.split(x, groups, 1), np.split(total, groups), strict=True
    )
    for gradient, part, target in parts:
        for offset, place in slices(x, kernel, stride, dilation):
            target[(slice(None),) * 2 + offset] = np.tensordot(gradient, part[place], (axes, axes))
    return total


def _unfold(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    x = enlarged(x, padding)
    columns = [x[place] for _, place in slices(x, kernel, stride, dilation)]
    count = math.prod(columns[0].shape[2:])
    return np.stack(columns, 2).reshape(len(x), x.shape[1] * len(columns), count)


def _fold(x: Any, sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    room = [n + sum(p) for n, p in zip(sizes, padding, strict=True)]
    total = np.zeros((len(x), x.shape[1] // math.prod(kernel), *room))
    columns = x.reshape(*total.shape[:2], math.prod(kernel), x.shape[2])
    for number, (_, place) in enumerate(slices(total, kernel, stride, dilation)):
        total[place] += columns[:, :, number].reshape(total[place].shape)
    inside = tuple(slice(low, n + low) for n, (low, _) in zip(sizes, padding, strict=True))
    return total[(..., *inside)]


UNFOLDED = [
    (normal(2, 3, 4, 5), geometry((2, 3), (1, 2), (0, 1))),
    (turned(normal), geometry((3,), (1,), (1,))),
    (normal(1, 2, 5, 5), geometry((2, 2), (1, 1), None, (3, 2))),
    (normal(0, 2, 3, 3), geometry((2, 2), (1, 1))),
]

# input, dimension, size, step
SLIDING: list[tuple[Any, int, int, int]] = [
    (normal(7), 0, 3, 1),
    (normal(2, 6), 1, 2, 2),
    (normal(7, 2), 0, 2, 3),
    (turned(normal), 1, 2, 1),
    (normal(3, 0), 0, 2, 1),
    (normal(3), 0, 0, 2),
]


def _slide(x: Any, dim: int, size: int, step: int) -> Any:
    starts = range(0, x.shape[dim] - size + 1, step)
    windows = [np.take(x, np.arange(start, start + size), dim) for start in starts]
    return np.stack([np.moveaxis(w, dim, -1) for w in windows], dim)


def _slide_back(windows: Any, dim: int, length: int, step: int) -> Any:
    shape = list(windows.shape[:-1])
    shape[dim] = length
    found = np.zeros(shape)
    for number, offset in np.ndindex(windows.shape[dim], windows.shape[-1]):
        at = (slice(None),) * dim
        found[(*at, number * step + offset)] += windows[(*at, number, ..., offset)]
    return found


REFERENCE: dict[str, Callable[..., Any]] = {
    "convolution": in_parts(_convolution),
    "convolution_input": in_parts(_convolution_input),
    "convolution_weight": in_parts(_convolution_weight),
    "unfold": in_parts(_unfold),
    "fold": in_parts(_fold),
    "sliding_windows": _slide,
    "sliding_windows_sum": _slide_back,
}

SAMPLES: dict[str, list[Sample]] = {
    "convolution": [
        Sample((array(x), array(w), normal(w[0]) if w[0] % 2 else None), {"geometry": windows})
        for x, w, _, windows in CASES
    ],
    "convolution_input": [
        Sample((array(g), array(w)), {"sizes": x[2:], "geometry": windows})
        for x, w, g, windows in CASES
    ],
    "convolution_weight": [
        Sample((array(g), array(x)), {"geometry": windows}) for x, w, g, windows in CASES
    ],
    "unfold": [Sample((x,), {"geometry": windows}) for x, windows in UNFOLDED],
    "fold": [
        Sample(
            (normal(*REFERENCE["unfold"](x, geometry=windows).shape),),
            {"sizes": x.shape[2:], "geometry": windows},
        )
        for x, windows in UNFOLDED
    ],
}


SAMPLES["sliding_windows"] = [
    Sample((x,), {"dim": dim, "size": size, "step": step}) for x, dim, size, step in SLIDING
]
SAMPLES["sliding_windows_sum"] = [
    Sample(
        (normal(*_slide(x, dim, size, step).shape),),
        {"dim": dim, "length": x.shape[dim], "step": step},
    )
    for x, dim, size, step in SLIDING
]


# What PyTorch says --------------------------------------------------------------------------------


def torch_pads(pairs: Any, sign: int = 1) -> list[int]:
    """Pairs as torch's `pad` takes them, last dimension first."""
    return [sign * p for pair in reversed(pairs) for p in pair]


def _torch_convolution(
    torch: Any, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    functional = torch.nn.functional
    convolve = functional.conv2d if w.ndim == 4 else functional.conv1d
    x = functional.pad(x, torch_pads(padding))
    return convolve(x, w, bias, stride, 0, dilation, groups)


def _torch_input(
    torch: Any, g: Any, w: Any, sizes: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    functional = torch.nn.functional
    turn = functional.conv_transpose2d if w.ndim == 4 else functional.conv_transpose1d
    found = turn(g, w, stride=stride, dilation=dilation, groups=groups)
    pads = [
        (-low, n + low - size)
        for (low, _), n, size in zip(padding, sizes, found.shape[2:], strict=True)
    ]
    return functional.pad(found, torch_pads(pads))


def _torch_weight(
    torch: Any, g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    x = torch.nn.functional.pad(x, torch_pads(padding))
    found = []
    for gradient, part in zip(g.chunk(groups, 1), x.chunk(groups, 1), strict=True):
        sums = [
            torch.einsum("no...,nc...->oc", gradient, part[place])
            for _, place in slices(x, kernel, stride, dilation)
        ]
        found.append(torch.stack(sums, 2))
    return torch.cat(found).reshape(g.shape[1], x.shape[1] // groups, *kernel)


def _as_images(kernel: Any, stride: Any, dilation: Any) -> dict[str, Any]:
    one = (1,) * (2 - len(kernel))
    return {
        "kernel_size": (*one, *kernel), "stride": (*one, *stride), "dilation": (*one, *dilation)
    }  # fmt: skip


def _torch_unfold(torch: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    x = torch.nn.functional.pad(x, torch_pads(padding))
    x = x.unsqueeze(2) if x.ndim == 3 else x
    return torch.nn.functional.unfold(x, **_as_images(kernel, stride, dilation))


def _torch_fold(
    torch: Any, x: Any, sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    room = tuple(n + sum(p) for n, p in zip(sizes, padding, strict=True))
    size = room if len(room) == 2 else (1, *room)
    found = torch.nn.functional.fold(x, size, **_as_images(kernel, stride, dilation))
    found = found if len(room) == 2 else found.squeeze(2)
    return torch.nn.functional.pad(found, torch_pads(padding, -1))


TORCH: dict[str, Callable[..., Any]] = {
    "convolution": in_parts(_torch_convolution),
    "convolution_input": in_parts(_torch_input),
    "convolution_weight": in_parts(_torch_weight),
    "unfold": in_parts(_torch_unfold),
    "fold": in_parts(_torch_fold),
    "sliding_windows": lambda torch, x, dim, size, step: x.unfold(dim, size, step),
    "sliding_windows_sum": lambda torch, x, dim, length, step: torch.ops.aten.unfold_backward(
        x, [*x.shape[:dim], length, *x.shape[dim + 1 : -1]], dim, x.shape[-1], step
    ),
}
