"""A configuration's tree while it is checked: finds values by dotted path, collects what is wrong.

A check asks for what is right so far, so that one mistake is one problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .document import Node
from .problems import Place, Problem
from .schema import SECTIONS


@dataclass
class Located:
    """The tree at `root`; `wrong` holds the dotted paths that have a problem already."""

    root: Node
    problems: list[Problem]
    wrong: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.wrong |= {problem.path for problem in self.problems if problem.path}

    def find(self, path: str) -> Node | None:
        """The node at a dotted path, where there is one."""
        node: Node | None = self.root
        for part in path.split("."):
            if node is None or not isinstance(node.value, (dict, list)):
                return None
            if isinstance(node.value, dict):
                node = node.value.get(part)
            else:
                known = part.isdecimal() and int(part) < len(node.value)
                node = node.value[int(part)] if known else None
        return node

    def right(self, path: str) -> Any:
        """The plain value at `path`, or None where it is absent or something in it is wrong."""
        node = self.find(path)
        if node is None or any(f"{wrong}.".startswith(f"{path}.") for wrong in self.wrong):
            return None
        return node.plain()

    def holds(self, path: str) -> Any:
        """The plain value of a key that is no component's: the default where it is absent."""
        if self.find(path) is not None:
            return self.right(path)
        section, _, key = path.rpartition(".")
        return SECTIONS[section].model_fields[key].default

    def refused_above(self, path: str) -> bool:
        """Whether the key at `path`, or one that it is below, already has a problem."""
        return any(path == wrong or path.startswith(f"{wrong}.") for wrong in self.wrong)

    def problem(
        self, path: str, message: str, place: Place | None = None, hint: str | None = None
    ) -> None:
        """Something wrong at `path`, shown at `place` or where the path stands."""
        if place is None and (node := self.find(path)) is not None:
            place = node.where
        self.wrong.add(path)
        self.problems.append(Problem(path, message, place, hint))
