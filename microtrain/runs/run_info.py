"""run.json, read back: checked as data, and never executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import read_object
from .typed import Count, Number, typed

__all__ = ["Best", "ClassCounts", "RunInfo", "read_info", "read_run_json"]


@dataclass(frozen=True)
class Best:
    """The best value of the monitored column."""

    name: str
    value: float | None
    step: int


@dataclass(frozen=True)
class Git:
    """The commit that a run was started from."""

    commit: str
    dirty: bool
    diff: str = ""


@dataclass(frozen=True)
class ClassCounts:
    """How often each class was predicted for each, by the model that a run is known by.

    Attributes:
        split: the part of the data that was counted.
        names: of the classes, in the order of their codes.
        support: rows of each class; the sums of their weights where they have such.
        confusion: a list for each true class: how often each class was predicted.
    """

    split: str
    names: list[str]
    support: list[Count | Number]
    confusion: list[list[Count | Number]]

    def __post_init__(self) -> None:
        count = len(self.names)
        if {len(self.support), len(self.confusion), *map(len, self.confusion)} != {count}:
            raise ValueError(f"expected counts of {count} classes")

    @cached_property
    def figures(self) -> list[tuple[float, float, float]]:
        """Precision, recall and f1 of each class; 0 where one is not defined."""
        counts = np.array(self.confusion, np.float64)
        right, predicted, there = counts.diagonal(), counts.sum(axis=0), np.array(self.support)
        parts = ((right, predicted), (right, there), (2 * right, predicted + there))
        each = [above / np.where(below > 0, below, 1.0) for above, below in parts]
        return [tuple(row) for row in np.transpose(each).tolist()]


@dataclass(frozen=True)
class RunInfo:
    """run.json; any key may be absent, since a run is read at any moment of its life."""

    id: str | None = None
    status: str = "unknown"
    exit_code: int | None = None
    name: str = ""
    started: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    git: Git | None = None
    command: list[str] = field(default_factory=list)
    parameters: int | None = None
    hosts: list[str] = field(default_factory=list)
    ranks: int = 1
    device: str | None = None
    compile: dict[str, Any] | None = None
    steps: int | None = None
    higher_is_better: dict[str, bool | None] = field(default_factory=lambda: {"loss": False})
    best: Best | None = None
    test: dict[str, float | None] | None = None
    classes: ClassCounts | None = None
    params_sha256: str | None = None
    data_hash: str | None = None
    error: str | None = None
    timings: dict[str, Number | None] = field(default_factory=dict)
    sweep: bool = False
    members: dict[str, int] = field(default_factory=dict)
    best_member: str | int | None = None
    halved: dict[str, list[Count]] = field(default_factory=dict)
    of_sweep: str | None = None
    rung: int | None = None
    has_checkpoints: bool = False
    resumed_at: list[Count] = field(default_factory=list)

    def seconds(self, timing: str) -> float | None:
        """A timing in seconds, None where the run has not noted it."""
        return self.timings.get(timing)


def read_run_json(path: Path) -> dict[str, Any]:
    """The object in a run.json, unchecked; DataError where there is none, OSError."""
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from error


def read_info(path: Path) -> RunInfo:
    """A run.json; DataError for what is not as it should be."""
    try:
        return typed(RunInfo, read_run_json(path))
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from None
