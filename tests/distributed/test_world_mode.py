"""`reproducible: world`: a YAML run leaves the same bits at every number of ranks."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microtrain.config.load import load_config
from microtrain.distributed import Communicator
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

MODEL = """
import microtrain as mt

def digits(in_features, classes):
    nn = mt.nn
    hidden = [nn.Linear(in_features, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*hidden, nn.Linear(32, classes))
"""
YAML = """
name: world
data: {type: sklearn, name: digits, split: {train: 0.7, val: 0.1, test: 0.2}}
model: ./model.py:digits
loss: cross_entropy
metrics: [accuracy]
optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
train: {duration: 200 steps, batch_size: 96, drop_last: true, eval_every: 50 steps}
distributed: {reproducible: world, shards: 7}
"""
CLOCK = {"time", "samples_per_s", "comm_share"}


def run_yaml(comm: Communicator, directory: Path, *settings: str) -> tuple[str, Any, str]:
    """A hash of the weights, the rows without what clocks say, and the header."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    if comm.rank == 0:
        (directory / "world.yaml").write_text(YAML)
        (directory / "model.py").write_text(MODEL)
    comm.barrier()
    config = load_config(
        directory / "world.yaml", [*settings, f"run_dir={directory}/runs-{comm.size}"], trust=True
    )
    said = io.StringIO()
    trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=said))
    trainer.train()
    digest = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    rows = None
    if comm.rank == 0:
        (run,) = (directory / f"runs-{comm.size}" / "world").glob("2*")
        lines = (run / "metrics.jsonl").read_text().splitlines()
        rows = [{k: v for k, v in json.loads(x).items() if k not in CLOCK} for x in lines]
    return digest.hexdigest(), comm.broadcast_object(rows), said.getvalue()


SHORT = "train.duration=30 steps", "train.eval_every=10 steps"
EAGER, CAPTURED = ("train.compile=off",), ("train.compile=numpy",)
slow = pytest.mark.slow
CASES = [
    pytest.param((*CAPTURED, *SHORT), id="short"),
    pytest.param(EAGER, id="eager", marks=slow),
    pytest.param(CAPTURED, id="captured", marks=slow),
    pytest.param((*EAGER, "train.accumulate=2"), id="accumulated", marks=slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", CASES)
def test_digits_have_the_same_bits(
    comm: Communicator, shared_tmp_path: Path, settings: tuple[str, ...]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    alone = settings[1:]  # eagerly, whatever the others do
    expected, expected_rows, _ = run_yaml(
        SingleCommunicator(), shared_tmp_path / f"alone-{comm.rank}", "train.compile=off", *alone
    )
    found, rows, said = run_yaml(comm, shared_tmp_path / "together", *settings)
    assert found == expected
    assert rows == expected_rows
    assert len([row for row in rows if row["split"] == "val"]) in (3, 4)
    assert rows[-1]["split"] == "test"
    assert rows[-1]["accuracy"] > (0.5 if SHORT[0] in settings else 0.8)
    if comm.rank == 0:
        assert "7 shards: the same bits on every number of ranks up to 7" in said


def test_more_ranks_than_shards_are_refused(comm: Communicator, shared_tmp_path: Path) -> None:
    if comm.size == 1:
        return
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    with pytest.raises(ConfigError, match=f"got {comm.size}") as caught:
        run_yaml(comm, shared_tmp_path / "refused", f"distributed.shards={comm.size - 1}")
    assert caught.value.agreed  # no rank is left waiting
    assert f"at most {comm.size - 1} ranks" in str(caught.value)


WRONG = {
    "distributed: {shards: 4}": "only world mode has shards",
    "distributed: {reproducible: world, compression: fp16}": "rounds by rank",
    "distributed: {reproducible: world, overlap: true}": "adds up the shards when all are there",
    "distributed: {compression: bf16, overlap: true}": "compressed gradients are reduced at once",
    "distributed: {reproducible: world, blas_threads: 2}": "needs 1; with more",
    "distributed: {warn_s: 60, timeout_s: 50}": "no warning can come after 60 s",
    "distributed: {warn_s: 700}": "no warning can come after 700 s",
    "distributed: {compression: fp8}": "expected none, fp16 or bf16",
    "distributed: {timeout_s: 0}": "greater than 0, got 0",
}


@pytest.mark.parametrize("text", WRONG)
def test_settings_that_do_not_go_together(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.yaml"
    lines = [line for line in YAML.splitlines() if not line.startswith("distributed")]
    path.write_text(
        "\n".join([*lines, text]).replace("./model.py:digits", "{type: mlp, hidden: [4]}")
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, [])
    assert WRONG[text] in str(caught.value)


@pytest.mark.filterwarnings("ignore:DataParallel. .* is a batch norm")
def test_what_the_header_says_of_the_ranks(comm: Communicator, shared_tmp_path: Path) -> None:
    settings = ("distributed.reproducible=run", "distributed.shards=8", "train.duration=2 steps")
    settings += ("train.eval_every=2 steps", "distributed.sync_batchnorm=false")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    _, _, said = run_yaml(comm, shared_tmp_path / "header", *settings)
    if comm.rank == 0 and comm.size > 1:
        assert "overlap off: the gradients fit into one bucket" in said
        assert "batch norm sees each rank's own rows (sync_batchnorm: false)" in said
    elif comm.size == 1:
        assert "overlap" not in said
