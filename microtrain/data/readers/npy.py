"""Arrays in files that are mapped into memory: the system reads the pages that are asked for.

A map costs no memory of the process, and all ranks of a host share the pages of a file.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ...common.files import readable, reading
from ...common.words import listed
from ...errors import ConfigError, DataError
from ..source import RowNumbers, Source

Array = NDArray[Any]

LOOK = 1.0  # seconds between looks at the files: a map of one that shrank ends the process


def npy(
    inputs: Path | list[Path],
    target: Path,
    weight: Path | None = None,
    features: list[str] | None = None,
    classes: list[str] | None = None,
) -> Source:
    """Arrays saved by `numpy.save`, which need not fit in memory: rows are read as they are used.

    Args:
        inputs: a .npy file, or a directory of them whose rows follow each other in the order of
            their names; or a list of such, for several inputs.
        target: such a file or directory, too.
        weight: how much each row counts: such a file or directory of floats of shape (n,).
        features: names of the columns of a single input.
        classes: the names that the codes 0, 1, 2 ... of the target stand for.

    Raises DataError for a file that cannot be read or is not an array of numbers in C order, for
    files of one array that differ in shape or dtype, and for arrays that differ in their number of
    rows.

    Example:
        >>> np.save("x.npy", x)
        >>> np.save("y.npy", y)
        >>> data = npy(Path("x.npy"), target=Path("y.npy"))
    """
    several = inputs if isinstance(inputs, list) else [inputs]
    if not several:
        raise ConfigError("npy: inputs must name at least one file or directory, got []")
    paths = [*several, target] + ([] if weight is None else [weight])
    return Stored(
        [Mapped.of_files(Path(path)) for path in paths],
        feature_names=features, classes=classes, weighted=weight is not None,
        target_name=Path(target).stem,
    )  # fmt: skip


class Column:
    """One array of a source: in memory, under the name of the file that it was read from.

    Attributes:
        kept: where it is kept after it was decoded; None: it is the user's file.
    """

    shape: tuple[int, ...]
    kept: Path | None = None

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.shape, self.dtype, self._array = name, array.shape, array.dtype, array

    def __getitem__(self, rows: Any) -> Array:
        """The rows of a slice, and unless they are in chunks of row numbers."""
        return self._array[rows]

    def location(self, row: int) -> str:
        """Where a row stands."""
        return f"{self.name}, row {row}"

    def look(self) -> None:
        """Raise DataError where a file is not what it was."""


class Stored(Source):
    """Arrays in files as a source: inputs, the target, and with `weighted` the weights.

    Attributes:
        kept: where what was decoded is kept.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        feature_names: Sequence[str] | None = None,
        target_name: str | None = None,
        classes: Sequence[str] | None = None,
        weighted: bool = False,
    ) -> None:
        if len({column.shape[0] for column in columns}) > 1:
            shapes = ", ".join(f"{column.name} {column.shape}" for column in columns)
            raise DataError(f"arrays have different numbers of rows: {shapes}")
        self._columns, self._length = columns, columns[0].shape[0]
        self.kept = [column.kept for column in columns if column.kept is not None]
        self.feature_names = None if feature_names is None else tuple(feature_names)
        self.classes = None if classes is None else tuple(classes)
        self.target_name, self.weighted = target_name, weighted
        self._next_look = time.monotonic() + LOOK

    @property
    def names(self) -> list[str]:
        """The file of each array, and what in it."""
        return [column.name for column in self._columns]

    def __len__(self) -> int:
        return self._length

    def read(self, rows: RowNumbers) -> tuple[Array, ...]:
        """Rows of all arrays; DataError where a file has changed meanwhile."""
        if time.monotonic() > self._next_look:
            for column in self._columns:
                column.look()
            self._next_look = time.monotonic() + LOOK
        return tuple(column[rows] for column in self._columns)

    def location(self, row: int) -> str:
        """The file of each array and the row in it."""
        return " and ".join(dict.fromkeys(column.location(row) for column in self._columns))

    def location_in(self, array: int, row: int) -> str:
        """The file of an array and the row in it."""
        return self._columns[array].location(row)

    def __repr__(self) -> str:
        return listed([*dict.fromkeys(self.names)])


class Mapped(Column):
    """An array in one file, or in several one after another, mapped into memory."""

    def __init__(self, name: str, paths: Sequence[Path], arrays: Sequence[Array]) -> None:
        self.name, self._paths, self._arrays = name, paths, arrays
        first = arrays[0]
        for path, array in zip(paths, arrays, strict=True):
            if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
                raise DataError(
                    f"{path}: {array.dtype} in rows of shape {array.shape[1:]}, but {paths[0]} has "
                    f"{first.dtype} of {first.shape[1:]}; they must be the same"
                )
        self._starts = np.cumsum([0, *(len(array) for array in arrays)])
        self.shape, self.dtype = (int(self._starts[-1]), *first.shape[1:]), first.dtype
        self._signs = [sign_of(path) for path in paths]
        self._maps = [_map_of(array) for array in arrays]
        self._sizes = [each.size() for each in self._maps]

    @classmethod
    def of_files(cls, path: Path) -> Mapped:
        """A .npy file, or all of a directory in the order of their names."""
        paths = [path]
        if path.is_dir():
            paths = sorted(path.glob("*.npy"))
            if not paths:
                raise DataError(f"the directory {path} has no .npy files")
        return cls(str(path), paths, [map_npy(each) for each in paths])

    def __getitem__(self, rows: Any) -> Array:
        if len(self._arrays) == 1:
            array = self._whole(0)
            return array[rows] if isinstance(rows, slice) else _take(array, rows)
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            file = self._file_of(start)
            begin, end = self._starts[file : file + 2]
            if stop <= end:
                return self._whole(file)[start - begin : max(start, stop) - begin]
            rows = np.arange(start, stop)
        files = np.searchsorted(self._starts, rows, "right") - 1
        taken = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for file in np.unique(files):
            here = np.flatnonzero(files == file)
            taken[here] = _take(self._whole(file), rows[here] - self._starts[file])
        return taken

    def _whole(self, file: int) -> Array:
        """The array in a file that is as long as it was: of one cut off, reading ends the process.

        Between two looks, because it takes less than a microsecond.
        """
        if self._maps[file].size() < self._sizes[file]:
            raise changed(self._paths[file])
        return self._arrays[file]

    def _file_of(self, row: int) -> int:
        return min(int(np.searchsorted(self._starts, row, "right")) - 1, len(self._arrays) - 1)

    def location(self, row: int) -> str:
        """The file, perhaps what in it, and the row."""
        file = self._file_of(row)
        path = self._paths[file]
        where = path if self.name == str(path.parent) else self.name
        return f"{where}, row {row - self._starts[file]}"

    def look(self) -> None:
        """Raise DataError where a file was replaced, or written to, or is no longer there."""
        for path, sign in zip(self._paths, self._signs, strict=True):
            if sign_of(path) != sign:
                raise changed(path)


def _take(array: Array, rows: NDArray[np.intp]) -> Array:
    """Rows, the faster way but for an array that is not aligned, as in npz: it would be copied."""
    return array.take(rows, 0) if array.flags.aligned else array[rows]


def changed(path: Path) -> DataError:
    """What to raise where a file is not what it was."""
    return DataError(
        f"{path} was changed or removed while its rows were being read; write another version of a "
        "file under another name"
    )


def _map_of(array: Array) -> mmap.mmap:
    """The map that an array is in."""
    base: Any = array
    while not isinstance(base, mmap.mmap):
        base = base.base
    return base


def sign_of(path: Path) -> tuple[int, ...] | None:
    """What tells a file from the one that it becomes when it is written to or replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def map_npy(path: Path) -> Array:
    """The array of a .npy file; DataError for one that cannot be mapped."""
    with reading(path) as file:
        return read_npy(file, 0, str(path))


def npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """What an array begins with in a .npy file; a multiple of 64 bytes."""
    text = BytesIO()
    what = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    npy_format.write_array_header_1_0(text, what)
    return text.getvalue()


def read_npy(file: BinaryIO, start: int, where: str) -> Array:
    """The rows of numbers in .npy format that begin at a byte of an open file, mapped."""
    file.seek(start)
    with readable(f"{where} is not a readable npy file"):
        version = npy_format.read_magic(file)
        read = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects, which only pickle reads, and pickle can run any "
            "program; save numbers: np.save(path, array.astype(float))"
        )
    check_numbers(where, shape, dtype)
    begin = file.tell()
    needed, size = dtype.itemsize * int(np.prod(shape, dtype=object)), file.seek(0, 2) - begin
    if size < needed:
        raise DataError(f"{where} is cut off: {size:,} bytes of numbers, expected {needed:,}")
    array = np.asarray(np.memmap(file, dtype, "r", begin, shape, "F" if fortran else "C"))
    if array.ndim > 1 and not array.flags.c_contiguous:
        raise DataError(
            f"{where} is in Fortran order, column after column, so that each row is spread over "
            "the file; save it by rows: np.save(path, np.ascontiguousarray(array))"
        )
    return array


def check_numbers(where: str, shape: Sequence[Any], dtype: Any) -> None:
    """DataError for what is not rows of numbers."""
    sizes = all(type(n) is int and n >= 0 for n in shape)
    if getattr(dtype, "kind", "O") not in "biuf" or not shape or not sizes:
        raise DataError(
            f"{where} has shape {shape} and dtype {dtype}; expected rows of booleans, integers or "
            "floats"
        )
    if 0 in shape:
        raise DataError(f"{where} has shape {shape}: the data set is empty")
