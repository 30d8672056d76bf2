"""A configuration as a tree whose every key and value knows its place, and what is wrong in it.

A `Problem` knows the dotted path, the message and the place; `report` writes them under each
other with the source line and a caret. A message never spans lines, so that a log can be searched.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.words import plural, printable, quoted
from .schema import COMPONENTS, LISTS

MOST = 50  # problems that are shown


@dataclass(frozen=True)
class Source:
    """A text with configuration in it: the YAML file, or one override of the command line.

    Relative paths written in it start at `directory`. `foreign` is what a run has written: it may
    be someone else's.
    """

    name: str
    lines: tuple[str, ...]
    directory: Path
    is_file: bool = True
    foreign: bool = False


@dataclass(frozen=True)
class Place:
    """`width` characters of a source; line and column count from 1.

    Width 0: nothing there to underline (an empty value, a block over several lines).
    """

    source: Source
    line: int
    column: int
    width: int = 1

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}" if self.source.is_file else self.source.name


@dataclass(frozen=True)
class Problem:
    """One mistake: the dotted path of the key, what is wrong, where, and a way out for all."""

    path: str
    message: str
    place: Place | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Node:
    """A value of the tree: a scalar, a list of nodes, or a dict from text keys to nodes."""

    value: Any
    place: Place
    key: Place | None = None

    @property
    def where(self) -> Place:
        """What to underline: the value, or its key where the value is empty or many lines."""
        return self.key if self.key is not None and self.place.width == 0 else self.place

    def plain(self) -> Any:
        """The tree without its positions: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class Astray(ValueError):
    """A base or an override that leads nowhere; the text says why."""


def join(path: str, key: object) -> str:
    """The dotted path of what is called `key` at `path`."""
    return f"{path}.{key}" if path else str(key)


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


def assign(root: Node, path: str, value: Node) -> Node:
    """The tree with `value` at a dotted path; what is new in between is where its key is.

    Raises Astray, whose text says why, where the path leads nowhere.
    """
    return with_components(_assign(root, "", path.split("."), value))


def _assign(node: Node, path: str, keys: list[str], value: Node) -> Node:
    """A copy of `node`, which is at `path`, with the value at `keys` below it.

    It is a copy because an alias elsewhere keeps the old value.
    """
    if not keys:
        return value
    key, *below = keys
    if isinstance(node.value, list):
        count = len(node.value)
        if not key.isdecimal() or int(key) >= count:
            there = f"the items 0 to {count - 1}" if count else "no items"
            raise Astray(f"{path} has {there}; give it whole: {path}='[...]'")
        items = list(node.value)
        items[int(key)] = _assign(items[int(key)], f"{path}.{key}", below, value)
        return replace(node, value=items)
    if not isinstance(node.value, dict):
        raise Astray(f"{path} is {describe(node.value)} without keys")
    dotted = [n for n in range(len(keys), 1, -1) if ".".join(keys[:n]) in node.value]
    if dotted and key not in node.value:  # such as the name of a column
        key, below = ".".join(keys[: dotted[0]]), keys[dotted[0] :]
    child = node.value.get(key)
    if child is None or (child.value is None and below):
        place = value.key or value.place
        child = Node([] if key in LISTS else {}, place, place)
    return replace(node, value={**node.value, key: _assign(child, join(path, key), below, value)})


# What is wrong, in words


def report(problems: Sequence[Problem], file: str, hint: str) -> str:
    """The text of all problems of `file` in the order of its lines, with one hint at the end.

    Problems of its bases and of overrides follow.
    """
    ordered = sorted(problems, key=lambda problem: _position(problem, file))
    count, ordered = len(ordered), ordered[:MOST]
    locations = [_location(problem, file) for problem in ordered]
    width = max(map(len, locations)) + 2
    lines = [f"{plural(count, 'problem')} in {printable(file)}"]
    for problem, location in zip(ordered, locations, strict=True):
        lines.append(f"{location:<{width}}{printable(problem.path)}".rstrip())
        lines += _excerpt(problem)
    if count > MOST:
        lines.append(f"and {count - MOST:,} more")
    lines.append("hint: " + printable(next((p.hint for p in ordered if p.hint), hint)))
    return "\n".join(lines)


def _position(problem: Problem, file: str) -> tuple[bool, bool, str, int, int]:
    """The file first, then its bases, then overrides in their order."""
    place = problem.place
    if place is None:
        return (False, False, "", 0, 0)
    source = place.source
    return (not source.is_file, source.name != file, source.name, place.line, place.column)


def _location(problem: Problem, file: str) -> str:
    place = problem.place
    if place is None:
        return printable(file)
    return printable(str(place)) + f":{place.column}" * place.source.is_file


def _excerpt(problem: Problem) -> list[str]:
    """The source line and, below, the caret with the message."""
    place, message = problem.place, printable(problem.message)
    if place is None or place.line > len(place.source.lines):
        return [f"    {message}"]
    text = place.source.lines[place.line - 1]
    start = place.column - 1
    shown = max(1, min(place.width, len(text) - start, 60))
    cut = max(0, start - 60) if len(text) > 120 else 0  # a window of a very long line
    line = printable(text[cut : cut + 120], escape=False)
    if cut:
        line, cut = "..." + line, cut - 3
    before = line[: start - cut]
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in before)
    margin = f"  {place.line} | " if place.source.is_file else "  | "
    pointer = " " * (len(before) + wide) + "^" * shown
    return [margin + line, " " * (len(margin) - 2) + "| " + f"{pointer} {message}"]


def describe(value: object) -> str:
    """A YAML value in words, for `got ...`: the text "fast", 3, the list [0.9], nothing."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if not isinstance(value, (list, tuple)):
        return "keys and values"
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return f"the list {text}" if len(text) <= 40 else "a list"
