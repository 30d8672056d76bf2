"""How well each class is told from the others: counted for run.json, and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...data import Source
from ...data.rows import known_of_target
from ...nn import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss
from ...runs.run_info import ClassCounts
from ...words import table
from .base import Metric
from .classification import Array, ClassMetric, Sums

MOST = 100  # classes that are counted
SHOWN = 20  # rows of a table


class Confusion(ClassMetric):
    """The confusion matrix: no single number, and so not among the registered metrics.

    Its `value` is of shape (classes, classes + 1): a row for each true class, a column for each
    predicted one, and a last column of the rows whose scores are not numbers.
    """

    name = "confusion matrix"

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        codes, classes = self.codes(prediction, target), max(prediction.shape[1], 2)
        predicted = self.predicted(prediction, None)
        places = codes * (classes + 1) + np.where(predicted < 0, classes, predicted)
        counts = np.bincount(places, weight, classes * (classes + 1))
        return counts.astype(np.float64)

    def value(self, sums: Sums) -> Any:
        classes = int(np.sqrt(sums.size))
        return sums.reshape(classes, classes + 1)


def is_of_numbers(loss: Any, classes: Sequence[str] | None, parts: Iterable[Source | None]) -> bool:
    """Whether a target is not classes: neither codes, nor one column of 0.0 and 1.0 for `bce`."""
    if classes is not None or isinstance(loss, MSELoss | L1Loss | HuberLoss):
        return classes is None
    return not all(known_of_target(part).binary for part in parts if part is not None)


def class_names(
    loss: Any,
    metrics: Sequence[Metric],
    classes: Sequence[str] | None,
    parts: Iterable[Source | None],
) -> Sequence[str] | None:
    """What the classes are called whose rows can be counted; None where there are no such.

    Of a user-defined loss it takes a metric of classes to know what a prediction is.
    """
    known = isinstance(loss, CrossEntropyLoss | BCEWithLogitsLoss)
    if not (known or any(isinstance(metric, ClassMetric) for metric in metrics)):
        return None
    if is_of_numbers(loss, classes, parts):
        return None
    names = classes or ("0", "1")
    return names if len(names) <= MOST else None


def class_counts(values: dict[str, Any], split: str, names: Sequence[str]) -> ClassCounts:
    """What `Confusion` has left among the values of an evaluation, taken out of them."""
    counts = values.pop(Confusion.name)
    if (counts == counts.round()).all():
        counts = counts.astype(np.int64)
    return ClassCounts(split, list(names), counts.sum(axis=1).tolist(), counts[:, :-1].tolist())


def class_lines(counts: ClassCounts, which: str = "") -> list[str]:
    """A table of the classes, of many those of lowest f1; `which` says of which model."""
    order, note = [*range(len(counts.names))], ""
    if len(order) > SHOWN:
        by_f1 = sorted(order, key=lambda i: counts.figures[i][2])
        order, note = sorted(by_f1[:SHOWN]), f", the {SHOWN} of lowest f1 of {len(order)}"
    rows = [["class", "precision", "   recall", "       f1", f"{'rows':>9}"]]
    for i in order:
        many = counts.support[i]
        rows.append(
            [counts.names[i], *(f"{figure:>9.4f}" for figure in counts.figures[i])]
            + [f"{many:>9,}" if isinstance(many, int) else f"{many:>9,.2f}"]
        )
    heading, *lines = table(rows)
    lines = [f"{heading}  ({counts.split}{note}{which and f', {which}'})", *lines]
    if total := sum(counts.support):
        largest = int(np.argmax(counts.support))
        share = counts.support[largest] / total
        lines.append(f"majority-class baseline ({counts.names[largest]}): {share:.1%}")
    return lines


def never_predicted(counts: ClassCounts) -> list[str]:
    """The classes that occur and are never predicted."""
    predicted = np.sum(counts.confusion, axis=0)
    each = zip(counts.names, counts.support, predicted, strict=True)
    return [name for name, rows, times in each if rows and not times]
