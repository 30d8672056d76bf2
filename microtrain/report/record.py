"""A run with its settings, as plot, report and compare see it."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from ..config.resolved import Setting, read_settings
from ..runs.record import Run

__all__ = ["Record", "direction"]

_HIGHER = ("r2", "accuracy")
_LOWER = ("loss", "mse", "rmse", "mae")


class Record(Run):
    """A run, the settings it had, and which of its values are best."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """As `Run.read`; all of it is read and checked here. Raises DataError."""
        record = super().read(path)
        _ = record.rows, record.config
        return record

    @cached_property
    def config(self) -> dict[str, Setting]:
        """Its resolved configuration, by dotted key."""
        return read_settings(self.config_text, self.path / "config.yaml")

    @property
    def monitor(self) -> str:
        """The column whose best value counts."""
        if self.info.best is not None:
            return self.info.best.name
        column = self.config.get("checkpoint.monitor", Setting(None, "")).value
        return column or ("val/loss" if "val/loss" in self.columns else "train/loss")

    def best(self, column: str) -> tuple[float, int] | None:
        """The best value of a column and its step, the first of equals; None if none is better."""
        steps, values = self.curve(column)
        sign = self.direction(column)
        if sign == 0 or not np.isfinite(values).any():
            return None
        index = int((sign * np.where(np.isfinite(values), values, -sign * math.inf)).argmax())
        return float(values[index]), int(steps[index])

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
