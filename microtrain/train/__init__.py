"""Training from a YAML file: the configuration, the trainer, what a run writes."""

from __future__ import annotations

from typing import Any

_PUBLIC = {
    "Duration": "microtrain.train.duration",
    "Schedule": "microtrain.train.schedules",
    "Section": "microtrain.train.section",
    "Trainer": "microtrain.train.trainer",
    "build": "microtrain.train.components",
    "load_config": "microtrain.train.config",
}

__all__ = ["Duration", "Schedule", "Section", "Trainer", "build", "load_config"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the trainer needs what a check does not."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
