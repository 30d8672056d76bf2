"""`backend="nccl"`: what is refused, on all ranks alike, and what NCCL is asked for.

NCCL stands for a module with the names and signatures of `cupy.cuda.nccl` (tests/gpu compares them
with CuPy's), whose ranks are threads.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakecupy
import numpy as np
import pytest

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.nccl import Nccl
from microtrain.errors import ConfigError, LaunchError, UserError

STREAM = 1234
UNIQUE = bytes(range(128))
LINREG = Path(__file__).parents[2] / "configs/linreg.yaml"


class FakeNccl:
    """`cupy.cuda.nccl`; `NcclCommunicator(ndev, commId, rank)` as there."""

    available = True
    NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = 7, 8, 0

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []  # elements and their type
        self.meeting: Any = None
        self.lock = threading.Lock()

    def get_unique_id(self) -> bytes:
        return UNIQUE

    def NcclCommunicator(self, ndev: int, commId: Any, rank: int) -> Any:
        assert commId == UNIQUE and 0 <= rank < ndev
        with self.lock:
            if self.meeting is None:
                self.meeting = threading.Barrier(ndev, timeout=20), {}
        barrier, given = self.meeting

        def allReduce(
            sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
        ) -> None:
            assert (sendbuf, op, stream) == (recvbuf, self.NCCL_SUM, STREAM)
            dtype = {7: "f4", 8: "f8"}[datatype]
            memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(sendbuf)
            values = np.frombuffer(memory, dtype)
            given[rank] = values.copy()
            barrier.wait()
            total = sum(given[one] for one in reversed(range(ndev)))  # not MPI's order
            barrier.wait()
            values[...] = total
            if rank == 0:
                self.calls.append((count, datatype))

        return SimpleNamespace(allReduce=allReduce)


@pytest.fixture
def nccl(fake_gpu: None, monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """NCCL on a machine where every rank has a GPU of its own."""
    found = FakeNccl()
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", found)  # type: ignore[misc]
    cuda = fakecupy.module.cuda
    stream = SimpleNamespace(ptr=STREAM)
    monkeypatch.setattr(cuda, "get_current_stream", lambda: stream, raising=False)
    numbers = itertools.count()
    on_buses(monkeypatch, lambda: next(numbers))
    return found


def on_buses(monkeypatch: pytest.MonkeyPatch, number: Callable[[], int]) -> None:
    """Give the GPU of every rank that asks the bus `number()`."""

    def properties(_: int) -> dict[str, int]:
        return {"pciDomainID": 0, "pciBusID": number(), "pciDeviceID": 0}

    runtime = fakecupy.module.cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceProperties", properties, raising=False)


def train(comm: Any, backend: str) -> Any:
    """Two steps with parameters of two dtypes, one of which no rank uses in the first."""
    mt.manual_seed(3)
    net = mt.nn.Sequential(mt.nn.Linear(4, 5), mt.nn.Tanh(), mt.nn.Linear(5, 2)).cuda()
    net.scale = mt.nn.Parameter(mt.ones(2, dtype="float64", device="cuda"))
    model = mt.distributed.DataParallel(net, comm, backend=backend)
    assert (type(model.reducer) is Nccl) == (backend == "nccl" and comm.size > 1)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    x = mt.ones(2 + comm.rank, 4, device="cuda") * (1.0 + comm.rank)
    losses, used = [], []
    for step in range(2):
        optimizer.zero_grad()
        y = model(x)
        (y * net.scale if step else y).square().mean().backward()
        used.append(net.scale.grad is not None)
        optimizer.step()
        losses.append((model.loss, model.samples))
    assert used == [False, True]
    return losses, [p.detach().cpu().numpy() for p in model.parameters()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_those_of_mpi(nccl: FakeNccl, size: int) -> None:
    expected = in_process.run(size, train, "mpi")
    assert nccl.calls == []
    found = in_process.run(size, train, "nccl")
    for (losses, weights), (wanted, others) in zip(found, expected, strict=True):
        np.testing.assert_allclose(losses, wanted, rtol=1e-6)
        for a, b in zip(weights, others, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    footer = 11 + 5  # for each of the parameters a flag
    sizes = [] if size == 1 else [(37 + footer, 7), (2 + footer, 8)]
    assert nccl.calls == 2 * sizes


def test_the_watchdog_sees_who_waits_in_nccl(nccl: FakeNccl) -> None:
    def wait(comm: Any) -> Any:
        model = mt.distributed.DataParallel(mt.nn.Linear(4, 1).cuda(), comm, backend="nccl")
        ranks, seen = model.reducer._ranks, []

        def allReduce(*args: Any) -> None:
            seen.append(comm._doing)
            reduce(*args)

        reduce, ranks.allReduce = ranks.allReduce, allReduce
        before = comm._done
        model(mt.ones(2, 4, device="cuda")).sum().backward()
        return seen, comm._doing, comm._done - before

    assert in_process.run(2, wait) == [([("all_reduce by NCCL", ())], None, 1)] * 2


def refused(size: int, device: str = "cuda") -> set[tuple[type, str, bool]]:
    """What the ranks raise where a model is wrapped: kind, words, and whether all agree."""

    def wrap(comm: Any) -> Any:
        net = mt.nn.Linear(2, 1).to(device)
        with pytest.raises(UserError) as caught:
            mt.distributed.DataParallel(net, comm, backend="nccl")
        assert comm.all_gather_object(1) == [1] * size  # the ranks are in step
        words = str(caught.value)
        return type(caught.value), words, getattr(caught.value, "agreed", False)

    return set(in_process.run(size, wrap))


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_on_the_cpu_are_refused(size: int) -> None:
    ((kind, words, agreed),) = refused(size, "cpu")
    assert (kind, agreed) == (ConfigError, True)
    assert "nccl adds up gradients on GPUs, but those of this model are on the CPU" in words
    assert "set device to cuda, or set distributed.backend to auto" in words


@pytest.mark.parametrize("size", [1, 2])
def test_cupy_without_nccl_is_refused(fake_gpu: None, size: int) -> None:
    ((kind, words, agreed),) = refused(size)
    assert (kind, agreed) == (LaunchError, True)
    assert "CuPy has no NCCL here" in words and "pip install nvidia-nccl-cu12" in words


def test_one_rank_without_nccl_is_enough(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        """The module where one of the hosts has no library."""

        asked = itertools.count()
        available = property(lambda self: next(self.asked) > 0)

    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", Without())  # type: ignore[misc]
    found = refused(3)
    assert {(kind, agreed) for kind, _, agreed in found} == {(LaunchError, True)}
    assert all("CuPy has no NCCL here: the library is not installed" in w for _, w, _ in found)


def test_two_ranks_on_one_gpu_are_refused(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    on_buses(monkeypatch, lambda: 7)
    ((kind, words, agreed),) = refused(2)
    assert (kind, agreed) == (LaunchError, True)
    assert "ranks 0 and 1 are on the same GPU of one host; start fewer ranks" in words


@pytest.mark.parametrize("name", ["get_unique_id", "NcclCommunicator"])
def test_what_nccl_says_is_said_by_all(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*args: Any) -> Any:
        if not args or args[-1] == 1:  # of the communicator, on rank 1 alone
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")

    monkeypatch.setattr(nccl, name, fails)
    found = refused(2)
    assert {(kind, agreed) for kind, _, agreed in found} == {(LaunchError, True)}
    assert all("NCCL cannot connect the ranks: NCCL_ERROR_SYSTEM" in w for _, w, _ in found)


@pytest.mark.parametrize("options", [{"shards": 2}, {"compression": "fp16"}, {"overlap": "on"}])
def test_what_nccl_does_not_do_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"of its own: choose one, got .*backend=nccl"):
        mt.distributed.DataParallel(mt.nn.Linear(2, 1), backend="nccl", **options)
    with pytest.raises(ValueError, match="backend is mpi or nccl, got 'gloo'"):
        mt.distributed.DataParallel(mt.nn.Linear(2, 1), backend="gloo")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("reproducible: world", "nccl adds up in its own order; reproducible: world has"),
        ("compression: bf16", "nccl adds up whole gradients"),
        ("overlap: true", "nccl adds up whole gradients"),
    ],
)
def test_keys_that_do_not_go_with_it(settings: str, words: str) -> None:
    given = f"distributed={{backend: nccl, {settings}}}"
    with pytest.raises(ConfigError, match=words):
        load_config(LINREG, [given])
    with pytest.raises(ConfigError, match="nccl adds up gradients on GPUs, but device is cpu"):
        load_config(LINREG, ["device=cpu", "distributed.backend=nccl"])


def test_ranks_that_ask_for_different_backends_are_told(nccl: FakeNccl) -> None:
    def wrap(comm: Any) -> None:
        backend: Any = "nccl" if comm.rank else "mpi"
        with pytest.raises(RuntimeError, match=r"the models of the ranks differ: .*backend"):
            mt.distributed.DataParallel(mt.nn.Linear(2, 1).cuda(), comm, backend=backend)

    in_process.run(2, wrap)


def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    from microtrain.distributed.single import SingleCommunicator
    from microtrain.train import Trainer

    config = load_config(LINREG, ["distributed.backend=nccl", f"run_dir={tmp_path}"])
    if mt.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match="those of this model are on the CPU"):
        Trainer.from_config(config, SingleCommunicator())
