"""Starts real MPI jobs from tests, with a hard end: no job outlives its test.

mpirun is the one beside this Python (the wheels of MPICH and Open MPI put it there), else the
first on PATH.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from microtrain.cli.mpirun import open_mpi_settings
from microtrain.common.threads import THREAD_VARIABLES

REPOSITORY = Path(__file__).resolve().parent.parent

# What launchers tell their processes: a job started from a process of another must not see it.
LAUNCHER_PREFIXES = (
    "OMPI_COMM_",
    "OMPI_WORLD_",
    "OMPI_UNIVERSE_",
    "PMIX_",
    "PMI_",
    "HYDI_",
    "MPI_LOCAL",
    "I_MPI_MPIRUN",
    "SLURM_",
)


@dataclass(frozen=True)
class Job:
    """How a job ended. left_behind: command lines of its processes that were still alive."""

    returncode: int
    stdout: str
    stderr: str
    left_behind: tuple[str, ...] = ()


@functools.cache
def find_mpirun() -> Path | None:
    beside = Path(sys.executable).with_name("mpirun")
    found = beside if beside.exists() else shutil.which("mpirun")
    return Path(found) if found else None


def missing() -> str:
    """Why MPI jobs cannot be run here; empty where they can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install -e '.[mpich]')"
    if find_mpirun() is None:
        return "no mpirun beside Python or on PATH (pip install -e '.[mpich]')"
    return ""


def clean_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This environment without launcher and thread variables, with one BLAS thread, plus `extra`.

    None in `extra` removes a variable.
    """
    drop = (*LAUNCHER_PREFIXES, *THREAD_VARIABLES)
    env = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    env["OMP_NUM_THREADS"] = "1"
    env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [env.get("PYTHONPATH")])])
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def run_job(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Job:
    """Run `command` to its end, or kill it and all it has started and fail the test."""
    mark = f"MICROTRAIN_TEST_JOB={uuid.uuid4().hex}"
    environment = clean_environment(env) | dict([mark.split("=")])
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process.pid, mark)
        stdout, stderr = process.communicate()
        pytest.fail(f"still running after {timeout} s:\n{stdout}\n{stderr}", pytrace=False)
    except BaseException:
        _kill(process.pid, mark)
        raise
    # A launcher may return while its last ranks are being ended; give them a moment.
    deadline = time.monotonic() + 5
    while (alive := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if alive:
        _kill(process.pid, mark)
    return Job(process.returncode, stdout, stderr, tuple(alive.values()))


def run_mpi(n: int, *arguments: str | os.PathLike[str], **options: object) -> Job:
    """`mpirun -n N python ARGUMENTS`, to its end. Options as `run_job`."""
    env = open_mpi_settings(crowded=True) | (options.pop("env", None) or {})
    mpirun = find_mpirun()
    assert mpirun is not None, missing()
    return run_job([mpirun, "-n", str(n), sys.executable, *arguments], env=env, **options)


def _marked(mark: str) -> dict[int, str]:
    """Processes with `mark` in their environment: their ids and command lines."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (directory / "environ").read_bytes().split(b"\0"):
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(directory.name)] = command.decode(errors="replace").strip()
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return found


def _kill(leader: int, mark: str) -> None:
    """Kill the session that `run_job` has started and what left it, all by their ids."""
    for kill, target in [(os.killpg, leader), *((os.kill, pid) for pid in _marked(mark))]:
        try:
            kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue
