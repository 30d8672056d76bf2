"""Reads YAML into a tree whose every key and value knows its line and column.

PyYAML finds the structure; what scalars mean is decided here, because PyYAML follows YAML 1.1,
where `1e-3` is text, `on` is true, `010` is 8, `1:30` is 90 and the last of two equal keys silently
wins. Here: the YAML 1.2 core schema, text keys, each key once, one document, no tags (a tag can
name code), and bounds on size, depth and repetition.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ..common.files import open_plain
from ..common.words import quoted
from .tree import Node, Place, Problem, Source, describe, join

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000  # after aliases are followed: nested aliases multiply

_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what PyYAML counts as one


_BLANK = " \t"
_MARKS = ("&", "*", "!", "%", "|", ">")  # of anchors, aliases, tags, directives and blocks


class _Unreadable(yaml.MarkedYAMLError):
    """Reading cannot go on after this problem."""

    def __init__(self, message: str, mark: yaml.Mark) -> None:
        super().__init__(problem=message, problem_mark=mark)


def read_file(
    path: Path, name: str, problems: list[Problem], *, foreign: bool = False
) -> Node | None:
    """The tree of the file at `path`, or None; what is wrong with it is added to `problems`.

    `name` is how the user wrote the path, `foreign` whether a run has written it. The returned root
    is a mapping. Raises OSError for a file that cannot be read.
    """
    with open_plain(path) as file:
        content = file.read(MAX_BYTES + 1)
    source = Source(name, (), path.absolute().parent, foreign=foreign)
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        way_out = f"microtrain init csv {shlex.quote(name)}"
        problems.append(Problem("", "expected a YAML file, got a table", None, way_out))
        return None
    if len(content) > MAX_BYTES:
        problems.append(Problem("", f"the file is larger than {MAX_BYTES // 1024} KiB"))
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {content[error.start]:#04x} is not UTF-8 text; save the file as UTF-8"
        problems.append(Problem("", message, Place(source, line, 1)))
        return None
    root = parse(text, replace(source, lines=lines_of(text)), problems)
    if root is not None and not isinstance(root.value, dict):
        content_is = "an empty file" if root.value is None else describe(root.value)
        message = f"expected keys and values such as `name: linreg`, got {content_is}"
        problems.append(Problem("", message, root.place))
        return None
    return root


def parse(
    text: str, source: Source, problems: list[Problem], *, path: str = "", column: int = 0
) -> Node | None:
    """The tree of `text`, or None if it is not YAML; problems of single keys leave a tree.

    `path` and `column` are where `text` starts: the dotted path, the column on the first line.
    """
    reader = None
    try:
        reader = _Reader(text, source, problems, column)
        root = reader.get_single_node()
        return Node(None, Place(source, 1, 1, 0)) if root is None else reader.tree(root, path)
    except yaml.reader.ReaderError as error:
        *before, last = lines_of(text[: error.position])
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        line, at = len(before), len(last)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        message, line, at = _reason(error), mark.line, mark.column
    except (ValueError, OverflowError):  # PyYAML on "\UFFFFFFFF"
        message = "not valid YAML: an escape beyond Unicode"
        line, at = reader.line if reader else 0, 0
    place = Place(source, line + 1, at + 1 + (0 if line else column))
    problems.append(Problem(path, message, place))
    return None


def cut_by_yaml(text: str) -> str | None:
    """What YAML would drop or join in a text that is one value, in words; None: nothing.

    A file may have comments and several lines; what a shell has quoted is meant as it stands.
    """
    if _LINE_BREAK.search(text):
        return "a line break"
    at = 0
    try:
        for token in yaml.scan(text):
            start, end = token.start_mark.index, token.end_mark.index
            if text[at:start].strip(_BLANK):
                break  # a comment
            mark = text[start:end]
            if mark.startswith(_MARKS) or mark in ("---", "..."):
                return f"the mark {quoted(mark)}"
            at = max(at, end)
    except (yaml.YAMLError, ValueError, OverflowError):
        return None  # it is told of where it is read
    rest = text[at:].strip(_BLANK)
    return f"{quoted(rest)}, which it skips" if rest else None


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a YAML text as its parser counts them."""
    return tuple(_LINE_BREAK.split(text))


def scalar(text: str) -> Any:
    """The value of an unquoted scalar in the YAML 1.2 core schema.

    Raises ValueError for a number that Python could only hold as infinity or as zero.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _BASED.fullmatch(text) and len(text) <= 40:
        return int(text, 0)
    if not _FLOAT.fullmatch(text):
        return text
    if text.lstrip("+-").isdecimal() and len(text) <= 40:
        return int(text)
    value = float(text)
    if math.isinf(value) or (value == 0 and re.match(r"[-+]?[0.]*[1-9]", text)):
        raise ValueError(f"the number {quoted(text)[1:-1]} is beyond what a float can hold")
    return value


class _Reader(yaml.SafeLoader):
    """Turns a text into PyYAML's nodes, within the limits, and those into a tree of ours."""

    def __init__(self, text: str, source: Source, problems: list[Problem], column: int) -> None:
        super().__init__(text)
        self.source, self.problems, self.first_column = source, problems, column
        self.open_anchors: list[str | None] = []  # of the nodes that are being composed
        self.values = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> None:
        """No tag but what is written out."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, mark = event.anchor, event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.open_anchors:
                raise _Unreadable(f"*{anchor} is inside &{anchor}, so it would never end", mark)
            if anchor not in self.anchors:
                raise _Unreadable(f"*{anchor} has no &{anchor} before it", mark)
            return super().compose_node(parent, index)
        if len(self.open_anchors) > MAX_DEPTH:
            raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels", mark)
        self.open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self.open_anchors.pop()
        return node

    def tree(self, node: yaml.Node, path: str) -> Node:
        """The node at the dotted path, and all below it."""
        self.values += 1
        if self.values > MAX_NODES:
            why = "too long, or too much repetition by aliases"
            raise _Unreadable(f"more than {MAX_NODES} values: {why}", node.start_mark)
        place = self._place(node)
        if node.tag is not None:
            tag = quoted(node.tag)[1:-1]
            message = f"tags such as {tag} are not allowed; write plain values"
            self._problem(path, message, place)
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, path), place)
        if isinstance(node, yaml.SequenceNode):
            items = [self.tree(item, join(path, i)) for i, item in enumerate(node.value)]
            return Node(items, place)
        value: Any = node.value
        quoted_or_block = node.style  # type: ignore[attr-defined]
        if quoted_or_block and any("\ud800" <= c <= "\udfff" for c in value):
            self._problem(path, "half of a surrogate pair is not a character", place)
        try:
            return Node(value if quoted_or_block else scalar(value), place)
        except ValueError as error:
            self._problem(path, str(error), place)
            return Node(value, place)

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self.tree(key_node, path)
            name, place = key.value, key.place
            below = join(path, name if isinstance(name, str) else "?")
            value = self.tree(value_node, below)
            if not isinstance(name, str):
                message = f"a key is text, got {describe(name)}"
                scalar_key = isinstance(name, (bool, int, float))
                way_out = f'; write "{str(name).lower()}"' if scalar_key else ""
                self._problem(path, message + way_out, place)
            elif name == "<<" and not getattr(key_node, "style", ""):
                message = "YAML 1.2 has no merge key; write the keys out"
                self._problem(below, message, place)
            elif name in entries:
                first = entries[name].key
                line = f" on line {first.line}" if first is not None else ""
                self._problem(below, f"this key appears twice, first{line}", place)
            else:
                entries[name] = replace(value, key=place)
        return entries

    def _problem(self, path: str, message: str, place: Place) -> None:
        self.problems.append(Problem(path, message, place))

    def _place(self, node: yaml.Node) -> Place:
        """From start to end, as far as that is on one line."""
        start, end = node.start_mark, node.end_mark
        column = start.column + 1 + (self.first_column if start.line == 0 else 0)
        if start.line == end.line:
            width = end.column - start.column
        elif isinstance(node, yaml.ScalarNode):
            width = len(self.source.lines[start.line]) - column + 1
        else:
            width = 0
        return Place(self.source, start.line + 1, column, width)


def _reason(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's explanation, on one line, in plainer words for the commonest mistakes."""
    problem = error.problem or str(error)
    if isinstance(error, _Unreadable):
        return problem
    if problem == "but found another document":
        return "a second YAML document starts here; one file is one run"
    if r"'\t'" in problem:
        return "not valid YAML: a tab cannot indent; use spaces"
    if problem == "mapping values are not allowed here":
        return (
            'not valid YAML: an unexpected ":"; indent by the same number of spaces, or quote '
            "the text"
        )
    context = f" {error.context}" if error.context else ""
    return "not valid YAML: " + quoted(f"{problem}{context}".replace('"', "'"))[1:-1]
