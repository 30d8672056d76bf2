"""Metrics of the class that a model names, and how well each class is told from the others.

A model's raw outputs come in two forms, and all metrics here take both: a score for each class,
(n, classes), with one integer class a row (the loss `cross_entropy`), and one score a row, (n, 1),
with targets 0.0 and 1.0 (the loss `bce`). Probabilities are the softmax of the first and the
sigmoid of the second, in float64. The predicted class is that of the highest score, the lower of
equal ones; of one score it is 1 where its probability is at least 0.5.

Values are scikit-learn's. A row of weight 0 is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from ...common.spelling import did_you_mean
from ...common.words import table
from ...creation import from_numpy
from ...data import Source
from ...data.rows import known_of_target
from ...errors import ConfigError, DataError
from ...nn import BCEWithLogitsLoss, CrossEntropyLoss
from ...nn.functional import softmax
from ...runs.metrics import ClassCounts, figures
from ..models_and_losses import OF_NUMBERS
from .base import Array, Metric, Sums, ratio

Codes = NDArray[np.int64]
Share = Annotated[float, Ge(0), Le(1)]
Average = Literal["binary", "micro", "macro", "weighted"]
FIGURES = ("precision", "recall", "f1")


def sigmoid(scores: Array) -> Sums:
    """The probabilities that scores stand for, in float64, without overflow."""
    wide = scores.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return np.where(wide >= 0, 1, small) / (1 + small)


class ClassMetric(Metric):
    """Base of the metrics of classes: the targets as codes, the outputs as probabilities.

    Raises ConfigError for outputs and targets of different shapes, DataError for a class out of
    range.
    """

    def codes(self, prediction: Array, target: Array) -> Codes:
        """The class of each row, once `prediction` is seen to fit it."""
        one_score = target.dtype.kind == "f" and target.shape[1:] == prediction.shape[1:] == (1,)
        codes, classes = (target[:, 0], 2) if one_score else (target, prediction.shape[-1])
        fits = target.dtype.kind in "iu" and target.ndim == 1 and prediction.ndim == 2
        if not one_score and not (fits and len(prediction) == len(target) and classes >= 2):
            raise ConfigError(
                f"metric {self.name} compares classes: expected one integer class a row and one "
                "score for each class, prediction (rows, classes) with at least 2 classes, got "
                f"prediction {prediction.shape}, target {target.shape} of {target.dtype}\n"
                "for a regression use mse, rmse, mae or r2"
            )
        outside = codes[(codes < 0) | (codes >= classes) | (codes % 1 != 0)]
        if outside.size:
            raise (ConfigError if one_score else DataError)(
                f"metric {self.name}: class {outside[0]:g} in the targets, "
                f"but the model has scores for classes 0 to {classes - 1}"
            )
        return codes.astype(np.int64)

    def chances(self, prediction: Array) -> Sums:
        """The probability of each class, (n, classes); of one score a row, of 0 and 1."""
        if prediction.shape[1] == 1:
            return np.hstack([sigmoid(-prediction), sigmoid(prediction)])
        return softmax(from_numpy(prediction.astype(np.float64)), 1).numpy()

    def predicted(self, prediction: Array, threshold: float | None, positive: int = 1) -> Codes:
        """The predicted class of each row; -1 where a score is not a number.

        threshold: of two classes, predict `positive` where its probability is at least this.
        """
        one_score = prediction.shape[1] == 1
        if threshold is None:
            codes = (prediction[:, 0] >= 0) if one_score else prediction.argmax(axis=1)
        elif prediction.shape[1] <= 2:
            chances = self.chances(prediction)
            codes = np.where(chances[:, positive] >= threshold, positive, 1 - positive)
        else:
            raise ConfigError(
                f"metric {self.name}: a threshold is for two classes, but there are "
                f"{prediction.shape[1]}"
            )
        return np.where(np.isnan(prediction).any(axis=1), -1, codes)

    def index(self, positive: str, classes: int) -> int:
        """The code of the class called `positive`. Raises ConfigError where there is none."""
        names = self.class_names or [str(code) for code in range(classes)]
        if positive not in names:
            there = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
            raise ConfigError(
                f"metric {self.name}: no class is called {positive}"
                f"{did_you_mean(positive, names)} (there are: {there})"
            )
        return list(names).index(positive)


# How often the class is right ---------------------------------------------------------------------


class TopK(ClassMetric):
    """Share of rows whose class is among the k highest scores; prediction (n, classes), int target.

    Of equal scores the lower class counts as higher, so top1 is accuracy by argmax. A row with a
    score that is not a number is wrong.

    Args:
        k: how many classes count as predicted: at least 1, less than the number of classes.

    Raises ConfigError for shapes that cannot work, and for a k that is not below the number of
    classes, DataError for a class out of range.
    """

    higher_is_better = True

    def __init__(self, k: Annotated[int, Ge(1)] = 5) -> None:
        self.k = k
        self.name = f"top{k}"

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        codes, classes = self.codes(prediction, target), max(prediction.shape[1], 2)
        if self.k >= classes:
            raise ConfigError(
                f"metric {self.name} is always 1 with {classes} classes: choose a smaller k"
            )
        return shares(self.right(prediction, codes), weight)

    def right(self, prediction: Array, codes: Codes) -> Array:
        """Which rows are right."""
        if prediction.shape[1] == 1:
            return np.equal(self.predicted(prediction, None), codes)
        scores = prediction[np.arange(len(codes)), codes][:, None]
        classes = np.arange(prediction.shape[1])
        ahead = np.count_nonzero(prediction > scores, axis=1)
        ahead += np.count_nonzero((prediction == scores) & (classes < codes[:, None]), axis=1)
        # A comparison with nan is False and would put such a row first.
        return np.greater(self.k, np.where(np.isnan(prediction).any(axis=1), self.k, ahead))

    def value(self, sums: Sums) -> float:
        return ratio(sums[1], sums[0])


class Accuracy(TopK):
    """Share of rows whose predicted class is right.

    Args:
        threshold: of two classes, predict the second where its probability is at least this; null:
            the class with the higher score.
    """

    def __init__(self, threshold: Share | None = None) -> None:
        super().__init__(k=1)
        self.name, self.threshold = _at("accuracy", threshold), threshold

    def right(self, prediction: Array, codes: Codes) -> Array:
        return np.equal(self.predicted(prediction, self.threshold), codes)


class BalancedAccuracy(ClassMetric):
    """The mean recall of the classes that occur.

    Args:
        threshold: of two classes, predict the second where its probability is at least this; null:
            the class with the higher score.
    """

    higher_is_better = True

    def __init__(self, threshold: Share | None = None) -> None:
        self.name, self.threshold = _at("balanced_accuracy", threshold), threshold

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        codes = self.codes(prediction, target)
        return _counts(codes, self.predicted(prediction, self.threshold), prediction, weight)

    def value(self, sums: Sums) -> float:
        support, _, right = sums.reshape(3, -1)
        there = support > 0
        return float(np.mean(right[there] / support[there])) if there.any() else float("nan")


class Recall(ClassMetric):
    """Share of a class's rows for which it is predicted; 0 for a class without rows.

    Args:
        average: `binary` is the value of one class; `micro` that of all rows together, `macro` the
            mean over classes, `weighted` their mean weighted by their rows. Classes that neither
            occur nor are predicted are left out.
        threshold: of two classes, predict the positive one where its probability is at least this;
            null: the class with the higher score.
        positive: the name of the class for `binary`; of two classes the second by default.
    """

    higher_is_better = True
    _name = "recall"

    def __init__(
        self,
        average: Average = "binary",
        threshold: Share | None = None,
        positive: str | None = None,
    ) -> None:
        of = "" if average == "binary" else f"_{average}"
        if positive is not None:
            of = f"_{positive}"
            if average != "binary":
                raise ConfigError(
                    f"metric {self._name}: positive is one class, but average: {average} is over "
                    "all; leave one of them out"
                )
        self.average, self.threshold = average, threshold
        self.positive = None if positive is None else str(positive)
        self.name = _at(self._name + of, threshold)

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        codes = self.codes(prediction, target)
        positive = self._one(max(prediction.shape[1], 2)) if self.average == "binary" else 1
        predicted = self.predicted(prediction, self.threshold, positive)
        return _counts(codes, predicted, prediction, weight)

    def value(self, sums: Sums) -> float:
        support, predicted, right = sums.reshape(3, -1)
        if not support.any():
            return float("nan")
        if self.average == "micro":
            support, predicted, right = sums.reshape(3, -1).sum(axis=1, keepdims=True)
        each = figures(right, predicted, support)[FIGURES.index(self._name)]
        if self.average == "binary":
            return float(each[self._one(len(each))])
        if self.average == "weighted":
            return float(np.average(each, weights=support))
        return float(np.mean(each[(support > 0) | (predicted > 0)]))

    def _one(self, classes: int) -> int:
        if self.positive is not None:
            return self.index(self.positive, classes)
        if classes != 2:
            raise ConfigError(
                f"metric {self.name} looks at one class by default, the second of two, but there "
                f"are {classes}; choose average: macro, micro or weighted, or name one: positive: "
                f"{(self.class_names or ['0'])[0]}"
            )
        return 1


class Precision(Recall):
    """Share of the rows predicted as a class that belong to it; 0 for a class never predicted.

    Args:
        average, threshold, positive: as `Recall`.
    """

    _name = "precision"


class F1(Recall):
    """The harmonic mean of precision and recall, 2 right / (rows + predicted).

    Args:
        average, threshold, positive: as `Recall`.
    """

    _name = "f1"


def _at(name: str, threshold: float | None) -> str:
    return name if threshold is None else f"{name}_at_{threshold:g}"


def shares(values: Array, weight: Sums | None) -> Sums:
    """How many rows there are, and the sum of their values."""
    if weight is None:
        return np.array([len(values), values.sum()], dtype=np.float64)
    return np.array([weight.sum(), (values * weight).sum()])


def _counts(codes: Codes, predicted: Codes, prediction: Array, weight: Sums | None) -> Sums:
    """Of each class its rows, how often it was predicted, and how often it was right."""
    classes, there = max(prediction.shape[1], 2), predicted >= 0
    right = predicted == codes
    each = ((codes, codes >= 0), (predicted, there), (codes, right))
    counts = [
        np.bincount(which[rows], None if weight is None else weight[rows], classes)
        for which, rows in each
    ]
    return np.concatenate(counts).astype(np.float64)


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
        return np.bincount(places, weight, classes * (classes + 1)).astype(np.float64)

    def value(self, sums: Sums) -> Any:
        return sums.reshape(-1, int(np.sqrt(sums.size)) + 1)


def is_of_numbers(loss: Any, classes: Sequence[str] | None, parts: Iterable[Source | None]) -> bool:
    """Whether a target is not classes: neither codes, nor one column of 0.0 and 1.0 for `bce`."""
    if classes is not None or isinstance(loss, OF_NUMBERS):
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
    rows = [["class", *(f"{name:>9}" for name in (*FIGURES, "rows"))]]
    for i in order:
        many = counts.support[i]
        support = f"{many:>9,}" if isinstance(many, int) else f"{many:>9,.2f}"
        rows.append([counts.names[i], *(f"{x:>9.4f}" for x in counts.figures[i]), support])
    heading, *lines = table(rows)
    lines = [f"{heading}  ({counts.split}{note}{which and f', {which}'})", *lines]
    if total := sum(counts.support):
        largest = int(np.argmax(counts.support))
        share = counts.support[largest] / total
        lines.append(f"baseline (always {counts.names[largest]}): {share:.1%} accuracy")
    return lines


def not_better(counts: ClassCounts, log_loss: float, which: str) -> str:
    """What to say of a model that is not right more often than always the most frequent class, and
    whose probabilities are no better than the shares of the classes.

    log_loss: of the probabilities, in nats; inf where there are none.
    """
    right, most = np.trace(counts.confusion), max(counts.support)
    name, total = counts.names[counts.support.index(most)], sum(counts.support) or 1
    chances = [rows / total for rows in counts.support if rows]
    if right > most or log_loss < -sum(p * math.log(p) for p in chances):
        return ""
    shares = f"{right / total:.1%} accuracy instead of {most / total:.1%}"
    return f"not better than always predicting {name}: {shares}  ({counts.split}, {which})"


def never_predicted(counts: ClassCounts) -> list[str]:
    """The classes that occur and are never predicted."""
    predicted = np.sum(counts.confusion, axis=0)
    each = zip(counts.names, counts.support, predicted, strict=True)
    return [name for name, rows, times in each if rows and not times]


# Rankings -----------------------------------------------------------------------------------------


def log_odds(scores: NDArray[Any]) -> Sums:
    """How likely each class is against all others: score - log(sum of exp(other scores)).

    A column for each class, float64; one score a row is that of class 1 against 0. Rows that differ
    by what is added to all scores, or by which of the other classes has which score, give the same.
    Of two classes it is the difference of their scores. nan for scores that are not numbers.
    """
    wide = scores.astype(np.float64, order="C")
    if wide.shape[1] == 1:
        wide = np.hstack([np.zeros_like(wide), wide])
    ranked = np.sort(wide, axis=1)  # so that sums have one order
    second, first = ranked[:, -2:-1], ranked[:, -1:]
    highest = wide == first
    with np.errstate(invalid="ignore"):
        # Of all but the highest, and of all but the highest two, against the highest of them.
        below_first = np.exp(ranked[:, :-1] - first).sum(axis=1, keepdims=True)
        below_second = np.exp(ranked[:, :-2] - second).sum(axis=1, keepdims=True)
        ahead = wide - np.where(highest, second, first)
        rest = np.where(highest, below_second, below_first - np.exp(wide - first))
        return np.asarray(np.where(np.isinf(ahead), ahead, ahead - np.log(1 + rest)))
