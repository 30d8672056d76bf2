"""The JSON Schema of a configuration, by which editors complete and check the YAML.

pydantic writes that of each value (`values.json_schema_of`); here they are put together. It accepts
what `microtrain check` accepts and refuses what shows without running anything; a file with `base:`
may leave out what its base has.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from . import reference
from .schema import COMPONENTS, LISTS, OWN_KEYS, SECTIONS


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
    return _object(reference.keys(name))


def _object(keys: Collection[reference.Key]) -> dict[str, Any]:
    """An object with these keys alone."""
    needed = [key.name for key in keys if key.default == reference.NEEDED]
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
    for part in reference.registered(kind):
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
    shape = _section(reference.COLUMN)
    return {"anyOf": [{"enum": shape["properties"]["type"]["enum"]}, shape]}
