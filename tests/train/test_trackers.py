"""Trackers with their real packages: what a log holds, also after a run was killed and resumed."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import mpi_run
import pytest

from microtrain.common.threads import LAUNCH
from microtrain.errors import install
from microtrain.runs.metrics import read_metrics
from microtrain.runs.run import Run

pytestmark = [
    pytest.mark.skipif(LAUNCH.parallel, reason="starts runs itself"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the packages among themselves
]

PLACES = ("split", "step", "epoch", "samples", "time")
TRAIN = """
name: line
data: {type: synthetic_linear, samples: 100, weights: [2], split: {train: 0.6, val: 0.2, test: 0.2}}
model: linear_regression
loss: mse
metrics: [r2]
optimizer: {type: sgd, lr: 0.1}
train: {duration: 8 epochs, batch_size: 10}
checkpoint: {every: 2 epochs}
"""
DIE = """
import os, microtrain as mt
@mt.train.every("1 steps")
def die(trainer):
    if trainer.step == 45:
        os._exit(9)
"""


def expected(run):
    """What metrics.jsonl holds: the value of each measure by its step."""
    found = {}
    for row in read_metrics(run / "metrics.jsonl"):
        for key, value in row.items():
            if key not in PLACES:
                found.setdefault(f"{row['split']}/{key}", {})[row["step"]] = value
    return found


def of_tensorboard(run):
    """The points of the event files, by TensorBoard's own reader."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "tensorboard"), {reader.SCALARS: 0})
    events.Reload()
    tags = events.Tags()
    assert tags["tensors"] == ["configuration/text_summary"]
    (text,) = events.Tensors("configuration/text_summary")
    assert b"optimizer.lr: 0.1\n" in text.tensor_proto.string_val[0]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}


def of_mlflow(run):
    """The points, by MLflow's client."""
    tracking = pytest.importorskip("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{run.parent.parent}/.mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("microtrain")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == f"line/{run.name}"
    assert found.info.status == "FINISHED"
    assert found.data.params["optimizer.lr"] == "0.1"
    assert found.data.params["train.batch_size"] == "10"
    return {
        key: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, key)]
        for key in found.data.metrics
    }


def scanned(path):
    """The records of a .wandb file: LevelDB's log behind a header of seven bytes."""
    content, position, record = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no header fits into what is left of the block
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def of_wandb(run):
    """The points in the files of offline runs, which are one run to W&B."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found, ids = {}, set()
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for content in scanned(path):
            record = records.Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config = {i.key: json.loads(i.value_json) for i in record.run.config.update}
                assert config["optimizer.lr"] == "0.1"
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in [*record.history.item, *record.summary.update]
            }
            for key, value in values.items():
                if key.startswith("test/"):  # in the summary alone
                    found[key] = [(*expected(run)[key], value)]
                elif "/" in key and record.HasField("history"):
                    found.setdefault(key, []).append((values["_step"], value))
    assert len(ids) == 1
    return found


TRACKERS = {
    "tensorboard": ("tensorboardX", of_tensorboard),
    "mlflow": ("mlflow", of_mlflow),
    "wandb": ("wandb", of_wandb),
}


def write(folder, *callbacks):
    (folder / "die.py").write_text(DIE)
    path = folder / "line.yaml"
    path.write_text(f"{TRAIN}callbacks: [{', '.join(callbacks)}]\n")
    return path


def job(folder, *arguments, ranks=1):
    command = [sys.executable, "-m", "microtrain", *map(str, arguments)]
    if ranks > 1:
        command = [mpi_run.find_mpirun(), "-n", str(ranks), *command]
    settings = {"MLFLOW_TRACKING_URI": None, "WANDB_MODE": None, "PYTHONPATH": None}
    return mpi_run.run_job(command, cwd=folder, env=settings, timeout=110)


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("killed", [False, True], ids=["at once", "killed and resumed"])
def test_every_row_is_in_the_log_once(tmp_path, tracker, killed):
    package, points = TRACKERS[tracker]
    pytest.importorskip(package)
    done = job(tmp_path, "train", write(tmp_path, tracker, *["./die.py:die"] * killed))
    assert done.returncode == (9 if killed else 0), done.stdout + done.stderr
    run = Run.read(tmp_path / "runs" / "line").path
    before = expected(run)
    if killed:
        assert max(before["train/loss"]) > 36  # beyond the checkpoint
        resumed = ["resume", run, f"callbacks=[{tracker}]"]
        done = job(tmp_path, *resumed, "--trust")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    rows, found = expected(run), points(run)
    assert set(found) == set(rows)
    assert {"train/lr", "train/samples_per_s", "val/loss", "val/r2", "test/r2"} <= set(rows)
    for key, values in rows.items():
        assert [step for step, _ in found[key]] == list(values), key
        if key != "train/samples_per_s":
            assert [v for _, v in found[key]] == pytest.approx(list(values.values()), rel=1e-6)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_rank_0_alone_logs(tmp_path, tracker):
    package, points = TRACKERS[tracker]
    pytest.importorskip(package)
    if reason := mpi_run.missing():
        pytest.skip(reason)
    done = job(tmp_path, "train", write(tmp_path, tracker), ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run.read(tmp_path / "runs" / "line").path
    found = points(run)
    assert [step for step, _ in found["train/comm_share"]] == list(expected(run)["train/loss"])


@pytest.mark.daily("tensorboard")
@pytest.mark.parametrize("tracker", TRACKERS)
def test_without_its_package_a_tracker_is_refused_at_the_start(tmp_path, tracker):
    code = (
        "import sys; import microtrain.cli.main as m\n"
        f"sys.modules[{TRACKERS[tracker][0]!r}] = None\n"
        "sys.exit(m.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(write(tmp_path, tracker))],
        cwd=tmp_path, env=mpi_run.clean_environment({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 5
    package = TRACKERS[tracker][0]
    assert f"error: {package} is not installed; {install(tracker)}" in done.stderr


def test_losing_a_tracker_does_not_lose_the_run(tmp_path):
    """A database that somebody removes, a folder that cannot be written any more."""
    pytest.importorskip("mlflow")
    (tmp_path / "lose.py").write_text(
        "import microtrain as mt\n"
        "@mt.train.every('20 steps')\n"
        "def lose(trainer):\n"
        "    place = trainer.path.parent.parent / '.mlflow' / 'mlflow.db'\n"
        "    if place.is_file():\n"
        "        place.unlink()\n"
        "        place.mkdir()\n"
    )
    (tmp_path / "line.yaml").write_text(f"{TRAIN}callbacks: [mlflow, './lose.py:lose']\n")
    done = job(tmp_path, "train", "line.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("warning: mlflow: ") == 1
    assert "the run goes on without it, its rows are in metrics.jsonl" in done.stderr
    assert Run.read(tmp_path / "runs" / "line").info.status == "finished"


def test_a_tracker_writes_through_no_link(tmp_path):
    pytest.importorskip("tensorboardX")
    job(tmp_path, "train", write(tmp_path, "./die.py:die"))
    run = Run.read(tmp_path / "runs" / "line").path
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", run / "tensorboard")
    done = job(tmp_path, "resume", run, "callbacks=[tensorboard]", "--trust")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "error: callback tensorboard: " in done.stderr
    assert not list(Path(tmp_path / "elsewhere").iterdir())
