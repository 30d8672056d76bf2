"""`microtrain list [RUNS_DIR or RUN...]`: the runs there are, one a line."""

from __future__ import annotations

import click

from . import options


@click.command("list")
@click.argument("places", nargs=-1, metavar="[RUNS_DIR or RUN]...")
@options.sort
@options.csv
def list_runs(places: tuple[str, ...], sort: str | None, as_csv: str | None) -> None:
    """List runs, newest first: those in the directory runs, or in the places named.

    \b
    microtrain list
    microtrain list runs/linreg --sort val/loss
    """
    from ..common.words import terminal_width
    from ..report import overview

    columns = overview.listing(overview.find_runs(places or ["runs"]), options.warn)
    if sort is not None:
        columns = overview.sort(columns, sort)
    if as_csv is not None:
        options.write_csv(overview.in_csv(columns), as_csv)
    else:
        click.echo("\n".join(overview.in_lines(columns, terminal_width())))
