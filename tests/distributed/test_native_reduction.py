"""The reduction of a captured step by native code: what Python does for it, bit for bit.

Ranks are threads here, each with a mapping of its own of one file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from in_threads import on_all

import microtrain as mt
from microtrain.distributed import shared_memory
from microtrain.distributed.communicator import Array, alone
from microtrain.distributed.footer import FOOTER, Totals, pack, values_of
from microtrain.distributed.replayed_pass import native_step
from microtrain.distributed.shared_memory import SharedMemory, create
from microtrain.distributed.single import SingleCommunicator
from microtrain.optim.flat import FlatStorage

pytestmark = [
    pytest.mark.skipif(
        os.uname().machine not in shared_memory.ORDERED or not os.path.isdir(shared_memory.PLACE),
        reason="needs x86-64 and /dev/shm",
    ),
    pytest.mark.usefixtures("native_code"),
]
ROWS = 12_345_678


class Rank(SingleCommunicator):
    """A rank that has nothing but memory in common with others."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory

    def memory_for(self, array: Array) -> SharedMemory | None:
        return self.memory


@pytest.fixture
def made() -> Iterator[Callable[..., list[SharedMemory]]]:
    """Makes the memory of some ranks."""
    names: list[str] = []

    def make(size: int) -> list[SharedMemory]:
        names.append(create(size))
        return [SharedMemory(names[-1], rank, size, rank % 2 == 0, None) for rank in range(size)]

    yield make
    for name in names:
        os.unlink(name)


def storage_of(dtype: str) -> FlatStorage:
    layer = mt.nn.Linear(3, 11, dtype=getattr(mt, dtype))
    return FlatStorage.of(layer.parameters(), "test", layer)


def gradients(rank: int, call: int, storage: FlatStorage) -> Array:
    rng = np.random.default_rng([rank, call])
    size = storage.buffers[0].grad.size
    return rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30, size)


def python_step(memory: SharedMemory, storage: FlatStorage, root: Array) -> Any:
    """As in `Whole.by_python`."""
    wide, grad = storage.buffers[0].wide, storage.buffers[0].grad
    every = (True,) * len(storage.slots)

    def step(notes: Any, mark: float) -> Any:
        with np.errstate(all="ignore"):
            totals = Totals(ROWS, float(ROWS), 0.0 + ROWS * float(root.item()), 0)
            wide[grad.size :] = pack(totals, (*notes, mark), every)
            memory.all_reduce(wide, "sum")
            values = values_of(wide[grad.size :].tolist())
            if values[1]:
                np.divide(grad, values[1], out=grad)
        return values

    return step


LOSSES = [0.1, -7.25e-12, 3e30, 1e37, 1e300, np.inf, np.nan, -0.0, 5e-324]


@pytest.mark.daily("float32-float32", "float64-float32-13")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13])
@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("loss", ["float32", "float64"])
def test_bits_are_those_of_python(made: Any, size: int, real: str, loss: str) -> None:
    """Also where a rank is in native code while another one is in Python."""
    memories = made(size)

    def work(rank: int, native: Callable[[int, int], bool]) -> list[Any]:
        storage, root = storage_of(real), np.zeros((1, 1), loss)
        comm = Rank(memories[rank])
        compiled = native_step(comm, storage, root, ROWS)
        assert compiled is not None
        python = python_step(memories[rank], storage, root)
        found = []
        for call, value in enumerate(LOSSES * 3):
            with np.errstate(all="ignore"):
                root[...] = value * (1 + rank / 7)
                storage.buffers[0].grad[...] = gradients(rank, call, storage)
            notes = (float(rank), call / 8, 0.0)
            values = (compiled if native(rank, call) else python)(notes, 3.0 * call + rank)
            found.append((storage.buffers[0].wide.tobytes(), repr(values)))
        return found

    truth = on_all(size, lambda rank: work(rank, lambda *_: False))
    assert len({str(each) for each in truth}) == 1
    assert on_all(size, lambda rank: work(rank, lambda *_: True)) == truth
    assert on_all(size, lambda rank: work(rank, lambda r, c: (r + c) % 3 > 0)) == truth


def test_a_rank_that_is_late_is_waited_for_in_python(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many yields and naps, so that signals are handled."""
    for name in ("YIELDS", "YIELDS_OF_FEW", "NAPS"):
        monkeypatch.setattr(shared_memory, name, 2)
    memories, asleep = made(2), threading.Event()
    wait = memories[0]._wait

    def waits(place: int, word: int) -> None:
        asleep.set()
        wait(place, word)

    memories[0]._wait = waits

    def work(rank: int) -> str:
        storage, root = storage_of("float32"), np.full((), rank + 1.0)
        step = native_step(Rank(memories[rank]), storage, root, 4)
        assert step is not None
        if rank == 1:
            assert asleep.wait(30)
        return repr(step((0.0, 0.0, 1.0), 5.0 + rank))

    expected = repr([8.0, 8.0, 12.0, 0.0, 0.0, 0.0, 2.0, 11.0])
    assert on_all(2, work) == [expected] * 2


def test_another_call_is_an_error_on_every_rank(made: Any) -> None:
    memories = made(2)

    def work(rank: int) -> None:
        if rank:
            memories[rank].all_reduce(np.zeros(3), "max")
        else:
            step = native_step(Rank(memories[0]), storage_of("float32"), np.zeros(()), 4)
            assert step is not None
            step((0.0,) * 3, 0.0)

    mine, other = "sum of 57 float32", "max of 3 float64"
    first, second = map(str, on_all(2, work))
    assert f"{mine} here, {other} on another rank" in first
    assert f"{other} here, {mine} on another rank" in second
    assert 44 + FOOTER + 2 == 57


def test_what_this_rank_does_alone_does_not_wait(made: Any) -> None:
    step = native_step(Rank(made(2)[0]), storage_of("float32"), np.zeros(()), 4)
    assert step is not None
    with alone("only this rank looks"), pytest.raises(RuntimeError, match="only this rank looks"):
        step((0.0,) * 3, 0.0)


@pytest.mark.parametrize("notes", [(1.0,), (1.0,) * 4, 5.0, None, "123"])
def test_notes_that_are_not_three_numbers(made: Any, notes: Any) -> None:
    memory = made(2)[0]
    step = native_step(Rank(memory), storage_of("float32"), np.zeros(()), 4)
    assert step is not None
    with pytest.raises((TypeError, ValueError)):
        step(notes, 0.0)
    assert memory._calls == 0  # nobody waits for this rank in vain


def test_what_it_is_not_for(made: Any) -> None:
    storage, comm = storage_of("float32"), Rank(made(2)[0])
    assert native_step(comm, storage, np.zeros((), "f2"), 4) is None
    assert native_step(SingleCommunicator(), storage, np.zeros(()), 4) is None
