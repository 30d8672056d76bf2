"""`microtrain predict RUN --input F --output F`: a trained model used on a file of rows."""

from __future__ import annotations

from typing import Any

import click

from . import options


@click.command()
@options.runs
@click.option(
    "--input", "source", metavar="FILE", required=True, help="CSV, NPZ, Parquet, .npy, HDF5 or Zarr"
    " by its name, or keys as of data: '{inputs: [a.npy, b.npy]}', '{path: a.csv, decimal: \",\"}'"
    "; - is CSV from standard input.",
)  # fmt: skip
@click.option(
    "--output", metavar="FILE", required=True, help="CSV or NPZ by its name; - is CSV to"
    " standard output.",
)  # fmt: skip
@options.checkpoint
@click.option("--proba", is_flag=True, help="Write the probability of each class as well.")
@click.option(
    "--keep", metavar="NAMES", multiple=True, help="Columns of the input to write as well,"
    " separated by commas or each with its own --keep; id columns are always written.",
)  # fmt: skip
@click.option(
    "--threshold",
    metavar="P",
    type=click.FloatRange(0, 1),
    help="With two classes, predict the second where its probability is at least P.",
)
@options.force
@options.trust
def predict(
    runs: tuple[str, ...],
    source: str,
    output: str,
    checkpoint: str,
    keep: tuple[str, ...],
    trust: bool,
    **how: Any,
) -> None:
    """Predict with the trained model of RUN: a run directory, runs/NAME, or one checkpoint.

    A sweep stands for its best member. Several runs predict together: the mean of their values, and
    their standard deviation as spread_<target>; or the class of the highest mean probability, and
    the standard deviation of that probability as spread.

    Columns are found by their names, in any order, and standardized as in training; columns that
    the model does not use are named and left out. Nothing is written if anything is wrong.

    \b
    microtrain predict runs/iris --input new.csv --output species.csv
    microtrain predict runs/sweep/latest/members/* --input new.csv --output species.csv
    """
    from ..common.words import plural
    from ..inference.mean import TrainedEnsemble
    from ..inference.model import TrainedModel
    from ..inference.predict import predict_file
    from ..inference.saved import read_saved

    saved = [read_saved(run, checkpoint, trust=trust, warn=options.note) for run in runs]
    model = TrainedEnsemble(saved) if len(saved) > 1 else TrainedModel(saved[0])
    kept = [name.strip() for name in ",".join(keep).split(",") if name.strip()]
    count = predict_file(model, source, output, options.note, keep=kept, **how)
    where = "standard output" if output == "-" else output
    click.echo(
        f"{plural(count, 'row')} predicted by the {model.chosen}: {where}", err=output == "-"
    )
