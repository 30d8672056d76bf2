"""`microtrain list [RUNS_DIR or RUN...]`: the runs there are, one a line."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..runs.run import Run

sort_option = click.option("--sort", metavar="COLUMN", help="By a column, the best value first.")
csv_option = click.option(
    "--csv", "as_csv", metavar="FILE", help="Write all columns as CSV into a file; - prints them."
)


@click.command("list")
@click.argument("places", nargs=-1, metavar="[RUNS_DIR or RUN]...")
@sort_option
@csv_option
def list_runs(places: tuple[str, ...], sort: str | None, as_csv: str | None) -> None:
    """List runs, the newest first: those in the directory runs, or in the places named.

    \b
    microtrain list
    microtrain list runs/linreg --sort val/loss
    """
    from ..report import overview

    def warn(text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    columns = overview.listing(overview.find_runs(places or ["runs"]), warn)
    if sort is not None:
        columns = overview.sort(columns, sort)
    if as_csv is not None:
        write_csv(overview.in_csv(columns), as_csv)
    else:
        click.echo("\n".join(overview.in_lines(columns, terminal_width())))


def warn_of(records: Iterable[Run]) -> None:
    """Say what of runs may not be what they have done."""
    for record in records:
        for doubt in record.doubts():
            click.echo(f"warning: {doubt}", err=True)


def terminal_width() -> int:
    """Characters that fit into a line of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def write_csv(text: str, place: str) -> None:
    """Into a file, or to standard output for `-`. Raises LaunchError where it cannot be written."""
    import os
    from pathlib import Path

    from microtrain.errors import LaunchError

    from ..files import reason, write_whole

    if place == "-":
        click.echo(text, nl=False)
        return
    path = Path(os.path.expanduser(place))
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {reason(error)}") from error
    click.echo(path)
