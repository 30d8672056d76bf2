"""A table with columns of all kinds, and how it becomes the numbers that a model takes.

The statistics that stand for empty cells, the categories and the scales are those of the training
part. What was found there is plain numbers and names, so that a run needs no pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...common.words import listed, plural
from ...errors import ConfigError, DataError, noun_of
from ..rows import Preprocessing
from ..source import ArrayDataset
from .columns import (
    MOST_ONE_HOT,
    STATISTICS,
    Codes,
    Column,
    Specification,
    as_columns,
    dates,
    leave_out,
    name_of_gaps,
    read_target,
    texts,
)  # fmt: skip
from .dates import encoded, inputs_of
from .frame import Frame, shortened, together

Array = NDArray[Any]
Rows = slice | NDArray[np.intp]
Note = Callable[[str], None]
MOST_SHOWN = 3  # unknown categories: a file has many columns, and its results come after them
MOST_LISTED = 8  # of those that were seen


@dataclass(frozen=True)
class Fitted:
    """One input column, and what was found of it in the training part.

    Attributes:
        fill: what stands for an empty cell: a number, days, or a category; None: nothing.
        categories: those of the training part, sorted.
    """

    name: str
    column: Column
    fill: float | str | None = None
    categories: tuple[str, ...] = ()

    @property
    def feature_names(self) -> list[str]:
        """The inputs that it becomes, the codes of an embedding apart."""
        return [name for name, _ in self._inputs]

    @property
    def _inputs(self) -> list[tuple[str, bool]]:
        """The name of each, and whether it is 0 or 1."""
        column, each = self.column, [(self.name, False)]
        if column.type == "category":
            one_hot = column.encode == "one_hot"
            each = [(f"{self.name}={category}", True) for category in self.categories if one_hot]
        elif column.parts:
            names = [name for part in column.parts for name in inputs_of(part)]
            each = [(f"{self.name} {name}", "=" in name) for name in names]
        return [*each, (f"{self.name} missing", True)] if column.indicator else each

    def scales(self, standardize: bool) -> Sequence[str]:
        """How each of these is scaled; 0 and 1 stay."""
        by_itself = standardize or self.column.type == "date"  # days are tens of thousands
        how = self.column.scale or ("standard" if by_itself else "none")
        return ["none" if is_flag else how for _, is_flag in self._inputs]

    def encode(self, frame: Frame, note: Note) -> tuple[list[Array], Array | None]:
        """The inputs, each of shape (n, k); and the codes of an embedding: 0 where a category is
        none of those known, which one-hot has as zeros.
        """
        if self.column.type == "category":
            cells = np.array(texts(frame, self.name, self.column), object)  # one may be long
            empty = cells == ""
            cells = np.where(empty, str(self.fill), cells)
            codes = np.array([self._code[cell] for cell in cells.tolist()], np.int64)
            self._tell(frame, np.where(empty, "", cells), codes, note)
            embedded = self.column.encode == "embedding"
            inputs = [codes[:, None] == np.arange(1, 1 + len(self.categories) * (not embedded))]
        else:
            values, codes, embedded = values_of(frame, self.name, self.column), None, False
            if self.column.missing is not None:  # else none is empty
                empty = np.isnan(values)
                values = np.where(empty, 0.0 if self.fill is None else self.fill, values)
            parts = self.column.parts
            inputs = [encoded(values, part) for part in parts] if parts else [values[:, None]]
        if self.column.indicator:
            inputs.append(empty[:, None])
        return inputs, codes if embedded else None

    @cached_property
    def _code(self) -> Codes:
        return Codes(self.categories, first=1)

    def _tell(self, frame: Frame, cells: Array, codes: Array, note: Note) -> None:
        """Refuse unknown categories, or say that there are some."""
        unknown = np.flatnonzero(codes == 0)
        if not len(unknown):
            return
        words = np.unique(cells[unknown]).tolist()
        found = [f'"{shortened(each)}"' if each else "an empty cell" for each in words[:MOST_SHOWN]]
        more = f" and {len(words) - MOST_SHOWN:,} more" if len(words) > MOST_SHOWN else ""
        if self.column.unknown == "error":
            expected = f"expected one of {listed(self.categories)}"
            raise frame.refusal(self.name, unknown.tolist(), expected)
        note(
            f'column "{self.name}": {plural(len(unknown), "row")} with categories not seen in '
            f"training: {listed(found)}{more}; treated as unknown (seen: "
            f"{listed(self.categories, MOST_LISTED)})"
        )


@dataclass(frozen=True)
class Encoder:
    """How the columns of a table become inputs: fitted values, which JSON keeps to the last bit.

    Attributes:
        columns: of the input, in order.
        ids: columns that say which row it is.

    Example:
        >>> encoder = mt.data.Encoder.of_numbers(["age", "height"])
        >>> encoder.feature_names, encoder.in_features
        (('age', 'height'), 2)
    """

    columns: tuple[Fitted, ...]
    ids: tuple[str, ...] = ()

    @classmethod
    def of_numbers(cls, names: Iterable[str]) -> Encoder:
        """Columns of finite numbers, which are inputs as they are."""
        return cls(tuple(Fitted(name, Column()) for name in names))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the first input: `plan=basic` of a category, `age missing` of an indicator."""
        names = tuple(name for column in self.columns for name in column.feature_names)
        return names or tuple(self.names)

    @property
    def in_features(self) -> int:
        """Columns of the first input: 0 where all columns are embedded."""
        return sum(len(column.feature_names) for column in self.columns)

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def categories(self) -> tuple[int, ...]:
        """For each embedded column its number of categories, one more for all that are unknown."""
        return tuple(1 + len(c.categories) for c in self.columns if c.column.encode == "embedding")

    def encode(self, frame: Frame, note: Note | None = None) -> list[Array]:
        """The inputs: float64 of shape (n, features), and for embedded columns int64 codes of shape
        (n, columns), 0 for an unknown category; one alone where the other would have no columns.

        Raises DataError that names every column which is missing or holds what it should not.
        """
        frame.require(self.names)
        tell = note or (lambda text: None)
        attempts = [partial(column.encode, frame, tell) for column in self.columns]
        found = together(frame.origin, attempts)
        columns = [column for inputs, _ in found for column in inputs]
        codes = [part for _, part in found if part is not None]
        inputs = [side_by_side(columns)] if self.in_features else []
        return [*inputs, np.stack(codes, axis=1)] if codes else inputs

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        columns = [{**asdict(c), "categories": [*c.categories]} for c in self.columns]
        return {"columns": columns, "ids": [*self.ids]}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Encoder:
        """From `to_json`; ValueError, TypeError or KeyError for anything else."""
        columns = [
            Fitted(c["name"], Column(**c["column"]), c["fill"], tuple(c["categories"]))
            for c in state["columns"]
        ]
        return cls(tuple(columns), tuple(state["ids"]))


def values_of(frame: Frame, name: str, column: Column) -> NDArray[np.float64]:
    """Numbers, or dates as days, NaN where there is no value; perhaps a read-only view."""
    if column.type == "date":
        return dates(frame, name, column)
    return frame.numbers(name, gaps=column.missing is not None)


def side_by_side(columns: Sequence[Array]) -> NDArray[np.float64]:
    """Columns, each of shape (rows, k), as one matrix: a view where they are neighbors in one."""
    first, base = columns[0], columns[0].base
    if isinstance(base, np.ndarray) and base.ndim == 2 and base.dtype == np.float64:
        start, (step, width) = first.ctypes.data, base.strides
        side = [(id(base), (len(first), 1), step, start + i * width) for i in range(len(columns))]
        if side == [(id(c.base), c.shape, c.strides[0], c.ctypes.data) for c in columns]:
            return as_strided(first, (len(first), len(columns)), base.strides)
    return np.concatenate(columns, axis=1, dtype=np.float64)


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
            found = noun_of(columns_of)
            raise ConfigError(f"Table: expected named columns, such as a dict, got {found}")
        if features is not None and (not features or len({*features}) < len(features)):
            raise ConfigError(f"{frame.origin}: features must name columns, each once: {features}")
        self.target_name, self.weight = target, weight
        self._how = categorical, hint
        given = as_columns(columns)
        named = {"features": [*(features or ())], "columns": [*given], "drop": [*drop]}
        named["weight"] = [weight] if weight else []
        frame.require([target, *(name for each in named.values() for name in each)])
        note = ""
        if missing_target == "drop":
            frame, note = leave_out(frame, target, categorical)
        self.frame, self.notes = frame, (note,) * bool(note)
        for key, names in named.items():
            if target in names:
                raise ConfigError(f"{frame.origin}: the target {target!r} is also in {key}")
        if both := sorted({*drop} & {*given, *named["features"], weight}):
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
        self.ids = tuple(name for name, column in given.items() if not column.is_input)
        self.columns = {n: given.get(n, Column()) for n in features if n not in self.ids}
        self._filled = set[str]()  # what their gaps are called, their categories decide
        for name, column in self.columns.items() if missing == "fill" else ():
            if column.missing is None:
                self._filled.add(name)
                filled = "none" if column.type == "category" else "median"
                self.columns[name] = replace(column, missing=filled)
        if unused := [name for name in given if name not in (*self.columns, *self.ids)]:
            raise ConfigError(f"{frame.origin}: {listed(unused)} in columns, but not in features")
        if not self.columns:
            raise DataError(f'{frame.origin} has no column beside the target "{target}"')

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def _target(self) -> tuple[Array, tuple[str, ...] | None]:
        return read_target(self.frame, self.target_name, *self._how)

    @property
    def target(self) -> Array:
        """Numbers of shape (n, 1), or class codes of shape (n,)."""
        return self._target[0]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression."""
        return self._target[1]

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
        return encoder, Preprocessing(*np.array(scaling).T.copy())

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
    is_category = column.type == "category"
    if is_category:
        every: Array = np.array(texts(frame, name, column), object)
        column = replace(column, missing=name_of_gaps({*every})) if own else column
    else:
        every = values_of(frame, name, column)
    cells = every[rows]
    fill: Any = column.missing
    empty = (cells == "") if is_category else np.isnan(cells)
    if fill in STATISTICS:
        if empty.all():
            raise DataError(f'{frame.origin}, column "{name}": no training row has a value')
        filled = cells[~empty]
        if fill == "most_frequent":  # of several the first in order
            values, counts = np.unique(filled, return_counts=True)
            fill = values[counts.argmax()]
        else:
            fill = np.median(filled) if fill == "median" else np.mean(filled)
    elif column.type == "date" and fill is not None:
        fill = dates(Frame("missing", [name], [[fill]]), name, column)[0]
    if not is_category:
        return Fitted(name, column, None if fill is None else float(fill))
    seen = sorted({*map(str, np.where(empty, fill, cells))})
    if len(seen) > MOST_ONE_HOT and column.encode == "one_hot":
        raise DataError(
            f'{frame.origin}, column "{name}": {len(seen):,} categories would be as many inputs'
            f"; write {{type: category, encode: embedding}}, or drop it"
        )
    return Fitted(name, column, fill, tuple(seen))


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
