"""Measuring a trained run again: on its own data or on other, beside what the run recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.components import build
from ..data import Prepared, Preprocessing, prepare
from ..distributed.agreement import agreed, from_root, together
from ..errors import ConfigError, DataError
from ..runs.provenance import params_sha256
from ..runs.record import read_metrics
from ..train.evaluation import evaluate
from ..train.parts import build_loss, compare_data, data_hash
from ..words import listed, number
from .model import TrainedModel
from .saved import Saved, read_saved

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["Evaluation", "evaluate_run"]


@dataclass
class Part:
    """Loss and metrics of some rows, and what the run recorded of them at the same step."""

    rows: int
    values: dict[str, float]
    recorded: dict[str, float] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)


@dataclass
class Evaluation:
    """What `evaluate_run` found: by part of the data, or under the name of the file."""

    path: Path
    chosen: str
    parts: dict[str, Part] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For reading."""
        width = max(map(len, self.parts), default=0)
        lines = [f"{self.path}, {self.chosen}"]
        for name, part in self.parts.items():
            values = "  ".join(f"{key} {number(value)}" for key, value in part.values.items())
            note = "  as recorded" if part.recorded and not part.differs else ""
            lines.append(f"{name:<{width}}  {part.rows:>9,} rows  {values}{note}")
        return lines

    def to_json(self, step: int) -> dict[str, Any]:
        """For programs; values that are not finite are null."""
        return {
            "path": str(self.path),
            "step": step,
            "checkpoint": self.chosen,
            "parts": {
                name: {
                    "rows": part.rows,
                    "values": _finite(part.values),
                    "recorded": _finite(part.recorded),
                    "differs": part.differs,
                }
                for name, part in self.parts.items()
            },
        }


def evaluate_run(
    path: str,
    part: str | None = None,
    *,
    comm: Communicator,
    warn: Callable[[str], None],
    trust: bool = False,
    checkpoint: str | int = "best",
    data_file: str | None = None,
) -> tuple[Evaluation, int]:
    """Loss and metrics of a run's parts (or of one, or of a file's rows); and the step. Collective.

    The first rank reads run and checkpoint, every rank loads the data, as in training. Raises
    ConfigError for import paths without `trust` and a part that the run has not, DataError for what
    is missing, damaged, or does not fit the model any more.
    """
    saved: Saved = from_root(
        comm, lambda: _without_optimizer(read_saved(path, checkpoint, trust=trust, warn=warn))
    )
    model = together(comm, lambda: TrainedModel(saved))
    config = saved.config
    found = Evaluation(saved.run.path if saved.run else model.path, saved.chosen)
    if saved.fell_back:
        warn(f"{saved.fell_back}; this is the {saved.chosen}")
    if data_file is None:
        data = together(comm, lambda: load_data_again(saved, model))
        compare_data(config, data, comm)
        if data_hash(data) != saved.checkpoint.state.get("data_hash"):
            warn(
                f"the data have changed since the run {found.path}: its parts are cut from other "
                "rows now, and rows it was trained on may be among val and test"
            )
        parts = {"train": data.train, "val": data.val, "test": data.test}
        datasets = {name: rows for name, rows in parts.items() if rows is not None}
        if part is not None and part not in datasets:
            there = ", ".join(datasets)
            raise agreed(ConfigError(f"the run {found.path} has no {part} data; it has {there}"))
    else:
        from .inputs import read_dataset

        datasets = {data_file: from_root(comm, lambda: read_dataset(data_file, model, warn))}
        part = None
    loss, metrics = build_loss(config), [build(one) for one in config.metrics]
    shared = config.distributed
    in_shards = shared.reproducible == "world" and shared.shards % comm.size == 0
    shards = shared.shards if in_shards else None
    for name, rows in datasets.items():
        if part in (None, name):
            with np.errstate(all="ignore"):  # what is not finite is shown as it is
                values = evaluate(model.module, loss, metrics, rows, comm, None, shards)
            found.parts[name] = Part(len(rows), values)
    if data_file is None:
        _compare(found, saved, warn)
    return found, model.step


def load_data_again(saved: Saved, model: TrainedModel) -> Prepared:
    """The data of a run, split and standardised as it did; DataError where they do not fit."""
    config = saved.config
    origin = f"data ({config.data.type})"
    data = prepare(
        build(config.data, seed=config.seed),
        split=config.data.split.shares,
        dtype=np.dtype(config.dtype),
        seed=config.data.split.seed,
        origin=origin,
        preprocessing=Preprocessing.from_json(saved.checkpoint.state["preprocessing"]),
    )
    for what, now, then in (
        ("columns", data.train.feature_names, model.feature_names),
        ("classes", data.classes, model.classes),
    ):
        if now != then:
            raise DataError(
                f"{origin}: the {what} are not those that the model was trained on\n"
                f"now: {listed(now or ['none'])}\nthen: {listed(then or ['none'])}"
            )
    return data


def _without_optimizer(saved: Saved) -> Saved:
    return replace(saved, checkpoint=replace(saved.checkpoint, optimizer={}))


def _compare(found: Evaluation, saved: Saved, warn: Callable[[str], None]) -> None:
    """Note in each part what the run recorded at this step, and warn of what differs."""
    if saved.run is None:
        return
    step, info = saved.checkpoint.step, saved.run.info
    if info.steps == step and info.params_sha256 is not None:
        named = list(saved.checkpoint.model.items())
        if params_sha256(named) != info.params_sha256:
            warn("the parameters are not those of which run.json has the sha256")
    try:
        rows = read_metrics(saved.run.metrics_file)
    except DataError as error:
        warn(f"nothing to compare with: {error}")
        return
    # Sums in another order, at another number of ranks, round otherwise.
    tolerance = 1e-4 if saved.config.dtype == "float32" else 1e-9
    for name, part in found.parts.items():
        # A training row's loss is that of the steps, with parameters that changed meanwhile.
        keys = [key for key in part.values if (name, key) != ("train", "loss")]
        for row in rows:
            if row.get("split") == name and row.get("step") == step:
                there = {key: row[key] for key in keys if isinstance(row.get(key), (int, float))}
                part.recorded.update(there)
        part.differs = [
            key
            for key, then in part.recorded.items()
            if not _close(part.values[key], then, tolerance)
        ]
        if part.differs:
            told = ", ".join(
                f"{key} {number(part.values[key])} now, {number(part.recorded[key])} then"
                for key in part.differs
            )
            warn(f"{name} differs from what the run recorded at step {step:,}: {told}")


def _close(now: float, then: float, tolerance: float) -> bool:
    both_absent = math.isnan(now) and math.isnan(then)
    return both_absent or math.isclose(now, then, rel_tol=tolerance, abs_tol=tolerance * 1e-2)


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
