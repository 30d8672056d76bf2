"""What can be written into a configuration, in words: keys of sections, arguments of components.

Keys and arguments come from signatures and docstrings, so nothing is said twice. `microtrain show`,
the JSON Schema and docs/configuration.md are three views of this.

By the JSON Schema editors complete and check the YAML. pydantic writes that of each value
(`values.json_schema_of`); here they are put together. It accepts what `microtrain check` accepts,
and refuses what shows without running anything; a file with `base:` may leave out what its base
has.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..data.tables.columns import Column
from . import components
from .registered import REGISTERED
from .resolved import as_yaml
from .schema import COMPONENTS, LISTS, OWN_KEYS, SECTIONS, Data
from .tree import join
from .values import in_words, is_plain, json_schema_of

NEEDED = "required"
FROM_DATA = "from the data"
COLUMN = "data.columns.NAME"  # the section of each column of a table


@dataclass(frozen=True)
class Key:
    """One key: where it stands, its JSON Schema, its default in YAML, and what it means."""

    path: str
    schema: dict[str, Any]
    default: str
    meaning: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def expects(self) -> str:
        """What its value must be, in words."""
        return in_words(self.schema)


@dataclass(frozen=True)
class Component:
    """What a registered name stands for."""

    kind: str
    name: str
    text: str
    arguments: tuple[Key, ...]

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, on one line."""
        return " ".join(self.text.partition("\n\n")[0].split())


# Defaults that only the run or the file knows, and those that are sections.
_OTHERWISE = {
    "": {"name": "the file's name", "metrics": "[]", "callbacks": "[]"}
    | dict.fromkeys(("checkpoint", "log", "distributed"), "its defaults"),
    "checkpoint": {"monitor": "val/loss or train/loss"},
    "data": {"split": "{train: 1.0}"},
    "sweep": {"grid": "{}", "random": "{}"},
}


def keys(section: str) -> list[Key]:
    """The keys of a section: "" for the file itself, "train", "data.split", COLUMN ..."""
    if section == COLUMN:
        return _keys(Column, components.settable(Column, ""), {}, COLUMN)
    target = Data if section == "data" else SECTIONS[section]
    parameters = components.settable(target, "")
    if section == "data":
        parameters = {key: parameters[key] for key in ("type", *OWN_KEYS["data"])}
    return _keys(target, parameters, _OTHERWISE.get(section, {}), section)


def _keys(
    target: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    otherwise: Mapping[str, str],
    section: str = "",
) -> list[Key]:
    """What can be given to `target`; `otherwise` are defaults in words."""
    meanings = argument_docs(target)
    listed = []
    for name, parameter in parameters.items():
        default = otherwise.get(name)
        if default is None:
            needed = parameter.default is parameter.empty
            default = NEEDED if needed else as_yaml(parameter.default)
        schema = json_schema_of(parameter.annotation)
        value = parameter.default
        if is_plain(value):
            schema["default"] = list(value) if isinstance(value, tuple) else value
        listed.append(Key(join(section, name), schema, default, meanings.get(name, "")))
    return listed


def every_key() -> dict[str, Key]:
    """All keys of all sections, by dotted path."""
    return {key.path: key for section in (*SECTIONS, "data", COLUMN) for key in keys(section)}


def registered(kind: str) -> list[Component]:
    """What is registered of a kind, in the order of the registry."""
    return [component(kind, name) for name in REGISTERED[kind]]


def component(kind: str, name: str) -> Component:
    """What a registered name stands for. Raises ConfigError for an unknown one."""
    target = components.load(kind, name)
    filled_in = components.FILLED_IN.get(kind, ())
    known = {key: "the run's seed" if key == "seed" else FROM_DATA for key in filled_in}
    arguments = _keys(target, components.settable(target, name), known)
    return Component(kind, name, inspect.getdoc(target) or "", tuple(arguments))


def argument_docs(target: Callable[..., Any]) -> dict[str, str]:
    """What the `Args:` of a docstring say of each argument, those of base classes included."""
    meanings: dict[str, str] = {}
    for owner in target.__mro__ if isinstance(target, type) else (target,):
        own = _args_section(inspect.cleandoc(owner.__doc__ or ""))
        # "as `Base`": the base says it.
        meanings |= {k: v for k, v in own.items() if k not in meanings and not v.startswith("as `")}
    return meanings


def _args_section(text: str) -> dict[str, str]:
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {name: " ".join(said.split()) for names, said in entries for name in names.split(", ")}


def json_schema() -> dict[str, Any]:
    """The schema of a whole file, in JSON's types."""
    file = _section("")
    properties = file["properties"]
    for section in SECTIONS:
        if section and "." not in section:
            properties[section] |= _section(section)
    properties["sweep"].pop("anyOf")
    properties["sweep"]["type"] = ["object", "null"]
    for kind in COMPONENTS:
        null = [{"type": "null"}] if "anyOf" in properties[kind] else []
        properties[kind] |= {"anyOf": [{"$ref": f"#/$defs/{kind}"}, *null]}
    for kind in LISTS:
        properties[kind] |= {"type": "array", "items": {"$ref": f"#/$defs/{kind}"}}
    top = [key for key in file.pop("required") if key != "name"]  # the file's name
    train = {"required": properties["train"].pop("required")}
    named = {"anyOf": [{"type": ["string", "null"]}, {"required": ["type"]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of microtrain",
        **file,
        "$defs": {kind: _component(kind) for kind in (*COMPONENTS, *LISTS)},
        "if": {"required": ["base"]},
        "else": {
            "required": top,
            "properties": {**dict.fromkeys(COMPONENTS, named), "train": train},
        },
    }


def _section(name: str) -> dict[str, Any]:
    return _object(keys(name))


def _object(keys: Collection[Key]) -> dict[str, Any]:
    """An object with these keys alone."""
    needed = [key.name for key in keys if key.default == NEEDED]
    return {
        "type": "object",
        "properties": {
            key.name: {**key.schema, "description": f"{key.meaning} Default: {key.default}."}
            for key in keys
        },
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def _component(kind: str) -> dict[str, Any]:
    """A bare name, an object with a registered name, or one with an import path."""
    properties = _section("data")["properties"] if kind == "data" else {}
    own = {key: properties[key] for key in OWN_KEYS.get(kind, ())}
    if own:
        own["split"] |= _section("data.split")
    bare, objects = [], []
    for part in registered(kind):
        shape = _object(part.arguments)
        needed = shape.get("required", [])
        if not needed:
            bare.append(part.name)
        if kind == "data" and "columns" in shape["properties"]:
            shape["properties"]["columns"]["anyOf"][0]["additionalProperties"] = _column()
        shape["properties"] = {"type": {"const": part.name}, **shape["properties"], **own}
        objects.append({**shape, "description": part.summary, "required": ["type", *needed]})
    path = {"type": "string", "pattern": ":"}
    objects.append({"properties": {"type": path, **own}, "required": ["type"]})
    if kind not in LISTS:  # over what the base has
        objects.append({"properties": own, "not": {"required": ["type"]}})
    names: list[dict[str, Any]] = [{"enum": bare}] if bare else []
    return {"anyOf": [*names, path, {"type": "object", "oneOf": objects}]}


def _column() -> dict[str, Any]:
    """What one column of a table holds: a type, or an object of a Column's keys."""
    shape = _section(COLUMN)
    return {"anyOf": [{"enum": shape["properties"]["type"]["enum"]}, shape]}
