"""`microtrain compare A B [more]`: what differs between runs, and which is better."""

from __future__ import annotations

import json

import click

from . import options


@click.command()
@click.argument("runs", nargs=-1, metavar="A B [RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@options.sort
@options.csv
def compare(runs: tuple[str, ...], as_json: bool, sort: str | None, as_csv: str | None) -> None:
    """Explain the difference between runs: run directories, or runs/NAME for the newest.

    For two runs: configuration with origins, data, versions, hosts and ranks, metrics side by side,
    the first step at which they differ, and whether they are the same bit for bit. For more: one
    run per line with the settings that differ, sorted by the monitored value, and for runs that
    differ only in seed and fold the mean, its standard deviation and 95 % interval. Nothing is
    executed.

    A sweep stands for its members; by itself, it gives the table of its settings. --csv has a line
    for each run, with all digits; --json has the table of groups as well.

    \b
    microtrain compare runs/a runs/b
    microtrain compare runs/* --sort test/accuracy
    microtrain compare runs/sweep --csv members.csv
    """
    from ..common.words import terminal_width
    from ..report import compare as detailed
    from ..report.groups import Comparison
    from ..report.overview import in_csv
    from ..report.record import read_records

    records = read_records(runs)
    sweep = records[0].sweep if len(runs) == 1 else None
    if len(records) < 2 and sweep is None:
        raise click.UsageError("name two different runs or more to compare, or a sweep")
    comparison = Comparison(records, sort)
    if as_json:
        found = detailed.compare(records) | {"groups": comparison.as_json()}
        click.echo(json.dumps(found, indent=2, allow_nan=False, default=str))
    elif as_csv is not None:
        options.write_csv(in_csv(comparison.runs), as_csv)
    elif sweep is not None:
        best = ["", f"best  {sweep.one().path}"] if sweep.info.best_member is not None else []
        click.echo("\n".join([*comparison.lines(terminal_width(), of_groups=True), *best]))
    elif len(records) == 2 and sort is None:
        click.echo("\n".join(detailed.lines(detailed.compare(records))))
    else:
        lines = detailed.overall(records)
        click.echo("\n".join([*lines, "", *comparison.lines(terminal_width())]))
