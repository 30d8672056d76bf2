"""Checks a value of the YAML against an annotation, and says in words what was expected.

pydantic checks the value, and writes the JSON Schema that editors get; the words are read off that.
A section's keys and a component's arguments take this one way. Only rank 0 imports this module.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    ConfigDict,
    PydanticSchemaGenerationError,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from .components import once
from .schema import SECTIONS, Expects
from .texts import Duration


class Mismatch(Exception):
    """A value that does not fit; the text says what was expected."""


def _absolute(path: str, info: ValidationInfo) -> str:
    directory: Path = info.context  # type: ignore[assignment] # `conform` gives it
    return os.path.normpath(directory / os.path.expanduser(path))


_PATH = Annotated[str, Expects("the path of a file", r"^[^\x00]+$"), AfterValidator(_absolute)]
_SCALARS = (int, float, bool, str, Duration, None, type(None))


def conform(value: Any, hint: Any, directory: Path, *, finite: bool = True) -> Any:
    """`value` as the annotation `hint` wants it, or Mismatch with what was expected.

    Changes a value in four cases: a whole number where a float is wanted, a list where a tuple is,
    a text where a Duration is, and a relative path, which is made absolute from `directory`.
    Annotations that YAML cannot express take anything. Unless `finite`, infinity is a number, too.
    """
    try:
        result = _adapter(hint, finite).validate_python(value, context=directory)
    except ValidationError:
        result = Mismatch
    not_a_number = isinstance(value, float) and math.isnan(value) and _of_yaml(hint) is not Any
    if result is Mismatch or not_a_number or (isinstance(value, bool) and result is not value):
        words = expectation(hint)
        wants_finite = words == "a number" and finite and isinstance(value, float)
        raise Mismatch("a finite number" if wants_finite else words)
    return result


def expectation(hint: Any) -> str:
    """An annotation in words, as after `expected`."""
    return in_words(json_schema_of(hint))


def json_schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of what `conform` takes; an annotation that YAML cannot express has none."""
    return _adapter(hint, True).json_schema()


@once
def _adapter(hint: Any, finite: bool) -> TypeAdapter[Any]:
    config = ConfigDict(strict=True, allow_inf_nan=not finite)
    try:
        return TypeAdapter(_of_yaml(hint), config=config)
    except (PydanticSchemaGenerationError, TypeError):  # limits that do not fit their type
        return TypeAdapter(Any)


def _of_yaml(hint: Any) -> Any:
    """The annotation with Any where YAML cannot express it, for pydantic."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _PATH if Path in inner[1:] else Annotated[(_of_yaml(inner[0]), *inner[1:])]
    if origin is Literal or hint in _SCALARS:
        return hint
    if hint in (Path, os.PathLike) or origin is os.PathLike:
        return _PATH
    if origin in (Union, types.UnionType):
        members = [_of_yaml(each) for each in inner]
        # `Path | str` says that the text names a file.
        members = [m for m in members if m is not str or _PATH not in members]
        return functools.reduce(operator.or_, members)
    if origin is tuple or hint is tuple:
        items = inner or (Any, ...)
        items = tuple(each if each is Ellipsis else _of_yaml(each) for each in items)
        return Annotated[tuple[items], Strict(False)]  # type: ignore[valid-type]
    if hint in (list, Sequence) or origin in (list, Sequence):
        return list[_of_yaml(inner[0])] if inner else list  # type: ignore[misc]
    mapping = (dict, Mapping, *SECTIONS.values())
    return dict if hint in mapping or origin in (dict, Mapping) else Any


_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "object": "keys and values",
}
_BOUNDS = {
    ("minimum", "maximum"): "from {:g} to {:g}",
    ("minimum", "exclusiveMaximum"): "of at least {:g} and below {:g}",
    ("minimum",): "of at least {:g}",
    ("exclusiveMinimum",): "greater than {:g}",
    ("maximum",): "of at most {:g}",
    ("exclusiveMaximum",): "below {:g}",
}


def in_words(schema: Mapping[str, Any]) -> str:
    """A JSON Schema in words: `a number greater than 0, or null`."""
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        # A list last: what follows it would be said of its items.
        return ", or ".join(sorted(map(in_words, schema["anyOf"]), key=lambda t: "each item" in t))
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        *others, last = map(str, choices)
        return f"{', '.join(others)} or {last}" if others else last
    if "prefixItems" in schema:
        items = {in_words(item) for item in schema["prefixItems"]}
        each = f", each {items.pop()}" if len(items) == 1 else ""
        return f"a list of {len(schema['prefixItems'])} values{each}"
    if schema.get("type") == "array":
        return "a list" + (f", each item {in_words(schema['items'])}" * bool(schema["items"]))
    words = _WORDS.get(schema.get("type", ""), "any value")
    for names, text in _BOUNDS.items():
        if all(name in schema for name in names):
            return f"{words} {text.format(*(schema[name] for name in names))}"
    return words


def is_plain(value: object) -> bool:
    """Whether a default can stand in YAML and JSON."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
