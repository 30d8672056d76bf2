"""The JSON Schema of a configuration, by which editors complete and check the YAML.

pydantic writes that of the sections; here the components are put in: for each registered name an
object with its arguments. It accepts what `microtrain check` accepts and refuses what shows
without running anything; a file with `base:` may leave out what its base has.
"""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from . import arguments, components, reference, schema
from .duration import FORM, Duration

VARIABLE = {"type": "string", "pattern": r"\$\{env:"}  # any value may come from the environment


def json_schema() -> dict[str, Any]:
    """The schema of a whole file, in JSON's types."""
    found = schema.Config.model_json_schema()
    definitions = found["$defs"]
    for name in ("Component", "Data"):
        del definitions[name]
    for model in schema.SECTIONS.values():
        section = found if model is schema.Config else definitions[model.__name__]
        for key, value in section["properties"].items():
            shape = _or_variable(_without_titles(value))
            # pydantic leaves it out where the section's docstring is the same.
            shape["description"] = model.model_fields[key].description
            section["properties"][key] = shape
        section.pop("title", None)
    for kind in (*schema.COMPONENTS, *schema.LISTS):
        definitions[kind] = _component(kind)
    here = found["properties"]
    for kind in schema.COMPONENTS:
        options: dict[str, Any] = {"$ref": f"#/$defs/{kind}"}
        if not schema.Config.model_fields[kind].is_required():
            options = {"anyOf": [options, {"type": "null"}]}
        here[kind] = {"description": here[kind]["description"], **options}
    for kind in schema.LISTS:
        here[kind]["items"] = {"$ref": f"#/$defs/{kind}"}
    found |= _whole_without_a_base(found, definitions)
    title = "A run of microtrain"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **found}


def _whole_without_a_base(found: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Move what is required to where it is: a file that has no base."""
    top = [name for name in found.pop("required") if name != "name"]  # the file's name
    train = definitions["Train"].pop("required")
    named = {"anyOf": [{"type": ["string", "null"]}, {"required": ["type"]}]}
    properties: dict[str, Any] = dict.fromkeys(schema.COMPONENTS, named)
    properties["train"] = {"required": train}
    return {
        "if": {"required": ["base"]},
        "else": {"required": top, "properties": properties},
    }


def _component(kind: str) -> dict[str, Any]:
    """A bare name, an object with a registered name, or one with an import path."""
    own = {}
    for key in components.SECTION_KEYS.get(kind, ()):
        shape = schema.Data.model_json_schema()["properties"][key]
        own[key] = _or_variable(_without_titles(shape))
    bare, objects = [], []
    for part in reference.registered(kind):
        needed = [key.path for key in part.arguments if key.default == reference.NEEDED]
        if not needed:
            bare.append(part.name)
        properties = {
            key.path: {
                "description": f"{key.meaning} Expects {key.expects}; default: {key.default}.",
                **_or_variable(_of_hint(key.path, part.hints.get(key.path, Any))),
            }
            for key in part.arguments
        }
        objects.append(
            {
                "description": part.summary,
                "properties": {"type": {"const": part.name}, **properties, **own},
                "required": ["type", *needed],
                "additionalProperties": False,
            }
        )
    path = {"type": "string", "pattern": ":"}
    code = {"properties": {"type": path, **own}, "required": ["type"]}
    over_the_base = {"properties": own, "not": {"required": ["type"]}}
    anything = [code] if kind in schema.LISTS else [code, over_the_base]
    names: list[dict[str, Any]] = [{"enum": bare}] if bare else []
    return {
        "anyOf": [*names, path, {"type": "object", "oneOf": [*objects, *anything]}],
    }


_SIMPLE: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    Path: {"type": "string"},
    os.PathLike: {"type": "string"},
    Duration: {"type": "string", "pattern": rf"^\s*{FORM}\s*$"},
}


def _of_hint(name: str, hint: Any) -> dict[str, Any]:
    """The schema of an argument by its annotation; one that YAML cannot express takes anything."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE or origin in _SIMPLE:
        found = dict(_SIMPLE.get(hint) or _SIMPLE[origin])
        return found | (arguments.RANGES.get(name, ({},))[0] if hint in (int, float) else {})
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_hint(name, each) for each in inner]}
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        each = [_or_variable(_of_hint(name, one)) for one in inner]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
    if hint in (list, tuple, Sequence) or origin in (list, tuple, Sequence):
        return {"type": "array", "items": _or_variable(_of_hint(name, inner[0])) if inner else {}}
    return {"type": "object"} if hint is dict or origin in (dict, Mapping) else {}


def _or_variable(shape: dict[str, Any]) -> dict[str, Any]:
    """A value of this shape, or one from the environment."""
    free = shape.get("type") == "string" and not {"pattern", "enum"} & set(shape)
    if free or not shape or "$ref" in shape or shape.get("type") in ("array", "object"):
        return shape
    if "anyOf" in shape:
        return {**shape, "anyOf": [*shape["anyOf"], VARIABLE]}
    kept: dict[str, Any] = {key: shape[key] for key in ("description", "default") if key in shape}
    rest = {key: value for key, value in shape.items() if key not in kept}
    return {**kept, "anyOf": [rest, VARIABLE]}


def _without_titles(shape: dict[str, Any]) -> dict[str, Any]:
    shape = copy.deepcopy(shape)
    shape.pop("title", None)
    return shape
