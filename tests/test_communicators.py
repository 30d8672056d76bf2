"""Every operation of a communicator, at every world size and on every backend, by one set of laws.

The tests that take `comm` run on a single process, on threads and, under mpirun, over MPI.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microtrain.distributed import Communicator, in_process, mpi, world

REDUCIBLE = ["f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (4, 0, 2)]
TRUTH = {"sum": np.sum, "max": np.max, "min": np.min}


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What `rank` contributes: small integers, so that every order of adding is exact."""
    return np.random.default_rng(rank).integers(0, 20, shape).astype(dtype)


@pytest.mark.parametrize("op", TRUTH)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_all_reduce_combines_in_place(comm: Communicator, dtype: str, op: str) -> None:
    for shape in SHAPES:
        mine = values(comm.rank, shape, dtype)
        result = comm.all_reduce(mine, op)
        everyone = np.stack([values(rank, shape, dtype) for rank in range(comm.size)])
        assert result is mine
        np.testing.assert_array_equal(mine, TRUTH[op](everyone, axis=0), strict=False)
        assert mine.dtype == dtype


def test_all_reduce_of_bool_is_any_and_all(comm: Communicator) -> None:
    first = comm.rank == 0
    alone = comm.size == 1
    flags = np.array([True, False, first])
    assert comm.all_reduce(flags.copy(), "max").tolist() == [True, False, True]
    assert comm.all_reduce(flags.copy(), "min").tolist() == [True, False, alone]
    with pytest.raises(TypeError, match="count"):
        comm.all_reduce(flags, "sum")


def test_all_reduce_gives_every_rank_the_same_bits(comm: Communicator) -> None:
    mine = np.random.default_rng(comm.rank).standard_normal(10_007).astype("f4")
    comm.all_reduce(mine)
    everyone = comm.all_gather(mine)
    assert all(row.tobytes() == mine.tobytes() for row in everyone)


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "f2", "c16", "?", ">f8", "f4,i8"])
def test_broadcast_takes_the_roots_values(comm: Communicator, dtype: str) -> None:
    for root in range(comm.size):
        for shape in SHAPES:
            mine = np.full(shape, comm.rank + 1, dtype)
            result = comm.broadcast(mine, root)
            assert result is mine
            np.testing.assert_array_equal(mine, np.full(shape, root + 1, dtype))


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "f2", "?", "f4,i8"])
def test_all_gather_stacks_in_rank_order(comm: Communicator, dtype: str) -> None:
    for shape in SHAPES:
        mine = np.full(shape, comm.rank % 2, dtype)
        mine.flags.writeable = False
        result = comm.all_gather(mine)
        assert result.shape == (comm.size, *shape)
        assert result.dtype == mine.dtype
        for rank in range(comm.size):
            np.testing.assert_array_equal(result[rank], np.full(shape, rank % 2, dtype))


def test_all_gather_returns_memory_of_its_own(comm: Communicator) -> None:
    mine = np.zeros(3)
    result = comm.all_gather(mine)
    result += 1
    assert comm.all(not mine.any())


def test_objects(comm: Communicator) -> None:
    mine = {"rank": comm.rank, "text": "x" * comm.rank}
    everyone = [{"rank": rank, "text": "x" * rank} for rank in range(comm.size)]
    assert comm.all_gather_object(mine) == everyone
    for root in range(comm.size):
        assert comm.broadcast_object(mine if comm.rank == root else None, root) == everyone[root]
        assert comm.gather_object(mine, root) == (everyone if comm.rank == root else None)


def test_an_object_from_another_rank_is_a_copy(comm: Communicator) -> None:
    received = comm.broadcast_object([0])
    received[0] += comm.rank
    assert comm.all_gather_object(received[0]) == list(range(comm.size))


def test_any_and_all(comm: Communicator) -> None:
    last = comm.size - 1
    assert comm.any(comm.rank == last) is True
    assert comm.any(False) is False
    assert comm.all(True) is True
    assert comm.all(comm.rank != last) is False
    assert comm.all(comm.rank == last) is (comm.size == 1)


def test_barrier_waits_for_everyone(comm: Communicator, shared_tmp_path: Path) -> None:
    (shared_tmp_path / str(comm.rank)).touch()
    comm.barrier()
    assert sorted(int(path.name) for path in shared_tmp_path.iterdir()) == list(range(comm.size))


def test_places_are_consistent(comm: Communicator) -> None:
    places = comm.all_gather_object((comm.rank, comm.node_rank, comm.local_rank))
    assert [rank for rank, _, _ in places] == list(range(comm.size))
    assert len(set(places)) == comm.size
    on_my_node = [place for place in places if place[1] == comm.node_rank]
    assert comm.local_size == len(on_my_node)
    assert sorted(local for _, _, local in on_my_node) == list(range(comm.local_size))
    assert comm.num_nodes == len({node for _, node, _ in places})
    assert repr(comm).endswith(f"rank {comm.rank} of {comm.size}>")


def test_world_is_this_communicator(comm: Communicator) -> None:
    assert world().rank == comm.rank
    assert world().size == comm.size
    assert world() is world()


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 50])
def test_large_arrays_go_in_chunks(
    comm: Communicator, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "CHUNK", 7)
    total = comm.size * (comm.size - 1) // 2
    mine = np.arange(size * 2.0).reshape(2, size) + comm.rank
    np.testing.assert_array_equal(
        comm.all_reduce(mine.copy()), comm.size * np.arange(size * 2.0).reshape(2, size) + total
    )
    np.testing.assert_array_equal(
        comm.broadcast(mine.copy(), comm.size - 1), mine - comm.rank + comm.size - 1
    )
    for rank, row in enumerate(comm.all_gather(mine)):
        np.testing.assert_array_equal(row, mine - comm.rank + rank)


def read_only() -> np.ndarray:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "list": ([1.0], TypeError, "expected a numpy.ndarray, found list"),
    "transposed": (np.zeros((2, 3)).T, ValueError, "C-contiguous.*strides"),
    "every second": (np.zeros(6)[::2], ValueError, "C-contiguous"),
    "read-only": (read_only(), ValueError, "read-only"),
    "objects": (np.array([None]), TypeError, "Python objects"),
}
NOT_REDUCIBLE: dict[str, tuple[Any, type[Exception], str]] = {
    "float16": (np.zeros(2, "f2"), TypeError, "found float16"),
    "complex": (np.zeros(2, "c8"), TypeError, "found complex64"),
    "foreign byte order": (np.zeros(2, ">f4"), TypeError, "native byte order, found >f4"),
    "text": (np.array(["a"]), TypeError, "found <U1"),
}


@pytest.mark.parametrize("case", [*REFUSED, *NOT_REDUCIBLE])
def test_all_reduce_refuses(comm: Communicator, case: str) -> None:
    array, error, message = (REFUSED | NOT_REDUCIBLE)[case]
    with pytest.raises(error, match=f"^all_reduce: .*{message}"):
        comm.all_reduce(array)


@pytest.mark.parametrize("case", REFUSED)
def test_broadcast_and_all_gather_refuse(comm: Communicator, case: str) -> None:
    array, error, message = REFUSED[case]
    with pytest.raises(error, match=f"^broadcast: .*{message}"):
        comm.broadcast(array)
    if case != "read-only":
        with pytest.raises(error, match=f"^all_gather: .*{message}"):
            comm.all_gather(array)


def test_unknown_op_and_root_are_refused(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="expected op sum, max or min, found 'mean'"):
        comm.all_reduce(np.zeros(1), "mean")  # type: ignore[arg-type]
    for root in (-1, comm.size):
        for call in (comm.broadcast, comm.gather_object, comm.broadcast_object):
            with pytest.raises(ValueError, match=f"expected a root from 0 to .*, found {root}"):
                call(np.zeros(1), root)


# ------------------------------------------------------------------------------- ranks as threads


def test_in_process_gives_results_in_rank_order() -> None:
    assert in_process.run(3, lambda comm, base: base + comm.rank, 10) == [10, 11, 12]


@given(
    size=st.integers(1, 4),
    template=arrays.arrays(
        st.sampled_from([np.float32, np.float64]), arrays.array_shapes(min_dims=0, min_side=0)
    ),
)
@settings(max_examples=25, deadline=None)
def test_in_process_adds_in_rank_order(size: int, template: np.ndarray) -> None:
    def contribution(rank: int) -> np.ndarray:
        noise = np.random.default_rng(rank).standard_normal(template.shape)
        return np.asarray(noise, template.dtype)

    expected = contribution(0)
    for rank in range(1, size):
        expected = np.asarray(expected + contribution(rank))
    for total in in_process.run(size, lambda comm: comm.all_reduce(contribution(comm.rank))):
        assert total.tobytes() == expected.tobytes()


def test_in_process_raises_the_first_error_with_its_rank() -> None:
    seen: list[type] = []

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("mine")
        try:
            comm.barrier()
        except Exception as error:
            seen.append(type(error))
            raise

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        in_process.run(3, work)
    assert caught.value.__notes__ == ["on rank 1 of 3 (in_process)"]
    assert seen == [in_process.PeerFailed] * 2


def returns_early(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.barrier()


def other_collective(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.barrier()
    comm.all_gather_object(None)


def other_shape(comm: Communicator) -> None:
    comm.all_reduce(np.zeros(3 if comm.rank == 0 else 4))


def other_dtype(comm: Communicator) -> None:
    comm.all_reduce(np.zeros(3, "f4" if comm.rank == 0 else "f8"))


def other_op(comm: Communicator) -> None:
    comm.all_reduce(np.zeros(3), "sum" if comm.rank == 0 else "max")


def other_root(comm: Communicator) -> None:
    comm.broadcast(np.zeros(3), comm.rank)


@pytest.mark.parametrize(
    "work, message",
    [
        (returns_early, "rank 0 calls barrier, rank 1 has returned"),
        (other_collective, "rank 0 calls barrier, rank 1 calls all_gather_object"),
        (other_shape, r"all_reduce\(sum\) of shape \(3,\), float64, .* of shape \(4,\), float64"),
        (other_dtype, "float32, rank 1 .*float64"),
        (other_op, r"all_reduce\(sum\).*all_reduce\(max\)"),
        (other_root, "broadcast from 0 .*broadcast from 1"),
    ],
)
def test_in_process_names_the_calls_that_would_hang_over_mpi(work: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"not at the same call: .*{message}"):
        in_process.run(2, work)


def test_in_process_world_belongs_to_the_thread() -> None:
    def work(comm: Communicator) -> bool:
        assert world() is comm
        inner = in_process.run(2, lambda inner: (world() is inner, inner.size))
        return world() is comm and inner == [(True, 2), (True, 2)]

    outside = world()
    assert in_process.run(3, work) == [True] * 3
    assert world() is outside


def test_in_process_abort_ends_all_ranks() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.abort(4)
        comm.barrier()

    with pytest.raises(RuntimeError, match=r"rank 1 called abort\(4\)"):
        in_process.run(2, work)


def test_in_process_leaves_no_thread() -> None:
    before = threading.active_count()
    in_process.run(4, lambda comm: comm.barrier())
    assert threading.active_count() == before


def test_in_process_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="at least 1 rank, found 0"):
        in_process.run(0, print)
