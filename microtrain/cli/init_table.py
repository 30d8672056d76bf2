"""`microtrain init csv FILE`: a configuration proposed for your own table."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click

from ..common.files import writing
from ..common.words import plural, printable, size, table
from ..config.resolved import as_yaml
from ..data.readers.csv import read_csv
from ..data.readers.parquet import read_parquet
from ..data.tables.columns import read_target
from ..data.tables.frame import GROUPS, Frame, number, other_delimiter, shortened
from ..data.tables.propose import CODE, Proposal, guess_target, propose
from ..errors import ConfigError, DataError
from .try_models import better_first

__all__ = ["propose_configuration"]

_FEW_CLASSES = 20
_OF_TARGET = (
    "  standardize_target: true  # predictions and metrics stay in its own unit",
    "  clip: true  # predictions within the range of the training targets",
)
_LARGE = 5_000_000  # bytes that take more than a second


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
    with contextlib.suppress(OSError):
        if (length := path.stat().st_size) > _LARGE:
            click.echo(f"reading {printable(str(path))}, {size(length)}", err=True)
    frame, given = _read(path)
    name, why = (target, "as you said") if target else guess_target(frame)
    frame.require([name])
    proposals = [propose(frame, each) for each in frame.names if each != name]
    if not any(p.spec not in ("drop", "id") for p in proposals):
        hint = other_delimiter(frame.names)
        raise DataError(f"{path}: no column but {name} seems to be an input{hint}")
    is_classes, categorical, found = _target(frame, name)
    source = os.path.relpath(path, written.parent) if not path.is_absolute() else str(path)
    lines = [
        f"# Proposed by `microtrain init csv {path.name}`, from {plural(len(frame), 'row')} and "
        f"{plural(len(frame.names), 'column')}. Look at it before you train.",
        f"name: {as_yaml(_run_name(path))}",
        "data:",
        f"  type: {'parquet' if path.suffix.lower() == '.parquet' else 'csv'}",
        f"  path: {as_yaml(source)}",
        *(f"  {key}: {as_yaml(value)}" for key, value in given.items()),
        f"  target: {as_yaml(name)}  # {why}; {found}",
        *(["  categorical: true  # whole numbers that name classes"] if categorical else []),
        "  columns:",
        *_aligned([p for p in proposals if p.spec != "drop"]),
        *_dropped([p for p in proposals if p.spec == "drop"]),
        "  standardize: true  # numbers and dates",
        *([] if is_classes else _OF_TARGET),
        f"  split: {{train: 0.7, val: 0.15, test: 0.15{', stratify: true' * is_classes}}}",
        *_hints_of_split(proposals, len(frame)),
    ]
    ways = _learning(proposals, is_classes, found.count("%") == 2)
    rows = [(p.name, p.spec or "number", p.why) for p in proposals]
    for line in table([(name, "target", f"{why}; {found}"), *rows]):
        click.echo(printable(line).rstrip())
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


def _read(path: Path) -> tuple[Frame, dict[str, str]]:
    """The table, and what it takes to read it."""
    if path.suffix.lower() == ".parquet":
        return read_parquet(path), {}
    given: dict[str, Any] = {}
    with contextlib.suppress(OSError), path.open(errors="replace") as file:
        header = file.readline()
        if delimiter := next((x for x in ";\t|" if x in header and "," not in header), ""):
            given["delimiter"] = delimiter
    frame = read_csv(path, **given, texts=None)
    for name in dict.fromkeys(frame.names):
        cells = [cell for cell in frame.column(name).tolist() if cell]
        commas = [cell for cell in cells if number(cell) is None is not number(cell, ",")]
        # Where each might be of thousands it is for people to say.
        if 2 * len(commas) > len(cells) and not all(map(GROUPS["."].fullmatch, commas)):
            given["decimal"] = ","
            return read_csv(path, **given, texts=None), given
    return frame, given


def _target(frame: Frame, name: str) -> tuple[bool, bool, str]:
    """Whether the target is classes, whether that must be said, and what it holds."""
    values, classes = read_target(frame, name)
    cells = set(frame.texts(name)) if classes is None else set[str]()
    coded = any(map(CODE.fullmatch, cells))  # 007 is not a number
    categorical = classes is None and (coded or len(cells) <= _FEW_CLASSES)
    if categorical and (values % 1 == 0).all():
        values, classes = read_target(frame, name, categorical=True)
    if classes is None:
        return False, False, f"numbers from {values.min():g} to {values.max():g}"
    counts = Counter(values.tolist()).most_common(4)
    shares = ", ".join(f"{shortened(classes[i])} {n / len(frame):.0%}" for i, n in counts)
    more = ", ..." if len(classes) > len(counts) else ""
    return True, categorical, f"{len(classes)} classes: {shares}{more}"


def _run_name(path: Path) -> str:
    name = "".join(c if c.isalnum() or c in " ._-" else "_" for c in path.stem)
    return name.lstrip(" .-")[:100] or "run"


def _aligned(proposals: list[Proposal]) -> list[str]:
    """A line for each column, with the reason behind it."""
    specs = [f"    {as_yaml(p.name)}: {p.spec or 'number'}" for p in proposals]
    width = max(map(len, specs))
    return [f"{s:<{width}}  # {p.why}" for s, p in zip(specs, proposals, strict=True)]


def _dropped(proposals: list[Proposal]) -> list[str]:
    if not proposals:
        return []
    why = "; ".join(f"{p.name}: {p.why}" for p in proposals)
    return [f"  drop: {as_yaml([p.name for p in proposals])}  # {why}"]


def _hints_of_split(proposals: list[Proposal], rows: int) -> list[str]:
    """Other ways to split that the columns allow."""
    dates = [p.name for p in proposals if "date" in p.spec]
    groups = [p.name for p in proposals if p.spec == "id" and p.distinct < 0.9 * rows]
    ways = [f"`time: {as_yaml(name)}` tests on the latest rows" for name in dates[:1]]
    ways += [f"`group: {as_yaml(name)}` keeps its rows together" for name in groups[:1]]
    return [f"  # in split, in place of stratify: {'; '.join(ways)}"] if ways else []


def _learning(proposals: list[Proposal], is_classes: bool, binary: bool) -> dict[str, list[str]]:
    """Model, loss, metrics and training to begin with, by name; the first is proposed."""
    scores = ["accuracy", "balanced_accuracy", {"type": "f1", "average": "macro"}, "log_loss"]
    if binary:
        scores = ["roc_auc", "f1", "calibration_error"]
    measured = [
        f"loss: {'cross_entropy' if is_classes else 'mse'}",
        f"metrics: {as_yaml(scores if is_classes else ['r2', 'rmse', 'mae'])}",
    ]
    linear = "logistic_regression" if is_classes else "linear_regression"
    # What these numbers rest on is in docs/decisions.md.
    ways = {
        linear: [
            f"model: {linear}",
            *measured,
            "optimizer: {type: lbfgs, l2: [1000, 100, 10, 1, 0.1]}  # a penalty a step",
            "train: {duration: 5 steps, batch_size: all}  # the step that validates best counts",
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
