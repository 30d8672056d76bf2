"""Which columns of a table matter to a model, as run.json has it."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.words import number, plural, table
from .checkpoint import Count, Number


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
