"""Buckets that travel beside the backward pass bring the gradients of one reduction after it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.distributed.overlap import Overlap, buckets_of
from microtrain.optim.flat import FlatStorage

F = mt.nn.functional


class Net(mt.nn.Module):
    """Tied, reused, unused and sometimes unused parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mt.nn.Linear(5, 5, dtype=mt.float64)
        self.tied = mt.nn.Linear(5, 5, dtype=mt.float64)
        self.tied.weight = self.first.weight
        self.sometimes = mt.nn.Linear(5, 5, dtype=mt.float64)
        self.never = mt.nn.Linear(3, 3, dtype=mt.float64)
        self.last = mt.nn.Linear(5, 2, dtype=mt.float64)

    def forward(self, x: Any, with_sometimes: bool) -> Any:
        x = self.tied(F.relu(self.first(F.relu(self.first(x)))))
        if with_sometimes:
            x = x + self.sometimes(x)
        return self.last(x)


def train(comm: Communicator, overlap: Any, *, compiled: bool, accumulate: int) -> list[Any]:
    mt.manual_seed(1)
    model = DataParallel(Net(), comm, overlap=overlap, bucket_mb=1e-4)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4 * accumulate, 7, 5)), rng.standard_normal((4 * accumulate, 7, 2))

    def run(xb: Any, yb: Any, flag: bool) -> Any:
        loss = F.mse_loss(model(xb, flag), yb)
        loss.backward()
        return loss

    if compiled:
        run = mt.compile(run)
    found: list[Any] = []
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(accumulate):
            # Uneven, and the last rank has no rows at every second step.
            cut = np.linspace(0, 7, comm.size + 1).astype(int)
            if step % 2:
                cut[-2] = 7
            mine = slice(cut[comm.rank], cut[comm.rank + 1])
            at = step * accumulate + micro
            batch = [mt.from_numpy(np.ascontiguousarray(a[at, mine])) for a in (x, y)]
            flag = (comm.rank + step) % 2 == 0
            if micro < accumulate - 1:
                with model.no_sync():
                    run(*batch, flag)
            else:
                run(*batch, flag)
        found += [None if p.grad is None else p.grad.numpy().copy() for p in model.parameters()]
        found.append(np.float64(model.loss))
        optimizer.step()
    return found


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_those_of_one_reduction(
    comm: Communicator, accumulate: int, compiled: bool
) -> None:
    expected = train(comm, "off", compiled=False, accumulate=accumulate)
    found = train(comm, "on", compiled=compiled, accumulate=accumulate)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_buckets_are_slices_in_reverse_order() -> None:
    storage = FlatStorage.of(
        mt.nn.Sequential(*[mt.nn.Linear(4, 4) for _ in range(5)]).parameters(), "x"
    )
    (buffer,) = storage.buffers
    buffer.grad[...] = np.arange(buffer.grad.size)
    found = buckets_of(storage, 100)
    np.testing.assert_array_equal(np.concatenate([a for a, _ in found[::-1]]), buffer.grad)
    assert all(array.nbytes >= 100 for array, _ in found[:-1])
    assert all(np.shares_memory(array, buffer.grad) for array, _ in found)
    assert [slot for _, slots in found for slot in slots] == [*storage.slots[::-1]]


def test_the_first_bucket_goes_before_the_pass_ends() -> None:
    """What the thread does is seen while a later gradient is still being computed."""
    seen: list[bool] = []

    class Slow(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            deadline = time.monotonic() + 20
            while not arrived.is_set() and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(arrived.is_set())
            return g

    arrived = threading.Event()

    def work(comm: Communicator) -> None:
        first, last = mt.nn.Linear(3, 3), mt.nn.Linear(3, 1)
        model = DataParallel(mt.nn.ModuleList([first, last]), comm, overlap="on", bucket_mb=1e-6)
        model.count(1)
        assert isinstance(model.reducer, Overlap)
        inner: Any = model.reducer.own
        reduce = inner.all_reduce

        def watched(array: Any) -> Any:
            result = reduce(array)
            arrived.set()
            return result

        inner.all_reduce = watched
        last(Slow.apply(first(mt.ones(1, 3)))).sum().backward()

    in_process.run(2, work)
    assert seen == [True, True]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "recorded"])
def test_a_pass_that_failed_leaves_nothing_on_its_way(comm: Communicator, compiled: bool) -> None:
    """Of all but the first layer the gradients have gone when it fails; not where no rows are."""
    mt.manual_seed(0)
    layers = mt.nn.Sequential(*[mt.nn.Linear(9, 9, dtype=mt.float64) for _ in range(8)])
    model = DataParallel(layers, comm, overlap="on", bucket_mb=1e-5)
    wrong = [True]

    class Fails(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            if wrong[0]:
                raise ZeroDivisionError("mine")
            return g

    def run(x: Any) -> None:
        h = Fails.apply(layers[0](x))
        for layer in layers[1:]:
            h = layer(h)
        model.count(len(x))
        h.square().sum().backward()

    rows = 0 if comm.rank == 1 else 3
    x = mt.from_numpy(np.random.default_rng(comm.rank).standard_normal((rows, 9)))
    step = mt.compile(run) if compiled else run
    with pytest.raises(ZeroDivisionError):
        step(x)
    if isinstance(model.reducer, Overlap) and compiled:
        assert model.reducer.sent == 0  # who does it again sends them
    wrong[0] = False
    for p in model.parameters():
        p.grad = None
    run(x)
    found = [p.grad.numpy().copy() for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    with model.no_sync():
        run(x)
    for p, total in zip(model.parameters(), found, strict=True):
        expected = comm.all_reduce(p.grad.numpy().copy()) / comm.all_reduce(np.array(rows))
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-15)


def test_auto_says_how_and_why(comm: Communicator) -> None:
    model = DataParallel(mt.nn.Linear(2, 2), comm)
    if comm.size == 1:
        assert model.overlap == "off: one rank has nothing to reduce"
    else:
        assert model.overlap == "off: the gradients fit into one bucket"
    asked = DataParallel(mt.nn.Linear(2, 2), comm, overlap="on")
    assert asked.overlap.startswith("on: asked for" if comm.size > 1 else "off: one rank")


def test_a_thread_that_fails_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(comm: Communicator) -> None:
        model = DataParallel(mt.nn.Linear(2, 2), comm, overlap="on")
        if comm.rank == 1:
            raise ZeroDivisionError("mine")
        model(mt.ones(1, 2)).sum().backward()

    with pytest.raises(ZeroDivisionError, match="mine"):
        in_process.run(3, work)


def test_threads_end_with_their_model() -> None:
    def work(comm: Communicator) -> None:
        model = DataParallel(mt.nn.Linear(2, 2), comm, overlap="on")
        model(mt.ones(1, 2)).sum().backward()

    def reducing() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("microtrain-reduce")}

    before = reducing()
    in_process.run(2, work)
    deadline = time.monotonic() + 10
    while reducing() - before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert not reducing() - before


def test_wrong_arguments(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="overlap is auto, on or off, got True"):
        DataParallel(mt.nn.Linear(1, 1), comm, overlap=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bucket_mb must be above 0"):
        DataParallel(mt.nn.Linear(1, 1), comm, bucket_mb=0)
    for further in ({"shards": comm.size}, {"compression": "fp16"}):
        with pytest.raises(ValueError, match="choose one, got 'overlap=on and "):
            DataParallel(mt.nn.Linear(1, 1), comm, overlap="on", **further)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sync_batchnorm is True or False, got 'false'"):
        DataParallel(mt.nn.Linear(1, 1), comm, sync_batchnorm="false")  # type: ignore[arg-type]
