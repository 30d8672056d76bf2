"""Convolutions in native code: tables of places for convolution.c, from the geometry of windows.

A convolution and both of its gradients read a padded copy of one sample at places that depend on
the element of the kernel alone (see convolution.c), so any stride, dilation, padding and number of
groups is the same code with other tables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ops.nn.windows import Geometry
from .program import Line

STRIP = 1 << 16  # bytes of sums before they are copied out
SUMS = 1 << 22  # bytes of sums for a gradient of weights
COPIES = 1 << 18  # bytes of copies of the input for those
BEHIND = 128  # elements behind a copy, which vectors may read
CHUNK = 256  # positions at a time of those
DIMS = 3  # of the tables; fewer are lines of length 1 before them


class Plan(NamedTuple):
    """The words that convolution.c is told, and how many elements of scratch memory it needs.

    Attributes:
        packed: those for all threads; room: those for each.
    """

    words: np.ndarray[Any, Any]
    packed: int
    room: int


def _three(some: Sequence[Any], one: Any = 1) -> tuple[Any, ...]:
    return (one,) * (DIMS - len(some)) + tuple(some)


def _in_three(geometry: Geometry) -> Geometry:
    """The same windows, of arrays of `DIMS` dimensions."""
    kernel, stride, padding, dilation = map(_three, geometry[:4], (1, 1, (0, 0), 1))
    return Geometry(kernel, stride, padding, dilation, geometry.groups)


def _elements(dims: Geometry) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Of each element of the kernel, in order: which part of a row it reads, and how far on."""
    lines = zip(dims.kernel, dims.dilation, dims.stride, strict=True)
    found = [[divmod(k * d, s)[::-1] for k in range(n)] for n, d, s in lines]
    return [tuple(zip(*one, strict=True)) for one in itertools.product(*found)]


class _Copy:
    """How padded copies of a channel are laid out.

    Args:
        sizes: of the channel.
        stride, low: elements from one of a part to its next, zeros before the first.
        parts: those that are read, of each dimension.
        found, far: how many positions there are, and how far on from one is read.
        samples: copies beside each other.

    Attributes:
        room: elements of a part, along each dimension. The zeros before a row, or a plane, stand
            behind the one before it as well.
        block: elements of a part.
        size: elements of all parts of all samples.
        behind: elements of what follows that are read as zeros.
    """

    def __init__(
        self, sizes: Sequence[int], stride: Sequence[int], low: Sequence[int],
        parts: Sequence[Sequence[int]], found: Sequence[int], far: Sequence[int], samples: int = 1,
    ) -> None:  # fmt: skip
        self.parts, self.sizes, self.stride = parts, tuple(sizes), tuple(stride)
        self.along: list[list[tuple[int, int, int, int]]] = []
        self.room: list[int] = []
        reads = [n + most for n, most in zip(found, far, strict=True)]
        for d in range(DIMS):
            some = []  # of each part its number, where it begins, with which element, how many
            for number, part in enumerate(parts[d]):
                start = max(0, -((part - low[d]) // stride[d]))  # what lies before is zeros
                first = stride[d] * start + part - low[d]
                count = max(0, min(-(-(sizes[d] - first) // stride[d]), reads[d] - start))
                some.append((number, start, first, count))
            before = min(start for _, start, *_ in some)
            ends = max(start + count for _, start, _, count in some)
            self.along.append(some)
            self.room.append(max(ends, found[d], reads[d] - before))
        self.block = math.prod(self.room)
        self.size = self.block * math.prod(map(len, parts)) * samples
        self.samples = samples
        last = self.position([n - 1 for n in reads])
        self.behind = max(0, last + 1 - self.block)

    def place(self, part: Sequence[int], index: Sequence[int]) -> int:
        """Of an element of a part."""
        numbers = [some.index(one) for some, one in zip(self.parts, part, strict=True)]
        return self.begin(*numbers) + self.position(index)

    def begin(self, *numbers: int) -> int:
        """Where a part begins, by its number along each dimension."""
        z, y, x = numbers
        number = (z * len(self.parts[1]) + y) * len(self.parts[2]) + x
        return number * self.block * self.samples

    def position(self, index: Sequence[int]) -> int:
        return (index[0] * self.room[1] + index[1]) * self.room[2] + index[2]

    def words(self, apart: int) -> list[int]:
        """What `spread` is told, of channels `apart` elements from each other in memory."""
        planes, lines = (self._places(dim) for dim in range(2))
        rows = [
            self.begin(z[0], y[0], 0) + self.position((z[1], y[1], 0)) if z and y else -1
            for z in planes for y in lines
        ]  # fmt: skip
        last = [
            number
            for part, start, first, count in self.along[2]
            for number in (first, count, self.begin(0, 0, part) + start)
        ]
        head = apart, self.size, len(rows), self.sizes[2], self.stride[2], len(self.along[2])
        return [*head, *rows, *last]

    def _places(self, dim: int) -> list[tuple[int, int] | None]:
        """Of each element: the number of its part and where it is there; None of one not read."""
        found: list[tuple[int, int] | None] = [None] * self.sizes[dim]
        for number, start, first, count in self.along[dim]:
            for i in range(count):
                found[first + i * self.stride[dim]] = number, start + i
        return found


def _reading(
    sizes: Sequence[int], found: Sequence[int], dims: Geometry, samples: int = 1
) -> tuple[_Copy, list[int]]:
    """The copy of an input, and where in it the window at position 0 has its elements."""
    elements = _elements(dims)
    parts = [sorted({part[d] for part, _ in elements}) for d in range(DIMS)]
    far = [max(far[d] for _, far in elements) for d in range(DIMS)]
    low = [before for before, _ in dims.padding]
    copy = _Copy(sizes, dims.stride, low, parts, found, far, samples)
    return copy, [copy.place(part, far) for part, far in elements]


def _lines(copy: _Copy, found: Sequence[int], to: Any) -> list[int]:
    """Where each row of positions goes: `to(z, y)`, or -1 where there is none."""
    rows = [to(z, y) if y < found[1] else -1 for z in range(found[0]) for y in range(copy.room[1])]
    return rows[: len(rows) - (copy.room[1] - found[1])]


class _Job(NamedTuple):
    """Positions for which sums are wanted, see convolution.c."""

    base: list[int]
    weights: list[int]
    rows: list[int]  # where each goes
    wide: int  # positions of each
    step: int  # of elements of the result


def _planned(
    shape: Sequence[int], groups: int, weight: Sequence[int], out: Sequence[int], copy: _Copy,
    jobs: list[_Job], itemsize: int, sparse: bool = False,
) -> Plan:  # fmt: skip
    """A plan for `convolution`.

    shape, out: (samples, channels, elements) of the input and of the result.
    weight: how far groups and the rows of one are apart in it.
    sparse: whether some of the result is in no job, and 0.
    """
    channels, rows = shape[1] // groups, out[1] // groups
    size = channels * copy.size + copy.behind + BEHIND
    words = [shape[0], groups, shape[1] * shape[2], channels * shape[2], weight[0],
             out[1] * out[2], rows * out[2], rows, weight[1], out[2], size, len(jobs),
             channels, sparse]  # fmt: skip
    spread = copy.words(shape[2])
    words += [len(spread), *spread]
    packed = strip = 0
    for job in jobs:
        line = copy.room[2]
        band = max(1, min(len(job.rows), STRIP // (rows * line * itemsize)))
        words += [len(job.base), len(job.rows), job.wide, line, job.step, band]
        words += [*job.base, *job.weights, *job.rows]
        packed += rows * len(job.base)
        strip = max(strip, rows * (band * line + BEHIND))
    return Plan(np.array(words, np.int64), packed, size + strip)


def plan(line: Line) -> Plan:
    """Of a convolution or the gradient of one."""
    (a, b, *_), geometry = line.args, line.attrs["geometry"]
    if line.name == "convolution":
        return forward(a, b, geometry)
    if line.name == "convolution_input":
        return backward(a, b, line.attrs["sizes"], geometry)
    return of_weight(b, a, geometry)


def forward(x: Any, weight: Any, geometry: Geometry) -> Plan:
    """Of the convolution of `x` with `weight`."""
    dims, sizes = _in_three(geometry), _three(x.shape[2:])
    found = dims.places(sizes)
    copy, places = _reading(sizes, found, dims)
    inputs, kernel = weight.shape[1], math.prod(dims.kernel)
    base = [c * copy.size + place for c in range(inputs) for place in places]
    rows = _lines(copy, found, lambda z, y: (z * found[1] + y) * found[2])
    apart = inputs * kernel, weight.shape[0] // geometry.groups * inputs * kernel
    job = _Job(base, [*range(apart[0])], rows, found[2], 1)
    return _planned(
        (*x.shape[:2], math.prod(sizes)), geometry.groups, apart[::-1],
        (x.shape[0], weight.shape[0], math.prod(found)), copy, [job], x.itemsize,
    )  # fmt: skip


def backward(gradient: Any, weight: Any, sizes: Sequence[int], geometry: Geometry) -> Plan:
    """Of the gradient of an input of `sizes`: a convolution for each part that a stride makes."""
    dims, sizes, found = _in_three(geometry), _three(sizes), _three(gradient.shape[2:])
    elements = _elements(dims)
    far = [max(far[d] for _, far in elements) for d in range(DIMS)]
    ranges = []  # of each dimension: the part, the first element of it, how many
    for n, s, (low, _) in zip(sizes, dims.stride, dims.padding, strict=True):
        firsts = [(part, max(0, -((part - low) // s))) for part in range(s)]
        ranges.append([(r, q, (n - 1 + low - r) // s - q + 1) for r, q in firsts])
    most = [max(q + count for _, q, count in some) for some in ranges]
    copy = _Copy(found, (1,) * DIMS, far, [[0]] * DIMS, most, far)
    outputs = weight.shape[0] // geometry.groups
    kernel, theirs = len(elements), weight.shape[1]
    jobs, sparse = [], False
    for one in itertools.product(*ranges):
        part, start, count = zip(*one, strict=True)
        base: list[int] = []
        weights: list[int] = []
        for c, (number, (its, ahead)) in itertools.product(range(outputs), enumerate(elements)):
            if its == part:
                index = [q + f - e for q, f, e in zip(start, far, ahead, strict=True)]
                base.append(c * copy.size + copy.position(index))
                weights.append(c * theirs * kernel + number)
        if not base or min(count) < 1:
            sparse |= min(count) > 0
            continue
        to = [
            s * q + r - low
            for s, q, r, (low, _) in zip(dims.stride, start, part, dims.padding, strict=True)
        ]

        def place(z: int, y: int, to: list[int] = to) -> int:
            lines = to[0] + z * dims.stride[0], to[1] + y * dims.stride[1]
            return (lines[0] * sizes[1] + lines[1]) * sizes[2] + to[2]

        rows = _lines(copy, count, place)
        jobs.append(_Job(base, weights, rows, count[2], dims.stride[2]))
    return _planned(
        (*gradient.shape[:2], math.prod(found)), geometry.groups,
        (outputs * theirs * kernel, kernel),
        (gradient.shape[0], theirs * geometry.groups, math.prod(sizes)), copy, jobs,
        gradient.itemsize, sparse,
    )  # fmt: skip


def of_weight(x: Any, gradient: Any, geometry: Geometry) -> Plan:
    """Of the gradient of the weight."""
    dims, sizes, found = _in_three(geometry), _three(x.shape[2:]), _three(gradient.shape[2:])
    copy, places = _reading(sizes, found, dims)
    groups, panel = geometry.groups, 128 // x.itemsize  # columns of one, or more
    samples, channels, rows = x.shape[0], x.shape[1] // groups, gradient.shape[1] // groups
    wide = -(-rows // panel) * panel
    slab = max(1, min(channels, SUMS // (wide * len(places) * x.itemsize)))
    most = max(1, COPIES // (slab * copy.size * x.itemsize))
    together = -(-samples // -(-samples // most))  # of about the same number each time
    copy, places = _reading(sizes, found, dims, together)
    size = slab * copy.size + copy.behind + BEHIND
    spread = copy.words(math.prod(sizes))
    lines = [copy.position((z, y, 0)) for z in range(found[0]) for y in range(found[1])]
    words = [samples, groups, x.shape[1] * math.prod(sizes), channels * math.prod(sizes),
             gradient.shape[1] * math.prod(found), rows * math.prod(found),
             rows * channels * len(places), rows, len(places), channels, slab, together,
             copy.block, size, len(lines), found[2]]  # fmt: skip
    words += [len(spread), *spread, *lines]
    words += [c * copy.size + place for c in range(slab) for place in places]
    room = size + max(CHUNK, found[2]) * panel + wide * slab * len(places)
    return Plan(np.array(words, np.int64), 0, room)
