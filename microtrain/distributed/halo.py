"""Halos: the part of a field that a rank has, with the borders of its neighbors around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import need
from ..ops.shape.joining import cat
from ..tensor import Tensor
from .collectives import need_tensor
from .communicator import Communicator
from .connection import ranks_of
from .messages import shift


def halo(
    x: Tensor, dims: int | Sequence[int], width: int | Sequence[int] = 1,
    periodic: bool | Sequence[bool] | None = None, grid: int | Sequence[int] | None = None,
    comm: Communicator | Any = None,
) -> Tensor:  # fmt: skip
    """`x` with `width` rows of its neighbors in front and behind, in each of `dims`.

    The ranks are a grid over a field of which each has a block, `x`. Rank 0 is at its beginning,
    and the number of the rank grows fastest along the last dimension, as in MPI's Cartesian
    communicators. Corners come from the neighbors across them. At the end of a dimension that is
    not periodic there is no neighbor, and its rows are zeros there, so the result has the same
    shape as on the other ranks: write a boundary condition into it, or leave these rows out.

    Args:
        x: this rank's block; neighbors have the same sizes but in the dimension between them.
        dims: which dimensions of `x` are divided, one for each dimension of the grid.
        width: of the halo on both sides, one number, or one for each of `dims`; 0: none.
        periodic: whether the last rank of a dimension is before the first one, one answer, or one
            for each of `dims`; None: as the communicator has it, else not.
        grid: how many ranks there are along each of `dims`, a number for one; None: as the
            communicator, which is one of mpi4py's `Create_cart`, has it; all ranks where there is
            one dimension.
        comm: whose ranks these are; None is `world()`.

    The gradient of a row goes back to the rank it belongs to, and is added to its own. All ranks
    call this, and run the backward pass (see `send`).

    Raises TypeError for what is not a Tensor; ValueError for a grid of a different number of ranks
    or dimensions, or one that is not the communicator's, for a dimension that `x` does not have, or
    a width over that of this block; RuntimeError where a neighbor's block does not fit.

    Example:
        >>> u, comm = mt.ones(8, 8), mt.distributed.world()
        >>> u = mt.distributed.halo(u, (0, 1), grid=(comm.size, 1))
        >>> laplacian = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    """
    need_tensor("halo", x)
    comm = ranks_of(comm)
    where = (dims,) if isinstance(dims, int) else tuple(dims)
    ranks, rings = _grid(len(where), grid, periodic, comm)
    widths = (width,) * len(where) if isinstance(width, int) else tuple(width)
    good = len(widths) == len(where) and all(type(w) is int and w >= 0 for w in widths)
    text = f"expected width to be a whole number, or one for each of {len(where)} dims"
    need(good, "halo", text, width, error=ValueError)
    good = all(type(d) is int and -x.ndim <= d < x.ndim for d in where)
    good = good and len({d % x.ndim for d in where}) == len(where)
    text = f"expected dims to be different dimensions of x, which has {x.ndim}"
    need(good, "halo", text, dims, error=ValueError)
    for d, w in zip(where, widths, strict=True):
        text = f"width {w} is more than the {x.shape[d]} rows that this rank has in dimension {d}"
        need(w <= x.shape[d], "halo", text + "; use fewer ranks there", error=ValueError)
    here = [int(n) for n in np.unravel_index(comm.rank, ranks)]
    for place, (d, w) in enumerate(zip(where, widths, strict=True)):
        if not w:
            continue
        before, after = (_neighbor(here, place, step, ranks, rings) for step in (-1, 1))
        last, first = x.narrow(d, x.shape[d] - w, w), x.narrow(d, 0, w)
        front = shift("halo", last, after, before, "up", comm)
        back = shift("halo", first, before, after, "down", comm)
        x = cat([front, x, back], d)
    return x


def _grid(
    count: int, grid: int | Sequence[int] | None, periodic: Any, comm: Communicator
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """How many ranks there are along each of `count` dimensions, and which of these are rings."""
    known = comm.grid
    if grid is None:
        text = f"expected grid, the numbers of ranks along each of {count} dims, whose product is "
        text += f"{comm.size}; only a communicator of Create_cart knows its own"
        need(known is not None or count == 1, "halo", text, error=ValueError)
        grid = known[0] if known else (comm.size,)
    ranks = (grid,) if isinstance(grid, int) else tuple(grid)
    text = f"expected a grid with one number for each of {count} dims, whose product is {comm.size}"
    good = len(ranks) == count and math.prod(ranks) == comm.size and min(ranks, default=1) > 0
    need(good, "halo", text, ranks, error=ValueError)
    rings: Any = (bool(periodic),) * count
    if isinstance(periodic, Sequence):
        rings = tuple(map(bool, periodic))
    elif periodic is None and known:
        rings = known[1]
    text = f"expected periodic to be one answer, or one for each of {count} dims"
    need(len(rings) == count, "halo", text, periodic, error=ValueError)
    text = "grid and periodic are not those of the communicator, {}; leave them out, got {}"
    need(known in (None, (ranks, rings)), "halo", text, known, (ranks, rings), error=ValueError)
    return ranks, rings


def _neighbor(
    here: Sequence[int], place: int, step: int, ranks: Sequence[int], rings: Sequence[bool]
) -> int | None:
    """The rank that is `step` further along one dimension of the grid; None where it ends."""
    there = [*here]
    there[place] += step
    if not 0 <= there[place] < ranks[place] and not rings[place]:
        return None
    return int(np.ravel_multi_index(there, ranks, mode="wrap"))
