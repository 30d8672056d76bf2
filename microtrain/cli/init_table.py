"""`microtrain init csv FILE`: a configuration proposed for your own table."""

from __future__ import annotations

import io
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

import click

from ..common.files import writing
from ..common.words import number, plural, printable, table
from ..config.load import load_config
from ..config.resolved import as_yaml
from ..data.readers.csv_dialect import dialect_of
from ..data.readers.parquet import read_parquet
from ..data.tables.columns import leave_out
from ..data.tables.frame import other_delimiter, shortened
from ..data.tables.notation import Notation
from ..data.tables.propose import Proposal, as_input, propose
from ..data.tables.targets import absent_classes, describe, guess_target
from ..distributed.single import SingleCommunicator
from ..errors import ConfigError, DataError
from ..train.callbacks.order import CALLBACKS
from ..train.console import Output
from ..train.trainer import Trainer

_OF_TARGET = (
    "  standardize_target: true  # predictions and metrics stay in its own unit",
    "  clip: true  # predictions within the range of the training targets",
)
_OF_COUNTS = "  # counts: `loss: poisson` without standardize_target keeps predictions above 0"
_FEW = 1000  # rows; why, and why these penalties, is in docs/decisions.md
_PENALTIES = [10000, 3000, 1000, 300, 100, 30, 10, 3, 1, 0.3, 0.1]
BETTER = 0.9  # of the loss: a network has to be that much better than a linear model


def propose_configuration(
    path: Path, target: str | None, output: str | None, attempt: bool = False
) -> None:
    """Look at a table, say what its columns seem to hold, and write a configuration for it.

    `attempt`: train each model that may be proposed, and write down the better one.

    Raises DataError for what is wrong with the file, ConfigError for a target that it has not and
    an output that exists.
    """
    written = Path(output or f"{path.stem}.yaml")
    if os.path.lexists(written):
        raise ConfigError(f"{written} already exists; choose another name with --output FILE")
    is_csv = path.suffix.lower() != ".parquet"
    frame, given, notes = dialect_of(path) if is_csv else (read_parquet(path), {}, {})
    proposed = {each: propose(frame, each) for each in frame.names}
    command = f"microtrain init csv {shlex.quote(str(path))}"
    name, why = (target, "given by --target") if target else guess_target(frame, proposed, command)
    frame.require([name])
    absent = {word for each in proposed.values() for word in each.absent}
    if words := sorted(absent | {*absent_classes(frame, name)}):
        given["na_values"], notes["na_values"] = words, "stand for no value, in every column"
        if doubtful := [w for w in words if w[0] != "#" and any(map(str.isdigit, w))]:
            notes["na_values"] += f'; if "{shortened(doubtful[0])}" is one, correct the file'
        frame = frame.read_as(Notation.of(given))
    frame, missing = leave_out(frame, name)
    if missing and len(frame) < 7:  # of which some test, and some validate
        raise DataError(f"{path}: {missing}, which leaves {plural(len(frame), 'row')}: too few")
    if words or missing:
        proposed = {each: propose(frame, each) for each in frame.names}
    proposals = [each for each in proposed.values() if each.name != name]
    if not any(p.spec not in ("drop", "id") for p in proposals):
        proposals = [as_input(p) for p in proposals]
    if not any(p.spec not in ("drop", "id") for p in proposals):
        hint = other_delimiter(frame.names)
        left_out = [f"{p.name or 'without a name'} ({p.why})" for p in proposals]
        which = "; ".join(left_out) or "there is no other column"
        raise DataError(f"{path}: nothing left to predict {name} from: {which}{hint}")
    goal, inputs = describe(frame, name), [p for p in proposals if p.spec != "drop"]
    dropped = [p for p in proposals if p.spec == "drop"]
    unused = "; ".join((p.name or '""') + f": {p.why}" for p in dropped)
    found = f"{goal.found}, {missing}" if missing else goal.found
    source = os.path.relpath(path, written.parent) if not path.is_absolute() else str(path)
    lines = [
        f"# Proposed by `microtrain init csv {path.name}`, from {plural(len(frame), 'row')} and "
        f"{plural(len(frame.names), 'column')}. Look at it before you train.",
        f"name: {as_yaml(_run_name(path))}",
        "data:",
        f"  type: {'csv' if is_csv else 'parquet'}",
        f"  path: {as_yaml(source)}",
        *_given(given, notes),
        f"  target: {as_yaml(name)}  # {why}; {goal.found}",
        *([f"  missing_target: drop  # {missing}"] if missing else []),
        *(["  categorical: true  # each text is the name of a class"] if goal.categorical else []),
        "  columns:",
        *table([(f"{as_yaml(p.name)}: {p.spec or 'number'}", f"# {p.why}") for p in inputs], 4),
        *([f"  drop: {as_yaml([p.name for p in dropped])}  # {unused}"] if dropped else []),
        "  missing: fill  # cells that are empty in new rows, of columns that have none here",
        "  standardize: true  # numbers and dates",
        *([] if goal.is_classes else _OF_TARGET),
        *([_OF_COUNTS] if goal.is_count else []),
        _split(len(frame), goal.is_classes),
        *_hints_of_split(proposals, len(frame), goal.is_classes),
    ]
    ways = _learning(proposals, goal.is_classes, goal.binary, len(frame))
    rows = [(p.name or '""', p.spec or "number", p.why) for p in proposals]
    for line in table([(name, "target", f"{why}; {found}"), *rows]):
        click.echo(printable(line).rstrip())
    for line in _given(given, notes):
        click.echo(printable(line.strip()))
    if attempt:
        ways = better_first(path, lines, ways)
    first, *others = ways.values()
    lines += first
    for each in others:
        lines += ["# Or, in place of these keys (init csv --try trains both):"]
        lines += [f"# {line}" for line in each if line not in first]
    with writing(written), written.open("x", encoding="utf-8") as file:
        file.writelines(f"{printable(line)}\n" for line in lines)
    click.echo(f"wrote {written}\nnext: microtrain train {written}")


def _given(given: dict[str, Any], notes: dict[str, str]) -> list[str]:
    """A line for each key that it takes to read the file."""
    reasons = {key: f"  # {notes[key]}" if key in notes else "" for key in given}
    return [f"  {key}: {as_yaml(value)}{reasons[key]}" for key, value in given.items()]


def _run_name(path: Path) -> str:
    name = "".join(c if c.isalnum() or c in " ._-" else "_" for c in path.stem)
    return name.lstrip(" .-")[:100] or "run"


def _split(rows: int, is_classes: bool) -> str:
    """The parts; of few rows there are none to test on, which cost more than they tell."""
    few = rows < _FEW
    share = "0.5, val: 0.5" if rows < 7 else "0.85, val: 0.15"  # one row at least
    parts = f"train: {share if few else '0.7, val: 0.15, test: 0.15'}"
    why = "  # few rows: none to test on" if few else ""
    return f"  split: {{{parts}{', stratify: true' * is_classes}}}{why}"


def _hints_of_split(proposals: list[Proposal], rows: int, is_classes: bool) -> list[str]:
    """Other ways to split that the columns allow."""
    dates = [p.name for p in proposals if "date" in p.spec]
    groups = [p.name for p in proposals if p.spec == "id" and p.distinct < 0.9 * rows]
    ways = [f"`time: {as_yaml(name)}` tests on the latest rows" for name in dates[:1]]
    ways += [f"`group: {as_yaml(name)}` keeps its rows together" for name in groups[:1]]
    place = ", in place of stratify" * is_classes
    return [f"  # in split{place}: {'; '.join(ways)}"] if ways else []


def _learning(
    proposals: list[Proposal], is_classes: bool, binary: bool, rows: int
) -> dict[str, list[str]]:
    """Model, loss, metrics and training to begin with, by name; the first is proposed."""
    scores = ["accuracy", "balanced_accuracy", {"type": "f1", "average": "macro"}]
    if binary:
        scores = ["accuracy", "roc_auc", "f1", "calibration_error"]
    measured = [
        f"loss: {'cross_entropy' if is_classes else 'mse'}",
        f"metrics: {as_yaml(scores if is_classes else ['r2', 'rmse', 'mae'])}",
    ]
    linear = "logistic_regression" if is_classes else "linear_regression"
    penalties = [each for each in _PENALTIES if each <= max(rows, len(proposals))]
    ways = {
        linear: [
            f"model: {linear}",
            *measured,
            f"optimizer: {{type: lbfgs, l2: {as_yaml(penalties)}}}  # one a step",
            f"train: {{duration: {len(penalties)} steps, batch_size: all}}  # the best counts",
        ],
        "mlp": [
            "model: {type: mlp, hidden: [64, 64]}",
            *measured,
            "optimizer: {type: adamw, lr: 0.003, weight_decay: 1.0}",
            "schedule: cosine",
            "train: {duration: 3000 steps, batch_size: 64, eval_every: 100 steps}",
            "callbacks: [{type: early_stopping, patience: 10}]",
            "log: {every: 100 steps}",
        ],
    }
    if any("embedding" in p.spec for p in proposals):  # which a linear model does not take
        del ways[linear]
    return ways


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
    first, *others = ways
    best = next((name for name in others if found[name] < BETTER * found[first]), first)
    return {best: ways[best], **ways}
