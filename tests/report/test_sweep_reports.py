"""Commands that list and draw runs, on the directory of a sweep."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from microtrain.cli.main import main
from microtrain.report.sweep_curves import sweep_curves
from microtrain.report.sweeps import Sweep, together

SWEEP = """\
data: {type: sklearn, name: iris, split: {train: 0.8, test: 0.2}}
model: {type: mlp, hidden: [3]}
loss: cross_entropy
optimizer: {type: adam}
train: {duration: 3 epochs, batch_size: 32, compile: numpy}
sweep: {seeds: 2, folds: 2, grid: {optimizer.lr: [0.1, 0.001]}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    parent = tmp_path_factory.mktemp("sweeps")
    (parent / "s.yaml").write_text(SWEEP)
    assert main(["train", str(parent / "s.yaml"), "--run-dir", str(parent / "runs")]) == 0
    return parent


def said(capsys, *words, code=0):
    assert main([*map(str, words)]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_list_has_the_members_and_the_values_of_the_best(place, capsys):
    rows = list(csv.DictReader(said(capsys, "list", place / "runs", "--csv", "-").splitlines()))
    sweep = Sweep.read(place / "runs/s")
    assert rows[0]["status"] == "finished"
    assert rows[0]["members"] == "8"
    assert int(rows[0]["best member"]) == sweep.best.number
    assert float(rows[0]["val/loss"]) == sweep.best.best["value"]
    assert float(rows[0]["test/loss"]) == sweep.best.values["test/loss"]


def test_compare_prints_the_table_of_a_sweep_again_and_its_members(place, capsys):
    sweep = Sweep.read(place / "runs/s")
    assert said(capsys, "compare", place / "runs/s").startswith("\n".join(sweep.lines(80)[:3]))
    written = said(capsys, "compare", place / "runs/s", "--csv", "-")
    stored = (sorted((place / "runs/s").glob("2*"))[-1] / "results.csv").read_text()
    assert written == stored


def test_sweeps_with_other_settings_have_one_table(place):
    sweep = Sweep.read(place / "runs/s")
    other = [column for column in sweep.settings() if column.name != "lr"]
    found = {c.name: c.values for c in together({"a": sweep.settings(), "b": other})}
    assert found["sweep"] == ["a", "a", "b", "b"]
    assert found["lr"] == [0.1, 0.001, None, None]


def test_curves_are_the_mean_of_the_members_with_their_deviation(place, capsys):
    sweep = Sweep.read(place / "runs/s")
    (chart,) = sweep_curves(sweep)
    best, other = chart.curves
    assert [best.run, other.run] == ["lr=0.1 (4)", "lr=0.001 (4)"]
    members = [r for r in sweep.results if r.varied["optimizer.lr"] == 0.1]
    values = np.array([r.curve["val/loss"] for r in members], float)
    values = values[:, np.isfinite(values).all(axis=0)]  # training has rows between
    np.testing.assert_allclose(best.points[1], values.mean(axis=0))
    np.testing.assert_allclose(best.band[1] - best.points[1], values.std(axis=0, ddof=1))
    picture = place / "curves.svg"
    assert str(picture) in said(capsys, "plot", place / "runs/s", "--output", picture)
    assert picture.read_bytes().startswith(b"<?xml")
    assert 'no member has "val/los"; did you mean' in said(
        capsys, "plot", place / "runs/s", "--metric", "val/los", code=2
    )


def test_check_counts_members_and_resume_has_nothing_to_do(place, capsys):
    assert "8 members: 2 settings x 2 folds x 2 seeds" in said(capsys, "check", place / "s.yaml")
    assert "nothing is left to do" in said(capsys, "resume", place / "runs/s")


@pytest.mark.parametrize("command", ["report", "verify"])
def test_what_is_of_one_run_says_so(place, capsys, command):
    what = place / ("runs/s" if command == "report" else "s.yaml")
    assert "a sweep" in said(capsys, command, what, code=2)
