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
@click.option(
    "--data",
    "data_file",
    metavar="FILE",
    help="Measure on the rows of this CSV, NPZ or Parquet file, target included, instead.",
)
@click.option(
    "--checkpoint",
    metavar="best|last|STEP",
    default="best",
    help="Which checkpoint; default: the best that was kept, else the last.",
)
@click.option("--trust", is_flag=True, help="Run the code that the run's import paths name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def evaluate(
    run: str,
    part: str | None,
    data_file: str | None,
    checkpoint: str,
    trust: bool,
    as_json: bool,
) -> None:
    """Measure the trained model of RUN again: a run directory, runs/NAME, or one checkpoint.

    The data are loaded, split and standardised as the run did it, and what it recorded at this step
    is compared. Import paths in its configuration are code of whoever made the run: they need
    --trust. Under mpirun or srun the ranks share the rows.
    """
    from microtrain.distributed import world
    from microtrain.train.output import Output

    from ..inference.evaluate import evaluate_run

    if part is not None and data_file is not None:
        raise click.UsageError("--part is of the run's own data; leave it out with --data")
    comm = world()
    output = Output(comm.rank)

    def warn(text: str) -> None:
        if comm.rank == 0:
            output.warn(text)

    evaluation = evaluate_run(
        run, part, comm=comm, warn=warn, trust=trust, checkpoint=checkpoint, data_file=data_file
    )
    output.say(*([evaluation.to_json()] if as_json else evaluation.lines()))
