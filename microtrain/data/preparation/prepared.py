"""The parts of a run's data, and what a model must know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..rows import layout
from ..source import Source
from ..tables.table import Encoder
from .standardize import Preprocessing

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

    @classmethod
    def of(
        cls,
        parts: Mapping[str, Source],
        preprocessing: Preprocessing,
        classes: tuple[str, ...] | None,
        encoder: Encoder | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """The parts by name, with what their shapes tell."""
        inputs, target = layout(parts["train"])
        columns = target.shape[1] if target.ndim == 2 else None
        width = inputs[0].shape[1] if len(inputs) == 1 and inputs[0].ndim == 2 else None
        return cls(
            parts["train"],
            parts.get("val"),
            parts.get("test"),
            preprocessing,
            in_features=width if encoder is None else encoder.in_features,
            out_features=columns if classes is None else len(classes),
            classes=classes,
            encoder=encoder,
            notes=notes,
        )

    @property
    def categories(self) -> tuple[int, ...] | None:
        """For each embedded column its number of codes; None where there are none."""
        return None if self.encoder is None else self.encoder.categories or None
