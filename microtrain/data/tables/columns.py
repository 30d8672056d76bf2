"""What a column of a table holds, and its cells as numbers, days, texts or classes.

A cell is read or refused by line and column; what stands for an empty one is the user's to say.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...common.spelling import did_you_mean
from ...common.words import plural
from ...errors import ConfigError, DataError
from .frame import EACH, Frame, as_cells, shortened, text_of
from .notation import is_empty, is_nothing, number

Array = NDArray[Any]
Kind = Literal["number", "category", "date", "id"]
Scale = Literal["standard", "robust", "minmax", "none"]
MOST_ONE_HOT = 1000  # categories; beyond it the inputs of a row are megabytes of zeros
Encoding = Literal["one_hot", "embedding"]
Unknown = Literal["ignore", "error"]
Part = Literal["year", "month", "day_of_week", "hour", "days"]  # of a date
PARTS: tuple[Part, ...] = get_args(Part)
STATISTICS = ("mean", "median", "most_frequent")
_EPOCH = datetime(1970, 1, 1)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)\.0+")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?")


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
        format: Format of dates other than 2024-12-31, in the codes of strptime; %q is a quarter.
        parts: Inputs that a date becomes; month, day_of_week and hour are one of 0 or 1 for each
            value; null: days.

    Example:
        >>> table = {"plan": ["basic", "pro"], "age": [20.0, 40.0], "price": [1.0, 2.0]}
        >>> age = mt.data.Column(missing="median", scale="minmax")
        >>> data = mt.data.Table(table, "price", columns={"plan": "category", "age": age})
        >>> mt.data.prepare(data).encoder.feature_names
        ('plan=basic', 'plan=pro', 'age')
    """

    type: Kind = "number"
    missing: float | str | None = None
    indicator: bool = False
    scale: Scale | None = None
    encode: Encoding = "one_hot"
    unknown: Unknown = "ignore"
    format: str | None = None
    parts: list[Part] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot be, and for what does not go together."""
        self._check_values()
        numeric, fill = self.type in ("number", "date"), self.missing
        given = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        of_kind = {
            "number": {"missing", "indicator", "scale"},
            "date": {"missing", "indicator", "scale", "format", "parts"},
            "category": {"missing", "indicator", "encode", "unknown"},
            "id": set[str](),
        }
        if foreign := ", ".join(sorted(given - of_kind[self.type] - {"type"})):
            takes = ", ".join(sorted(of_kind[self.type])) or "nothing more"
            raise ValueError(f"{foreign} does not apply to a {self.type}: {takes}")
        if self.type == "category" and fill in ("mean", "median"):
            raise ValueError(f"categories have no {fill}; expected most_frequent or a text")
        if self.type == "category" and not isinstance(fill, str | None):
            raise ValueError(f"missing stands for a category: expected a text, got {fill!r}")
        own = isinstance(fill, str) and fill not in STATISTICS
        if own and (self.type == "number" or (numeric and days(fill, self.format) is None)):
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
        parts: Any = ["days"] if self.parts is None else self.parts
        known = isinstance(parts, list | tuple) and [part for part in parts if part in PARTS]
        if not known or len(parts) != len({*known}):
            raise ValueError(f"parts: expected some of {', '.join(PARTS)}, got {parts!r}")
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
    cells, which = frame.different(name)
    if cells.dtype.kind == "M":
        found = cells.astype("datetime64[us]").astype(np.float64) / 86_400e6
        empty = np.isnat(cells)
    else:
        found = np.array([days(cell, column.format) for cell in cells], np.float64)  # of None NaN
        empty = np.array([is_empty(cell) for cell in cells], bool)
        found, empty = found[which], empty[which]
        bad = np.flatnonzero(~empty & np.isnan(found))
        if len(bad):
            form = column.format or "2024-12-31 or 2024-12-31T23:59"
            hint = "" if column.format else 'other forms need format, such as "%d/%m/%Y"'
            raise frame.refusal(name, bad.tolist(), f"expected a date such as {form}", hint)
    if column.missing is None and empty.any():
        raise frame.refusal(name, np.flatnonzero(empty).tolist(), "expected a date")
    return np.where(empty, np.nan, found)


def days(cell: Any, form: str | None) -> float | None:
    """Days since 1970-01-01 of a text, a date, or with a format a number; None for anything else.

    form: codes of strptime, and %q for a quarter from 1 to 4; None: ISO 8601.
    """
    if is_nothing(cell):  # NaT is a datetime
        return None
    if form is not None and not isinstance(cell, date):
        cell = text_of(cell)
    if isinstance(cell, str):
        if form is None and number(cell) is not None:
            return None  # fromisoformat() takes 20241231, which a table means as a number
        try:
            if form is None:
                cell = datetime.fromisoformat(cell)
            else:
                cell = datetime.strptime(*_of_month(cell, form))
        except ValueError:
            return None
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if not isinstance(cell, datetime):
        return None
    epoch = _EPOCH if cell.tzinfo is None else _EPOCH.replace(tzinfo=UTC)
    return (cell - epoch).total_seconds() / 86_400


def _of_month(text: str, form: str) -> tuple[str, str]:
    """A text and its format with a quarter's first month in its place."""
    if "%q" not in form or not (found := _quarter(form).fullmatch(text)):
        return text, form
    month = f"{3 * int(found[1]) - 2:02}"
    return text[: found.start(1)] + month + text[found.end(1) :], form.replace("%q", "%m")


@lru_cache
def _quarter(form: str) -> re.Pattern[str]:
    pattern = re.escape(form).replace("%Y", "[0-9]{4}").replace("%y", "[0-9]{2}")
    return re.compile(pattern.replace("%q", "([1-4])"), re.IGNORECASE)


def texts(frame: Frame, name: str, column: Column) -> list[str]:
    """The cells as texts, empty where there is no value; DataError where that may not be."""
    cells = frame.texts(name)
    empty = [row for row, cell in enumerate(cells) if not cell]
    if empty and column.missing is None and column.is_input:
        raise frame.refusal(name, empty, "expected a category")
    return cells


def name_of_gaps(categories: Iterable[str]) -> str:
    """What stands for empty cells beside these categories: "none", else what is not one of them."""
    taken = {category.casefold() for category in categories}
    more = (f"missing {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(("none", "missing"), more) if name not in taken)


_PLAIN = re.compile(r"0|-?[1-9][0-9]*")  # a whole number, as it is written


def read_target(
    frame: Frame, name: str, categorical: bool = False, hint: str = ""
) -> tuple[Array, tuple[str, ...] | None]:
    """Numbers of shape (n, 1), or class codes of shape (n,) and the names of the classes.

    hint: says how to read a doubtful target as classes.

    Raises DataError for a column that holds both, or values that are neither.
    """
    found = frame.floats(name)
    if found is not None and np.isfinite(found).any() and not categorical:
        return frame.numbers(name, hint).reshape(-1, 1).copy(), None
    array, among = frame.different(name)
    which = np.arange(len(array))[among]
    values = [*map(frame.value, array)]
    finite = [x for x in values if x is not None and math.isfinite(x)]
    if finite and not categorical:
        return frame.numbers(name, hint).reshape(-1, 1).copy(), None
    cells = [*map(text_of, as_cells(array))]
    bad = []
    for i, (x, cell) in enumerate(zip(values, cells, strict=True)):
        if not cell:
            bad.append(i)
        elif isinstance(array[i], bytes | date | np.datetime64):  # texts in a CSV file
            bad += [i] * (not categorical)
        elif x is None:
            bad += [i] * (not categorical and bool(frame.notation.other(cell)))
        elif not math.isfinite(x):
            bad.append(i)
    if bad:
        rows = np.flatnonzero(np.isin(which, bad)).tolist()
        raise frame.refusal(name, rows, "expected a number or a name")
    if len(finite) == len(cells):
        exact = np.array([x.is_integer() for x in finite])
        if array.dtype.kind != "O":  # of texts each is another one, however large
            exact &= np.abs(finite) < 2**53
        if rows := np.flatnonzero(~exact[which]).tolist():
            raise frame.refusal(name, rows, "expected a whole number as the code of a class")
    in_order = all(map(_PLAIN.fullmatch, cells))  # 007 is a text like any other
    labels = sorted(set(cells), key=int if in_order else None)
    # Dates, names of people, "12 kg": a column of nearly unique texts is not a set of classes.
    if not categorical and len(labels) > max(20, len(which) // 2):
        raise DataError(
            f'{frame.origin}, column "{name}": {len(labels)} different texts in {len(which)} rows; '
            f'is "{shortened(cells[0])}" the name of a class?' + (f"\nhint: {hint}" if hint else "")
        )
    codes = {label: code for code, label in enumerate(labels)}
    return np.array([codes[cell] for cell in cells], np.int64)[which], tuple(labels)


def leave_out(frame: Frame, name: str, categorical: bool = False) -> tuple[Frame, str]:
    """The rows that have a value in the target `name`; and how many have none, in words."""
    found = None if categorical else frame.floats(name)
    cells, which = frame.different(name) if found is None else (found, EACH)
    if cells.dtype.kind == "f":
        empty = np.isnan(cells)
    else:
        each = [*map(text_of, as_cells(cells))]
        numbers = None if categorical or frame.lines is None else frame.notation.floats(each)
        empty = np.array([not text for text in each]) if numbers is None else np.isnan(numbers)
    empty = empty[which]
    if not empty.any():
        return frame, ""
    if empty.all():
        raise DataError(f'{frame.origin}, column "{name}": no cell of the target has a value')
    count = plural(int(empty.sum()), "row")
    return frame.rows(np.flatnonzero(~empty)), f'{count} without a value in "{name}" left out'


class Codes(dict[str, int]):
    """Codes of texts, from `first` on, and -1 or what stands for others.

    Files of another kind write the same value in other ways: 1.0 for 1, 2024-01-01T00:00 for
    2024-01-01, true for True. Such a text has the code of the one that it may be; 01 is never 1.
    """

    def __init__(self, texts: Iterable[str], first: int = 0) -> None:
        super().__init__((text, code) for code, text in enumerate(texts, start=first))
        self._none = first - 1
        self._plain: dict[str, int] = {}
        for text, code in self.items():
            plain = _plainly(text)
            self._plain[plain] = self._none if plain in self._plain else code

    def __missing__(self, text: str) -> int:
        return self._plain.get(_plainly(text), self._none)


def _plainly(text: str) -> str:
    """A text that all ways to write its value have in common."""
    if _WHOLE.fullmatch(text):
        return text.partition(".")[0]
    if _TIME.fullmatch(text):
        with contextlib.suppress(ValueError):
            return text_of(datetime.fromisoformat(text))
    return text.capitalize() if text.casefold() in ("true", "false") else text


def codes_of(frame: Frame, name: str, classes: Sequence[str]) -> Array:
    """The codes of a column of classes that are known; DataError for a different class."""
    known, cells = Codes(classes), frame.texts(name)
    codes = np.array([known[cell] for cell in cells], np.int64)
    for row in np.flatnonzero(codes < 0)[:1].tolist():
        raise DataError(
            f'{frame.location(row, name)}: "{shortened(cells[row])}" is not one of the '
            f"{len(known)} classes of the model{did_you_mean(cells[row], known)}"
        )
    return codes
