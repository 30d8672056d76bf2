"""`microtrain train CFG [k=v ...]`: one run, on as many ranks as the launcher started."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from typing import Any

import click

from ..common import job
from ..common.threads import launch_environment
from ..common.words import plural
from ..config.components import load
from ..config.load import load_sweep
from ..config.resolved import whole_yaml
from ..config.schema import Config, Members
from ..distributed import connect, survivors, world
from ..distributed.agreement import first_word, from_root, together
from ..errors import ConfigError
from ..train.console import Output, ProgressMode
from ..train.resume import choose_run
from ..train.trainer import Trainer
from . import options


@click.command()
@options.config
@options.overrides
@click.option("--run-dir", metavar="DIR", help="Directory for runs, instead of the file's run_dir.")
@click.option(
    "--resume",
    metavar="auto|RUN",
    help="Resume RUN; auto: the newest run of this name, or start one if there is none.",
)
@click.option(
    "--dry-run", is_flag=True, help="Take a few steps, report memory and time, write nothing."
)
@options.trace
@options.trust
@options.progress
def train(
    config: str, overrides: tuple[str, ...], run_dir: str | None, trust: bool, **how: Any
) -> int:
    """Train the model described by the YAML file CONFIG, with overrides such as optimizer.lr=0.01.

    Under mpirun or srun all ranks train one model together; batch_size is global.
    """
    if run_dir is not None:
        overrides = (*overrides, f"run_dir={json.dumps(run_dir)}")  # quoted: it is not YAML
    with beginning():
        ranks = world()
        if job.in_place():  # any rank may become the first, and then has it
            importlib.import_module("microtrain.config.check")
        settings = from_root(ranks, lambda: load_sweep(config, overrides, trust=trust or None))
    return train_run(settings, **how)


def train_run(
    given: Members,
    *,
    resume: str | None = None,
    dry_run: bool = False,
    trace: bool = False,
    progress: ProgressMode = "auto",
) -> int:
    """Train on the ranks that the launcher started; returns the exit code. Collective."""
    settings = given.config
    with beginning(), _located(settings):
        ranks = world()
        kind: Any = Trainer
        if settings.trainer is not None:
            kind = together(ranks, lambda: load("trainer", str(settings.trainer)))
        place = None
        if begun := first_word(ranks, _begun(settings)):  # a host may have come back empty
            resume = begun[1]
        if resume is not None:
            place, message, code = choose_run(settings, resume, ranks)
            if message and ranks.rank == 0:
                click.echo(message)
            if code is not None:
                return code
        comm = together(ranks, lambda: connect(settings.distributed.backend))
        output = Output(comm.rank, progress=progress)
        if given.members and not dry_run:
            if trace:
                raise click.UsageError("--trace is for one run, and this is a sweep")
            from ..sweep.runner import run_sweep  # where it is wanted: it brings tables

            survivors.apart()

            return run_sweep(settings, given.members, comm, output, place)
        if dry_run and given.members:
            output.say(f"the first of {plural(len(given.members), 'member')}:")
            settings = given.members[0].config
        if dry_run:
            output.say(*kind.from_config(settings, comm, output).dry_run())
            return 0
        trainer: Trainer = kind.from_config(settings, comm, output, trace=trace, resume=place)
    return trainer.train()


def _begun(settings: Config) -> str | None:
    """The run that an earlier start of this job was of, if it is the one that is asked for."""
    mine = job.place() is not None and job.is_first(whole_yaml(settings))
    return str(run) if mine and (run := job.begun_run()) is not None else None


@contextlib.contextmanager
def _located(settings: Config) -> Iterator[None]:
    """Say where the value is of which a part of the run begins to complain: by its key."""
    try:
        yield
    except ConfigError as error:
        if origin := settings.origins.get(str(error).partition(":")[0]):
            error.args = (f"{origin}: {error}",)
        raise


@contextlib.contextmanager
def beginning() -> Iterator[None]:
    """Say of a Ctrl-C in here that nothing has happened; later the run says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if launch_environment().rank == 0:
            click.echo("interrupted before the first step: nothing was written", err=True)
        raise
