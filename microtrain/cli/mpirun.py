"""Which mpirun starts ranks that find each other, and the line that does it on this machine.

`mpirun` on PATH may belong to another MPI than the one mpi4py loads; Open MPI's refuses root and
more ranks than cores, lets idle ranks spin on cores that others need, and pins the ranks of every
job to the same first cores. This module knows the way around each. It starts nothing but two short
programs that ask for versions, and does not load MPI into this process.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from ..common.threads import THREAD_VARIABLES, Launch, cores
from ..distributed.mpi import belongs, library_name
from ..errors import ConfigError, LaunchError, install

INSTALL: Final = install("mpich")

# What a scheduler sets in an allocation. mpirun reads the hosts and the number of ranks from it.
ALLOCATIONS: Final = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS", "PE_HOSTFILE")

# Open MPI's daemons on other hosts pass none of the variables on unless they are named.
_PASSED_ON: Final = (*THREAD_VARIABLES, "PYTHONPATH", "XDG_CACHE_HOME", "CC")
_PREFIXES: Final = ("MICROTRAIN_", "UCX_")

# What `mpirun --version` says, and what it means.
_VERSIONS: Final = (
    ("openmpi", re.compile(r"\((?:Open MPI|OpenRTE)\) ([\w.]+)"), "Open MPI"),
    ("intel", re.compile(r"Intel\(R\) MPI Library.*?Version ([\w. ]+?)(?: Build|$)"), "Intel MPI"),
    ("mpich", re.compile(r"HYDRA build details:\s+Version:\s+([\w.]+)"), "MPICH"),
)

_ASK_MPI4PY: Final = """
import warnings
warnings.simplefilter("ignore")
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(mpi4py.__version__)
print(MPI.Get_library_version())
"""


class Mpirun(NamedTuple):
    """A launcher. kind: openmpi, mpich, intel or unknown; name: its MPI, as "Open MPI 5.0.11"."""

    path: Path
    kind: str
    name: str


class Mpi(NamedTuple):
    """What mpi4py loads: its own version, and the library's name, as "MPICH 5.0.2"."""

    mpi4py: str
    library: str


class Line(NamedTuple):
    """A command, and the variables that are set for it besides those of the environment."""

    command: list[str]
    environment: dict[str, str]

    def __str__(self) -> str:
        """As it is typed into a shell."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *settings, *self.command] if settings else self.command)


# ------------------------------------------------------------------------------ what is there


def installed_mpi() -> Mpi | None:
    """The MPI that mpi4py loads, asked of a Python of its own; None where there is no mpi4py.

    Raises LaunchError where it is installed and cannot be loaded.
    """
    if find_spec("mpi4py") is None:
        return None
    said = _output([sys.executable, "-c", _ASK_MPI4PY])
    if said.returncode or len(said.stdout.splitlines()) < 2:
        words = said.stderr.strip().splitlines() or [f"exit code {said.returncode}"]
        raise LaunchError(
            f"mpi4py is installed, but MPI cannot be loaded: {words[-1]}\n"
            f"install it with an MPI of its own: {INSTALL}, or, where the machine has one, load "
            "its module"
        )
    version, _, library = said.stdout.partition("\n")
    return Mpi(version, library_name(library))


def mpiruns() -> list[Mpirun]:
    """The launchers beside this Python and on PATH, those of its own environment first."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    paths = [shutil.which(name, path=f) for f in folders for name in ("mpirun", "mpiexec")]
    installed: dict[Path, Mpirun] = {}
    for path in filter(None, paths):
        # Two names of one program are one: MPICH's mpiexec, /bin and /usr/bin.
        if not any(os.path.samefile(path, other) for other in installed):
            installed[Path(path)] = _identified(Path(path))
    return list(installed.values())


def _identified(path: Path) -> Mpirun:
    said = _output([str(path), "--version"])
    for kind, pattern, name in _VERSIONS:
        if match := pattern.search(said.stdout):
            return Mpirun(path, kind, f"{name} {match[1]}")
    words = said.stdout.strip().splitlines() or [f"exit code {said.returncode}"]
    return Mpirun(path, "unknown", words[0][:80])


def _output(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def matching_mpirun(mpi: Mpi | None, candidates: Sequence[Mpirun]) -> Mpirun:
    """The first of `candidates` whose ranks `mpi` connects.

    Raises LaunchError where MPI is absent or none matches, with what was found.
    """
    if mpi is None:
        raise LaunchError(f"mpi4py is not installed, so there are no ranks to start\n{INSTALL}")
    for mpirun in candidates:
        if mpirun.kind != "unknown" and belongs(mpirun.kind, mpi.library):
            return mpirun
    there = ", ".join(f"{m.path} ({m.name})" for m in candidates)
    raise LaunchError(
        f"mpi4py has loaded {mpi.library}, and no mpirun beside Python or on PATH belongs to it: "
        f"found {there or 'none at all'}\n"
        "put that MPI's mpirun on PATH (on a cluster: load its module), or make a new environment "
        f"with {INSTALL}"
    )


def find_mpirun() -> Mpirun:
    """The launcher to start ranks with here. Raises LaunchError where there is none."""
    return matching_mpirun(installed_mpi(), mpiruns())


def refuse_nested(launch: Launch) -> None:
    """Raise LaunchError in a process that mpirun or srun has started as one of its ranks."""
    # A shell that `srun --pty` has started is the one task of its step, and a place to launch from.
    if launch.kind == "none" or (launch.kind == "slurm" and not launch.parallel):
        return
    size = "an unknown number" if launch.size is None else launch.size
    raise LaunchError(
        f"{launch.launcher} started this process as rank {launch.rank} of {size}: each rank would "
        "launch a job of its own\n"
        "type microtrain launch or verify without mpirun or srun before it"
    )


# ---------------------------------------------------------------------------------- the line


def plan(
    mpirun: Mpirun,
    ranks: int,
    program: Sequence[str],
    *,
    hosts: Sequence[str] = (),
    bind: bool = False,
    options: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Line:
    """The line that starts `ranks` processes of `program`.

    Args:
        hosts: where to start them, in equal parts and the first ones more; default this machine,
            or what a scheduler has allocated.
        bind: give each rank cores of its own, as many as there are for it.
        options: handed to mpirun as they are.
        environ: what is set there already is left as it is.

    Raises ConfigError for a wish that cannot be met: more hosts than ranks, binding where there are
    fewer cores than ranks, or where this process may not use all of them.
    """
    allocated = any(name in environ for name in ALLOCATIONS)
    if mpirun.kind == "intel" and (hosts or bind):
        raise ConfigError(
            "--hosts and --bind are known for MPICH and Open MPI; Intel MPI binds by itself, its "
            "hosts go into --mpirun-options '-hosts a,b -ppn 2'"
        )
    on_host = _ranks_on_each(hosts, ranks)
    host_list = ",".join(f"{host}:{count}" for host, count in on_host.items())
    each = _cores_of_each(ranks, elsewhere=bool(hosts) or allocated) if bind else 0
    settings: dict[str, str] = {}
    if mpirun.kind == "openmpi":
        passed_on = [n for n in environ if n in _PASSED_ON or n.startswith(_PREFIXES)]
        host_options = ["--host", host_list, *(word for n in passed_on for word in ("-x", n))]
        binding = ["--bind-to", "none"]
        if bind:
            binding = ["--map-by", f"slot:PE={each}:HWTCPUS", "--bind-to", "hwthread"]
        crowded = max(on_host.values(), default=ranks) > cores() and not allocated
        settings = open_mpi_settings(crowded=crowded, oversubscribe=not (bind or allocated))
    else:
        host_options = ["-hosts", host_list]
        binding = ["-bind-to", f"hwthread:{each}"] if bind else []
    command = [str(mpirun.path), *(host_options if hosts else []), *binding, *options]
    return Line(
        [*command, "-n", str(ranks), *program],
        {name: value for name, value in settings.items() if name not in environ},
    )


def open_mpi_settings(*, crowded: bool, oversubscribe: bool = True) -> dict[str, str]:
    """The variables without which Open MPI refuses, or takes minutes for seconds.

    crowded: more ranks than cores, so that an idle rank has to give up its core. oversubscribe:
    allow that; it also ends Open MPI's own binding. Other MPIs ignore them.
    """
    settings = {}
    if oversubscribe:
        settings["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"  # version 5
        settings["OMPI_MCA_rmaps_base_oversubscribe"] = "1"  # version 4
    if crowded:
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if os.geteuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings


def _ranks_on_each(hosts: Sequence[str], ranks: int) -> dict[str, int]:
    if len(hosts) > ranks:
        raise ConfigError(f"{len(hosts)} hosts for {ranks} ranks: name at most {ranks}")
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"--hosts {','.join(hosts)}: a host is named twice")
    for host in hosts:
        if not re.fullmatch(r"\w[\w.-]*", host):
            raise ConfigError(f"--hosts: expected names such as node1,node2, found {host!r}")
    return {h: ranks // len(hosts) + (i < ranks % len(hosts)) for i, h in enumerate(hosts)}


def _cores_of_each(ranks: int, *, elsewhere: bool) -> int:
    """The cores (hardware threads) that each rank is bound to, on this machine."""
    if elsewhere:
        raise ConfigError("--bind counts this machine's cores: elsewhere the scheduler binds")
    # Both launchers bind to the machine's cores, also to those that taskset has excluded, or that
    # the container must share.
    if cores() != os.cpu_count():
        raise ConfigError(
            f"--bind: this process may use {cores()} of {os.cpu_count()} cores (taskset, or a "
            "container's limit), and mpirun would bind ranks to others; leave --bind out"
        )
    if ranks > cores():
        raise ConfigError(f"--bind: {ranks} ranks for {cores()} cores; leave --bind out")
    return cores() // ranks
