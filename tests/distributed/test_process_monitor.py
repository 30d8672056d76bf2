"""No job hangs or ends without a word: before the ranks have met, when one vanishes, at the end.

The limit of the jobs here is `LIMIT` seconds, and each may take ten times as long as was promised.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mpi_run
import pytest
from pace import daily

from microtrain.cli.mpirun import mpiruns
from microtrain.common.threads import blas_kernel

Mpirun = Callable[..., mpi_run.Job]
LIMIT = 2.0
LIMITS = {"MICROTRAIN_WARN_S": "1", "MICROTRAIN_TIMEOUT_S": f"{LIMIT:g}"}
TIME = 10 * (LIMIT + 5)
MPICH = any(
    one.kind == "mpich" and one.path.samefile(mpi_run.find_mpirun() or "/") for one in mpiruns()
)

SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]

START = """\
import atexit, os, signal, sys, time
odd = 1 == int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)
"""
WORLD = """
import numpy as np
import microtrain as mt
comm = mt.distributed.world()
"""


def ended(job: mpi_run.Job, codes: tuple[int, ...], *says: str) -> None:
    """The job has ended with one of `codes`, or what the launcher chooses, and these words."""
    assert job.returncode in codes if codes and MPICH else job.returncode != 0, job
    assert job.left_behind == ()
    for pattern in says:
        assert len(re.findall(pattern, job.stderr)) == 1, f"{pattern}\nin\n{job.stderr}"


# ----------------------------------------------------------------------------------- the connection

IN_INIT = (
    r"microtrain: rank \d of {} \(host \S+, PID \d+\) has waited 2 s \(MICROTRAIN_TIMEOUT_S\), "
)
IN_INIT += r"since \d\d:\d\d:\d\d, in {}(.*): a rank runs another program"


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_is_another_program(mpirun: Mpirun, tmp_path: Path, size: int) -> None:
    (tmp_path / "script.py").write_text(START + WORLD)
    others = ("script.py", ":", "-n", "1", "sleep", "600")
    job = mpirun(size - 1, *others, env=LIMITS, cwd=tmp_path, timeout=TIME)
    ended(job, (5,), IN_INIT.format(size, "MPI_Init"))


BEFORE = {
    "stopped before MPI_Init": ("if odd: stop()", "MPI_Init"),
    "does not come to MPI_Init": ("if odd: time.sleep(600)", "MPI_Init"),
    "stopped after MPI_Init": (
        "if odd:\n    from mpi4py import MPI\n    stop()",
        "the first collectives after MPI_Init",
    ),
}


@pytest.mark.daily("does not come")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "case", daily(BEFORE, "does not come to MPI_Init", "stopped after MPI_Init")
)
def test_a_rank_that_does_not_come(mpirun: Mpirun, case: str, size: int) -> None:
    before, where = BEFORE[case]
    job = mpirun(size, f"{START}{before}\n{WORLD}", env=LIMITS, timeout=TIME)
    ended(job, (5,), IN_INIT.format(size, where))


ENVIRONMENTS = {
    "MICROTRAIN_DEBUG": ("not set", "comm"),
    "MICROTRAIN_TIMEOUT_S": ("20", "30"),
    "MICROTRAIN_COMPILE": ("not set", "off"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variable", daily(ENVIRONMENTS, "MICROTRAIN_COMPILE"))
def test_other_environments_are_told_apart(mpirun: Mpirun, variable: str, size: int) -> None:
    first, odd = ENVIRONMENTS[variable]
    script = f"{START}if odd: os.environ[{variable!r}] = {odd!r}\n{WORLD}"
    env = {variable: None if first == "not set" else first}
    job = mpirun(size, script, env=env, timeout=50)
    others = "rank 0" if size == 2 else "ranks 0, 2, 3"
    found = first if first == "not set" else f"'{first}'"
    assert job.returncode == 5, job
    words = (
        f"environments of the ranks differ: {variable} is {found} on {others}, '{odd}' on rank 1"
    )
    assert job.stderr.count(words) == 1, job.stderr


VERSIONS = {
    "microtrain": "import microtrain.common.version as m; m.__version__ = '0.0.9'",
    "NumPy": "np.__version__ = '0.0.9'",
}


@pytest.mark.daily("microtrain")
@pytest.mark.parametrize("package", VERSIONS)
def test_another_version_on_one_rank_is_an_error(mpirun: Mpirun, package: str) -> None:
    job = mpirun(2, f"{START}import numpy as np\nif odd: {VERSIONS[package]}\n{WORLD}", timeout=50)
    assert job.returncode == 5, job
    told = rf"different versions of {package}: \S+ on rank 0, 0.0.9 on rank 1\n"
    assert len(re.findall(told, job.stderr)) == 1, job.stderr


@pytest.mark.slow
def test_blas_code_of_another_processor_on_one_rank_is_a_warning(mpirun: Mpirun) -> None:
    """OpenBLAS takes the name of a processor when it is loaded, so before NumPy is imported."""
    script = f"{START}if odd: os.environ['OPENBLAS_CORETYPE'] = 'Prescott'\n{WORLD}"
    if not blas_kernel().startswith("openblas") or platform.machine() != "x86_64":
        pytest.skip("NumPy has another BLAS")
    job = mpirun(2, script, env={"OPENBLAS_CORETYPE": None}, timeout=50)
    assert job.returncode == 0, job
    told = r"BLAS computes by different code: openblas \w+ on rank 0, openblas \w+ on rank 1"
    assert len(re.findall(told, job.stderr)) == 1, job.stderr


# ----------------------------------------------------------------------------- a rank that vanishes

VANISHES = {
    "in the middle": ("for n in range(9): n == 5 and odd and {}; comm.all_reduce(np.ones(3))", 1),
    "after the last collective": ("comm.barrier()\nif odd: {}", 1),
    "rank 0 alone": ("comm.barrier()\nif comm.rank == 0: {}", 0),
    "all ranks": ("comm.barrier()\n{}", None),
    "at exit": ("if odd: atexit.register(lambda: {})", 1),
}
EVERY_DAY = ("in the middle", "at exit")
# Where the launcher was faster to ask how the process has ended: then nobody else can know.
GONE = r"is gone: killed \(signal 9, as where memory runs out\), or left by os\._exit"
LEAVES = {
    "os._exit(0)": (r"left with exit code 0 before its end, by os\._exit or the like", 1),
    "os._exit(7)": (r"left with exit code 7 before its end, by os\._exit or the like", 7),
    "os.kill(os.getpid(), 9)": (r"was ended by signal 9 \(Killed\)", 137),
}


@pytest.mark.daily("at exit")
@pytest.mark.parametrize(
    ("how", "when", "size"),
    [
        pytest.param(
            how,
            when,
            size,
            marks=[pytest.mark.slow] * (size == 4 or "(0)" not in how or when not in EVERY_DAY),
        )
        for how in LEAVES
        for when in VANISHES
        for size in (2, 4)
    ],
)
def test_a_rank_that_vanishes(mpirun: Mpirun, how: str, when: str, size: int) -> None:
    (body, rank), (words, code) = VANISHES[when], LEAVES[how]
    job = mpirun(size, START + WORLD + body.format(how), timeout=50)
    which = r"\d" if rank is None else str(rank)
    who = rf"rank {which} of {size} \(host \S+, PID \d+\)"
    ended(job, (code, 1), rf"microtrain: {who} ({words}|{GONE}); the job ends")
    assert job.stderr.count("microtrain: ") == 1


@pytest.mark.slow
def test_a_signal_to_all_ranks_is_told_once(mpirun: Mpirun) -> None:
    job = mpirun(4, START + WORLD + "comm.barrier()\nos.kill(os.getpid(), 15); time.sleep(60)")
    who = r"microtrain: rank \d of 4 \(host \S+, PID \d+\)"
    ended(job, (143, 1), rf"{who} (was ended by signal 15 \(Terminated\)|{GONE}); the job ends")
    assert job.stderr.count("microtrain: ") == 1


def test_forked_children_and_normal_ends_are_none_of_it(mpirun: Mpirun) -> None:
    body = """
child = os.fork()
if not child:
    time.sleep(0.2)
    atexit._run_exitfuncs()  # which are those of a rank
    os._exit(0)
os.waitpid(child, 0)
comm.barrier()
"""
    job = mpirun(2, START + WORLD + body, env={"PYTHONWARNINGS": "ignore"})
    assert (job.returncode, job.stderr) == (0, "")


FAILED = """
try:
    mt.distributed.world()
except mt.errors.LaunchError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_connection_that_fails_may_be_caught(mpirun: Mpirun) -> None:
    different = "if odd: os.environ['MICROTRAIN_COMPILE'] = 'off'\nimport microtrain as mt"
    job = mpirun(2, START + different + FAILED)
    assert (job.returncode, job.stderr) == (0, "")
    assert job.stdout.count("MICROTRAIN_COMPILE is not set on rank 0, 'off' on rank 1") == 2


RUN = """\
name: told
data: {type: synthetic_linear, samples: 64, weights: [2, -1], noise: 0.1, split: {train: 1}}
model: ./model.py:Net
loss: mse
optimizer: {type: sgd, lr: 0.01}
train: {duration: 8 steps, batch_size: 8, compile: off}
"""
MODEL = """\
import os, time
import microtrain as mt
from microtrain.distributed import communicator

class Net(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        rank = mt.distributed.world().rank
        {does}
        return self.inner(x)
"""


@pytest.mark.parametrize(("rank", "size"), [(1, 2), pytest.param(0, 4, marks=pytest.mark.slow)])
def test_a_killed_run_says_how_to_go_on(
    mpirun: Mpirun, tmp_path: Path, rank: int, size: int
) -> None:
    does = f"if rank == {rank} and self.calls == 5: os.kill(os.getpid(), 9)"
    (tmp_path / "model.py").write_text(MODEL.format(does=does))
    (tmp_path / "run.yaml").write_text(RUN)
    job = mpirun(size, "-m", "microtrain", "train", "run.yaml", cwd=tmp_path)
    who = rf"rank {rank} of {size} \(host \S+, PID \d+\)"
    ended(job, (137, 1), rf"{who} (was ended by signal 9 \(Killed\)|{GONE}); the job ends")
    (path,) = tmp_path.glob("runs/told/2*")
    resume = f"resume {path.relative_to(tmp_path)} --trust"
    assert re.search(rf"; the job ends\nresume with: .*{resume}\n", job.stderr), job.stderr


ALONE = """\
import os, sys, time
from microtrain.distributed import process_monitor
process_monitor.start(0, 2)
process_monitor.tell(limit=600.0, text="waits", code=1)  # as in MPI_Init
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_a_rank_that_waits_for_others_ends_with_its_launcher() -> None:
    """It would wait in MPI_Init for ranks that nobody starts any more, up to the limit."""
    launcher = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", launcher, ALONE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        rank = int(job.stdout.readline())
        job.kill()
        # The pipes end with the rank and its monitor.
        said = job.stderr.read()
        assert job.stdout.read() == ""
    expected = rf"microtrain: rank 0 of 2 \(host \S+, PID {rank}\) has lost its launcher"
    assert re.match(expected, said), said
    assert not Path(f"/proc/{rank}/exe").exists()


# ------------------------------------------------------------------------------------------ the end

# What rank 1 does, before and after the ranks have met; what is said of it.
HANGS = {
    "a hook": ("", "if odd: atexit.register(time.sleep, 600)", r"an atexit hook does not return"),
    "a hook of before": (
        "if odd: atexit.register(time.sleep, 600)",
        "",
        r"an atexit hook or MPI_Finalize does not return",
    ),
    "stopped in a hook": (
        "",
        "if odd: atexit.register(stop)",
        r"rank 0 of \d has waited \d s for the others at the end of its program\n"
        r"  rank 1: no sign of life for \d s \(stopped, (.|\n)*aborting the job",
    ),
    "stopped before MPI_Finalize": (
        "if odd: atexit.register(stop)",
        "",
        r"an atexit hook or MPI_Finalize does not return",
    ),
    "a thread": (
        "import threading",
        "if odd: threading.Thread(target=time.sleep, args=(600,), name='uploads').start()",
        r"rank 0 of \d has waited \d s for the others at the end of its program\n"
        r"  rank 1: its program has ended, but not its thread uploads at (.|\n)*aborting the job",
    ),
    "a thread of a pool": (
        "",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "if odd: ThreadPoolExecutor(1, 'uploads').submit(time.sleep, 600)",
        r"  rank 1: its program has ended, but not its thread uploads_0 at (.|\n)*aborting the job",
    ),
    "stopped before its end": (
        "",
        "if odd: time.sleep(0.5); stop()",
        r"rank 0 of \d has waited \d s for the others at the end of its program\n"
        r"  rank 1: no sign of life for \d s \(stopped, (.|\n)*aborting the job",
    ),
}


@pytest.mark.daily("a hook")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", daily(HANGS, "a hook", "a thread", "stopped before MPI_Finalize"))
def test_a_rank_that_hangs_at_its_end(mpirun: Mpirun, case: str, size: int) -> None:
    before, after, words = HANGS[case]
    script = f"{START}{before}\n{WORLD}comm.barrier()\n{after}\n"
    job = mpirun(size, script, env=LIMITS, timeout=TIME)
    assert re.search(words, job.stderr), job.stderr
    ended(job, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_works_on_is_waited_for_and_named(mpirun: Mpirun, size: int) -> None:
    body = "comm.barrier()\nif odd: time.sleep(3)\nprint('the end')\n"
    job = mpirun(size, START + WORLD + body, env=LIMITS, timeout=60)
    assert (job.returncode, job.stdout.count("the end")) == (0, size), job.stderr
    assert "for the others at the end of its program\n  rank 1: missing: last seen at" in job.stderr
    assert "script.py:" in job.stderr


BUSY = "if rank == 0 and communicator.FORBIDDEN: time.sleep({})"


def closing(mpirun: Mpirun, tmp_path: Path, size: int, seconds: float, limit: float) -> mpi_run.Job:
    """A run of which rank 0, alone at its closing work, is busy for so long."""
    (tmp_path / "model.py").write_text(MODEL.format(does=BUSY.format(seconds)))
    (tmp_path / "run.yaml").write_text(RUN)
    limits = f"distributed={{warn_s: 0.5, timeout_s: {limit}}}"
    run = ("-m", "microtrain", "train", "run.yaml", limits)
    return mpirun(size, *run, cwd=tmp_path, timeout=TIME)


@pytest.mark.slow
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("size", SIZES)
def test_closing_work_of_rank_0_is_no_hang(mpirun: Mpirun, tmp_path: Path, size: int) -> None:
    job = closing(mpirun, tmp_path, size, 2 * LIMIT, LIMIT)
    assert job.returncode == 0, job.stderr
    assert "rank 0: busy (rank 0 alone draws and writes the report), last seen at" in job.stderr
    # Counted from when rank 0 was first seen to be busy.
    after = r"after 20(\.\d+)? s the job ends \(10 times distributed\.timeout_s\)"
    assert re.search(after, job.stderr)


@pytest.mark.usefixtures("reports")
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_closing_work_that_hangs_is_ended(mpirun: Mpirun, tmp_path: Path, size: int) -> None:
    job = closing(mpirun, tmp_path, size, 600, 1.0)
    ended(job, (1,), r"10(\.\d+)? s are over \(10 times distributed\.timeout_s\); aborting the job")
    assert "rank 0: busy (rank 0 alone draws and writes the report)" in job.stderr
