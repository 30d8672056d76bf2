"""Which of the models that may be proposed for a table is the better one: by training them."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import click

from ..common.words import number, printable, table
from ..config.load import load_config
from ..config.resolved import as_yaml
from ..distributed.single import SingleCommunicator
from ..train.callbacks.order import CALLBACKS
from ..train.console import Output
from ..train.trainer import Trainer

BETTER = 0.9  # of the loss: a network has to be that much better than a linear model


class Attempt(Trainer):
    """A run of which nothing is kept, a report neither."""

    callback_types = tuple(each for each in CALLBACKS if "report" not in str(each))


def better_first(path: Path, lines: list[str], ways: dict[str, list[str]]) -> dict[str, list[str]]:
    """The ways to learn from the table at `path`, the best first; says how each has done.

    All of them are trained on this process, whatever time that takes; their results are compared
    by the loss of the same validation rows, and a later one has to be a tenth better.

    Args:
        lines: the configuration without its part on learning.
        ways: that part, by the name of the model.
    """
    found: dict[str, float] = {}
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for name, learning in ways.items():
            click.echo(f"training {name} ...", err=True)
            file = Path(made, f"{name}.yaml")
            text = [printable(line) for line in (*lines, *learning)]
            file.write_text("\n".join(text), encoding="utf-8")
            given = [f"data.path={as_yaml(str(path.absolute()))}", f"run_dir={as_yaml(made)}"]
            unheard = Output(0, stream=io.StringIO(), errors=io.StringIO())
            run = Attempt.from_config(load_config(file, given), SingleCommunicator(), unheard)
            run.train()
            reached = run.state.best
            assert reached is not None  # there are validation rows
            found[name] = reached.value
            shown = f"{reached.name} {number(reached.value)}"
            rows.append((f"{name}:", shown, f"at step {reached.step:,}"))
    for line in table(rows):
        click.echo(line.rstrip())
    best = next(iter(ways))
    for name in ways:
        if found[name] < BETTER * found[best]:
            best = name
    return {best: ways[best], **ways}
