"""How the columns of a table become inputs: what was found of them in the training part.

It is plain numbers and names, so that a run needs no pickle, and predictions need no scikit-learn
of the same version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...common.words import listed, plural
from .columns import Codes, Column, dates, texts
from .dates import encoded, inputs_of
from .frame import Frame, shortened, together

__all__ = ["Encoder", "Fitted", "values_of"]

Array = NDArray[Any]
Note = Callable[[str], None]
MOST_SHOWN = 3  # unknown categories: a file has many columns, and its results come after them
BLOCK = 4096  # rows that are written at once: column after column would miss the cache at each cell


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
            known = np.arange(1, 1 + len(self.categories) * (not embedded))
            inputs = [codes[:, None] == known]
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
            raise frame.refusal(
                self.name, unknown.tolist(), f"expected one of {listed(self.categories)}"
            )
        note(
            f'column "{self.name}": {plural(len(unknown), "row")} with categories not seen in '
            f"training: {listed(found)}{more}; treated as unknown"
        )


@dataclass(frozen=True)
class Encoder:
    """How the columns of a table become inputs: fitted values, which JSON keeps to the last bit.

    Attributes:
        columns: of the input, in order.
        ids: columns that say which row it is.
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
        columns = [{**dataclasses.asdict(c), "categories": [*c.categories]} for c in self.columns]
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
    """Columns, each of shape (rows, k), as one matrix: a view where they are neighbours in one."""
    first, base = columns[0], columns[0].base
    if isinstance(base, np.ndarray) and base.ndim == 2 and base.dtype == np.float64:
        start, (step, width) = first.ctypes.data, base.strides
        side = [(id(base), (len(first), 1), step, start + i * width) for i in range(len(columns))]
        if side == [(id(c.base), c.shape, c.strides[0], c.ctypes.data) for c in columns]:
            return as_strided(first, (len(first), len(columns)), base.strides)
    matrix = np.empty((len(first), sum(each.shape[1] for each in columns)))
    for start in range(0, len(matrix), BLOCK):
        rows = slice(start, start + BLOCK)
        np.concatenate([each[rows] for each in columns], axis=1, out=matrix[rows])
    return matrix
