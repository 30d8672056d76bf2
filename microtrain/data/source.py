"""Source: rows that are read when they are wanted, so that data need not fit in memory.

What trains, measures and reports asks a source for rows, never for all of them at once. An
`ArrayDataset` is a source whose rows are in memory, and a batch of it is a range of rows: one NumPy
call an array, never a Python loop over samples. Files and functions are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..backend import MASKED
from ..errors import DataError, noun_of

Array = NDArray[Any]
RowNumbers = slice | NDArray[np.intp]

BLOCK = 4 * 2**20  # bytes that are read at a time where all rows are gone through


@runtime_checkable
class Source(Protocol):
    """Rows of inputs, a target and perhaps weights, which `read` gives.

    A class of your own derives from it and has `__len__` and `read`; the rest has defaults. It is
    equal on all ranks, each of which reads its own rows.

    Attributes:
        feature_names: a name for each column of a 2-d first input.
        target_name: what the target holds.
        classes: the names that class codes 0, 1, 2 ... of the target stand for.
        weighted: whether the last array is not the target but the weights of the rows, floats of
            shape (n,), none negative.
        truth: what is known of how the data were made.

    Example:
        >>> class Squares(mt.data.Source):
        ...     def __len__(self):
        ...         return 10**9
        ...     def read(self, rows):                 # a slice, or an array of row numbers
        ...         x = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        ...         x = x[:, None].astype(np.float32)
        ...         return x, x**2
    """

    feature_names: tuple[str, ...] | None = None
    target_name: str | None = None
    classes: tuple[str, ...] | None = None
    weighted: bool = False
    truth: dict[str, Any] | None = None

    def __len__(self) -> int:
        """The number of rows, which does not change."""
        ...

    def read(self, rows: RowNumbers) -> tuple[Array, ...]:
        """Rows of (inputs..., target[, weights]): arrays of numbers of equal leading dimension.

        rows: a slice of step 1, or row numbers of shape (k,) in any order. `slice(0, 0)` gives
            arrays without rows, of the shapes and dtypes that all others have.
        """
        ...

    def location(self, row: int) -> str:
        """Where a row comes from, for errors: `houses.csv, line 17`."""
        return f"row {row}"

    def location_in(self, array: int, row: int) -> str:
        """The same of one array, where they are in several places: array -1 is the last."""
        return self.location(row)


class FunctionSource(Source):
    """Rows that a function makes or reads.

    Args:
        read: takes row numbers, an array of shape (k,), and returns arrays (inputs..., target[,
            weights]) of k rows each; of the same row always the same.
        length: the number of rows.
        feature_names, target_name, classes, weighted, truth: as in `Source`.
        location: takes a row number and says where the row comes from, for errors.

    Raises:
        TypeError: `read` cannot be called, or `length` is not a whole number.
        ValueError: a length below 0.

    Example:
        >>> def rows_of(rows):
        ...     x = np.sin(rows[:, None] * np.float32([1, 2, 3]))
        ...     return x, x.sum(axis=1, keepdims=True)
        >>> source = mt.data.FunctionSource(rows_of, 10**9)
        >>> loader = mt.data.DataLoader(source, batch_size=64, shuffle=False)
    """

    def __init__(
        self,
        read: Callable[[NDArray[np.intp]], Sequence[Any]],
        length: int,
        *,
        feature_names: Sequence[str] | None = None,
        target_name: str | None = None,
        classes: Sequence[str] | None = None,
        weighted: bool = False,
        truth: dict[str, Any] | None = None,
        location: Callable[[int], str] | None = None,
    ) -> None:
        if not callable(read):
            raise TypeError(f"FunctionSource: read is {noun_of(read)}, expected a function")
        if isinstance(length, bool) or not isinstance(length, int | np.integer):
            raise TypeError(f"FunctionSource: length must be a whole number, got {length!r}")
        if length < 0:
            raise ValueError(f"FunctionSource: length must be at least 0, got {length}")
        self._read, self._length, self._location = read, int(length), location
        self.feature_names = None if feature_names is None else tuple(feature_names)
        self.target_name, self.weighted, self.truth = target_name, weighted, truth
        self.classes = None if classes is None else tuple(classes)

    def __len__(self) -> int:
        return self._length

    def read(self, rows: RowNumbers) -> tuple[Array, ...]:
        """What the function returns for these rows."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self._length))
        arrays = self._read(rows)
        if not isinstance(arrays, tuple | list):
            raise DataError(f"{self!r} gave {noun_of(arrays)}, expected arrays (inputs..., target)")
        return tuple(arrays)

    def location(self, row: int) -> str:
        """What the function for that says, else the number of the row."""
        return f"row {row}" if self._location is None else self._location(row)

    def __repr__(self) -> str:
        return f"FunctionSource({getattr(self._read, '__name__', self._read)}, {self._length})"


def read_checked(source: Source, rows: RowNumbers, head: Sequence[Array]) -> tuple[Array, ...]:
    """Rows of a source; DataError where they are not as many, masked, or not like `head`."""
    arrays = source.read(rows)
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        raise DataError(f"{source!r} gave {MASKED}")
    count = len(range(*rows.indices(len(source)))) if isinstance(rows, slice) else len(rows)
    if [(a.dtype, len(a), a.shape[1:]) for a in arrays] == [
        (like.dtype, count, like.shape[1:]) for like in head
    ]:
        return arrays
    shown, wanted = (
        ", ".join(f"{a.dtype} {(count if given is head else len(a), *a.shape[1:])}" for a in given)
        for given in (arrays, head)
    )
    first = 0 if not count else rows.indices(len(source))[0] if isinstance(rows, slice) else rows[0]
    raise DataError(
        f"{source!r}: reading {count} rows from {source.location(int(first))} gave {shown}; "
        f"expected {wanted}"
    )


def blocks(source: Source, most: int = BLOCK) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """All rows in order, about `most` bytes at a time: the number of the first, and the arrays.

    How many rows are in a block depends on `most` and the shapes and dtypes of a row alone.

    Example:
        >>> source = mt.data.FunctionSource(lambda rows: (rows[:, None], rows * 0.5), 10)
        >>> float(sum(y.sum() for first, (x, y) in mt.data.blocks(source)))
        22.5
    """
    head, rows = source.read(slice(0, 0)), len(source)
    step = max(1, most // max(row_size(head), 1))
    for first in range(0, rows, step):
        yield first, read_checked(source, slice(first, min(first + step, rows)), head)


def row_size(head: Sequence[Array]) -> int:
    """The bytes of a row of all arrays."""
    return sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in head)


_NAMES = ("feature_names", "target_name", "classes", "truth")


class ArrayDataset(Source):
    """Rows of one or more arrays: inputs first, the target last, then the weights if there are any.

    Args:
        *arrays: NumPy arrays (or Tensors) of booleans, integers or floats, of equal leading
            dimension. Memory is shared, nothing is copied.
        feature_names: a name for each column of a 2-d first array.
        target_name: what the last array holds.
        classes: for class codes, the names that codes 0, 1, 2 ... of the last array stand for.
        truth: what is known of how the data were made (`{"weights": [2.0], "bias": 3.0}`).
        weights: how much each row counts, floats of shape (n,), none negative; None: all alike.

    Attributes:
        arrays: inputs, target, and the weights if there are any.

    Raises:
        TypeError: an argument is not an array of numbers.
        ValueError: no arrays, unequal leading dimensions, names that do not fit the arrays, or
            weights that are negative or of another shape.

    Example:
        >>> data = ArrayDataset(np.ones((100, 3)), np.zeros((100, 1)))
        >>> len(data)
        100
        >>> x, y = data[10:20]              # arrays of shapes (10, 3) and (10, 1)
    """

    def __init__(
        self,
        *arrays: Any,
        feature_names: Sequence[str] | None = None,
        target_name: str | None = None,
        classes: Sequence[str] | None = None,
        truth: Mapping[str, Any] | None = None,
        weights: Any = None,
    ) -> None:
        if not arrays:
            raise ValueError("ArrayDataset needs at least one array: ArrayDataset(x, y)")
        self.arrays = tuple(_as_array(a, f"argument {i}") for i, a in enumerate(arrays))
        self.weighted = weights is not None
        if self.weighted:
            self.arrays += (_as_array(weights, "weights"),)
        if len({len(array) for array in self.arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in self.arrays)
            raise ValueError(
                f"ArrayDataset: arrays have different numbers of rows; their shapes are {shapes}"
            )
        self.feature_names = None if feature_names is None else tuple(feature_names)
        self.target_name = target_name
        self.classes = None if classes is None else tuple(classes)
        self.truth = None if truth is None else dict(truth)
        if what := misfit(self, self.arrays):
            raise ValueError(f"ArrayDataset: {what}")
        last = self.target
        if self.classes and len(last) and not 0 <= last.min() <= last.max() < len(self.classes):
            raise ValueError(
                f"ArrayDataset: {len(self.classes)} classes need codes from 0 to "
                f"{len(self.classes) - 1}, found {last.min()} to {last.max()}"
            )
        if self.weighted and (self.arrays[-1] < 0).any():
            lowest = self.arrays[-1].min()
            raise ValueError(f"ArrayDataset: weights must be at least 0, the lowest is {lowest}")

    @property
    def inputs(self) -> tuple[NDArray[Any], ...]:
        """The arrays before the target."""
        return self.arrays[: len(self.arrays) - 1 - self.weighted]

    @property
    def target(self) -> NDArray[Any]:
        """The last array but for the weights."""
        return self.arrays[-1 - self.weighted]

    @property
    def weights(self) -> NDArray[Any] | None:
        """How much each row counts, of shape (n,); None where all count alike."""
        return self.arrays[-1] if self.weighted else None

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> tuple[Any, ...]:
        """The rows of every array: `data[3]`, `data[10:20]`, `data[[4, 1]]`, `data[mask]`.

        An integer drops the leading dimension. A slice shares memory, index arrays copy.
        """
        if isinstance(rows, tuple):
            raise TypeError("ArrayDataset is indexed by rows alone: data[rows], not data[i, j]")
        # The ellipsis keeps a single element of a 1-d array an array.
        return tuple(array[rows, ...] for array in self.arrays)

    def read(self, rows: slice | NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
        """The rows of every array, as `Source` has it: a slice shares memory, row numbers copy."""
        return tuple(array[rows] for array in self.arrays)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{array.dtype}{list(array.shape)}" for array in self.arrays)
        return f"ArrayDataset({arrays})"


def _as_array(value: Any, position: str) -> NDArray[Any]:
    """`value` as a plain NumPy array of numbers that shares its memory."""
    if not isinstance(value, np.ndarray) and callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"ArrayDataset: {position} is {noun_of(value)}, expected a NumPy "
            "array or a Tensor; numpy.asarray(...) makes one from a sequence"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"ArrayDataset: {position} is {MASKED}")
    if value.dtype.kind not in "biuf":
        raise TypeError(
            f"ArrayDataset: {position} has dtype {value.dtype}, expected booleans, "
            "integers or floats"
        )
    if value.ndim == 0:
        raise ValueError(f"ArrayDataset: {position} is 0-d; the first dimension is rows")
    return np.asarray(value)  # a memory map becomes a plain array over the same memory


def named_as(source: Source, arrays: Sequence[Array]) -> ArrayDataset:
    """Arrays under the names of a source, weights last where it has them."""
    names: dict[str, Any] = {name: getattr(source, name) for name in _NAMES}
    if source.weighted:
        *arrays, names["weights"] = arrays
    return ArrayDataset(*arrays, **names)


def misfit(source: Source, arrays: Sequence[Array]) -> str:
    """Why names or weights of a source do not fit its arrays; empty where they do."""
    names, first, target = source.feature_names, arrays[0], arrays[-1 - source.weighted :][0]
    if names is not None and (len(names),) != first.shape[1:]:
        return f"{len(names)} feature_names for a first input in rows of {first.shape[1:]}"
    if source.weighted and (arrays[-1].dtype.kind != "f" or arrays[-1].ndim != 1):
        return f"weights must be floats of shape (n,), got {arrays[-1].dtype} {arrays[-1].shape}"
    if source.classes is not None and (target.dtype.kind not in "biu" or target.ndim != 1):
        shown = f"{target.dtype} in rows of {target.shape[1:]}"
        return f"classes are names of integer codes of shape (n,), but the target is {shown}"
    return ""


def as_source(data: Any, origin: str) -> Any:
    """Arrays as an ArrayDataset; a Source, a Table and what is neither, as they are."""
    if isinstance(data, tuple | list):
        try:
            return ArrayDataset(*data)
        except (TypeError, ValueError) as error:
            raise DataError(f"{origin}: {error}") from error
    return data


def checked(data: Any, origin: str) -> Any:
    """A source that has rows, inputs and a target of numbers; DataError where it has not.

    Nothing is read of it but shapes and dtypes. Of arrays, 1-d ones of floats become columns.
    """
    if not isinstance(data, Source):
        returned = "nothing" if data is None else noun_of(data)
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
    count = len(head) - data.weighted
    flat = [a.ndim == 1 and a.dtype.kind == "f" for a in head[:count]]
    if not isinstance(data, ArrayDataset) or not any(flat):
        return data
    columns = [a[:, None] if one else a for a, one in zip(data.arrays, flat, strict=False)]
    return named_as(data, [*columns, *data.arrays[count:]])


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


def check_array(
    source: Source, at: int, array: Array, name: str, columns: Sequence[str] | None, first: int
) -> None:
    """DataError for the first value that is not finite of an array from row `first` on."""
    check_finite(array, name, columns, lambda row: source.location_in(at, first + row))


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
    elif rest and array.shape[1:] != (1,):
        where += f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    raise DataError(
        f"{name} {where} is {array[(row, *rest)]}, expected a finite number\n"
        "hint: rows count from 0; fill such values in or leave the rows out"
    )
