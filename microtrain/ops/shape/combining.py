"""Tensors put together in other ways than side by side: on a diagonal, each with each."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...backend import MODES, XP, made
from ...tensor import wrap
from ..coercion import promote
from ..fronts import Count, Vector, need, public
from ..index.indexing import gather_index
from .joining import atleast_2d, cat, checked_tensors, stack
from .rearranging import meshgrid
from .shapes import flatten

__all__ = ["block_diag", "cartesian_prod", "combinations"]


def block_diag(*tensors: Any) -> Any:
    """A matrix of zeros with the given matrices along its diagonal; vectors are rows.

    Of nothing it has the shape (1, 0).
    """
    if not tensors:
        return wrap(made(np.empty((1, 0), MODES.default_dtype)))
    found = atleast_2d(list(promote(checked_tensors("block_diag", tensors))))
    need(all(x.ndim < 3 for x in found), "block_diag", "expected at most 2 dimensions", *found)
    width, before, rows = sum(x.shape[1] for x in found), 0, []
    for x in found:
        zeros = XP[type(x._array)].zeros
        height, behind = x.shape[0], width - before - x.shape[1]
        sides = [wrap(zeros((height, n), x.dtype)) for n in (before, behind)]
        rows.append(cat([sides[0], x, sides[1]], 1))
        before += x.shape[1]
    return cat(rows)


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of one element of each of several vectors, as the rows of a matrix.

    Of one vector it is the vector itself.
    """
    found = checked_tensors("cartesian_prod", tensors)
    need(all(x.ndim == 1 for x in found), "cartesian_prod", "expected vectors", *found)
    if len(found) == 1:
        return found[0]
    return stack([flatten(x) for x in meshgrid(*found, indexing="ij")], 1)


@public
def combinations(input: Vector, r: Count = 2, with_replacement: bool = False) -> Any:
    """All choices of `r` elements of a vector, in their order, as the rows of a matrix.

    `with_replacement` allows an element several times. Raises RuntimeError for a negative `r`.
    """
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    if not r:
        return input[:0]
    chosen = np.array(list(choose(range(len(input)), r)), np.int64).reshape(-1, r)
    return gather_index(input, (XP[type(input._array)].asarray(made(chosen)),))
