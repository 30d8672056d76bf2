"""Data that the memory of the process cannot hold: they train, with the bits of those in memory."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi_run import missing, run_job, run_mpi

import microtrain as mt
from microtrain.cli.main import main
from microtrain.data import npy
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint
from microtrain.train.console import Output

YAML = """
name: large
run_dir: runs
data: {{type: npy, inputs: x, target: y.npy, standardize: true, split: {{train: 0.75, val: 0.25}}}}
model: {{type: mlp, hidden: [4]}}
loss: mse
metrics: [r2, mae]
optimizer: {{type: sgd, lr: 0.01}}
train: {{duration: {steps} steps, batch_size: 64, eval_every: 8 steps, compile: off}}
checkpoint: {{every: 4 steps}}
distributed: {{reproducible: world, shards: 2}}
"""
ROWS, COLUMNS, FILES = 262144, 256, 8  # 256 MB, float32

# Memory, maps of files apart, that a process may ask for once MPI has started. A checkpoint
# asks for 64 MB in one piece, of which it uses next to nothing.
LIMITED = """
import resource, sys
from pathlib import Path

import microtrain as mt
from microtrain.cli import main
import microtrain.train.trainer

mt.distributed.world()
status = Path("/proc/self/status").read_text()
data = int(status.split("VmData:")[1].split()[0]) * 1024
limit = data + 160 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
"""
TRAIN = (
    LIMITED
    + """
main.main(sys.argv[1:])
"""
)
READ_WHOLE = (
    LIMITED
    + """
import numpy as np
np.concatenate([np.load(path) for path in sorted(Path("x").glob("*.npy"))])
"""
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An input of 256 MB in eight files, of which most is zeros that a disk need not hold."""
    path = tmp_path_factory.mktemp("large")
    (path / "x").mkdir()
    rng = np.random.default_rng(0)
    weights, targets = rng.standard_normal((8, 1)), []
    for number in range(FILES):
        file = np.lib.format.open_memmap(
            path / "x" / f"{number}.npy", "w+", np.float32, (ROWS // FILES, COLUMNS)
        )
        file[:, :8] = rng.standard_normal((len(file), 8)) + number
        targets.append(file[:, :8] @ weights)
    np.save(path / "y.npy", np.concatenate(targets).astype(np.float32))
    (path / "run.yaml").write_text(YAML.format(steps=24))
    (path / "train.py").write_text(TRAIN)
    (path / "whole.py").write_text(READ_WHOLE)
    return path


def left(path):
    """What a run leaves: its parameters, and what it has measured."""
    parameters = load_checkpoint(list_checkpoints(path / "checkpoints")[-1]).model
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    clock = ("time", "samples_per_s", "comm_share")
    rows = [{key: value for key, value in line.items() if key not in clock} for line in lines]
    return {name: array.tobytes() for name, array in parameters.items()}, rows


@pytest.mark.slow
def test_it_cannot_be_read_whole(directory):
    job = run_job([sys.executable, "whole.py"], cwd=directory)
    assert "MemoryError" in job.stderr, job.stderr


@pytest.fixture(scope="module")
def one(directory):
    """What a run on one rank leaves."""
    job = run_job(
        [sys.executable, "train.py", "train", "run.yaml", "name=on-1"], cwd=directory, timeout=120
    )
    assert job.returncode == 0, job.stdout + job.stderr
    return left(directory / "runs" / "on-1" / "latest")


def test_it_trains_all_the_same(one):
    _, rows = one
    assert rows[-1]["loss"] < rows[0]["loss"]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_it_trains_on_two_ranks_and_goes_on_on_another_number(directory, one):
    def train(ranks, *arguments):
        command = ["train.py", "train", *arguments]
        job = run_mpi(ranks, *command, cwd=directory, timeout=240)
        assert job.returncode == 0, job.stdout + job.stderr

    train(2, "run.yaml", "name=on-2")
    assert left(directory / "runs" / "on-2" / "latest") == one
    train(2, "run.yaml", "name=later", "train.duration=12 steps")
    train(1, "run.yaml", "name=later", "--resume", "auto")
    assert left(directory / "runs" / "later" / "latest")[0] == one[0]


def test_a_trainer_leaves_the_bits_of_the_run_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 7)).astype(np.float32)
    y = (x @ rng.standard_normal((7, 1))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    found = {}
    for name, data in {
        "memory": (x, y),
        "file": npy(tmp_path / "x.npy", tmp_path / "y.npy"),
        "map": tuple(np.load(tmp_path / f"{each}.npy", mmap_mode="r") for each in "xy"),
    }.items():
        mt.manual_seed(0)
        trainer = mt.train.Trainer(
            mt.nn.Sequential(mt.nn.Linear(7, 8), mt.nn.ReLU(), mt.nn.Linear(8, 1)), data,
            loss="mse", optimizer={"type": "adam", "lr": 0.01}, metrics=["mae", "rmse"],
            name=name, run_dir=str(tmp_path / "runs"), duration="3 epochs", batch_size=50,
            split={"train": 0.6, "val": 0.2, "test": 0.2}, output=Output(0, stream=io.StringIO()),
        )  # fmt: skip
        trainer.train()
        found[name] = left(Path(trainer.path))
    assert found["memory"] == found["file"] == found["map"]


@pytest.mark.slow
def test_what_reads_a_run_reads_its_source(tmp_path, monkeypatch, capsys):
    """check, evaluate, predict, resume and the report of a run on files."""
    rng = np.random.default_rng(0)
    (tmp_path / "x").mkdir()
    for number in range(3):
        np.save(tmp_path / "x" / f"{number}.npy", rng.standard_normal((100, 5)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 3, 300))
    text = YAML.format(steps=10).replace(
        "model: {type: mlp, hidden: [4]}", "model: logistic_regression"
    )
    text = text.replace("loss: mse", "loss: {type: cross_entropy, class_weight: balanced}")
    text = text.replace("metrics: [r2, mae]", "metrics: [accuracy]")
    (tmp_path / "run.yaml").write_text(text)
    np.savez(tmp_path / "new.npz", x=np.ones((4, 5), np.float32))

    monkeypatch.chdir(tmp_path)

    def microtrain(*arguments):
        code, said = main(arguments), capsys.readouterr()
        assert code == 0, said.out + said.err
        return said.out + said.err

    assert "225 train, 75 val" in microtrain("train", "run.yaml")
    microtrain("check", "run.yaml")
    assert "as recorded" in microtrain("evaluate", "runs/large")
    microtrain("predict", "runs/large", "--input", "new.npz", "--output", "out.csv")
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 5
    first = np.load(tmp_path / "x" / "0.npy")
    first[0, 0] += 1
    np.save(tmp_path / "x" / "0.npy", first)
    assert "the data have changed since the run" in microtrain("evaluate", "runs/large")
