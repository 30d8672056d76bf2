"""`microtrain doctor`: what is installed, where the ranks are, whether they add up right.

One process looks at the installation without starting MPI; under mpirun or srun the ranks add up
numbers together.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from microtrain.distributed import Communicator, diagnosis, launch, world
from microtrain.distributed.diagnosis import Exchange, Finding, Rank
from microtrain.distributed.mpi import belongs
from microtrain.errors import LaunchError
from microtrain.threads import LAUNCH, cores
from microtrain.version import __version__

from ..words import table

MOST_ROWS = 64  # of ranks


@click.command()
@click.option("--run-dir", metavar="DIR", default="runs", help="Where runs will go; default: runs.")
def doctor(run_dir: str) -> int:
    """Check this installation; under mpirun or srun also the ranks and their allreduce.

    Exit code 5 if MPI is broken or belongs to another launcher, or no run can be kept in DIR.

    \b
    microtrain doctor
    microtrain launch -n 4 doctor
    """
    trouble: LaunchError | None = None
    exchanges: list[Exchange] = []
    ranks: list[Rank] | None = []
    comm: Communicator | None = None
    try:
        comm = world()
    except LaunchError as error:  # on every rank alike
        if LAUNCH.rank:
            raise
        trouble = error
    else:
        ranks = comm.gather_object(diagnosis.describe(comm))
        if comm.size > 1:
            exchanges = [diagnosis.measure_all_reduce(comm, size) for size in diagnosis.SIZES]
    code = 0
    if ranks is not None:  # the first rank
        code = _report(Path(run_dir), ranks, exchanges, trouble)
    return code if comm is None else comm.broadcast_object(code)


def _report(
    run_dir: Path, ranks: list[Rank], exchanges: Sequence[Exchange], trouble: LaunchError | None
) -> int:
    """Print everything; return the exit code."""
    findings = [_finding(trouble)] if trouble else []
    facts: dict[str, str] = {}
    if len(ranks) == 1:
        facts, more = _alone()
        findings += more
    elif ranks:
        facts["MPI"] = f"{ranks[0].library}, mpi4py {ranks[0].mpi4py}"
        facts["MPI"] += f", thread level {ranks[0].thread_level}"
    facts["launcher"] = LAUNCH.launcher + ("" if trouble else _spread(ranks))
    unfit = diagnosis.judge_directory(run_dir)
    facts["runs"] = f"{run_dir} " + ("cannot be used" if unfit else "can be written to, locks hold")
    findings += diagnosis.mixed_wheels() + unfit
    if ranks:
        findings += diagnosis.judge_ranks(ranks, exchanges)
    own, more = _installation(ranks)
    findings += more
    facts = own | facts
    lines = [f"{name:<10}  {text}" for name, text in facts.items()]
    lines += ["", *_rank_rows(ranks)] if ranks else []
    lines += ["", *_exchange_rows(exchanges)] if exchanges else []
    lines.append("")
    for finding in findings:
        kind = "error" if finding.broken else "warning"
        lines += [f"{kind}: {finding.text}", f"  {finding.way_out}"]
    broken = sum(f.broken for f in findings)
    warned = len(findings) - broken
    counts = [f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((broken, "error"), (warned, "warning"))]
    lines.append(f"{'broken' if broken else 'healthy'}: {', '.join(counts)}")
    if "mpirun" in facts and LAUNCH.kind == "none" and not broken:
        lines.append("next: microtrain launch -n 2 doctor")
    for line in lines:  # host and directory names may hold anything
        click.echo("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))
    return LaunchError.exit_code if broken else 0


def _finding(error: LaunchError) -> Finding:
    text, _, way_out = str(error).partition("\n")
    return Finding(text, way_out.replace("\n", " "), broken=True)


def _installation(ranks: Sequence[Rank]) -> tuple[dict[str, str], list[Finding]]:
    """What every process needs, as the first rank has it."""
    import platform

    import numpy

    from microtrain.compile.cache import directory

    first = ranks[0] if ranks else None
    findings = []
    numba = _version("numba")
    cache = directory()
    if cache is None:
        findings.append(
            Finding(
                "there is no cache directory that only this user can write to: compiled steps are "
                "compiled anew in every process",
                "name one with XDG_CACHE_HOME=PATH in the environment",
            )
        )
    blas = f", {first.blas}, threads {first.blas_threads}" if first else ""
    return {
        "microtrain": f"{__version__} ({Path(__file__).parents[1]})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "numpy": numpy.__version__ + blas,
        "numba": numba or "absent: compiled steps run on NumPy (pip install 'microtrain[jit]')",
        "gpu": first.gpu if first else diagnosis.gpu(),
        "cores": str(cores()) + _quota(first),
        "cache": str(cache) if cache else "none",
    }, findings


def _quota(rank: Rank | None) -> str:
    if rank is None or rank.quota is None:
        return ""
    return f" (the container grants the time of {rank.quota:g})"


def _version(package: str) -> str:
    import importlib.metadata as metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _alone() -> tuple[dict[str, str], list[Finding]]:
    """Which MPI there would be for more ranks."""
    try:
        mpi = launch.installed_mpi()
    except LaunchError as error:
        return {"MPI": "cannot be loaded"}, [_finding(error)]
    if mpi is None:
        return {"MPI": f"absent: mpi4py is not installed, one process only ({launch.INSTALL})"}, []
    facts = {"MPI": f"{mpi.library}, mpi4py {mpi.mpi4py}"}
    if left := diagnosis.left_in_memory():
        facts["MPI"] += f"; {left}"
    found = launch.mpiruns()
    try:
        mpirun = launch.matching_mpirun(mpi, found)
    except LaunchError as error:
        if shutil.which("srun"):
            return facts | {"mpirun": "none that belongs to it, but srun is there"}, []
        return facts | {"mpirun": "none that belongs to it"}, [_finding(error)]
    facts["mpirun"] = f"{mpirun.path} ({mpirun.name})"
    typed = shutil.which("mpirun")
    other = next((m for m in found if typed and m.path.samefile(typed)), mpirun)
    if belongs(other.kind, mpi.library) and other.kind != "unknown":
        return facts, []
    return facts, [
        Finding(
            f"mpirun on PATH is {typed} ({other.name}), but mpi4py has loaded {mpi.library}",
            f"type microtrain launch, or {mpirun.path}, instead of mpirun",
        )
    ]


def _spread(ranks: Sequence[Rank]) -> str:
    hosts = len({rank.host for rank in ranks})
    many = f"{len(ranks)} ranks" if len(ranks) > 1 else "1 rank"
    return f": {many} on {hosts} host{'s' * (hosts != 1)}"


def _rank_rows(ranks: Sequence[Rank]) -> list[str]:
    rows = [("rank", "host", "cores", "BLAS threads", "")]
    for rank in ranks[:MOST_ROWS]:
        row = (str(rank.rank), rank.host, _ranges(rank.cores), str(rank.blas_threads))
        rows.append((*row, rank.gpu if rank.rank else ""))  # the first one's is told above
    lines = table(rows)
    if len(ranks) > MOST_ROWS:
        lines.append(f"and {len(ranks) - MOST_ROWS:,} more ranks")
    return lines


def _exchange_rows(exchanges: Sequence[Exchange]) -> list[str]:
    rows = [("allreduce", "median", "bandwidth", "sum")]
    for exchange in exchanges:
        rate = exchange.nbytes / exchange.seconds / 1e6
        result = f"wrong on {len(exchange.wrong)} ranks" if exchange.wrong else "right"
        rows.append(
            (
                _size(exchange.nbytes),
                f"{exchange.seconds * 1e6:,.1f} us",
                f"{rate:,.1f} MB/s",
                result,
            )
        )
    return table(rows)


def _size(nbytes: int) -> str:
    for unit, scale in (("MB", 2**20), ("KB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B"


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,8` of the ascending numbers 0, 1, 2, 3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
