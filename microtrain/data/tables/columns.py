"""What a column of a table holds, and its cells as numbers, days or texts.

A cell is read or refused by line and column; what stands for an empty one is the user's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...spelling import did_you_mean
from .cells import is_empty, is_nothing, number
from .frame import Frame

__all__ = [
    "Column",
    "Columns",
    "Kind",
    "Specification",
    "as_columns",
    "dates",
    "texts",
]

Array = NDArray[Any]
Kind = Literal["number", "category", "date", "id"]
Scale = Literal["standard", "robust", "minmax", "none"]
Encoding = Literal["one_hot", "embedding"]
Unknown = Literal["ignore", "error"]
STATISTICS = ("mean", "median", "most_frequent")
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one column of a table holds, and how it becomes inputs of a model.

    Args:
        type: Kind of the values; date: days since 1970-01-01; id: not an input, kept beside
            predictions.
        missing: Value for empty cells: mean, median or most_frequent of the training part, or a
            constant; null: an error.
        indicator: Add an input that is 1 if the cell is empty and 0 otherwise.
        scale: Scaling by the training part: standard, robust, minmax (0 to 1) or none; null:
            standard for dates and with data.standardize.
        encode: Encoding of a category: one_hot, one input of 0 or 1 each; embedding, learned by the
            model (mlp).
        unknown: A category that is not in the training part: ignore, treat it as none of the known
            ones; or error.
        format: Format of dates other than 2024-12-31, in the codes of strptime.
    """

    type: Kind = "number"
    missing: float | str | None = None
    indicator: bool = False
    scale: Scale | None = None
    encode: Encoding = "one_hot"
    unknown: Unknown = "ignore"
    format: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot be, and for what does not go together."""
        self._check_values()
        numeric, fill = self.type in ("number", "date"), self.missing
        given = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        of_kind = {
            "number": {"missing", "indicator", "scale"},
            "date": {"missing", "indicator", "scale", "format"},
            "category": {"missing", "indicator", "encode", "unknown"},
            "id": set[str](),
        }
        if foreign := given - of_kind[self.type] - {"type"}:
            takes = ", ".join(sorted(of_kind[self.type])) or "nothing more"
            raise ValueError(f"{', '.join(sorted(foreign))} says nothing of a {self.type}: {takes}")
        if self.type == "category" and fill in ("mean", "median"):
            raise ValueError(f"categories have no {fill}; expected most_frequent or a text")
        if self.type == "category" and not isinstance(fill, str | None):
            raise ValueError(f"missing stands for a category: expected a text, got {fill!r}")
        own = isinstance(fill, str) and fill not in STATISTICS
        if own and (self.type == "number" or (numeric and _days(fill, self.format) is None)):
            raise ValueError(
                f"missing: expected {', '.join(STATISTICS)} or a {self.type}, "
                f'got "{fill}"{did_you_mean(str(fill), STATISTICS)}'
            )
        if self.type == "date" and isinstance(fill, float | int):
            raise ValueError(f"missing: expected a date as text, got {fill!r}")
        if self.indicator and fill is None:
            raise ValueError("indicator needs missing: what stands for an empty cell?")

    def _check_values(self) -> None:
        """What a configuration checks as it is read; others write Python."""
        for key, choices in _CHOICES.items():
            value = getattr(self, key)
            if value not in choices and not (key == "scale" and value is None):
                near = did_you_mean(str(value), choices)
                raise ValueError(f'there is no {key} "{value}"{near} ({", ".join(choices)})')
        if type(self.indicator) is not bool:
            raise ValueError(f"indicator: expected true or false, got {self.indicator!r}")
        fill: Any = self.missing
        is_number = type(fill) in (int, float, np.float64) and np.isfinite(fill)
        if not (fill is None or isinstance(fill, str) or is_number):
            raise ValueError(f"missing: expected a number or a text, got {fill!r}")

    @property
    def is_input(self) -> bool:
        """Whether a model gets to see it."""
        return self.type != "id"


_CHOICES = {
    "type": get_args(Kind),
    "scale": get_args(Scale),
    "encode": get_args(Encoding),
    "unknown": get_args(Unknown),
}
Specification = Kind | Column | Mapping[str, Any]
Columns = dict[str, Specification]


def as_columns(given: Mapping[str, Specification] | None) -> dict[str, Column]:
    """Columns from what a user writes: `{"plan": "category", "age": {"missing": "median"}}`.

    Raises ConfigError that says of all of them what is wrong.
    """
    columns, wrong = {}, []
    for name, spec in (given or {}).items():
        try:
            if isinstance(spec, str):
                spec = {"type": spec}
            if not isinstance(spec, Column | Mapping):
                raise TypeError(f"expected {', '.join(get_args(Kind))} or a dict, got {spec!r}")
            columns[name] = spec if isinstance(spec, Column) else Column(**spec)
        except (ValueError, TypeError) as error:
            wrong.append(f"  {name}: {error}".replace("Column.__init__() ", ""))
    if wrong:
        raise ConfigError("\n".join(["columns:", *wrong]))
    return columns


def dates(frame: Frame, name: str, column: Column) -> NDArray[np.float64]:
    """The cells as days since 1970-01-01, float64, NaN where there is no value; hours count.

    Raises DataError for what is not a date.
    """
    array = frame.column(name)
    if array.dtype.kind == "M":
        days = array.astype("datetime64[us]").astype(np.float64) / 86_400e6
        empty = np.isnat(array)
    else:
        days = np.array([_days(cell, column.format) for cell in array], np.float64)  # of None NaN
        empty = np.array([is_empty(cell) for cell in array], bool)
        bad = np.flatnonzero(~empty & np.isnan(days))
        if len(bad):
            form = column.format or "2024-12-31 or 2024-12-31T23:59"
            hint = "" if column.format else 'other forms need format, such as "%d/%m/%Y"'
            raise frame.refusal(name, bad.tolist(), f"expected a date such as {form}", hint)
    if column.missing is None and empty.any():
        raise frame.refusal(name, np.flatnonzero(empty).tolist(), "expected a date")
    return np.where(empty, np.nan, days)


def texts(frame: Frame, name: str, column: Column) -> list[str]:
    """The cells as texts, empty where there is no value; DataError where that may not be."""
    cells = frame.texts(name)
    empty = [row for row, cell in enumerate(cells) if not cell]
    if empty and column.missing is None and column.is_input:
        raise frame.refusal(name, empty, "expected a category")
    return cells


def _days(cell: Any, form: str | None) -> Any:
    """Days since 1970-01-01 of a text or date, a float; None for what is none."""
    if isinstance(cell, str):
        if number(cell) is not None and form is None:
            return None  # fromisoformat() takes 20241231, which a table means as a number
        try:
            cell = datetime.strptime(cell, form) if form else datetime.fromisoformat(cell)
        except ValueError:
            return None
    if is_nothing(cell):  # NaT is a datetime
        return None
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if not isinstance(cell, datetime):
        return None
    epoch = _EPOCH if cell.tzinfo is None else _EPOCH.replace(tzinfo=UTC)
    return (cell - epoch).total_seconds() / 86_400
