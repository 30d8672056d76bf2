"""`microtrain doctor`: what is installed, where the ranks are, whether they add up right.

One process looks at the installation without starting MPI; under mpirun or srun the ranks add up
numbers together.
"""

from __future__ import annotations

import itertools
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from ..capture.c_compiler import FLAGS, absent, compiler, directory
from ..common.threads import LAUNCH, cores
from ..common.version import __version__
from ..common.words import labelled, listed, plural, printable, size, table
from ..distributed import world
from ..distributed.mpi import belongs
from ..errors import LaunchError
from . import diagnosis, mpirun
from .diagnosis import Finding, Rank

MOST_ROWS = 64  # of ranks


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
    ranks = comm.gather_object(diagnosis.describe(comm))
    sizes = diagnosis.SIZES if comm.size > 1 else ()
    wrong = {nbytes: diagnosis.wrong_sums(comm, nbytes) for nbytes in sizes}
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
    launcher = LAUNCH.launcher
    if len(ranks) == 1:
        findings += _mpi_of_one_process(facts)
    elif ranks:
        mpi = ranks[0]
        facts["MPI"] = f"{mpi.library}, mpi4py {mpi.mpi4py}, thread level {mpi.thread_level}"
    if ranks:
        hosts = plural(len({rank.host for rank in ranks}), "host")
        launcher += f": {plural(len(ranks), 'rank')} on {hosts}"
    if wrong and not any(wrong.values()):
        facts["allreduce"] = f"of {listed([*map(size, wrong)])}: all sums are right"
    unfit = diagnosis.judge_directory(run_dir)
    facts["launcher"] = launcher
    facts["runs"] = f"{run_dir} " + ("cannot be used" if unfit else "can be written to, locks hold")
    findings += diagnosis.mixed_wheels() + unfit
    findings += diagnosis.judge_ranks(ranks, wrong) if ranks else []
    if directory() is None:
        text = "there is no cache directory that only this user can write to: compiled steps are "
        text += "compiled anew in every process"
        findings.append(Finding(text, "name one with XDG_CACHE_HOME=PATH in the environment"))
    broken = sum(finding.broken for finding in findings)
    lines = labelled(facts)
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
        "gpu": first.gpu if first else diagnosis.gpu(),
        "cores": f"{cores()}{limit}",
        "cache": str(directory() or "none"),
    }


def _mpi_of_one_process(facts: dict[str, str]) -> list[Finding]:
    """Write into `facts` which MPI and mpirun there would be for more ranks."""
    facts["MPI"] = "cannot be loaded"
    try:
        mpi = mpirun.installed_mpi()
        if mpi is None:
            facts["MPI"] = f"absent: mpi4py is not installed, one process only ({mpirun.INSTALL})"
            return []
        left = diagnosis.left_in_memory()
        facts["MPI"] = f"{mpi.library}, mpi4py {mpi.mpi4py}" + (f"; {left}" if left else "")
        facts["mpirun"] = "none that belongs to it"
        launchers = mpirun.mpiruns()
        right = mpirun.matching_mpirun(mpi, launchers)
    except LaunchError as error:
        if "mpirun" in facts and shutil.which("srun"):
            facts["mpirun"] += ", but srun is there"
            return []
        return [_finding(error)]
    facts["mpirun"] = f"{right.path} ({right.name})"
    typed = shutil.which("mpirun")
    other = next((m for m in launchers if typed and m.path.samefile(typed)), right)
    if belongs(other.kind, mpi.library) and other.kind != "unknown":
        return []
    text = f"mpirun on PATH is {typed} ({other.name}), but mpi4py has loaded {mpi.library}"
    return [Finding(text, f"type microtrain launch, or {right.path}, instead of mpirun")]


def _rank_rows(ranks: Sequence[Rank]) -> list[str]:
    rows = [("rank", "host", "cores", "BLAS threads", "")]
    for rank in ranks[:MOST_ROWS]:
        row = (str(rank.rank), rank.host, _ranges(rank.cores), str(rank.blas_threads))
        rows.append((*row, rank.gpu if rank.rank else ""))  # the first one's is told above
    more = [f"and {len(ranks) - MOST_ROWS:,} more ranks"] if len(ranks) > MOST_ROWS else []
    return table(rows) + more


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,8` of the ascending numbers 0, 1, 2, 3, 8."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)
