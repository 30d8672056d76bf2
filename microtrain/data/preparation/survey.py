"""Whether data can be trained on: by shapes and dtypes, and by one pass over the rows.

Nothing is kept of a row. Sums are added up in the order of a binary tree over the blocks, whose
size depends on the data alone: whoever goes through the same rows gets the same bits.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import ConfigError, DataError
from ..rows import Known, Preprocessing, Rows, TargetSurvey, apart, as_trained
from ..source import BLOCK, ArrayDataset, Source, blocks


def as_source(data: Any, origin: str) -> Any:
    """Arrays as an ArrayDataset; a Source, a Table and what is neither, as they are."""
    if isinstance(data, tuple | list):
        try:
            return ArrayDataset(*data)
        except (TypeError, ValueError) as error:
            raise DataError(f"{origin}: {error}") from error
    return data


def checked(data: Any, origin: str) -> ArrayDataset:
    """`data` as an ArrayDataset with rows, a target, and finite values."""
    dataset = as_source(data, origin)
    if not isinstance(dataset, ArrayDataset):
        returned = "nothing" if data is None else f"a {type(data).__name__}"
        hint = (
            "\nhint: rows are read in any order, and again each epoch; write what an iterator "
            "gives into .npy files once (numpy.lib.format.open_memmap); data of type npy reads them"
        ) * hasattr(data, "__next__")
        raise DataError(
            f"{origin} returned {returned}; expected arrays (inputs..., target) or an ArrayDataset"
            f", or another Source{hint}"
        )
    if not dataset.inputs:
        raise DataError(f"{origin} returned one array; expected at least an input and a target")
    shapes = ", ".join(str(array.shape) for array in dataset.arrays)
    if len(dataset) == 0:
        raise DataError(f"{origin}: the data set is empty; its arrays have shapes {shapes}")
    count = len(dataset.inputs)
    names = ["input"] if count == 1 else [f"input {i}" for i in range(count)]
    names += ["target", "weight"]
    for i, (name, array) in enumerate(zip(names, dataset.arrays, strict=False)):
        check_finite(array, f"{origin}: {name}", None if i else dataset.feature_names)
    if any(0 in array.shape[1:] for array in dataset.arrays):
        raise DataError(f"{origin}: an array has no columns; their shapes are {shapes}")
    columns = [a[:, None] if a.ndim == 1 and a.dtype.kind == "f" else a for a in dataset.arrays]
    return dataset.with_arrays(*columns[: count + 1], *dataset.arrays[count + 1 :])


def check_finite(
    array: NDArray[Any],
    name: str,
    columns: Sequence[str] | None = None,
    location: Callable[[int], str] = "row {}".format,
) -> None:
    """DataError naming row and column of the first value that is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = np.argwhere(~np.isfinite(array))
    row, *rest = (int(i) for i in bad[0])
    where = location(row)
    if columns is not None and len(rest) == 1:
        where += f', column "{columns[rest[0]]}"'
    elif rest:
        where += f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    more = f" ({len(bad) - 1} more such values)" if len(bad) > 1 else ""
    raise DataError(
        f"{name} {where} is {array[tuple(bad[0])]}, expected a finite number{more}\n"
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


def check_codes(bounds: tuple[float, float], classes: int, origin: str) -> None:
    low, high = bounds
    if not 0 <= low <= high < classes:
        raise DataError(
            f"{origin}: class {low} to {high}, but the training data have classes 0 to "
            f"{classes - 1}"
        )


def check_stored(preprocessing: Preprocessing, x: NDArray[Any], origin: str) -> None:
    if preprocessing.mean.shape != x.shape[1:]:
        raise DataError(
            f"{origin}: inputs have {x.shape[1:]} features a row, but the stored "
            f"preprocessing is for {preprocessing.mean.shape}"
        )


def one_input_alone(count: int, origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: standardize works on one input array, this data has {count}; "
        "standardise them in the component itself"
    )


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


def checked_source(source: Source, origin: str) -> Source:
    """A source that has rows, inputs and a target of numbers; DataError where it has not.

    Nothing is read of it but shapes and dtypes.
    """
    head: Any = source.read(slice(0, 0))
    if not isinstance(head, tuple) or not all(isinstance(array, np.ndarray) for array in head):
        raise DataError(f"{origin}: read() of {source!r} gave no tuple of NumPy arrays")
    shapes = ", ".join(f"{array.dtype} {array.shape}" for array in head)
    if len(head) < 2 + source.weighted:
        raise DataError(
            f"{origin}: rows of {source!r} have {len(head)} arrays"
            f"{' with weights' * source.weighted}; expected at least an input and a target"
        )
    if any(array.ndim == 0 or array.dtype.kind not in "biuf" for array in head):
        raise DataError(
            f"{origin}: expected rows of booleans, integers or floats; read(slice(0, 0)) of "
            f"{source!r} gave {shapes}"
        )
    if any(len(array) for array in head):
        raise DataError(f"{origin}: read(slice(0, 0)) of {source!r} gave rows: {shapes}")
    if not len(source):
        raise DataError(f"{origin}: the data set is empty; its arrays are {shapes}")
    if any(0 in array.shape[1:] for array in head):
        raise DataError(f"{origin}: an array has no columns; they are {shapes}")
    names, weights = source.feature_names, head[-1]
    if names is not None and (len(names),) != head[0].shape[1:]:
        raise DataError(f"{origin}: {len(names)} feature_names for an input of {head[0].shape[1:]}")
    if source.weighted and (weights.dtype.kind != "f" or weights.ndim != 1):
        raise DataError(f"{origin}: weights must be floats of shape (n,), got {weights.dtype}")
    if source.classes is not None:
        _, target = apart(source, head)
        if target.dtype.kind not in "biu" or target.ndim != 1:
            raise DataError(
                f"{origin}: classes are names of integer codes in a target of shape (n,), got "
                f"{target.dtype} of shape {('n', *target.shape[1:])}"
            )
    return source


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
                _refuse_value(part, first, arrays, at, origin)
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


def _refuse_value(part: Rows, first: int, arrays: Sequence[Array], at: int, origin: str) -> None:
    """DataError for the first value of a block that is not finite."""
    array = arrays[at]
    row, *rest = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
    inputs = len(apart(part, tuple(arrays))[0])
    name = "input" if inputs == 1 else f"input {at}"
    name = name if at < inputs else ("target", "weight")[at - inputs]
    column = ""
    if at == 0 and part.feature_names is not None and len(rest) == 1:
        column = f', column "{part.feature_names[rest[0]]}"'
    elif name == "target" and part.feature_names is not None and part.target_name is not None:
        column = f', column "{part.target_name}"'
    elif rest:
        column = f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    where = f"{part.location_in(at, first + row)}{column}"
    raise DataError(
        f"{origin}: {name} at {where} is {array[(row, *rest)]}, expected a finite number\n"
        "hint: rows count from 0; fill such values in or leave the rows out"
    )
