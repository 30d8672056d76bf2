"""What is said before a run: what can be counted, and what some real steps take."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from microtrain.common.words import size
from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output, memory, peak_memory, sizes
from microtrain.train.trainer import Trainer

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
    # Inputs of both layers, what the norm got and the result of relu; dropout is at rest.
    kept = 4 * (20 + 2 * 256)
    assert kept <= trainer.of_row.kept <= kept + 4 * 3 * 256
    assert trainer.of_row.output == 4 * 3
    assert memory(trainer) == {
        "parameters": 4 * count,
        "data": data,
        "gradients": gradients,
        "shards": 0,
        "optimizer": 2 * 4 * count,  # Adam's two averages
        "activations": 400 * trainer.of_row.kept,
    }
    said = sizes(trainer)  # nobody knows the time before steps are taken
    assert said["model"] == f"{count:,} parameters"
    assert re.match(r"at least [\d.]+ [MG]B: ", said["memory"])
    assert (
        said["memory"]
        .split(": ")[1]
        .startswith(
            f"parameters {size(4 * count)}, data {size(data)}, "
            f"gradients {size(gradients)}, optimizer {size(2 * 4 * count)}, activations "
        )
    )


def test_a_batch_does_not_count_the_data_that_it_was_cut_from(tmp_path):
    few, many = (trainer_of(tmp_path, f"data.samples={n}").of_row for n in (800, 8000))
    assert few == many


def test_ranks_reduce_their_gradients_and_keep_shards(tmp_path):
    world = "distributed={reproducible: world, shards: 4}"

    def on_rank(comm):
        trainer = trainer_of(tmp_path, world, comm=comm)
        found.append((memory(trainer), sizes(trainer)))

    found = []
    in_process.run(2, on_rank)
    (one, said), (two, _) = found
    assert one == two
    gradients = re.search(r"gradients (.*?),", said["memory"])[1]
    assert said["model"].endswith(f"parameters, {gradients} reduced per step")
    assert re.search(
        r"at least \S+ [MG]B per rank: .* data \S+ KB per host.* shards \S+ KB", said["memory"]
    )


@pytest.mark.parametrize(
    "more", [(), ("train.compile=numpy", "model.count=false", "schedule=cosine")]
)
def test_a_dry_run_takes_steps_and_writes_nothing(tmp_path, more):
    lines = trainer_of(tmp_path, *more).dry_run()
    assert [line.split()[0] for line in lines] == ["model", "memory", "time", "measured"]
    assert "20 of 20 steps were measured" in lines[2]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_counts_what_rows_take(tmp_path):
    (tmp_path / "slow.py").write_text("""
import time, numpy as np, microtrain as mt

def rows(numbers):
    if len(numbers) == 25:  # a batch
        time.sleep(0.05)
    return np.ones((len(numbers), 20)), np.ones((len(numbers), 3))

def slow():
    return mt.data.FunctionSource(rows, 800)
""")
    source = f"data={{type: {tmp_path}/slow.py:slow}}"
    (line,) = trainer_of(tmp_path, source, "train.batch_size=25").dry_run()[2:3]
    assert float(re.search(r"([\d.]+) s per step", line)[1]) >= 0.05


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
