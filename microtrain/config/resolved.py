"""The resolved configuration as YAML: every value that the run uses, with where it came from.

It is written into the run directory, and it is itself a configuration that `load_config` reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from .schema import OWN_KEYS, Component, Config

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*", re.ASCII)
_WORDS = ("null", "true", "false")


def resolved_yaml(config: Config) -> str:
    """`config` as YAML, one value a line, its origin (file and line, default ...) as a comment."""
    rows = list(_rows("", config, config.origins))
    width = min(max(len(text) for text, _ in rows), 60)
    lines = [f"{text:<{width}}  # {origin}" if origin else text for text, origin in rows]
    return "# Every value of this run; the comments say where each came from.\n" + "".join(
        f"{line}\n" for line in lines
    )


def _rows(path: str, section: Any, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each line of a section and the origin of its value."""
    for key, value, origin in _entries(path, section, origins):
        below = f"{path}.{key}" if path else key
        start = f"{_scalar(key)}:"
        if is_dataclass(value):
            yield start, ""
            for row, source in _rows(below, value, origins):
                yield f"  {row}", source
        elif isinstance(value, list) and value and isinstance(value[0], Component):
            yield start, ""
            for item in value:
                for i, (row, source) in enumerate(_rows("", item, {})):
                    yield f"    {row}" if i else f"  - {row}", source
        else:
            yield f"{start} {as_yaml(value)}", origin


def _entries(path: str, section: Any, origins: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """Key, value and origin of all that stands in a section or component."""
    own = [*vars(section)]
    if isinstance(section, Component):
        for key, value in {"type": section.type, **section.arguments}.items():
            yield key, value, section.origins.get(key, "default")
        own = [*OWN_KEYS.get(section.kind, ())]
    for key in own:
        value = vars(section)[key]
        absent = path == "data.split" and value is None  # only the parts that there are
        if not absent and key not in ("base", "origins"):  # the base has been read
            yield key, value, origins.get(f"{path}.{key}" if path else key, "default")


def as_yaml(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {as_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    return "".join(  # escapes that YAML shares with Python
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in json.dumps(value, ensure_ascii=False)
    )
