"""Files that are stored in chunks: HDF5, Zarr, and Parquet by row groups.

A chunk is read whole, so rows are read in order alone. Those that are trained on, in any order, are
decoded once into .npy files, which are kept and mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.files import library, readable, reading
from ...common.words import listed
from ...errors import ConfigError, DataError
from ..kept.cache import decoded
from ..source import Source
from ..tables.frame import missing
from .npy import Column, Mapped, Stored, changed, check_numbers, sign_of

Array = NDArray[Any]

LEAST = 64 * 2**10  # bytes that are read at a time


def hdf5(
    path: Path,
    inputs: str | list[str] = "x",
    target: str = "y",
    weight: str | None = None,
    features: list[str] | None = None,
    classes: list[str] | None = None,
    cache: Path | None = None,
) -> Source:
    """Arrays of an HDF5 file or a Zarr group, which need not fit in memory.

    h5py reads the one, zarr the other.

    Args:
        path: an .h5 file; or the directory (or .zip) of a Zarr group.
        inputs: the name of the input, such as x or group/x, or of several.
        target: the name of the target.
        weight: the name of what says how much each row counts, floats of shape (n,).
        features: names of the columns of a single input.
        classes: the names that the codes 0, 1, 2 ... of the target stand for.
        cache: a directory that keeps what is decoded; None: microtrain/data in $XDG_CACHE_HOME or
            ~/.cache.

    Data sets of HDF5 that are neither chunked nor compressed are mapped into memory; all else is
    decoded once into files that are. Raises DataError for a file that cannot be read, a name that
    it does not hold or that links to another file, arrays that are not numbers or differ in their
    number of rows, and where there is no room for what is decoded.

    In Python: `hdf5(Path("measured.h5"), inputs="fields/u", target="fields/v")`, and
    `zarr(Path("measured.zarr"), inputs=["pressure", "velocity"], target="drag")`.

    Example:
        >>> import h5py
        >>> with h5py.File("measured.h5", "w") as file:
        ...     file["x"], file["y"] = np.ones((4, 2)), np.zeros((4, 1))
        >>> len(mt.data.hdf5(Path("measured.h5")))
        4
    """
    return source_of(hdf5_arrays, path, inputs, target, weight, features, classes, cache)


@wraps(hdf5)
def zarr(*args: Any, **options: Any) -> Source:
    return source_of(zarr_arrays, *args, **options)


def hdf5_arrays(path: Path) -> Callable[[str], Column]:
    """What finds an array of an HDF5 file by its name; DataError as `hdf5`."""
    reader = library("h5py", path, "stores")
    with reading(path):
        pass  # that it is there, and a file
    existing: list[str] = []
    with readable(f"{path} is not a readable HDF5 file"):
        file = reader.File(path, "r")
        file.visititems(
            lambda name, each: existing.append(name) if isinstance(each, reader.Dataset) else None
        )

    def column(name: str) -> Column:
        if not isinstance(array := file.get(name), reader.Dataset):
            raise DataError(missing(path, "data set", [name], existing))
        where = f'{path}, data set "{name}"'
        _check_numbers(where, array)
        if array.file.filename != file.filename or array.is_virtual or array.external is not None:
            raise DataError(
                f"{where} is a link to other files, whose changes would not be seen; copy its rows "
                "into this one: file.create_dataset(name, data=linked)"
            )
        offset = array.id.get_offset()  # None unless its rows follow each other in the file
        if offset is not None and array.id.get_type() == reader.h5t.py_create(array.dtype, True):
            mapped = np.asarray(np.memmap(path, array.dtype.str, "r", offset, array.shape))
            return Mapped(where, [path], [mapped])
        rows = array.chunks[0] if array.chunks else 1
        return Chunked.of_array(where, array, rows, path, path)

    return column


def zarr_arrays(path: Path) -> Callable[[str], Column]:
    """What finds an array of a Zarr group by its name; DataError as `zarr`."""
    reader = library("zarr", path, "stores")
    if not path.exists():
        with reading(path):
            pass  # says what there is beside it
    with readable(f"{path} is not a readable Zarr group"):
        store = reader.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
        group = reader.open_group(store, mode="r")
        members = group.members(max_depth=None)
        existing = [name for name, each in members if isinstance(each, reader.Array)]

    def column(name: str) -> Column:
        if name.strip("/") not in existing:
            raise DataError(missing(path, "array", [name], existing))
        array = group[name]
        where = f'{path}, array "{name}"'
        _check_numbers(where, array)
        rows = (getattr(array, "shards", None) or array.chunks)[0]
        # A chunk that is not there is zeros; an array that was removed or resized is not the same.
        about = (path / array.path / name for name in ("zarr.json", ".zarray"))
        file = next((each for each in about if each.is_file()), path if path.is_file() else None)
        return Chunked.of_array(where, array, rows, path, file)

    return column


def source_of(
    arrays: Callable[[Path], Callable[[str], Column]],
    path: Path,
    inputs: str | list[str] = "x",
    target: str = "y",
    weight: str | None = None,
    features: list[str] | None = None,
    classes: list[str] | None = None,
    cache: Path | None = None,
) -> Source:
    """Arrays of a file, which `arrays` finds by their names, as rows; raises as `hdf5`."""
    names = [*([inputs] if isinstance(inputs, str) else inputs), target]
    if len(names) == 1:
        raise ConfigError(f"{path}: inputs must name at least one array, got []")
    if len({*names, weight}) <= len(names):
        raise ConfigError(
            f"{path}: inputs, target and weight must be different arrays, got {listed(names)}"
        )
    find = arrays(Path(path))
    columns = [find(name) for name in [*names] + ([] if weight is None else [weight])]
    for column in columns:
        _check_numbers(column.name, column)
    return Stored(
        mapped(columns, cache), feature_names=features, target_name=target, classes=classes,
        weighted=weight is not None,
    )  # fmt: skip


def _check_numbers(where: str, array: Any) -> None:
    try:
        dtype = array.dtype
    except TypeError as error:  # of h5py
        raise DataError(f"{where} has a type that NumPy does not have: {error}") from error
    check_numbers(where, array.shape, dtype)


def mapped(columns: Sequence[Column], cache: Path | None) -> list[Column]:
    """Columns of which rows can be read in any order."""
    ready = iter(decoded([each for each in columns if isinstance(each, Chunked)], cache))
    return [next(ready) if isinstance(each, Chunked) else each for each in columns]


class Chunked(Column):
    """An array that is read chunk by chunk, in order; the last one is kept.

    Args:
        name: the file and what in it, for errors.
        shape, dtype: of the array.
        bounds: the first row of each chunk, and one more for the end.
        load: reads the rows from a first to a last-plus-one.
        path: the file or directory that it is in.
        what: tells it from others of that file.
        file: what all chunks are in, or what describes them; it may not change.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        bounds: Sequence[int] | NDArray[np.intp],
        load: Callable[[int, int], Array],
        path: Path,
        what: Sequence[Any],
        file: Path | None = None,
    ) -> None:
        self.name, self.shape, self.dtype, self.path, self.what = name, shape, dtype, path, what
        self._bounds, self._load = np.asarray(bounds, np.intp), load
        self._last: tuple[int, Array] | None = None
        self._lock = Lock()  # ranks that are threads may read one source
        self._file, self._sign = file, None if file is None else sign_of(file)

    @classmethod
    def of_array(
        cls, name: str, array: Any, rows: int, path: Path, file: Path | None = None
    ) -> Chunked:
        """What is indexed by slices and stored in chunks of `rows` rows."""
        each = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        rows *= max(1, LEAST // max(1, rows * each))
        bounds = [*range(0, array.shape[0], rows), array.shape[0]]

        def load(first: int, stop: int) -> Array:
            with readable(f"{name}: rows {first} to {stop - 1} cannot be read"):
                found = np.asarray(array[first:stop])
            if len(found) != stop - first:
                raise DataError(f"{name}: has no row {stop - 1} any more; it has become shorter")
            return found

        dtype = np.dtype(array.dtype.str)  # h5py's of long doubles has no buffers
        return cls(name, tuple(array.shape), dtype, bounds, load, path, [array.name], file)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        parts = [np.empty((0, *self.shape[1:]), self.dtype)]
        while start < stop:
            chunk = int(np.searchsorted(self._bounds, start, "right")) - 1
            begin, end = self._bounds[chunk], min(stop, self._bounds[chunk + 1])
            parts.append(self._chunk(chunk)[start - begin : end - begin])
            start = end
        return np.concatenate(parts, dtype=self.dtype)  # else of this machine's byte order

    def _chunk(self, number: int) -> Array:
        with self._lock:
            if self._last is None or self._last[0] != number:
                self.look()
                bounds = self._bounds[number : number + 2]
                self._last = number, self._load(*map(int, bounds))
            return self._last[1]

    def look(self) -> None:
        """Raise DataError where the file is not what it was.

        Of a directory the file that describes the array: one of its chunks alone is not missed.
        """
        if self._file is not None and sign_of(self._file) != self._sign:
            raise changed(self._file)
