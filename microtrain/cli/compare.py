"""`microtrain compare A B [more]`: what differs between runs, and which is better."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .list import csv_option, sort_option, terminal_width, warn_of, write_csv

if TYPE_CHECKING:
    from ..report.record import Record


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

    Of a sweep, or several, the table of their settings, which --json has with the best member; with
    --csv that of their members.

    \b
    microtrain compare runs/a runs/b
    microtrain compare runs/* --sort test/accuracy
    microtrain compare runs/sweep --csv members.csv
    """
    if not runs:
        raise click.UsageError("name two runs or more to compare, or a sweep")
    from ..report import compare as detailed
    from ..report import overview
    from ..report.record import read_records

    records = read_records(runs)
    warn_of(records)
    if any(record.info.sweep for record in records):
        _compare_sweeps(records, sort, as_csv, as_json)
        return
    if len(runs) < 2:
        raise click.UsageError("name two runs or more to compare")
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


def _compare_sweeps(
    records: list[Record], by: str | None, as_csv: str | None, as_json: bool
) -> None:
    from microtrain.errors import ConfigError
    from microtrain.words import plural

    from ..report import overview
    from ..report.sweeps import Sweep, together

    for record in records:
        if not record.info.sweep:
            other = next(record for record in records if record.info.sweep)
            raise ConfigError(
                f"{other.path} is a sweep, and {record.path} is one run: there is no common table; "
                f"compare runs with runs, or look at the sweep alone: microtrain compare "
                f"{other.path}"
            )
    sweeps = [Sweep.read(record.path) for record in records]
    if as_json:
        found = [
            {"path": str(record.path), **sweep.as_json()}
            for record, sweep in zip(records, sweeps, strict=True)
        ]
        click.echo(json.dumps({"sweeps": found}, indent=2, allow_nan=False))
        return
    names = [sweep.name for sweep in sweeps]
    labels = names if len({*names}) == len(names) else [record.label for record in records]
    if as_csv is not None or len(sweeps) > 1:
        pairs = zip(labels, sweeps, strict=True)
        tables = {k: s.settings() if as_csv is None else s.members() for k, s in pairs}
        columns = tables[labels[0]] if len(sweeps) == 1 else together(tables)
        monitors = {sweep.monitor for sweep in sweeps}
        by = by or (monitors.pop() if as_csv is None and len(monitors) == 1 else None)
        columns = columns if by is None else overview.sort(columns, by)
        if as_csv is not None:
            write_csv(overview.in_csv(columns), as_csv)
            return
        lines = [f"{plural(len(sweeps), 'sweep')}; best and = are within each", ""]
        click.echo("\n".join([*lines, *overview.in_lines(columns, terminal_width())]))
        return
    said = sweeps[0].lines(terminal_width())
    if by is not None:
        said = overview.in_lines(overview.sort(sweeps[0].settings(), by), terminal_width())
    best = sweeps[0].best
    chosen = [] if best is None else ["", f"best member: {best.number}"]
    click.echo("\n".join([*said, *chosen]))
