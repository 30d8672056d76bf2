"""The configuration that a run was given, read back from its config.yaml as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from .document import Node, lines_of, parse
from .problems import Source

__all__ = ["AS_SEED", "Setting", "read_settings"]

AS_SEED = "as seed"  # origin of the split's seed in a run of before it had one of its own


class Setting(NamedTuple):
    """A value of the configuration, and where it came from ("" where the file does not say)."""

    value: Any
    origin: str


def read_settings(text: str, path: Path) -> dict[str, Setting]:
    """The values of a resolved configuration by dotted key, with the comments behind them.

    Args:
        text: a config.yaml.
        path: where it is, for messages.

    Raises DataError for what is no YAML or no mapping.
    """
    problems: list[Any] = []
    lines = lines_of(text)
    root = parse(text, Source(str(path), lines, path.parent), problems)
    if root is None or problems or not isinstance(root.value, dict):
        why = problems[0].message if problems else "expected keys and values"
        raise DataError(f"damaged file: {path}: {why}")
    settings: dict[str, Setting] = {}

    def walk(node: Node, prefix: str) -> None:
        for key, below in node.value.items():
            if isinstance(below.value, dict) and below.value:
                walk(below, f"{prefix}{key}.")
            else:
                _, mark, origin = lines[below.place.line - 1].rpartition("  # ")
                settings[prefix + key] = Setting(below.plain(), origin if mark else "")

    walk(root, "")
    if "data.split.train" in settings and "seed" in settings:
        settings.setdefault("data.split.seed", Setting(settings["seed"].value, AS_SEED))
    return settings
