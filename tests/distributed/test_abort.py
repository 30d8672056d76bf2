"""One rank fails, the job ends: with its exit code, its words once and whole, nothing left behind.

Each case is a job over the real mpirun. Where one rank fails, the others wait for it in a
collective, where without the abort they would wait forever. These are the less usual ways out of a
Python program; `test_faults.py` has the usual ones, in the middle of training.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import mpi_run
import pytest
from pace import daily

from microtrain.distributed import agreed_exit
from microtrain.distributed.abort import exit_status
from microtrain.errors import DataError

Mpirun = Callable[..., mpi_run.Job]

JOB = """
import os, sys, threading, time
from sys import exit as imported_exit
import numpy as np
import microtrain.distributed as d
from microtrain.errors import DataError

comm = d.world()

def leave_later():
    time.sleep(0.3)
    sys.exit(0)

def case():
    {case}

if comm.rank in {ranks}:
    case()
comm.all_reduce(np.ones(3))
print("the end")
"""
TRACEBACK = "Traceback (most recent call last):"
# what rank 1 does; exit code; its first line after the rank; whether a traceback; what else it says
FAILURES: dict[str, tuple[str, int, str, bool, str]] = {
    "exception in a thread": (
        "threading.Thread(target=lambda: 1 / 0, name='loader').start(); time.sleep(60)",
        1,
        "failed in thread 'loader'",
        True,
        "ZeroDivisionError: division by zero",
    ),
    "exception in a thread while the main thread is inside MPI": (
        "threading.Timer(0.2, lambda: 1 / 0).start(); comm._comm.Barrier()",
        1,
        "failed in thread 'Thread-1'",
        True,
        "ZeroDivisionError: division by zero",
    ),
    "exception in a daemon while the main thread leaves": (
        "threading.Thread(target=lambda: 1 / 0, name='d', daemon=True).start(); leave_later()",
        1,
        "failed in thread 'd'",
        True,
        "ZeroDivisionError: division by zero",
    ),
    "interrupt": ("raise KeyboardInterrupt", 130, "failed", True, "KeyboardInterrupt"),
    "interrupted": ("sys.exit(130)", 130, "was interrupted", False, ""),
    "from sys import exit": ("imported_exit(3)", 3, "left with exit code 3", False, ""),
    "exit": ("exit(3)", 3, "left with exit code 3", False, ""),
    "raise SystemExit": ("raise SystemExit(7)", 7, "left with exit code 7", False, ""),
    "exit with a text": ("sys.exit('why it ends')", 1, "left with exit code 1", False, "why it"),
    "sys.exit in a thread": (
        "threading.Thread(target=sys.exit, args=(4,), name='t').start(); time.sleep(60)",
        4,
        "left with exit code 4 in thread 't'",
        False,
        "",
    ),
    "user error": ("raise DataError('x.csv: bad')", 3, "failed", False, "error: x.csv: bad\n"),
    "another hook in place of ours": (
        "sys.excepthook = lambda *a: print('other:', a[1], file=sys.stderr); raise ValueError('v')",
        1,
        "failed",
        False,
        "other: v",
    ),
}


# Each is a job of its own; one of each kind every day keeps the suite short.
@pytest.mark.daily("user error")
@pytest.mark.parametrize(
    "name", daily(FAILURES, "exception in a thread", "interrupted", "exit", "user error")
)
def test_a_failing_rank_ends_the_job(mpirun: Mpirun, name: str) -> None:
    case, code, what, traceback, says = FAILURES[name]
    job = mpirun(3, JOB.format(case=case, ranks=[1]))
    assert job.returncode == code, job
    assert job.stderr.count("microtrain: rank ") == 1, job.stderr
    assert job.stderr.count("microtrain: rank 1 of 3 (host ") == 1
    assert f") {what}; aborting the job\n" in job.stderr, job.stderr
    assert job.stderr.count(TRACEBACK) == traceback
    assert says in job.stderr
    assert "the end" not in job.stdout
    assert job.left_behind == ()


# What is no failure must not be taken for one: the job goes on, or ends as it is meant to.
ENDS: dict[str, tuple[str, int]] = {
    "all pass": ("pass", 0),
    "sys.exit()": ("comm.barrier(); sys.exit()", 0),
    "raise SystemExit(0)": ("raise SystemExit(0)", 0),
    "agreed": ("d.agreed_exit(2)", 2),
    "agreed, resumable": ("d.agreed_exit(75)", 75),
    "a caught exit": (
        "try: sys.exit(3)\n    except SystemExit as error: assert error.code == 3",
        0,
    ),
    "an exit caught, then a normal one": (
        "try: raise SystemExit(3)\n    except SystemExit: raise SystemExit(0)",
        0,
    ),
    "a caught error": ("try: 1 / 0\n    except ZeroDivisionError: pass", 0),
    "a thread's normal exit": ("t = threading.Thread(target=sys.exit); t.start(); t.join()", 0),
}


@pytest.mark.daily("sys.exit()")
@pytest.mark.parametrize(
    "name", daily(ENDS, "sys.exit()", "a caught error", "a thread's normal exit")
)
def test_ends_that_are_no_failure(mpirun: Mpirun, name: str) -> None:
    case, code = ENDS[name]
    job = mpirun(2, JOB.format(case=case, ranks=[0, 1]))
    assert job.returncode == code, job
    assert "microtrain" not in job.stderr
    assert TRACEBACK not in job.stderr
    assert job.left_behind == ()


def test_the_same_error_on_every_rank_is_told_once(mpirun: Mpirun) -> None:
    job = mpirun(3, JOB.format(case="raise DataError('no data')", ranks=range(3)))
    assert job.returncode == DataError.exit_code
    assert job.stderr.count("no data") == 1
    assert "microtrain: rank 0 of 3" in job.stderr


@pytest.mark.slow
def test_a_long_message_arrives_whole_and_in_order(mpirun: Mpirun) -> None:
    text = "raise ValueError('begin ' + '-' * 200_000 + ' end of text')"
    job = mpirun(3, JOB.format(case=f"print('rank 1 was here'); {text}", ranks=[1]))
    assert job.returncode == 1
    assert f"ValueError: begin {'-' * 200_000} end of text\n" in job.stderr
    assert "rank 1 was here" in job.stdout  # buffered output is flushed before MPI_Abort


BEFORE_WORLD = """
import os
import microtrain
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    {case}
microtrain.distributed.world().barrier()
"""


@pytest.mark.daily("exit(4)")
@pytest.mark.parametrize("case, code", [("raise ImportError('no such module')", 1), ("exit(4)", 4)])
def test_a_failure_before_world_ends_the_job(mpirun: Mpirun, case: str, code: int) -> None:
    job = mpirun(3, BEFORE_WORLD.format(case=case))
    assert job.returncode == code, job
    assert job.stderr.count("microtrain: rank 1 of 3 (host ") == 1
    assert job.stderr.count("ImportError: no such module") == (code == 1)
    assert job.left_behind == ()


@pytest.mark.slow
def test_abort_of_a_communicator(mpirun: Mpirun) -> None:
    job = mpirun(3, JOB.format(case="print('bye'); comm.abort(6)", ranks=[1]))
    assert job.returncode == 6
    assert "bye" in job.stdout
    assert job.left_behind == ()


def test_abort_of_a_single_process_flushes_and_ends_it() -> None:
    code = "import microtrain.distributed as d; print('bye', end=''); d.world().abort(6)"
    job = mpi_run.run_job([sys.executable, "-c", code])
    assert (job.returncode, job.stdout) == (6, "bye")


def test_a_process_that_cannot_be_aborted_ends_all_the_same() -> None:
    code = (
        "import time; from microtrain.distributed import abort; abort.GRACE = 0.3\n"
        "abort.kill = lambda code: time.sleep(60); abort.end_process(6, 'last words')"
    )
    job = mpi_run.run_job([sys.executable, "-c", code])
    assert (job.returncode, job.stderr) == (1, "last words")


FORKED = """
import multiprocessing, sys
import microtrain.distributed as d

comm = d.world()
context = multiprocessing.get_context("fork")
codes = []
for target, arguments in ((divmod, (1, 0)), (sys.exit, (9,))):
    child = context.Process(target=target, args=arguments)
    child.start()
    child.join()
    codes.append(child.exitcode)
print(comm.all_gather_object(codes))
"""


@pytest.mark.slow
def test_a_forked_child_keeps_pythons_own_behavior(mpirun: Mpirun) -> None:
    job = mpirun(2, FORKED, env={"PYTHONWARNINGS": "ignore"})
    assert job.returncode == 0, job
    assert job.stdout.count("[[1, 9], [1, 9]]") == 2
    assert "aborting the job" not in job.stderr


@pytest.mark.parametrize("code", [None, 0, 1, 3, 255, 256, -1, True, "text", 2.5])
def test_exit_status_is_pythons(code: object) -> None:
    job = mpi_run.run_job([sys.executable, "-c", f"raise SystemExit({code!r})"])
    assert (job.returncode, job.stderr) == exit_status(code)


@pytest.mark.parametrize("code", [2, 4, 75])
def test_agreed_exit_is_a_system_exit(code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        agreed_exit(code)
    assert caught.value.code == code
    assert os.EX_TEMPFAIL == 75
