"""Parquet files, read by pyarrow: whole, or columns of numbers by row groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...common.files import library, readable, reading
from ...errors import ConfigError, DataError
from ..source import Source
from ..tables.columns import Columns, read_target
from ..tables.frame import Frame, of_arrow, pandas_index
from ..tables.notation import PLAIN, Notation
from ..tables.table import Table, table_or_arrays
from .npy import Stored
from .stores import Chunked, mapped

Array = NDArray[Any]


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
    na_values: list[str | float] | None = None,
    missing: Literal["error", "fill"] = "error",
    missing_target: Literal["error", "drop"] = "error",
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
        columns: what columns hold that are not plain numbers: category, date, id, or more of it,
            such as {missing: median}. They are fitted on the training part.
        drop: columns to leave out.
        weight: a column that says how much each row counts, in the loss and the metrics.
        in_memory: read the file whole; false: decode columns of numbers once, by row groups, into
            files that are mapped into memory.
        cache: a directory that keeps these files; None: microtrain/data in $XDG_CACHE_HOME or
            ~/.cache.
        na_values: further texts, and numbers, that mean that a cell is empty.
        missing: empty cells of columns that do not say: an error, or filled with the median of the
            training part (numbers and dates), as a category of their own (categories):
            none, or missing where none is a category of the column.
        missing_target: what to do with rows without a target: refuse the file, or leave them out.

    Returns a `Table` where there are `columns` to be fitted or rows were left out, else arrays, or
    a source of rows that are not in memory. Raises ConfigError for `columns` of such, DataError for
    a file that cannot be read, a column that is missing, and values that are not what the column
    holds, by row and column.

    Example:
        >>> data = parquet(Path("measured.parquet"), target="price")
    """
    path = Path(path)
    if in_memory:
        notation = Notation(na_values=tuple(map(str, na_values or ())))
        return table_or_arrays(
            read_parquet(path, notation=notation), target, columns, drop, features=features,
            categorical=categorical, weight=weight, missing=missing, missing_target=missing_target,
        )  # fmt: skip
    if columns or na_values or missing == "fill" or missing_target == "drop":
        raise ConfigError(
            f"{path}: columns, na_values, missing and missing_target are for rows in memory; with "
            "in_memory: false leave them out, then all columns that are used must be full numbers"
        )
    stored = ParquetRows(path)
    table = Table(stored.empty, target, features=features, drop=drop or (), weight=weight)
    features, classes = [*table.columns], None
    inputs = stored.numbers(features)
    if not categorical and stored.has_numbers(target):
        wanted = stored.numbers([target])
    else:  # what is a class shows in all rows alone: this one column is read whole
        whole, classes = read_target(read_parquet(path, [target]), target, categorical)
        wanted = Chunked(
            str(path), whole.shape, whole.dtype, [0, len(whole)], lambda first, stop: whole, path,
            [target, categorical],
        )  # fmt: skip
    rows = [inputs, wanted] + ([] if weight is None else [stored.numbers(weight)])
    return Stored(
        mapped(rows, cache), feature_names=features, target_name=target, classes=classes,
        weighted=weight is not None,
    )  # fmt: skip


class ParquetRows:
    """Columns of numbers of a Parquet file, of which rows are read by row groups.

    Attributes:
        empty: the table without its rows.

    Raises DataError for a file that cannot be read, or has no rows.
    """

    def __init__(self, path: Path) -> None:
        self._kinds, self._file = library("pyarrow", path, "data").types, _opened(path)
        self._path, self._schema = path, self._file.schema_arrow
        groups = range(self._file.num_row_groups)
        counts = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._bounds = np.cumsum([0, *counts])
        names, index = self._schema.names, pandas_index(self._schema)
        self.empty = Frame(path, names, [[]] * len(names), index=index)

    def has_numbers(self, name: str) -> bool:
        """Whether a column holds integers or floats."""
        kind = self._schema.field(name).type
        return bool(self._kinds.is_integer(kind) or self._kinds.is_floating(kind))

    def numbers(self, names: str | Sequence[str]) -> Chunked:
        """Columns as float64 of shape (n, columns), or one of shape (n,).

        Raises DataError for one that is missing, or there twice, or holds something else.
        """
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            self.empty.column(name)
            kind = self._schema.field(name).type
            if not (self.has_numbers(name) or self._kinds.is_boolean(kind)):
                raise DataError(
                    f'{self._path}, column "{name}": expected numbers, found {kind}; drop it, or '
                    "train without in_memory: false, where columns may hold anything"
                )

        def load(first: int, stop: int) -> Array:
            number = int(np.searchsorted(self._bounds, first, "right")) - 1
            with readable(f"{self._path}: row group {number} cannot be read"):
                table = self._file.read_row_group(number, columns=wanted)
            columns = [table[name].to_numpy().astype(np.float64) for name in wanted]
            # An empty cell is NaN, which the pass refuses.
            return columns[0] if isinstance(names, str) else np.stack(columns, axis=1)

        shape = () if isinstance(names, str) else (len(wanted),)
        length, float64 = int(self._bounds[-1]), np.dtype(np.float64)
        where, what = str(self._path), ["numbers", names]
        return Chunked(
            where, (length, *shape), float64, self._bounds, load, self._path, what, self._path
        )


def read_parquet(
    path: Path, names: Sequence[str] | None = None, notation: Notation = PLAIN
) -> Frame:
    """The columns of a Parquet file, those of `names` that it has; None: all.

    Raises DataError where pyarrow is absent, the file cannot be read, or has no rows.
    """
    stored = _opened(path)
    with readable(f"{path} is not a readable Parquet file"):
        existing = stored.schema_arrow.names
        table = stored.read([n for n in existing if names is None or n in names])
        columns = [*map(of_arrow, table.columns)]
    index = pandas_index(table.schema)
    return Frame(path, table.column_names, columns, notation=notation, index=index)


def _opened(path: Path) -> Any:
    """A Parquet file with rows."""
    reader = library("pyarrow.parquet", path, "data")
    with reading(path), readable(f"{path} is not a readable Parquet file"):
        file = reader.ParquetFile(path, memory_map=True)
    if file.schema_arrow.names and not file.metadata.num_rows:
        raise DataError(f"{path} has no rows: the data set is empty")
    return file
