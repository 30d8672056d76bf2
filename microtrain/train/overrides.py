"""Overrides of the command line: `optimizer.lr=3e-3` after the file, first `=` splits.

An override is YAML like the file: its value has the same types, its mistakes the same messages,
with the override as the source line. Relative paths in it start at the working directory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from microtrain.train.problems import Place, Problem, Source, describe
from microtrain.train.schema import COMPONENTS, LISTS
from microtrain.train.yaml_source import Node, lines_of, parse


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
    if not equals or not all(key and key.isprintable() for key in keys):
        whole = Place(source, 1, 1, len(text))
        message = "an override is KEY=VALUE such as optimizer.lr=0.01"
        problems.append(Problem("", message, whole))
        return root
    path = path.strip()
    value = parse(value_text, source, problems, path=path, column=len(text) - len(value_text))
    if value is None:
        return root
    try:
        return with_components(_assign(root, keys, value, _key_places(source, keys)))
    except _NotAMapping as error:
        problems.append(Problem(path, str(error), Place(source, 1, 1, len(path))))
        return root


class _NotAMapping(Exception):
    pass


def _key_places(source: Source, keys: list[str]) -> list[Place]:
    column = 1 + len(source.lines[0]) - len(source.lines[0].lstrip())
    places = []
    for key in keys:
        places.append(Place(source, 1, column, len(key)))
        column += len(key) + 1
    return places


def _assign(node: Node, keys: list[str], value: Node, places: list[Place]) -> Node:
    """A copy of `node` with the value at `keys`; an alias elsewhere keeps the old one."""
    entries = dict(node.value)
    key, place = keys[0], places[0]
    if len(keys) == 1:
        entries[key] = replace(value, key=place)
        return replace(node, value=entries)
    child = entries.get(key, Node({}, place, place))
    if child.value is None:
        child = replace(child, value={})
    if not isinstance(child.value, dict):
        way_out = f"; give it whole: {key}='[...]'" if isinstance(child.value, list) else ""
        raise _NotAMapping(f"{key} is {describe(child.value)} without keys{way_out}")
    entries[key] = _assign(child, keys[1:], value, places[1:])
    return replace(node, value=entries)
