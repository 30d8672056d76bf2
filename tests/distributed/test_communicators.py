"""Every operation of a communicator, at every world size and on every backend, by one set of laws.

The tests that take `comm` run on a single process, on threads and, under mpirun, over MPI.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain as mt
from microtrain.distributed import Communicator, in_process, mpi, world
from microtrain.errors import ConfigError

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


@pytest.mark.parametrize("op", TRUTH)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reduce_scatter_gives_each_rank_its_row(comm: Communicator, dtype: str, op: str) -> None:
    for shape in SHAPES:
        mine = values(comm.rank, (comm.size, *shape), dtype)
        before = mine.copy()
        mine.flags.writeable = False
        result = comm.reduce_scatter(mine, op)
        everyone = np.stack([values(r, (comm.size, *shape), dtype) for r in range(comm.size)])
        expected = TRUTH[op](everyone[:, comm.rank], axis=0).astype(dtype)
        np.testing.assert_array_equal(result, expected, strict=True)
        np.testing.assert_array_equal(mine, before)


def test_reduce_scatter_of_bool_is_any_and_all(comm: Communicator) -> None:
    mine = np.zeros((comm.size, 2), bool)
    mine[:, 0] = True
    mine[0, 1] = comm.rank == comm.size - 1
    alone = comm.size == 1
    assert comm.reduce_scatter(mine, "max").tolist() == [True, comm.rank == 0]
    assert comm.reduce_scatter(mine, "min").tolist() == [True, alone]


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "f2", "?", "f4,i8"])
def test_all_to_all_is_a_transpose_over_the_ranks(comm: Communicator, dtype: str) -> None:
    for shape in SHAPES:
        mine = np.empty((comm.size, *shape), dtype)
        for rank in range(comm.size):
            mine[rank] = np.full(shape, (comm.rank * comm.size + rank) % 2, dtype)
        mine.flags.writeable = False
        result = comm.all_to_all(mine)
        assert (result.shape, result.dtype) == (mine.shape, mine.dtype)
        for rank in range(comm.size):
            came = np.full(shape, (rank * comm.size + comm.rank) % 2, dtype)
            np.testing.assert_array_equal(result[rank], came)
        result[...] = 0  # memory of its own


def test_split_makes_communicators_of_parts(comm: Communicator) -> None:
    half = comm.split(comm.rank % 2, -comm.rank)  # backwards
    assert half is not None
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert (half.size, half.rank) == (len(members), members.index(comm.rank))
    assert half.all_gather_object(comm.rank) == members
    assert half.all_reduce(np.array([comm.rank]))[0] == sum(members)
    # Without a key: as with 0, also beside ranks that have one.
    mixed = comm.split(0, None if comm.rank % 2 else 1)
    assert mixed is not None
    assert mixed.all_gather_object(comm.rank) == [
        *range(1, comm.size, 2), *range(0, comm.size, 2)
    ]  # fmt: skip
    inner = half.split(0)
    assert inner is not None
    assert inner.all_gather_object(comm.rank) == members
    # The whole goes on beside its parts.
    assert comm.all_gather_object(half.rank) == [
        ([r for r in range(comm.size) if r % 2 == rank % 2][::-1]).index(rank)
        for rank in range(comm.size)
    ]


def test_split_leaves_out_who_passes_none(comm: Communicator) -> None:
    part = comm.split(None if comm.rank == 0 else 7)
    if comm.rank == 0:
        assert part is None
    else:
        assert part is not None
        assert part.all_gather_object(comm.rank) == list(range(1, comm.size))


def test_node_is_the_ranks_of_this_machine(comm: Communicator) -> None:
    node = comm.node()
    assert (node.rank, node.size) == (comm.local_rank, comm.local_size)
    assert comm.node() is node
    assert node.all_gather_object(comm.node_rank) == [comm.node_rank] * node.size


@pytest.mark.parametrize(
    "color, key", [(-1, None), (0.5, None), (True, None), (2**31, 0), (0, "a")]
)
def test_split_refuses(comm: Communicator, color: Any, key: Any) -> None:
    with pytest.raises(ValueError, match=r"^split\(\): expected (color|key) to be a whole number"):
        comm.split(color, key)


@pytest.mark.parametrize("call", ["reduce_scatter", "all_to_all"])
def test_a_row_for_every_rank_is_needed(comm: Communicator, call: str) -> None:
    for shape in [(), (0,), (comm.size + 1, 2)]:
        with pytest.raises(ValueError, match=rf"^{call}\(\): .*a row for each of .*got shape"):
            getattr(comm, call)(np.zeros(shape))


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


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 22])
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
    rows = np.arange(comm.size * size * 2.0).reshape(comm.size, size, 2)
    np.testing.assert_array_equal(
        comm.reduce_scatter(rows + comm.rank), comm.size * rows[comm.rank] + total
    )
    for rank, row in enumerate(comm.all_to_all(rows + comm.rank)):
        np.testing.assert_array_equal(row, rows[comm.rank] + rank)


def read_only() -> np.ndarray:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "list": ([1.0], TypeError, "expected a numpy.ndarray, got list"),
    "transposed": (np.zeros((2, 3)).T, ValueError, "C-contiguous.*strides"),
    "every second": (np.zeros(6)[::2], ValueError, "C-contiguous"),
    "read-only": (read_only(), ValueError, "read-only"),
    "objects": (np.array([None]), TypeError, "Python objects"),
}
NOT_REDUCIBLE: dict[str, tuple[Any, type[Exception], str]] = {
    "float16": (np.zeros(2, "f2"), TypeError, "got float16"),
    "complex": (np.zeros(2, "c8"), TypeError, "got complex64"),
    "foreign byte order": (np.zeros(2, ">f4"), TypeError, "native byte order, got >f4"),
    "text": (np.array(["a"]), TypeError, "got <U1"),
}


@pytest.mark.parametrize("case", [*REFUSED, *NOT_REDUCIBLE])
def test_all_reduce_refuses(comm: Communicator, case: str) -> None:
    array, error, message = (REFUSED | NOT_REDUCIBLE)[case]
    with pytest.raises(error, match=rf"^all_reduce\(\): .*{message}"):
        comm.all_reduce(array)
    if case in NOT_REDUCIBLE:
        with pytest.raises(error, match=rf"^reduce_scatter\(\): .*{message}"):
            comm.reduce_scatter(np.zeros((comm.size, 2), array.dtype))


@pytest.mark.parametrize("case", REFUSED)
def test_broadcast_and_all_gather_refuse(comm: Communicator, case: str) -> None:
    array, error, message = REFUSED[case]
    with pytest.raises(error, match=rf"^broadcast\(\): .*{message}"):
        comm.broadcast(array)
    if case != "read-only":
        for call in ("all_gather", "reduce_scatter", "all_to_all"):
            with pytest.raises(error, match=rf"^{call}\(\): .*{message}"):
                getattr(comm, call)(array)


def test_unknown_op_and_root_are_refused(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="expected op sum, max or min, got 'mean'"):
        comm.all_reduce(np.zeros(1), "mean")  # type: ignore[arg-type]
    for root in (-1, comm.size, 0.0, None):
        for call in (comm.broadcast, comm.gather_object, comm.broadcast_object):
            with pytest.raises(
                ValueError, match=f"expected root to be a rank from 0 to .*, got {root}"
            ):
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


def fails_in_a_part(comm: Communicator) -> None:
    part = comm.split(comm.rank % 2)
    assert part is not None
    if comm.rank == 0:
        raise ZeroDivisionError("mine")
    part.barrier()
    part.barrier()
    comm.barrier()


def test_in_process_a_failure_wakes_the_ranks_of_every_part() -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        in_process.run(4, fails_in_a_part)


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
    with pytest.raises(ValueError, match="at least 1 rank, got 0"):
        in_process.run(0, print)


# Communicators of a program that has MPI of its own ----------------------------------------------

TAKEN = """
import os

import numpy as np
from mpi4py import MPI

import microtrain as mt
from microtrain.distributed.connection import ranks_of

world = MPI.COMM_WORLD
group = world.Split(world.rank % 2, world.rank)
rows = np.arange(12, dtype=np.float32).reshape(6, 2)
if world.rank % 2 == 0:  # the others know nothing of it
    mt.manual_seed(0)
    model = mt.distributed.DataParallel(mt.nn.Linear(2, 1), group)
    optimizer = mt.optim.SGD(model.parameters(), lr=1e-3)
    loader = mt.data.DataLoader(mt.data.ArrayDataset(rows), 6, shuffle=False, comm=group)
    for (x,) in loader:
        (model(x) ** 2).mean().backward()
        optimizer.step()
    mt.save("kept", 1, model=model, optimizer=optimizer)
    mt.save("net", 1, model=model.module)
    before = model.module.weight.tolist()
    assert mt.restore("kept", model=model, optimizer=optimizer)["step"] == 1
    assert mt.restore("kept", model=model.module, optimizer=optimizer)["step"] == 1
    assert model.module.weight.tolist() == before
    mt.distributed.check_replicas(model)
    total = mt.distributed.all_reduce(mt.ones(1), comm=group).item()
    made = mt.Ensemble(lambda seed: (lambda net: (net, mt.optim.SGD(net.parameters(), lr=1.0)))(
        mt.nn.Linear(2, 1)), lambda net, o, x: net(x).mean(), 4, comm=group)
    assert {ranks_of(group), loader.comm, made.comm} == {model.comm}
    assert total == group.size and len(made.mine) * group.size in (4, 2)
    os.write(2, f"loss {model.loss:.6f} samples {model.samples}\\n".encode())  # in one piece
else:
    x = rows[:, :1]
    trainer = mt.train.Trainer(
        mt.nn.Linear(1, 1), (x, x), loss="mse", optimizer={"type": "sgd", "lr": 1e-3},
        duration="1 epoch", batch_size=6, comm=group)
    assert (trainer.train(), trainer.model.comm.size) == (0, group.size)
world.Barrier()
group.Free()
"""


@pytest.mark.daily("1")
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_a_communicator_of_mpi4py_is_taken_as_it_is(
    mpirun: Any, tmp_path: Path, ranks: int
) -> None:
    job = mpirun(ranks, TAKEN, cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    found = {line for line in job.stderr.splitlines() if line.startswith("loss")}
    assert len(found) == 1
    assert found.pop().endswith("samples 6")


NO_GROUP = """
import os

from mpi4py import MPI

import microtrain as mt

world = MPI.COMM_WORLD
rank = world.rank
say = lambda text: os.write(1, f"{text}\\n".encode())  # in one piece
gone = world.Dup()
gone.Free()
group = world.Split(world.rank % 2 or MPI.UNDEFINED, world.rank)  # only odd ranks are in it
half = world.Split(world.rank % 2, world.rank)
between = half.Create_intercomm(0, world, 1 - world.rank % 2)
wrong = {"freed": gone, "between": between, "group": world.Get_group(), "number": 3}
if world.rank % 2 == 0:
    wrong["outside"] = group
calls = {
    "DataParallel": lambda comm: mt.distributed.DataParallel(mt.nn.Linear(1, 1), comm),
    "save": lambda comm: mt.save("kept", 1, model=mt.nn.Linear(1, 1), comm=comm),
}
for name, comm in wrong.items():
    for call, function in calls.items():
        try:
            function(comm)
        except (TypeError, ValueError) as error:
            say(f"rank {rank} {name} {call} {type(error).__name__} {error}")

both = world.Dup()
model = mt.distributed.DataParallel(mt.nn.Linear(3, 3), both)
(model(mt.ones(1, 3)) ** 2).mean().backward()  # reduced in shared memory
if world.rank % 2:
    assert mt.distributed.DataParallel(mt.nn.Linear(1, 1), group).comm.size == group.size
alone = mt.distributed.DataParallel(mt.nn.Linear(1, 1), MPI.COMM_SELF)
assert alone.comm.size == 1
large = mt.distributed.DataParallel(mt.nn.Linear(300, 300), both)  # reduced by MPI
both.Free()  # before its last use
for each, size in ((model, 3), (large, 300)):
    try:
        (each(mt.ones(1, size)) ** 2).mean().backward()
    except RuntimeError as error:
        say(f"rank {rank} used {error}")
other = mt.distributed.DataParallel(mt.nn.Linear(300, 300), world)
assert mt.distributed.world() is other.comm
MPI.Finalize()
for comm in (world, None):
    try:
        mt.distributed.DataParallel(mt.nn.Linear(1, 1), comm)
    except RuntimeError as error:
        say(f"rank {rank} ended {error}")
"""


def test_what_is_no_group_with_this_rank_in_it_is_one_clear_error(mpirun: Any) -> None:
    job = mpirun(2, NO_GROUP)
    assert job.returncode == 0, job.stderr
    lines = job.stdout.splitlines()
    for name, kind, words in (
        ("freed", "ValueError", "has been freed"),
        ("outside", "ValueError", "this rank is in no group of the Split"),
        ("between", "TypeError", r"comm.Merge\(\)"),
        ("group", "TypeError", "found mpi4py.MPI.Group"),
        ("number", "TypeError", "expected a communicator of mpi4py .* found builtins.int"),
    ):
        found = [line for line in lines if re.search(f" {name} .* {kind} comm: .*{words}", line)]
        assert len(found) == (2 if name == "outside" else 4), (name, lines)
    used = [line for line in lines if " used " in line]
    assert len(used) == 4
    assert all("that it was made from has been freed" in line for line in used)
    ended = [line for line in lines if " ended " in line]
    assert len(ended) == 4
    assert all("has been finalized" in line for line in ended)


@pytest.mark.parametrize(
    "folder, step, seed, kind, message",
    [
        ("net-{}", 1, 0, ConfigError, "directory: .*net-0 on rank 0, .*net-1 on rank 1\nhint"),
        ("net", 5, 0, ConfigError, "step: 5 on rank 0, 6 on rank 1"),
        ("net", 1, 7, RuntimeError, "save: the replicas have drifted apart: rank 1 of 2 differ"),
    ],
)
def test_a_checkpoint_of_all_ranks_is_of_one_model(tmp_path, folder, step, seed, kind, message):
    """What the other ranks had, of models that each trained alone, was lost without a word."""

    def save(comm):
        mt.manual_seed(seed * comm.rank)
        place = tmp_path / folder.format(comm.rank)
        mt.save(place, step + comm.rank * (step == 5), model=mt.nn.Linear(2, 1))

    with pytest.raises(kind, match=message):
        in_process.run(2, save)
    assert not [*tmp_path.iterdir()]


THREAD_LEVEL = """
import mpi4py

mpi4py.rc.thread_level = "{level}"
from mpi4py import MPI

import microtrain as mt

net = mt.nn.Sequential(*[mt.nn.Linear(30, 30) for _ in range(3)])
for overlap in ("auto", "on"):
    try:
        model = mt.distributed.DataParallel(net, MPI.COMM_WORLD, overlap=overlap, bucket_mb=1e-3)
        (model(mt.ones(2, 30)) ** 2).mean().backward()
        print(model.overlap, flush=True)
    except mt.errors.LaunchError as error:
        print(error, flush=True)
    model = None
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["single", pytest.param("multiple", marks=pytest.mark.slow)])
def test_overlap_needs_the_thread_level_that_the_program_asked_of_mpi(mpirun: Any, level: str):
    job = mpirun(2, THREAD_LEVEL.format(level=level))
    assert job.returncode == 0, job.stderr
    if level == "single":
        assert job.stdout.count('overlap="on" calls MPI in a thread of its own') == 2
    else:
        assert job.stdout.count("on: asked for") == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: mt.distributed.DataParallel(mt.nn.Linear(1, 1), comm),
        lambda comm: mt.data.DataLoader(mt.data.ArrayDataset(np.ones((2, 1))), 1, comm=comm),
        lambda comm: mt.save("kept", 1, model=mt.nn.Linear(1, 1), comm=comm),
        lambda comm: mt.restore("kept", model=mt.nn.Linear(1, 1), comm=comm),
        lambda comm: mt.distributed.check_replicas(mt.nn.Linear(1, 1), comm),
        lambda comm: mt.distributed.all_reduce(mt.ones(1), comm=comm),
        lambda comm: mt.distributed.gather(mt.ones(1), comm=comm),
        lambda comm: mt.Ensemble(lambda seed: None, lambda: None, 2, comm=comm),
        lambda comm: mt.train.Trainer(
            mt.nn.Linear(1, 1), (np.ones((2, 1)),) * 2, loss="mse", optimizer="sgd", comm=comm
        ),
    ],
)
@pytest.mark.parametrize("wrong", [0, "world", [None], np.zeros(1)])
def test_what_is_no_communicator_is_one_clear_error(
    call: Any, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=r"comm: expected a communicator of mpi4py .* found \w+"):
        call(wrong)
    assert not list(tmp_path.iterdir())


def test_a_model_of_a_group_is_saved_and_restored_by_its_group(tmp_path: Path) -> None:
    def work(comm: Communicator) -> list[int] | None:
        group = comm.split(None if comm.rank == 1 else 0)
        if group is None:
            return None  # it takes no part in what follows
        model = mt.distributed.DataParallel(mt.nn.Linear(2, 1), group)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
        loader = mt.data.DataLoader(mt.data.ArrayDataset(np.ones((4, 2))), 4, comm=group)
        for number, parts in enumerate(
            [
                {"model": model, "optimizer": optimizer},
                {"model": model},
                {"model": model.module},  # its parameters are those of the wrapper
                {"model": model.module, "optimizer": optimizer},
            ]
        ):
            mt.save(tmp_path / str(number), 1, state={"epoch": 0}, **parts)
            assert mt.restore(tmp_path / str(number), loader=loader, **parts) is not None
        mt.distributed.check_replicas(model)
        # A net of its own on every rank, whose loader says who they are.
        mt.restore(tmp_path / "1", model=mt.nn.Linear(2, 1), loader=loader)
        return group.all_gather_object(comm.rank)

    assert in_process.run(3, work) == [[0, 2], None, [0, 2]]
