"""`microtrain evaluate RUN`: loss and metrics of a trained run, from its checkpoint."""

from __future__ import annotations

import click

PARTS = ("train", "val", "test")


@click.command()
@click.argument("run")
@click.option(
    "--part",
    type=click.Choice(PARTS),
    help="Which part of the data; default: all that the run has.",
)
@click.option("--trust", is_flag=True, help="Run the code that the run's import paths name.")
def evaluate(run: str, part: str | None, trust: bool) -> None:
    """Measure the trained model of RUN (a run directory, or runs/NAME for the newest) again.

    The data are loaded, split and standardised as the run did it. Import paths in its
    configuration are code of whoever made the run: they need --trust.
    """
    from microtrain.train.replay import evaluate_run

    for line in evaluate_run(run, part, trust=trust):
        click.echo(line)
