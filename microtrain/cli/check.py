"""`microtrain check CFG [k=v ...]`: every mistake of a configuration."""

from __future__ import annotations

import shlex

import click

from ..config.components import import_paths, is_import_path
from ..config.load import load_sweep
from ..errors import DataError
from . import options


@click.command()
@options.config
@options.overrides
@options.trust
def check(config: str, overrides: tuple[str, ...], trust: bool) -> None:
    """Validate the YAML file CONFIG, with overrides such as optimizer.lr=0.01, without training.

    Writes nothing. Parts of your own are called once, on the first rows of the data, where these
    can be read; without such parts no data is read. Exit code 2 if anything is wrong.
    """
    given = load_sweep(config, overrides, trust=trust or None)
    run = given.config
    sweep = ""
    if given.members:
        from ..sweep import runner  # where it is wanted: it brings tables

        runner.check(given.members)
        sweep = f"\nmembers {runner.in_words(given.members)}"
    looked = "the data were not read"
    if import_paths(run):
        from ..train.dry_run import try_step

        try:
            tried = try_step(given.members[0].config if given.members else run)
            looked = f"parts of your own were tried on {tried} rows"
        except DataError as error:  # they may lie where the run is to train
            if is_import_path(run.data.type):
                raise
            looked = f"parts of your own were not tried: {error}"
    click.echo(f"{config}: no problems found ({looked}){sweep}")
    click.echo(f"next: microtrain train {shlex.join([config, *overrides])}")
