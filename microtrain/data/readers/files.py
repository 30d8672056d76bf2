"""Data from files: csv, npz, parquet."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from .. import rows as view
from ..dataset import ArrayDataset
from ..source import Source
from ..tables.columns import Columns, as_columns
from ..tables.frame import Frame, missing, pandas_index
from ..tables.table import Table, check_features, table_or_arrays
from .csv import read_csv
from .npy import Loaded, map_npz
from .opening import library, reading
from .stores import parquet_rows, source_of

__all__ = ["csv", "load_npz", "npz", "parquet", "read_csv", "read_parquet"]

Array = NDArray[Any]


def csv(
    path: Path,
    target: str,
    features: list[str] | None = None,
    delimiter: str = ",",
    decimal: Literal[".", ","] = ".",
    categorical: bool = False,
    columns: Columns | None = None,
    drop: list[str] | None = None,
    weight: str | None = None,
) -> ArrayDataset | Table:
    """A table with a header line: its columns as inputs, one column as the target.

    A target column of numbers is a regression target, float64 of shape (n, 1). One of names is
    class codes, int64 of shape (n,), in the order of the sorted names, which are `classes`. One
    that holds both is refused, for that is a typing error more often than not.

    Args:
        path: a UTF-8 file (a byte order mark is fine), quoted as spreadsheets do.
        target: the name of the target column.
        features: the names of the input columns, in order; None takes all others of the file.
        delimiter: the one character between cells.
        decimal: what stands before the decimals of a number. With "," a point is read between
            groups of three digits (1.234,5) and refused elsewhere (0.5). What is not read as a
            number, a category, a class, an id, stays as it is.
        categorical: read the target as classes whatever its cells look like, each text a class:
            007 is not 7. Whole numbers are classes in numerical order, unless one is written in
            another way (01, 1.0, 1e3); then, and of anything else, it is the order of the texts.
        columns: what columns hold that are no plain numbers: category, date, id, or more of it,
            such as {missing: median}. They are fitted on the training part.
        drop: columns to leave out.
        weight: a column that says how much each row counts, in the loss and the metrics.

    White space around names and cells does not count. Returns a `Table` where there are `columns`
    to be fitted, else arrays. Raises DataError (what is wrong with the file: line, column and the
    text found) or ConfigError (arguments that fit no file).

    Example:
        >>> iris = csv(Path("configs/data/iris.csv"), target="species")
        >>> iris.classes
        ('setosa', 'versicolor', 'virginica')
    """
    kinds: dict[str, str] = {}
    with contextlib.suppress(ConfigError):  # told when the file has been read
        kinds = {name: column.type for name, column in as_columns(columns).items()}
    texts = {name for name, kind in kinds.items() if kind in ("category", "date")}
    texts |= {target} if categorical else set()
    kept = None if features is None else {*features, target, weight}
    left = {*(drop or ()), *(name for name, kind in kinds.items() if kind == "id")} - {target}
    frame = read_csv(
        Path(path), delimiter, decimal, texts=texts,
        wanted=lambda name: name not in left if kept is None else name in kept,
    )  # fmt: skip
    hint = "categorical: true reads every cell of the target as the name of a class"
    return table_or_arrays(
        frame, target, columns, features=features, drop=drop, categorical=categorical,
        weight=weight, hint=hint,
    )  # fmt: skip


def parquet(
    path: Path,
    target: str,
    features: list[str] | None = None,
    categorical: bool = False,
    columns: Columns | None = None,
    drop: list[str] | None = None,
    weight: str | None = None,
    in_memory: bool = True,
    cache: Path | None = None,
) -> Source | Table:
    """A Parquet file: its columns as inputs, one column as the target; pyarrow reads it.

    A target of numbers is a regression target, float64 of shape (n, 1); one of texts is class
    codes in the order of the sorted names, which are `classes`.

    Args:
        path: a .parquet file.
        target: the name of the target column.
        features: the names of the input columns, in order; None takes all others of the file but
            the index that pandas stores.
        categorical: read the target as classes, numbers too.
        columns: what columns hold that are no plain numbers: category, date, id, or more of it,
            such as {missing: median}. They are fitted on the training part.
        drop: columns to leave out.
        weight: a column that says how much each row counts, in the loss and the metrics.
        in_memory: read the file whole; false: decode columns of numbers once, by row groups, into
            files that are mapped into memory.
        cache: a directory that keeps these files; None: microtrain/data in $XDG_CACHE_HOME or
            ~/.cache.

    Returns a `Table` where there are `columns` to be fitted, else arrays, or a source of rows that
    are not in memory. Raises ConfigError for `columns` of such, DataError for a file that cannot be
    read, a column that is missing, and values that are not what the column holds, by row and
    column.

    Example:
        >>> data = parquet(Path("measured.parquet"), target="price")
    """
    if not in_memory:
        if columns:
            raise ConfigError(
                f"{path}: what columns describe is fitted to rows in memory; with in_memory: false "
                "leave columns out, then all that are used must be numbers"
            )
        check_features(path, target, features)
        return parquet_rows(
            Path(path),
            target,
            features,
            drop or (),
            weight,
            categorical,
            partial(read_parquet, Path(path), [target]),
            cache,
        )
    return table_or_arrays(
        read_parquet(Path(path)), target, columns, features=features, drop=drop,
        categorical=categorical, weight=weight,
    )  # fmt: skip


def npz(
    path: Path, inputs: str | list[str] = "x", target: str = "y", in_memory: bool = True
) -> Source:
    """Arrays saved by `numpy.savez`, read without pickle.

    Args:
        path: a .npz file.
        inputs: the name of the input array, or of several.
        target: the name of the target array.
        in_memory: read the arrays whole; false: rows as they are used, which takes arrays that are
            not compressed.

    Returns arrays as they are in the file. Raises DataError for a file that cannot be read, a name
    that it does not hold, arrays that are not numbers or differ in their number of rows.

    Example:
        >>> np.savez("data.npz", x=x, y=y)
        >>> data = npz(Path("data.npz"))
    """
    find = partial(load_npz if in_memory else map_npz, Path(path))
    source = source_of(find, path, inputs, target)
    return view.in_memory(source, slice(None)) if in_memory else source


def load_npz(path: Path, name: str) -> Loaded:
    """An array of a .npz file, read without pickle; nothing is read of others.

    Raises DataError for all that is wrong with it.
    """
    where = f'{path}, array "{name}"'
    with reading(path) as file:
        # What is no zip NumPy takes for a pickle, and says how to load one unsafely.
        if file.peek(2)[:2] != b"PK":  # type: ignore[attr-defined]
            raise DataError(
                f"{path} is not a readable npz file: numpy.savez(path, x=..., y=...) "
                "writes one, tables are data of type csv or parquet"
            )
        try:
            stored = np.load(file, allow_pickle=False)
        except Exception as error:  # of zipfile, zlib, struct, NumPy, or for want of memory
            raise DataError(f"{path} is not a readable npz file: {error}") from error
        if name not in stored.files:
            raise DataError(missing(path, "array", [name], stored.files))
        try:
            array = stored[name]
        except Exception as error:
            raise DataError(f"{where} cannot be read: {error}") from error
    if not isinstance(array, np.ndarray) or not array.ndim:  # or it is not a .npy file
        raise DataError(f"{where} is not an array of rows")
    return Loaded(where, array)


def read_parquet(path: Path, names: Sequence[str] | None = None) -> Frame:
    """The columns of a Parquet file, those of `names` that it has; None: all.

    Raises DataError where pyarrow is absent, the file cannot be read, or has no rows.
    """
    pyarrow = library("pyarrow", path, "data")
    reader = library("pyarrow.parquet", path, "data")
    columns = []
    with reading(path) as file:
        try:
            stored = reader.ParquetFile(file)
            existing = stored.schema_arrow.names
            table = stored.read([n for n in existing if names is None or n in names])
            for column in table.columns:
                if pyarrow.types.is_dictionary(column.type):
                    column = column.cast(column.type.value_type)
                # NumPy's integers have no gaps, and floats would round large ones.
                gaps = pyarrow.types.is_integer(column.type) and column.null_count
                values = np.array(column.to_pylist(), object) if gaps else None
                columns.append(column.to_numpy(zero_copy_only=False) if values is None else values)
        except Exception as error:  # ArrowException, ValueError, OSError, KeyError, MemoryError ...
            text = " ".join(str(error).split())
            raise DataError(f"{path} is not a readable Parquet file: {text:.300}") from error
    if columns and not table.num_rows:
        raise DataError(f"{path} has no rows: the data set is empty")
    return Frame(path, table.column_names, columns, index=pandas_index(table.schema))
