"""What is said while ranks wait, what is compared over them, and the limits that can be set.

`test_faults.py` has the jobs that the watchdog ends.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi_run
import pytest
from pace import daily

import microtrain as mt
from microtrain.distributed import Communicator, in_process, watchdog
from microtrain.distributed.communicator import ranks_named
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, LaunchError

Mpirun = Callable[..., mpi_run.Job]

JOB = """
import os, signal, sys, time
import numpy as np
import microtrain as mt
comm = mt.distributed.world()
model = mt.distributed.DataParallel(mt.nn.Linear(2, 1), comm)
optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    mt.nn.functional.mse_loss(model(mt.ones(3, 2)), mt.zeros(3, 1)).backward()
    optimizer.step()

step()
step()
if comm.rank == 1:
    {fault}
step()  # the third
print("the end")
"""
THREADS = """
import threading, time
import numpy as np
import microtrain as mt
comm = mt.distributed.world()

def talk(own):
    for _ in range(1000):
        own.all_reduce(np.ones(2))
        time.sleep(0.03 * comm.rank)

for own in [comm.split(0) for _ in range(5)]:
    threading.Thread(target=talk, args=(own,), daemon=True).start()
if comm.rank:
    time.sleep(25)
comm.barrier()
print("the end")
"""


@pytest.mark.slow
def test_a_wait_is_seen_beside_threads_whose_calls_go_on(mpirun: Mpirun) -> None:
    limits = {"MICROTRAIN_WARN_S": "0.5", "MICROTRAIN_TIMEOUT_S": "1.5"}
    job = mpirun(2, THREADS, env=limits, timeout=60)
    assert job.returncode == 1, job.stderr
    assert "the end" not in job.stdout
    assert "rank 0 of 2 has waited" in job.stderr and "s in barrier at script.py:16" in job.stderr


GETTING_ON = """
import time
import microtrain as mt
from microtrain.distributed import watchdog
from microtrain.distributed.communicator import alone
comm = mt.distributed.world()
watchdog.limits(warn_s=0.5, timeout_s=0.5)
if comm.rank == 1:
    with alone("it decodes rows") as busy:
        for done in range({looks}):
            time.sleep(0.1)
            busy(f"it decodes rows, {{done if {moves} else 0}} so far")
comm.barrier()
print("the end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_a_rank_that_is_getting_on_is_waited_for_as_long_as_it_takes(
    mpirun: Mpirun, moves: bool
) -> None:
    job = mpirun(2, GETTING_ON.format(looks=90, moves=moves), timeout=60)
    found = job.returncode, job.stdout.count("the end")
    assert found == ((0, 2) if moves else (1, 0)), job.stderr
    assert "busy (it decodes rows, " in job.stderr


@pytest.mark.slow
def test_a_slow_rank_is_named_and_waited_for(mpirun: Mpirun) -> None:
    limits = {"MICROTRAIN_WARN_S": "0.5", "MICROTRAIN_TIMEOUT_S": "60"}
    job = mpirun(2, JOB.format(fault="time.sleep(2.5)"), env=limits)
    assert (job.returncode, job.stdout.count("the end")) == (0, 2), job.stderr
    assert "rank 1: missing: last seen at script.py:17 in step 2" in job.stderr
    assert "aborting" not in job.stderr
    # Told at 0.5 and 1 s, and perhaps at 2: not at every look.
    assert 1 <= job.stderr.count("rank 0 of 2 has waited") <= 3


@pytest.mark.slow
def test_a_job_in_order_says_nothing(mpirun: Mpirun) -> None:
    job = mpirun(4, JOB.format(fault="pass"))
    assert (job.returncode, job.stderr) == (0, "")


COMPARED = {
    "another call": ("comm.barrier()", r"rank 1: barrier at script.py:17"),
    "another shape": ("comm.all_reduce(np.ones(9, 'f4'))", "all_reduce of shape (9,), float32"),
    "another op": ("comm.all_reduce(np.ones(2, 'f4'), op='max')", "rank 1: all_reduce(max) of"),
}


@pytest.mark.daily("another shape")
@pytest.mark.parametrize("case", daily(COMPARED, "another call", "another shape"))
def test_debug_mode_compares_every_call(mpirun: Mpirun, case: str) -> None:
    fault, message = COMPARED[case]
    job = mpirun(2, JOB.format(fault=fault), env={"MICROTRAIN_DEBUG": "comm"})
    assert job.returncode == 1
    assert "RuntimeError: the ranks are not at the same call:\n  rank 0: all_reduce" in job.stderr
    assert message in job.stderr


@pytest.mark.slow
def test_debug_mode_lets_a_right_job_pass(mpirun: Mpirun) -> None:
    body = "pass\nhalf = comm.split(comm.rank % 2, key=0)\nhalf.broadcast(np.ones(2), root=0)"
    job = mpirun(2, JOB.format(fault=body), env={"MICROTRAIN_DEBUG": "comm"})
    assert (job.returncode, job.stderr) == (0, "")


@pytest.mark.daily("WARN_S")
@pytest.mark.parametrize(
    "variable, value, message",
    [
        ("MICROTRAIN_WARN_S", "soon", "MICROTRAIN_WARN_S: expected a number of seconds"),
        pytest.param(
            *("MICROTRAIN_TIMEOUT_S", "0", "timeout_s: expected seconds above 0"),
            marks=pytest.mark.slow,
        ),
        ("MICROTRAIN_DEBUG", "com", "MICROTRAIN_DEBUG: expected comm, found com"),
    ],
)
def test_settings_that_make_no_sense(
    mpirun: Mpirun, variable: str, value: str, message: str
) -> None:
    job = mpirun(2, "-c", "import microtrain as mt; mt.distributed.world()", env={variable: value})
    assert job.returncode == 2
    assert message in job.stderr


def test_the_environment_wins_over_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[float, float]] = []
    monkeypatch.setattr(watchdog, "limits", lambda *given: found.append(given))
    watchdog.configure(3.0, 60.0)
    monkeypatch.setenv("MICROTRAIN_TIMEOUT_S", "5")
    watchdog.configure(3.0, 60.0)
    assert found == [(3.0, 60.0), (3.0, 5.0)]


def test_limits_are_checked_without_other_ranks() -> None:
    with pytest.raises(ConfigError, match="warn_s: expected seconds above 0"):
        watchdog.limits(-1, 10)
    with pytest.raises(ConfigError, match="timeout_s"):
        watchdog.limits(1, float("nan"))


def test_ranks_are_named_by_ranges() -> None:
    assert ranks_named([1]) == "rank 1"
    assert ranks_named([1, 2]) == "ranks 1, 2"
    assert ranks_named([0, 1, 2, 3, 7, 9, 10]) == "ranks 0-3, 7, 9, 10"


# ---------------------------------------------------------------------------------------- the board


class Job:
    """Boards of two machines with two ranks each, as threads; the main thread writes for all."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)

        def made(comm: in_process.InProcessCommunicator) -> watchdog.Board:
            comm.node_rank, comm.num_nodes = comm.rank // 2, 2  # type: ignore[misc]
            return watchdog.Board(comm)

        self.boards = in_process.run(4, made)
        for rank, board in enumerate(self.boards):
            self.write(rank)
            board.directory = directory

    def write(self, rank: int, **more: Any) -> None:
        record = {"at": "x.py:1", "doing": "", "alone": "", "left": False, "stacks": ""}
        self.boards[rank].write(record | {"rank": rank} | more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    return now


def test_a_machine_has_one_file(tmp_path: Path, clock: list[float]) -> None:
    job = Job(tmp_path / "board")
    stamps = []
    for _ in range(3):
        for rank in range(4):
            job.write(rank)
        stamps.append([path.stat().st_mtime_ns for path in sorted((tmp_path / "board").iterdir())])
        clock[0] += 1
    assert [path.name for path in sorted((tmp_path / "board").iterdir())] == ["0.json", "1.json"]
    assert stamps[0] == stamps[1] == stamps[2]  # not at every look
    clock[0] += watchdog.SIGHT
    for rank in range(4):
        job.write(rank)
    assert job.boards[0].here().keys() == {0, 1}
    assert job.boards[0].elsewhere(0.0) == {r: job.boards[2].here()[r] for r in (2, 3)}
    assert job.boards[3].elsewhere(0.0).keys() == {0, 1}


def test_the_file_of_a_machine_is_written_though_its_first_rank_is_stopped(
    tmp_path: Path, clock: list[float]
) -> None:
    job = Job(tmp_path / "board")
    job.write(0)
    clock[0] += watchdog.SIGHT + 0.5
    job.write(1, at="too soon for the second")
    assert job.boards[2].elsewhere(0.0)[1]["at"] == "x.py:1"
    clock[0] += watchdog.PERIOD
    job.write(1, at="y.py:2")
    assert job.boards[2].elsewhere(0.0)[1]["at"] == "y.py:2"
    job.write(1, left=True)  # news are not kept back
    assert job.boards[2].elsewhere(0.0)[1]["left"]


def test_files_of_an_earlier_job_are_not_looked_at(tmp_path: Path) -> None:
    before = Job(tmp_path / "board")
    for rank in range(4):
        before.write(rank, left=True, stacks="x")
    assert before.boards[0].elsewhere(0.0).keys() == {2, 3}
    assert [board.ends_elsewhere() for board in before.boards] == [True, False, True, False]
    after = Job(tmp_path / "board")
    assert after.boards[0].elsewhere(0.0) == {}
    assert not any(board.ends_elsewhere() for board in after.boards)


def test_other_machines_are_read_by_one_rank_that_has_waited_long(tmp_path: Path) -> None:
    job = Job(tmp_path / "board")
    for rank in range(4):
        job.write(rank)
    watching = object.__new__(watchdog.Watchdog)
    watching.board, watching.warn_s, watching.timeout_s = job.boards[0], 30.0, 600.0
    read = {}
    for waited, first in ((14.0, True), (15.0, False), (15.0, True), (606.0, False)):
        watching.waited = waited
        read[waited, first] = set(watching.far(first))
    assert read == {
        (14.0, True): set(), (15.0, False): set(), (15.0, True): {2, 3}, (606.0, False): {2, 3},
    }  # fmt: skip


def test_clocks_of_machines_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is set wrong made a rank silent, or one that is stopped lively."""

    def now() -> float:
        return time.monotonic() + 5000 * (threading.current_thread().name == "rank-1")

    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=now, time=now))

    def found(comm: Communicator) -> tuple[bool, str]:
        watching = watchdog.Watchdog(comm, weakref.WeakSet())
        watching.timeout_s = 600.0
        mine = watching.record("barrier")
        comm.barrier()
        other = watching.board.here()[1 - comm.rank]
        return watching.silent(other), watching._about(other, mine)

    for silent, told in in_process.run(2, found):
        assert not silent
        assert told.startswith("missing: last seen at ")


def test_a_rank_that_has_left_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its atexit hooks are over: who waits for it in a group of their own waited ten times long."""
    ended: list[str] = []

    def wait(comm: Communicator) -> None:
        own = comm.split(0)
        assert own is not None
        watching = watchdog.Watchdog(comm, weakref.WeakSet([own]))
        if comm.rank:
            watching.end_soon()
            watching.left = True
            watching.look(0.0)
        comm.barrier()
        watching.timeout_s = 600.0
        monkeypatch.setattr(watching, "end", lambda why, *_: ended.append(why))
        own._doing = "barrier", ()
        for _ in range(3):
            if not comm.rank:
                watching.look(400.0)

    in_process.run(2, wait)
    assert ended == ["600 s are over (distributed.timeout_s)"]


def test_a_look_does_not_mind_communicators_that_are_made_meanwhile() -> None:
    """An error in its thread ends the job."""
    communicators: weakref.WeakSet[Any] = weakref.WeakSet()
    watching = watchdog.Watchdog(SingleCommunicator(), communicators)
    over, before, looks = threading.Event(), sys.getswitchinterval(), 0

    def make() -> None:
        while not over.is_set():
            kept = [SingleCommunicator() for _ in range(50)]
            for one in kept:
                communicators.add(one)

    thread = threading.Thread(target=make)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            watching.look(0.0)
            looks += 1
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()
    assert looks


# ------------------------------------------------------------------------------------- the replicas


def test_equal_replicas_pass(comm: Communicator) -> None:
    mt.manual_seed(0)
    mt.distributed.check_replicas(mt.nn.Linear(3, 2), comm)


def test_a_drifted_replica_is_named(comm: Communicator) -> None:
    if comm.size == 1:
        return
    mt.manual_seed(0)
    model = mt.nn.Sequential(mt.nn.Linear(3, 2), mt.nn.Linear(2, 1))
    odd = comm.size - 1
    if comm.rank == odd:
        with mt.no_grad():
            model[1].weight[0, 1] += 1e-7
    who = r"rank 1 of 2" if comm.size == 2 else f"rank {odd} of {comm.size}"
    with pytest.raises(RuntimeError, match=f"drifted apart: {who} differ.* in 1.weight;"):
        mt.distributed.check_replicas(model, comm)


def test_other_tensors_are_no_drift(comm: Communicator) -> None:
    if comm.size == 1:
        return
    named = [("a" if comm.rank else "b", mt.ones(comm.rank + 1))]
    with pytest.raises(RuntimeError, match="compares different tensors"):
        mt.distributed.check_replicas(named, comm)


@pytest.mark.parametrize("lacks", ["room", "files"])
def test_the_board_does_without_a_full_dev_shm(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory would end the process at the first write where the file system has no page."""
    make = tempfile.mkstemp

    def full(prefix: str, dir: str | None) -> tuple[int, str]:
        if dir is None:
            return make(prefix=prefix)
        if lacks == "files":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.open("/dev/full", os.O_RDWR), make(prefix=prefix)[1]

    monkeypatch.setattr(tempfile, "mkstemp", full)
    board = watchdog.Board(mt.distributed.world())
    assert board._memory[:] == bytes(len(board._memory))


def test_stacks_in_any_script_leave_the_record_readable(tmp_path: Path) -> None:
    job, stacks = Job(tmp_path / "board"), "函数的代码在这个文件\n" * 2000
    job.write(1, stacks=stacks)
    kept = job.boards[0].here()[1]["stacks"]
    assert len(kept) > 3000 and stacks.endswith(kept)
    job.write(1, stacks="x" * 20_000)
    assert job.boards[0].here()[1]["stacks"] == "x" * 10_000


def test_a_rank_that_does_not_see_the_memory_of_its_host_says_so(tmp_path):
    """Ranks in containers of one host, each with a /dev/shm of its own."""
    name = watchdog.zeros(str(tmp_path), 64)
    assert watchdog._opened(name, 64)[:] == bytes(64)
    with pytest.raises(LaunchError, match=r"does not see .*\n.* have to share") as caught:
        watchdog._opened(f"{name}-of-another", 64)
    assert str(tmp_path) in str(caught.value)
