"""Sweeps as users start them: each member is the run that it would be alone, on any ranks."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import mpi_run
import pytest
from compilers import needs_compiler

from microtrain.cli.main import main
from microtrain.common.files import without_syncing
from microtrain.report.overview import in_csv, table_of_runs
from microtrain.report.record import read_records
from microtrain.runs.checkpoint import save_checkpoint
from microtrain.runs.directory import RunDirectory, newest_run
from microtrain.runs.metrics import WALL_CLOCK
from microtrain.runs.run import Run
from microtrain.sweep.alike import Shared
from microtrain.train.run_data import load_data

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
    """What became of each member, without the clock."""
    rows = csv.DictReader(io.StringIO(in_csv(table_of_runs(read_records([str(path)])))))
    return [{k: v for k, v in row.items() if k not in ("run", "seconds", "path")} for row in rows]


def members_of(path):
    return [Run.read(each) for each in Run.read(path).members]


def test_a_member_writes_its_best_checkpoint_alone(place, monkeypatch):
    written = []

    def save(directory, **contents):
        written.append((directory.resolve(), contents["step"]))
        return save_checkpoint(directory, **contents)

    monkeypatch.setattr("microtrain.train.callbacks.checkpoints.save_checkpoint", save)
    # At the lower rate the loss falls to the end.
    (place / "s.yaml").write_text(f"{BASE}sweep: {{folds: 2, grid: {{optimizer.lr: [0.01, 1.0]}}}}")
    assert main(["train", "s.yaml"]) == 0
    members = members_of(newest(place))
    best = [(run.path / "checkpoints", run.info.best.step) for run in members]
    assert written == best
    assert len({step == run.info.steps for run, (_, step) in zip(members, best, strict=True)}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["numpy", "native"])
def test_each_member_is_the_run_of_its_configuration(place, executor):
    if executor == "native":
        needs_compiler()
    assert main(["train", "s.yaml", f"train.compile={executor}"]) == 0
    found = members_of(newest(place))
    assert len(found) == 24
    for member in found[:: 1 if executor == "native" else 5]:
        config = str(member.path / "config.yaml")
        assert main(["train", config, "--trust", "name=one"]) == 0
        alone = Run.read(newest(place, "one"))
        assert member.info.params_sha256 == alone.info.params_sha256
        assert (member.info.best, member.info.test) == (alone.info.best, alone.info.test)
        assert member.info.classes == alone.info.classes
        rows = [
            [{k: v for k, v in json.loads(line).items() if k not in WALL_CLOCK} for line in lines]
            for lines in (run.metrics_file.read_text().splitlines() for run in (member, alone))
        ]
        assert rows[0] == rows[1]
        kept, best = (run.checkpoint("best", print)[0] for run in (member, alone))
        assert kept.step == best.step
        for kind in ("model", "optimizer"):
            arrays = getattr(best, kind)
            assert {n: a.tobytes() for n, a in getattr(kept, kind).items()} == {
                name: array.tobytes() for name, array in arrays.items()
            }


OF_THE_LIBRARY = """\
data: {type: sklearn, name: iris, standardize: true, split: {train: 0.8, test: 0.2}}
model: {type: mlp, hidden: [5]}
loss: cross_entropy
optimizer: {type: sgd, lr: 0.1, momentum: 0.9}
schedule: cosine
train: {duration: 4 epochs, batch_size: 32, compile: native}
sweep: {seeds: 3, grid: {optimizer.lr: [0.1, 1.0e+30]}}
"""


def test_members_take_turns_with_one_captured_step_and_have_the_bits_of_runs_alone(
    place, monkeypatch
):
    needs_compiler()
    (place / "s.yaml").write_text(OF_THE_LIBRARY)
    given = []
    real = Shared.given
    monkeypatch.setattr(Shared, "given", lambda self, own: given.append(own) or real(self, own))
    assert main(["train", "s.yaml"]) == 0
    found = members_of(newest(place))
    assert [member.info.status for member in found] == ["finished"] * 3 + ["diverged"] * 3
    assert len(given) == 2  # what has diverged leaves nothing to the next
    for member in found[:3]:
        assert main(["train", str(member.path / "config.yaml"), "name=one"]) == 0
        alone = Run.read(newest(place, "one"))
        assert member.info.params_sha256 == alone.info.params_sha256
        assert (member.info.best, member.info.test) == (alone.info.best, alone.info.test)
        assert member.info.compile == alone.info.compile


def test_a_member_that_has_finished_is_small_and_goes_on_for_longer_as_any_run(place):
    synced = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
        assert main(["train", "s.yaml", "sweep={seeds: 2, folds: 2}", "schedule=null"]) == 0
    first, *others = members_of(newest(place))
    for member in (first, *others):
        files = [
            path for path in member.path.rglob("*") if path.is_file() and not path.is_symlink()
        ]
        files = [path for path in files if not any(up.is_symlink() for up in path.parents)]
        assert len(files) <= 10
        assert sum(path.stat().st_size for path in files) <= 60_000
        assert [name for name in synced if str(member.path) in name] == [
            str(member.path / "run.json")
        ]
    longer = "train.duration=12 epochs"
    for run in (first, others[-1]):
        assert main(["train", str(run.path / "config.yaml"), "--trust", "name=one", longer]) == 0
        assert main(["resume", str(run.path), "--trust", longer]) == 0
        again = Run.read(run.path).info
        assert again.params_sha256 == Run.read(newest(place, "one")).info.params_sha256


@pytest.mark.slow
def test_the_table_says_what_became_of_each_and_of_each_setting(place, capsys):
    assert main(["train", "s.yaml"]) == 0
    path, out = newest(place), capsys.readouterr().out
    rows = table(path)
    assert len(rows) == 24
    assert {row["status"] for row in rows} == {"finished"}
    assert "24: 4 settings x 3 folds x 2 seeds" in out
    shown = [line.split() for line in out.splitlines() if "±" in line]
    assert len(shown) == 4
    best = shown[0]
    assert "best" in best
    values: dict = {}
    for row in rows:
        values.setdefault((row["lr"], row["hidden"]), []).append(float(row["val/loss"]))
    assert f"{min(map(statistics.fmean, values.values())):.5f}"[:6] in " ".join(best)
    info = json.loads((path / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["members"] == {"finished": 24}
    losses = [float(row["val/loss"]) for row in rows]
    assert info["best_member"] == f"{losses.index(min(losses)):02}"
    assert main(["resume", str(path), "--trust"]) == 0
    assert "nothing is left to do" in capsys.readouterr().out


@pytest.mark.slow
def test_rows_are_prepared_once_for_members_that_differ_in_the_seed(place, monkeypatch):
    (place / "one.yaml").write_text(BASE.replace("./net.py:net", "mlp"))
    asked = []

    def load(config, found=None):
        asked.append((config.data.split.fold, config.data.standardize))
        return load_data(config)

    monkeypatch.setattr("microtrain.train.run_data.load_data", load)
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
    assert rows[3]["lr"] == "1e+30"
    assert "s/2 has diverged: training diverged" in capsys.readouterr().out


@pytest.mark.slow
def test_halving_stops_settings_by_steps(place, capsys):
    grid = "sweep={seeds: 2, stop: halving, grid: {optimizer.lr: [1e-6, 1e-5, 0.1, 0.05, 0.01]}}"
    words = ["train", "s.yaml", grid, "data.split={train: 0.8, val: 0.2}"]
    assert main(words) == 0
    rows = table(newest(place))
    assert [row["status"] for row in rows].count("finished") == 2
    assert {row["lr"] for row in rows if row["status"] == "finished"} <= {"0.1", "0.05"}
    steps = {row["lr"]: int(row["steps"]) for row in rows}
    assert steps["1e-06"] == 4  # one of nine epochs
    assert sorted(set(steps.values())) == [4, 12, 36]
    out = capsys.readouterr().out
    assert "2 settings of 5 go on" in out
    assert "1 setting of 2 goes on" in out


@pytest.mark.slow
def test_a_member_of_a_halved_sweep_is_the_run_alone(place):
    grid = "sweep={seeds: 2, stop: halving, grid: {optimizer.lr: [1e-6, 1e-5, 0.1]}}"
    split = "data.split={train: 0.8, val: 0.2}"
    assert main(["train", "s.yaml", grid, split]) == 0
    last = table(newest(place))[-1]
    assert last["status"] == "finished"
    assert main(["train", "one.yaml", split, "seed=1", "optimizer.lr=0.1"]) == 0
    assert Run.read(newest(place, "one")).info.params_sha256 == last["params_sha256"]


@pytest.mark.slow
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


LONG = ["train", "s.yaml", "name=long", "train.duration=200 epochs", "sweep.seeds=3"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGKILL, 2), (signal.SIGTERM, 1)])
def test_a_sweep_that_was_ended_goes_on_with_the_same_results(place, mpirun, number, ranks):
    assert main([*LONG, "name=whole"]) == 0
    job = started(place, *LONG)
    try:
        parts = place / "runs/long"
        deadline = time.monotonic() + 60
        while len([*parts.glob("*/members/*/run.json")]) < 9 and time.monotonic() < deadline:
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
    before = sum(member.info.status == "finished" for member in members_of(path))
    assert 0 < before < 36
    again = mpirun(ranks, "-m", "microtrain", "resume", path, "--trust", cwd=place, timeout=100)
    assert again.returncode == 0, again.stderr
    assert f"resumed with {before} of 36 finished" in again.stdout
    assert table(path) == table(newest(place, "whole"))


VAL = ["data.split={train: 0.8, val: 0.2}"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["train.duration=1 min", "schedule=null"], "counted by a clock"),
        (["train.eval_every=1 min"], "counted by a clock"),
        (["sweep={grid: {train.eval_every: [9 steps, 1 min]}}"], "counted by a clock"),
        (["sweep={grid: {checkpoint.monitor: [train/loss, val/loss]}}", *VAL], "by one value"),
        (["sweep={grid: {checkpoint.mode: [min, max]}}", *VAL], "by one value"),
        (["callbacks=[mlflow]"], "keeps the log of one run"),
    ],
)
def test_what_no_sweep_can_have(place, capsys, words, what):
    if "mlflow" in words[0]:
        pytest.importorskip("mlflow")
    assert main(["train", "s.yaml", *words]) == 2
    assert what in capsys.readouterr().err
    assert not (place / "runs").exists()


@pytest.mark.slow
def test_another_sweep_is_not_gone_on_with(place, capsys):
    assert main(["train", "s.yaml", "train.duration=1 epochs"]) == 0
    path = newest(place)
    with RunDirectory(path) as directory:
        directory.update(status="stopped")
    assert main(["resume", str(path), "--trust", "sweep.seeds=3"]) == 2
    assert "sweep.seeds: 2 in the run, 3 now" in capsys.readouterr().err


@pytest.fixture
def swept(place):
    """A sweep of three members that was killed as it ended, and what it would have given."""
    words = ["s.yaml", "train.duration=2 epochs", "sweep={seeds: 3}"]
    assert main(["train", *words]) == 0
    path = newest(place)
    with RunDirectory(path) as directory:
        directory.update(status="running", exit_code=None)
    return path, table(path)


def write_other_weights(member):
    file = member / "checkpoints/best/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def be_killed_in_training(member):
    with RunDirectory(member) as directory, without_syncing():
        directory.update(status="running", best=None, test=None, has_checkpoints=False)
    shutil.rmtree(member / "checkpoints")


DAMAGE = {
    "weights": write_other_weights,
    "no checkpoint": lambda member: shutil.rmtree(member / "checkpoints"),
    "run.json": lambda member: (member / "run.json").write_text("{"),
    "killed as it began": lambda member: (member / "run.json").unlink(),
    "killed": be_killed_in_training,
}


@pytest.mark.daily("weights", "killed as it began")
@pytest.mark.parametrize("what", DAMAGE)
def test_a_member_that_cannot_be_used_is_trained_again_and_the_others_are_not(swept, what, capsys):
    path, whole = swept
    one, other = path / "members/1", path / "members/2/run.json"
    before = other.stat().st_mtime_ns
    DAMAGE[what](one)
    capsys.readouterr()
    assert main(["resume", str(path), "--trust"]) == 0
    out, err = capsys.readouterr()
    assert "resumed with 2 of 3 finished" in out
    assert other.stat().st_mtime_ns == before
    assert table(path) == whole
    aside = path / "members/.1.damaged"
    assert aside.exists() == ("killed" not in what) == (f"is now {aside}" in err)


def test_a_member_that_was_stopped_goes_on_where_it_was(place, capsys):
    words = ["train", "s.yaml", "sweep={seeds: 2}", "model={type: mlp, hidden: [4]}"]
    assert main(words) == 0
    whole = table(newest(place))
    stop = f"callbacks=[{place / 'net.py'}:stop]"
    (place / "net.py").write_text(NET + STOP)
    assert main([*words, stop, "name=again"]) == 75
    path = newest(place, "again")
    assert "go on with: microtrain resume" in capsys.readouterr().out
    assert [member.info.status for member in members_of(path)] == ["stopped"]
    assert main(["resume", str(path), "--trust", "callbacks=[]"]) == 2  # it is another sweep
    (place / "go on").touch()
    assert main(["resume", str(path), "--trust"]) == 0
    assert table(path) == whole
    about = json.loads((members_of(path)[0].path / "run.json").read_text())
    assert about["resumed_at"] == [21]


STOP = """
import os, signal
from microtrain.train import every

@every("1 step")
def stop(trainer):
    if trainer.step == 20 and not os.path.exists("go on"):
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_halved_sweep_that_was_stopped_goes_on_with_those_that_it_had_chosen(place):
    (place / "net.py").write_text(NET + STOP.replace("== 20", "== 6"))
    (place / "go on").touch()
    grid = "sweep={seeds: 2, stop: halving, grid: {optimizer.lr: [1e-6, 0.1, 1e-5]}}"
    more = ["data.split={train: 0.8, val: 0.2}", f"callbacks=[{place / 'net.py'}:stop]"]
    assert main(["train", "s.yaml", grid, *more]) == 0
    whole = table(newest(place))
    (place / "go on").unlink()
    assert main(["train", "s.yaml", grid, *more, "name=again"]) == 75
    path = newest(place, "again")
    assert [m.info.status for m in members_of(path)].count("stopped") == 1
    (place / "go on").touch()
    assert main(["resume", str(path), "--trust"]) == 0
    assert table(path) == whole
    assert Run.read(path).info.halved == {"9": [1], "3": [1]}


def test_a_member_whose_two_rungs_are_one_step_begins_and_ends_as_at_any_other(place):
    (place / "net.py").write_text(NET + HELD)
    grid = "sweep={stop: halving, grid: {optimizer.lr: [1e-6, 1e-5, 0.01, 0.1]}}"
    more = ["data.split={train: 0.8, val: 0.2}", f"callbacks=[{place / 'net.py'}:Held]"]
    assert main(["train", "s.yaml", grid, *more, "train.duration=2 epochs"]) == 0
    rows = table(newest(place))
    assert [row["status"] for row in rows].count("paused") == 3
    assert all(row["params_sha256"] for row in rows)


HELD = """
from microtrain.train import Callback

class Held(Callback):
    def on_start(self, trainer):
        self.at = trainer.step

    def on_end(self, trainer, ending):
        assert self.at <= trainer.step
"""


@pytest.mark.slow
def test_a_member_that_was_interrupted_as_it_paused_is_a_paused_one(place):
    grid = "sweep={stop: halving, grid: {optimizer.lr: [1e-6, 0.1, 1e-5]}}"
    assert main(["train", "s.yaml", grid, *VAL]) == 0
    path = newest(place)
    whole = table(path)
    for each, fields in ((path, {"halved": {}}), (path / "members/0", {})):
        with RunDirectory(each) as directory:
            directory.update(status="stopped", **fields)
    shutil.rmtree(path / "members/1")
    assert main(["resume", str(path), "--trust"]) == 0
    assert table(path) == whole


@pytest.mark.slow
def test_a_damaged_member_that_halving_had_left_out_is_trained_again(place):
    grid = "sweep={stop: halving, grid: {optimizer.lr: [1e-6, 0.1, 1e-5]}}"
    assert main(["train", "s.yaml", grid, "data.split={train: 0.8, val: 0.2}"]) == 0
    path = newest(place)
    whole = table(path)
    with RunDirectory(path) as directory:
        directory.update(status="running", exit_code=None)
    for number in "01":  # paused, finished
        write_other_weights(path / "members" / number)
    assert main(["resume", str(path), "--trust"]) == 0
    assert table(path) == whole


@pytest.mark.slow
def test_members_and_settings_of_another_sweep_are_refused(place, capsys):
    for seed in (1, 2):
        assert main(["train", "s.yaml", "train.duration=1 epochs", f"sweep.seeds=[{seed}]"]) == 0
    second = newest(place)
    first = next(path for path in second.parent.glob("2*") if path != second)
    with RunDirectory(second) as directory:
        directory.update(status="stopped")
    config = (second / "config.yaml").read_text()
    for digit, other in (("clip_norm: 5", "clip_norm: 6"), ("[4]", "[5]"), ("0.01", "0.02")):
        assert digit in config
        (second / "config.yaml").write_text(config.replace(digit, other))
        capsys.readouterr()
        assert main(["resume", str(second), "--trust"]) == 2
        assert "has different settings from those of the sweep" in capsys.readouterr().err
    (second / "config.yaml").write_text(config)
    shutil.rmtree(second / "members/03")
    shutil.copytree(first / "members/03", second / "members/03", symlinks=True)
    assert main(["resume", str(second), "--trust"]) == 3
    assert "members/03 is not of this sweep" in capsys.readouterr().err


def test_a_file_with_a_sweep_is_no_run_of_a_trainer(place):
    from microtrain.errors import ConfigError
    from microtrain.train import Trainer, load_config

    with pytest.raises(ConfigError, match="many runs: microtrain train"):
        Trainer.from_config(load_config(Path("s.yaml")))


def test_an_error_names_the_member_and_keeps_those_before(place, capsys):
    grid = "sweep={grid: {loss: [cross_entropy, mse]}}"
    split = "data.split={train: 0.8, val: 0.2}"
    assert main(["train", "s.yaml", grid, split]) == 2
    assert "error: member 1 (loss=mse): loss mse compares numbers" in capsys.readouterr().err
    path = newest(place)
    assert json.loads((path / "run.json").read_text())["status"] == "failed"
    assert [member.info.status for member in members_of(path)] == ["finished"]


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
