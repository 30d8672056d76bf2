"""Small all_reduces through memory that ranks share: their bits, their order, and who waits how.

Ranks are threads here, each with a mapping of its own of one file; under mpirun they are processes,
and MPI's own sums are the truth.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import in_threads
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microtrain.distributed import Communicator, mpi, shared_memory
from microtrain.distributed.communicator import REDUCIBLE
from microtrain.distributed.shared_memory import MOST, SharedMemory, create

Make = Callable[..., list[SharedMemory]]
TYPES = sorted(REDUCIBLE, key=str)
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}

pytestmark = pytest.mark.skipif(
    os.uname().machine not in shared_memory.ORDERED or not os.path.isdir(shared_memory.PLACE),
    reason="needs x86-64 and /dev/shm",
)


@pytest.fixture
def made() -> Iterator[Make]:
    """Makes the memory of some ranks of a host."""
    names: list[str] = []

    def make(size: int, few_cores: bool = True, between: Any = None) -> list[SharedMemory]:
        names.append(create(size))
        return [SharedMemory(names[-1], rank, size, few_cores, between) for rank in range(size)]

    yield make
    for name in names:
        os.unlink(name)


def on_all(ranks: list[SharedMemory], work: Callable[[int, SharedMemory], Any]) -> list[Any]:
    """`work(rank, memory)` of every rank, in threads; what each returned or raised."""
    return in_threads.on_all(len(ranks), lambda rank: work(rank, ranks[rank]))


def doubled(arrays: list[Any], op: str) -> Any:
    """Combined by recursive doubling, as written down for MPICH."""
    odd = len(arrays) - 2 ** (len(arrays).bit_length() - 1)
    with np.errstate(all="ignore"):
        pairs = zip(arrays[: 2 * odd : 2], arrays[1 : 2 * odd : 2], strict=True)
        arrays = [COMBINE[op](a, b) for a, b in pairs] + arrays[2 * odd :]
        while len(arrays) > 1:
            pairs = zip(arrays[::2], arrays[1::2], strict=True)
            arrays = [COMBINE[op](a, b) for a, b in pairs]
    return arrays[0]


def values(rank: int, count: int, dtype: Any) -> Any:
    rng = np.random.default_rng([rank, count])
    if dtype.kind == "f":
        return (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(dtype)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, count, dtype, endpoint=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("op", COMBINE)
def test_bits_are_those_of_recursive_doubling(made: Make, size: int, op: str) -> None:
    for dtype in TYPES:
        count = 37
        truth = doubled([values(rank, count, dtype) for rank in range(size)], op)

        def work(rank: int, memory: SharedMemory, count: int = count, dtype: Any = dtype) -> bytes:
            array = values(rank, count, dtype)
            memory.all_reduce(array, op)
            return array.tobytes()

        assert on_all(made(size), work) == [truth.tobytes()] * size


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, MOST // 8), min_size=1, max_size=12), st.integers(2, 5), st.data())
def test_calls_one_after_another(counts: list[int], size: int, data: st.DataObject) -> None:
    """Of any sizes, with ranks that come late in any order: no call reads numbers of another."""
    late = data.draw(st.lists(st.sampled_from(range(size)), max_size=len(counts)))
    name = create(size)
    ranks = [SharedMemory(name, rank, size, rank % 2 == 0, None) for rank in range(size)]
    os.unlink(name)

    def work(rank: int, memory: SharedMemory) -> list[bytes]:
        found = []
        for call, count in enumerate(counts):
            if late[call : call + 1] == [rank]:
                time.sleep(0.003)
            array = values(rank + 100 * call, count, np.dtype("f8"))
            memory.all_reduce(array, "sum")
            found.append(array.tobytes())
        return found

    truth = [
        doubled([values(rank + 100 * call, n, np.dtype("f8")) for rank in range(size)], "sum")
        for call, n in enumerate(counts)
    ]
    assert on_all(ranks, work) == [[array.tobytes() for array in truth]] * size


def test_calls_are_counted_from_0_again(made: Make) -> None:
    ranks = made(3)
    for memory in ranks:
        memory._calls = shared_memory._LAST - 3

    def work(rank: int, memory: SharedMemory) -> list[float]:
        found = []
        for call in range(8):
            array = np.array([rank * 10.0**call])
            memory.all_reduce(array, "sum")
            found.append(float(array[0]))
        return found

    assert on_all(ranks, work) == [[3 * 10.0**call for call in range(8)]] * 3
    assert [memory._calls for memory in ranks] == [4, 4, 4]


@pytest.mark.parametrize("few_cores", [True, False])
def test_a_rank_that_waits_sleeps_and_is_woken(
    made: Make, few_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It yields so many times and no more, sleeps, and the one that comes late wakes it."""
    monkeypatch.setattr(shared_memory, "YIELDS", 50)
    early, late = made(2, few_cores)
    yields, calls, asleep = list[int](), list[tuple[int, int]](), threading.Event()

    def counted(rank: int, memory: SharedMemory) -> None:
        call = memory._system_call

        def system_call(number: int, place: int, what: int, *rest: Any) -> int:
            calls.append((rank, what))
            if what == shared_memory.WAIT:
                asleep.set()
            return int(call(number, place, what, *rest))

        memory._system_call = system_call

    counted(0, early)
    counted(1, late)
    give_way = early._yield
    early._yield = lambda: yields.append(0) or give_way()

    def work(rank: int, memory: SharedMemory) -> list[float]:
        if rank == 1:
            assert asleep.wait(30)
        array = np.ones(3)
        memory.all_reduce(array, "sum")
        return array.tolist()

    assert on_all([early, late], work) == [[2.0] * 3] * 2
    assert len(yields) == (shared_memory.YIELDS_OF_FEW if few_cores else 50)
    assert (0, shared_memory.WAIT) in calls and (1, shared_memory.WAKE) in calls


def test_other_calls_are_an_error_on_every_rank(made: Make) -> None:
    def work(rank: int, memory: SharedMemory) -> None:
        memory.all_reduce(np.zeros(4 if rank else 7, "f4"), "max" if rank else "sum")

    for rank, error in enumerate(on_all(made(3), work)):
        mine, other = ("sum of 7 float32", "max of 4 float32")[:: -1 if rank else 1]
        assert f"{mine} here, {other} on another rank" in str(error)


def test_two_names_of_one_type_are_the_same_call(made: Make) -> None:
    """`long` and `long long` are both int64."""

    def work(rank: int, memory: SharedMemory) -> list[int]:
        array = np.full(2, rank + 1, "q" if rank else "l")
        memory.all_reduce(array, "sum")
        return [int(x) for x in array]

    def another(rank: int, memory: SharedMemory) -> None:
        memory.all_reduce(np.zeros(rank + 1, "q"), "sum")

    assert on_all(made(2), work) == [[3, 3]] * 2
    assert "sum of 1 int64 here" in str(on_all(made(2), another)[0])


def test_a_mask_stays_as_it_is(made: Make) -> None:
    def work(rank: int, memory: SharedMemory) -> tuple[list[float], list[bool]]:
        array = np.ma.masked_array([1.0, 2.0], [False, True])
        memory.all_reduce(array, "sum")
        return array.data.tolist(), array.mask.tolist()

    assert on_all(made(2), work) == [([2.0, 4.0], [False, True])] * 2


def test_arrays_of_any_size_keep_no_memory_each(made: Make) -> None:
    def work(rank: int, memory: SharedMemory) -> int:
        for count in range(3 * shared_memory._PLANS):
            array = np.full(count, rank, "f4")
            memory.all_reduce(array, "sum")
            assert (array == 1).all()
        return len(memory._plans)

    assert on_all(made(2), work) == [shared_memory._PLANS] * 2


def test_what_overflows_warns_nobody(made: Make) -> None:
    def work(rank: int, memory: SharedMemory) -> list[float]:
        most = np.finfo("f4").max
        array = np.array([most, -np.inf if rank else np.inf, most], "f4")
        memory.all_reduce(array, "sum")
        return [float(x) for x in array]

    for found in on_all(made(2), work):
        np.testing.assert_equal(found, [np.inf, np.nan, np.inf])


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (2, 1, 3)])
def test_hosts_combine_what_their_ranks_have(made: Make, sizes: tuple[int, ...]) -> None:
    """The first ranks of the hosts meet, as over MPI; the others get what they have found."""
    meeting = threading.Barrier(len(sizes))
    sums: list[Any] = []

    def between(array: Any, op: str) -> None:
        sums.append(array.copy())
        meeting.wait(30)
        total = np.sum(sums, axis=0)
        meeting.wait(30)
        sums.clear()
        meeting.wait(30)
        array[...] = total

    ranks = [memory for size in sizes for memory in made(size, between=between)]

    def work(rank: int, memory: SharedMemory) -> list[list[float]]:
        found = []
        for call in range(5):
            array = np.array([float(rank), call, 1.0])
            memory.all_reduce(array, "sum")
            found.append(array.tolist())
        return found

    count = sum(sizes)
    truth = [[count * (count - 1) / 2, call * count, count] for call in range(5)]
    assert on_all(ranks, work) == [truth] * count


@pytest.mark.parametrize("fails", ["between", "first", "other"])
def test_a_failure_reaches_all_ranks_of_its_host(made: Make, fails: str) -> None:
    """Also where it is told to the first one alone; then the ranks may go on."""

    def between(array: Any, op: str) -> None:
        if fails == "between" and array.size == 2:
            raise RuntimeError("the network is down")

    def work(rank: int, memory: SharedMemory) -> str:
        odd = rank == {"between": -1, "first": 0, "other": 1}[fails]
        with pytest.raises(RuntimeError) as caught:
            memory.all_reduce(np.zeros(3 if odd else 2), "sum")
        array = np.ones(4)
        memory.all_reduce(array, "sum")
        assert (array == 3).all()
        return str(caught.value)

    first, *others = on_all(made(3, between=between), work)
    assert ("the network is down" if fails == "between" else "not at the same call") in first
    assert all("it failed on the first rank of this host" in each for each in others)


def test_hosts_combine_what_lies_at_any_address(made: Make) -> None:
    """MPI takes no such array."""
    found: list[bool] = []

    def work(rank: int, memory: SharedMemory) -> list[float]:
        array = np.zeros(17, np.uint8)[1:].view("f8")
        memory.all_reduce(array, "sum")
        return [*map(float, array)]

    ranks = made(2, between=lambda array, op: found.append(array.flags.aligned))
    assert on_all(ranks, work) == [[0.0, 0.0]] * 2
    assert found == [True]


def test_where_there_can_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    make = tempfile.mkstemp

    def without_room(**options: Any) -> tuple[int, str]:
        handle, name = make(**options)
        os.close(handle)
        return os.open("/dev/full", os.O_RDWR), name

    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "PLACE", str(tmp_path))  # where nobody else makes files
        patch.setattr(tempfile, "mkstemp", without_room)
        assert create(4) == ""
        assert not [*tmp_path.iterdir()]
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)  # as where a quota of files is used up
        assert create(4) == ""
    monkeypatch.setattr(shared_memory, "ORDERED", ("riscv64",))
    assert create(4) == ""
    with pytest.raises(OSError, match="No such file"):
        SharedMemory("/dev/shm/microtrain-gone", 0, 2, False, None)


# ------------------------------------------------------------------------------ ranks as processes


def test_it_is_used_and_gives_the_bits_of_mpi(comm: Communicator) -> None:
    if not isinstance(comm, mpi.MpiCommunicator) or comm.size == 1:
        return
    assert comm._shared is not None
    for count in (1, 13, MOST // 4, MOST // 4 + 1):
        mine = values(comm.rank, count, np.dtype("f4"))
        truth = doubled([*comm.all_gather(mine)], "sum")
        theirs = mine.copy()
        calls = comm._shared._calls
        comm.all_reduce(mine)
        assert comm._shared._calls - calls == (4 * count <= MOST)
        if 4 * count <= MOST:
            assert mine.tobytes() == truth.tobytes()
        if comm.library.startswith("MPICH"):
            comm._comm.Allreduce(comm._MPI.IN_PLACE, theirs)
            assert theirs.tobytes() == mine.tobytes()


def test_ranks_that_are_not_at_the_same_call(comm: Communicator) -> None:
    if not isinstance(comm, mpi.MpiCommunicator) or comm.size == 1:
        return
    with pytest.raises(RuntimeError, match="not at the same call: sum of"):
        comm.all_reduce(np.zeros(comm.rank + 1))
    assert comm.all_reduce(np.ones(2)).tolist() == [comm.size] * 2
