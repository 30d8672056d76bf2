"""`microtrain compare A B [more]`: what differs between runs, and which is better."""

from __future__ import annotations

import json

import click

from .list import csv_option, sort_option, terminal_width, write_csv


@click.command()
@click.argument("runs", nargs=-1, metavar="A B [RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@sort_option
@csv_option
def compare(runs: tuple[str, ...], as_json: bool, sort: str | None, as_csv: str | None) -> None:
    """Explain the difference between runs: run directories, or runs/NAME for the newest.

    Of two: configuration with origins, data, versions, hosts and ranks, metrics side by side, the
    first step at which they part, and whether they are bit for bit the same. Of more: one run a
    line with the settings that differ, sorted by what is monitored, and over runs that differ in
    their seed alone the mean and the standard deviation. Nothing is executed.

    \b
    microtrain compare runs/a runs/b
    microtrain compare runs/* --sort test/accuracy
    """
    if len(runs) < 2:
        raise click.UsageError("name two runs or more to compare")
    from ..report import compare as detailed
    from ..report import overview
    from ..report.record import read_records

    records = read_records(runs)
    if len(records) < 2:
        raise click.UsageError("these are one run: name two or more to compare")
    if as_json:
        found = detailed.compare(records)
        click.echo(json.dumps(found, indent=2, allow_nan=False, default=str))
    elif len(records) == 2 and sort is as_csv is None:
        click.echo("\n".join(detailed.lines(detailed.compare(records))))
    else:
        told, groups = overview.comparison(records, sort)
        if as_csv is not None:
            write_csv(overview.in_csv(told), as_csv)
            return
        width = terminal_width()
        lines = detailed.together(records)
        if groups:
            lines += ["", *overview.in_lines(groups, width)]
        click.echo("\n".join([*lines, "", *overview.in_lines(told, width)]))
