"""What is said before a run: what can be counted, and what some real steps take."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.forecast import peak_memory, sizes
from microtrain.train.output import Output
from microtrain.train.trainer import Trainer
from microtrain.words import size

MODEL = """
import microtrain as mt

class Net(mt.nn.Module):
    def __init__(self, in_features, out_features, hidden=256, count=True):
        super().__init__()
        self.first, self.norm = mt.nn.Linear(in_features, hidden), mt.nn.BatchNorm1d(hidden)
        self.last, self.calls = mt.nn.Linear(hidden, out_features), 0
        self.count = count
    def forward(self, x):
        self.calls += self.count
        h = mt.nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2, self.training)
        return self.last(h)
"""
YAML = """
name: said
data: {type: synthetic_random, samples: 800, features: 20, targets: 3}
model: ./model.py:Net
loss: mse
optimizer: {type: adam, lr: 0.001}
train: {duration: 20 steps, batch_size: 400, compile: "off"}
"""


def trainer_of(place: Path, *settings, comm=None):
    if comm is None or comm.rank == 0:
        (place / "model.py").write_text(MODEL)
        (place / "said.yaml").write_text(YAML)
    if comm is not None:
        comm.barrier()
    overrides = [*settings, f"run_dir={place}/runs"]
    comm = comm or SingleCommunicator()
    config = load_config(place / "said.yaml", overrides, trust=True)
    return Trainer.from_config(
        config, comm, Output(comm.rank, stream=io.StringIO(), errors=io.StringIO())
    )


def test_what_is_counted(tmp_path):
    trainer = trainer_of(tmp_path)
    count = 20 * 256 + 256 + 2 * 256 + 256 * 3 + 3
    data = sum(array.nbytes for array in trainer.data.train.arrays)
    gradients = sum(buffer.wide.nbytes for buffer in trainer.model.storage.buffers)
    assert 4 * count <= gradients <= 4 * count + 400
    assert sizes(trainer) == {  # nobody knows the time before steps are taken
        "model": f"{count:,} parameters",
        "memory": f"parameters {size(4 * count)}, gradients {size(gradients)}, "
        f"optimizer {size(2 * 4 * count)}, data {size(data)} per rank, without activations",
    }  # Adam's two averages


def test_ranks_reduce_their_gradients_and_keep_shards(tmp_path):
    world = "distributed={reproducible: world, shards: 4}"

    def on_rank(comm):
        found.append(sizes(trainer_of(tmp_path, world, comm=comm)))

    found: list[dict[str, str]] = []
    in_process.run(2, on_rank)
    assert found[0] == found[1]
    gradients = re.search(r"gradients (.*?),", found[0]["memory"])[1]
    assert found[0]["model"].endswith(f"parameters, {gradients} reduced per step")
    assert re.search(r"shards \S+ KB, optimizer", found[0]["memory"])


@pytest.mark.parametrize(
    "more", [(), ("train.compile=numpy", "model.count=false", "schedule=cosine")]
)
def test_a_dry_run_takes_steps_and_writes_nothing(tmp_path, more):
    lines = trainer_of(tmp_path, *more).dry_run()
    assert [line.split()[0] for line in lines] == ["model", "memory", "time", "measured"]
    assert "20 of 20 steps were measured" in lines[2]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_several_ranks_ends_together(tmp_path):
    def on_rank(comm):
        said.append(trainer_of(tmp_path, comm=comm).dry_run()[0])

    said = []
    in_process.run(2, on_rank)
    assert len(set(said)) == 1
    assert "reduced per step" in said[0]


def test_the_peak_of_memory_is_in_bytes():
    before = peak_memory()
    held = np.ones(60_000_000 // 8)
    assert peak_memory() >= before
    assert 2**20 < peak_memory() < 2**42
    del held
