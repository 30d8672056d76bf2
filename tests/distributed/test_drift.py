"""What may not differ between ranks while a model trains is told at once, on every rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.distributed import Communicator, in_process
from microtrain.distributed.replicas import Alike
from microtrain.optim.flat import FlatStorage

BUCKETS = {"overlap": "on", "bucket_mb": 1e-5}


class Centered(mt.nn.Module):
    """Takes a running mean of its inputs off, which `move(self, x)` updates."""

    def __init__(self, move: Any) -> None:
        super().__init__()
        self.move = move
        self.linear = mt.nn.Linear(3, 1)
        self.register_buffer("mean", mt.zeros(3))
        self.register_buffer("mask", mt.ones(3))
        self.register_buffer("steps", mt.tensor(0))

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        if self.training:
            with mt.no_grad():
                self.move(self, x)
        return self.linear((x - self.mean) * self.mask)


def in_place(net: Any, x: Any) -> None:
    net.mean.mul_(0.9).add_(0.1 * x.mean(0))


def one_element(net: Any, x: Any) -> None:
    net.mean[0] = x.mean()


def an_assignment(net: Any, x: Any) -> None:
    net.mean = 0.9 * net.mean + 0.1 * x.mean(0)


def its_data(net: Any, x: Any) -> None:
    net.mean.data = 0.9 * net.mean + 0.1 * x.mean(0)


def by_numpy(net: Any, x: Any) -> None:
    net.mean.numpy()[...] += x.mean(0).numpy()


def a_count_of_rows(net: Any, x: Any) -> None:
    net.steps += int(x.sum().item())


def by_sums(net: Any, x: Any) -> None:
    total = mt.distributed.all_reduce(mt.cat([x.sum(0), mt.ones(1) * x.shape[0]]))
    net.mean.mul_(0.9).add_(0.1 * total[:3] / total[3])
    net.steps += 1


def count(net: Any, x: Any) -> None:
    net.steps += 1


def rewrite(net: Any, x: Any) -> None:
    if x.numpy().min() % 2 == 0:  # on some ranks, in some steps: with the value that it has
        net.mask.mul_(1)


def nothing(net: Any, x: Any) -> None:
    pass


@pytest.fixture(params=[None, "numpy", "native"])
def executor(request: pytest.FixtureRequest) -> str | None:
    """What runs the steps; None: nothing else than the code."""
    if request.param == "native":
        needs_compiler()
        request.getfixturevalue("native_code")
    return request.param


def steps_of(model: Any, executor: str | None, inputs: Any) -> None:
    optimizer = mt.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: mt.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    step = step if executor is None else mt.compile(step, executor=executor)
    for x in inputs:
        step(x)


def trained(comm: Communicator, move: Any, executor: str | None = None, **options: Any) -> Any:
    mt.manual_seed(0)
    model = mt.distributed.DataParallel(Centered(move), comm, **options)
    rows = np.arange(60, dtype="f4").reshape(5, 4, 3) % 7
    steps_of(model, executor, (mt.from_numpy(x[comm.rank :: comm.size].copy()) for x in rows))
    return {name: value.tolist() for name, value in model.state_dict().items()}


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("move", [in_place, one_element])
def test_a_buffer_that_sees_the_rows_of_one_rank_is_refused(
    comm: Communicator, move: Any, executor: str | None
) -> None:
    if comm.size == 1:
        trained(comm, move, executor)
        return
    with pytest.raises(RuntimeError, match=r"become different: mean of rank.*1.*all_reduce"):
        trained(comm, move, executor)


@pytest.mark.parametrize(
    "options", [{}, {"overlap": "on", "bucket_mb": 1e-5}, {"reduction": "sum"}]
)
@pytest.mark.parametrize("move", [an_assignment, its_data, by_numpy, a_count_of_rows])
def test_however_it_is_written(move: Any, options: Any) -> None:
    name = "steps" if move is a_count_of_rows else "mean"
    with pytest.raises(RuntimeError, match=rf"different: {name} of rank.* 2 is not that of rank 0"):
        in_process.run(3, lambda comm: trained(comm, move, **options))


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("move", [by_sums, count, nothing])
def test_buffers_that_stay_equal_are_left_alone(
    comm: Communicator, move: Any, executor: str | None
) -> None:
    found = trained(comm, move, executor)
    (alone,) = in_process.run(1, lambda one: trained(one, move, executor))
    for name, value in found.items():
        np.testing.assert_allclose(value, alone[name], rtol=1e-4, err_msg=name)
    assert comm.all_gather_object(found) == [found] * comm.size


def test_a_write_that_changes_nothing_is_no_difference() -> None:
    found = in_process.run(3, lambda comm: trained(comm, rewrite))
    assert found[0] == found[1] == found[2]


def test_the_mean_over_shards_keeps_buffers_equal() -> None:
    def work(comm: Communicator) -> Any:
        mt.manual_seed(0)
        model = mt.distributed.DataParallel(Centered(in_place), comm, shards=4)
        data = mt.data.ArrayDataset(np.arange(24, dtype="f4").reshape(8, 3))
        for batches in mt.data.DataLoader(data, 8, comm=comm, shards=4).steps(passes=3):
            for (x,) in batches:
                (model(x) ** 2).mean().backward()
        return model.module.mean.tolist()

    one, (first, second) = in_process.run(1, work), in_process.run(2, work)
    assert one[0] == first == second


def frozen(comm: Communicator, which: Any, executor: str | None, **options: Any) -> None:
    """Three steps, and three after `which` ranks have frozen a parameter."""
    net = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.Tanh(), mt.nn.Linear(4, 1))
    model = mt.distributed.DataParallel(net, comm, **options)

    def inputs() -> Any:
        for number in range(6):
            if number == 3 and which(comm.rank):
                net[0].weight.requires_grad_(False)
            yield mt.ones(2, 3) * (comm.rank + 1)
            assert not (number == 3 and which(0) != which(1)), "not told in the step of it"

    steps_of(model, executor, inputs())


@pytest.mark.daily("numpy")
def test_a_parameter_frozen_on_one_rank_is_told_in_that_step(
    comm: Communicator, executor: str | None
) -> None:
    frozen(comm, lambda rank: True, executor)
    if comm.size > 1:
        message = r"requires_grad of 0.weight is True on rank.*, False on rank 1"
        with pytest.raises(RuntimeError, match=message):
            frozen(comm, lambda rank: rank == 1, executor)


@pytest.mark.parametrize("options", [BUCKETS, {"compression": "fp16"}])
def test_however_gradients_travel(options: Any) -> None:
    with pytest.raises(RuntimeError, match="is True on ranks 0, 2, False on rank 1"):
        in_process.run(3, lambda comm: frozen(comm, lambda rank: rank == 1, None, **options))


def test_in_shards_too() -> None:
    def work(comm: Communicator) -> None:
        model = mt.distributed.DataParallel(mt.nn.Linear(3, 1), comm, shards=4)
        data = mt.data.ArrayDataset(np.ones((8, 3), "f4"))
        for number, batches in enumerate(
            mt.data.DataLoader(data, 8, comm=comm, shards=4).steps(passes=3)
        ):
            model.module.bias.requires_grad_(number == 0 or comm.rank == 0)
            for (x,) in batches:
                (model(x) ** 2).mean().backward()

    with pytest.raises(RuntimeError, match="requires_grad of bias is True on rank 0, False"):
        in_process.run(2, work)


def test_models_that_differ_in_it_from_the_beginning_are_refused() -> None:
    def work(comm: Communicator) -> None:
        net = mt.nn.Linear(3, 1)
        net.bias.requires_grad_(comm.rank == 0)
        mt.distributed.DataParallel(net, comm)

    with pytest.raises(RuntimeError, match=r"models of the ranks differ: .*requires_grad of bias"):
        in_process.run(2, work)


@given(st.integers(2, 5000), st.integers(0, 100), st.integers(1, 4))
def test_marks_add_up_without_a_carry(size: int, step: int, others: int) -> None:
    net = Centered(count)
    storage = FlatStorage.of(net.parameters(), "test")
    comm: Any = SimpleNamespace(size=size)
    alike = [Alike(comm, net, storage, True) for _ in range(2)]
    first = [one.mark(0) for one in alike]
    assert first == [0, 0]
    net.steps += 1
    mine = np.float32(alike[0].mark(step))
    assert alike[1].mark(step) == mine
    net.steps += 1
    theirs = np.float32(alike[1].mark(step))
    # Float32 adds them up exactly in any order, and only equal ones give a multiple.
    assert int(mine) * size <= 2**24
    total = sum([theirs] * min(others, size - 1), np.float32(0)) + mine * (size - others)
    if others < size:
        assert (total == size * mine) == (theirs == mine)
