"""Rows: a part of a source, prepared while it is read, and what is known of the whole part."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ConfigError, DataError
from .source import ArrayDataset, RowNumbers, Source, blocks, named_as, read_checked

Array = NDArray[Any]
Statistic = NDArray[np.float64]  # of each feature


@dataclass(frozen=True)
class Preprocessing:
    """The affine map of the inputs, (x - mean) / scale per feature; float64 arrays.

    A model trained behind it needs it wherever it is used: it belongs in the checkpoint.

    Example:
        >>> rows = np.array([[1.0, 10.0], [3.0, 30.0]])
        >>> mt.data.Preprocessing.standardizing(rows).apply(rows)
        array([[-1., -1.],
               [ 1.,  1.]])
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def identity(cls, x: NDArray[Any]) -> Preprocessing:
        """Leaves rows like those of `x` as they are."""
        return cls(np.zeros(x.shape[1:]), np.ones(x.shape[1:]))

    @classmethod
    def standardizing(
        cls, x: NDArray[Any], origin: str = "data", what: str = "input"
    ) -> Preprocessing:
        """Gives the rows of `x` mean 0 and standard deviation 1 per feature.

        A feature that is constant in `x` is only shifted to 0: its scale is 1. DataError naming
        `origin` for values so large that these are not finite.
        """
        x = x.astype(np.float64, copy=False)
        lowest = x.min(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(axis=0), x.std(axis=0)
        return cls.of_statistics(mean, std, lowest, x.max(axis=0), origin, what)

    @classmethod
    def of_statistics(
        cls,
        mean: Statistic,
        std: Statistic,
        lowest: Statistic,
        highest: Statistic,
        origin: str,
        what: str = "input",
    ) -> Preprocessing:
        """`standardizing` of rows with this mean, standard deviation and extremes, float64."""
        # By its extremes: rounding gives a constant 0.1 a standard deviation of 1e-17.
        constant = (lowest == highest) | (std == 0.0)
        mean, std = np.where(constant, lowest, mean), np.where(constant, 1.0, std)
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise DataError(f"{origin}: {what} values are too large to standardize; rescale them")
        return cls(mean, std)

    @property
    def is_identity(self) -> bool:
        return not self.mean.any() and bool((self.scale == 1.0).all())

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Raw inputs as the model wants them: `x` itself for the identity, else float64."""
        return x if self.is_identity else self.scaled(x)

    def scaled(self, x: NDArray[Any]) -> NDArray[Any]:
        """(x - mean) / scale as float64, with one array of that size."""
        wide = x.astype(np.result_type(x.dtype, np.float64))
        wide -= self.mean
        wide /= self.scale
        return wide

    def to_json(self) -> dict[str, Any]:
        """Nested lists that JSON keeps to the last bit."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Preprocessing:
        return cls(np.array(state["mean"], np.float64), np.array(state["scale"], np.float64))


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
class TargetScaling:
    """How a regression's target becomes what is trained on, and the way back to its own unit.

    Attributes:
        affine: (t - mean) / scale per target t; with `log` of log(1 + t).
        log: whether the logarithm comes first.
        exp: whether a model gives logarithms of the target, as for the loss `poisson`.
        ends: the lowest and highest values of the training rows that count, in their own unit,
            which predictions are held within; None: they are as the model gives them.

    Example:
        >>> prices = np.array([[100.0], [300.0]])
        >>> scaling = mt.data.TargetScaling(mt.data.Preprocessing.standardizing(prices))
        >>> scaling.apply(prices), scaling.inverse(np.array([[0.0]]))
        (array([[-1.],
               [ 1.]]), array([[200.]]))
    """

    affine: Preprocessing
    log: bool = False
    ends: tuple[Statistic, Statistic] | None = None
    exp: bool = False

    def apply(self, target: NDArray[Any]) -> NDArray[Any]:
        """A target (n, ...) in its own unit as it is trained on."""
        return self.affine.apply(np.log1p(target, dtype=np.float64) if self.log else target)

    def inverse(self, target: NDArray[Any]) -> NDArray[np.float64]:
        """A target that is trained on, (n, targets), in its own unit, float64."""
        own = target.astype(np.float64) * self.affine.scale + self.affine.mean
        return np.expm1(own) if self.log else own

    def predictions(self, outputs: Any) -> NDArray[np.float64]:
        """What a model gives, (n, targets), in the target's own unit; ConfigError for others."""
        shape, wanted = getattr(outputs, "shape", None), self.affine.mean.shape
        if shape is None or shape[1:] != wanted:
            found = type(outputs).__name__ if shape is None else f"rows of shape {shape[1:]}"
            raise ConfigError(
                "data.standardize_target, log_target and clip need predictions like the target, "
                f"rows of shape {wanted}, but the model gives {found}"
            )
        own = np.exp(outputs.astype(np.float64)) if self.exp else self.inverse(outputs)
        return own if self.ends is None else own.clip(*self.ends)

    def to_json(self) -> dict[str, Any]:
        """Nested lists that JSON keeps to the last bit."""
        ends = None if self.ends is None else [end.tolist() for end in self.ends]
        return {**self.affine.to_json(), "log": self.log, "ends": ends, "exp": self.exp}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> TargetScaling:
        """Of `to_json()`."""
        ends = state["ends"] and tuple(np.array(end, np.float64) for end in state["ends"])
        return cls(Preprocessing.from_json(state), state["log"], ends, state["exp"])


SCALED = 2**20  # bytes that are standardized at a time


@dataclass
class Known:
    """What is known of the rows of a part once they have been gone through, block by block.

    Attributes:
        low, high: of the target, as all that follows in its own unit.
        total: of a target of floats, over rows, of shape (targets,); 0.0 of others.
        rows: that were added.
        binary: whether the target is one column of 0.0 and 1.0.
        digest: a hash of all rows as they are in the source.
    """

    low: Any = np.inf
    high: Any = -np.inf
    total: Any = 0.0
    rows: int = 0
    binary: bool = True
    digest: str = ""

    def add(self, target: Array) -> None:
        """The next rows, as they are trained on."""
        self.low, self.high = min(self.low, target.min()), max(self.high, target.max())
        if target.dtype.kind == "f":
            total = target.sum(axis=0, dtype=np.float64)
            self.total = self.total + total if self.rows else total
        self.rows += len(target)
        within = target.shape[1:] == (1,) and self.low >= 0 and self.high <= 1
        self.binary = self.binary and within and bool(((target == 0) | (target == 1)).all())

    @property
    def mean(self) -> Any:
        """Of the target."""
        return self.total / self.rows


class Rows(Source):
    """Some rows of another source, standardized and cast while they are read.

    Args:
        source: where the rows are.
        rows: which they are, in order: a slice of step 1, an index array, or whatever has a length
            and gives row numbers for a slice or an array of positions.
        preprocessing: applied to the first input; None: as it is.
        target_scaling: applied to the target; None: as it is.
        dtype: of floats; integers and booleans become int64. A 1-d array of floats, but for the
            weights, becomes a column. None: arrays as they are.
        known: what is known of these rows.

    Example:
        >>> source = mt.data.FunctionSource(lambda rows: (rows[:, None], rows * 0.5), 10)
        >>> half = mt.data.Rows(source, np.arange(0, 10, 2), dtype=np.float32)
        >>> half.read(slice(0, 2))[1].tolist()
        [[0.0], [1.0]]
    """

    def __init__(
        self,
        source: Source,
        rows: Any = slice(None),
        *,
        preprocessing: Preprocessing | None = None,
        target_scaling: TargetScaling | None = None,
        dtype: DTypeLike | None = None,
        known: Known | None = None,
    ) -> None:
        if isinstance(rows, slice):
            rows = range(len(source))[rows]
            if rows.step != 1:
                raise ValueError(f"Rows: a slice of step 1 is taken, got {rows}")
        self.source, self.rows, self.known = source, rows, known
        self.preprocessing, self.dtype = preprocessing, None if dtype is None else np.dtype(dtype)
        self.target_scaling = target_scaling
        self._scaled = preprocessing is not None and not preprocessing.is_identity
        self.feature_names, self.target_name = source.feature_names, source.target_name
        self.classes, self.weighted, self.truth = source.classes, source.weighted, source.truth
        self._raw = source.read(slice(0, 0))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: RowNumbers) -> tuple[Array, ...]:
        """These rows of the part, prepared; DataError where the source gives others than before."""
        return self.read_at(self.positions(rows))

    def read_at(self, rows: RowNumbers) -> tuple[Array, ...]:
        """As `read`, by what `positions` gave for rows."""
        arrays = read_checked(self.source, rows, self._raw)
        if self._scaled:
            arrays = (self._scale(arrays[0]), *arrays[1:])
        last = len(arrays) - self.weighted
        if self.target_scaling is not None:
            target = self.target_scaling.apply(arrays[last - 1])
            arrays = (*arrays[: last - 1], target, *arrays[last:])
        if self.dtype is None:
            return arrays
        return tuple(as_trained(array, self.dtype, i < last) for i, array in enumerate(arrays))

    def _scale(self, x: Array) -> Array:
        """`x` standardized; of many rows the float64 between are never there at once."""
        assert self.preprocessing is not None
        step = max(1, len(x) * SCALED // max(x.nbytes, 1))
        if len(x) <= step or self.dtype is None:
            return self.preprocessing.scaled(x)
        scaled = np.empty(x.shape, self.dtype)
        for first in range(0, len(x), step):
            scaled[first : first + step] = self.preprocessing.scaled(x[first : first + step])
        return scaled

    def positions(self, rows: RowNumbers) -> Any:
        """The row numbers in the source."""
        if not isinstance(self.rows, range):
            return np.asarray(self.rows[rows], np.intp)
        if isinstance(rows, slice):
            found = self.rows[rows]
            return slice(found.start, found.stop)
        return rows + self.rows.start if self.rows.start else rows

    def location(self, row: int) -> str:
        """Where the source has the row."""
        return self.source.location(self._in_source(row))

    def location_in(self, array: int, row: int) -> str:
        """Where the source has the row of an array."""
        return self.source.location_in(array, self._in_source(row))

    def _in_source(self, row: int) -> int:
        return int(self.positions(np.array([row], np.intp))[0])

    @property
    def digest(self) -> str:
        """A hash of all rows as they are read here."""
        maps = self.preprocessing, self.target_scaling
        scaling = [None if each is None else each.to_json() for each in maps]
        assert self.known is not None, "of a part that `prepare` has made"
        text = json.dumps([self.known.digest, str(self.dtype), len(self), scaling])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"Rows({len(self):,} of {self.source!r})"


def as_trained(array: Array, dtype: DTypeLike, column: bool) -> Array:
    """Floats as `dtype`, others as int64; with `column`, 1-d floats as a column."""
    if array.dtype == dtype and array.ndim > 1:
        return array
    if array.dtype.kind != "f":
        return array.astype(np.int64, copy=False)
    array = array.astype(dtype, copy=False)
    return array[:, None] if column and array.ndim == 1 else array


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


def is_lazy(source: object) -> bool:
    """Whether rows are read when they are wanted, or mapped from a file: not in memory."""
    if isinstance(source, ArrayDataset):
        return any(map(_is_mapped, source.arrays))
    return isinstance(source, Source)


def _is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False


def layout(source: Source) -> tuple[list[Array], Array]:
    """Inputs and target without rows: their shapes and dtypes."""
    return apart(source, source.read(slice(0, 0)))


def apart(source: Source, arrays: tuple[Array, ...]) -> tuple[list[Array], Array]:
    """Of arrays that were read, the inputs and the target."""
    *inputs, target = arrays[: len(arrays) - source.weighted]
    return inputs, target


def in_memory(source: Source, rows: RowNumbers) -> ArrayDataset:
    """Some rows of a source as a data set of their own, of the same names."""
    return named_as(source, source.read(rows))


def targets(source: Source) -> Iterator[tuple[Array, Array | None]]:
    """All targets and weights: of an `ArrayDataset` at once, of others block by block."""
    parts = [source.arrays] if isinstance(source, ArrayDataset) else (a for _, a in blocks(source))
    for arrays in parts:
        yield apart(source, arrays)[1], arrays[-1] if source.weighted else None


def known_of_target(source: Source, scaling: TargetScaling | None = None) -> Known:
    """What is known of a source's target in its own unit; all of its rows are read where nobody has
    yet. `scaling` is how it became what is trained on.
    """
    known: Known | None = getattr(source, "known", None)
    if known is not None:
        return known
    known = Known()
    for target, _ in targets(source):
        known.add(target if scaling is None else scaling.inverse(target))
    return known
