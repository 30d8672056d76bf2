"""`microtrain list`, and `compare` of more than two runs: one run a line, in 80 characters."""

import csv
import io
import json
import math
import statistics

import pytest
from test_plot_command import make_run

from microtrain.cli.main import main
from microtrain.errors import ConfigError, DataError
from microtrain.report.groups import Comparison
from microtrain.report.overview import Column, find_runs, in_csv, in_lines, setting_columns, sort
from microtrain.runs.directory import RunDirectory
from microtrain.runs.run import Run


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def swept(parent, lr, seed, final, **info):
    """A run of a sweep; its best validation loss is final + 0.25, of step 3."""
    path = make_run(
        parent, f"lr{lr}-s{seed}", losses=(3.0, 2.0, final), lr=f"{lr}  # command line",
        best={"name": "val/loss", "value": final + 0.25, "step": 3},
        test={"step": 3, "loss": final + 0.5, "r2": 0.5}, timings={"train_s": 1.5}, **info,
    )  # fmt: skip
    with open(path / "config.yaml", "a") as file:
        file.write(f"seed: {seed}  # command line\n")
    with open(path / "metrics.jsonl", "a") as file:
        row = {"split": "test", "step": 3, "epoch": 1.0, "samples": 24, "loss": final + 0.5}
        file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def sweep(tmp_path):
    """Two rates, three seeds each; the greater is better, and the names do not say so."""
    runs = tmp_path / "runs"
    ends = {(0.1, 0): 1.5, (0.1, 1): 1.4, (0.1, 2): 1.6, (0.5, 0): 1.1, (0.5, 1): 1.0}
    return runs, [swept(runs, lr, seed, final) for (lr, seed), final in ends.items()]


# -------------------------------------------------------------------------------------- list


def test_list_has_a_line_for_each_run(sweep, capsys, monkeypatch):
    runs, _ = sweep
    begun = {"losses": (4.0,), "status": "running", "exit_code": None, "steps": None}
    monkeypatch.chdir(runs.parent)
    with RunDirectory(make_run(runs, "under way", **begun)):
        assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert main(["list", str(runs / "under way")]) == 0  # whose process is gone
    killed = capsys.readouterr().out.splitlines()[1].split()
    assert killed[2:] == ["killed", "1"]
    heading, *lines = out.splitlines()
    assert err == ""
    assert heading.split("  ")[0] == "run"
    names = ["run", "status", "steps", "val/loss", "test/r2", "seconds"]
    assert heading.split() == names
    assert lines[6:] == ["", "columns that did not fit: test/loss, best step"]
    assert max(map(len, out.splitlines())) <= 80
    rows = {line.split("  ")[0].split("/")[0]: line.split() for line in lines[:6]}
    assert rows["lr0.5-s1"][1:] == ["finished", "3", "1.2500", "0.50000", "1.5"]
    assert rows["under way"][2:] == ["running", "1", "-", "-", "-"]


def test_list_shows_the_newest_first_and_each_once(sweep):
    runs, paths = sweep
    newer = paths[1].with_name("2099-01-01_00-00-00")
    paths[1].rename(newer)
    found = find_runs([runs, runs / "lr0.1-s1", newer])
    assert found[0] == newer.resolve()
    assert sorted(found) == sorted(p.resolve() for p in [paths[0], newer, *paths[2:]])
    assert find_runs([runs / "lr0.5-s0"]) == [paths[3].resolve()]


def test_a_damaged_run_hides_no_other(sweep, capsys):
    runs, paths = sweep
    (paths[0] / "run.json").write_text('{"status": 3}')
    assert main(["list", str(runs), "--csv", "-"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 4
    assert err.startswith("warning: damaged file: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: None, "there is no such directory"),
        (lambda path: path.mkdir(), "no run in "),
    ],
)
def test_a_place_without_runs_is_an_error(tmp_path, make, words):
    make(tmp_path / "runs")
    with pytest.raises(DataError, match=words):
        find_runs([tmp_path / "runs"])


def test_csv_has_all_columns_and_digits(sweep, capsys, tmp_path):
    runs, paths = sweep
    assert main(["list", str(runs), "--csv", str(tmp_path / "all.csv"), "--sort", "val/loss"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'all.csv'}\n"
    rows = [*csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text()))]
    assert [float(row["val/loss"]) for row in rows] == [1.25, 1.35, 1.65, 1.75, 1.85]
    assert rows[0]["path"] == str(paths[4].resolve())
    assert {"best step", "test/loss", "ranks", "started", "error"} <= set(rows[0])
    assert main(["list", str(runs), "--csv", str(tmp_path / "absent" / "x.csv")]) == 5


# ----------------------------------------------------------------------------------- compare


def test_compare_of_many_has_a_line_for_each_sorted_by_what_is_monitored(sweep, capsys):
    _, paths = sweep
    assert main(["compare", *map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    head, groups, *_, runs = out.rstrip("\n").split("\n\n")
    assert head == "5 runs; values of the best step by val/loss"
    heading, *lines = (line.split() for line in runs.splitlines())
    assert heading == ["run", "lr", "seed", "val/loss", "test/loss", "val/r2", "steps", "seconds"]
    order = ["lr0.5-s1", "lr0.5-s0", "lr0.1-s1", "lr0.1-s0", "lr0.1-s2"]
    assert [line[0] for line in lines] == order
    assert lines[0][1:] == ["0.5", "1", "1.2500", "1.5000", "0.90000", "3", "1.5"]
    heading, *lines = (line.split("  ") for line in groups.splitlines())
    shown = [[cell.strip() for cell in line if cell] for line in lines]
    spread = statistics.stdev([1.65, 1.75, 1.85])
    assert shown[1][:3] == ["0.1", "3", f"1.7500 ± {spread:.4f}"]
    assert shown[0][:2] == ["0.5", "2"]


def test_compare_writes_csv_and_sorts_by_any_column(sweep, capsys):
    _, paths = sweep
    assert main(["compare", *map(str, paths), "--csv", "-", "--sort", "val/r2"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [float(row["val/r2"]) for row in rows] == sorted(
        (float(row["val/r2"]) for row in rows), reverse=True
    )  # the higher the better
    assert [row["lr"] for row in rows[:2]] == ["0.5", "0.5"]
    assert main(["compare", *map(str, paths), "--sort", "val/los"]) == 2
    assert 'no column "val/los"; did you mean val/loss' in capsys.readouterr().err


def test_a_link_to_a_run_that_is_there_adds_none(sweep, capsys):
    runs, _ = sweep
    again = swept(runs, 0.1, 0, 1.3)
    places = sorted(map(str, (runs / "lr0.1-s0").iterdir()))
    assert places[-1].endswith("latest")
    assert main(["compare", *places]) == 0
    assert "\nB  " in capsys.readouterr().out  # two runs: side by side
    assert main(["compare", str(again), str(runs / "lr0.1-s0" / "latest")]) in (0, 2)
    assert Comparison([Run.read(place) for place in places[:2]]).groups == []


def test_runs_of_one_name_are_told_apart_and_a_seed_counts_once(tmp_path):
    paths = [swept(tmp_path, 0.1, seed, 1.0 + i / 2) for i, seed in enumerate([0, 0, 1])]
    both = Comparison([Run.read(path) for path in paths])
    told, groups = both.runs, both.groups
    assert len(set(told[0].values)) == 3
    (seeds,) = (column for column in groups if column.name == "runs")
    assert seeds.values == [2]
    (loss,) = (column for column in groups if column.name == "val/loss")
    assert loss.values[0] == pytest.approx(statistics.fmean([1.75, 2.25]))


def test_runs_that_differ_in_more_than_the_seed_are_no_group(tmp_path):
    paths = [swept(tmp_path, lr, seed, 1.0) for lr, seed in [(0.1, 0), (0.2, 1), (0.3, 2)]]
    assert Comparison([Run.read(path) for path in paths]).groups == []


def test_settings_of_one_name_are_written_in_full(tmp_path):
    paths = [swept(tmp_path, 0.1, seed, 1.0) for seed in range(3)]
    for i, path in enumerate(paths):
        text = (path / "config.yaml").read_text().replace("type: mse", f"type: mse\n  lr: {i}")
        (path / "config.yaml").write_text(text.replace("lr: 0.1", f"lr: 0.{i}"))
    told = Comparison([Run.read(path) for path in paths]).runs
    assert {"loss.lr", "optimizer.lr", "seed"} <= {column.name for column in told}


# ----------------------------------------------------------------------------------- columns


VALUES = [("a", 9), ("b", 1), ("c", 2), ("d", 0)]


def test_columns_of_little_weight_are_left_out_first():
    columns = [Column(name, [name * 10], weight) for name, weight in VALUES]
    assert in_lines(columns, 100)[0].split() == ["a", "b", "c"]
    lines = in_lines(columns, 25)
    assert lines[0].split() == ["a", "c"]
    assert lines[2:] == ["", "columns that did not fit:", "b"]
    assert in_csv(columns) == "a,b,c,d\n" + ",".join(name * 10 for name in "abcd") + "\n"


@pytest.mark.parametrize(
    "values, better, expected",
    [
        ([2.0, math.nan, 1.0, None], -1, [1.0, 2.0]),
        ([2.0, math.nan, 3.0, None], 1, [3.0, 2.0]),
        ([10, 9, None, "off"], 0, [9, 10, "off"]),
    ],
)
def test_what_has_no_value_comes_last(values, better, expected):
    (column,) = sort([Column("x", values, 1, better)], "x")
    assert column.values[: len(expected)] == expected


def test_a_column_that_is_absent_is_named():
    with pytest.raises(ConfigError, match=r'no column "y" \(there are: x\)'):
        sort([Column("x", [1])], "y")


def test_a_long_setting_keeps_the_end_that_tells_it_from_another():
    rows = {"model.hidden": ["{type: mlp, hidden: [16], activation: relu}", "logistic_regression"]}
    rows["data.path"] = [f"/a/very/long/directory/of/tables/{name}.csv" for name in "ab"]
    hidden, path = (column.texts()[1:] for column in setting_columns(rows, []))
    assert hidden == ["{type: mlp ... on: relu}", "logistic_regression"]
    assert [text[-5:] for text in path] == ["a.csv", "b.csv"]
