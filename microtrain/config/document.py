"""Reads YAML into a tree whose every key and value knows its line and column.

PyYAML splits the text into events with positions; what they mean is decided here, because PyYAML
follows YAML 1.1, where `1e-3` is text, `on` is true, `010` is 8, `1:30` is 90 and the last of two
equal keys silently wins. Here: the YAML 1.2 core schema, text keys, each key once, one document,
no tags (a tag can name code), and bounds on size, depth and repetition.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import open_plain
from .problems import Place, Problem, Source, describe, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_NODES = 20_000  # after aliases are followed: nested aliases multiply

_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what PyYAML counts as one


@dataclass(frozen=True)
class Node:
    """A value of the tree: a scalar, a list of nodes, or a dict from text keys to nodes.

    `environment` names the variables of the environment that the value was made from.
    """

    value: Any
    place: Place
    key: Place | None = None
    environment: str = ""

    @property
    def where(self) -> Place:
        """What to underline: the value, or its key where the value is empty or many lines."""
        return self.key if self.key is not None and self.place.width == 0 else self.place

    @property
    def origin(self) -> str:
        """Where the value came from, in words."""
        made_from = f", environment {self.environment}" if self.environment else ""
        return f"{self.where}{made_from}"

    def plain(self) -> Any:
        """The tree without its positions: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class _Unreadable(Exception):
    """Reading cannot go on after this problem."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        self.problem = Problem("", message, place)


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
        found = "an empty file" if root.value is None else describe(root.value)
        message = f"expected keys and values such as `name: linreg`, got {found}"
        problems.append(Problem("", message, root.place))
        return None
    return root


def parse(
    text: str, source: Source, problems: list[Problem], *, path: str = "", column: int = 0
) -> Node | None:
    """The tree of `text`, or None if it is no YAML; problems of single keys leave a tree.

    `path` and `column` are where `text` starts: the dotted path, the column on the first line.
    """
    composer = _Composer(source, problems, column)
    try:
        return composer.document(text, path)
    except _Unreadable as error:
        problems.append(replace(error.problem, path=error.problem.path or path))
        return None


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
    if match := _INFINITY.fullmatch(text):
        return -math.inf if match[1] == "-" else math.inf
    if not _FLOAT.fullmatch(text):
        return text
    if _INT.fullmatch(text) and len(text) <= 40:
        return int(text)
    value = float(text)
    if math.isinf(value) or (value == 0 and re.match(r"[-+]?[0.]*[1-9]", text)):
        raise ValueError(f"the number {quoted(text)[1:-1]} is beyond what a float can hold")
    return value


class _Composer:
    """Builds nodes from PyYAML's events, following aliases and keeping to the limits."""

    def __init__(self, source: Source, problems: list[Problem], column: int) -> None:
        self.source, self.problems, self.first_column = source, problems, column
        self.anchors: dict[str, tuple[Node, int]] = {}  # with the number of nodes below
        self.open_anchors: set[str] = set()
        self.nodes = self.aliases = 0

    def document(self, text: str, path: str) -> Node:
        import yaml

        events = self._events(text)
        root = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    message = "a second YAML document starts here; one file is one run"
                    raise _Unreadable(message, self._place(event))
                root = self._node(next(events), events, path, 0)
        return root or Node(None, Place(self.source, 1, 1, 0))

    def _events(self, text: str) -> Iterator[yaml.Event]:
        """PyYAML's events; its errors as problems with a place."""
        import yaml

        last = Place(self.source, 1, 1)
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                last = self._place(event)
                yield event
        except yaml.reader.ReaderError as error:
            lines = _LINE_BREAK.split(text[: error.position])
            place = Place(self.source, len(lines), self._column(len(lines), len(lines[-1])))
            character = f"U+{ord(text[error.position]):04X}"
            message = f"the character {character} cannot stand in YAML"
            raise _Unreadable(message, place) from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = self._at(mark.line, mark.column, 1) if mark else last
            raise _Unreadable(f"not valid YAML: {_reason(error)}", place) from error
        except (ValueError, OverflowError) as error:  # PyYAML on "\UFFFFFFFF"
            raise _Unreadable("not valid YAML: an escape beyond Unicode", last) from error

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> Node:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels", self._place(event))
        if self.nodes > MAX_NODES:
            raise _Unreadable(f"more than {MAX_NODES} values", self._place(event))
        assert isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent))
        anchor, before = event.anchor, self.nodes - 1
        if anchor:
            self.open_anchors.add(anchor)
        if event.tag is not None:
            message = f"tags such as {quoted(event.tag)[1:-1]} are not allowed; write plain values"
            self._problem(path, message, self._place(event))
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._node(item, events, _join(path, len(items)), depth + 1))
            node = Node(items, self._place(event, item))
        else:
            node = self._mapping(event, events, path, depth)
        if anchor:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = node, self.nodes - before
        return node

    def _mapping(
        self, start: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int
    ) -> Node:
        import yaml

        entries: dict[str, Node] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, path, depth + 1)
            name, place = key.value, key.place if key.place.width else self._place(event)
            below = _join(path, name if isinstance(name, str) else "?")
            value = self._node(next(events), events, below, depth + 1)
            if not isinstance(name, str):
                message = f"a key is text, got {describe(name)}"
                scalar_key = isinstance(name, (bool, int, float))
                way_out = f'; write "{str(name).lower()}"' if scalar_key else ""
                self._problem(path, message + way_out, place)
            elif name == "<<":
                message = "YAML 1.2 has no merge key; write the keys out"
                self._problem(below, message, place)
            elif name in entries:
                first = entries[name].key
                line = f" on line {first.line}" if first is not None else ""
                self._problem(below, f"this key stands twice, first{line}", place)
            else:
                entries[name] = replace(value, key=place)
        return Node(entries, self._place(start, event))

    def _scalar(self, event: yaml.ScalarEvent, path: str) -> Node:
        place = self._place(event)
        value: Any = event.value
        if event.style:  # quoted, or a block of text
            if any("\ud800" <= c <= "\udfff" for c in value):
                self._problem(path, "half of a surrogate pair is not a character", place)
            return Node(value, place)
        try:
            return Node(scalar(value), place)
        except ValueError as error:
            self._problem(path, str(error), place)
            return Node(value, place)

    def _alias(self, event: yaml.AliasEvent) -> Node:
        self.aliases += 1
        name = event.anchor
        if name in self.open_anchors:
            raise _Unreadable(f"*{name} stands inside &{name}: no end", self._place(event))
        if name not in self.anchors:
            raise _Unreadable(f"*{name} has no &{name} before it", self._place(event))
        node, size = self.anchors[name]
        self.nodes += size
        if self.aliases > MAX_ALIASES or self.nodes > MAX_NODES:
            raise _Unreadable("too much repetition by aliases", self._place(event))
        return node

    def _problem(self, path: str, message: str, place: Place) -> None:
        self.problems.append(Problem(path, message, place))

    def _place(self, start: yaml.Event, end: yaml.Event | None = None) -> Place:
        """From one event to the end of the other, as far as that is on the same line."""
        first, last = start.start_mark, (end or start).end_mark
        assert first is not None and last is not None
        place = self._at(first.line, first.column, 0)
        if first.line == last.line:
            return replace(place, width=last.column - first.column)
        if end is not None:
            return place
        return replace(place, width=len(self.source.lines[first.line]) - place.column + 1)

    def _at(self, line: int, column: int, width: int) -> Place:
        return Place(self.source, line + 1, self._column(line + 1, column), width)

    def _column(self, line: int, column: int) -> int:
        return column + 1 + (self.first_column if line == 1 else 0)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _reason(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's explanation, on one line, in plainer words for the commonest mistakes."""
    problem = error.problem or str(error)
    if r"'\t'" in problem:
        return "a tab cannot indent; use spaces"
    if problem == "mapping values are not allowed here":
        return 'an unexpected ":"; indent by the same number of spaces, or quote the text'
    line = error.problem_mark.get_snippet() if error.problem_mark else ""
    if problem.endswith("but got '{'") and "${" in (line or ""):
        return 'a value with ${...} inside braces or brackets stands in quotes: "${env:NAME}"'
    context = f" {error.context}" if error.context else ""
    return quoted(f"{problem}{context}".replace('"', "'"))[1:-1]
