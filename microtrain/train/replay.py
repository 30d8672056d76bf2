"""Opening a finished run again: its configuration, data and trained model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import default_dtype
from ..data import Prepared, Preprocessing, prepare
from ..distributed.single import SingleCommunicator
from ..errors import ConfigError, DataError
from ..nn import Module
from ..random import manual_seed
from .checkpoint import Checkpoint, load_newest_checkpoint
from .components import build
from .config import load_config
from .evaluation import evaluate
from .output import Output
from .parts import build_model, data_hash
from .rows import number
from .run_directory import Run, open_run
from .section import Section

__all__ = ["evaluate_run", "load_run"]


def load_run(path: str, *, trust: bool) -> tuple[Run, Section, Checkpoint, Prepared, Module]:
    """A run's configuration, newest whole checkpoint, prepared data and model with its values.

    Raises ConfigError for import paths without `trust`, DataError for what is missing, damaged, or
    does not fit the model any more.
    """
    run = open_run(path)
    # Nothing is trained here, so no compiler need be there.
    config = load_config(run.path / "config.yaml", ["train.compile=off"], trust=trust)
    if not run.checkpoints:
        status = run.info.get("status", "unknown")
        raise DataError(f"the run {run.path} has no checkpoint; its status is {status}")
    checkpoint = load_newest_checkpoint(run.path / "checkpoints", Output().warn)
    data = prepare(
        build(config.data, seed=config.seed),
        split={part: f for part, f in config.data.split.items() if f},
        dtype=np.dtype(config.dtype),
        seed=config.seed,
        origin=f"data ({config.data.type})",
        preprocessing=Preprocessing.from_json(checkpoint.state["preprocessing"]),
    )
    manual_seed(config.seed)  # a model may hold random values that are no parameters
    with default_dtype(config.dtype):
        model = build_model(config, data).to(config.dtype)
    try:
        model.load_state_dict(checkpoint.model)
    except RuntimeError as error:
        raise DataError(f"{checkpoint.path} does not fit the model: {error}") from error
    if data_hash(data) != checkpoint.state.get("data_hash"):
        Output().warn(
            f"the data have changed since the run {run.path}: its parts are cut from other rows "
            "now, and rows it was trained on may be among val and test"
        )
    return run, config, checkpoint, data, model


def evaluate_run(path: str, part: str | None, *, trust: bool) -> list[str]:
    """Loss and metrics of a run's parts (or of one), as lines to print."""
    run, config, checkpoint, data, model = load_run(path, trust=trust)
    parts: dict[str, Any] = {"train": data.train, "val": data.val, "test": data.test}
    present = {name: rows for name, rows in parts.items() if rows is not None}
    if part is not None and part not in present:
        raise ConfigError(f"the run {run.path} has no {part} data; it has {', '.join(present)}")
    loss, metrics = build(config.loss), [build(one) for one in config.metrics]
    lines = [f"{run.path}, checkpoint of step {checkpoint.step:,}"]
    for name, rows in present.items():
        if part in (None, name):
            found = evaluate(model, loss, metrics, rows, SingleCommunicator())
            values = "  ".join(f"{key} {number(value)}" for key, value in found.items())
            lines.append(f"{name:<5}  {len(rows):>9,} rows  {values}")
    return lines
