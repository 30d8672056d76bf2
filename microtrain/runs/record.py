"""What a run left behind, as plot, report and compare read it: checked, and never executed.

A run directory may be someone else's, still being written, or damaged. Its files are read as data
alone: no import path is followed, no model is built, and what is not of the expected kind is one
DataError that names file and key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config.document import Node, read_file
from ..errors import DataError
from .checkpoint import peek_state
from .directory import RESERVED, open_run, read_metrics

Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # optimiser steps, values
__all__ = ["Info", "Record", "Setting", "direction"]

SPLITS = ("train", "val", "test")
_HIGHER = ("r2", "accuracy")
_LOWER = ("loss", "mse", "rmse", "mae")


class Setting(NamedTuple):
    """A value of the configuration, and where it came from ("" where the file does not say)."""

    value: Any
    origin: str


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow")


class Best(_Fields):
    """The best value of the monitored column."""

    name: str
    value: float | None
    step: int


class Git(_Fields):
    """The commit that a run was started from."""

    commit: str
    dirty: bool


class Info(_Fields):
    """run.json; all but the status may be absent, since a run is read at any moment of its life."""

    status: str
    exit_code: int | None = None
    name: str = ""
    started: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    git: Git | None = None
    hosts: list[str] = Field(default_factory=list)
    ranks: int = 1
    device: str | None = None
    compile: dict[str, Any] | None = None
    steps: int | None = None
    best: Best | None = None
    test: dict[str, float | None] | None = None
    params_sha256: str | None = None
    data_hash: str | None = None
    error: str | None = None
    timings: dict[str, Any] = Field(default_factory=dict)

    def seconds(self, timing: str) -> float | None:
        """A timing in seconds, None where the run has not noted it."""
        value = self.timings.get(timing)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Record:
    """A run as it was written down.

    Attributes:
        path: the run directory.
        info: its run.json.
        config: its resolved configuration, by dotted key.
        rows: its metrics.jsonl, in order; not finite numbers are nan.
        data_hash: of all rows that it was given, None where it left no checkpoint.

    Example:
        >>> record = Record.read("runs/linreg")
        >>> steps, values = record.curve("val/loss")
    """

    path: Path
    info: Info
    config: dict[str, Setting]
    rows: list[dict[str, Any]]
    data_hash: str | None

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Read the run at `path`: its directory, or `<runs>/<name>` for its newest run.

        Raises DataError naming what is missing or damaged.
        """
        run = open_run(path)
        try:
            info = Info.model_validate(run.info)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DataError(
                f"damaged file: {run.path / 'run.json'}: {key}: {first['msg']}"
            ) from None
        metrics = run.path / "metrics.jsonl"
        rows = read_metrics(metrics) if metrics.exists() else []
        for number, row in enumerate(rows, start=1):
            _check_row(row, f"{metrics}:{number}")
        return cls(
            run.path,
            info,
            _split_as_then(_settings(run.path / "config.yaml")),
            rows,
            info.data_hash or _data_hash(run.checkpoints),
        )

    @property
    def name(self) -> str:
        """The run's name, else its directory's."""
        return self.info.name or self.path.parent.name

    @property
    def label(self) -> str:
        """Name and time: `linreg/2026-11-21_13-35-07`."""
        return f"{self.name}/{self.path.name}"

    @property
    def monitor(self) -> str:
        """The column whose best value counts."""
        if self.info.best is not None:
            return self.info.best.name
        given = self.config.get("checkpoint.monitor", Setting(None, "")).value
        return given or ("val/loss" if "val/loss" in self.columns else "train/loss")

    @cached_property
    def columns(self) -> list[str]:
        """What was measured, `train/loss` first: split and field, in the order of the rows."""
        fields = list(
            dict.fromkeys(key for row in self.rows for key in row if key not in RESERVED[:4])
        )
        shown = [field for field in fields if field == "loss" or field not in RESERVED]
        found = {(row["split"], field) for row in self.rows for field in row}
        ordered = sorted(shown, key=lambda field: field != "loss")
        return [f"{split}/{f}" for f in ordered for split in SPLITS if (split, f) in found]

    @property
    def fields(self) -> list[str]:
        """The columns without their split: `loss`, then the metrics."""
        return list(dict.fromkeys(column.partition("/")[2] for column in self.columns))

    def curve(self, column: str) -> Series:
        """Steps and values of a column such as `val/loss`."""
        split, _, field = column.partition("/")
        pairs = [(r["step"], r[field]) for r in self.rows if r["split"] == split and field in r]
        table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def best(self, column: str) -> tuple[float, int] | None:
        """The best value of a column and its step, the first of equals; None if none is better."""
        steps, values = self.curve(column)
        better = self.direction(column)
        if better == 0 or not np.isfinite(values).any():
            return None
        values = np.where(np.isfinite(values), values, -better * math.inf)
        place = int((better * values).argmax())
        return float(values[place]), int(steps[place])

    def direction(self, column: str) -> int:
        """`direction` of the column; a metric of the user's own has one where it is monitored."""
        known = direction(column.partition("/")[2])
        if known == 0 and column == self.monitor:
            mode = self.config.get("checkpoint.mode", Setting("min", "")).value
            return 1 if mode == "max" else -1
        return known


def direction(field: str) -> int:
    """1 where a higher value of a field is better, -1 where a lower one is, 0 if nobody knows."""
    if field in _HIGHER or (field.startswith("top") and field[3:].isdigit()):
        return 1
    return -1 if field in _LOWER else 0


def _check_row(row: dict[str, Any], where: str) -> None:
    if row.get("split") not in SPLITS or type(row.get("step")) is not int:
        raise DataError(f"damaged file: {where}: a row has a split and a whole step")
    for key, value in row.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key != "split" and not ((number and abs(value) < 2**1023) or value != value):
            raise DataError(f"damaged file: {where}: {key}: expected a number")


def _settings(path: Path) -> dict[str, Setting]:
    """The leaves of config.yaml, with the comments behind them."""
    problems: list[Any] = []
    root = read_file(path, str(path), problems)
    if root is None or problems:
        raise DataError(f"damaged file: {path}: {problems[0].message}")
    found: dict[str, Setting] = {}

    def walk(node: Node, prefix: str) -> None:
        for key, below in node.value.items():
            if isinstance(below.value, dict) and below.value:
                walk(below, f"{prefix}{key}.")
                continue
            line = below.place.source.lines[below.place.line - 1]
            origin = line.rpartition("  # ")[2] if "  # " in line else ""
            found[prefix + key] = Setting(below.plain(), origin)

    walk(root, "")
    return found


def _split_as_then(config: dict[str, Setting]) -> dict[str, Setting]:
    """A run of before the split had a seed of its own drew it with `seed`."""
    if "data.split.train" in config and "seed" in config:
        config.setdefault("data.split.seed", Setting(config["seed"].value, "as seed"))
    return config


def _data_hash(checkpoints: list[Path]) -> str | None:
    """What the newest checkpoint says of the data; a damaged one says nothing."""
    for path in reversed(checkpoints):
        found = peek_state(path).get("data_hash")
        if isinstance(found, str):
            return found
    return None
