"""Overrides of the command line: `optimizer.lr=3e-3` after the file, first `=` splits.

An override is YAML like the file: its value has the same types, its mistakes the same messages,
with the override as the source line. Relative paths in it start at the working directory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .document import Node, lines_of, parse
from .environment import substituted
from .problems import Place, Problem, Source, describe
from .schema import COMPONENTS, LISTS


def with_components(root: Node) -> Node:
    """The tree with every bare component name spelled out: `sgd` is `{type: sgd}`."""
    entries = dict(root.value)
    for name in COMPONENTS:
        if name in entries:
            entries[name] = _spelled_out(entries[name])
    for name in LISTS:
        if name in entries and isinstance(entries[name].value, list):
            items = [_spelled_out(node) for node in entries[name].value]
            entries[name] = replace(entries[name], value=items)
    return replace(root, value=entries)


def _spelled_out(node: Node) -> Node:
    if not isinstance(node.value, str):
        return node
    return replace(node, value={"type": Node(node.value, node.place, node.key or node.place)})


def override(root: Node, text: str, problems: list[Problem]) -> Node:
    """The tree after the override `text`, or as it was, with a problem, where that is wrong."""
    source = Source("command line", lines_of(text), Path.cwd(), is_file=False)
    path, equals, value_text = text.partition("=")
    keys = path.strip().split(".")
    whole = Place(source, 1, 1, len(text))
    if not equals or not all(key and key.isprintable() for key in keys):
        message = "an override is KEY=VALUE such as optimizer.lr=0.01"
        problems.append(Problem("", message, whole))
        return root
    path = path.strip()
    if keys[0] == "base":
        message = "base is a key of the file; give the file that has it"
        problems.append(Problem(path, message, Place(source, 1, 1, len(path))))
        return root
    value = parse(value_text, source, problems, path=path, column=len(text) - len(value_text))
    if value is None:
        return root
    value = substituted(value, problems, path)
    try:
        return with_components(_assign(root, keys, value, _key_places(source, keys)))
    except _NoSuchPlace as error:
        problems.append(Problem(path, str(error), Place(source, 1, 1, len(path))))
        return root


class _NoSuchPlace(Exception):
    """There is nothing that an override could change."""


def _key_places(source: Source, keys: list[str]) -> list[Place]:
    column = 1 + len(source.lines[0]) - len(source.lines[0].lstrip())
    places = []
    for key in keys:
        places.append(Place(source, 1, column, len(key)))
        column += len(key) + 1
    return places


def _assign(node: Node, keys: list[str], value: Node, places: list[Place], at: int = 0) -> Node:
    """A copy of `node` with the value at `keys[at:]`; an alias elsewhere keeps the old one."""
    if at == len(keys):
        return replace(value, key=places[-1])
    key, name = keys[at], ".".join(keys[:at])
    if isinstance(node.value, list):
        count = len(node.value)
        if not key.isdecimal() or int(key) >= count:
            there = f"the items 0 to {count - 1}" if count else "no items"
            raise _NoSuchPlace(f"{name} has {there}; give it whole: {name}='[...]'")
        items = list(node.value)
        items[int(key)] = _assign(items[int(key)], keys, value, places, at + 1)
        return replace(node, value=items)
    if not isinstance(node.value, dict):
        raise _NoSuchPlace(f"{name} is {describe(node.value)} without keys")
    child = node.value.get(key)
    if child is None or (child.value is None and at + 1 < len(keys)):
        child = Node([] if key in LISTS else {}, places[at], places[at])
    entries = {**node.value, key: _assign(child, keys, value, places, at + 1)}
    return replace(node, value=entries)
