"""Which rows a rank gets, as arithmetic: the order of an epoch and the cut over ranks.

Batches are defined globally, before anyone asks how many ranks there are; ranks, micro-batches and
shards are contiguous slices of them. That is why a run means the same at every number of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..random import brief_generator

__all__ = ["contiguous_slice", "contiguous_slices", "epoch_order"]


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """The order of `rows` rows in an epoch: a permutation that depends on the arguments alone."""
    order: NDArray[np.intp] = brief_generator(seed, "shuffle", epoch).permutation(rows)
    return order


def contiguous_slice(rows: int, parts: int, part: int) -> tuple[int, int]:
    """First and last-plus-one row of slice number `part` of `rows` rows cut into `parts`.

    Sizes differ by at most one, the larger come first, and slices beyond the rows are empty.

    Example:
        >>> [contiguous_slice(7, 3, part) for part in range(3)]
        [(0, 3), (3, 5), (5, 7)]
    """
    size, larger = divmod(rows, parts)
    start = part * size + min(part, larger)
    return start, start + size + (part < larger)


def contiguous_slices(rows: int, parts: int) -> list[tuple[int, int]]:
    """All `parts` slices of `contiguous_slice`, in order; together they are range(rows)."""
    return [contiguous_slice(rows, parts, part) for part in range(parts)]
