"""Several ranks on the real CuPy: gradients staged through the host, GPUs chosen, NCCL refused."""

from __future__ import annotations

from typing import Any

import pytest
from allocations import noted
from programs import numbers
from real_cupy import cupy

import microtrain as mt
from microtrain import backend
from microtrain.distributed import in_process
from microtrain.distributed.reducer import AtOnce
from microtrain.distributed.shards import Shards
from microtrain.distributed.single import SingleCommunicator
from microtrain.optim.flat import FlatStorage

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

REDUCERS = {
    "at once": lambda comm, storage, _: AtOnce(comm, storage, "none"),
    "compressed": lambda comm, storage, _: AtOnce(comm, storage, "bf16"),
    "shards": lambda comm, storage, net: Shards(comm, storage, comm.size, net),
}


def reducing(comm: Any, kind: str, device: str) -> tuple[Any, Any, Any]:
    """A reducer, what it counts with, and the storage: of two dtypes, one gradient absent."""
    net = mt.nn.Sequential(mt.nn.Linear(40, 50), mt.nn.Linear(50, 2).to("float64")).to(device)
    storage = FlatStorage.of(net.parameters(), "test")
    passes = mt.distributed.passes.Passes()
    return REDUCERS[kind](comm, storage, net), passes, storage


def reduced(comm: Any, kind: str, device: str) -> list[bytes]:
    """The bits of the summed gradients, of three steps one after the other."""
    reducer, passes, storage = reducing(comm, kind, device)
    found = []
    for step in range(3):
        storage.zero_grad()
        for number, slot in enumerate(storage.slots[comm.rank > 0 :]):
            values = numbers(*slot.array.shape)(100 * step + 10 * comm.rank + number)
            slot.assign(backend.XP[type(slot.array)].asarray(values.astype(slot.array.dtype)))
        _, notes = reducer.reduce(passes, (0.0, step, comm.rank), True)
        assert (notes[1], notes[2]) == (comm.size * step, sum(range(comm.size)))
        reducer.reset()
        found += [backend.to_host(buffer.grad).tobytes() for buffer in storage.buffers]
    assert storage.present() == (True,) * 4  # where any rank had it
    return found


@pytest.mark.parametrize("kind", REDUCERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_staged_gradients_have_the_bits_of_the_cpu(kind: str, size: int) -> None:
    here = in_process.run(size, reduced, kind, "cpu")
    assert in_process.run(size, reduced, kind, "cuda") == here


class Taken(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
    """Notes what is asked of CuPy's pool of device memory."""

    name = "taken"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def malloc_preprocess(self, *, size: int, **_: Any) -> None:
        self.sizes.append(size)


@pytest.mark.parametrize("kind", ["at once", "shards"])
def test_staging_takes_its_memory_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pinned: list[int] = []
    memory = cupy.cuda.alloc_pinned_memory
    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda, "alloc_pinned_memory", lambda n: pinned.append(n) or memory(n))
        reducer, passes, storage = reducing(SingleCommunicator(), kind, "cuda")
    assert pinned == [buffer.wide.nbytes for buffer in storage.buffers]

    def later(size: int) -> Any:  # also what CuPy takes by itself, to copy what is not pinned
        pinned.append(size)
        return pool.malloc(size)

    pool = cupy.get_default_pinned_memory_pool()
    cupy.cuda.set_pinned_memory_allocator(later)
    try:
        for step in range(2):
            for slot in storage.slots:
                slot.assign(1.0)
            if step:
                pinned.clear()
            with noted() as host, Taken() as device:
                assert reducer.reduce(passes, (0.0, 0.0, 0.0), True) is not None
            reducer.reset()
    finally:
        cupy.cuda.set_pinned_memory_allocator(pool.malloc)
    assert (pinned, device.sizes) == ([], [])
    assert max(host, default=0) < 1000  # the control lane; the gradients have 8 KB
