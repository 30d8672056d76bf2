"""The promise of the product: the same YAML gives the same result on 1, 2, 3 and 4 ranks.

Tests with `comm` run on threads here and on real MPI ranks under `mpirun -n N python -m pytest`.
"""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest
from exactness import relative, train_regression
from pace import daily

from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

pytestmark = pytest.mark.mpi

CASES = {
    "plain": {},
    "accumulate": {"train.accumulate": 3},
    "sum": {"loss": "{type: mse, reduction: sum}", "optimizer.lr": 0.0003},
    "sum and accumulate": {
        "loss": "{type: mse, reduction: sum}",
        "optimizer.lr": 0.0003,
        "train.accumulate": 4,
    },
    # Batches of three rows and a tail of two: at four ranks one is always empty.
    "empty ranks": {"train.batch_size": 3, "optimizer.lr": 0.002},
    "target in its own unit": {"data.standardize_target": "true", "data.clip": "true"},
    "no shuffle, momentum": {"train.shuffle": "false", "optimizer.momentum": 0.9},
}
YAML = """
name: exact
dtype: float64
data: {type: synthetic_relu, samples: 1001, features: 4, hidden: 8, targets: 2, noise: 0.1}
model: {type: mlp, hidden: [9]}
loss: mse
metrics: [r2, rmse, mae]
optimizer: {type: sgd, lr: 0.02}
train: {duration: 50 steps, batch_size: 334, eval_every: 10 steps}
"""


def run_yaml(comm, directory, overrides):
    """Final weights and the metrics file of one run."""
    path = directory / "exact.yaml"
    if comm.rank == 0:
        path.write_text(YAML)
    comm.barrier()
    settings = [f"{key}={value}" for key, value in overrides.items()]
    config = load_config(path, [*settings, f"run_dir={directory}/runs-{comm.size}"])
    quiet = Output(comm.rank, stream=io.StringIO())
    trainer = Trainer.from_config(config, comm, quiet)
    trainer.train()
    weights = {name: t.numpy().copy() for name, t in trainer.model.state_dict().items()}
    rows = None
    if comm.rank == 0:
        (run,) = (directory / f"runs-{comm.size}" / "exact").glob("2*")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert json.loads((run / "run.json").read_text())["status"] == "finished"
    return weights, comm.broadcast_object(rows)


@pytest.mark.daily("empty ranks")
@pytest.mark.parametrize("case", daily(CASES, "plain", "empty ranks"))
def test_a_yaml_run_is_the_same_at_every_number_of_ranks(comm, shared_tmp_path, case):
    alone = shared_tmp_path / f"alone-{comm.rank}"
    with contextlib.suppress(FileExistsError):
        alone.mkdir()
    expected, expected_rows = run_yaml(SingleCommunicator(), alone, CASES[case])
    found, rows = run_yaml(comm, shared_tmp_path, CASES[case])
    for name, value in expected.items():
        assert relative(found[name], value) <= 1e-12, name
    clock = ("time", "samples_per_s", "comm_share")
    assert len(rows) == len(expected_rows) > 5
    for row, other in zip(rows, expected_rows, strict=True):
        assert row.keys() - set(clock) == other.keys() - set(clock)
        for key in row.keys() - set(clock):
            if isinstance(row[key], float):
                assert row[key] == pytest.approx(other[key], rel=1e-11), (key, row)
            else:
                assert row[key] == other[key]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loop_of_ones_own_is_the_same_at_every_number_of_ranks(comm, reduction):
    expected = train_regression(SingleCommunicator(), reduction=reduction)
    found = train_regression(comm, accumulate=2, reduction=reduction)
    assert relative(found["losses"], expected["losses"]) <= 1e-12
    for name, value in expected["weights"].items():
        assert relative(found["weights"][name], value) <= 1e-12


def test_all_ranks_hold_the_same_bits(comm):
    weights = train_regression(comm, rows=50, batch=7)["weights"]
    everyone = comm.all_gather_object({name: w.tobytes() for name, w in weights.items()})
    assert all(theirs == everyone[0] for theirs in everyone)


def test_more_ranks_than_samples_is_fine(comm):
    expected = train_regression(SingleCommunicator(), rows=3, batch=2)
    found = train_regression(comm, rows=3, batch=2)
    assert relative(found["losses"], expected["losses"]) <= 1e-12
    np.testing.assert_array_equal(len(found["losses"]), 50)
