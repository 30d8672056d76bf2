"""`microtrain export RUN --to FORMAT`: a trained model in a file that others read."""

from __future__ import annotations

import click

from . import options


@click.command()
@click.argument("run")
@click.option(
    "--to",
    "kind",
    type=click.Choice(("safetensors", "npz", "onnx")),
    required=True,
    help="safetensors (also for PyTorch) and npz: the weights by name; onnx: all that predict does,"
    " for onnxruntime.",
)
@click.option(
    "--output", metavar="FILE", help="Default: the run's name, here, with the format's suffix."
)
@options.checkpoint
@options.force
@options.trust
def export(
    run: str, kind: str, output: str | None, checkpoint: str, force: bool, trust: bool
) -> None:
    """Write the trained model of RUN (a run directory, runs/NAME, or one checkpoint) for others.

    The weights are the parameters and buffers under their names in the model, which are PyTorch's
    for layers that PyTorch has. An ONNX graph takes raw inputs, standardizes them as in training,
    and gives what predict gives, for any number of rows.

    \b
    microtrain export runs/iris --to onnx --output iris.onnx
    """
    from ..exchange.run import export_run
    from ..inference.model import TrainedModel
    from ..inference.saved import read_saved

    model = TrainedModel(read_saved(run, checkpoint, trust=trust, warn=options.note))
    written = export_run(model, kind, output, force, options.note)
    click.echo(f"exported the {model.chosen}: {written}")
