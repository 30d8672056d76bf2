"""Metrics of classes, of rankings and of weighted rows: scikit-learn's values on any ranks."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pace import daily, examples

from microtrain.data import ArrayDataset
from microtrain.distributed import in_process
from microtrain.errors import ConfigError, DataError
from microtrain.train import evaluation
from microtrain.train.evaluation import evaluate
from microtrain.train.metrics.base import (
    R2,
    ExplainedVariance,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MedianAbsoluteError,
    RootMeanSquaredError,
)
from microtrain.train.metrics.classification import (
    F1,
    Accuracy,
    BalancedAccuracy,
    Confusion,
    Precision,
    Recall,
    TopK,
    log_odds,
    sigmoid,
)
from microtrain.train.metrics.probabilities import (
    AveragePrecision,
    Brier,
    CalibrationError,
    LogLoss,
    RocAuc,
)

Arrays = tuple[np.ndarray, ...]
AVERAGES = ("micro", "macro", "weighted")
REGRESSION = (
    MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, MeanAbsolutePercentageError, R2,
    ExplainedVariance, MedianAbsoluteError,
)  # fmt: skip


def metrics_for(classes: int) -> list[Any]:
    """All metrics that data of so many classes can have."""
    made: list[Any] = [Accuracy(), BalancedAccuracy(), LogLoss(), Brier(), CalibrationError()]
    made += [RocAuc(), AveragePrecision()]
    made += [kind(average) for kind in (Precision, Recall, F1) for average in AVERAGES]
    made += [kind(positive="0") for kind in (Precision, Recall, F1, RocAuc, AveragePrecision)]
    if classes == 2:
        made += [kind() for kind in (Precision, Recall, F1)]
        made += [kind(threshold=0.3) for kind in (Precision, Recall, F1, Accuracy)]
        made += [Recall(threshold=0.3, positive="0")]
    else:
        made += [TopK(2), TopK(1)]
    return made


def ranked(scores: np.ndarray) -> np.ndarray:
    """Rows by how likely each class is against all others: equal ranks for equal odds."""
    wide = scores.astype(np.float64)
    if wide.shape[1] == 1:
        wide = np.hstack([np.zeros_like(wide), wide])
    ranks = np.empty(wide.shape, int)
    for k in range(wide.shape[1]):
        others = np.sort(np.delete(wide, k, axis=1), axis=1).astype(np.longdouble)
        highest = others[:, -1]
        odds = wide[:, k] - highest - np.log(np.exp(others - highest[:, None]).sum(axis=1))
        order = np.argsort(odds, kind="stable")
        gaps = np.diff(odds[order])
        least = 4e-15 * np.abs(odds[order][1:]).clip(1)
        assume(not ((gaps > least / 100) & (gaps < least)).any())  # a tie, or rounded to one
        ranks[order, k] = np.append(0, np.cumsum(gaps > least))
    return ranks


def in_scikit_learn(
    metric: Any,
    chances: np.ndarray,
    ranks: np.ndarray,
    named: np.ndarray,
    codes: np.ndarray,
    weight: Any,
) -> float:
    """The same number from scikit-learn; nan where it is not defined there."""
    from sklearn import metrics as reference

    classes = chances.shape[1]
    positive = getattr(metric, "positive", None)
    one = 1 if positive is None else int(positive)
    threshold = getattr(metric, "threshold", None)
    if threshold is not None:
        named = np.where(chances[:, one] >= threshold, one, 1 - one)
    labels, given = np.arange(classes), {"sample_weight": weight}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not defined there
        match metric:
            case CalibrationError():
                return calibration_error(metric.bins, chances, named == codes, weight)
            case Brier():
                return reference.brier_score_loss(codes, y_proba=chances, labels=labels, **given)
            case LogLoss():
                return reference.log_loss(codes, chances, labels=labels, **given)
            case RocAuc():
                score = reference.roc_auc_score
                if isinstance(metric, AveragePrecision):
                    score = reference.average_precision_score
                wanted = [one] if positive is not None or classes == 2 else labels
                values = [
                    score(codes == k, ranks[:, k], **given)
                    for k in wanted
                    if (codes == k).any()
                    and (isinstance(metric, AveragePrecision) or (codes != k).any())
                ]
                return float(np.mean(values)) if values else math.nan
            case Recall():
                score = getattr(reference, f"{metric._name}_score")
                if metric.average == "binary":
                    value = score(codes, named, average=None, labels=[one], **given)
                    return float(value[0])
                return score(codes, named, average=metric.average, **given)
            case BalancedAccuracy():
                return reference.balanced_accuracy_score(codes, named, **given)
            case Accuracy():
                return reference.accuracy_score(codes, named, **given)
            case _:
                return reference.top_k_accuracy_score(
                    codes, named, k=metric.k, labels=labels, **given
                )


def calibration_error(bins: int, chances: np.ndarray, right: np.ndarray, weight: Any) -> float:
    """The definition of C. Guo et al., written out."""
    highest = chances.max(axis=1)
    one = np.ones(len(right)) if weight is None else weight
    total = 0.0
    for m in range(1, bins + 1):
        inside = ((m - 1) < highest * bins) & (highest * bins <= m)
        if one[inside].sum():
            accuracy = np.average(right[inside], weights=one[inside])
            confidence = np.average(highest[inside], weights=one[inside])
            total += one[inside].sum() / one.sum() * abs(accuracy - confidence)
    return total


def measured(ranks: int, shards: int | None, made: Any, arrays: Arrays, weight: Any) -> Any:
    """What `evaluate` finds for predictions that are given: the first array."""
    data = ArrayDataset(*arrays, weights=weight)

    def work(comm: Any) -> dict[str, float]:
        def nothing(prediction: Any, target: Any, weight: Any = None) -> Any:
            return prediction.sum() * 0

        nothing.reduction = "sum"  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            return evaluate(lambda x: x, nothing, made(), data, comm, None, shards)

    everyone = in_process.run(ranks, work)
    assert all(repr(each) == repr(everyone[0]) for each in everyone)
    return everyone[0]


@st.composite
def class_tables(draw: Any) -> tuple[Arrays, Any, int, bool]:
    """Scores with ties, classes, weights: also classes that never occur or are never named."""
    rows, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    one_score = classes == 2 and draw(st.booleans())
    scores = rng.normal(size=(rows, 1 if one_score else classes)) * draw(st.sampled_from([1, 30]))
    if draw(st.booleans()):  # ties
        scores = np.round(scores)
    occurring = draw(st.lists(st.integers(0, classes - 1), min_size=1, unique=True))
    codes = rng.choice(occurring, rows)
    if draw(st.booleans()) and not one_score:
        scores[:, draw(st.integers(0, classes - 1))] = -99  # never named
    weight = draw(st.sampled_from([None, "whole", "any"]))
    if weight is not None:
        weight = rng.integers(0, 4, rows) * (1.0 if weight == "whole" else rng.random(rows))
        weight[0] = 1.5
    target = codes[:, None].astype(float) if one_score else codes
    return (scores, target), weight, classes, one_score


WORLDS = [(1, None), (2, None), (4, None), (1, 4), (2, 4), (4, 4)]


@pytest.mark.parametrize("count", daily([30, 200], 30))
def test_values_of_classes_are_scikit_learns(count: int) -> None:
    tables = given(table=class_tables(), where=st.sampled_from(WORLDS))
    settings(deadline=None, max_examples=examples(count))(tables(compare_with_scikit_learn))()


def compare_with_scikit_learn(table: Any, where: Any) -> None:
    (scores, target), weight, classes, one_score = table
    found = measured(*where, lambda: metrics_for(classes), (scores, target), weight)
    codes = target.reshape(-1).astype(int)
    if one_score:
        chances = np.hstack([sigmoid(-scores), sigmoid(scores)])
        named, places = (scores[:, 0] >= 0).astype(int), scores
    else:
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances, named = e / e.sum(axis=1, keepdims=True), scores.argmax(axis=1)
        # Of equal scores the lower class comes first.
        places = -np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    there = np.ones(len(codes), bool) if weight is None else weight > 0
    weight = None if weight is None else weight[there]
    for metric in metrics_for(classes):
        seen = places if type(metric) is TopK else named
        arrays = [each[there] for each in (chances, ranked(scores), seen, codes)]
        expected = in_scikit_learn(metric, *arrays, weight)
        assert found[metric.name] == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True), (
            metric.name
        )


@st.composite
def number_tables(draw: Any) -> tuple[Arrays, Any]:
    rows, targets = draw(st.integers(2, 40)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    target = rng.normal(size=(rows, targets)) + draw(st.sampled_from([0.0, 100.0]))
    prediction = target + rng.normal(size=(rows, targets))
    if draw(st.booleans()):
        target, prediction = np.round(target), np.round(prediction)
        target[0], target[1] = 0.0, 1.0  # varies
    weight = None
    if draw(st.booleans()):
        weight = rng.integers(0, 4, rows).astype(float)
        weight[:2] = 1.0, 2.0
    return (prediction, target), weight


@given(table=number_tables(), where=st.sampled_from(WORLDS))
@settings(deadline=None, max_examples=examples(100))
def test_values_of_numbers_are_scikit_learns(table: Any, where: Any) -> None:
    from sklearn import metrics as reference

    (prediction, target), weight = table
    functions = {
        "mse": reference.mean_squared_error,
        "mae": reference.mean_absolute_error,
        "mape": reference.mean_absolute_percentage_error,
        "r2": reference.r2_score,
        "explained_variance": reference.explained_variance_score,
        "median_absolute_error": reference.median_absolute_error,
    }
    found = measured(*where, lambda: [m() for m in REGRESSION], (prediction, target), weight)
    for name, function in functions.items():
        expected = function(target, prediction, sample_weight=weight)
        assert found[name] == pytest.approx(expected, rel=1e-12, abs=1e-12), name
    assert found["rmse"] == pytest.approx(math.sqrt(found["mse"]), rel=1e-14)


SURE = np.array([98.1, 98.5, 98.1145, 98.2, 97.6, 98.9, 99.3])  # a sigmoid is 1 from 37 on
IS_IT = np.array([0, 1, 1, 1, 1, 1, 1])


def forms_of(scores: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores and targets of rows of which class 1 is that of IS_IT, in each form there is."""
    zero, codes = np.zeros_like(scores), IS_IT.astype(np.int64)
    far = zero - 1000
    return {
        "one score": (scores[:, None], IS_IT[:, None].astype(float)),
        "two scores": (np.stack([zero, scores], 1), codes),
        "the first for the second": (np.stack([-scores, zero], 1), codes),
        "three scores": (np.stack([zero, scores, far], 1), codes),
        "one that cannot be": (np.stack([zero, scores, zero - np.inf], 1), codes),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("form", forms_of(SURE))
def test_scores_of_which_all_probabilities_are_equal_are_ranked(form, sign, dtype) -> None:
    scores, target = forms_of(sign * SURE)[form]
    pairs = SURE[1:] - SURE[0]
    expected = np.mean(pairs * sign > 0)  # of pairs of a row of each class those in order
    for positive in ("0", "1"):  # the same pairs, the other way round
        found = RocAuc(positive).of_rows(scores.astype(dtype), target)
        assert found == pytest.approx(expected, rel=1e-14)
    order = IS_IT[np.argsort(-sign * SURE)]
    gains = (np.cumsum(order) / np.arange(1, 8))[order == 1]
    found = AveragePrecision("1").of_rows(scores.astype(dtype), target)
    assert found == pytest.approx(gains.mean(), rel=1e-14)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_rows_whose_other_classes_are_exchanged_are_ties(classes: int) -> None:
    rng = np.random.default_rng(classes)
    scores = (rng.normal(size=classes) * 20).astype(np.float32).astype(np.float64)
    rows = np.stack([np.append(scores[:1], rng.permutation(scores[1:])) for _ in range(50)])
    rows += rng.integers(-1000, 1000, (50, 1))
    assert len(set(log_odds(rows)[:, 0].tolist())) == 1
    assert RocAuc("0").of_rows(rows, np.arange(50) % 2) == 0.5


@pytest.mark.parametrize(
    ("prediction", "target", "weight", "expected"),
    [
        ([3.0], [5.0], None, 1.0),
        ([3.0, 4], [5.0, 9], [1.0, 0], 1.0),
        ([3.0, 3], [5.0, 5], None, 1.0),
        ([3.0, 4], [5.0, 5], None, 0.0),
        ([math.nan], [5.0], None, math.nan),
        ([math.nan, 4], [5.0, 5], None, math.nan),
        ([math.inf], [5.0], None, math.nan),
    ],
)
def test_what_is_explained_of_a_variance_of_nothing(prediction, target, weight, expected) -> None:
    arrays = np.array(prediction)[:, None], np.array(target)[:, None]
    with np.errstate(invalid="ignore"):
        found = ExplainedVariance().of_rows(*arrays, None if weight is None else np.array(weight))
    assert found == pytest.approx(expected, nan_ok=True)


@given(table=st.one_of(class_tables(), number_tables()), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=examples(60))
def test_a_weight_is_a_number_of_copies(table: Any, seed: int) -> None:
    (prediction, target), *others = table
    copies = np.random.default_rng(seed).integers(0, 4, len(target))
    copies[:2] = 2
    made = (
        (lambda: metrics_for(others[1])) if len(others) > 1 else lambda: [m() for m in REGRESSION]
    )
    weighted = measured(2, None, made, (prediction, target), copies.astype(float))
    repeated = tuple(np.repeat(array, copies, axis=0) for array in (prediction, target))
    assert weighted == pytest.approx(
        measured(1, None, made, repeated, None), rel=1e-10, abs=1e-12, nan_ok=True
    )


def test_every_world_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shards all metrics, of ranks those that see all rows at once."""
    monkeypatch.setattr(evaluation, "ROWS", 3)
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(37, 3)).astype("float32"), rng.integers(0, 3, 37)
    found = [measured(n, 8, lambda: metrics_for(3), arrays, None) for n in (1, 2, 4, 8)]
    assert len({repr(each) for each in found}) == 1
    plain = [
        measured(n, None, lambda: [RocAuc(), AveragePrecision()], arrays, None) for n in (1, 2, 5)
    ]
    assert len({repr(each) for each in plain}) == 1
    assert plain[0]["roc_auc"] == found[0]["roc_auc"]


# What scikit-learn does not define ----------------------------------------------------------------


def test_a_class_without_rows_has_no_area_and_recall_0() -> None:
    scores, codes = np.random.default_rng(0).normal(size=(9, 2)), np.zeros(9, int)

    def made() -> Any:
        return [RocAuc(), AveragePrecision(), Recall(), Precision(), F1()]

    found = measured(2, None, made, (scores, codes), None)
    assert math.isnan(found["roc_auc"]) and math.isnan(found["average_precision"])
    assert [found[name] for name in ("recall", "precision", "f1")] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "make", [*metrics_for(2), *(m() for m in REGRESSION)], ids=lambda m: m.name
)
def test_no_rows_at_all_are_nan(make: Any) -> None:
    from microtrain.train.metrics.base import MetricSet

    def work(comm: Any) -> float:
        one = MetricSet([make], target_mean=0.0)
        shape = (0, 1)
        one.update(np.zeros(shape), np.zeros(shape))
        return one.reduce(comm)[make.name]

    assert math.isnan(in_process.run(1, work)[0])


def test_scores_that_are_no_numbers_are_of_no_class() -> None:
    scores = np.array([[np.nan, 0.0], [0.0, 1.0], [0.0, 1.0]])

    def made() -> Any:
        return [
            Recall(),
            Recall("macro"),
            Accuracy(),
            RocAuc(),
            LogLoss(),
            CalibrationError(),
            Confusion(),
        ]

    found = measured(1, None, made, (scores, np.array([0, 1, 1])), None)
    assert (found["recall"], found["recall_macro"]) == (1.0, 0.5)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert all(math.isnan(found[name]) for name in ("roc_auc", "log_loss", "calibration_error"))
    np.testing.assert_array_equal(found["confusion matrix"], [[0, 0, 1], [0, 2, 0]])


def test_names() -> None:
    assert [m.name for m in (F1(), F1("macro"), F1(threshold=0.25), F1(positive="yes"))] == [
        "f1", "f1_macro", "f1_at_0.25", "f1_yes",
    ]  # fmt: skip
    assert F1.higher_is_better and RocAuc.higher_is_better and BalancedAccuracy.higher_is_better
    assert not (LogLoss.higher_is_better or Brier.higher_is_better)
    assert not CalibrationError.higher_is_better


def test_a_class_is_found_by_its_name() -> None:
    scores, codes = np.eye(3)[[0, 1, 1, 2]], np.array([0, 1, 2, 2])
    data = ArrayDataset(scores, codes, classes=["cat", "dog", "emu"])

    def work(comm: Any, positive: str) -> Any:
        loss = lambda p, t: p.mean()  # noqa: E731
        return evaluate(lambda x: x, loss, [Recall(positive=positive)], data, comm)

    assert in_process.run(2, lambda comm: work(comm, "emu"))[0]["recall_emu"] == 0.5
    with pytest.raises(ConfigError, match=r"no class is called emo; did you mean emu\?"):
        in_process.run(1, lambda comm: work(comm, "emo"))


@pytest.mark.parametrize(
    "metric, prediction, target, error, message",
    [
        (F1(), (4, 3), np.zeros(4, int), ConfigError, "one class by default.* there are 3"),
        (F1("macro", threshold=0.3), (4, 3), np.zeros(4, int), ConfigError, "for two classes"),
        (Accuracy(0.3), (4, 3), np.zeros(4, int), ConfigError, "for two classes"),
        (F1(), (4, 1), np.full((4, 1), 0.5), ConfigError, "class 0.5 .* 0 to 1"),
        (F1(), (4, 2), np.zeros((4, 2)), ConfigError, "one integer class a row"),
        (RocAuc(), (4, 1), np.zeros(4, int), ConfigError, "at least 2 classes"),
        (LogLoss(), (2, 3), np.array([0, 3]), DataError, "class 3 .* 0 to 2"),
        (TopK(2), (2, 1), np.zeros((2, 1)), ConfigError, "always 1 with 2 classes"),
        (RocAuc("no"), (4, 2), np.zeros(4, int), ConfigError, "no class is called no"),
    ],
)
def test_data_that_do_not_fit_are_named(
    metric: Any, prediction: Any, target: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        measured(1, None, lambda: [metric], (np.zeros(prediction), target), None)


def test_one_class_or_an_average() -> None:
    with pytest.raises(ConfigError, match="positive is one class, but average: macro"):
        F1("macro", positive="yes")


@pytest.mark.parametrize("kind", [LogLoss, Brier, CalibrationError, RocAuc, Accuracy, F1])
def test_a_row_of_weight_0_is_not_there_whatever_is_predicted(kind):
    rng = np.random.default_rng(0)
    scores, codes = rng.standard_normal((20, 2)), rng.integers(0, 2, 20)
    weight = rng.random(20) + 0.1
    scores[3], weight[3] = np.nan, 0.0
    metric, there = kind(), np.arange(20) != 3

    def value(rows):
        given = scores[rows], codes[rows], weight[rows]
        return (
            metric.value(metric.sums(*given))
            if metric.of_rows is None
            else (metric.of_rows(*given))
        )

    assert math.isfinite(value(there))
    assert value(np.arange(20)) == pytest.approx(value(there), rel=1e-14)
