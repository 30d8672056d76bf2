"""Commands that list and draw runs, on the directory of a sweep."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_plot_command import make_run

from microtrain.cli.main import main
from microtrain.report.curves import curves
from microtrain.report.groups import Comparison, interval, t_quantile
from microtrain.report.record import read_records
from microtrain.runs.run import Run

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


@pytest.fixture
def comparison(place):
    return Comparison(read_records([str(place / "runs/s")]))


def columns(table):
    return {column.name: column for column in table}


def test_list_has_the_members_and_the_values_of_the_best(place, capsys):
    (row,) = csv.DictReader(said(capsys, "list", place / "runs", "--csv", "-").splitlines())
    best = Run.read(place / "runs/s").one().info
    assert (row["status"], row["members"]) == ("finished", "8")
    assert float(row["val/loss"]) == best.best.value
    assert float(row["test/loss"]) == best.test["loss"]
    (sweep,) = (place / "runs/s").glob("2*")
    rows = list(csv.DictReader(said(capsys, "list", sweep, "--csv", "-").splitlines()))
    assert len(rows) == 1 + 8
    assert float(row["val/loss"]) == min(float(each["val/loss"]) for each in rows)


def test_compare_prints_the_table_of_a_sweep_again_and_its_members(place, comparison, capsys):
    shown = said(capsys, "compare", place / "runs/s")
    assert shown.startswith("\n".join(comparison.lines(80, of_groups=True)[:3]))
    assert "best  " in shown
    rows = list(
        csv.DictReader(said(capsys, "compare", place / "runs/s", "--csv", "-").splitlines())
    )
    assert [row["path"] for row in rows] == columns(comparison.runs)["path"].values
    assert [float(row["val/loss"]) for row in rows] == sorted(float(r["val/loss"]) for r in rows)


def test_groups_have_the_mean_the_interval_and_what_is_within_the_noise(comparison, capsys, place):
    groups, runs = columns(comparison.groups), columns(comparison.runs)
    assert groups["lr"].values == [0.1, 0.001]
    assert groups["runs"].values == [4, 4]
    losses = {lr: [] for lr in (0.1, 0.001)}
    for lr, loss in zip(runs["lr"].values, runs["val/loss"].values, strict=True):
        losses[lr].append(loss)
    means = [np.mean(values) for values in losses.values()]
    np.testing.assert_allclose(groups["val/loss"].values, means)
    spread = [value.deviation for value in groups["val/loss"].values]
    np.testing.assert_allclose(spread, [np.std(values, ddof=1) for values in losses.values()])
    half = t_quantile(3) * np.array(spread) * np.sqrt(1 / 4 + 1 / (2 - 1))  # two folds
    np.testing.assert_allclose(groups["95%"].values, half)
    pairs = {}
    keys = zip(runs["seed"].values, runs["fold"].values, runs["lr"].values, strict=True)
    for (seed, fold, lr), loss in zip(keys, runs["val/loss"].values, strict=True):
        pairs.setdefault((seed, fold), {})[lr] = loss
    apart = [pair[0.001] - pair[0.1] for pair in pairs.values()]
    close = abs(np.mean(apart)) <= interval(apart, 2)
    assert groups[""].values == ["best", "=" if close else None]
    told = json.loads(said(capsys, "compare", place / "runs/s", "--json"))["groups"]
    assert [each["optimizer.lr"] for each in told] == [0.1, 0.001]
    assert [each["interval"] for each in told] == groups["95%"].values
    assert [each["val/loss"]["mean"] for each in told] == groups["val/loss"].values


@pytest.mark.parametrize(
    ("apart", "mark"), [((0.5, -0.4, 0.3, -0.2), "="), ((3.0, 3.1, 2.9, 3.0), None)]
)
def test_groups_are_compared_seed_by_seed(tmp_path, apart, mark):
    paths = []
    for seed, (luck, more) in enumerate(zip((5.0, 6.0, 10.0, 7.0), apart, strict=True)):
        for lr, loss in ((0.1, luck), (0.2, luck + more)):
            path = make_run(tmp_path, f"lr{lr}-s{seed}", losses=(99.0, loss), lr=lr,
                            best={"name": "val/loss", "value": loss + 0.25, "step": 2})  # fmt: skip
            with open(path / "config.yaml", "a") as file:
                file.write(f"seed: {seed}\n")
            paths.append(str(path))
    groups = columns(Comparison(read_records(paths)).groups)
    assert groups["lr"].values == [0.1, 0.2]
    assert groups[""].values == ["best", mark]


def test_what_varied_is_shown_however_narrow_the_terminal(place, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    shown = said(capsys, "compare", place / "runs/s").splitlines()
    assert shown[0].split()[0] == "lr"
    assert "val/loss" in shown[0]
    assert "columns that did not fit: 95%, " in " ".join(shown)


def test_curves_are_the_mean_of_the_members_with_their_deviation(place, comparison, capsys):
    (chart,) = curves(comparison.of_best_groups(6), ["val/loss"], group=True)
    best, other = chart.curves
    assert [best.run, other.run] == ["lr=0.1 (4 runs)", "lr=0.001 (4 runs)"]
    members = [r for r in comparison.records if r.setting("optimizer.lr") == "0.1"]
    values = np.array([r.curve("val/loss")[1] for r in members])
    np.testing.assert_allclose(best.points[1], values.mean(axis=0))
    np.testing.assert_allclose(best.band[1] - best.points[1], values.std(axis=0, ddof=1))
    picture = place / "curves.svg"
    assert str(picture) in said(capsys, "plot", place / "runs/s", "--output", picture)
    assert picture.read_bytes().startswith(b"<?xml")


def test_check_counts_members_and_resume_has_nothing_to_do(place, capsys):
    assert "members 8: 2 settings x 2 folds x 2 seeds" in said(capsys, "check", place / "s.yaml")
    assert "nothing is left to do" in said(capsys, "resume", place / "runs/s")


def test_the_page_has_settings_runs_and_bands(place, comparison, capsys):
    path = Path(said(capsys, "report", place / "runs/s").strip())
    page = path.read_text()
    assert path == Run.read(place / "runs/s").path / "report.html"
    tables = re.findall("<tbody>(.*?)</tbody>", page, re.DOTALL)
    settings, runs = ([re.findall("<td>(.*?)</td>", row) for row in rows.splitlines() if row]
                      for rows in tables)  # fmt: skip
    told = columns(comparison.groups)
    assert [row[0] for row in settings] == [told["lr"].cell(i) for i in range(2)]
    assert told["val/loss"].cell(0) in settings[0]
    assert "best" in settings[0]
    assert len(runs) == 8
    bands = re.findall('class="band[^>]* d="M([^"]*)Z"', page)
    charts = curves(comparison.of_best_groups(6), ["loss"], group=True)
    assert len(bands) == sum(len(chart.curves) for chart in charts)
    places = np.array([pair.split() for pair in bands[0].split("L")], float)
    half = len(places) // 2
    assert (places[:half, 1] >= places[half:, 1][::-1]).all()  # downwards on the screen
    assert "https://" not in page


def test_what_is_of_one_run_says_so(place, capsys):
    assert "a sweep" in said(capsys, "verify", place / "s.yaml", code=2)
