"""Whether data can be trained on: by shapes and dtypes, and by one pass over the rows.

Nothing is kept of a row. Sums are added up in the order of a binary tree over the blocks, whose
size depends on the data alone: whoever goes through the same rows gets the same bits.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import DataError
from ..rows import Known, Preprocessing, Rows, TargetSurvey, apart, as_trained
from ..source import BLOCK, ArrayDataset, Source, blocks, location_in, misfit


def as_source(data: Any, origin: str) -> Any:
    """Arrays as an ArrayDataset; a Source, a Table and what is neither, as they are."""
    if isinstance(data, tuple | list):
        try:
            return ArrayDataset(*data)
        except (TypeError, ValueError) as error:
            raise DataError(f"{origin}: {error}") from error
    return data


def checked(data: Any, origin: str, lazy: bool) -> Any:
    """A source that has rows, inputs and a target of numbers; DataError where it has not.

    lazy: nothing is read of it but shapes and dtypes. Else it is arrays, which are finite, and
        of which 1-d ones of floats become columns.
    """
    if not isinstance(data, Source):
        returned = "nothing" if data is None else f"a {type(data).__name__}"
        hint = (
            "\nhint: rows are read in any order, and again each epoch; write what an iterator "
            "gives into .npy files once (numpy.lib.format.open_memmap); data of type npy reads them"
        ) * hasattr(data, "__next__")
        raise DataError(
            f"{origin} returned {returned}; expected arrays (inputs..., target) or an ArrayDataset"
            f", or another Source{hint}"
        )
    head: Any = data.read(slice(0, 0))
    if not isinstance(head, tuple) or not all(isinstance(array, np.ndarray) for array in head):
        raise DataError(f"{origin}: read() of {data!r} gave no tuple of NumPy arrays")
    shown = ", ".join(f"{a.dtype} {(len(data), *a.shape[1:])}" for a in head)
    what = ""
    if len(head) < 2 + data.weighted:
        what = f"rows have {len(head)} arrays{' with weights' * data.weighted}"
        what += "; expected at least an input and a target"
    elif any(array.ndim == 0 or array.dtype.kind not in "biuf" for array in head):
        what = "expected rows of booleans, integers or floats"
    elif any(len(array) for array in head):
        what = f"read(slice(0, 0)) of {data!r} gave rows"
    elif not len(data):
        what = "the data set is empty"
    elif any(0 in array.shape[1:] for array in head):
        what = "an array has no columns"
    if what := what or misfit(data, head):
        raise DataError(f"{origin}: {what}; its arrays are {shown}")
    if lazy:
        return data
    assert isinstance(data, ArrayDataset)
    for at, array in enumerate(data.arrays):
        check_finite(array, f"{origin}: {name_of(data, at)} at", columns_of(data, at))
    count = len(data.arrays) - data.weighted
    columns = [
        a[:, None] if a.ndim == 1 and a.dtype.kind == "f" else a for a in data.arrays[:count]
    ]
    return data.with_arrays(*columns, *data.arrays[count:])


def name_of(source: Source, at: int) -> str:
    """What an array of a source is called in errors."""
    inputs = len(source.read(slice(0, 0))) - 1 - source.weighted
    if at >= inputs:
        return ("target", "weight")[at - inputs]
    return "input" if inputs == 1 else f"input {at}"


def columns_of(source: Source, at: int) -> Sequence[str] | None:
    """The names of the columns of an array of a source; None where they have none."""
    if at == 0 or source.feature_names is None or source.target_name is None:
        return None if at else source.feature_names
    return [source.target_name] if name_of(source, at) == "target" else None


def check_finite(
    array: NDArray[Any],
    name: str,
    columns: Sequence[str] | None = None,
    location: Callable[[int], str] = "row {}".format,
) -> None:
    """DataError naming row and column of the first value that is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    row, *rest = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
    where = location(row)
    if columns is not None and len(rest) == 1 and rest[0] < len(columns):
        where += f', column "{columns[rest[0]]}"'
    elif rest:
        where += f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    raise DataError(
        f"{name} {where} is {array[(row, *rest)]}, expected a finite number\n"
        "hint: rows count from 0; fill such values in or leave the rows out"
    )


def class_names(
    named: tuple[str, ...] | None,
    target: NDArray[Any],
    bounds: tuple[float, float],
    rows: int,
    origin: str,
) -> tuple[str, ...] | None:
    """The names of the classes: given, or the codes themselves for a 1-d target of integers, which
    go from the first to the last of `bounds`.
    """
    if named is not None or target.dtype.kind == "f" or target.ndim > 1:
        return named
    low, high = map(int, bounds)
    # Years or counts would silently ask for a model with two thousand outputs.
    if low < 0 or high >= max(rows, 2):
        raise DataError(
            f"{origin}: the target holds integers from {low} to {high} in {rows} rows; "
            "integers are class codes 0, 1, 2 ..., floats are values to regress on\n"
            "hint: make them floats, or name all classes: ArrayDataset(x, y, classes=[...])"
        )
    return tuple(str(code) for code in range(high + 1))


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


Array = NDArray[Any]


class Moments:
    """Mean and squared deviations of columns, added up block by block.

    Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm (1979).
    """

    def __init__(self) -> None:
        # Of 1, 2, 4 ... blocks, the largest first: the blocks, their rows, mean and deviations.
        self._done: list[tuple[int, int, Array, Array]] = []

    def add(self, x: Array) -> None:
        """The next rows."""
        x = x.astype(np.float64, copy=False)
        mean = x.mean(axis=0)
        apart = x - mean
        self._done.append((1, len(x), mean, np.multiply(apart, apart, out=apart).sum(axis=0)))
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
        """Over all rows, of which there are some."""
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
        moments: of the first input, if they were asked for.
    """

    known: Known
    low: list[Array]
    high: list[Array]
    moments: Moments | None

    def standardizing(self, origin: str) -> Preprocessing:
        """The map that gives these rows mean 0 and deviation 1."""
        assert self.moments is not None
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = self.moments.mean_and_std()
        low, high = (bound[0].astype(np.float64) for bound in (self.low, self.high))
        return Preprocessing.of_statistics(mean, std, low, high, origin)


def survey(
    part: Rows, origin: str, dtype: DTypeLike, lazy: bool = True, moments: bool = False
) -> Survey:
    """Go through all rows of a part that are not yet prepared.

    lazy: block by block, and with a hash of them; else they are one block, in memory.
    moments: of the first input, too.

    Raises DataError that names row and column of the first value that is not finite, of a class
    code without a name, or of a weight below 0.
    """
    found, sums = TargetSurvey(), Moments() if moments else None
    head = part.read(slice(0, 0))
    digests = [hashlib.blake2b(digest_size=16) for _ in head]
    low: list[Array] = []
    high: list[Array] = []
    for first, arrays in blocks(part, BLOCK if lazy else sys.maxsize):
        least, most = ([each(a, axis=0) for a in arrays] for each in (np.min, np.max))
        for at, bounds in enumerate(zip(least, most, strict=True)):
            if arrays[at].dtype.kind == "f" and not np.isfinite(bounds).all():
                where = partial(place, part, at, first)
                check_finite(
                    arrays[at], f"{origin}: {name_of(part, at)} at", columns_of(part, at), where
                )
        low = [*map(np.minimum, low, least)] or least
        high = [*map(np.maximum, high, most)] or most
        for digest, array in zip(digests, arrays, strict=True) if lazy else ():
            digest.update(np.ascontiguousarray(array).data)
        _, target = apart(part, arrays)
        _check_codes_and_weights(part, first, target, arrays[-1], origin)
        with np.errstate(over="ignore", invalid="ignore"):  # refused by its extremes
            found.add(as_trained(target, dtype, column=True))
            if sums is not None:
                sums.add(arrays[0])
    return Survey(found.known("".join(d.hexdigest() for d in digests)), low, high, sums)


def place(source: Source, array: int, first: int, row: int) -> str:
    """Where a row of an array of a block that begins with row `first` comes from."""
    return location_in(source, array, first + row)


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
