"""Arguments and options that several commands have, and what they do with them."""

from __future__ import annotations

import os
from pathlib import Path

import click

config = click.argument("config")
overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
runs = click.argument("runs", metavar="RUN ...", nargs=-1, required=True)
trust = click.option(
    "--trust", is_flag=True, help="Run the code that a run's import paths name; it may be anyone's."
)
trace = click.option(
    "--trace", is_flag=True, help="Write a timeline of each rank for chrome://tracing."
)
checkpoint = click.option(
    "--checkpoint",
    metavar="best|last|STEP",
    default="best",
    help="Which checkpoint; default: the best that was kept, else the last.",
)
force = click.option("--force", is_flag=True, help="Replace an existing output.")
progress = click.option(
    "--progress",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Show a progress bar; auto: if standard output is a terminal.",
)
sort = click.option("--sort", metavar="COLUMN", help="Sort by this column, the best value first.")
csv = click.option(
    "--csv", "as_csv", metavar="FILE", help="Write all columns as CSV into a file; - prints them."
)


def note(text: str) -> None:
    """Tell on standard error what is worth knowing."""
    click.echo(f"note: {text}", err=True)


def warn(text: str) -> None:
    """Tell on standard error what may be wrong."""
    click.echo(f"warning: {text}", err=True)


def write_csv(text: str, place: str) -> None:
    """Into a file, or to standard output for `-`. Raises LaunchError where it cannot be written."""
    from ..common.files import write_whole, writing

    if place == "-":
        click.echo(text, nl=False)
        return
    path = Path(os.path.expanduser(place))
    with writing(path):
        write_whole(path, text.encode())
    click.echo(path)
