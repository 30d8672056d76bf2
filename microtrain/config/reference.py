"""What can be written into a configuration, in words: keys of sections, arguments of components.

Keys come from the schema, arguments from signatures and docstrings, so nothing is said twice.
`microtrain show`, the JSON Schema and docs/configuration.md are three views of this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from . import arguments, components, schema
from .resolved import as_yaml

NEEDED = "needed"
FROM_DATA = "from the data"


@dataclass(frozen=True)
class Key:
    """One key: where it stands, what it expects, its default in YAML, and what it means."""

    path: str
    expects: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Component:
    """What a registered name stands for; `hints` are the arguments' types."""

    kind: str
    name: str
    text: str
    arguments: tuple[Key, ...]
    hints: dict[str, Any]

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, on one line."""
        return " ".join(self.text.partition("\n\n")[0].split())


# Defaults that only the run or the file knows.
_OTHERWISE = {"name": "the file's name", "checkpoint.monitor": "val/loss or train/loss"}
_EXPECTS = {"base": "the path of a YAML file", "trainer": "an import path: ./file.py:Name"}


def keys(section: str) -> list[Key]:
    """The keys of a section: "" for the file itself, "train", "data.split" ..."""
    model = schema.Data if section == "data" else schema.SECTIONS[section]
    return [
        _key(f"{section}.{name}" if section else name, field)
        for name, field in model.model_fields.items()
    ]


def every_key() -> dict[str, Key]:
    """All keys of all sections, by dotted path."""
    return {key.path: key for section in (*schema.SECTIONS, "data") for key in keys(section)}


def _key(path: str, field: Any) -> Key:
    default = NEEDED
    if not field.is_required():
        value = field.default
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True) or None
        default = as_yaml(value) if value is not None else "null"
        if isinstance(field.default, BaseModel) and value is None:
            default = "its defaults"
    default = _OTHERWISE.get(path, default)
    expects = _EXPECTS.get(path, schema.expectation(field))
    return Key(path, expects, default, field.description or "")


def registered(kind: str) -> list[Component]:
    """What is registered of a kind, in the order of the registry."""
    return [component(kind, name) for name in components.REGISTERED[kind]]


def component(kind: str, name: str) -> Component:
    """What a registered name stands for. Raises ConfigError for an unknown one."""
    target = components.load(kind, name)
    settable = components.settable(target, name)
    own = components.is_import_path(name)
    hints = (arguments.hints_of if own else arguments.hints_of_registered)(target, settable)
    meanings = argument_docs(target)
    found = []
    for key, parameter in settable.items():
        if key in components.FILLED_IN.get(kind, ()):
            default = "the run's seed" if key == "seed" else FROM_DATA
        elif parameter.default is parameter.empty:
            default = NEEDED
        else:
            default = as_yaml(parameter.default)
        expects = arguments.range_phrase(key, hints.get(key, Any))
        found.append(Key(key, expects, default, meanings.get(key, "")))
    text = inspect.getdoc(target) or ""
    return Component(kind, name, text, tuple(found), hints)


def argument_docs(target: Callable[..., Any]) -> dict[str, str]:
    """What the `Args:` of a docstring say of each argument, those of base classes included."""
    found: dict[str, str] = {}
    for owner in target.__mro__ if isinstance(target, type) else (target,):
        own = _args_section(inspect.cleandoc(owner.__doc__ or ""))
        # "as `Base`": the base says it.
        found |= {k: v for k, v in own.items() if k not in found and not v.startswith("as `")}
    return found


def _args_section(text: str) -> dict[str, str]:
    _, _, after = text.partition("Args:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in after.splitlines():
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith("     ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found
