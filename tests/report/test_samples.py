"""Predictions beside the truth: taken from any model, counted by class, drawn with a line."""

import numpy as np
import pytest

import microtrain as mt
from microtrain.data import ArrayDataset, prepare
from microtrain.report.samples import Samples, confusion, scatter, take_samples, two_classes


def prepared(x, y, **about):
    return prepare(ArrayDataset(x, y, **about), split={"train": 0.5, "val": 0.5}, standardize=True)


def test_samples_are_those_of_the_validation_and_the_model_trains_on():
    x = np.random.default_rng(0).normal(5, 3, (40, 2))
    data = prepared(x, x[:, :1] * 2)
    model = mt.nn.Sequential(mt.nn.Linear(2, 1), mt.nn.Dropout(0.9))
    samples = take_samples(model, data)
    assert model.training
    assert (samples.part, samples.total, len(samples)) == ("val", 20, 20)
    assert samples.classes is samples.x is None
    np.testing.assert_array_equal(take_samples(model, data).prediction, samples.prediction)
    assert str(samples) == "The 20 validation rows"


def test_samples_are_bounded():
    x = np.zeros((9000, 1))
    samples = take_samples(mt.nn.Linear(1, 1), prepared(x, x), named="last")
    assert (len(samples), samples.total) == (2000, 4500)
    words = "The first 2,000 of the 4,500 validation rows as predicted by the last"
    assert str(samples) == words


@pytest.mark.parametrize(
    "y, outputs, names",
    [
        (np.arange(20) % 3, 3, ("0", "1", "2")),
        (np.arange(20) % 3, 4, ("0", "1", "2", "3")),
        (np.arange(20.0)[:, None], 1, None),
        (np.ones((20, 2)), 2, None),
    ],
)
def test_kinds_of_predictions(y, outputs, names):
    samples = take_samples(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y))
    assert samples.classes == names


@pytest.mark.parametrize("y, outputs", [(np.ones((20, 2)), 3), (np.ones((20, 2, 2)), 2)])
def test_what_cannot_be_shown_is_not_guessed(y, outputs):
    assert take_samples(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y)) is None


def test_the_only_feature_is_in_the_units_of_the_file_and_so_are_the_lines():
    x = np.random.default_rng(0).normal(5, 3, (40, 1))
    truth = {"weights": [2.0], "bias": -3.0}
    data = prepared(x, 2 * x - 3, truth=truth, feature_names=["age"], target_name="price")
    model = mt.nn.Linear(1, 1)
    samples = take_samples(model, data)
    np.testing.assert_allclose(2 * samples.x - 3, samples.truth[:, 0], rtol=1e-4)
    weight, bias = samples.learned
    np.testing.assert_allclose(weight * samples.x + bias, samples.prediction[:, 0], rtol=1e-4)
    chart = scatter(samples)
    assert (chart.title, chart.x, chart.y) == ("price against age", "age", "price")
    dots, predicted, true = chart.curves
    assert dots.dots and not predicted.dots
    assert (np.diff(predicted.points[0]) > 0).all()
    sign = "-" if bias < 0 else "+"
    assert predicted.name == f"predicted: y = {weight:.5g} x {sign} {abs(bias):.5g}"
    assert true.name == "true: y = 2 x - 3"
    np.testing.assert_allclose(true.points[1], 2 * true.points[0] - 3)
    assert true.points[0].tolist() == [samples.x.min(), samples.x.max()]


def test_of_several_features_the_prediction_is_drawn_against_the_truth():
    y = np.arange(3000.0)[:, None]
    chart = scatter(Samples("test", 3000, y, y + 1, target="price"))
    assert chart.title == "predicted price against the truth"
    dots, equal = chart.curves
    assert dots.name == "rows (1,000 of 3,000)"
    np.testing.assert_array_equal(dots.points[0] + 1, dots.points[1])
    np.testing.assert_array_equal(equal.points, [[0, 2999], [0, 2999]])


def samples_of(truth, scores, classes=tuple("abc")):
    return Samples("test", len(truth), np.asarray(truth), np.asarray(scores, float), classes)


def test_the_confusion_matrix_counts():
    table = confusion(samples_of([0, 0, 1, 2, -100], np.eye(3)[[0, 1, 1, 2, 0]]))
    assert table.classes == ["a", "b", "c"]
    assert table.counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert (table.right, table.wrong) == (3, 1)


def test_of_many_classes_those_are_shown_that_are_mistaken_most():
    classes = tuple(f"c{i}" for i in range(5000))
    truth = np.repeat(np.arange(5000), 2)
    guess = np.where(truth == 4007, 4008, truth)
    scores = np.zeros((len(truth), 5000), np.float32)
    scores[np.arange(len(truth)), guess] = 1
    table = confusion(samples_of(truth, scores, classes))
    assert len(table.classes) == 20 and table.total == 5000
    assert (table.right, table.wrong) == (9998, 2)
    row, column = table.classes.index("c4007"), table.classes.index("c4008")
    assert table.counts[row, column] == 2
    assert table.counts[column, column] == 2


def test_two_classes_by_the_sign_of_a_score():
    samples = two_classes(samples_of([[0.0], [1.0]], [[-5.0], [-1.0]], None))
    assert confusion(samples).counts.tolist() == [[1, 0], [1, 0]]
    numbers = samples_of([[0.5], [1.0]], [[-5.0], [-1.0]], None)
    assert two_classes(numbers) is numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_counted_and_drawn_all_the_same(bad):
    assert confusion(samples_of([0, 1], [[bad, 0, 0], [0, bad, bad]])).counts.sum() == 2
    x = np.linspace(0, 1, 4)
    for feature in (x, None):
        samples = Samples("val", 4, x[:, None], np.full((4, 1), bad), x=feature)
        chart = scatter(samples)
        assert "nan" not in chart.path(chart.curves[0])
