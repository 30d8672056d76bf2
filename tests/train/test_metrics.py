"""Metrics: scikit-learn's values, however the data are cut into batches and ranks."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pace import examples

from microtrain.distributed import in_process, world
from microtrain.errors import ConfigError, DataError
from microtrain.train.metrics.base import (
    R2,
    MeanAbsoluteError,
    MeanSquaredError,
    MedianAbsoluteError,
    Metric,
    MetricSet,
    RootMeanSquaredError,
)
from microtrain.train.metrics.classification import Accuracy, TopK

REGRESSION = [MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, R2]
ALL = [*REGRESSION, Accuracy, lambda: TopK(2)]


def regression_data(rows, targets=1, mean=0.0, seed=0):
    rng = np.random.default_rng(seed)
    shape = (rows, targets) if targets else (rows,)
    target = mean + rng.standard_normal(shape)
    return target + 0.5 * rng.standard_normal(shape), target


def class_data(rows, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, classes)), rng.integers(0, classes, rows)


def data_for(metric, rows, seed=0):
    return class_data(rows, seed=seed) if isinstance(metric, TopK) else regression_data(rows, 2)


def value_of(metric, *batches, mean=0.0):
    """The metric of batches (prediction, target), added up by hand."""
    metric.prepare(mean)
    return metric.value(np.sum([metric.sums(*batch) for batch in batches], axis=0))


def sklearn_value(name, prediction, target):
    from sklearn import metrics as reference

    if name == "accuracy":
        return reference.accuracy_score(target, prediction.argmax(axis=1))
    if name == "top2":
        labels = np.arange(prediction.shape[1])
        return reference.top_k_accuracy_score(target, prediction, k=2, labels=labels)
    if name == "rmse":
        return math.sqrt(reference.mean_squared_error(target, prediction))
    functions = {
        "mse": reference.mean_squared_error,
        "mae": reference.mean_absolute_error,
        "r2": reference.r2_score,
    }
    return functions[name](target, prediction)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", ALL)
def test_values_are_scikit_learns(make, dtype):
    metric = make()
    prediction, target = data_for(metric, 137)
    prediction = prediction.astype(dtype)
    target = target if target.dtype.kind == "i" else target.astype(dtype)
    expected = sklearn_value(metric.name, prediction.astype("float64"), target.astype("float64"))
    assert value_of(metric, (prediction, target)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("targets", [0, 1, 3])  # 0: shape (n,)
@pytest.mark.parametrize("make", REGRESSION)
def test_several_targets_are_scikit_learns_uniform_average(make, targets):
    metric = make()
    prediction, target = regression_data(50, targets)
    expected = sklearn_value(metric.name, prediction, target)
    assert value_of(metric, (prediction, target)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mean", [1e6, -1e6, 1e9])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_r2_keeps_its_digits_for_targets_far_from_zero(mean, offset):
    """sum t^2 - (sum t)^2 / n would have no correct digit left at 1e9."""
    prediction, target = regression_data(1000, mean=mean)
    exact = (1 - ((target - prediction) ** 2).sum() / ((target - target.mean()) ** 2).sum()).item()
    batches = [(prediction[i : i + 64], target[i : i + 64]) for i in range(0, 1000, 64)]
    assert value_of(R2(), *batches, mean=mean + offset) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("target", [0.0, 0.1, 1e6 + 0.1])
@pytest.mark.parametrize("error, expected", [(0.0, 1.0), (0.5, 0.0)])
def test_r2_of_a_target_that_does_not_vary_is_0_or_1(target, error, expected):
    """As scikit-learn has it where the mean is exact; where it is not, r2_score gives -1e33."""
    column = np.full((7, 1), target)
    assert value_of(R2(), (column + error, column), mean=column.mean()) == expected
    if target == 0.0:
        assert sklearn_value("r2", column + error, column) == expected


@example(value=0.0, rows=15, cut=0, off=8e-160, error=0.5)
@given(
    value=st.floats(-1e6, 1e6),
    rows=st.integers(2, 40),
    cut=st.integers(0, 40),
    off=st.floats(-1e-9, 1e-9),
    error=st.sampled_from([0.0, 0.5]),
)
@settings(deadline=None)
def test_r2_of_a_constant_is_0_or_1_whatever_rounding_leaves(value, rows, cut, off, error):
    column = np.full((rows, 1), value)
    batches = [(column[:cut] + error, column[:cut]), (column[cut:] + error, column[cut:])]
    assert value_of(R2(), *batches, mean=value + off) == (
        0.0 if (column + error != column).any() else 1.0
    )


@given(
    data=st.data(),
    rows=st.integers(0, 60),
    ranks=st.integers(1, 4),
    which=st.integers(0, len(ALL) - 1),
)
@settings(deadline=None, max_examples=examples(80))
def test_any_cut_into_batches_and_ranks_gives_the_whole(data, rows, ranks, which):
    whole = ALL[which]()
    prediction, target = data_for(whole, rows, seed=rows)
    batches = data.draw(st.integers(1, 4), label="batches")
    cuts = sorted(
        data.draw(
            st.lists(st.integers(0, rows), min_size=ranks * batches, max_size=ranks * batches)
        )
    )
    cuts[0], bounds = 0, [*cuts[1:], rows]
    parts = [(prediction[a:b], target[a:b]) for a, b in zip([0, *bounds[:-1]], bounds, strict=True)]

    def evaluate(comm):
        measured = MetricSet([ALL[which]()], target_mean=0.1)
        for batch in parts[comm.rank :: ranks]:
            loss = float(np.mean(batch[1])) if len(batch[1]) else float("nan")
            measured.update(*batch, loss=loss)
        return measured.reduce(comm)

    expected = value_of(whole, (prediction, target), mean=0.1)
    results = in_process.run(ranks, evaluate)
    assert all(repr(result) == repr(results[0]) for result in results)  # the same bits, nan too
    assert results[0][whole.name] == pytest.approx(expected, rel=1e-12, nan_ok=True)
    mean = float(np.mean(target)) if rows else math.nan  # the loss is nan on empty batches
    assert results[0]["loss"] == pytest.approx(mean, rel=1e-12, abs=1e-15, nan_ok=True)


@pytest.mark.mpi
def test_metric_set_over_the_ranks_of_this_job():
    comm = world()
    prediction, target = regression_data(101)
    mine = slice(comm.rank, None, comm.size)
    metrics = [R2(), MedianAbsoluteError(), MeanSquaredError()]
    measured = MetricSet(metrics, target_mean=target.mean())
    measured.update(prediction[mine], target[mine], loss=1.0)
    values = measured.reduce(comm)
    assert list(values) == ["loss", "r2", "median_absolute_error", "mse"]
    assert values["median_absolute_error"] == np.median(np.abs(prediction - target))
    assert values["loss"] == 1.0
    assert values["r2"] == pytest.approx(sklearn_value("r2", prediction, target), rel=1e-12)
    assert values["mse"] == pytest.approx(sklearn_value("mse", prediction, target), rel=1e-12)


@pytest.mark.parametrize("make", ALL)
def test_zero_rows_add_zeros_and_nothing_at_all_is_nan(make):
    metric = make()
    prediction, target = data_for(metric, 9)
    metric.prepare(5.0)
    empty = metric.sums(prediction[:0], target[:0])
    assert empty.dtype == np.float64
    assert empty.shape == metric.sums(prediction, target).shape
    assert not empty.any()
    assert math.isnan(metric.value(empty))


@pytest.mark.parametrize(
    "reduction, expected", [("mean", (10 * 2.0 + 5 * 0.5) / 15), ("sum", 2.0 + 0.5)]
)
def test_loss_is_weighted_by_rows_or_summed(reduction, expected):
    def evaluate(comm):
        measured = MetricSet([], target_mean=0.0, loss_reduction=reduction)
        measured.update(np.zeros((10, 1)), np.zeros((10, 1)), loss=2.0)
        measured.update(np.zeros((0, 1)), np.zeros((0, 1)), loss=math.nan)
        measured.update(np.zeros((5, 1)), np.zeros((5, 1)), loss=0.5)
        return measured.reduce(comm)

    assert in_process.run(1, evaluate) == [{"loss": pytest.approx(expected, rel=1e-15)}]


def test_reduce_starts_afresh_and_leaves_out_a_loss_that_was_not_given():
    def evaluate(comm):
        measured = MetricSet([MeanSquaredError()], target_mean=0.0)
        measured.update(np.full((3, 1), 2.0), np.zeros((3, 1)))
        first = measured.reduce(comm)
        measured.update(np.ones((3, 1)), np.zeros((3, 1)))
        return first, measured.reduce(comm), measured.reduce(comm)

    [(first, second, third)] = in_process.run(1, evaluate)
    assert (first, second) == ({"mse": 4.0}, {"mse": 1.0})
    assert math.isnan(third["mse"])


def test_topk_ties_go_to_the_lower_class_so_that_top1_is_argmax():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    target = np.array([0, 1, 2])
    assert value_of(Accuracy(), (scores, target)) == pytest.approx(1 / 3)
    assert value_of(TopK(1), (scores, target)) == pytest.approx(1 / 3)
    assert value_of(TopK(2), (scores, target)) == pytest.approx(2 / 3)


def test_a_row_with_nan_scores_is_wrong():
    """Comparisons with nan are False, which ranks such a row first; argmax picks the nan."""
    scores = np.array([[np.nan, 0.0, 0.0], [0.0, np.nan, 5.0]])
    assert value_of(Accuracy(), (scores, np.array([0, 2]))) == 0.0


def test_a_diverged_model_gives_nan_or_inf_without_warnings():
    def evaluate(comm):
        measured = MetricSet([metric() for metric in REGRESSION], target_mean=0.0)
        measured.update(np.array([[np.inf], [1e300]]), np.array([[1.0], [2.0]]), loss=math.inf)
        return measured.reduce(comm)

    [values] = in_process.run(1, evaluate)
    assert not any(math.isfinite(value) for value in values.values())


def case(metric, prediction, target, error, message):
    return pytest.param(metric, np.zeros(prediction), target, error, message, id=message)


@pytest.mark.parametrize(
    "metric, prediction, target, error, message",
    [
        case(MeanSquaredError(), (4, 1), np.zeros(4), ConfigError, "equal shapes"),
        case(R2(), (4,), np.zeros((4, 1)), ConfigError, r"gives \(4,\), the target is \(4, 1\)"),
        case(Accuracy(), (4, 3), np.zeros(4), ConfigError, "one integer class a row"),
        case(Accuracy(), (4, 1), np.zeros(4, int), ConfigError, "at least 2 classes"),
        case(Accuracy(), (3, 3), np.zeros(4, int), ConfigError, "one score for each class"),
        case(TopK(3), (4, 3), np.zeros(4, int), ConfigError, "always 1 with 3 classes"),
        case(Accuracy(), (2, 3), np.array([0, 3]), DataError, "class 3 .* 0 to 2"),
        case(Accuracy(), (2, 3), np.array([-1, 0]), DataError, "class -1"),
    ],
)
def test_data_that_do_not_fit_are_named(metric, prediction, target, error, message):
    metric.prepare(0.0)
    with pytest.raises(error, match=message):
        metric.sums(prediction, target)


def test_metric_set_refuses_what_would_mislead():
    with pytest.raises(ConfigError, match="mse is used twice"):
        MetricSet([MeanSquaredError(), MeanSquaredError()], target_mean=0.0)


def test_direction_of_better():
    better = {m.name: m.higher_is_better for m in [*(make() for make in REGRESSION), Accuracy()]}
    assert better == {"mse": False, "rmse": False, "mae": False, "r2": True, "accuracy": True}
    assert TopK(3).name == "top3"
    assert TopK(3).higher_is_better


def test_the_documented_metric_of_ones_own_works():
    class FarOff(Metric):
        name = "far_off"

        def sums(self, prediction, target):
            far = np.abs(prediction - target) > 1
            return np.array([far.size, far.sum()], dtype=np.float64)

        def value(self, sums):
            return sums[1] / sums[0] if sums[0] else float("nan")

    def evaluate(comm):
        measured = MetricSet([FarOff()], target_mean=0.0)
        measured.update(np.array([[0.0], [3.0]]), np.zeros((2, 1)))
        return measured.reduce(comm)

    assert in_process.run(2, evaluate) == [{"far_off": 0.5}] * 2
