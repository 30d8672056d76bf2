"""The windows of pooling: where they lie for a kernel, and for a number of results.

Maxima are in `max_pooling`, averages in `average_pooling`. Both go through the dimensions one after
the other: the maxima (or sums) of a line, then those of these.
"""

from __future__ import annotations

from typing import Any

from ...errors import need, wrong
from .windows import batched, geometric

# Windows along a size: each is listed.
MOST = 2**31


def pool_geometry(
    name: str, sizes: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding, dilation and the number of windows along every size."""
    dims = len(sizes)
    kernel, around, wide = geometric(
        name, dims, kernel_size=kernel_size, padding=padding, dilation=dilation
    )
    (step,) = [kernel] if stride in (None, (), []) else geometric(name, dims, stride=stride)
    half = all(2 * p <= k for p, k in zip(around, kernel, strict=True))
    need(half, name, "padding {} should be at most half of the kernel size {}", around, kernel)
    found = []
    for n, k, s, p, d in zip(sizes, kernel, step, around, wide, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil else room // s) + 1
        # A window that would start behind the input and its left padding is left out.
        found.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
    if min(found) < 1 or 0 in sizes:
        text = "a kernel of size {} with dilation {} does not fit into {} with padding {}"
        raise wrong(name, text, kernel, wide, tuple(sizes), around)
    return kernel, step, around, wide, tuple(found)


def adaptive_windows(
    name: str, input: Any, output_size: Any, dims: int
) -> tuple[Any, tuple[int, ...]]:
    """The input with samples, and the number of windows along every size."""
    x = batched(name, input, dims)
    sizes = x.shape[2:]
    several = isinstance(output_size, tuple | list)
    wanted = tuple(output_size) if several else (output_size,) * dims
    need(len(wanted) == dims, name, f"output_size must be {dims} numbers", output_size)
    wanted = tuple(n if dims > 1 and w is None else w for n, w in zip(sizes, wanted, strict=True))
    (found,) = geometric(name, dims, output_size=wanted)
    need(max(found) <= MOST, name, f"output_size must be at most {MOST:,}", found)
    need(0 not in sizes, name, "expected an input with elements", input)
    return x, found


def window_ends(size: int, found: int) -> list[tuple[int, int]]:
    """Where every window begins and ends: they cover the size, and share elements where needed."""
    return [(i * size // found, -(-(i + 1) * size // found)) for i in range(found)]
