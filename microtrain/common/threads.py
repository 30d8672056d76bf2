"""Where this process stands in a launch, and how many threads its BLAS may start.

Ranks that share a machine and each start one BLAS thread per core slow each other down many
times over. BLAS libraries read their thread count from the environment while NumPy loads them, so
`import microtrain` runs this module before anything else: standard library only, no NumPy, no MPI.
Where NumPy was faster (a script that imports it first), `distributed.world()` limits the running
libraries instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final, NamedTuple

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",  # the others fall back on it
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Launch(NamedTuple):
    """How this process was started, as far as the environment says; None is what it leaves open.

    kind: none, openmpi, mpich, intel, slurm or pmix. launcher: the kind as messages name it.
    """

    kind: str = "none"
    rank: int = 0
    size: int | None = 1
    local_rank: int | None = 0
    local_size: int | None = 1
    launcher: str = "no launcher"

    @property
    def parallel(self) -> bool:
        """Whether other ranks belong to this process; an unknown size counts as parallel."""
        return self.size != 1


# ------------------------------------------------------------------------------------- the launch

# By kind what messages call a launcher, and the variables in which it tells a process its rank and
# the number of ranks, and both of its machine.
_HYDRA: Final = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_LAUNCHERS: Final[dict[str, tuple[str, ...]]] = {
    "openmpi": (
        "Open MPI's mpirun",
        *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ),
    "intel": ("Intel MPI's mpirun", *_HYDRA),
    "mpich": ("MPICH's mpirun", *_HYDRA),
    "slurm": ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    "pmix": ("a PMIx launcher", "PMIX_RANK", "", "", ""),
}


def launch_environment(environ: Mapping[str, str] = os.environ) -> Launch:
    """Read from the environment how this process was started. Loads nothing, asks no one."""
    kind = _kind_of(environ)
    if kind == "none":
        return Launch()
    launcher, *variables = _LAUNCHERS[kind]
    rank, size, local_rank, local_size = (_number(environ, name) for name in variables)
    if kind == "slurm":
        size = _number(environ, "SLURM_NTASKS") if size is None else size
        local_size = _slurm_tasks_here(environ)
    if size == 1:
        return Launch(kind, launcher=launcher)
    return Launch(kind, rank or 0, size, local_rank, local_size, launcher)


def _kind_of(environ: Mapping[str, str]) -> str:
    """The kind of the launcher.

    mpirun's own variables win over Slurm's: inside an allocation the daemons of mpirun are a Slurm
    step themselves, and the ranks they start inherit the step's variables.
    """
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return "openmpi"
    step = _number(environ, "SLURM_STEP_ID")
    # `sbatch` and `salloc` set most SLURM_* variables, too. The batch script and the interactive
    # shell of an allocation are steps with numbers from 0xFFFFFFF0 up; they are one process,
    # whatever number of tasks the job has.
    by_srun = step is not None and step < 0xFFFFFFF0 and "SLURM_PROCID" in environ
    # `srun --mpi=pmi2` sets PMI_SIZE as well, but only hydra's mpirun counts the local ranks.
    if "PMI_SIZE" in environ and ("MPI_LOCALNRANKS" in environ or not by_srun):
        return "intel" if "I_MPI_MPIRUN" in environ else "mpich"
    return "slurm" if by_srun else "pmix" if "PMIX_RANK" in environ else "none"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return None


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """How many tasks of a step are on this machine."""
    node = _number(environ, "SLURM_NODEID")
    tasks = []  # of each machine; 4(x2),3 means 4, 4, 3
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node):
        tasks += [int(count)] * int(repeat or 1)
    return tasks[node] if node is not None and node < len(tasks) else None


# ------------------------------------------------------------------------------------- the threads


def threads_per_rank(
    own: int, local_size: int, *, node: int | None = None, quota: float | None = None
) -> int:
    """The number of threads one rank may use; at least 1.

    own: cores this process may run on; node: cores all local ranks together may run on, where that
    is known to be more (the launcher bound each rank to a part); quota: processor time the
    container grants, in cores.

    >>> threads_per_rank(own=8, local_size=4)  # four ranks share eight cores
    2
    >>> threads_per_rank(own=2, local_size=4, node=8)  # each is bound to two of the eight
    2
    """
    share = max(own, node or 0) // local_size
    if quota is not None:
        share = min(share, int(quota) // local_size)
    return max(1, min(own, share))


def _threads_of(launch: Launch, local_size: int, environ: Mapping[str, str]) -> int:
    own = allowed_cores(0)
    node = None
    if launch.kind == "slurm":
        # srun binds every task to cores of its own when the job asked for cores per task.
        per_task = _number(environ, "SLURM_CPUS_PER_TASK")
        if per_task is not None:
            return max(1, min(len(own), per_task))
    elif own < (launcher_cores := allowed_cores(os.getppid())):
        # The launcher may use cores that this rank may not: it has bound the rank (Open MPI does
        # unless told otherwise), and the launcher's cores are what the local ranks share.
        node = len(launcher_cores)
    return threads_per_rank(len(own), local_size, node=node, quota=processor_quota())


def allowed_cores(pid: int = 0) -> set[int]:
    """Numbers of the cores that a process, by default this one, may run on."""
    if not hasattr(os, "sched_getaffinity"):  # macOS binds no process to cores
        return set(range(os.cpu_count() or 1))
    try:
        return os.sched_getaffinity(pid)
    except OSError:  # the parent is gone or hidden
        return set()


def cores() -> int:
    """The cores whose worth of time this process may use: its affinity, its container's quota."""
    quota = processor_quota()
    allowed = len(allowed_cores())
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def processor_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of processor time that the container may use (cgroup v2, else v1)."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((root / name).read_text() for name in files).split()
            return int(quota) / int(period) if int(quota) > 0 else None
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None


def limit_in_environment(
    launch: Launch, environ: MutableMapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Set the thread variables for a rank that shares its machine; return those of the user.

    What the user has set stays. OMP_NUM_THREADS speaks for all of them, so with it nothing is set.
    """
    chosen = tuple(name for name in THREAD_VARIABLES if environ.get(name))
    if launch.parallel and launch.local_size and "OMP_NUM_THREADS" not in chosen:
        threads = str(_threads_of(launch, launch.local_size, environ))
        for name in THREAD_VARIABLES:
            if name not in chosen:
                environ[name] = threads
    return chosen


def limit_late(local_size: int) -> None:
    """Limit running libraries where the environment came too late for NumPy or said too little.

    `distributed.world()` calls this with the number of ranks on this machine as MPI counts it.
    """
    too_late = NUMPY_CAME_FIRST or LAUNCH.local_size is None
    if LAUNCH.parallel and too_late and not CHOSEN_BY_USER:
        limit_blas_threads(_threads_of(LAUNCH, local_size, os.environ))


def limit_blas_threads(threads: int) -> None:
    """Let BLAS (and OpenMP) libraries of this process use `threads` threads from now on.

    Raises ValueError for fewer than 1.
    """
    if threads < 1:
        raise ValueError(f"BLAS threads: expected at least 1, found {threads}")
    import threadpoolctl

    threadpoolctl.threadpool_limits(limits=threads)


def blas_threads() -> int:
    """The threads that NumPy's BLAS uses, read back from the library; 0 where it does not tell."""
    import threadpoolctl

    libraries = threadpoolctl.threadpool_info()
    return max((lib["num_threads"] for lib in libraries if lib["user_api"] == "blas"), default=0)


def blas_kernel() -> str:
    """For which processor NumPy's BLAS computes, as in "openblas Haswell"; "" for none."""
    import threadpoolctl

    libraries = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    own = [lib for lib in libraries if "numpy" in lib["filepath"]] or libraries
    return ", ".join(sorted(f"{lib['internal_api']} {lib.get('architecture')}" for lib in own))


NUMPY_CAME_FIRST: Final = "numpy" in sys.modules
LAUNCH: Final = launch_environment()
CHOSEN_BY_USER: Final = limit_in_environment(LAUNCH)
