"""Measuring a trained run again: on its own data or on other, beside what the run recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from ..common.words import number, table
from ..config.components import load
from ..data import Prepared, Source, prepare
from ..data.kept.shared import share
from ..data.preparation.prepare import check_names
from ..distributed.agreement import agreed, from_root, together
from ..errors import ConfigError, DataError
from ..runs.arrays import params_sha256
from ..runs.metrics import ClassCounts, Importance
from ..runs.run import Run
from ..train.build_run import build_loss
from ..train.evaluation import evaluate, step_of
from ..train.importance import choose, columns_of
from ..train.importance import importance as shuffled
from ..train.metrics.base import Metric
from ..train.metrics.classification import Confusion, class_counts, class_lines, class_names
from ..train.models_and_losses import negative_count
from ..train.rehearsal import build_metrics
from ..train.run_data import load_data, load_once
from ..train.trainer import Trainer
from .files import read_rows, standard_input
from .model import Note, TrainedModel
from .saved import Saved, read_saved

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator


@dataclass
class Part:
    """Loss and metrics of some rows, and what the run recorded of them at the same step.

    `classes` says how often each was predicted for each, where there are classes.
    """

    rows: int
    values: dict[str, float]
    recorded: dict[str, float] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    classes: ClassCounts | None = None


@dataclass
class Evaluation:
    """What `evaluate_run` measured: by part of the data, or under the name of the file."""

    path: Path
    step: int
    checkpoint: str
    parts: dict[str, Part] = field(default_factory=dict)
    importance: Importance | None = None

    def lines(self) -> list[str]:
        """For reading."""
        rows = []
        for name, part in self.parts.items():
            values = "  ".join(f"{key} {number(value)}" for key, value in part.values.items())
            note = "  as recorded" if part.recorded and not part.differs else ""
            rows.append((name, f"{part.rows:>9,} rows", values + note))
        counted = [part.classes for part in self.parts.values() if part.classes is not None]
        lines = [line for counts in counted for line in ("", *class_lines(counts))]
        lines += ["", *self.importance.lines()] if self.importance is not None else []
        return [f"{self.path}, {self.checkpoint}", *table(rows), *lines]

    def to_json(self) -> str:
        """For programs; values that are not finite are null."""
        return TypeAdapter(Evaluation).dump_json(self).decode()


def evaluate_run(
    path: str,
    part: str | None = None,
    *,
    comm: Communicator,
    warn: Callable[[str], None],
    trust: bool = False,
    checkpoint: str | int = "best",
    data_file: str | None = None,
    importance: bool = False,
) -> Evaluation:
    """Loss and metrics of a run's parts (or of one, or of a file's rows). Collective.

    The first rank reads run and checkpoint, every rank loads the data, as in training. Of a sweep
    it is the best member. With `importance` also how much each column of a table matters, by the
    validation rows (else those of the part, or the file) and what the best step was chosen by.
    Raises ConfigError for import paths without `trust`, a part that the run has not, and the
    columns of what is no table, DataError for what is missing, damaged, or does not fit the
    model any more.
    """
    saved = from_root(comm, lambda: read_saved(path, checkpoint, trust=trust, warn=warn))
    model = together(comm, lambda: TrainedModel(saved))
    config = saved.config
    evaluation = Evaluation(saved.run.path if saved.run else model.path, model.step, saved.chosen)
    if data_file is not None:
        # Launchers give it to the first rank alone, whichever hosts there are.
        content = from_root(comm, standard_input) if data_file == "-" else None
        data = share(comm, partial(load_file, model, data_file, warn, content))
        datasets: dict[str, Source] = {data_file: data.train}
    else:
        data, its_hash = load_once(config, comm, partial(load_data_again, model))
        if its_hash != saved.checkpoint.state.get("data_hash"):
            warn(
                f"the data have changed since the run {evaluation.path}: its parts are cut from "
                "other rows now, and rows it was trained on may be among val and test"
            )
        parts = {"train": data.train, "val": data.val, "test": data.test}
        datasets = {name: rows for name, rows in parts.items() if rows is not None}
        if part is not None and part not in datasets:
            existing = ", ".join(datasets)
            what = f"the run {evaluation.path} has no {part} data; it has {existing}"
            raise agreed(ConfigError(what))
        if part is not None:
            datasets = {part: datasets[part]}
    loss, metrics = build_loss(config), build_metrics(config)
    for name, rows in datasets.items():
        if found := negative_count(rows, loss):
            raise agreed(
                DataError(
                    f"{name}: {found}, but the loss {config.loss.type} needs counts, targets of at "
                    "least 0\nhint: rows count from 0; correct the target, or leave the row out"
                )
            )
    trainer = load("trainer", config.trainer) if config.trainer else Trainer
    step = step_of(trainer, config=config, device=None, loss=loss, metrics=metrics)
    shared = config.distributed
    in_shards = shared.reproducible == "world" and shared.shards >= comm.size
    shards = shared.shards if in_shards else None

    def measure(rows: Source, *more: Metric) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # what is not finite is shown as it is
            every = [*metrics, *more]
            return evaluate(
                model.module, loss, every, rows, comm, None, shards, step,
                target_scaling=model.target_scaling,
            )  # fmt: skip

    for name, rows in datasets.items():
        names = class_names(loss if step is None else None, metrics, model.classes, [rows])
        values = measure(rows, *([] if names is None else [Confusion()]))
        counts = None if names is None else class_counts(values, name, names)
        evaluation.parts[name] = Part(len(rows), values, classes=counts)
    if importance:
        name = "val" if "val" in datasets else [*datasets][-1]
        columns = columns_of(data, datasets[name])
        if not columns:
            raise agreed(ConfigError(f"the inputs of {evaluation.path} are not named columns"))
        higher = {metric.name: metric.higher_is_better for metric in metrics}
        by = choose(saved.run.info.best.name if saved.run and saved.run.info.best else "", higher)
        evaluation.importance = shuffled(name, datasets[name], columns, measure, *by, config.seed)
    if data_file is None and saved.run is not None:
        _compare(evaluation, saved.run, saved, model, warn)
    return evaluation


def load_file(
    model: TrainedModel, text: str, note: Note, content: bytes | None, found: Any = None
) -> Prepared:
    """What `read_rows` gives, prepared as what the model was trained on; DataError.

    found: what another rank of the host has found in the same rows.
    """
    return prepare(
        read_rows(text, model, note, content), dtype=model.config.dtype, origin=text,
        preprocessing=model.preprocessing, encoder=model.signature.table,
        target_scaling=model.target_scaling, found=found,
    )  # fmt: skip


def load_data_again(model: TrainedModel, found: Any = None) -> Prepared:
    """The data of a run, split and standardized as it did; DataError where they do not fit.

    found: what another rank of the host has found in the same rows.
    """
    maps = model.preprocessing, model.signature.table, model.target_scaling
    data = load_data(model.config, found, *maps)
    check_names(data, model.feature_names, model.classes, model.config.data.type)
    return data


def _compare(
    evaluation: Evaluation, run: Run, saved: Saved, model: TrainedModel, warn: Callable[[str], None]
) -> None:
    """Note in each part what the run recorded at this step, and warn of what differs."""
    step, recorded, steps = evaluation.step, run.info.params_sha256, run.info.steps
    if recorded and steps == step and recorded != params_sha256(saved.checkpoint.model):
        warn("the parameters are not those of which run.json has the sha256")
    try:
        history = run.history
    except DataError as error:
        warn(f"nothing to compare with: {error}")
        return
    # Sums in another order, at another number of ranks, round otherwise.
    tolerance = 1e-4 if saved.config.dtype == "float32" else 1e-9
    for name, part in evaluation.parts.items():
        row = history.at(name, step)
        part.recorded = {key: row[key] for key in part.values if key in row}
        if name == "train":  # the loss of the steps, with parameters that changed meanwhile
            part.recorded.pop("loss", None)
        for key, then in part.recorded.items():
            now = part.values[key]
            if not np.isclose(now, then, tolerance, tolerance * 1e-2, equal_nan=True):
                part.differs.append(key)
        if part.differs:
            values = ", ".join(
                f"{key} {number(part.values[key])} now, {number(part.recorded[key])} then"
                for key in part.differs
            )
            warn(f"{name} differs from what the run recorded at step {step:,}: {values}")
