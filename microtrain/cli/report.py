"""`microtrain report RUN`: one HTML file that says what a run is, or what several are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options

if TYPE_CHECKING:
    from ..report.predictions import Predictions


@click.command()
@options.runs
@click.option(
    "--output",
    metavar="FILE",
    help="Default: report.html in the run's directory; of several runs, here.",
)
@options.trust
def report(runs: tuple[str, ...], output: str | None, trust: bool) -> None:
    """Write the report of RUN (a run directory, or runs/NAME for the newest) and print its path.

    Curves, configuration with origins, environment, timings, and predictions beside the truth, in
    one file that loads nothing. For the predictions the trained model is built again: import paths
    in its configuration run code by the author of the run and need --trust.

    The report of several runs has a chart for each measure with the curves of all runs, and their
    results and differing settings side by side; for runs that differ only in seed and fold, as the
    members of a sweep do, it has means, with bands.
    """
    from microtrain.errors import ConfigError, DataError

    from ..report.page import report_html, runs_html, write_page
    from ..report.record import read_records

    records = read_records(runs)
    record, predictions, note = records[0], None, ""
    sweep = record.sweep if len(runs) == 1 else None
    if len(runs) > 1 or sweep is not None:
        # Of several here: beside the runs it would be one of `runs/*`.
        page, folder = runs_html(records), f"{sweep.path}/" if sweep else ""
    else:
        try:
            predictions = _predict(runs[0], trust)
            if predictions is None:
                note = "Predictions of this kind cannot be shown here."
        except (ConfigError, DataError) as error:
            note = f"There are no predictions to show: {str(error).splitlines()[0]}"
        page, folder = report_html(record, predictions, note), f"{record.path}/"
    click.echo(write_page(page, output or f"{folder}report.html"))


def _predict(run: str, trust: bool) -> Predictions | None:
    from microtrain.backend import default_dtype
    from microtrain.train.console import Output

    from ..inference.evaluate import load_data_again
    from ..inference.model import TrainedModel
    from ..inference.saved import read_saved
    from ..report.predictions import predict_rows

    saved = read_saved(run, "best", trust=trust, warn=Output().warn)
    model = TrainedModel(saved)
    with default_dtype(saved.config.dtype):
        data, loss = load_data_again(model), saved.config.loss.type
        return predict_rows(model.module, data, named=saved.chosen, loss=loss)
