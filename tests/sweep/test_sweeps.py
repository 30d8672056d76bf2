"""Sweeps as users start them: each member is the run that it would be alone, on any ranks."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mpi_run
import pytest

from microtrain.cli.main import main
from microtrain.runs.directory import RunDirectory
from microtrain.runs.members import Store, member_arrays, read_members
from microtrain.runs.provenance import params_sha256
from microtrain.runs.record import Run, newest_run
from microtrain.train.assembly import load_data

BASE = """\
data: {type: sklearn, name: iris, standardize: true, split: {train: 0.8, test: 0.2, stratify: true}}
model: {type: "./net.py:net", hidden: [5]}
loss: cross_entropy
metrics: [accuracy]
optimizer: {type: adam, lr: 0.02}
train: {duration: 9 epochs, batch_size: 32, compile: numpy, clip_norm: 5.0}
schedule: cosine
"""
NET = """\
from microtrain import nn

def net(in_features, out_features, hidden):
    sizes = [in_features, *hidden]
    layers = [
        part for a, b in zip(sizes, hidden)
        for part in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1))
    ]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], out_features))
"""
SWEEP = """\
sweep:
  seeds: 2
  folds: 3
  grid: {optimizer.lr: [0.1, 0.01], model.hidden: [[4], [3, 3]]}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(BASE + SWEEP)
    (tmp_path / "one.yaml").write_text(BASE)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def newest(place, name="s"):
    return newest_run(place / "runs" / name).resolve()


def table(path):
    """results.csv without the clock."""
    with open(path / "results.csv") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def overrides(result):
    own = dict(result.varied)
    fold = own.pop("data.split.fold", None)
    split = [] if fold is None else [f"data.split.folds=3 data.split.fold={fold}"]
    return [*" ".join(split).split(), *(f"{key}={value}" for key, value in own.items())]


@pytest.mark.parametrize("executor", ["numpy", pytest.param("numba", marks=pytest.mark.slow)])
def test_each_member_is_the_run_that_it_would_be_alone(place, executor):
    if executor == "numba":
        pytest.importorskip("numba")
    assert main(["train", "s.yaml", f"train.compile={executor}"]) == 0
    path = newest(place)
    results, _, _ = read_members(path)
    assert len(results) == 24
    for result in results[:: 1 if executor == "numba" else 5]:
        words = ["train", "one.yaml", *overrides(result), f"train.compile={executor}"]
        assert main(words) == 0
        alone = Run.read(newest(place, "one"))
        assert result.params_sha256 == alone.info.params_sha256
        assert result.best["value"] == alone.info.best.value
        assert result.best["step"] == alone.info.best.step
        test = {k.removeprefix("test/"): v for k, v in result.values.items() if "test/" in k}
        assert test == {k: v for k, v in alone.info.test.items() if k != "step"}
        best = alone.checkpoint("best", print)[0].model
        kept = member_arrays(path, result.number)
        assert {*kept} == {*best}
        assert params_sha256((name, kept[name]) for name in best) == params_sha256(best)


def test_the_table_says_what_became_of_each_and_of_each_setting(place, capsys):
    assert main(["train", "s.yaml"]) == 0
    path, out = newest(place), capsys.readouterr().out
    rows = table(path)
    assert [int(row["member"]) for row in rows] == [*range(24)]
    assert {row["status"] for row in rows} == {"finished"}
    assert "24: 4 settings x 3 folds x 2 seeds" in out
    shown = [line.split() for line in out.splitlines() if "+-" in line]
    assert len(shown) == 4
    best = shown[0]
    assert "best" in best
    mean = (
        sum(
            float(row["val/loss"])
            for row in rows
            if row["optimizer.lr"] == best[0]
            and row["model.hidden"].replace(" ", "") in "".join(best)
        )
        / 6
    )
    assert f"{mean:.5f}"[:6] in out
    info = json.loads((path / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["members"] == {"finished": 24}
    losses = [float(row["val/loss"]) for row in rows]
    assert info["best_member"] == losses.index(min(losses))
    assert not (path / "members").exists()
    assert main(["resume", str(path), "--trust"]) == 0
    assert "nothing is left to do" in capsys.readouterr().out


def test_rows_are_prepared_once_for_members_that_differ_in_the_seed(place, monkeypatch):
    (place / "one.yaml").write_text(BASE.replace("./net.py:net", "mlp"))
    asked = []

    def load(config):
        asked.append((config.data.split.fold, config.data.standardize))
        return load_data(config)

    monkeypatch.setattr("microtrain.train.assembly.load_data", load)
    text = "sweep: {seeds: 3, folds: 2, grid: {data.standardize: [true, false]}}\n"
    (place / "s.yaml").write_text((place / "one.yaml").read_text() + text)
    assert main(["train", "s.yaml"]) == 0
    assert asked == [(0, True), (1, True), (0, False), (1, False)]
    asked.clear()
    (place / "s.yaml").write_text(BASE + text)  # its own model may change what it is given
    assert main(["train", "s.yaml"]) == 0
    assert len(asked) == 12


def test_members_that_diverge_end_alone(place, capsys):
    grid = "sweep={seeds: 2, grid: {optimizer.lr: [0.1, 1e30]}}"
    others = ["data.split={train: 0.8, val: 0.2}", "model={type: mlp, hidden: [4]}"]
    assert main(["train", "s.yaml", grid, *others, "optimizer={type: sgd, lr: 1}"]) == 0
    rows = table(newest(place))
    assert [row["status"] for row in rows] == ["finished"] * 2 + ["diverged"] * 2
    assert "training diverged at step" in rows[3]["error"]
    assert rows[3]["val/loss"] == ""
    assert "member 2 has diverged" in capsys.readouterr().out


def test_halving_stops_settings_by_steps(place, capsys):
    grid = "sweep={seeds: 2, stop: halving, grid: {optimizer.lr: [1e-6, 1e-5, 0.1, 0.05, 0.01]}}"
    words = ["train", "s.yaml", grid, "data.split={train: 0.8, val: 0.2}"]
    assert main(words) == 0
    rows = table(newest(place))
    assert [row["status"] for row in rows].count("finished") == 2
    assert {row["optimizer.lr"] for row in rows if row["status"] == "finished"} <= {"0.1", "0.05"}
    steps = {row["optimizer.lr"]: int(row["steps"]) for row in rows}
    assert steps["1e-06"] == 4  # one of nine epochs
    assert sorted(set(steps.values())) == [4, 12, 36]
    out = capsys.readouterr().out
    assert "2 settings of 5 go on" in out
    assert "1 setting of 2 goes on" in out


def test_a_member_of_a_halved_sweep_is_the_run_alone(place):
    grid = "sweep={seeds: 2, stop: halving, grid: {optimizer.lr: [1e-6, 1e-5, 0.1]}}"
    split = "data.split={train: 0.8, val: 0.2}"
    assert main(["train", "s.yaml", grid, split]) == 0
    last = table(newest(place))[-1]
    assert last["status"] == "finished"
    assert main(["train", "one.yaml", split, "seed=1", "optimizer.lr=0.1"]) == 0
    assert Run.read(newest(place, "one")).info.params_sha256 == last["params_sha256"]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_results_are_the_same_on_any_ranks(place, mpirun, ranks):
    words = ["s.yaml", "sweep.stop=halving"]
    assert main(["train", *words]) == 0
    job = mpirun(ranks, "-m", "microtrain", "train", *words, "name=many", cwd=place, timeout=100)
    assert job.returncode == 0, job.stderr
    assert table(newest(place, "many")) == table(newest(place))


def started(place, *words, ranks=1):
    line = [sys.executable, "-m", "microtrain", *words]
    if ranks > 1:
        line = [mpi_run.find_mpirun(), "-n", str(ranks), *line]
    return subprocess.Popen(
        line, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env=mpi_run.clean_environment({}),
    )  # fmt: skip


# Longer than the 5 s after which finished members are written.
LONG = ["train", "s.yaml", "name=long", "train.duration=200 epochs", "sweep.seeds=6"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGKILL, 2), (signal.SIGTERM, 1)])
def test_a_sweep_that_was_ended_goes_on_with_the_same_results(place, mpirun, number, ranks):
    assert main([*LONG, "name=whole"]) == 0
    job = started(place, *LONG)
    try:
        parts = place / "runs/long"
        deadline = time.monotonic() + 60
        while not [*parts.glob("*/members/*.safetensors")] and time.monotonic() < deadline:
            assert job.poll() is None, job.communicate()
            time.sleep(0.1)
        os.killpg(job.pid, number)
        out, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == (-number if number == signal.SIGKILL else 75)
    path = newest(place, "long")
    if number == signal.SIGTERM:
        assert f"go on with: microtrain resume {path.relative_to(place)}" in out
    before = len(read_members(path)[0])
    assert 0 < before < 72
    again = mpirun(ranks, "-m", "microtrain", "resume", path, "--trust", cwd=place, timeout=100)
    assert again.returncode == 0, again.stderr
    assert f"resumed with {before} of 72 finished" in again.stdout
    assert table(path) == table(newest(place, "whole"))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["train.duration=1 min", "schedule=null"], "counted by a clock"),
        (["train.eval_every=1 min"], "counted by a clock"),
        (["callbacks=[mlflow]"], "keeps the log of one run"),
    ],
)
def test_what_no_sweep_can_have(place, capsys, words, what):
    if "mlflow" in words[0]:
        pytest.importorskip("mlflow")
    assert main(["train", "s.yaml", *words]) == 2
    assert what in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_another_sweep_is_not_gone_on_with(place, capsys):
    assert main(["train", "s.yaml", "train.duration=1 epochs"]) == 0
    path = newest(place)
    with RunDirectory(path) as directory:
        directory.update(status="stopped")
    assert main(["resume", str(path), "--trust", "sweep.seeds=3"]) == 2
    assert "sweep.seeds: 2 in the run, 3 now" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut off", "no JSON", "other keys"])
def test_a_damaged_file_of_members_is_told_of(place, capsys, damage):
    assert main(["train", "s.yaml", "train.duration=1 epochs", "sweep.folds=2"]) == 0
    path = newest(place)
    file = path / "members.safetensors"
    content = file.read_bytes()
    file.write_bytes(
        {
            "cut off": content[:-7],
            "no JSON": content[:9] + b"!" + content[10:],
            "other keys": content.replace(b"results", b"resultz", 1),
        }[damage]
    )
    with RunDirectory(path) as directory:
        directory.update(status="stopped")
    capsys.readouterr()
    assert main(["resume", str(path), "--trust"]) == 3
    assert f"damaged file: {file}" in capsys.readouterr().err


@pytest.fixture
def swept(place):
    """A sweep of two members that was killed with a file for each, and what it would have given."""
    words = ["s.yaml", "train.duration=1 epochs", "sweep={seeds: 2}"]
    assert main(["train", *words]) == 0
    path = newest(place)
    whole = table(path), (path / "members.safetensors").read_bytes()
    results, data, of = read_members(path)
    for number, result in enumerate(results):
        store = Store(path, number, of)
        store.add(result, member_arrays(path, result.number), data[result.data])
        store.write()
    (path / "members.safetensors").unlink()
    with RunDirectory(path) as directory:
        directory.update(status="running", exit_code=None)
    return path, whole


def flip(file, what):
    """A bit of every array of a file of members, or of a digit or letter of its header."""
    content = bytearray(file.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    if what == "weights":
        header = json.loads(content[8:end])
        header.pop("__metadata__")
        places = [end + entry["data_offsets"][0] for entry in header.values()]
    else:
        places = [content.index(FLIPS[what], 0, end) + len(FLIPS[what])]
    for place in places:
        content[place] ^= 1
    file.write_bytes(content)


FLIPS = {
    "weights": b"",
    "a result": b'\\"seconds\\": 0.',
    "the name of its data": b'\\"data\\": \\"',
    "its data": b'data_hash\\": \\"',
    "its configuration": b"batch_size: ",
}


@pytest.mark.parametrize("what", FLIPS)
def test_members_of_a_damaged_file_are_trained_again_and_the_others_are_not(swept, capsys, what):
    path, whole = swept
    file = path / "members" / "1-0.safetensors"
    flip(file, what)
    capsys.readouterr()
    assert main(["resume", str(path), "--trust"]) == 0
    said = capsys.readouterr()
    assert f"damaged file: {file}" in said.err and "are trained again" in said.err
    assert "resumed with 1 of 2 finished" in said.out
    assert table(path) == whole[0]


@pytest.mark.parametrize("what", FLIPS)
@pytest.mark.parametrize("command", ["evaluate", "predict", "report", "export"])
def test_no_command_takes_a_member_whose_file_was_changed(swept, capsys, command, what):
    path, whole = swept
    file = path / "members.safetensors"
    file.write_bytes(whole[1])
    flip(file, what)
    with RunDirectory(path) as directory:
        directory.update(status="finished")
    Path("rows.csv").write_text("sepal_length,sepal_width,petal_length,petal_width\n5,3,1,1\n")
    more = {
        "predict": ["--input", "rows.csv", "--output", "out.csv"],
        "export": ["--to", "npz", "--output", "out.npz"],
    }.get(command, [])
    capsys.readouterr()
    code, error = main([command, str(path), "--trust", *more]), capsys.readouterr().err
    if (command, what) == ("report", "weights"):  # it tells of results alone
        assert (code, error) == (0, "")
    else:
        assert code == 3 and f"damaged file: {file}" in error


def test_members_and_settings_of_another_sweep_are_refused(place, capsys):
    for seed in (1, 2):
        assert main(["train", "s.yaml", "train.duration=1 epochs", f"sweep.seeds=[{seed}]"]) == 0
    second = newest(place)
    first = next(path for path in second.parent.glob("2*") if path != second)
    config = (second / "config.yaml").read_text()
    for digit, other in (("clip_norm: 5", "clip_norm: 6"), ("[4]", "[5]"), ("0.01", "0.02")):
        assert digit in config
        (second / "config.yaml").write_text(config.replace(digit, other))
        capsys.readouterr()
        assert main(["evaluate", str(second), "--trust"]) == 2
        assert "its config.yaml has other settings" in capsys.readouterr().err
    (second / "config.yaml").write_text(config)
    (second / "members.safetensors").write_bytes((first / "members.safetensors").read_bytes())
    assert main(["evaluate", str(second), "--trust"]) == 3
    assert "are of another sweep" in capsys.readouterr().err


def test_a_file_with_a_sweep_is_no_run_of_a_trainer(place):
    from microtrain.errors import ConfigError
    from microtrain.train import Trainer, load_config

    with pytest.raises(ConfigError, match="of many runs: microtrain train"):
        Trainer.from_config(load_config(Path("s.yaml")))


def test_an_error_names_the_member_and_keeps_those_before(place, capsys):
    grid = "sweep={grid: {loss: [cross_entropy, mse]}}"
    split = "data.split={train: 0.8, val: 0.2}"
    assert main(["train", "s.yaml", grid, split]) == 2
    assert "error: member 1 (loss=mse): loss mse compares numbers" in capsys.readouterr().err
    path = newest(place)
    assert json.loads((path / "run.json").read_text())["status"] == "failed"
    assert [result.number for result in read_members(path)[0]] == [0]


def test_members_stop_early_by_themselves(place):
    split = "data.split={train: 0.8, val: 0.2}"
    stop = "callbacks=[{type: early_stopping, patience: 1}]"
    words = ["optimizer={type: sgd, lr: 0.5}", split, stop, "schedule=null"]
    assert main(["train", "s.yaml", "sweep={seeds: 4}", *words]) == 0
    rows = table(newest(place))
    assert {row["status"] for row in rows} == {"finished"}
    assert len({row["steps"] for row in rows}) > 1
    assert main(["train", "one.yaml", *words, "seed=2"]) == 0
    alone = Run.read(newest(place, "one")).info
    assert (str(alone.steps), alone.params_sha256) == (rows[2]["steps"], rows[2]["params_sha256"])
