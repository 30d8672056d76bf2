"""Named columns in memory, and picking from named columns those that a model wants.

`Table` (a csv file) and `Columns` (a dict, a data frame, arrays of an npz or parquet file) answer
the same three questions: which columns there are, the numbers of one, the texts of one. Both name
the place of a value that is not what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..words import listed
from .table import (
    Table,
    did_you_mean,
    number,
    other_delimiter,
    positions,
    shortened,
    the_one,
)

__all__ = ["Columns", "take"]


class Columns:
    """Arrays by name, each of shape (n,).

    Args:
        origin: names the whole in errors.
        arrays: by name; anything that NumPy makes an array of.
        first: the number of the first row, where these are a part of the rows.

    Raises DataError for columns of another shape, or of different lengths.
    """

    def __init__(self, origin: str, arrays: Mapping[Any, Any], first: int = 0) -> None:
        self.path, self.first = origin, first
        self.header = [str(name) for name in arrays]
        self.positions = positions(origin, self.header)
        self._arrays = [_array(origin, name, value) for name, value in arrays.items()]
        lengths = {len(array) for array in self._arrays}
        if len(lengths) > 1:
            found = ", ".join(
                f"{name} {len(array)}"
                for name, array in zip(self.header[:20], self._arrays, strict=False)
            )
            raise DataError(f"{origin}: columns have different numbers of rows: {found}")
        self.rows = lengths.pop() if lengths else 0

    @classmethod
    def of(cls, value: Any) -> Columns | None:
        """Named columns of a dict, a data frame, a table or a structured array; else None."""
        if isinstance(value, Mapping):
            return cls("the columns", value)
        names: Any = getattr(getattr(value, "dtype", None), "names", None)
        if names is None:
            names = getattr(value, "column_names", None)  # pyarrow
        if names is None:
            names = getattr(value, "columns", None)  # pandas, polars
        if names is None or isinstance(value, type):
            return None
        return cls("the table", {name: value[name] for name in names})

    def _find(self, name: str) -> NDArray[Any]:
        return self._arrays[the_one(self.path, name, self.positions)]

    def is_text(self, name: str) -> bool:
        """Whether a column holds texts, perhaps with gaps."""
        array = self._find(name)
        if array.dtype.kind != "O":
            return array.dtype.kind in "US"
        return any(isinstance(value, str) for value in array)

    def place(self, row: int, name: str) -> str:
        return f'{self.path}, row {self.first + row}, column "{name}"'

    def numbers(self, name: str, hint: str = "") -> NDArray[np.float64]:
        """A column of finite numbers; raises DataError naming the first value that is not one."""
        array = self._find(name)
        if array.dtype.kind == "O":  # None among numbers: no value
            kinds = (int, float, np.integer, np.floating, np.bool_, type(None))
            bad = [i for i, value in enumerate(array) if not isinstance(value, kinds)]
            if bad:
                found = shortened(repr(array[bad[0]]))
                raise DataError(f"{self.place(bad[0], name)}: expected a number, found {found}")
        elif array.dtype.kind not in "biuf":
            kind = "texts" if array.dtype.kind in "US" else str(array.dtype)
            raise DataError(f'{self.path}, column "{name}" holds {kind}, expected numbers')
        try:
            values = array.astype(np.float64)
        except (OverflowError, TypeError, ValueError) as error:
            raise DataError(f'{self.path}, column "{name}": {error}') from error
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.argmin(finite))
            more = (
                f" ({int((~finite).sum()) - 1} more in this column)" if (~finite).sum() > 1 else ""
            )
            raise DataError(
                f"{self.place(row, name)}: expected a number, found {array[row]}{more}\n"
                "hint: rows count from 0; fill such values in or leave the rows out"
            )
        return values

    def column(self, name: str) -> list[str]:
        """A column as texts: whole numbers without a point, no value as an empty text."""
        array = self._find(name)
        if array.dtype.kind == "f" and np.isfinite(array).all() and (array % 1 == 0).all():
            return [str(int(value)) for value in array]
        return ["" if value is None else str(value).strip() for value in array.tolist()]


def take(
    columns: Columns | Table, names: Sequence[str], optional: Sequence[str] = ()
) -> tuple[NDArray[np.float64], list[str]]:
    """The columns `names` as an array (rows, names), and the names of those that are left over.

    Raises DataError naming every column that is missing, and the first value that is no number.
    """
    header = columns.header
    missing = [name for name in names if name not in columns.positions]
    if missing:
        if header and all(number(text) is not None for text in header):
            raise DataError(
                f"{columns.path}: the first line holds numbers ({shortened(', '.join(header))}), "
                f"expected the names of the columns: {listed(names)}"
            )
        free = [name for name in header if name not in names]
        lines = [f'  "{name}"{did_you_mean(name, free)}' for name in missing[:20]]
        more = [f"  and {len(missing) - 20} more"] if len(missing) > 20 else []
        other = other_delimiter(header)
        count = f"{len(missing)} columns" if len(missing) > 1 else "a column"
        raise DataError(
            "\n".join(
                [
                    f"{columns.path} lacks {count} that the model was trained on",
                    *lines,
                    *more,
                    f"columns: {listed(header) or 'none'}",
                    *([f'hint: are its cells separated by "{other}"?'] if other else []),
                ]
            )
        )
    hint = "a model takes numbers, as it was trained on them"
    parts = [columns.numbers(name, hint) for name in names]
    used = set(names)
    left = [name for name in header if name not in used]
    return np.stack(parts, axis=1) if parts else np.empty((0, 0)), left


def _array(origin: str, name: Any, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f'{origin}, column "{name}": {error}') from error
    if array.ndim != 1:
        raise DataError(
            f'{origin}, column "{name}" has shape {array.shape}, expected one value a row'
        )
    return array
