"""`microtrain launch -n N ...`: the mpirun line for the MPI that is here, printed and run."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import click

from ..common.spelling import did_you_mean
from ..common.threads import launch_environment
from ..errors import ConfigError, LaunchError
from .main import COMMANDS
from .mpirun import Line, find_mpirun, plan, refuse_nested


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "ranks", type=click.IntRange(1), required=True, help="Number of ranks.")
@click.option("--hosts", metavar="A,B", default="", help="Start them on these hosts, over ssh.")
@click.option("--bind", is_flag=True, help="Pin each rank to its own cores.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--mpirun-options", metavar="TEXT", default="", help="Options to pass on to mpirun.")
@click.option("--dry-run", "--print", "dry_run", is_flag=True, help="Only print the command line.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    ranks: int,
    hosts: str,
    bind: bool,
    module: bool,
    mpirun_options: str,
    dry_run: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Start N ranks of PROGRAM with the mpirun that belongs to this Python's mpi4py.

    PROGRAM is a microtrain command or a Python script. This process is replaced by mpirun, so its
    exit code and signals are those of the job. Variables that are already set are not changed.

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
    command = [sys.executable, *python, *arguments]
    names = hosts.split(",") if hosts else ()
    line = plan(mpirun, ranks, command, hosts=names, bind=bind, options=options)
    if dry_run:
        click.echo(line)
        return
    click.echo(f"$ {line}", err=True)
    _become(line)


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
