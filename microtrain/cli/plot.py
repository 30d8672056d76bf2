"""`microtrain plot RUN...`: the curves of one or several runs in one picture."""

from __future__ import annotations

import os
from pathlib import Path

import click

from . import options


@click.command()
@options.runs
@click.option(
    "--output",
    metavar="FILE",
    help="A name ending in .png, .svg or .pdf; default: plots/curves.png in the run's directory, "
    "or curves.png here for several runs.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Draw this one (loss, r2, val/loss); may be repeated; default: all.",
)
@click.option(
    "--x",
    type=click.Choice(["step", "epoch", "time", "samples"]),
    default="step",
    help="The horizontal axis; default: step.",
)
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="WEIGHT",
    help="Draw moving averages, and the values themselves faintly; from 0 (no average) to 0.99.",
)
@click.option(
    "--group",
    is_flag=True,
    help="Draw runs that differ only in seed and fold as mean and deviation, as for a sweep.",
)
def plot(
    runs: tuple[str, ...],
    output: str | None,
    metrics: tuple[str, ...],
    x: str,
    smooth: float,
    group: bool,
) -> None:
    """Draw the curves of runs: run directories, or runs/NAME for the newest.

    \b
    microtrain plot runs/linreg
    microtrain plot runs/linreg runs/other --metric loss --output both.svg
    microtrain plot runs/* --group --x epoch
    """
    from ..report import chart
    from ..report.curves import choose, curves
    from ..report.record import read_records

    records = read_records(runs)
    place = records[0].sweep or records[0] if len(runs) == 1 else None
    group = group or (place is not None and place.info.sweep)
    charts = curves(records, choose(records, metrics), x, smooth, group)
    figure = chart.draw(charts, "" if place is None else place.name)
    if output is not None:
        path = Path(os.path.expanduser(output))
    elif place is not None:
        path = chart.plots_folder(place.path) / "curves.png"
    else:
        path = Path("curves.png")
    chart.write(figure, path)
    click.echo(path)
