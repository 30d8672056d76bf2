"""Metrics of the probabilities that a model gives to classes, and of their ranking.

Rankings are by the log-odds of a class, which do not run into 1 as probabilities do. Values are
scikit-learn's; a row of weight 0 is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge

from .base import Array, Sums, counted, ratio
from .classification import ClassMetric, Codes, log_odds, shares

# Probabilities ------------------------------------------------------------------------------------


class LogLoss(ClassMetric):
    """Mean of -log(probability of the row's class), the probability from 2.2e-16 to 1 - 2.2e-16."""

    name = "log_loss"

    def losses(self, chances: Sums, codes: Codes) -> Sums:
        """What is averaged, one a row."""
        eps = np.finfo(np.float64).eps
        return -np.log(np.clip(chances[np.arange(len(codes)), codes], eps, 1 - eps))

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        prediction, target, weight = counted(prediction, target, weight)
        codes = self.codes(prediction, target)
        return shares(self.losses(self.chances(prediction), codes), weight)

    def value(self, sums: Sums) -> float:
        return ratio(sums[1], sums[0])


class Brier(LogLoss):
    """The mean squared error of the probabilities.

    G. W. Brier, "Verification of forecasts expressed in terms of probability", 1950.

    Of two classes that of the second's probability, from 0 to 1; of more the sum over all classes,
    from 0 to 2. So does scikit-learn from 1.7 on.
    """

    name = "brier"

    def losses(self, chances: Sums, codes: Codes) -> Sums:
        if chances.shape[1] == 2:
            return np.square(chances[:, 1] - codes)
        truth = np.eye(chances.shape[1])[codes]
        return np.asarray(np.square(chances - truth).sum(axis=1))


class CalibrationError(ClassMetric):
    """The expected calibration error: confidence against accuracy, in bins of confidence.

    C. Guo et al., "On calibration of modern neural networks", 2017. The confidence p of a row is
    its highest probability; bin m of M holds the rows with (m - 1) / M < p <= m / M. The error is
    the mean over rows of |accuracy - mean p| of their bin.

    Args:
        bins: the number of bins, of equal width.
    """

    name = "calibration_error"

    def __init__(self, bins: Annotated[int, Ge(1)] = 15) -> None:
        self.bins = bins

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        prediction, target, weight = counted(prediction, target, weight)
        codes, highest = self.codes(prediction, target), self.chances(prediction).max(axis=1)
        if np.isnan(highest).any():
            return np.full(3 * self.bins, np.nan)
        place = np.clip(np.ceil(highest * self.bins).astype(np.int64) - 1, 0, self.bins - 1)
        one = np.ones(len(codes)) if weight is None else weight
        right = one * (self.predicted(prediction, None) == codes)
        each = (one, one * highest, right)
        return np.concatenate([np.bincount(place, what, self.bins) for what in each])

    def value(self, sums: Sums) -> float:
        rows, highest, right = sums.reshape(3, -1)
        return ratio(np.abs(right - highest).sum(), rows.sum())


class RocAuc(ClassMetric):
    """Area under the receiver operating characteristic curve, rows ranked by `log_odds`.

    Two classes: of the second. More: the mean of one-vs-rest, over the classes for which it is
    defined; it is not for a class without rows, or with all of them. nan where no class is left.

    Args:
        positive: the name of one class, against the rest.
    """

    higher_is_better = True
    _name = "roc_auc"

    def __init__(self, positive: str | None = None) -> None:
        self.positive = None if positive is None else str(positive)
        self.name = self._name if positive is None else f"{self._name}_{positive}"

    def of_rows(self, prediction: Array, target: Array, weight: Sums | None = None) -> float:
        """The metric of all rows."""
        prediction, target, weight = counted(prediction, target, weight)
        codes, classes = self.codes(prediction, target), max(prediction.shape[1], 2)
        if self.positive is not None:
            wanted: Sequence[int] = [self.index(self.positive, classes)]
        else:
            wanted = [1] if classes == 2 else range(classes)
        one, odds = np.ones(len(codes)) if weight is None else weight, log_odds(prediction)
        if np.isnan(odds[:, wanted[0]]).any():
            return float("nan")
        values = [self.area(*_curve(odds[:, k], codes == k, one)) for k in wanted]
        defined = [value for value in values if not np.isnan(value)]
        return float(np.mean(defined)) if defined else float("nan")

    def area(self, yes: Sums, no: Sums) -> float:
        """Of the weights of rows of the class, and of others, down to each rank."""
        if not yes[-1:].any() or not no[-1:].any():
            return float("nan")
        heights = np.concatenate([[0.0], yes / yes[-1]])
        widths = np.diff(no / no[-1], prepend=0.0)
        return float(np.sum(widths * (heights[1:] + heights[:-1]) / 2))


class AveragePrecision(RocAuc):
    """The sum over thresholds of precision times the gain in recall.

    Several classes and `positive`: as `roc_auc`; a class without rows is left out.

    Args:
        positive: as `RocAuc`.
    """

    _name = "average_precision"

    def area(self, yes: Sums, no: Sums) -> float:
        if not yes[-1:].any():
            return float("nan")
        return float(np.sum(np.diff(yes / yes[-1], prepend=0.0) * yes / (yes + no)))


def _curve(odds: Sums, is_it: Array, weight: Sums) -> tuple[Sums, Sums]:
    """For each rank that occurs, highest first: the weight down to it, of the class and of
    others."""
    order = np.argsort(-odds, kind="stable")
    odds, is_it, weight = odds[order], is_it[order], weight[order]
    ends = np.flatnonzero(np.append(odds[1:] != odds[:-1], [True] * (len(odds) > 0)))
    return np.cumsum(weight * is_it)[ends], np.cumsum(weight * ~is_it)[ends]
