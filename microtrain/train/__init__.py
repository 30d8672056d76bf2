"""Training from a YAML file: the configuration, the trainer, what a run writes."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Callback": "microtrain.train.callbacks.base",
    "Component": "microtrain.config.schema",
    "Config": "microtrain.config.schema",
    "Duration": "microtrain.config.texts",
    "EarlyStopping": "microtrain.train.callbacks.early_stopping",
    "MLflow": "microtrain.train.callbacks.trackers",
    "Metric": "microtrain.train.metrics.base",
    "Schedule": "microtrain.train.schedules",
    "TensorBoard": "microtrain.train.callbacks.trackers",
    "Trainer": "microtrain.train.trainer",
    "WandB": "microtrain.train.callbacks.trackers",
    "build": "microtrain.config.components",
    "every": "microtrain.train.callbacks.base",
    "load_config": "microtrain.config.load",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the trainer needs what a check does not."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
