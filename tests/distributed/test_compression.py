"""Gradients in 16 bits: what a step loses the next ones bring, and all ranks get the same bits."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.distributed.compression import (
    all_reduce,
    from_bfloat16,
    nothing_owed,
    to_bfloat16,
)
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

BITS = {"fp16": 11, "bf16": 8}


def gradient(rank: int, step: int, size: int, dtype: str = "f4") -> np.ndarray:
    rng = np.random.default_rng([rank, step])
    return (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4)).astype(dtype)


@pytest.mark.parametrize("kind", BITS)
@given(
    size=st.sampled_from([1, 2, 5, 1000]),
    world=st.integers(1, 4),
    dtype=st.sampled_from(["f4", "f8"]),
)
@settings(max_examples=20, deadline=None)
def test_a_sum_is_right_to_the_bits_sent(kind: str, size: int, world: int, dtype: str) -> None:
    expected = sum(gradient(rank, 0, size, dtype).astype("f8") for rank in range(world))

    def work(comm: Communicator) -> np.ndarray:
        mine = gradient(comm.rank, 0, size, dtype)
        all_reduce(comm, kind, mine, nothing_owed(comm, mine))
        return mine

    highest = max(np.abs(gradient(rank, 0, size)).max() for rank in range(world))
    for found in in_process.run(world, work):
        bound = (world + 1) * (world + 1) * highest * 2.0 ** -BITS[kind]
        assert np.abs(found - expected).max() <= bound


@pytest.mark.parametrize("kind", BITS)
def test_what_is_cut_off_comes_later(comm: Communicator, kind: str) -> None:
    size, steps = 1003, 40
    owed = nothing_owed(comm, gradient(0, 0, size))
    got = np.zeros(size)
    true = np.zeros(size)
    highest = 0.0
    for step in range(steps):
        mine = gradient(comm.rank, step, size)
        all_reduce(comm, kind, mine, owed)
        got += mine
        for rank in range(comm.size):
            one = gradient(rank, step, size)
            true += one
            highest = max(highest, float(np.abs(one).max()))
    # Only the last step's rest is missing, however many steps there were.
    bound = 4 * comm.size * (comm.size + 1) * highest * 2.0 ** -BITS[kind]
    assert np.abs(got - true).max() <= bound
    everyone = comm.all_gather(got)
    assert all(row.tobytes() == got.tobytes() for row in everyone)


@pytest.mark.parametrize("kind", BITS)
def test_the_lane_is_exact(comm: Communicator, kind: str) -> None:
    mine = np.ones(5, "f4")
    footer = np.array([comm.rank + 1e-9, 1e6 + comm.rank])
    total = all_reduce(comm, kind, mine, nothing_owed(comm, mine), footer)
    expected = sum(np.array([rank + 1e-9, 1e6 + rank]) for rank in range(comm.size))
    np.testing.assert_allclose(total, expected, rtol=1e-15)
    assert (mine == comm.size).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", BITS)
def test_what_is_not_finite_reaches_all(comm: Communicator, kind: str, value: float) -> None:
    mine = np.ones(4, "f4")
    owed = nothing_owed(comm, mine)
    if comm.rank == comm.size - 1:
        mine[2] = value
    all_reduce(comm, kind, mine, owed)
    assert not np.isfinite(mine[2])
    again = np.ones(4, "f4")
    all_reduce(comm, kind, again, owed)  # nothing of it is left over
    np.testing.assert_allclose(again, comm.size, rtol=0.02)


@pytest.mark.parametrize("value", [1e-30, 1e30, 65504.0, 70000.0, 0.0])
@pytest.mark.parametrize("kind", BITS)
def test_the_range_of_float16_is_no_limit(comm: Communicator, kind: str, value: float) -> None:
    mine = np.full(3, value, "f4")
    all_reduce(comm, kind, mine, nothing_owed(comm, mine))
    np.testing.assert_allclose(mine, np.float32(value) * comm.size, rtol=0.02)


@given(st.floats(width=32))
def test_bfloat16_is_the_nearest(value: float) -> None:
    given = np.array([value], "f4")
    found = from_bfloat16(to_bfloat16(given))[0]
    if np.isnan(value):
        assert np.isnan(found)
        return
    word = int(given.view("u4")[0]) >> 16
    with np.errstate(all="ignore"):
        near = from_bfloat16(np.array([max(word - 1, word & 0x8000), word, word + 1], "u2"))
    if np.isfinite(value) and np.isfinite(found):
        best = min(abs(float(x) - value) for x in near if np.isfinite(x))
        assert abs(float(found) - value) == best


@pytest.mark.daily("fp16")
@pytest.mark.parametrize("kind", ["none", *BITS])
def test_a_network_learns_as_well(comm: Communicator, kind: Any) -> None:
    mt.manual_seed(0)
    net = mt.nn.Sequential(mt.nn.Linear(4, 16), mt.nn.ReLU(), mt.nn.Linear(16, 1))
    model = DataParallel(net, comm, compression=kind)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 4)).astype("f4")
    y = np.sin(x.sum(1, keepdims=True))
    xb, yb = (mt.from_numpy(a[comm.rank :: comm.size].copy()) for a in (x, y))
    for _ in range(300):
        optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(xb), yb).backward()
        optimizer.step()
    assert model.loss is not None
    assert model.loss < 0.03
    assert model.samples == 64
    digest = hashlib.sha256(
        b"".join(p.numpy().tobytes() for p in map(mt.Tensor.detach, model.parameters()))
    )
    assert len(set(comm.all_gather_object(digest.hexdigest()))) == 1


def test_wrong_arguments(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="compression is none, fp16 or bf16, got 'zip'"):
        DataParallel(mt.nn.Linear(1, 1), comm, compression="zip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose one"):
        DataParallel(mt.nn.Linear(1, 1), comm, compression="bf16", shards=comm.size)


DIGITS = """
name: digits
data: {type: sklearn, name: digits, standardize: true, split: {train: 0.7, val: 0.1, test: 0.2}}
model: {type: mlp, hidden: [64]}
loss: cross_entropy
metrics: [accuracy]
optimizer: {type: sgd, lr: 0.1, momentum: 0.9}
train: {duration: 15 epochs, batch_size: 64}
"""


@pytest.mark.slow
def test_digits_are_read_as_well(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (tmp_path / "digits.yaml").write_text(DIGITS)

    def work(comm: Communicator, kind: str) -> float:
        overrides = [f"distributed.compression={kind}", f"run_dir={tmp_path}/{kind}"]
        config = load_config(tmp_path / "digits.yaml", overrides)
        Trainer.from_config(config, comm, Output(comm.rank, stream=io.StringIO())).train()
        (run,) = (tmp_path / kind / "digits").glob("2*")
        return float(json.loads((run / "run.json").read_text())["test"]["accuracy"])

    found = {kind: in_process.run(2, work, kind)[0] for kind in ("none", *BITS)}
    assert found["none"] > 0.94
    for kind in BITS:
        assert abs(found[kind] - found["none"]) <= 0.01, found
