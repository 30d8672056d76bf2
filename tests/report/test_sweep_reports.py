"""Commands that list and draw runs, on the directory of a sweep."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from microtrain.cli.main import main
from microtrain.report.sweep_curves import sweep_curves
from microtrain.report.sweep_page import parallel
from microtrain.report.sweeps import Sweep, together
from microtrain.runs.members import Result

SWEEP = """\
data: {type: sklearn, name: iris, split: {train: 0.8, test: 0.2}}
model: {type: mlp, hidden: [3]}
loss: cross_entropy
optimizer: {type: adam}
train: {duration: 3 epochs, batch_size: 32, compile: numpy}
sweep: {seeds: 2, folds: 2, grid: {optimizer.lr: [0.1, 0.001]}}
"""


CHARTS = ("train/loss", "val/loss")


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
    assert [best.run, other.run] == ["lr=0.1 (4 members)", "lr=0.001 (4 members)"]
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


def test_what_is_of_one_run_says_so(place, capsys):
    assert "a sweep" in said(capsys, "verify", place / "s.yaml", code=2)
    sweep = place / "runs/s"
    assert "this page is of runs" in said(capsys, "report", sweep, sweep, code=2)


def test_the_page_has_settings_members_bands_and_scores(place, capsys):
    path = Path(said(capsys, "report", place / "runs/s").strip())
    sweep, page = Sweep.read(place / "runs/s"), path.read_text()
    assert path.name == "report.html"
    tables = re.findall("<tbody>(.*?)</tbody>", page, re.DOTALL)
    settings, members = ([re.findall("<td>(.*?)</td>", row) for row in rows.splitlines() if row]
                         for rows in tables)  # fmt: skip
    columns = {column.name: column for column in sweep.settings()}
    assert [row[0] for row in settings] == [columns["lr"].cell(i) for i in range(2)]
    assert columns["val/loss"].cell(0) in settings[0]
    assert "best" in settings[0]
    assert len(members) == 8
    assert int(members[0][0]) == sweep.best.number
    bands = re.findall('class="band[^>]* d="M([^"]*)Z"', page)
    assert len(bands) == sum(len(chart.curves) for chart in sweep_curves(sweep, [*CHARTS]))
    places = np.array([pair.split() for pair in bands[0].split("L")], float)
    half = len(places) // 2
    assert (places[:half, 1] >= places[half:, 1][::-1]).all()  # downwards on the screen
    lines = parallel(sweep)["lines"]
    assert [line["opacity"] for line in lines] == [0.1, 1.0]
    assert all(line["path"] in page for line in lines)
    assert "https://" not in page


def test_values_of_parallel_axes_stand_in_their_order():
    results = [
        Result(i, i, {"optimizer.lr": lr}, "finished", best={"value": loss}, values={"a": loss})
        for i, (lr, loss) in enumerate([(10.0, 3.0), (0.001, 1.0), (0.1, 2.0)])
    ]
    found = parallel(Sweep("s", results, "a", -1, 0))
    assert [text for _, text in found["axes"][0]["ticks"]] == ["0.001", "0.1", "10.0"]
    best = found["lines"][-1]
    assert best["path"] == "M0.0 1000.0L1000.0 1000.0"
    assert best["opacity"] == 1
    assert parallel(Sweep("s", results[:1], "a", -1, 0)) is None
