"""`microtrain evaluate RUN`: loss and metrics of a trained run, from its checkpoint."""

from __future__ import annotations

from typing import Any

import click

from . import options


@click.command()
@click.argument("run")
@click.option(
    "--part",
    type=click.Choice(("train", "val", "test")),
    help="Part of the data to evaluate; default: all parts of the run.",
)
@click.option(
    "--data",
    "data_file",
    metavar="FILE",
    help="Evaluate on this CSV, NPZ, Parquet, HDF5 or Zarr file with targets, or on arrays"
    " given as under data: '{inputs: x.npy, target: y.npy}'.",
)
@click.option(
    "--importance",
    is_flag=True,
    help="Also say which columns matter: how much worse it gets when one is shuffled.",
)
@options.checkpoint
@options.trust
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def evaluate(run: str, part: str | None, data_file: str | None, as_json: bool, **how: Any) -> None:
    """Evaluate the trained model of RUN again: a run directory, runs/NAME, or one checkpoint.

    The data are loaded, split and standardized as in the run, and the results are compared with the
    recorded ones. Import paths in the configuration run code by the author of the run and need
    --trust. Under mpirun or srun the rows are divided among the ranks.

    A sweep stands for its best member; each of its members is a run.
    """
    from microtrain.distributed import world
    from microtrain.train.console import Output

    from ..inference.evaluate import evaluate_run

    if part is not None and data_file is not None:
        raise click.UsageError("--part selects from the run's own data; omit it with --data")
    comm = world()
    output = Output(comm.rank)

    def warn(text: str) -> None:
        if comm.rank == 0:
            output.warn(text)

    evaluation = evaluate_run(run, part, comm=comm, warn=warn, data_file=data_file, **how)
    output.say(*([evaluation.to_json()] if as_json else evaluation.lines()))
