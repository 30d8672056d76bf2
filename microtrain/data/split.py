"""Which rows train, validate and test: a function of their number, the fractions and the seed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..random import generator

__all__ = ["PARTS", "split_rows", "split_sizes"]

PARTS = ("train", "val", "test")


def split_sizes(rows: int, split: Mapping[str, float], origin: str = "data") -> dict[str, int]:
    """The number of rows of each part named by `split`.

    val and test get floor(rows * fraction), train gets the rest. A product within a millionth of
    a whole number is that number: 0.29 of 100 rows is 29, whatever the floats say.

    Raises ConfigError for fractions outside (0, 1], that do not add up to 1, or without train, and
    DataError for a part that would be empty.

    Example:
        >>> split_sizes(442, {"train": 0.8, "test": 0.2})
        {'train': 354, 'test': 88}
    """
    shown = ", ".join(f"{name}: {fraction}" for name, fraction in split.items())
    for name, fraction in split.items():
        if name not in PARTS:
            raise ConfigError(f"{origin}: split has no part {name!r}; there are train, val, test")
        no_number = isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number)
        if no_number or not 0 < fraction <= 1:
            raise ConfigError(
                f"{origin}: split {name} is a fraction of the rows, above 0 and at most 1; "
                f"got {fraction!r}"
            )
    if "train" not in split:
        raise ConfigError(f"{origin}: split needs a train part, got {{{shown}}}")
    total = math.fsum(split.values())
    if abs(total - 1.0) > 1e-6:
        raise ConfigError(f"{origin}: split {{{shown}}} adds up to {total:g}, expected 1")
    sizes = {
        name: math.floor(round(rows * fraction, 6))
        for name, fraction in split.items()
        if name != "train"
    }
    sizes = {"train": rows - sum(sizes.values()), **sizes}
    for name, size in sizes.items():
        if size < 1:
            raise DataError(
                f"{origin}: split {{{shown}}} of {rows} rows leaves {name} empty; give it a larger "
                "fraction, or leave it out"
            )
    return sizes


def split_rows(
    rows: int, split: Mapping[str, float] | None, seed: int, origin: str
) -> dict[str, slice | NDArray[np.intp]]:
    """The rows of each part, in their own order; None puts all of them in train.

    Rows are assigned by a permutation that depends on the seed and the number of rows alone.
    """
    if split is None:
        return {"train": slice(None)}
    sizes = split_sizes(rows, split, origin)
    order = generator(seed, "split").permutation(rows)
    # In the order of PARTS, so that the order of the keys in the YAML changes nothing.
    bounds = np.cumsum([sizes.get(name, 0) for name in PARTS])[:-1]
    parts = zip(PARTS, np.split(order, bounds), strict=True)
    return {name: np.sort(chosen) for name, chosen in parts if name in sizes}
