"""Ranks that share a machine share its cores: the limits that are set, and what BLAS then does."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi_run
import pytest
import threadpoolctl
from pace import daily

from microtrain.common import threads
from microtrain.common.threads import (
    THREAD_VARIABLES,
    Launch,
    limit_in_environment,
    threads_per_rank,
)

CORES = len(os.sched_getaffinity(0))
SHARE = threads_per_rank(CORES, 2, quota=threads.processor_quota())  # of each of two ranks


@pytest.mark.parametrize(
    "own, local_size, others, expected",
    [
        (8, 1, {}, 8),
        (8, 4, {}, 2),
        (8, 3, {}, 2),
        (2, 4, {}, 1),  # more ranks than cores
        (1, 1, {}, 1),
        (2, 4, {"node": 8}, 2),  # each rank bound to two of eight cores
        (1, 4, {"node": 8}, 1),  # bound to one core: the mask is the limit
        (4, 4, {"node": 8}, 2),  # two ranks bound to the same half
        (8, 4, {"node": 8}, 2),
        (64, 1, {"quota": 2.0}, 2),  # a container with two cores' worth of time on a large machine
        (64, 4, {"quota": 2.5}, 1),
        (64, 2, {"quota": 12.0}, 6),
        (8, 4, {"quota": 100.0}, 2),
    ],
)
def test_cores_are_shared_by_local_ranks(
    own: int, local_size: int, others: dict[str, Any], expected: int
) -> None:
    assert threads_per_rank(own, local_size, **others) == expected


RANK = Launch("mpich", 1, 2, 1, 2, "MPICH's mpirun")
LIMITED = dict.fromkeys(THREAD_VARIABLES, str(SHARE))


@pytest.mark.parametrize(
    "launch, environ, expected",
    [
        (Launch(), {}, {}),  # a process alone keeps all cores
        (RANK, {}, LIMITED),
        (RANK, {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS": "7"}),
        (
            RANK,
            {"MKL_NUM_THREADS": "7"},
            LIMITED | {"MKL_NUM_THREADS": "7"},
        ),
        (RANK, {"OMP_NUM_THREADS": ""}, LIMITED),
        (RANK._replace(local_size=None), {}, {}),  # not told: world() limits once MPI has counted
        (
            RANK._replace(kind="slurm"),
            {"SLURM_CPUS_PER_TASK": "1"},
            dict.fromkeys(THREAD_VARIABLES, "1") | {"SLURM_CPUS_PER_TASK": "1"},
        ),
    ],
)
def test_environment_is_limited_and_the_users_setting_wins(
    launch: Launch, environ: dict[str, str], expected: dict[str, str]
) -> None:
    given = {name for name in THREAD_VARIABLES if environ.get(name)}
    assert set(limit_in_environment(launch, environ)) == given
    assert environ == expected


@pytest.mark.parametrize(
    "files, quota",
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
)
def test_processor_quota_of_a_container(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads.processor_quota(tmp_path) == quota


def test_limit_is_read_back() -> None:
    before = threads.blas_threads()
    with threadpoolctl.threadpool_limits():  # restores what this process had
        for limit in (2, 1):
            threads.limit_blas_threads(limit)
            assert threads.blas_threads() == limit
    assert threads.blas_threads() == before
    with pytest.raises(ValueError, match="at least 1, found 0"):
        threads.limit_blas_threads(0)


# ------------------------------------------------------------------- read back in real processes

NO_SETTING: dict[str, str | None] = dict.fromkeys(THREAD_VARIABLES)
READ_BACK = """
{before}
import microtrain
comm = microtrain.distributed.world()
counts = comm.gather_object(microtrain.common.threads.blas_threads())
if counts:
    print(counts)
"""


def test_a_single_process_keeps_all_cores() -> None:
    job = mpi_run.run_job([sys.executable, "-c", READ_BACK.format(before="")], env=NO_SETTING)
    assert job.stdout == f"[{CORES}]\n", job.stderr


BEFORE = [
    "",
    "import numpy",
    "from mpi4py import MPI; import numpy",
    # a launcher that does not count the ranks of each machine
    "import os; [os.environ.pop(name) for name in list(os.environ) if 'LOCAL' in name]",
]


@pytest.mark.daily("import numpy-2")
@pytest.mark.parametrize(
    ("before", "chosen"),
    daily(
        itertools.product(BEFORE, [None, str(CORES)]),
        *((BEFORE[1], None), (BEFORE[2], str(CORES)), (BEFORE[3], None)),
    ),
)
def test_ranks_share_the_cores_whoever_imported_numpy_first(
    mpirun: Callable[..., mpi_run.Job], before: str, chosen: str | None
) -> None:
    job = mpirun(2, READ_BACK.format(before=before), env=NO_SETTING | {"OMP_NUM_THREADS": chosen})
    expected = chosen or SHARE
    assert job.stdout.strip() == f"[{expected}, {expected}]", job.stderr


# Python runs this module in every process before the program: it reports as the program leaves.
SITE = """
import atexit, os, sys

def report():
    import threadpoolctl
    blas = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    counts = {lib["num_threads"] for lib in blas}
    os.write(1, f"[blas {sorted(counts)}]".encode())

atexit.register(report)
"""


@pytest.mark.daily("python -m")
@pytest.mark.parametrize("how", ["python -m microtrain", "console script"])
def test_the_command_line_limits_its_ranks(
    mpirun: Callable[..., mpi_run.Job], how: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    script = Path(sys.executable).with_name("microtrain")
    if how == "console script" and not script.exists():
        pytest.skip("microtrain is not installed in this environment")
    program = ("-m", "microtrain") if how == "python -m microtrain" else (script,)
    path = f"{tmp_path}{os.pathsep}{mpi_run.REPOSITORY}"
    job = mpirun(2, *program, "--help", env=NO_SETTING | {"PYTHONPATH": path})
    assert job.returncode == 0, job
    assert job.stdout.count(f"[blas [{SHARE}]]") == 2, job
