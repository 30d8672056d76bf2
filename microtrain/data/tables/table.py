"""A table with columns of all kinds, and how it becomes the numbers that a model takes.

The statistics that stand for empty cells, the categories and the scales are those of the training
part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...common.words import listed, plural
from ...errors import ConfigError, DataError
from ..rows import Preprocessing
from ..source import ArrayDataset
from .columns import (
    MOST_ONE_HOT,
    STATISTICS,
    Column,
    Specification,
    as_columns,
    dates,
    leave_out,
    name_of_gaps,
    read_target,
    texts,
)  # fmt: skip
from .encoder import Encoder, Fitted, values_of
from .frame import Frame, together

__all__ = ["Table", "table_or_arrays"]

Array = NDArray[Any]
Rows = slice | NDArray[np.intp]
Note = Callable[[str], None]


class Table:
    """Named columns of numbers, categories and dates, and the target that is to be predicted.

    What it takes to make numbers of them is found in the training part alone, so a table becomes
    arrays when it is split: by `prepare`, or by a run.

    Args:
        columns_of: a dict of columns, a pandas, polars or pyarrow table, or a `Frame`.
        target: the name of the target column.
        columns: what columns hold that are not plain numbers, by name: `category`, `date`, `id`, or
            a `Column` (or a dict of its arguments).
        features: the names of the input columns, in order; None takes all but the target, the
            weight, those of `drop`, ids, and the index that pandas stored in a file or pyarrow
            table, unless `columns` has it.
        drop: columns to leave out.
        categorical: read the target as classes whatever its values look like.
        weight: a column of numbers that say how much each row counts.
        missing: empty cells of columns that do not say: an error, or filled with the median of the
            training part (numbers and dates), as a category of their own (categories):
            none, or missing where none is a category of the column.
        missing_target: `drop` leaves out rows without a target, which are an `error` otherwise.

    Attributes:
        notes: what was left out, in words.

    Raises DataError for columns that there are not, and ConfigError for specifications that cannot
    be. What the cells hold is checked by `fit`.

    Example:
        >>> table = Table(
        ...     {"plan": ["basic", "pro"], "age": [20.0, None], "left": ["no", "yes"]},
        ...     target="left", columns={"plan": "category", "age": {"missing": "mean"}})
        >>> encoder, scaling = table.fit()
        >>> encoder.feature_names
        ('plan=basic', 'plan=pro', 'age')
        >>> encoder.encode(table.frame)[0].tolist()
        [[1.0, 0.0, 20.0], [0.0, 1.0, 20.0]]
    """

    def __init__(
        self,
        columns_of: Any,
        target: str,
        columns: Mapping[str, Specification] | None = None,
        *,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        categorical: bool = False,
        weight: str | None = None,
        missing: Literal["error", "fill"] = "error",
        missing_target: Literal["error", "drop"] = "error",
        hint: str = "",
    ) -> None:
        frame = columns_of if isinstance(columns_of, Frame) else Frame.of(columns_of)
        if frame is None:
            kind = type(columns_of).__name__
            raise ConfigError(f"Table: expected named columns, such as a dict, got a {kind}")
        if features is not None and (not features or len({*features}) < len(features)):
            raise ConfigError(f"{frame.origin}: features must name columns, each once: {features}")
        if target in (features or ()):
            raise ConfigError(f"{frame.origin}: the target {target!r} is also one of the features")
        self.target_name, self.weight = target, weight
        self._categorical, self._hint = categorical, hint
        given = as_columns(columns)
        named = {"columns": [*given], "drop": [*drop], "weight": [weight] if weight else []}
        frame.require(
            [*(features or ()), target, *(name for each in named.values() for name in each)]
        )
        note = ""
        if missing_target == "drop":
            frame, note = leave_out(frame, target, categorical)
        self.frame, self.notes = frame, (note,) * bool(note)
        for key, names in named.items():
            if target in names:
                raise ConfigError(f"{frame.origin}: the target {target!r} is also in {key}")
        if both := sorted({*drop} & {*given, *(features or ()), *named["weight"]}):
            raise ConfigError(f"{frame.origin}: {listed(both)} in drop and used")
        if features is None:
            left_out = {target, weight, *drop, *({*frame.index} - {*given})}
            features = [name for name in frame.names if name not in left_out]
            if "" in features and "" not in given:
                raise DataError(
                    f"{frame.origin}: column {frame.names.index('') + 1} has no name. Is it a row "
                    "number (pandas: to_csv(index=False) leaves it out)? features: [...] names "
                    "those to use"
                )
        self.columns = {name: given.get(name, Column()) for name in features}
        self._filled = set[str]()  # what their gaps are called, their categories decide
        for name, column in self.columns.items() if missing == "fill" else ():
            if column.is_input and column.missing is None:
                self._filled.add(name)
                filled = "none" if column.type == "category" else "median"
                self.columns[name] = replace(column, missing=filled)
        self.ids = tuple(name for name, column in given.items() if not column.is_input)
        for name in self.ids:
            self.columns.pop(name, None)
        if unused := [name for name in given if name not in (*self.columns, *self.ids)]:
            raise ConfigError(f"{frame.origin}: {listed(unused)} in columns, but not in features")
        if not self.columns:
            raise DataError(f'{frame.origin} has no column beside the target "{target}"')

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def _target(self) -> tuple[Array, tuple[str, ...] | None]:
        return read_target(self.frame, self.target_name, self._categorical, self._hint)

    @property
    def target(self) -> Array:
        """Numbers of shape (n, 1), or class codes of shape (n,)."""
        return self._target[0]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression."""
        return self._target[1]

    def values(self, name: str, as_time: bool = False) -> Array:
        """A value for each row of any column, by which the rows can be split."""
        column = self.columns.get(name, Column())
        if not as_time:
            return np.array(texts(self.frame, name, Column(type="category")))  # none is empty
        plain = self.frame.floats(name) is not None  # of which none is a date
        if column.type == "date" or (not plain and self.frame.column(name).dtype.kind in "OM"):
            try:  # not filled in: without a value there is no order
                return dates(self.frame, name, Column(type="date", format=column.format))
            except DataError:
                if column.type == "date":
                    raise
        try:
            return self.frame.numbers(name)
        except DataError as error:
            raise DataError(
                f"{error}\nhint: split.time takes numbers, and dates such as 2024-12-31; for other "
                f'forms write columns: {{{name}: {{type: date, format: "%d/%m/%Y"}}}}'
            ) from error

    def fit(
        self, rows: Rows = slice(None), standardize: bool = False
    ) -> tuple[Encoder, Preprocessing]:
        """How inputs are made, by the values in `rows`, and how these are scaled.

        standardize: scale numbers and dates that do not say how to mean 0 and deviation 1.

        Raises DataError that names every column with cells that are not what they should be.
        """
        encoder = self.encoder(rows)
        scales = [how for column in encoder.columns for how in column.scales(standardize)]
        x, *_ = encoder.encode(self.frame)
        if not scales:  # embedded columns alone
            return encoder, Preprocessing.identity(x)
        scaling = [_scaled(how, x[rows, i], self.frame.origin) for i, how in enumerate(scales)]
        mean, scale = np.array(scaling).T
        return encoder, Preprocessing(mean.copy(), scale.copy())

    def encoder(self, rows: Rows = slice(None)) -> Encoder:
        """The first of what `fit` returns."""
        attempts = [
            partial(_fit, self.frame, name, column, rows, name in self._filled)
            for name, column in self.columns.items()
        ]
        try:
            columns = together(self.frame.origin, attempts)
        except DataError as error:
            from .propose import advice

            plain = [name for name, column in self.columns.items() if column == Column()]
            raise DataError(advice(str(error), self.frame, plain)) from None
        return Encoder(tuple(columns), self.ids)

    def arrays(self, encoder: Encoder, note: Note | None = None) -> ArrayDataset:
        """All rows as a model takes them, before scaling."""
        weights = None if self.weight is None else self.frame.weights(self.weight)
        return ArrayDataset(
            *encoder.encode(self.frame, note),
            self.target,
            feature_names=encoder.feature_names,
            target_name=self.target_name,
            classes=self.classes,
            weights=weights,
        )

    def __repr__(self) -> str:
        return f"Table({plural(len(self), 'row')}, target {self.target_name}: {self.frame.origin})"


def table_or_arrays(
    frame: Frame,
    target: str,
    columns: Mapping[str, Specification] | None,
    drop: Sequence[str] | None,
    **others: Any,
) -> ArrayDataset | Table:
    """A table, or its arrays where nothing is to be fitted or said."""
    table = Table(frame, target, columns, drop=drop or (), **others)
    fitted = columns or table.notes or others.get("missing") == "fill"
    return table if fitted else table.arrays(table.encoder())


def _fit(frame: Frame, name: str, column: Column, rows: Rows, own: bool) -> Fitted:
    """What is found of a column in `rows`; `own`: its gaps are a category that no cell is of."""
    statistic = column.missing if column.missing in STATISTICS else None
    if column.type == "category":
        every = texts(frame, name, column)
        if own:
            column = replace(column, missing=name_of_gaps({*every}))
        cells = np.array(every, object)[rows]
        empty = cells == ""
        fill: Any = column.missing
        if statistic:
            fill = _impute(cells, empty, "most_frequent", frame, name)
        seen = sorted({*map(str, np.where(empty, fill, cells))})
        if len(seen) > MOST_ONE_HOT and column.encode == "one_hot":
            raise DataError(
                f'{frame.origin}, column "{name}": {len(seen):,} categories would be as many inputs'
                f"; write {{type: category, encode: embedding}}, or drop it"
            )
        return Fitted(name, column, fill, tuple(seen))
    values = values_of(frame, name, column)[rows]
    fill = column.missing
    if statistic:
        fill = float(_impute(values, np.isnan(values), statistic, frame, name))
    elif column.type == "date" and fill is not None:
        fill = float(dates(Frame("missing", [name], [[fill]]), name, column)[0])
    return Fitted(name, column, None if fill is None else float(fill))


def _impute(cells: Array, empty: Array, statistic: str, frame: Frame, name: str) -> Any:
    """What stands for empty cells; of the most frequent values the first in order."""
    if empty.all():
        raise DataError(f'{frame.origin}, column "{name}": no training row has a value')
    filled = cells[~empty]
    if statistic == "most_frequent":
        values, counts = np.unique(filled, return_counts=True)
        return values[counts.argmax()]
    return np.median(filled) if statistic == "median" else np.mean(filled)


def _scaled(how: str, x: NDArray[np.float64], origin: str) -> tuple[float, float]:
    """What is subtracted from a feature, and what it is then divided by."""
    if how == "none":
        return 0.0, 1.0
    if how == "standard":
        standard = Preprocessing.standardizing(x[:, None], origin)
        return float(standard.mean[0]), float(standard.scale[0])
    with np.errstate(over="ignore"):
        if not np.isfinite(x.max() - x.min()):
            raise DataError(f"{origin}: input values are too large to scale; rescale them")
    low, middle, high = np.percentile(x, [25, 50, 75] if how == "robust" else [0, 0, 100])
    # A constant, which rounding may have given a little width, is only moved.
    return float(middle), float(high - low) if high - low > 10 * np.finfo(float).eps else 1.0
