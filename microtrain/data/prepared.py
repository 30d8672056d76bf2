"""The parts of a run's data, and what a model must know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .preprocessing import Preprocessing
from .source import Source
from .table import Encoder

__all__ = ["Prepared"]


@dataclass(frozen=True)
class Prepared:
    """The parts of a run's data, ready for a DataLoader, and what a model must know of them.

    Attributes:
        train, val, test: rows of the run's dtype, standardised; None where the split has none.
        preprocessing: the map from raw inputs to those of the parts.
        in_features: columns of the input; None unless there is one float input of shape
            (n, columns), beside which a table may have embedded categories.
        out_features: the number of classes, or the columns of a target of shape (n, columns).
        classes: the names of the classes; None for regression.
        encoder: how the columns of a table become inputs; None for data that are arrays.
        notes: what a user should know of the data.
        found: of rows that are not in memory, what other ranks of the host need not find out again.
        digest: a hash of all rows, where it is known without reading them.
        cache: where the rows are kept for other runs, in words; nothing where they are not.
    """

    train: Source
    val: Source | None
    test: Source | None
    preprocessing: Preprocessing
    in_features: int | None
    out_features: int | None
    classes: tuple[str, ...] | None
    encoder: Encoder | None = None
    notes: tuple[str, ...] = ()
    found: Any = None
    digest: str | None = None
    cache: str = ""

    @property
    def categories(self) -> tuple[int, ...] | None:
        """For each embedded column its number of codes; None where there are none."""
        return None if self.encoder is None else self.encoder.categories or None
