"""What is to be known of a part before it is prepared, found in one pass over its rows.

Nothing is kept of them. Sums are added up in the order of a binary tree over the blocks, whose size
depends on the data alone: whoever goes through the same rows gets the same bits.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import DataError
from ..rows import (
    Known,
    Preprocessing,
    Rows,
    Statistic,
    TargetSurvey,
    as_trained,
)
from ..source import BLOCK, Source, blocks, check_array, place

Array = NDArray[Any]


def cast(array: NDArray[Any], dtype: DTypeLike, origin: str) -> NDArray[Any]:
    """`array` as `dtype`; DataError for values that do not fit."""
    dtype = np.dtype(dtype)
    if array.dtype == np.uint64 and dtype == np.int64 and array.max(initial=0) > 2**63 - 1:
        raise DataError(f"{origin}: the integer {array.max()} does not fit int64")
    with np.errstate(over="ignore"):
        result: NDArray[Any] = array.astype(dtype, copy=False)
    if not np.isfinite(result).all():
        raise DataError(
            f"{origin}: values up to {np.abs(array).max():g} do not fit {dtype}; rescale the data, "
            "or train with dtype: float64"
        )
    return result


class Moments:
    """Mean and squared deviations of columns, added up block by block.

    Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm (1979).
    """

    def __init__(self) -> None:
        # Of 1, 2, 4 ... blocks, the largest first: the blocks, their rows (or the sum of their
        # weights), mean and deviations.
        self._done: list[tuple[int, float, Array, Array]] = []

    def add(self, x: Array, weights: Array | None = None) -> None:
        """The next rows, (n, ...), which count by their weights, (n,), where there are any."""
        x = x.astype(np.float64, copy=False)
        rows: float = len(x) if weights is None else weights.sum(dtype=np.float64)
        if not rows:
            return
        mean = x.mean(axis=0) if weights is None else np.average(x, 0, weights)
        apart = x - mean
        squares = np.multiply(apart, apart, out=apart)
        if weights is not None:
            squares *= weights.reshape(-1, *(1,) * (x.ndim - 1))
        self._done.append((1, rows, mean, squares.sum(axis=0)))
        while len(self._done) > 1 and self._done[-1][0] == self._done[-2][0]:
            self._merge()

    def _merge(self) -> None:
        blocks, n, mean, squares = self._done.pop()
        others, m, its_mean, its_squares = self._done.pop()
        apart = mean - its_mean
        mean = its_mean + apart * (n / (n + m))
        squares = its_squares + squares + apart * apart * (n * m / (n + m))
        self._done.append((others + blocks, n + m, mean, squares))

    def mean_and_std(self) -> tuple[Array, Array]:
        """Over all rows, of which some count."""
        while len(self._done) > 1:
            self._merge()
        _, rows, mean, squares = self._done[0]
        return mean, np.sqrt(squares / rows)


@dataclass(frozen=True)
class Survey:
    """What a pass has found.

    Attributes:
        known: of the target as it is trained on, and the hash.
        low, high: of each array, the least and largest values over its rows.
        counted: the same of the targets of rows whose weight is not 0, by block.
        moments: of the arrays, by number, of which they were asked for.
    """

    known: Known
    low: list[Array]
    high: list[Array]
    counted: list[tuple[Array, Array]]
    moments: Mapping[int, Moments]

    def ends(self) -> tuple[Statistic, Statistic]:
        """The least and largest targets of rows that count, of which there are some; float64."""
        lows, highs = zip(*self.counted, strict=True)
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)
        return np.atleast_1d(low).astype(np.float64), np.atleast_1d(high).astype(np.float64)

    def standardizing(self, number: int, origin: str, log: bool = False) -> Preprocessing:
        """The map that gives an array of these rows, or its log(1 + x), mean 0 and deviation 1."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = self.moments[number].mean_and_std()
        if number == 0:
            low, high = (bound[0].astype(np.float64) for bound in (self.low, self.high))
            return Preprocessing.of_statistics(mean, std, low, high, origin)
        low, high = (np.log1p(end) if log else end for end in self.ends())
        mean, std = np.atleast_1d(mean), np.atleast_1d(std)
        return Preprocessing.of_statistics(mean, std, low, high, origin, "target")


def survey(
    part: Rows,
    origin: str,
    dtype: DTypeLike,
    lazy: bool = True,
    moments: Sequence[int] = (),
    log: bool = False,
) -> Survey:
    """Go through all rows of a part that are not yet prepared.

    lazy: block by block, and with a hash of them; else they are one block, in memory.
    moments: of these arrays, too, of the target by the weights of rows; `log`: of the target's
        log(1 + t).

    Raises DataError that names row and column of the first value that is not finite, of a class
    code without a name, of a target below 0 whose logarithm is wanted, or of a weight below 0.
    """
    found, sums = TargetSurvey(), {number: Moments() for number in moments}
    head = part.read(slice(0, 0))
    at = len(head) - 1 - part.weighted
    digests = [hashlib.blake2b(digest_size=16) for _ in head]
    low: list[Array] = []
    high: list[Array] = []
    counted: list[tuple[Array, Array]] = []
    for first, arrays in blocks(part, BLOCK if lazy else sys.maxsize):
        least, most = ([each(a, axis=0) for a in arrays] for each in (np.min, np.max))
        for number, bounds in enumerate(zip(least, most, strict=True)):
            if arrays[number].dtype.kind == "f" and not np.isfinite(bounds).all():
                check_array(part, number, arrays[number], origin, first)
        low = [*map(np.minimum, low, least)] or least
        high = [*map(np.maximum, high, most)] or most
        for digest, array in zip(digests, arrays, strict=True) if lazy else ():
            digest.update(np.ascontiguousarray(array).data)
        target = arrays[at]
        if log:
            _refuse_negative(part, at, target, origin, first)
        _check_codes_and_weights(part, first, target, arrays[-1], origin)
        counts = target[arrays[-1] > 0] if part.weighted else target
        if len(counts):
            counted.append((counts.min(axis=0), counts.max(axis=0)))
        with np.errstate(over="ignore", invalid="ignore"):  # refused by its extremes
            found.add(as_trained(target, dtype, column=True))
            for number, moments_of in sums.items():
                x = arrays[number]
                if number == 0:
                    moments_of.add(x)
                    continue
                weights = arrays[-1] if part.weighted else None
                moments_of.add(np.log1p(x, dtype=np.float64) if log else x, weights)
    return Survey(found.known("".join(d.hexdigest() for d in digests)), low, high, counted, sums)


def _refuse_negative(source: Source, at: int, target: Array, origin: str, first: int) -> None:
    """DataError for the first target below 0, which has no logarithm here, from row `first` on."""
    if (target < 0).any():
        row, *rest = np.argwhere(target < 0)[0].tolist()
        raise DataError(
            f"{origin}: target at {place(source, at, first, row)} is {target[(row, *rest)]}, "
            "expected a number of at least 0: data.log_target takes log(1 + target)\n"
            "hint: rows count from 0"
        )


def _check_codes_and_weights(
    part: Rows, first: int, target: Array, weights: Array, origin: str
) -> None:
    if part.classes is not None:
        bad = np.flatnonzero((target < 0) | (target >= len(part.classes)))
        if len(bad):
            where = part.location_in(-1 - part.weighted, first + int(bad[0]))
            raise DataError(
                f"{origin}: target at {where} is {target[bad[0]]}, "
                f"expected a code from 0 to {len(part.classes) - 1}, of {len(part.classes)} classes"
            )
    if part.weighted and (weights < 0).any():
        row = int(np.flatnonzero(weights < 0)[0])
        raise DataError(
            f"{origin}: weight at {part.location_in(-1, first + row)} is {weights[row]}, "
            "expected a number of at least 0"
        )


def check_fit(found: Survey, maps: Mapping[int, Any], dtype: DTypeLike, origin: str) -> None:
    """DataError where values of a part do not fit the dtype that they are cast to."""
    for number, (low, high) in enumerate(zip(found.low, found.high, strict=True)):
        ends = np.stack([low, high])
        with np.errstate(over="ignore"):  # cast refuses what overflows
            ends = maps[number].apply(ends) if number in maps else ends
        cast(ends, dtype if ends.dtype.kind == "f" else np.int64, origin)
