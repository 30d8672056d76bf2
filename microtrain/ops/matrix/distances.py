"""Distances between vectors."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...backend import XP, made
from ..fronts import Float, Matrix, Number, T, need, of_dims, one_of, public
from ..index.indexing import gather_index
from ..pointwise.comparison import isnan
from ..pointwise.elementwise import where
from ..reduce.norms import norm
from ..reduce.reductions import any, sum_dims
from ..shape.shapes import unsqueeze

__all__ = ["cdist", "dist"]

_MODES = (
    "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)  # fmt: skip


@public
def dist(input: T, other: T, p: Number = 2) -> Any:
    """The p-norm of `input - other` as one vector; see `norm`."""
    return norm(input - other, float(p))


def _lengths(x: Any, p: float) -> Any:
    """The p-norms along the last dimension; NaN is none of the numbers that p = 0 counts."""
    found = norm(x, p, -1) if x.shape[-1] else sum_dims(x, (x.ndim - 1,))
    return found if p else where(any(isnan(x), -1), math.nan, found)


@public
def cdist(
    x1: Annotated[Float, of_dims(2)], x2: Annotated[Float, of_dims(2)], p: Number = 2.0,
    compute_mode: Annotated[str | None, one_of(None, *_MODES)] = None,
) -> Any:  # fmt: skip
    """The p-norm distances of all rows of (..., n, k) from all rows of (..., m, k): (..., n, m).

    Takes memory for n * m * k numbers: no `compute_mode` takes the short way of a matrix product,
    which loses digits. Raises RuntimeError for integers, shapes that do not fit and a negative `p`.
    """
    fits = x1.shape[-1] == x2.shape[-1] and p >= 0
    need(fits, "cdist", "expected rows of one length and p >= 0", x1, x2, p)
    return _lengths(unsqueeze(x1, -2) - unsqueeze(x2, -3), float(p))


@public
def pdist(input: Matrix, p: Number = 2.0) -> Any:
    """The p-norm distances of each row of a matrix from all rows behind it, as one vector."""
    xp = XP[type(input._array)]
    rows, columns = (xp.asarray(made(at)) for at in np.triu_indices(len(input), 1))
    return _lengths(gather_index(input, (rows,)) - gather_index(input, (columns,)), float(p))
