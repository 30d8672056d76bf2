"""A sweep in use: the best member, one, or all of them, from Python and as commands."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_trained_model import IRIS, ROOT

import microtrain as mt
from microtrain.cli.main import main
from microtrain.errors import ConfigError, DataError
from microtrain.runs.directory import RunDirectory
from microtrain.runs.members import read_members
from microtrain.runs.record import Run

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


def columns(path: Path) -> dict[str, list[str]]:
    with open(path, newline="") as file:
        found = list(csv.DictReader(file))
    return {name: [row[name] for row in found] for name in found[0]}


def test_the_default_is_the_best_member(flowers, rows):
    best = Run.read(flowers).info.best_member
    default, named = mt.load(flowers), mt.load(flowers, member=best)
    assert f"member {best}, the best (val/loss" in default.chosen
    np.testing.assert_array_equal(default.predict_proba(rows), named.predict_proba(rows))
    other = mt.load(flowers, member=(best + 1) % 6)
    assert not np.array_equal(other.predict_proba(rows), named.predict_proba(rows))


def test_all_members_prepare_rows_themselves_and_give_their_mean_and_spread(flowers, rows):
    ensemble = mt.load(flowers, member="all")
    members = [mt.load(flowers, member=number) for number in range(6)]
    assert len({tuple(member.preprocessing.mean) for member in members}) == 3  # folds
    chances = np.stack([member.predict_proba(rows) for member in members])
    np.testing.assert_allclose(ensemble.predict_proba(rows), chances.mean(axis=0), rtol=1e-12)
    labels, spread = ensemble.predict(rows, spread=True)
    codes = chances.mean(axis=0).argmax(axis=1)
    np.testing.assert_array_equal(labels, np.array(members[0].classes)[codes])
    apart = chances.std(axis=0, ddof=1)[np.arange(len(codes)), codes]
    np.testing.assert_allclose(spread, apart, rtol=1e-9)


def test_a_source_is_read_once_whatever_the_number_of_members(line):
    read = []
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)

    def some(rows):
        read.extend(rows)
        return x[rows], x[rows]

    ensemble = mt.load(line, member="all")
    values, spread = ensemble.predict(mt.data.FunctionSource(some, 50), spread=True)
    assert sorted(read) == list(range(50))
    expected = np.stack([mt.load(line, member=number).predict(x) for number in (0, 1)])
    np.testing.assert_allclose(values, expected.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(spread, expected.std(axis=0, ddof=1), rtol=1e-4)
    assert values.dtype == spread.dtype == np.float32


def test_predict_writes_the_mean_and_the_spread(flowers, line, rows, tmp_path, capsys):
    out, arrays = tmp_path / "out.csv", tmp_path / "out.npz"
    command = ["predict", str(flowers), "--input", str(TABLE), "--member", "all", "--proba"]
    assert main([*command, "--output", str(out)]) == 0
    assert "150 rows predicted by the mean of 6 members" in capsys.readouterr().out
    assert main([*command, "--output", str(arrays)]) == 0
    ensemble = mt.load(flowers, member="all")
    labels, spread = ensemble.predict(rows, spread=True)
    found = columns(out)
    assert list(found)[:2] == ["species", "spread"]
    assert list(found)[2] == "probability_setosa"
    assert found["species"] == list(labels)
    np.testing.assert_array_equal(np.array(found["spread"], float), spread)
    with np.load(arrays) as stored:
        np.testing.assert_array_equal(stored["spread"], spread)
        np.testing.assert_array_equal(stored["probability"], ensemble.predict_proba(rows))
    (tmp_path / "x.csv").write_text("x1,x2\n1,2\n-1,0.5\n")
    command = ["predict", str(line), "--input", str(tmp_path / "x.csv"), "--member", "all"]
    assert main([*command, "--output", str(tmp_path / "y.csv")]) == 0
    (name,) = mt.load(line).target_names
    assert list(columns(tmp_path / "y.csv")) == [name, f"spread_{name}"]


def test_members_that_have_no_model_are_named(line, flowers):
    with pytest.raises(DataError, match=r"no model of member 2: it has diverged.*finished: 0, 1"):
        mt.load(line, member=2)
    with pytest.raises(DataError, match="no model of member 77: it is not there"):
        mt.load(flowers, member=77)
    with pytest.raises(ConfigError, match="is a sweep, and of each member the best"):
        mt.load(flowers, checkpoint="last")
    with pytest.raises(ConfigError, match="expected best or a number"):
        mt.load(flowers, member="worst")


@pytest.mark.parametrize("options", [["--member", "x"], ["--member", "all", "--checkpoint", "3"]])
def test_options_that_do_not_go_together(flowers, options, capsys):
    assert main(["evaluate", str(flowers), *options]) == 2
    assert "--" in capsys.readouterr().err


def test_a_run_has_no_members(tmp_path):
    with RunDirectory.create(tmp_path, "one", config_text="name: one\n") as directory:
        run = directory.path
    for member in (0, "all"):
        with pytest.raises(ConfigError, match="one run, and no sweep"):
            mt.load(run, member=member)


@pytest.mark.parametrize("number", range(6))
def test_a_member_is_evaluated_as_recorded(flowers, number, capsys):
    assert main(["evaluate", str(flowers), "--member", str(number)]) == 0
    out, err = capsys.readouterr()
    assert out.count("as recorded") == 2
    assert err == ""


def test_all_are_evaluated_on_the_rows_they_share(flowers, rows, capsys):
    assert main(["evaluate", str(flowers), "--member", "all", "--json"]) == 0
    out, err = capsys.readouterr()
    assert '"test":{"rows":30' in out
    assert '"val"' not in out
    assert "other validation rows" in err
    assert main(["evaluate", str(flowers), "--member", "all", "--data", str(TABLE)]) == 0
    labels = mt.load(flowers, member="all").predict(rows)
    right = np.mean(labels == np.array(columns(TABLE)["species"]))
    assert f"accuracy {right:.5f}" in capsys.readouterr().out
    assert main(["evaluate", str(flowers), "--member", "all", "--part", "val"]) == 2
    assert "no val data that all members share" in capsys.readouterr().err


@pytest.mark.parametrize("member", ["3", "all", "best-setting"])
def test_members_are_evaluated_the_same_on_two_ranks(flowers, mpirun, capsys, member):
    command = ["evaluate", str(flowers), "--member", member, "--json"]
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


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_the_ranking_of_all_members_does_not_round_to_one(loss, tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1)) * 100, rng.integers(0, 2, 60)
    learned, column = x[:, 0] > 0, (-1, 1) if loss == "bce" else (-1,)
    kind = float if loss == "bce" else int
    np.savez(tmp_path / "near.npz", x=x, y=learned.reshape(column).astype(kind))
    x += 3000
    np.savez(tmp_path / "far.npz", x=x, y=y.reshape(column).astype(kind))
    text = (
        f"data: {{type: npz, path: {tmp_path}/near.npz, split: {{train: 0.5, test: 0.5}}}}\n"
        f"model: {{type: mlp, hidden: []}}\nloss: {loss}\nmetrics: [roc_auc]\n"
        "optimizer: {type: sgd, lr: 0.02}\ntrain: {duration: 4 steps, batch_size: 30}\n"
        "sweep: {seeds: 3}\n"
    )
    sweep = train(tmp_path, "far", text)
    members = mt.load(sweep, member="all").members
    scores = [next(member.outputs(x)).astype(np.longdouble) for member in members]
    if loss == "cross_entropy":
        scores = [(each[:, 1] - each[:, 0])[:, None] for each in scores]
    assert min(each.min() for each in scores) > 40
    below = np.mean([1 / (1 + np.exp(each)) for each in scores], axis=0)
    above = np.mean([1 / (1 + np.exp(-each)) for each in scores], axis=0)
    odds, wanted = (np.log(above) - np.log(below))[:, 0], y == 1
    expected = np.mean(
        [1.0 if a > b else 0.5 * (a == b) for a in odds[wanted] for b in odds[~wanted]]
    )
    capsys.readouterr()
    command = ["--data", str(tmp_path / "far.npz"), "--member", "all"]
    assert main(["evaluate", str(sweep), *command]) == 0
    assert f"roc_auc {expected:.5f}" in capsys.readouterr().out


def test_export_writes_one_member(flowers, tmp_path):
    output = tmp_path / "m.npz"
    command = ["export", str(flowers), "--to", "npz", "--output", str(output), "--member", "3"]
    assert main(command) == 0
    with np.load(output) as stored:
        state = mt.load(flowers, member=3).module.state_dict()
        for name, value in state.items():
            np.testing.assert_array_equal(stored[name], value.numpy())


def test_members_of_the_best_setting(tmp_path, rows, capsys):
    text = FLOWERS.replace("folds: 3", "folds: 3, grid: {optimizer.lr: [0.0001, 0.05]}")
    sweep = train(tmp_path, "rates", text)
    capsys.readouterr()
    assert main(["compare", str(sweep), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["sweeps"]
    best, other = told["settings"]
    assert (best["optimizer.lr"], best["mark"]) == (0.05, "best")
    assert best["val/loss"]["mean"] < other["val/loss"]["mean"]
    results = read_members(Run.read(sweep).path)[0]
    numbers = [each.number for each in results if each.varied["optimizer.lr"] == 0.05]
    assert best["members"] == len(numbers) == 6
    ensemble = mt.load(sweep, member="best-setting")
    assert ensemble.numbers == numbers
    expected = np.mean([mt.load(sweep, member=n).predict_proba(rows) for n in numbers], axis=0)
    np.testing.assert_allclose(ensemble.predict_proba(rows), expected, rtol=1e-6)
    command = ["--member", "best-setting"]
    out = ["--input", str(TABLE), "--output", str(tmp_path / "out.csv")]
    assert main(["predict", str(sweep), *out, *command]) == 0
    shown = capsys.readouterr()
    assert "predicted by the mean of 6 members" in shown.out
    assert "good and bad" not in shown.err
    assert main(["evaluate", str(sweep), "--data", str(TABLE), *command]) == 0
    right = np.mean(ensemble.predict(rows) == np.array(columns(TABLE)["species"]))
    assert f"accuracy {right:.5f}" in capsys.readouterr().out


def test_what_many_members_would_have_warned_of_is_said_once(flowers, capsys):
    results = read_members(Run.read(flowers).path)[0]
    known = Counter(text for result in results for text in result.warnings)
    assert main(["compare", str(flowers)]) == 0
    shown = capsys.readouterr().out
    assert known  # after three epochs some class is never predicted
    for text, count in known.items():
        assert shown.count(f"{count} member{'s' * (count > 1)}: {text}") == 1
