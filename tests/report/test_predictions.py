"""Predictions beside the truth: taken from any model, counted by class, drawn with a line."""

import base64

import numpy as np
import pytest

import microtrain as mt
from microtrain.data import ArrayDataset, Table, prepare
from microtrain.report.predictions import (
    Given,
    column,
    counted,
    fit,
    parity,
    picture,
    predict_rows,
    worst,
)
from microtrain.runs.metrics import ClassCounts


def prepared(x, y, how=(), **about):
    keys = {"standardize": True, **dict.fromkeys(how, True)}
    return prepare(ArrayDataset(x, y, **about), split={"train": 0.5, "val": 0.5}, **keys)


def test_rows_are_those_of_the_validation_and_the_model_trains_on():
    x = np.random.default_rng(0).normal(5, 3, (40, 2))
    data = prepared(x, x[:, :1] * 2)
    model = mt.nn.Sequential(mt.nn.Linear(2, 1), mt.nn.Dropout(0.9))
    predictions = predict_rows(model, data)
    assert model.training
    assert predictions.rows == "The 20 validation rows"
    assert predictions.fit is None
    dots, _ = predictions.parity.curves
    np.testing.assert_array_equal(dots.points[0], data.val.arrays[-1][:, 0])
    again = predict_rows(model, data).parity.curves[0]
    np.testing.assert_array_equal(dots.points, again.points)
    tested = prepare(ArrayDataset(x, x[:, :1]), split={"train": 0.5, "val": 0.2, "test": 0.3})
    assert predict_rows(model, tested).rows == "The 12 test rows"


def test_rows_are_bounded():
    x = np.zeros((9000, 1))
    predictions = predict_rows(mt.nn.Linear(1, 1), prepared(x, x), named="last")
    words = "The first 2,000 of the 4,500 validation rows as predicted by the last"
    assert predictions.rows == words
    assert predictions.fit.curves[0].name == "data (1,000 of 2,000)"


@pytest.mark.parametrize(
    "y, outputs, names, kind",
    [
        (np.arange(20) % 3, 3, {"0", "1", "2"}, "mistakes"),
        (np.arange(20) % 3, 4, {"0", "1", "2", "3"}, "mistakes"),
        (np.arange(20.0)[:, None], 1, None, "parity"),
        (np.ones((20, 2)), 2, None, "parity"),
    ],
)
def test_kinds_of_predictions(y, outputs, names, kind):
    predictions = predict_rows(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y))
    assert getattr(predictions, kind) is not None
    if names:
        assert {name for row in predictions.mistakes.rows for name in row[:2]} <= names
    assert predictions.rows.endswith(", the first of 2 targets") is (y.shape[1:] == (2,))


@pytest.mark.parametrize("y, outputs", [(np.ones((20, 2)), 3), (np.ones((20, 2, 2)), 2)])
def test_what_cannot_be_shown_is_not_guessed(y, outputs):
    assert predict_rows(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y)) is None


@pytest.mark.parametrize("how", [[], ["standardize_target"]], ids=["as it is", "standardized"])
def test_feature_and_target_are_in_the_units_of_the_file_and_so_are_the_lines(how):
    x = np.random.default_rng(0).normal(5, 3, (40, 1))
    truth = {"weights": [2.0], "bias": -3.0}
    names = {"feature_names": ["age"], "target_name": "price"}
    data = prepared(x, 2 * x - 3, how, truth=truth, **names)
    model = mt.nn.Linear(1, 1)
    chart = predict_rows(model, data).fit
    assert (chart.title, chart.x, chart.y) == ("price against age", "age", "price")
    dots, predicted, true = chart.curves
    assert dots.dots and not predicted.dots
    np.testing.assert_allclose(2 * dots.points[0] - 3, dots.points[1], rtol=1e-4)
    assert (np.diff(predicted.points[0]) > 0).all()
    weight, bias = np.polyfit(*predicted.points, 1)
    name, equation = predicted.name.split(": y = ")
    assert name == "predicted"
    slope, sign, offset = equation.replace(" x ", " ").split()
    assert float(slope) == pytest.approx(weight, rel=1e-3)
    assert float(sign + offset) == pytest.approx(bias, rel=1e-3)
    assert true.name == "true: y = 2 x - 3"
    np.testing.assert_allclose(true.points[1], 2 * true.points[0] - 3)
    assert true.points[0].tolist() == [dots.points[0].min(), dots.points[0].max()]


@pytest.mark.parametrize("log", [[], ["log_target"]], ids=["linear", "log"])
def test_predictions_and_the_worst_rows_are_in_the_unit_of_the_target(log):
    x = np.random.default_rng(0).normal(5, 3, (40, 2))
    data = prepared(x, np.exp(x[:, :1]), ["standardize_target", "clip", *log])
    predictions = predict_rows(model := mt.nn.Linear(2, 1), data)
    scaling, part = data.target_scaling, data.val
    scores = model(mt.from_numpy(part.arrays[0])).detach().numpy()
    truth, guess = predictions.parity.curves[0].points
    np.testing.assert_allclose(truth, scaling.inverse(part.target)[:, 0])
    np.testing.assert_allclose(guess, scaling.predictions(scores)[:, 0])
    row = int(np.argmax(np.abs(guess - truth)))
    assert float(predictions.mistakes.rows[0][0]) == pytest.approx(truth[row], rel=1e-5)


def test_of_several_features_the_prediction_is_drawn_against_the_truth():
    y = np.arange(3000.0)
    chart = parity(y, y + 1, "price")
    assert chart.title == "predicted price against the truth"
    dots, equal = chart.curves
    assert dots.name == "rows (1,000 of 3,000)"
    np.testing.assert_array_equal(dots.points[0] + 1, dots.points[1])
    np.testing.assert_array_equal(equal.points, [[0, 2999], [0, 2999]])


def test_of_many_classes_those_are_shown_that_are_mistaken_most():
    matrix = 2 * np.eye(50, dtype=int)
    matrix[47, 48], matrix[47, 47] = 2, 0
    names = [f"c{i}" for i in range(50)]
    table = counted(ClassCounts("test", names, matrix.sum(axis=1).tolist(), matrix.tolist()))
    assert len(table.classes) == 20 and table.total == 50
    assert (table.right, table.wrong) == (98, 2)
    row, column = table.classes.index("c47"), table.classes.index("c48")
    assert table.counts[row, column] == table.counts[column, column] == 2


def test_two_classes_by_the_sign_of_a_score():
    class Scores(mt.nn.Linear):
        def forward(self, x):
            return x[:, :1]

    x = np.array([[-5.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    y = np.array([[0.0], [1.0], [1.0], [1.0]])
    data = prepare(ArrayDataset(x, y), split={"train": 1.0}, standardize=False)
    (mistake,) = predict_rows(Scores(2, 1), data, loss="bce").mistakes.rows
    assert mistake[:2] == ["1", "0"]
    assert predict_rows(Scores(2, 1), data, loss="mse").parity is not None
    numbers = prepare(ArrayDataset(x, y / 2), split={"train": 1.0}, standardize=False)
    assert predict_rows(Scores(2, 1), numbers, loss="bce").parity is not None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_counted_and_drawn_all_the_same(bad):
    class Breaks(mt.nn.Linear):
        def forward(self, x):
            return super().forward(x) * bad

    x = np.linspace(1, 2, 20)[:, None]
    predictions = predict_rows(Breaks(1, 2), prepared(x, np.arange(20) % 2))
    assert predictions.mistakes.rows
    y = np.linspace(0, 1, 4)
    for chart in (fit(y, y, np.full(4, bad)), parity(y, np.full(4, bad), "y")):
        assert not any("nan" in chart.path(curve) for curve in chart.curves)


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "values, texts",
    [
        ([3.8e-8, 2.0000001, 4.0], ["0", "2", "4"]),  # a standardization has rounded them
        ([5.0, 5.0, 5.0], ["5", "5", "5"]),
        ([-0.0, -3.0], ["0", "-3"]),
        ([0.25, 3.8e-9, 4.0], ["0.25", "0", "4"]),
        ([1e-5, 2e-5, 0.0], ["1e-05", "2e-05", "0"]),
        ([1e9, 2.5e9], ["1,000,000,000", "2,500,000,000"]),
        ([np.nan, 1.0], ["nan", "1"]),
        ([], []),
    ],
)
def test_whole_numbers_are_written_as_such(values, texts):
    found = column(np.array(values, np.float32))
    assert found == texts


def test_the_worst_rows_are_told_in_the_units_of_the_data():
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 5, 40), np.full(40, 7), rng.normal(100, 9, 40)], axis=1)
    names = ["rooms", "floors", "area"]
    data = prepared(x, x[:, 2:] * 1.0, feature_names=names)
    mistakes = predict_rows(mt.nn.Linear(3, 1), data).mistakes
    assert mistakes.head == ["truth", "predicted", "error", *names]
    assert len(mistakes.rows) == 12
    errors = [float(row[2]) for row in mistakes.rows]
    assert errors == sorted(errors, reverse=True)
    for truth, _, _, rooms, floors, area in mistakes.rows:
        assert rooms in "01234" and floors == "7"
        assert truth == area


def test_wrong_classes_stand_with_their_probability_the_surest_first():
    class Scores(mt.nn.Linear):
        def forward(self, x):
            return x

    scores = np.log([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])
    data = prepare(
        ArrayDataset(scores, np.array([1, 1, 0, 0]), classes=["a", "b"]), split={"train": 1.0}
    )
    mistakes = predict_rows(Scores(2, 2), data, loss="cross_entropy").mistakes
    assert [row[:3] for row in mistakes.rows] == [["b", "a", "90%"], ["a", "b", "80%"]]
    assert mistakes.head[:3] == ["truth", "predicted", "probability"]
    assert predict_rows(Scores(2, 2), data).mistakes.head[2] == "score"
    right = prepare(ArrayDataset(scores, np.array([0, 1, 1, 0])), split={"train": 1.0})
    assert predict_rows(Scores(2, 2), right).mistakes is None


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_mistakes_that_are_all_sure_stand_by_their_scores(loss):
    class Scores(mt.nn.Linear):
        def forward(self, x):
            return x

    x = np.array([[60.0], [90.0], [120.0], [-70.0], [100.0], [-80.0]], np.float32)
    y = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    if loss == "cross_entropy":
        x, y = np.hstack([0 * x, x]), y[:, 0].astype(int)
    data = prepare(ArrayDataset(x, y), split={"train": 1.0}, dtype=np.float32)
    rows = predict_rows(Scores(1, 1), data, loss=loss).mistakes.rows
    assert [row[2] for row in rows] == ["100%"] * 5
    assert [float(row[-1]) for row in rows] == [120, 90, -80, -70, 60]


def test_rows_of_pixels_are_drawn_as_they_were_before_standardization():
    pytest.importorskip("PIL")  # comes with matplotlib
    rng = np.random.default_rng(0)
    names = [f"pixel_{i}_{j}" for i in range(3) for j in range(4)]
    x, y = rng.integers(0, 17, (40, 12)).astype(float), np.zeros(40, np.int64)
    x[0, :2] = 0, 16
    x[:, 5] = 3  # a constant
    data = prepared(x, y, feature_names=names, classes=["0", "1"])
    model = mt.nn.Linear(12, 2)
    with mt.no_grad():
        model.weight[:] = 0
        model.bias[:] = mt.tensor([0.0, 1.0])
    mistakes = predict_rows(model, data).mistakes
    raw = data.val.arrays[0] * data.preprocessing.scale + data.preprocessing.mean
    low, high = raw.min(), raw.max()
    drawn = [pixels(uri) for uri in mistakes.pictures]
    assert len(drawn) == 12
    expected = np.rint((raw - low) / (high - low) * 255).reshape(-1, 3, 4)
    for each in drawn:
        assert min(np.abs(each - other).max() for other in expected) <= 1


@pytest.mark.parametrize(
    "shape, drawn",
    [
        ((5, 6), (5, 6)),
        ((1, 5, 6), (5, 6)),
        ((3, 5, 6), (5, 6, 3)),
        ((2, 5, 6), None),
        ((1, 6), None),
        ((5, 97), None),
    ],
)
def test_inputs_that_are_images_are_drawn(shape, drawn):
    pytest.importorskip("PIL")
    x = np.random.default_rng(0).random((2, *shape))
    found = worst(np.ones(2), {"truth": ["a", "b"]}, Given(x))
    assert [pixels(uri).shape for uri in found.pictures] == [drawn] * 2 * (drawn is not None)
    assert bool(found.head) is (drawn is None)


def test_what_is_not_finite_is_drawn_all_the_same():
    assert picture(np.array([[np.nan, np.inf], [0.0, 1.0]]), 0.0, 1.0).startswith("data:image/png")
    assert picture(np.ones((2, 2)), 1.0, 1.0).startswith("data:image/png;base64,")


def pixels(uri):
    from io import BytesIO

    from PIL import Image

    with Image.open(BytesIO(base64.b64decode(uri.partition("base64,")[2]))) as image:
        return np.asarray(image, float)


def test_rows_of_a_table_have_the_columns_that_it_had():
    n = 40
    plans, days = ["basic", "pro"] * (n // 2), [f"2024-02-{1 + i % 28:02}" for i in range(n)]
    frame = {
        "plan": plans,
        "size": ["s", "l"] * (n // 2),
        "since": days,
        "until": days,
        "born": days,
        "age": [None if i % 4 == 0 else 20.0 + i for i in range(n)],
        "left": ["no", "yes"] * (n // 2),
    }
    columns = {
        "plan": "category",
        "size": {"type": "category", "encode": "embedding"},
        "since": "date",
        "until": {"type": "date", "parts": ["month", "days", "day_of_week"], "missing": "mean"},
        "born": {"type": "date", "parts": ["year", "month"], "indicator": True, "missing": "mean"},
        "age": {"missing": "mean", "indicator": True},
    }
    table = Table(frame, target="left", columns=columns)
    data = prepare(table, split={"train": 0.5, "val": 0.5}, standardize=True)

    class No(mt.nn.Module):
        def forward(self, x, codes):
            return mt.tensor([[1.0, 0.0]] * len(x))

    mistakes = predict_rows(No(), data).mistakes
    own = ["plan", "size", "since", "until", "born", "age"]
    assert mistakes.head == ["truth", "predicted", "score", *own]
    assert mistakes.left_out == 0
    shown = zip(plans, frame["size"], days, frame["age"], strict=True)
    known = {(p, s, d, d, "year=2024 month=2", a and f"{a:.0f}") for p, s, d, a in shown}
    for truth, predicted, _, *row in mistakes.rows:
        assert (truth, predicted) == ("yes", "no")
        assert tuple(row) in {(*others, age or "") for *others, age in known}
