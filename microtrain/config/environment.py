"""Variables of the environment in a configuration: `${env:NAME}`, `${env:NAME:-default}`.

They stand in values, alone or within a text; the result is read as YAML reads an unquoted value,
so that `lr: ${env:LR}` is a number. A variable that is not set is a problem, never an empty text.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from ..spelling import did_you_mean
from .document import Node, scalar
from .problems import Problem, quoted

_REFERENCE = re.compile(r"\$\{\s*env\b[^}]*\}?|\$\{\w+\}", re.IGNORECASE)
_RIGHT = re.compile(r"\$\{env:([A-Za-z_]\w*)(?::-([^${}]*))?\}", re.ASCII)


def substituted(node: Node, problems: list[Problem], path: str = "") -> Node:
    """The tree with the variables of the environment in their places."""
    below = f"{path}." if path else ""
    if isinstance(node.value, dict):
        entries = {k: substituted(n, problems, below + k) for k, n in node.value.items()}
        return replace(node, value=entries)
    if isinstance(node.value, list):
        items = [substituted(n, problems, f"{below}{i}") for i, n in enumerate(node.value)]
        return replace(node, value=items)
    if not isinstance(node.value, str) or "${" not in node.value:
        return node
    names: list[str] = []
    try:
        text = _REFERENCE.sub(lambda match: _value(match[0], names), node.value)
        value = scalar(text) if names else text
    except ValueError as error:
        problems.append(Problem(path, str(error), node.where))
        return node
    return replace(node, value=value, environment=", ".join(names))


def _value(reference: str, names: list[str]) -> str:
    """What `${env:NAME}` stands for; ValueError where that is nothing."""
    match = _RIGHT.fullmatch(reference)
    if match is None:
        name = re.sub(r"^\$\{(env)?\W*|\W*\}$", "", reference, flags=re.IGNORECASE)
        example = name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "NAME"
        raise ValueError(
            f"{quoted(reference)[1:-1]} is no variable of the environment; did you mean "
            f"${{env:{example}}}?"
        )
    name, default = match[1], match[2]
    names.append(name)
    value = os.environ.get(name, "")
    if default is not None and not value:  # as a shell's `:-`
        return str(default)
    if name not in os.environ:
        near = did_you_mean(name, os.environ)
        way_out = near or f"; set it, or write ${{env:{name}:-default}}"
        raise ValueError(f"the environment has no variable {name}{way_out}")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"the variable {name} of the environment is not UTF-8 text")
    return value
