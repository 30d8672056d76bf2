"""Metrics that are exact over a whole data set, however it is cut into batches and ranks.

The mean of per-batch values is wrong as soon as batches differ in size, and r2 or rmse cannot be
averaged at all. So a metric here is two steps: `sums` turns one batch into a short float64 vector
of additive statistics, and `value` turns the sum of all such vectors into the number. `MetricSet`
adds the vectors of all batches, then of all ranks with one all_reduce, so a row or a monitored
value means the same at every rank count. A batch of zero rows adds zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..runs.record import RESERVED

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = [
    "R2",
    "Accuracy",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "MetricSet",
    "RootMeanSquaredError",
    "TopK",
]

Array = NDArray[Any]
Sums = NDArray[np.float64]


class Metric:
    """Base of all metrics: subclass it and write `sums` and `value`.

    `name` is the field in metrics.jsonl and in rows; `higher_is_better` decides which value is
    best; a metric with `uses_target_mean` is given one by `prepare` before its first `sums`.

    Example:
        class FarOff(Metric):            # the share of predictions that miss by more than 1
            name = "far_off"

            def sums(self, prediction, target):
                far = np.abs(prediction - target) > 1
                return np.array([far.size, far.sum()], dtype=np.float64)

            def value(self, sums):
                return sums[1] / sums[0] if sums[0] else float("nan")
    """

    name: str
    higher_is_better: bool = False
    uses_target_mean: bool = False

    def prepare(self, target_mean: Array | float) -> None:
        """Receive a value near the mean of the targets, equal on all ranks; ignored by default."""

    def sums(self, prediction: Array, target: Array) -> Sums:
        """Additive statistics of one batch: a float64 vector whose length is always the same."""
        raise NotImplementedError

    def value(self, sums: Sums) -> float:
        """The metric of all batches whose `sums` were added up; nan when there were no rows."""
        raise NotImplementedError


class MeanSquaredError(Metric):
    """Mean of (prediction - target)^2 over rows and targets alike; equal shapes, lower is better.

    Raises ConfigError when the shapes differ: (n,) against (n, 1) would broadcast to (n, n).
    """

    name = "mse"
    of_residuals: Any = np.square

    def sums(self, prediction: Array, target: Array) -> Sums:
        residual = _residual(self.name, prediction, target)
        return np.array([residual.size, self.of_residuals(residual).sum()])

    def value(self, sums: Sums) -> float:
        return _ratio(sums[1], sums[0])


class RootMeanSquaredError(MeanSquaredError):
    """The square root of `mse`, in the unit of the targets (all targets pooled before the root)."""

    name = "rmse"

    def value(self, sums: Sums) -> float:
        return float(np.sqrt(super().value(sums)))


class MeanAbsoluteError(MeanSquaredError):
    """Mean of |prediction - target| over rows and targets alike; equal shapes, lower is better."""

    name = "mae"
    of_residuals = np.abs


class R2(Metric):
    """Coefficient of determination, 1 - sum (t - p)^2 / sum (t - mean t)^2; 1 is perfect.

    Several targets: the plain average of each target's r2 (scikit-learn's uniform_average). A
    target that does not vary counts 1 where it is predicted exactly and 0 elsewhere, as there.
    Fewer than two rows: nan.

    The sum of squares about the mean is needed in additive form. sum t^2 - (sum t)^2 / n would
    lose every digit for targets near 1e6 that vary by 1, so all ranks measure from one fixed
    `target_mean`: with u = t - target_mean it is sum u^2 - (sum u)^2 / n, and the second term is
    a small correction. Any value within a few standard deviations of the mean costs no digits.
    """

    name = "r2"
    higher_is_better = True
    uses_target_mean = True

    def __init__(self) -> None:
        self._shift: Sums | None = None

    def prepare(self, target_mean: Array | float) -> None:
        self._shift = np.asarray(target_mean, dtype=np.float64).reshape(-1)

    def sums(self, prediction: Array, target: Array) -> Sums:
        if self._shift is None:
            raise RuntimeError("r2 needs prepare(target_mean) before its first batch")
        residual = _residual(self.name, prediction, target)
        columns = _columns(target)
        if self._shift.size not in (1, columns.shape[1]):
            raise ValueError(
                f"target_mean has {self._shift.size} values for {columns.shape[1]} targets"
            )
        shifted = columns - self._shift
        squares = [shifted.sum(axis=0), np.square(shifted).sum(axis=0)]
        return np.concatenate([[len(target)], *squares, np.square(residual).sum(axis=0)])

    def value(self, sums: Sums) -> float:
        n = sums[0]
        if n < 2 or sums.size == 1:
            return float("nan")
        first, second, unexplained = sums[1:].reshape(3, -1)
        total = second - first * first / n
        # What rounding alone leaves of a constant target: in t - shift, and in the subtraction.
        eps = np.finfo(np.float64).eps
        shift = np.zeros(1) if self._shift is None else self._shift
        constant = total <= 8 * eps * second + n * np.square(4 * eps * shift)
        share = np.where(constant, unexplained != 0, unexplained / np.where(constant, 1.0, total))
        return float(np.mean(1.0 - share))


class TopK(Metric):
    """Fraction of rows whose class is among the k highest scores (n, classes); int target.

    Of equal scores the lower class counts as higher, so top1 is accuracy by argmax. A row with a
    score that is not a number is wrong.

    Args:
        k: how many classes may be named; at least 1 and less than the number of classes.

    Raises ConfigError for a k or shapes that cannot work, DataError for a class out of range.
    """

    higher_is_better = True

    def __init__(self, k: Annotated[int, Ge(1)] = 5) -> None:
        if type(k) is not int or k < 1:
            raise ConfigError(f"topk: k must be an integer of at least 1, got {k!r}")
        self.k = k
        self.name = f"top{k}"

    def sums(self, prediction: Array, target: Array) -> Sums:
        self._check(prediction, target)
        rows = np.arange(len(target))
        scores = prediction[rows, target][:, None]
        classes = np.arange(prediction.shape[1])
        ahead = (prediction > scores) | ((prediction == scores) & (classes < target[:, None]))
        # A comparison with nan is False and would put such a row first.
        right = (ahead.sum(axis=1) < self.k) & ~np.isnan(prediction).any(axis=1)
        return np.array([len(target), right.sum()], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        return _ratio(sums[1], sums[0])

    def _check(self, prediction: Array, target: Array) -> None:
        shapes = f"got prediction {prediction.shape}, target {target.shape} of {target.dtype}"
        classes = prediction.shape[-1]
        if target.dtype.kind not in "iu" or target.ndim != 1:
            raise ConfigError(
                f"metric {self.name} compares classes: expected one integer class a row, {shapes}\n"
                "for a regression use mse, rmse, mae or r2"
            )
        if prediction.ndim != 2 or len(prediction) != len(target) or classes < 2:
            raise ConfigError(
                f"metric {self.name} needs one score for each class: expected prediction "
                f"(rows, classes) with at least 2 classes, {shapes}"
            )
        if self.k >= classes:
            raise ConfigError(
                f"metric {self.name} is always 1 with {classes} classes: choose a smaller k"
            )
        outside = target[(target < 0) | (target >= classes)]
        if outside.size:
            raise DataError(
                f"metric {self.name}: class {outside[0]} in the targets, "
                f"but the model has scores for classes 0 to {classes - 1}"
            )


class Accuracy(TopK):
    """Fraction of rows whose highest score is the target's class; prediction (n, classes)."""

    def __init__(self) -> None:
        super().__init__(k=1)
        self.name = "accuracy"


class MetricSet:
    """The loss and several metrics, added up over batches and reduced over ranks at once.

    Args:
        metrics: metrics with different names (ConfigError otherwise).
        target_mean: needed with r2: the mean of the split's targets over rows, or anything near
            it, equal on every rank (it may differ in the last digits). Shape (targets,) or scalar.
        loss_reduction: "mean" when the loss of a batch is a mean over its rows, so that the whole
            is sum(n l) / sum(n); "sum" when it is a sum, so that the whole is sum(l).

    Example:
        measured = MetricSet([MeanSquaredError()])
        for x, y in batches:
            prediction = model(x)
            measured.update(prediction, y, loss=loss(prediction, y))
        measured.reduce(comm)                    # {"loss": 0.24, "mse": 0.24}
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        *,
        target_mean: Array | float | None = None,
        loss_reduction: str = "mean",
    ) -> None:
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction must be mean or sum, got {loss_reduction!r}")
        names = [metric.name for metric in metrics]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"metrics: the name {name} is used twice")
            if name in RESERVED:
                raise ConfigError(f"metrics: the name {name} is taken by a field of every row")
        for metric in metrics:
            if target_mean is not None:
                metric.prepare(target_mean)
            elif metric.uses_target_mean:
                raise ValueError(f"metric {metric.name} needs target_mean")
        self.metrics = list(metrics)
        self.mean = loss_reduction == "mean"
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._loss = np.zeros((1, 2))  # of each mean in the loss: the total, what it is divided by
        self._has_loss = False
        self._sums: list[Sums] = []

    def update(
        self,
        prediction: Array,
        target: Array,
        loss: float | list[tuple[float, float]] | None = None,
    ) -> None:
        """Add one batch of this rank; zero rows add nothing, whatever their loss is.

        loss: of the batch, a mean over its rows or a sum; or the total and the count of each mean
            that it is a sum of, as many in every batch.
        """
        rows = len(target)
        self._has_loss = loss is not None
        if not isinstance(loss, list):
            loss = [((loss or 0.0) * (rows if self.mean else 1), rows)]
        if not self._loss.any():
            self._loss = np.zeros((len(loss), 2))
        if len(loss) != len(self._loss):
            raise ConfigError(
                f"the loss is a sum of {len(self._loss)} means over different things in one batch "
                f"and of {len(loss)} in another, so its value for all rows is unknown; let it be "
                "the same sum for every batch (where nothing counts, a mean counts for nothing)"
            )
        if rows:
            self._loss += loss
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging model shows inf or nan
            batch = [metric.sums(prediction, target) for metric in self.metrics]
        if self._sums:
            batch = [a + b for a, b in zip(self._sums, batch, strict=True)]
        self._sums = batch

    def reduce(self, comm: Communicator) -> dict[str, float]:
        """Global values by name, `loss` first if given, then a fresh start; one all_reduce.

        Every rank must have seen the same number of batches (those without rows included).
        """
        return self.values(comm.all_reduce(self.vector()))

    def vector(self) -> Array:
        """What has been added up so far, to be added to that of others."""
        return np.concatenate([self._loss.reshape(-1), *self._sums])

    def values(self, vector: Array) -> dict[str, float]:
        """The values that belong to a sum of `vector()`s, then a fresh start."""
        ends = np.cumsum([self._loss.size, *(sums.size for sums in self._sums)])
        means, *sums = np.split(vector, ends[:-1])
        values = {}
        if self._has_loss:
            totals, counts = means.reshape(-1, 2).T.tolist()
            if self.mean or not counts[0]:
                values["loss"] = math.fsum(map(_ratio, totals, counts))
            else:
                values["loss"] = totals[0]
        values |= {metric.name: math.nan for metric in self.metrics}  # where no batch was added
        with np.errstate(over="ignore", invalid="ignore"):
            for metric, total in zip(self.metrics, sums, strict=False):
                values[metric.name] = metric.value(total)
        self.reset()
        return values


def _residual(name: str, prediction: Array, target: Array) -> Sums:
    """prediction - target in float64 as (rows, targets); equal shapes or ConfigError."""
    if prediction.shape != target.shape:
        raise ConfigError(
            f"metric {name} compares equal shapes: the model gives {prediction.shape}, "
            f"the target is {target.shape}\nmake the model's out_features match the target, "
            f"or use accuracy if the target is a class"
        )
    return _columns(prediction) - _columns(target)


def _columns(array: Array) -> Sums:
    """(n,) or (n, ...) as float64 (n, targets); spelled out because -1 fails with zero rows."""
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    return array.astype(np.float64).reshape(len(array), width)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else float("nan")
