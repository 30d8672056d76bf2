"""`microtrain launch -n N ...`: the mpirun line for the MPI that is here, printed and run."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from ..common.spelling import did_you_mean
from ..common.threads import launch_environment
from ..errors import ConfigError, LaunchError, UserError
from .main import ALIKE, COMMANDS
from .mpirun import Line, find_mpirun, plan, refuse_nested


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "ranks", type=click.IntRange(1), required=True, help="Number of ranks.")
@click.option("--hosts", metavar="A,B", default="", help="Start them on these hosts, over ssh.")
@click.option("--bind", is_flag=True, help="Pin each rank to its own cores.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option(
    "--restarts",
    type=click.IntRange(0),
    metavar="N",
    help="Start the job again if it ends by a fault, at most N times.",
)
@click.option(
    "--min-ranks",
    type=click.IntRange(1),
    metavar="M",
    help="With --restarts: go on without hosts that are gone, with at least M ranks.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="With --restarts and Open MPI 5: the other ranks go on without one that is lost.",
)
@click.option(
    "--spares",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    help="With --in-place: start K more ranks, which wait until one is lost.",
)
@click.option("--mpirun-options", metavar="TEXT", default="", help="Options to pass on to mpirun.")
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="Only print the command line.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    ranks: int,
    hosts: str,
    bind: bool,
    module: bool,
    restarts: int | None,
    min_ranks: int | None,
    in_place: bool,
    spares: int,
    mpirun_options: str,
    dry_run: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Start N ranks of PROGRAM with the mpirun that belongs to this Python's mpi4py.

    PROGRAM is a microtrain command or a Python script. Exit code and signals are those of the job:
    this process is replaced by mpirun, or with --restarts waits for it. Variables that are already
    set are not changed.

    \b
    microtrain launch -n 4 train configs/linreg.yaml optimizer.lr=0.05
    microtrain launch -n 4 --hosts node1,node2 my_training.py --epochs 3
    """
    refuse_nested(launch_environment())
    mpirun = find_mpirun()
    python = ["-m", program] if module else _command_or_script(program)
    try:
        options = shlex.split(mpirun_options)
    except ValueError as error:
        raise ConfigError(f"--mpirun-options {mpirun_options}: {error}") from error
    again = _restarts(program, arguments) if restarts is None else restarts
    if spares and not in_place:
        raise ConfigError("--spares needs --in-place: give that as well")
    if in_place:
        if not again or program not in ALIKE:
            raise ConfigError(
                f"--in-place needs --restarts N and one of {', '.join(ALIKE)}; leave it out, and "
                "anything else is started again as a whole"
            )
        if mpirun.kind != "openmpi":
            raise ConfigError(f"--in-place needs Open MPI 5, and mpi4py has loaded {mpirun.name}")
        options += ["--with-ft", "ulfm"]
    command = [sys.executable, *python, *arguments]
    names = hosts.split(",") if hosts else []

    line = partial(plan, mpirun, program=command, bind=bind, options=options)
    if dry_run:
        click.echo(line(ranks + spares, hosts=names))
        return 0
    if min_ranks is not None and not (again and hosts):
        raise ConfigError("--min-ranks is for --restarts on several --hosts: give both as well")
    if again:
        from .restarts import Job  # where it is wanted: it brings the package

        gently = mpirun.kind == "openmpi"
        return Job(line, ranks, again, names, min_ranks, gently, in_place, spares).run()
    first = line(ranks, hosts=names)
    click.echo(f"$ {first}", err=True)
    _become(first)
    return 0


def _restarts(program: str, arguments: Sequence[str]) -> int:
    """What `distributed.restarts` says of a run that is to be trained; of all else 0."""
    if program != "train":
        return 0
    from ..config.load import load_sweep
    from .train import train

    try:
        given = train.make_context("train", [*arguments]).params
        text = Path(given["config"]).read_text(errors="replace") + str(given["overrides"])
        if "restarts" not in text and "base" not in text:  # to check all of it takes longer
            return 0
        trust = given["trust"] or None
        settings = load_sweep(given["config"], given["overrides"], trust=trust)
        return settings.config.distributed.restarts
    except (UserError, click.ClickException, OSError):  # the ranks say what is wrong
        return 0


def _command_or_script(program: str) -> list[str]:
    """What Python is told to run. Raises ConfigError where there is no such program."""
    commands = [name for name in COMMANDS if name != "launch"]
    if program in commands:
        return ["-m", "microtrain", program]
    if not program.endswith(".py"):
        raise ConfigError(
            f'cannot launch "{program}"{did_you_mean(program, commands)} (expected a script '
            f"NAME.py, -m MODULE, or one of {', '.join(commands)})"
        )
    if not os.path.isfile(program):
        raise ConfigError(f"there is no file {program}")
    return [program]


def _become(line: Line) -> None:
    """Replace this process by mpirun: nothing stands between it and signals, terminal, exit code.

    Raises LaunchError where it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores it, and what a process ignores its successor ignores as well.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(line.command[0], line.command, {**os.environ, **line.environment})
    except OSError as error:
        raise LaunchError(f"cannot start {line.command[0]}: {error.strerror}") from error
