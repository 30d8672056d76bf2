"""Metrics that are exact over a whole data set, however it is cut into batches and ranks.

The mean of per-batch values is wrong as soon as batches differ in size, and r2 or rmse cannot be
averaged at all. So a metric here is two steps: `sums` turns one batch into a short float64 vector
of additive statistics, and `value` turns the sum of all such vectors into the number. `MetricSet`
adds the vectors of all batches, then of all ranks with one all_reduce, so a row or a monitored
value means the same at every rank count. A batch of zero rows adds zeros.

What no sums can tell, a median or a ranking, is a metric with `of_rows` instead: it gets the
predictions and targets of all ranks at once, in the order of the data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...creation import from_numpy
from ...data import Source
from ...data.rows import layout
from ...distributed.collectives import gather
from ...distributed.communicator import Communicator
from ...errors import ConfigError
from ...runs.metrics import RESERVED
from ..models_and_losses import OF_NUMBERS, joined, mapped, of_library, takes_weight

Array = NDArray[Any]
Sums = NDArray[np.float64]


class Metric:
    """Base of all metrics: subclass it and write `sums` and `value`, or `of_rows` alone.

    `name` is the field in metrics.jsonl and in rows; `higher_is_better` decides which value is
    best; `prepare` gives it a value near the mean of the targets before its first `sums`, and
    `class_names` are those of the data, if they have any. Where the rows of the data have weights,
    a third argument `weight` gets them, float64 of shape (n,).

    Example:
        >>> class FarOff(mt.train.Metric):  # the share of predictions that miss by more than 1
        ...     name = "far_off"
        ...
        ...     def sums(self, prediction, target):
        ...         far = np.abs(prediction - target) > 1
        ...         return np.array([far.size, far.sum()], dtype=np.float64)
        ...
        ...     def value(self, sums):
        ...         return sums[1] / sums[0] if sums[0] else float("nan")
        >>> class Worst(mt.train.Metric):  # the largest error: of all rows at once
        ...     name = "worst"
        ...
        ...     def of_rows(self, prediction, target):
        ...         return np.abs(prediction - target).max()
        >>> float(Worst().of_rows(np.array([1.0, 5.0]), np.array([2.0, 2.0])))
        3.0
    """

    name: str
    higher_is_better: bool = False
    class_names: Sequence[str] | None = None
    of_rows: Any = None  # where it is written: the number of (prediction, target) of all rows

    def prepare(self, target_mean: Array | float) -> None:
        """Receive a value near the mean of the targets, equal on all ranks; ignored by default."""

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        """Additive statistics of one batch: a float64 vector whose length is always the same."""
        raise NotImplementedError

    def value(self, sums: Sums) -> float:
        """The metric of all batches whose `sums` were added up; nan when there were no rows."""
        raise NotImplementedError


class FunctionMetric(Metric):
    """What `function(prediction, target)` returns for all rows at once, under its name.

    Its attribute `higher_is_better` says which value is best; without it that is not known.
    """

    higher_is_better: Any = None

    def __init__(self, function: Any) -> None:
        self.name, self.of_rows = function.__name__, function
        self.higher_is_better = getattr(function, "higher_is_better", None)


class MeanSquaredError(Metric):
    """Mean of (prediction - target)^2 over rows and targets alike; equal shapes, lower is better.

    Raises ConfigError when the shapes differ: (n,) against (n, 1) would broadcast to (n, n).
    """

    name = "mse"

    def errors(self, residual: Sums, target: Sums) -> Sums:
        """What is averaged, (rows, targets), of `prediction - target` and the target."""
        return np.square(residual)

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        residual = _residual(self.name, prediction, target)
        errors = self.errors(residual, _columns(target))
        if weight is None:
            return np.array([errors.size, errors.sum()])
        return np.array([weight.sum() * errors.shape[1], _weighed(errors, weight).sum()])

    def value(self, sums: Sums) -> float:
        return ratio(sums[1], sums[0])


class RootMeanSquaredError(MeanSquaredError):
    """The square root of `mse`, in the unit of the targets (all targets pooled before the root)."""

    name = "rmse"

    def value(self, sums: Sums) -> float:
        return float(np.sqrt(super().value(sums)))


class MeanAbsoluteError(MeanSquaredError):
    """Mean of |prediction - target| over rows and targets alike; equal shapes, lower is better."""

    name = "mae"

    def errors(self, residual: Sums, target: Sums) -> Sums:
        return np.abs(residual)


class MeanAbsolutePercentageError(MeanSquaredError):
    """Mean of |prediction - target| / |target| over rows and targets alike: 0.1 is 10 %.

    A target of 0 is divided by as 2.2e-16 (float64's epsilon), as scikit-learn does it.
    """

    name = "mape"

    def errors(self, residual: Sums, target: Sums) -> Sums:
        return np.abs(residual) / np.maximum(np.abs(target), np.finfo(np.float64).eps)


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

    def __init__(self) -> None:
        self._shift = np.zeros(1)

    def prepare(self, target_mean: Array | float) -> None:
        self._shift = np.asarray(target_mean, dtype=np.float64).reshape(-1)

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        residual = _residual(self.name, prediction, target)
        columns = _columns(target)
        shifted = columns - self._shift
        counts = [len(target)] * 2 if weight is None else [np.count_nonzero(weight), weight.sum()]
        squares = [shifted, np.square(shifted), np.square(residual)]
        return np.concatenate([counts, *(_weighed(each, weight).sum(axis=0) for each in squares)])

    def value(self, sums: Sums) -> float:
        rows, whole = sums[:2]
        if rows < 2 or sums.size == 2:
            return float("nan")
        first, second, unexplained = sums[2:].reshape(3, -1)
        total = second - first * first / whole
        # What rounding alone leaves of a constant target: in t - shift, in the subtraction, and in
        # squares that are too small for all of their digits.
        eps, tiny = np.finfo(np.float64).eps, np.finfo(np.float64).tiny
        constant = total <= 8 * eps * second + whole * (np.square(4 * eps * self._shift) + tiny)
        return _explained(unexplained, total, constant)


class BesideMean(Metric):
    """`rmse`, and that of always predicting `means`: no single number, and so not registered."""

    name = "beside the mean"
    _rmse = RootMeanSquaredError()

    def __init__(self, means: Array | float) -> None:
        self._means = np.asarray(means, dtype=np.float64)

    def sums(self, prediction: Array, target: Array, weight: Sums | None = None) -> Sums:
        means = np.broadcast_to(self._means, target.shape)
        return np.stack([self._rmse.sums(p, target, weight) for p in (prediction, means)]).ravel()

    def value(self, sums: Sums) -> Any:
        return [self._rmse.value(each) for each in sums.reshape(2, -1)]


class ExplainedVariance(Metric):
    """1 - variance(target - prediction) / variance(target); 1 is perfect. As `r2`, but for a
    constant error, which costs nothing.

    Several targets, and targets that do not vary: as in `r2`; of a single row it is 1.
    """

    name = "explained_variance"
    higher_is_better = True

    def of_rows(self, prediction: Array, target: Array, weight: Sums | None = None) -> float:
        """The metric of all rows."""
        prediction, target, weight = counted(prediction, target, weight)
        columns = [_residual(self.name, prediction, target), _columns(target)]
        if not len(target):
            return float("nan")
        unexplained, total = (
            # The computed mean of a constant may differ from it in the last digit.
            np.where(
                np.ptp(each, axis=0) == 0,
                0.0,
                np.average(np.square(each - np.average(each, 0, weight)), 0, weight),
            )
            for each in columns
        )
        return _explained(unexplained, total, total == 0)


class MedianAbsoluteError(Metric):
    """Median of |prediction - target|; of several targets the mean of their medians.

    With weights the weighted median, as scikit-learn has it: the lowest error up to which lies half
    of the weight; where it is exactly half, the mean of that and the next one.
    """

    name = "median_absolute_error"

    def of_rows(self, prediction: Array, target: Array, weight: Sums | None = None) -> float:
        """The metric of all rows."""
        prediction, target, weight = counted(prediction, target, weight)
        errors = np.abs(_residual(self.name, prediction, target))
        if not len(errors):
            return float("nan")
        if weight is None:
            return float(np.median(errors, axis=0).mean())
        low, high = (  # half of the weight lies up to the one, and from the other on
            sign * np.quantile(sign * errors, 0.5, 0, weights=weight, method="inverted_cdf")
            for sign in (1, -1)
        )
        return float(np.mean((low + high) / 2))


class MetricSet:
    """The loss and several metrics, added up over batches and reduced over ranks at once.

    Args:
        metrics: metrics with different names (ConfigError otherwise).
        target_mean: for r2 the mean of the split's targets over rows, or anything near it, equal
            on every rank (it may differ in the last digits). Shape (targets,) or scalar.
        class_names: of the data, in the order of their codes; None where they have none.
        loss_reduction: "mean" when the loss of a batch is a mean over its rows, so that the whole
            is sum(n l) / sum(n); "sum" when it is a sum, so that the whole is sum(l).

    Example:
        measured = MetricSet([MeanSquaredError()], target_mean=0.0)
        for x, y in batches:
            prediction = model(x)
            measured.update(prediction, y, loss=loss(prediction, y))
        measured.reduce(comm)                    # {"loss": 0.24, "mse": 0.24}
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        *,
        target_mean: Array | float,
        class_names: Sequence[str] | None = None,
        loss_reduction: str = "mean",
    ) -> None:
        names = [metric.name for metric in metrics]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"metrics: the name {name} is used twice")
            if name in RESERVED:
                raise ConfigError(f"metrics: the name {name} is taken by a field of every row")
        for metric in metrics:
            metric.prepare(target_mean)
            if class_names is not None:
                metric.class_names = class_names
        self.metrics = list(metrics)
        self._whole = [metric for metric in metrics if getattr(metric, "of_rows", None)]
        self._added = [metric for metric in metrics if metric not in self._whole]
        self.mean = loss_reduction == "mean"
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._loss = np.zeros((1, 2))  # of each mean in the loss: the total, what it is divided by
        self._has_loss = False
        self._sums: list[Sums] = []
        self._rows: list[tuple[Any, ...]] = []

    def update(
        self,
        prediction: Array,
        target: Array,
        loss: float | list[tuple[float, float]] | None = None,
        weight: Array | None = None,
    ) -> None:
        """Add one batch of this rank; zero rows add nothing, whatever their loss is.

        Args:
            prediction, target: one entry a row.
            loss: of the batch, a mean over its rows or a sum; or the total and the count of each
                mean that it is a sum of, as many in every batch.
            weight: of the rows, in all batches or in none. ConfigError for a metric that does not
                take it.
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
        batch_of: tuple[Array, ...] = (prediction, target)
        if weight is not None:
            batch_of += (weight.astype(np.float64),)
            for metric in self.metrics:
                if not takes_weight(metric.of_rows if metric in self._whole else metric.sums):
                    raise ConfigError(
                        f"metric {metric.name} cannot measure rows with weights, which the data "
                        "have; let it take them: a third argument, weight"
                    )
        with np.errstate(all="ignore"):  # a diverging model shows inf or nan
            batch = [metric.sums(*batch_of) for metric in self._added]
        if self._whole:
            self._rows.append(mapped(np.copy, batch_of))
        if self._sums:
            batch = [a + b for a, b in zip(self._sums, batch, strict=True)]
        self._sums = batch

    def reduce(self, comm: Communicator) -> dict[str, float]:
        """Global values by name, `loss` first if given, then a fresh start; collective.

        Every rank must have seen the same number of batches (those without rows included).
        """
        return self.values(comm.all_reduce(self.vector()), comm)

    def vector(self) -> Array:
        """What has been added up since the last call, to be added to that of others."""
        vector = np.concatenate([self._loss.reshape(-1), *self._sums])
        self._loss = np.zeros_like(self._loss)
        self._sums = [np.zeros_like(sums) for sums in self._sums]
        return vector

    def values(self, vector: Array, comm: Communicator) -> dict[str, Any]:
        """The values that belong to a sum of `vector()`s, then a fresh start; collective."""
        sizes = [self._loss.size, *(sums.size for sums in self._sums)]
        ends = zip(sizes, itertools.accumulate(sizes), strict=True)
        means, *sums = [vector[end - size : end] for size, end in ends]
        values = {}
        if self._has_loss:
            totals, counts = means.reshape(-1, 2).T.tolist()
            if self.mean or not counts[0]:
                values["loss"] = math.fsum(map(ratio, totals, counts))
            else:
                values["loss"] = totals[0]
        values |= {metric.name: math.nan for metric in self.metrics}  # where no batch was added
        with np.errstate(all="ignore"):
            for metric, total in zip(self._added, sums, strict=False):
                values[metric.name] = metric.value(total)
            if self._rows:
                rows = joined(np.concatenate, self._rows)
                if comm.size > 1:  # of all ranks, in their order
                    rows = mapped(lambda array: gather(from_numpy(array), comm).numpy(), rows)
                values |= {m.name: float(m.of_rows(*rows)) for m in self._whole if len(rows[1])}
        self.reset()
        return values


def predicts_numbers(loss: Any, metrics: Sequence[Metric], data: Source) -> bool:
    """Whether predictions are numbers in the unit of the target; of a user-defined loss (or None)
    it takes a metric that says so.
    """
    says = any(isinstance(metric, MeanSquaredError | R2) for metric in metrics)
    known = isinstance(loss, OF_NUMBERS) or (says and not of_library(loss))
    return known and layout(data)[1].dtype.kind == "f"


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


def _weighed(values: Sums, weight: Sums | None) -> Sums:
    """(n, targets), each row times its weight."""
    return values if weight is None else values * weight[:, None]


def _explained(unexplained: Sums, total: Sums, constant: Array) -> float:
    """The mean over targets of the share of `total` that is explained."""
    share = np.where(constant, np.sign(unexplained), unexplained / np.where(constant, 1.0, total))
    return float(np.mean(1.0 - share))


def ratio(numerator: float, denominator: float) -> float:
    """The quotient; nan where it would divide by 0."""
    return float(numerator / denominator) if denominator else float("nan")


def counted(
    prediction: Array, target: Array, weight: Sums | None
) -> tuple[Array, Array, Sums | None]:
    """The rows that count: one of weight 0 is not there, whatever is predicted for it."""
    if weight is None or weight.all():
        return prediction, target, weight
    return prediction[weight > 0], target[weight > 0], weight[weight > 0]
