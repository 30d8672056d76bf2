"""`microtrain export RUN --to FORMAT`: a trained model in a file that others read."""

from __future__ import annotations

import click

from . import options


@click.command()
@click.argument("run")
@click.option(
    "--to",
    "kind",
    type=click.Choice(("safetensors", "npz", "onnx", "c")),
    required=True,
    help="safetensors (also for PyTorch) and npz: the weights by name; onnx: all that predict does,"
    " for onnxruntime; c: the same for one row, as C99 and for Fortran, with a test.",
)
@click.option(
    "--output", metavar="FILE", help="Default: the run's name, here, with the format's suffix."
)
@click.option(
    "--weights-file", is_flag=True, help="With --to c: the weights as a file, not in the text."
)
@click.option(
    "--step", is_flag=True,
    help="With --to c: the training step, from the checkpoint on, and not what predict does.",
)  # fmt: skip
@click.option(
    "--rows", type=click.IntRange(1), help="Rows of such a step; default: train.batch_size."
)
@options.checkpoint
@options.force
@options.trust
def export(
    run: str, kind: str, output: str | None, weights_file: bool, step: bool, rows: int | None,
    checkpoint: str, force: bool, trust: bool,
) -> None:  # fmt: skip
    """Write the trained model of RUN (a run directory, runs/NAME, or one checkpoint) for others.

    The weights are the parameters and buffers under their names in the model, which are PyTorch's
    for layers that PyTorch has. An ONNX graph takes raw inputs, standardizes them as in training,
    and gives what predict gives, for any number of rows. The C takes one raw row, scales it, finds
    its categories, and gives the class or the number in its own unit; no compiler is needed here.
    With --step it goes on learning from such rows, as the run's configuration says.

    \b
    microtrain export runs/iris --to onnx --output iris.onnx
    """
    from ..errors import ConfigError
    from ..exchange.run import export_run
    from ..inference.model import TrainedModel
    from ..inference.saved import read_saved

    model = TrainedModel(read_saved(run, checkpoint, trust=trust, warn=options.note))
    if rows and not step:
        raise ConfigError("--rows is for --step, the training step")
    of_step = rows or 0 if step else None
    written = export_run(model, kind, output, force, options.note, weights_file, of_step)
    click.echo(f"exported the {model.chosen}: {written}")
