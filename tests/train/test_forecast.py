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
from microtrain.train.forecast import memory, peak_memory, sizes
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
    needed = memory(trainer)
    # First layer, its norm (a row in evaluation), relu and last layer; dropout is at rest.
    assert trainer.of_row.made >= 4 * (3 * 256 + 3)
    assert trainer.of_row.widest == 4 * 256
    assert trainer.of_row.output == 4 * 3
    assert needed.parts == {
        "parameters": 4 * count,
        "data": data,
        "gradients": gradients,
        "shards": 0,
        "optimizer": 2 * 4 * count,  # Adam's two averages
        "activations": 1.25 * 400 * trainer.of_row.made,
        "evaluation": 0,  # nothing is measured
        "checkpoint copy": 3 * 4 * count,  # `auto` may write one before the end
        "native code": 0,
        "rows read": 0,  # by chunks of files
    }
    there = sum(array.nbytes for array in trainer.data.train.arrays)
    assert there < needed.peak < peak_memory() + sum(needed.parts.values())
    said = sizes(trainer, needed)  # nobody knows the time before steps are taken
    assert said["model"] == f"{count:,} parameters"
    assert said["memory"].startswith(
        f"about {size(needed.peak)}: parameters {size(4 * count)}, data {size(data)}, "
        f"gradients {size(gradients)}, optimizer {size(2 * 4 * count)}, activations "
    )


def test_a_batch_does_not_count_the_data_that_it_was_cut_from(tmp_path):
    few, many = (trainer_of(tmp_path, f"data.samples={n}").of_row for n in (800, 8000))
    assert few == many


@pytest.mark.parametrize(
    ("settings", "copied"),
    [
        (("checkpoint.every=10 steps",), True),
        (("checkpoint.every=20 steps",), False),  # the last is written as it is
        (("checkpoint.every=20 steps", "metrics=[r2]", "train.eval_every=5 steps"), True),
    ],
)
def test_the_copy_of_a_checkpoint_is_counted_where_there_is_one(tmp_path, settings, copied):
    parts = memory(trainer_of(tmp_path, *settings)).parts
    assert (parts["checkpoint copy"] > 0) == copied
    assert (parts["evaluation"] > 0) == ("metrics=[r2]" in settings)


def test_native_code_is_counted_where_it_is_asked_for(tmp_path):
    pytest.importorskip("numba")
    model = ("model={type: mlp, hidden: [4]}", "train.compile=numba")
    assert memory(trainer_of(tmp_path, *model)).parts["native code"] > 100e6
    long = ("model={type: mlp, hidden: [4]}", "train.compile=auto", "train.duration=1000000 steps")
    assert memory(trainer_of(tmp_path, *long)).parts["native code"] > 100e6
    short = (*long[:2], "train.duration=1000 steps")
    assert memory(trainer_of(tmp_path, *short)).parts["native code"] == 0


def test_ranks_reduce_their_gradients_and_keep_shards(tmp_path):
    world = "distributed={reproducible: world, shards: 4}"

    def on_rank(comm):
        trainer = trainer_of(tmp_path, world, comm=comm)
        needed = memory(trainer)
        found.append((needed, sizes(trainer, needed)))

    found = []
    in_process.run(2, on_rank)
    (one, said), (two, _) = sorted(found, key=lambda each: -each[0].parts["checkpoint copy"])
    assert one.parts | {"checkpoint copy": 0} == two.parts  # which rank 0 alone has
    gradients = re.search(r"gradients (.*?),", said["memory"])[1]
    assert said["model"].endswith(f"parameters, {gradients} reduced per step")
    assert re.search(
        r"about \S+ [MG]B per rank: .* data \S+ KB per host.* shards \S+ KB", said["memory"]
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
