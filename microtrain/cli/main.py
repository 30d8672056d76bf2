"""The command `microtrain`: finds the subcommand, and turns every mistake into one message.

Subcommands are imported when they are called, so that `--help` and `check` start fast and load
neither MPI nor CuPy. Under a launcher only rank 0 speaks.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence

import click

from microtrain.common.threads import launch_environment
from microtrain.errors import LaunchError, UserError

from ..common.spelling import did_you_mean
from ..common.version import __version__

# Name, where it is, and what `--help` says of it.
COMMANDS = {
    "train": ("microtrain.cli.train:train", "Train a model from a YAML file."),
    "resume": ("microtrain.cli.resume:resume", "Resume an interrupted run."),
    "evaluate": ("microtrain.cli.evaluate:evaluate", "Evaluate a trained model again."),
    "predict": ("microtrain.cli.predict:predict", "Predict the rows of a file."),
    "export": ("microtrain.cli.export:export", "Write a model for PyTorch, NumPy, ONNX or C."),
    "plot": ("microtrain.cli.plot:plot", "Plot the training curves of runs."),
    "report": ("microtrain.cli.report:report", "Write the HTML report of a run."),
    "list": ("microtrain.cli.list:list_runs", "List runs, one per line."),
    "compare": ("microtrain.cli.compare:compare", "Show how runs differ."),
    "check": ("microtrain.cli.check:check", "Validate a YAML file without training."),
    "show": ("microtrain.cli.show:show", "Show keys, components, or a resolved YAML file."),
    "init": ("microtrain.cli.init:init", "Create files from a template."),
    "verify": ("microtrain.cli.verify:verify", "Test exact resuming, ranks and gradients."),
    "schema": ("microtrain.cli.schema:schema", "Print the JSON Schema, for editors."),
    "doctor": ("microtrain.cli.doctor:doctor", "Check the installation, MPI and the ranks."),
    "launch": ("microtrain.cli.launch:launch", "Start a command or a script on many ranks."),
}


# What ranks do together. All else is done by rank 0: under a launcher the others leave at once.
ALIKE = ("train", "resume", "evaluate")  # and with the same arguments
COLLECTIVE = (*ALIKE, "doctor")


class _Commands(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            near = did_you_mean(name, COMMANDS)
            ctx.fail(f'there is no command "{name}"{near} (there are: {", ".join(COMMANDS)})')
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='\b\nCompletion, in .bashrc: eval "$(_MICROTRAIN_COMPLETE=bash_source microtrain)"',
)
@click.version_option(__version__, message="microtrain %(version)s")
def cli() -> None:
    """Train models from a YAML file, in one process or on many MPI ranks.

    \b
    To begin with:
    microtrain init linreg first    a first run, and the commands for it
    microtrain init csv table.csv   a YAML file for a table of your own
    microtrain doctor               what is here: MPI, compiler, GPU
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and return its exit code.

    Raises what is not a UserError, a bug or an error in custom code, with its traceback;
    and, where the ranks of an MPI job have not all met it together, also a UserError, so that the
    hooks of `distributed.abort` end the job.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:  # this process ends with the command
        atexit.register(gc.freeze)  # or the end searches all that was imported for garbage
    speaks = launch_environment().rank == 0
    if not speaks and not (words and words[0] in COLLECTIVE and {"-h", "--help"}.isdisjoint(words)):
        return 0
    try:
        with _of_the_machine():
            result = _in_place(words)
            if _speaks():
                sys.stdout.flush()  # at the end of the interpreter nobody would hear of it
        return _leave(result) if isinstance(result, int) and result else 0
    except click.ClickException as error:
        # A launcher may end the job at the first exit code, before rank 0 has spoken: the others,
        # which were started with the same arguments, leave the code to rank 0.
        if not speaks and not _connected():
            return 0
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            click.echo(error.format_message())
        elif _speaks():
            command = getattr(error, "ctx", None)
            hint = f"\nhint: {command.command_path} --help" if command else ""
            click.echo(f"error: {error.format_message()}{hint}", err=True)
        return _leave(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except UserError as error:
        if _connected() and not error.agreed:
            raise
        if _speaks():
            click.echo(f"error: {error}", err=True)
        return _leave(error.exit_code)


def _in_place(words: list[str]) -> object:
    """What a command returns; one that trains is begun anew by ranks that live (see `going_on`)."""

    def run() -> object:
        _compare(words)
        return cli.main(words, prog_name="microtrain", standalone_mode=False)

    from ..common import job

    if not (words and words[0] in ALIKE and job.in_place()):
        return run()
    from ..distributed.connection import going_on
    from ..distributed.mpi import abort_on_failure
    from ..train.run import ASKED

    abort_on_failure()  # also of a single rank
    # While no run listens: by default it would end this rank alone.
    signal.signal(signal.SIGUSR1, lambda number, _: ASKED.append(signal.Signals(number).name))
    return going_on(run)


def _speaks() -> bool:
    """Whether this is rank 0, of those that live."""
    connection = sys.modules.get("microtrain.distributed.connection")
    living = connection.LIVING if connection is not None else []
    return (living[0] if living else launch_environment()).rank == 0


def _compare(words: Sequence[str]) -> None:
    """ConfigError on all ranks of a job unless all were given the same words and files."""
    launch = launch_environment()
    if not launch.parallel or not words or words[0] not in ALIKE or {"-h", "--help"} & {*words}:
        return
    from ..config.resolved import hashes
    from ..distributed import world
    from ..distributed.agreement import same
    from .train import beginning

    given = {"the ranks were given different arguments": shlex.join(words)}
    given |= hashes(word for word in words if word.endswith((".yaml", ".yml")))
    with beginning():
        same(world(), given, "all ranks of a run have the same settings; start them with one line")


@contextlib.contextmanager
def _of_the_machine() -> Iterator[None]:
    """What the machine lacks is told as what else is outside of the program: memory, an output."""
    try:
        yield
    except MemoryError as error:
        raise LaunchError(
            f"there is not enough memory: {str(error) or 'none was given'}"
        ) from error
    except OSError as error:
        if error.filename is None and isinstance(error, FileNotFoundError):
            raise LaunchError("the working directory was removed: go to another one") from error
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError, ValueError):  # it would try again as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LaunchError(f"cannot write to standard output: {error.strerror}") from error


def _connected() -> bool:
    """Whether this process talks to other ranks, which must then hear of an error."""
    abort = sys.modules.get("microtrain.distributed.abort")
    return abort is not None and abort.running() is not None


def _leave(code: int) -> int:
    """The exit code; under a launcher in a way that says that every rank leaves with it."""
    if sys.excepthook.__module__ == "microtrain.distributed.abort":
        from microtrain.distributed.abort import agreed_exit

        agreed_exit(code)
    return code
