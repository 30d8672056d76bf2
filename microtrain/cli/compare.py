"""`microtrain compare A B [more]`: what differs between runs, and which is better."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("runs", nargs=-1, metavar="A B [RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(runs: tuple[str, ...], as_json: bool) -> None:
    """Explain the difference between runs: run directories, or runs/NAME for the newest.

    Configuration with origins, data, versions, hosts and ranks, metrics side by side, the first
    step at which they part, and whether they are bit for bit the same. Nothing is executed.
    """
    if len(runs) < 2:
        raise click.UsageError("name two runs or more to compare")
    from ..report.compare import compare as compare_runs
    from ..report.compare import lines
    from ..report.record import Record

    comparison = compare_runs([Record.read(run) for run in runs])
    if as_json:
        click.echo(json.dumps(comparison, indent=2, allow_nan=False, default=str))
    else:
        click.echo("\n".join(lines(comparison)))
