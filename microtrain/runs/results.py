"""What run.json has of a trained model: which classes it tells apart, which columns matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..common.words import number, plural, table
from .checkpoint import Count, Number


@dataclass(frozen=True)
class ClassCounts:
    """How often each class was predicted for each, by the model that a run is known by.

    Attributes:
        split: the part of the data that was counted.
        names: of the classes, in the order of their codes.
        support: rows of each class; the sums of their weights where they have such.
        confusion: a list for each true class: how often each class was predicted.
    """

    split: str
    names: list[str]
    support: list[Count | Number]
    confusion: list[list[Count | Number]]

    def __post_init__(self) -> None:
        count = len(self.names)
        if {len(self.support), len(self.confusion), *map(len, self.confusion)} != {count}:
            raise ValueError(f"expected counts of {count} classes")

    @cached_property
    def figures(self) -> list[tuple[float, float, float]]:
        """Precision, recall and f1 of each class; 0 where one is not defined."""
        counts = np.array(self.confusion, np.float64)
        each = figures(counts.diagonal(), counts.sum(axis=0), np.array(self.support))
        return [tuple(row) for row in np.transpose(each).tolist()]


def figures(right: Any, predicted: Any, there: Any) -> list[Any]:
    """Precision, recall and f1 of rows that are right, were predicted, and are there; 0 of none."""
    parts = ((right, predicted), (right, there), (2 * right, predicted + there))
    return [above / np.where(below > 0, below, 1.0) for above, below in parts]


@dataclass(frozen=True)
class Importance:
    """By how much a measure gets worse when the values of a column are shuffled.

    Attributes:
        part: the rows that were shuffled, such as `val`.
        field: what was measured of them, such as `loss`.
        value: of the rows as they are.
        names: of the columns, the most important first.
        worse: how much the value gets worse, the mean over `repeats` shuffles; below 0 if better.
        deviations: the standard deviations over these.
    """

    part: str
    field: str
    value: Number
    rows: Count
    names: list[str]
    worse: list[Number]
    deviations: list[Number]
    repeats: Count

    @property
    def about(self) -> str:
        """What the numbers are."""
        return (
            f"how much worse {self.part}/{self.field} ({number(self.value)}) gets when a column is "
            f"shuffled: mean of {self.repeats} shuffles of {plural(self.rows, 'row')}"
        )

    def lines(self) -> list[str]:
        """For reading."""
        each = zip(self.names, self.worse, self.deviations, strict=True)
        cells = [(name, f"{number(w):>11}", f"± {number(d)}") for name, w, d in each]
        return [self.about, *table(cells, indent=2)]
