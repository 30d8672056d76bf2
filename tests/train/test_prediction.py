"""What is said before a run: counted, measured, and nothing of the run changed by it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.random import get_rng_state, place
from microtrain.train.forecast import Prediction, peak_memory, predict
from microtrain.train.output import Output
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

class Fails(Net):
    def forward(self, x):
        if len(x) > 2:
            raise ValueError("no")
        return super().forward(x)
"""
YAML = """
name: said
data: {type: synthetic_random, samples: 800, features: 20, targets: 3}
model: ./model.py:Net
loss: mse
optimizer: {type: adam, lr: 0.001}
train: {duration: 20 steps, batch_size: 400, compile: "off"}
"""


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than these runs, and more memory."""
    monkeypatch.setattr("microtrain.report.page.write_plots", lambda *_: None)


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


def predicted(trainer):
    return predict(trainer.parts, trainer.train_step)


def test_what_is_counted_and_measured(tmp_path):
    trainer = trainer_of(tmp_path)
    found = predicted(trainer)
    parameters = 20 * 256 + 256 + 2 * 256 + 256 * 3 + 3
    assert found.parameters == parameters
    assert found.memory["parameters"] == 4 * parameters
    assert 4 * parameters <= found.memory["gradients"] <= 4 * parameters + 400
    assert found.memory["optimizer"] == 2 * 4 * parameters  # Adam's two averages
    assert found.memory["data"] == sum(a.nbytes for a in trainer.data.train.arrays)
    # The hidden layer of 400 rows is saved a few times, and its gradient is made once or twice.
    layer = 400 * 256 * 4
    assert 2 * layer < found.memory["activations"] < 12 * layer
    assert found.sent == 0
    assert found.peak >= sum(found.memory.values())
    facts = found.facts()
    assert facts["model"] == f"{parameters:,} parameters"
    assert re.match(r"\S+ [MG]B a rank: parameters .*optimizer .*activations", facts["memory"])
    assert facts.keys() == {"model", "memory"}  # nobody knows the time before steps are taken


def test_smaller_micro_batches_need_less(tmp_path):
    whole = predicted(trainer_of(tmp_path)).memory["activations"]
    parts = predicted(trainer_of(tmp_path, "train.accumulate=8")).memory["activations"]
    assert parts < whole / 4


@pytest.mark.parametrize("more", [(), ("train.compile=numpy", "model.count=false"),
                                  ("train.accumulate=3",),
                                  ("distributed={reproducible: world, shards: 4}",)])  # fmt: skip
def test_a_run_is_the_same_with_and_without(tmp_path, more):
    finals = []
    for asked in (False, True):
        trainer = trainer_of(tmp_path, *more)
        if asked:
            before = get_rng_state(), place(), trainer.model.module.calls
            predicted(trainer)
            assert (get_rng_state(), place(), trainer.model.module.calls) == before
        trainer.train()
        finals.append({k: v.numpy().copy() for k, v in trainer.model.state_dict().items()})
    for name, value in finals[0].items():
        np.testing.assert_array_equal(value, finals[1][name], err_msg=name)


def test_ranks_share_and_do_not_wait_for_each_other(tmp_path):
    def on_rank(comm):
        trainer = trainer_of(tmp_path, comm=comm)
        found = predicted(trainer)
        assert found.sent == found.memory["gradients"]
        activations.append(found.memory["activations"])
        trainer.train()

    activations: list[int] = []
    in_process.run(4, on_rank)
    assert len(activations) == 4


def test_a_model_that_fails_says_so_at_the_first_step(tmp_path):
    trainer = trainer_of(tmp_path, "model=" + str(tmp_path / "model.py") + ":Fails")
    found = predicted(trainer)
    assert "activations" not in found.memory
    assert found.facts().keys() == {"model", "memory"}
    with pytest.raises(ValueError, match="no"):
        trainer.train()


@pytest.mark.parametrize(
    "more", [(), ("train.compile=numpy", "model.count=false", "schedule=cosine")]
)
def test_a_dry_run_takes_steps_and_writes_nothing(tmp_path, more):
    lines = trainer_of(tmp_path, *more).dry_run()
    assert [line.split()[0] for line in lines] == ["model", "memory", "time", "measured"]
    assert "20 of 20 steps were taken" in lines[2]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_several_ranks_ends_together(tmp_path):
    def on_rank(comm):
        said.append(trainer_of(tmp_path, comm=comm).dry_run()[0])

    said = []
    in_process.run(2, on_rank)
    assert len(set(said)) == 1
    assert "reduced a step" in said[0]


def test_the_last_line_compares():
    found = Prediction(3, peak=50_000_000)
    assert found.compared(60_000_000) == "60 MB of memory at most (predicted 50 MB)"


def test_the_data_are_no_activations(tmp_path):
    """A batch is a copy, as the loader makes it, and not the whole set it is a part of."""
    model = ("model=linear_regression", "train.batch_size=4")
    few = predicted(trainer_of(tmp_path, *model))
    many = predicted(trainer_of(tmp_path, *model, "data.samples=80000"))
    assert many.memory["activations"] == few.memory["activations"] < 4 * 20 * 4 * 4
    assert many.memory["data"] == 100 * few.memory["data"]


def test_the_peak_of_memory_is_in_bytes():
    before = peak_memory()
    held = np.ones(60_000_000 // 8)
    assert peak_memory() >= before
    assert 2**20 < peak_memory() < 2**42
    del held


def test_activations_are_those_of_the_numbers_that_are_saved(tmp_path):
    wide = predicted(trainer_of(tmp_path, "model.hidden=1024")).memory["activations"]
    narrow = predicted(trainer_of(tmp_path)).memory["activations"]
    assert 3 < wide / narrow < 5
