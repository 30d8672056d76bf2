"""`microtrain compare A B [more]`: what differs between runs, and which is better."""

from __future__ import annotations

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
    from ..report import compare as comparison
    from ..report.record import Record

    found = comparison.compare([Record.read(run) for run in runs])
    for line in [comparison.as_json(found)] if as_json else comparison.lines(found):
        click.echo(line)
