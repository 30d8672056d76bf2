"""Random expressions over several leaves: whole graphs to hold autograd against.

A `Program` is data, so it runs in microtrain, in PyTorch and at other points, and hypothesis can
shrink it. Every step keeps its values in about [-2, 2] and away from ties and kinks: then finite
differences are sharp to 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Step = Callable[[Any, Any, Any, Any, int], Any]

SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3), (2, 2, 3)]
LARGEST = 24  # elements


def numbered(lib: Any, a: Any) -> Any:
    """The place of each element: integers of the shape of `a`."""
    return lib.arange(a.numel()).reshape(tuple(a.shape))


def mask_of(lib: Any, a: Any, k: int) -> Any:
    """A boolean pattern of the shape of `a`, by integer and boolean operations."""
    n = numbered(lib, a)
    patterns: list[Callable[[], Any]] = [
        lambda: n % 2 == 0,
        lambda: lib.logical_not((n * n + 1) % 5 < 2),
        lambda: ((n & 1) == 1) | (n > 3),
        lambda: (n.sum() - n).bool(),
        lambda: lib.where(n > 2, n, n * 3) % 2 != 0,
        lambda: (n // 2 >= 1) ^ (n == 1),
    ]
    return patterns[k % len(patterns)]()


# Each of (library, a, b, mask of a's shape, a small number): b broadcasts with a.
ELEMENTWISE: dict[str, Step] = {
    "add": lambda lib, a, b, m, k: (a + b) * 0.5,
    "subtract": lambda lib, a, b, m, k: 1 - (a - b) / 2,
    "multiply": lambda lib, a, b, m, k: a * b / 2,
    "divide": lambda lib, a, b, m, k: a / (b * b + 1.5),
    "power": lambda lib, a, b, m, k: (a + 3) ** 1.5 / 6,
    "square": lambda lib, a, b, m, k: a**2 / 2 - 0.5,
    "power of a tensor": lambda lib, a, b, m, k: (a.sigmoid() + 0.5) ** b / 2,
    "exp": lambda lib, a, b, m, k: (a / 2).exp() - 1,
    "log": lambda lib, a, b, m, k: (a * a + 1).log(),
    "sqrt": lambda lib, a, b, m, k: (a * a + 0.5).sqrt() - 1,
    "tanh": lambda lib, a, b, m, k: a.tanh() * 2,
    "sigmoid": lambda lib, a, b, m, k: a.sigmoid(),
    "reciprocal": lambda lib, a, b, m, k: (a + 3).reciprocal(),
    "negative": lambda lib, a, b, m, k: -a,
    "absolute": lambda lib, a, b, m, k: (a - 3).abs() - 3,
    "relu": lambda lib, a, b, m, k: (a + 3).relu() - (b - 3).relu() - 3,
    "maximum": lambda lib, a, b, m, k: lib.maximum(a, b - 9),
    "minimum": lambda lib, a, b, m, k: lib.minimum(a - 9, b) + 9,
    "clamp": lambda lib, a, b, m, k: (a + 10).clamp(3, 50) - 10,
    "where": lambda lib, a, b, m, k: lib.where(m, a, b * a / 2),
    "mask": lambda lib, a, b, m, k: a * m + b * lib.logical_not(m),
    "counts": lambda lib, a, b, m, k: a * numbered(lib, a) / LARGEST,
    "itself": lambda lib, a, b, m, k: (a + a * a) / 3,
}
# The same for a with at least one dimension.
SHAPED: dict[str, Step] = {
    "softmax": lambda lib, a, b, m, k: a.softmax(k % a.ndim),
    "log_softmax": lambda lib, a, b, m, k: a.log_softmax(k % a.ndim) / 3,
    "mean": lambda lib, a, b, m, k: a.mean(k % a.ndim, keepdim=k > 2),
    "sum": lambda lib, a, b, m, k: a.sum(k % a.ndim, keepdim=k > 2) / 3,
    "sum of all": lambda lib, a, b, m, k: a.sum() / a.numel(),
    "var": lambda lib, a, b, m, k: a.var(k % a.ndim, keepdim=k > 2, correction=0) / 4,
    "amax": lambda lib, a, b, m, k: (a + 5 * numbered(lib, a)).amax(k % a.ndim) / 50,
    "max": lambda lib, a, b, m, k: (a - 5 * numbered(lib, a)).max(k % a.ndim)[0] / 50,
    "matmul": lambda lib, a, b, m, k: rows(a)[:3] @ rows(a).T[:, -2:] / 6,
    "concatenate": lambda lib, a, b, m, k: lib.cat([a, a * b.mean() / 2], k % a.ndim),
    "stack": lambda lib, a, b, m, k: lib.stack([a, a.tanh()], k % (a.ndim + 1)),
    # Views, and places that are read more than once.
    "reshape": lambda lib, a, b, m, k: a.reshape(-1),
    "permute": lambda lib, a, b, m, k: a.permute(*reversed(range(a.ndim))),
    "transpose": lambda lib, a, b, m, k: a.transpose(0, k % a.ndim),
    "unsqueeze": lambda lib, a, b, m, k: a.unsqueeze(k % (a.ndim + 1)),
    "expand": lambda lib, a, b, m, k: a.expand(2, *a.shape),
    "first": lambda lib, a, b, m, k: a[0],
    "slice": lambda lib, a, b, m, k: a[..., k % a.shape[-1] :],
    "strided": lambda lib, a, b, m, k: a[..., ::2],
    "gather": lambda lib, a, b, m, k: a[..., [0, -1, 0]],
    "boolean index": lambda lib, a, b, m, k: a[(m | (numbered(lib, a) == 0))],
}


def rows(a: Any) -> Any:
    return a.reshape(-1, a.shape[-1])


def _write(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    fresh = a / 2
    fresh.add_(b.mean() / 2)
    return fresh


def _write_after_use(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    fresh = a / 2
    used = fresh + b.mean() / 2
    fresh *= used
    fresh.tanh_()
    return fresh + used / 2


def _write_to_view(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    fresh = a / 2
    part = fresh[..., : 1 + k % a.shape[-1]]
    part.mul_(b.mean())
    return fresh + part.sum() / LARGEST


def _write_to_one_of_two_views(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    # Whether reshape copies depends on the memory, which differs between the libraries.
    fresh = (a / 3).contiguous()
    flat, tail = fresh.reshape(-1), fresh[..., k % a.shape[-1] :]
    tail.sub_(tail.mean() * b.mean() / 2)
    flat.mul_(0.7)
    return flat.mean() + fresh * tail.sum() / LARGEST


def _assign(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    fresh = a / 2
    fresh[0] = b.mean()
    fresh[..., 0] = fresh[..., -1] * 0.5
    return fresh


def _augmented(lib: Any, a: Any, b: Any, m: Any, k: int) -> Any:
    fresh = a / 2
    fresh[..., ::2] += b.mean() / 2
    fresh[m] = 0.5
    return fresh


IN_PLACE: dict[str, Step] = {
    "write": _write,
    "write after use": _write_after_use,
    "write to a view": _write_to_view,
    "write to one of two views": _write_to_one_of_two_views,
    "assign": _assign,
    "augmented": _augmented,
}
STEPS = ELEMENTWISE | SHAPED | IN_PLACE


@dataclass(frozen=True)
class Program:
    """Leaves of these shapes; then each step's name, two operands counted from the last value."""

    shapes: list[tuple[int, ...]]
    steps: list[tuple[str, int, int, int]]

    def points(self, seed: int) -> list[Array]:
        """Random numbers of the leaves' shapes: where to compute, or a direction to go."""
        rng = np.random.default_rng(seed)
        return [np.asarray(rng.uniform(-1.5, 1.5, shape)) for shape in self.shapes]

    def values(self, lib: Any, leaves: list[Any]) -> list[Any]:
        """The leaves and the value of every step, computed with `lib`."""
        values = list(leaves)
        for name, i, j, k in self.steps:
            a = values[-1 - i % len(values)]
            b = values[-1 - j % len(values)]
            if not fits(tuple(a.shape), tuple(b.shape)):
                b = b.mean()
            if name not in ELEMENTWISE and not a.ndim:
                name = "tanh"
            value = STEPS[name](lib, a, b, mask_of(lib, a, k), k)
            values.append(value if value.numel() <= LARGEST else value.mean(0))
        return values

    def loss(self, lib: Any, leaves: list[Any]) -> Any:
        """A scalar of the last three values."""
        total = 0
        for value in self.values(lib, leaves)[-3:]:
            weights = np.cos(np.arange(value.numel(), dtype=float)).reshape(tuple(value.shape))
            total = total + (value * lib.from_numpy(weights)).sum()
        return total


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether the shapes broadcast, to a result that is not too large."""
    try:
        return bool(np.prod(np.broadcast_shapes(a, b)) <= LARGEST)
    except ValueError:
        return False


_count = st.integers(0, 29)
_step = st.tuples(st.sampled_from(list(STEPS)), _count, _count, st.integers(0, 5))
programs = st.builds(
    Program,
    st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4),
    st.integers(1, 30).flatmap(lambda n: st.lists(_step, min_size=n, max_size=n)),
)


def leaves_of(lib: Any, points: list[Array]) -> list[Any]:
    return [lib.from_numpy(point.copy()).requires_grad_() for point in points]
