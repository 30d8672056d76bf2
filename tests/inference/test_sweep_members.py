"""A sweep in use: its best member, each as the run that it is, and the mean of several runs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_trained_model import IRIS, ROOT

import microtrain as mt
from microtrain.cli.main import main
from microtrain.errors import ConfigError, DataError
from microtrain.runs.run import Run

TABLE = ROOT / "configs/data/iris.csv"
COMMON = """\
optimizer: {type: adam, lr: 0.05}
train: {duration: 3 epochs, batch_size: 32, compile: numpy}
"""
FLOWERS = (
    f"data: {{type: csv, path: {TABLE}, target: species, "
    "standardize: true, split: {train: 0.8, test: 0.2}}\n"
    "model: {type: mlp, hidden: [4]}\nloss: cross_entropy\nmetrics: [accuracy]\n"
    + COMMON
    + "sweep: {seeds: 2, folds: 3}\n"
)
LINE = (
    "data: {type: synthetic_linear, samples: 60, weights: [2, -1], noise: 0.5, seed: 7, "
    "standardize: true, split: {train: 0.6, val: 0.4}}\nmodel: linear_regression\nloss: mse\n"
    "metrics: [r2]\n" + COMMON + "sweep: {seeds: 2, grid: {optimizer.lr: [0.1, 1.0e+30]}}\n"
)


def train(parent: Path, name: str, text: str) -> Path:
    (parent / f"{name}.yaml").write_text(text)
    assert main(["train", str(parent / f"{name}.yaml"), "--run-dir", str(parent / "runs")]) == 0
    return parent / "runs" / name


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return train(tmp_path_factory.mktemp("flowers"), "flowers", FLOWERS)


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    return train(tmp_path_factory.mktemp("line"), "line", LINE)


@pytest.fixture(scope="module")
def rows():
    with open(TABLE) as file:
        return columns_of(csv.DictReader(file))


def columns_of(reader):
    found = list(reader)
    return {name: [float(row[name]) for row in found] for name in IRIS}


def members(sweep: Path) -> list[str]:
    return [str(path) for path in Run.read(sweep).members]


def columns(path: Path) -> dict[str, list[str]]:
    with open(path, newline="") as file:
        found = list(csv.DictReader(file))
    return {name: [row[name] for row in found] for name in found[0]}


def test_a_sweep_stands_for_its_best_member(flowers):
    best = Run.read(flowers).info.best_member
    default, named = mt.load(flowers), mt.load(f"{flowers}/latest/members/{best}")
    assert default.path == named.path.resolve()
    losses = [Run.read(path).info.best.value for path in members(flowers)]
    assert Run.read(members(flowers)[losses.index(min(losses))]).path.name == best
    assert mt.load(flowers, checkpoint="last").path.parts[-3] == best


def test_runs_prepare_rows_themselves_and_give_their_mean_and_spread(flowers, rows):
    ensemble = mt.load(members(flowers))
    models = [mt.load(path) for path in members(flowers)]
    assert len({tuple(model.preprocessing.mean) for model in models}) == 3  # folds
    chances = np.stack([model.predict_proba(rows) for model in models])
    np.testing.assert_allclose(ensemble.predict_proba(rows), chances.mean(axis=0), rtol=1e-12)
    labels, spread = ensemble.predict(rows, spread=True)
    codes = chances.mean(axis=0).argmax(axis=1)
    np.testing.assert_array_equal(labels, np.array(models[0].classes)[codes])
    apart = chances.std(axis=0, ddof=1)[np.arange(len(codes)), codes]
    np.testing.assert_allclose(spread, apart, rtol=1e-9)


def test_a_source_is_read_once_whatever_the_number_of_members(line):
    read = []
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)

    def some(rows):
        read.extend(rows)
        return x[rows], x[rows]

    ensemble = mt.load(members(line)[:2])
    values, spread = ensemble.predict(mt.data.FunctionSource(some, 50), spread=True)
    assert sorted(read) == list(range(50))
    expected = np.stack([mt.load(path).predict(x) for path in members(line)[:2]])
    np.testing.assert_allclose(values, expected.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(spread, expected.std(axis=0, ddof=1), rtol=1e-4)
    assert values.dtype == spread.dtype == np.float32


def test_predict_writes_the_mean_and_the_spread(flowers, line, rows, tmp_path, capsys):
    out, arrays = tmp_path / "out.csv", tmp_path / "out.npz"
    command = ["predict", *members(flowers), "--input", str(TABLE), "--proba"]
    assert main([*command, "--output", str(out)]) == 0
    assert "150 rows predicted by the mean of 6 runs" in capsys.readouterr().out
    assert main([*command, "--output", str(arrays)]) == 0
    ensemble = mt.load(members(flowers))
    labels, spread = ensemble.predict(rows, spread=True)
    found = columns(out)
    assert list(found)[:2] == ["species", "spread"]
    assert list(found)[2] == "probability_setosa"
    assert found["species"] == list(labels)
    np.testing.assert_allclose(np.array(found["spread"], float), spread, rtol=5.1e-6)
    with np.load(arrays) as stored:
        np.testing.assert_array_equal(stored["spread"], spread)
        np.testing.assert_array_equal(stored["probability"], ensemble.predict_proba(rows))
    (tmp_path / "x.csv").write_text("x1,x2\n1,2\n-1,0.5\n")
    command = ["predict", *members(line)[:2], "--input", str(tmp_path / "x.csv")]
    assert main([*command, "--output", str(tmp_path / "y.csv")]) == 0
    (name,) = mt.load(line).target_names
    assert list(columns(tmp_path / "y.csv")) == [name, f"spread_{name}"]


def test_one_run_or_runs_of_different_targets_have_no_mean(line, flowers):
    with pytest.raises(ConfigError, match="two runs or more, got 1"):
        mt.load(members(flowers)[:1])
    with pytest.raises(ConfigError, match="predicts something different"):
        mt.load([flowers, line])
    with pytest.raises(TypeError, match="one model or file"):
        mt.load(members(flowers), model=mt.nn.Linear(1, 1))


def test_a_sweep_without_a_best_member_says_why(tmp_path):
    text = LINE.replace("[0.1, 1.0e+30]", "[1.0e+30]")
    with pytest.raises(DataError, match="has no best member: no member has finished"):
        mt.load(train(tmp_path, "gone", text))


@pytest.mark.parametrize("edit", [("best_member", "1"), ("id", "0" * 32)])
def test_a_best_member_that_is_not_the_one_that_was_chosen_is_refused(tmp_path, edit):
    sweep = train(tmp_path, "line", LINE.replace("[0.1, 1.0e+30]", "[0.1, 0.2]"))
    file = Run.read(sweep).path / "run.json"
    info = json.loads(file.read_text())
    key, value = edit
    file.write_text(json.dumps(info | {key: "0" if info[key] == value else value}))
    with pytest.raises(DataError, match=r"is not what .*run.json says of the best member"):
        mt.load(sweep)


def test_rows_that_were_scaled_by_a_power_of_two_are_prepared_by_each_run(tmp_path):
    """What is trained on has the same bits, and raw rows are standardized otherwise."""
    x = np.random.default_rng(0).normal(size=(40, 1))
    for name, factor in (("small", 1.0), ("large", 1024.0)):
        np.savez(tmp_path / f"{name}.npz", x=x * factor, y=x)
        text = (
            f"data: {{type: npz, path: {tmp_path}/{name}.npz, standardize: true}}\n"
            "model: linear_regression\nloss: mse\n"
        )
        train(tmp_path, name, text + COMMON)
    small, large = (mt.load(tmp_path / "runs" / name) for name in ("small", "large"))
    mean = mt.load([tmp_path / "runs/small", tmp_path / "runs/large"]).predict(x)
    np.testing.assert_allclose(mean, (small.predict(x) + large.predict(x)) / 2, rtol=1e-6)


@pytest.mark.parametrize("number", range(6))
def test_a_member_is_evaluated_as_recorded(flowers, number, capsys):
    assert main(["evaluate", members(flowers)[number]]) == 0
    out, err = capsys.readouterr()
    assert out.count("as recorded") == 2
    assert err == ""


@pytest.mark.slow
def test_a_member_is_evaluated_the_same_on_two_ranks(flowers, mpirun, capsys):
    command = ["evaluate", members(flowers)[3], "--json"]
    assert main(command) == 0
    one = json.loads(capsys.readouterr().out)
    job = mpirun(2, "-m", "microtrain", *command)
    assert job.returncode == 0, job.stderr
    two = json.loads(job.stdout)
    for name, expected in one["parts"].items():
        found, loss = two["parts"][name], expected["values"].pop("loss")
        assert found["values"].pop("loss") == pytest.approx(loss, rel=1e-6)
        found["differs"] = expected["differs"]  # in its last digits, from what was recorded
    assert two == one


def test_export_writes_a_member(flowers, tmp_path):
    output, place = tmp_path / "m.npz", members(flowers)[3]
    assert main(["export", place, "--to", "npz", "--output", str(output)]) == 0
    with np.load(output) as stored:
        state = mt.load(place).module.state_dict()
        for name, value in state.items():
            np.testing.assert_array_equal(stored[name], value.numpy())


def test_a_warning_of_many_members_is_said_once_and_each_has_its_own(tmp_path, capsys):
    sweep = train(tmp_path, "flowers", FLOWERS)
    err = capsys.readouterr().err
    logs = [(Path(place) / "log.txt").read_text() for place in members(sweep)]
    known = {line for log in logs for line in log.splitlines() if line.startswith("warning: never")}
    assert known  # after three epochs some class is never predicted
    kinds = {re.sub(r"\d[\d.,]*", "0", line) for line in known}
    assert len([line for line in err.splitlines() if "never predicted" in line]) == len(kinds)
