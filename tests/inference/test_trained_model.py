"""mt.load: a run as something to use, from raw values to predictions in the user's units."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DataError
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from microtrain.runs.metrics import read_metrics
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
IRIS = ("sepal_length", "sepal_width", "petal_length", "petal_width")


def train(config: str | Path, parent: Path, *overrides: str) -> tuple[Trainer, Path]:
    settings = load_config(CONFIGS / config, [f"run_dir={parent}", *overrides])
    with open(os.devnull, "w") as nowhere:
        trainer = Trainer.from_config(
            settings, SingleCommunicator(), Output(stream=nowhere, errors=nowhere)
        )
        trainer.train()
    return trainer, parent / settings.name


@pytest.fixture(scope="module")
def iris(tmp_path_factory):
    parent = tmp_path_factory.mktemp("iris")
    return train("csv.yaml", parent, "train.duration=6 epochs", "train.compile=off")


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    parent = tmp_path_factory.mktemp("line")
    overrides = ("train.duration=2 epochs", "data.standardize=true", "train.compile=off")
    return train("linreg.yaml", parent, *overrides)


def raw(trainer: Trainer) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a run's training part as its file has them, and what its own model says of it."""
    x = trainer.data.train.arrays[0].astype(np.float64)
    with mt.no_grad():
        scores = trainer.model.module(mt.from_numpy(trainer.data.train.arrays[0])).numpy()
    p = trainer.data.preprocessing
    return x * p.scale + p.mean, scores


def test_predictions_are_those_of_the_model_behind_its_standardization(iris, line):
    trainer, run = iris
    x, scores = raw(trainer)
    model = mt.load(run, checkpoint="last")
    np.testing.assert_array_equal(model.predict(x), model.labels[scores.argmax(axis=1)])
    assert model.classes == ("setosa", "versicolor", "virginica")
    assert (model.feature_names, model.target_names) == (IRIS, ("species",))
    chances = model.predict_proba(x)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_allclose(
        np.log(chances[:, 1] / chances[:, 0]), scores[:, 1] - scores[:, 0], rtol=1e-4, atol=1e-5
    )

    trainer, run = line
    x, scores = raw(trainer)
    model = mt.load(run, checkpoint="last")
    np.testing.assert_allclose(model.predict(x), scores[:, 0], rtol=1e-6)
    assert not model.preprocessing.is_identity
    assert abs(model.predict([[1.0]])[0] - 5) < 0.3  # 2x + 3, in the user's units


@pytest.fixture(scope="module", params=["false", "true"], ids=["linear", "log"])
def cars(request, tmp_path_factory):
    """A table of prices, in thousands of a unit, and a run on it."""
    path, rng = tmp_path_factory.mktemp("cars"), np.random.default_rng(0)
    make, age, km = rng.integers(0, 4, 600), rng.integers(0, 15, 600), rng.gamma(3, 3e4, 600)
    price = (3e4 * np.exp(0.2 * make - 0.08 * age - km / 4e5)).round()
    rows = zip("".join("abcd"[code] for code in make), age, km.round(), price, strict=True)
    text = "make,age,km,price\n" + "".join(f"{m},{a},{k:.0f},{p:.0f}\n" for m, a, k, p in rows)
    (path / "cars.csv").write_text(text)
    (path / "cars.yaml").write_text(
        f"name: cars\ndata: {{type: csv, path: {path}/cars.csv, target: price, standardize: true,\n"
        "  columns: {make: category}, split: {train: 0.7, val: 0.15, test: 0.15},\n"
        f"  standardize_target: true, clip: true, log_target: {request.param}}}\n"
        "model: linear_regression\nloss: mse\nmetrics: [r2, rmse, mae]\n"
        "optimizer: {type: adam, lr: 0.01}\ntrain: {duration: 30 epochs, batch_size: 64}\n"
    )
    return *train(path / "cars.yaml", path, "train.compile=off"), path / "cars.csv", price


def test_a_price_is_learned_and_measured_and_predicted_in_its_own_unit(cars, capsys):
    trainer, run, file, price = cars
    model, scaling = mt.load(run, checkpoint="last"), trainer.data.target_scaling
    (measured,) = (
        row for row in read_metrics(trainer.path / "metrics.jsonl") if row["split"] == "test"
    )
    assert measured["r2"] > 0.8
    (low,), (high,) = scaling.ends
    for name in ("train", "test"):
        part = getattr(trainer.data, name)
        with mt.no_grad():
            scores = trainer.model.module(mt.from_numpy(part.arrays[0])).numpy().astype(float)
        own = scores * scaling.affine.scale + scaling.affine.mean
        own = np.clip(np.expm1(own) if scaling.log else own, low, high)
        np.testing.assert_allclose(
            model.decide(model.scores([part.arrays[0]], 0)), own[:, 0], rtol=1e-6
        )
    text = file.read_text()
    predictions = _predicted(run, text, file.parent)
    assert predictions.min() >= low - 1e-2 and predictions.max() <= high + 1e-2
    error = predictions - price
    assert main(["evaluate", str(run), "--data", str(file), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out.splitlines()[-1])["parts"].values()
    expected = {
        "r2": 1 - np.square(error).sum() / np.square(price - price.mean()).sum(),
        "rmse": np.sqrt(np.square(error).mean()),
        "mae": np.abs(error).mean(),
    }
    for key, value in expected.items():
        assert found["values"][key] == pytest.approx(value, rel=1e-5)
    # A new car of no age and no road is dearer than any that was seen.
    new = _predicted(run, "make,age,km\nd,-90,0\na,900,9e6\n", file.parent)
    np.testing.assert_allclose(new, [high, low], rtol=1e-6)


def _predicted(run: Path, text: str, place: Path) -> np.ndarray:
    (place / "new.csv").write_text(text)
    files = ["--input", str(place / "new.csv"), "--output", str(place / "out.npz"), "--force"]
    assert main(["predict", str(run), *files]) == 0
    return np.load(place / "out.npz")["prediction"].astype(float)


def test_columns_are_found_by_name_in_any_order(iris):
    model = mt.load(iris[1], checkpoint="last")
    x, _ = raw(iris[0])
    expected = model.predict(x)
    shuffled = {name: x[:, IRIS.index(name)] for name in reversed(IRIS)}
    np.testing.assert_array_equal(model.predict(shuffled), expected)
    np.testing.assert_array_equal(model.predict({**shuffled, "species": [None] * len(x)}), expected)
    structured = np.zeros(len(x), [(name, "f8") for name in reversed(IRIS)])
    for name, values in shuffled.items():
        structured[name] = values
    np.testing.assert_array_equal(model.predict(structured), expected)
    pyarrow = pytest.importorskip("pyarrow")
    np.testing.assert_array_equal(model.predict(pyarrow.table(shuffled)), expected)
    with pytest.warns(UserWarning, match="columns that the model does not use: color"):
        model.predict({**shuffled, "color": x[:, 0]})


REFUSED = {
    "a column missing": ({n: [1.0] for n in IRIS[1:]}, 'has no column "sepal_length"'),
    "two missing, one misspelled": (
        {"sepal_lenght": [1.0], "petal_length": [1.0], "petal_width": [1.0]},
        r'lacks 2 columns\n  "sepal_length"; did you mean sepal_lenght\?\n  "sepal_width"',
    ),
    "a text": ({**{n: [1.0] for n in IRIS[1:]}, IRIS[0]: ["x"]}, 'found the text "x"'),
    "no value": ({**{n: [1.0] for n in IRIS[1:]}, IRIS[0]: [None]}, 'row 0, column "sepal_length"'),
    "other lengths": ({**{n: [1.0] for n in IRIS[1:]}, IRIS[0]: [1, 2]}, "numbers of rows"),
    "one row": (np.zeros(4), r"expected \(rows, 4\); one row is written x\[None\]"),
    "other columns": (np.zeros((3, 5)), r"shape \(3, 5\), expected \(rows, 4\)"),
    "nan": (np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]]), 'row 1, column "sepal_width" is nan'),
    "infinite": (np.full((1, 4), np.inf), "expected a finite number"),
    "too large for float32": (np.full((1, 4), 1e300), "do not fit float32"),
    "texts": (np.full((1, 4), "a"), "expected numbers"),
    "masked": (np.ma.array(np.ones((1, 4)), mask=[[0, 1, 0, 0]]), "the input is a masked array"),
    "masked rows": ([np.ma.array([1.0] * 4, mask=[0, 1, 0, 0])], r"masked array, .*\.filled"),
    "ragged": ([[1, 2], [3]], "not an array of numbers"),
    "scores that overflow": ([[1e38, -1e38, 1e38, -1e38]], "prediction for row 0 is not a finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_predicted_from_is_refused(iris, case):
    model = mt.load(iris[1], checkpoint="last")
    with pytest.raises(DataError, match=REFUSED[case][1]):
        model.predict(REFUSED[case][0])


def test_no_rows_give_no_predictions(iris):
    model = mt.load(iris[1], checkpoint="last")
    assert model.predict(np.zeros((0, 4))).shape == (0,)
    assert model.predict_proba(np.zeros((0, 4))).shape == (0, 3)


def test_many_rows_are_predicted_as_few_are(line):
    model = mt.load(line[1], checkpoint="last")
    x = np.linspace(0, 1, 10_001)[:, None]
    assert model.predict(x)[-1] == model.predict(x[-1:])[0]


def test_classes_that_are_whole_numbers_are_given_as_such(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    np.savez(tmp_path / "codes.npz", x=x, y=(x[:, 0] > 0).astype(int))
    (tmp_path / "codes.yaml").write_text(
        "data: {type: npz, path: codes.npz}\nmodel: logistic_regression\nloss: cross_entropy\n"
        "optimizer: {type: adam, lr: 0.1}\ntrain: {duration: 30 epochs, batch_size: 10}\n"
    )
    _, run = train(tmp_path / "codes.yaml", tmp_path)
    predicted = mt.load(run).predict(x)
    assert predicted.dtype == np.int64
    assert (predicted == (x[:, 0] > 0)).mean() > 0.9


def test_classes_with_signs_and_zeros_are_names(tmp_path):
    rows = "".join(f"{i},{('--3', '5', '007')[i % 3]}\n" for i in range(9))
    (tmp_path / "names.csv").write_text(f"x,kind\n{rows}")
    (tmp_path / "names.yaml").write_text(
        "data: {type: csv, path: names.csv, target: kind, categorical: true}\n"
        "model: logistic_regression\nloss: cross_entropy\noptimizer: {type: sgd, lr: 0.1}\n"
        "train: {duration: 1 epoch, batch_size: 9}\n"
    )
    _, run = train(tmp_path / "names.yaml", tmp_path)
    model = mt.load(run)
    assert model.classes == ("--3", "007", "5")
    assert model.predict([[1.0]])[0] in model.classes


def test_bce_gives_probabilities_and_regression_has_none(tmp_path, line):
    x = np.linspace(-1, 1, 50)
    np.savez(tmp_path / "side.npz", x=x, y=(x > 0).astype(float))
    (tmp_path / "side.yaml").write_text(
        "data: {type: npz, path: side.npz}\nmodel: linear_regression\nloss: bce\n"
        "optimizer: {type: adam, lr: 0.1}\ntrain: {duration: 40 epochs, batch_size: 10}\n"
    )
    _, run = train(tmp_path / "side.yaml", tmp_path)
    model = mt.load(run)
    low, high = model.predict([[-1.0], [1.0]])
    assert 0 < low < 0.2 and 0.8 < high < 1
    np.testing.assert_array_equal(model.predict_proba([[-1.0], [1.0]]), [low, high])
    with pytest.raises(ConfigError, match=r"is a regression .its loss is mse"):
        mt.load(line[1], checkpoint="last").predict_proba([[1.0]])


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_a_threshold_chooses_between_two_classes(loss, tmp_path):
    x = np.linspace(-1, 1, 50)
    y = (x > 0.3).astype(float if loss == "bce" else int)
    np.savez(tmp_path / "side.npz", x=x, y=y)
    model = "linear_regression" if loss == "bce" else "logistic_regression"
    (tmp_path / "side.yaml").write_text(
        f"data: {{type: npz, path: side.npz}}\nmodel: {model}\nloss: {loss}\n"
        "metrics: [{type: recall, threshold: 0.2}]\n"
        "optimizer: {type: adam, lr: 0.1}\ntrain: {duration: 9 epochs, batch_size: 10}\n"
    )
    trainer, run = train(tmp_path / "side.yaml", tmp_path)
    model, rows = mt.load(run, checkpoint="last"), x[:, None]
    chances = model.predict_proba(rows)
    yes = chances if loss == "bce" else chances[:, 1]
    for threshold in (0, 0.2, 0.5, float(yes[20]), 1):
        found = model.predict(rows, threshold=threshold)
        np.testing.assert_array_equal(found, (yes >= threshold).astype(int))
        assert found.dtype == np.int64
    last = [row for row in read_metrics(trainer.path / "metrics.jsonl") if "recall_at_0.2" in row]
    expected = model.predict(rows, threshold=0.2)[y == 1].mean()
    assert last[-1]["recall_at_0.2"] == pytest.approx(expected)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="a probability from 0 to 1"):
            model.predict(rows, threshold=wrong)


def test_a_threshold_needs_two_classes(iris, line):
    with pytest.raises(ConfigError, match=r"two classes, but the model of \w+ has 3 classes"):
        mt.load(iris[1]).predict(np.zeros((1, 4)), threshold=0.3)
    with pytest.raises(ConfigError, match="is a regression"):
        mt.load(line[1], checkpoint="last").predict([[1.0]], threshold=0.3)


def test_called_with_tensors_it_is_the_module(line):
    model = mt.load(line[1], checkpoint="last")
    x = mt.ones(3, 1)
    np.testing.assert_array_equal(model(x).detach().numpy(), model.module(x).detach().numpy())
    assert isinstance(model.module, mt.nn.Module) and not model.module.training


def test_loading_leaves_the_random_numbers_of_the_program_alone(iris):
    mt.manual_seed(5)
    first = mt.rand(3).numpy()
    mt.manual_seed(5)
    mt.load(iris[1], checkpoint="last")
    np.testing.assert_array_equal(mt.rand(3).numpy(), first)


def test_values_are_given_to_modules_alone(line):
    with pytest.raises(TypeError, match="model: expected a Module to take the values, got dict"):
        mt.load(line[1], model={})


# Which checkpoint ---------------------------------------------------------------------------------


@pytest.fixture
def three(line, tmp_path):
    """A run with checkpoints of steps 100, 200 and 250 whose bias is the step; 200 is the best."""
    run = tmp_path / "run"
    shutil.copytree(next(p for p in line[1].iterdir() if p.name != "latest"), run)
    found = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    shutil.rmtree(run / "checkpoints")
    for step in (100, 200, 250):
        save_checkpoint(
            run / "checkpoints", step, model={**found.model, "bias": np.float32([step])},
            optimizer={}, state=found.state, config_text=found.config_text,
        )  # fmt: skip
    info = json.loads((run / "run.json").read_text())
    info["best"] = {"name": "val/loss", "value": 0.25, "step": 200}
    (run / "run.json").write_text(json.dumps(info))
    return run


@pytest.mark.parametrize(
    ("which", "step", "words"),
    [
        ("best", 200, r"step 200, the best \(val/loss 0.25000\)"),
        ("last", 250, "step 250, the last"),
        (100, 100, "step 100"),
        ("100", 100, "step 100"),
    ],
)
def test_the_checkpoint_that_is_asked_for(three, which, step, words):
    model = mt.load(three, checkpoint=which)
    assert model.step == model.module.bias.item() == step
    assert words.replace("\\", "") in model.chosen


def test_the_best_of_a_killed_run_is_that_of_its_newest_checkpoint(three):
    best = {"name": "val/loss", "value": 0.125, "step": 100}
    found = load_checkpoint(three / "checkpoints/step-000250")
    save_checkpoint(
        three / "checkpoints", 250, model=found.model, optimizer={},
        state={**found.state, "best": best}, config_text=found.config_text,
    )  # fmt: skip
    info = json.loads((three / "run.json").read_text())
    # It was stopped after step 200, went on, and was killed.
    (three / "run.json").write_text(json.dumps({**info, "status": "running"}))
    model = mt.load(three)
    assert model.step == model.module.bias.item() == 100
    assert "step 100, the best (val/loss 0.12500)" in model.chosen


def test_without_the_best_the_last_is_taken_and_that_is_said(three):
    shutil.rmtree(three / "checkpoints/step-000200")
    with pytest.warns(UserWarning, match="the best, of step 200 .* was not kept; this is .* 250"):
        assert mt.load(three).step == 250


def test_a_damaged_checkpoint_is_named_and_passed_over(three):
    for step in (200, 250):
        file = three / f"checkpoints/step-000{step}/model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert mt.load(three).step == 100
    text = "\n".join(str(each.message) for each in told)
    assert "step-000250: model.safetensors has" in text
    assert "the best, of step 200, cannot be used (damaged checkpoint" in text
    with pytest.raises(DataError, match="damaged checkpoint"):
        mt.load(three, checkpoint=250)


def test_one_checkpoint_directory_is_enough(three, tmp_path):
    alone = tmp_path / "elsewhere"
    shutil.copytree(three / "checkpoints/step-000100", alone)
    assert mt.load(alone).step == mt.load(three / "checkpoints/step-000100").step == 100
    with pytest.raises(ConfigError, match="is one checkpoint"):
        mt.load(alone, checkpoint="last")


@pytest.mark.parametrize(
    ("which", "error", "words"),
    [
        (7, DataError, "no checkpoint of step 7; there are 100, 200, 250"),
        ("newest", ConfigError, "expected best, last or a step, got 'newest'"),
        ("-3", ConfigError, "expected best, last or a step"),
        ("²", ConfigError, "expected best, last or a step"),
    ],
)
def test_checkpoints_that_there_are_not(three, which, error, words):
    with pytest.raises(error, match=words):
        mt.load(three, checkpoint=which)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []},
        {"inputs": None},
        {"inputs": [{"shape": [2], "dtype": "float32"}]},
        {"inputs": [{"shape": ["a"], "dtype": "float32"}]},
        {"inputs": [{"shape": [1], "dtype": "object"}]},
        {"preprocessing": {"mean": [None], "scale": [1.0]}},
        {"preprocessing": {"mean": [0.0], "scale": [0.0]}},
        {"preprocessing": {"mean": [[0.0], []], "scale": [1.0]}},
        {"preprocessing": 3},
        {"feature_names": ["a", "b"]},
        {"feature_names": [1]},
        {"target_name": 5},
        {"out_features": -1},
        {"classes": ["a", "b"]},
        {"classes": [], "out_features": 0},
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_is_a_damaged_checkpoint(three, change):
    found = load_checkpoint(three / "checkpoints/step-000250")
    state = {**found.state, **change}
    save_checkpoint(
        three / "checkpoints", 300, model=found.model, optimizer={}, state=state,
        config_text=found.config_text,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"damaged checkpoint .*step-000300"):
        mt.load(three, checkpoint="last")
    del state[next(iter(change))]
    save_checkpoint(
        three / "checkpoints", 300, model=found.model, optimizer={}, state=state,
        config_text=found.config_text,
    )  # fmt: skip
    with pytest.raises(DataError, match="its state has no"):
        mt.load(three, checkpoint="last")


def test_code_of_a_run_needs_trust(tmp_path):
    _, run = train("custom_model.yaml", tmp_path, "train.duration=2 steps")
    with pytest.raises(ConfigError, match="--trust"):
        mt.load(run)
    assert mt.load(run, trust=True).predict(np.zeros((2, 8))).shape == (2,)
