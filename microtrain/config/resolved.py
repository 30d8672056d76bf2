"""The resolved configuration as YAML: every value that the run uses, with where it came from.

It is written into the run directory, and it is itself a configuration that `load_config` reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from .section import Section

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*", re.ASCII)
_WORDS = ("null", "true", "false")


def resolved_yaml(config: Section) -> str:
    """`config` as YAML, one value a line, its origin (file and line, default ...) as a comment."""
    rows = list(_rows(config, 0))
    width = min(max(len(text) for text, _ in rows), 60)
    lines = [f"{text:<{width}}  # {origin}" if origin else text for text, origin in rows]
    return "# Every value of this run; the comments say where each came from.\n" + "".join(
        f"{line}\n" for line in lines
    )


def _rows(section: Section, depth: int) -> Iterator[tuple[str, str]]:
    """Each line and the origin of its value."""
    for key, value in section.items():
        start = "  " * depth + f"{_scalar(key)}:"
        if isinstance(value, Section):
            yield start, ""
            yield from _rows(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Section):
            yield start, ""
            for item in value:
                for i, (row, origin) in enumerate(_rows(item, depth + 2)):
                    bullet = "  " * (depth + 1) + "- " + row.lstrip()
                    yield (row if i else bullet), origin
        else:
            yield f"{start} {as_yaml(value)}", section.origins.get(key, "")


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
