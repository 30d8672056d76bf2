"""Checks the tree of a configuration and turns it into a Section, or says all that is wrong.

Three checks, each blind to what another has already refused: the schema (pydantic knows what is
wrong, the tree knows where), the arguments of components against their signatures, and, in
`across_keys`, what does not go together. Rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from ..spelling import OTHER_KEYS, choice, closest, is_slip
from . import arguments, components, schema
from .across import Resolved, check_across_keys
from .document import Node
from .located import Located
from .problems import Problem, describe, quoted
from .section import Section


def validate(root: Node, problems: list[Problem], *, trust: bool | None = None) -> Section | None:
    """The configuration with every default filled in, or None with the reasons in `problems`.

    Import paths are followed with `trust`, and by default those of which no run is the source.
    """
    return _Validator(root, problems, trust).section()


TRAINER = "microtrain.train.trainer.Trainer"


class _Validator:
    def __init__(self, root: Node, problems: list[Problem], trust: bool | None) -> None:
        self.tree, self.trust = Located(root, problems), trust
        self.components: dict[str, Resolved] = {}
        self.meant: set[str] = set()  # what misspelt keys were meant to be: not missing, too
        self.keys: dict[str, list[str]] = {}  # every key that exists, to the paths it may have
        for section, model in schema.SECTIONS.items():
            self._know(section, model.model_fields)
        self._know("data", components.SECTION_KEYS["data"])

    def section(self) -> Section | None:
        self._refuse_not_yet()
        for path, kind, node in self._component_nodes():
            self._component(path, kind, node)
        self._trainer()
        config = self._schema()
        check_across_keys(self.tree, self.components, self.meant)
        if self.tree.problems:
            return None
        assert config is not None
        return self._section("", config, self.tree.root)

    # The schema

    def _refuse_not_yet(self) -> None:
        for path in schema.NOT_YET:
            node = self.tree.find(path)
            if node is not None and (reason := schema.refused(path, node.plain())):
                self.tree.problem(path, reason, node.where)

    def _schema(self) -> schema.Config | None:
        try:
            return schema.Config.model_validate(self.tree.root.plain())
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
        for unknown in (True, False):  # a misspelt key explains the missing one
            for detail in details:
                kind, loc = detail["type"], detail["loc"]
                if unknown and kind == "extra_forbidden":
                    *section, key = map(str, loc)
                    names = schema.SECTIONS[".".join(section)].model_fields
                    self._unknown_key(".".join(section), key, names)
                elif not unknown and kind == "missing":
                    self._missing_key(".".join(map(str, loc)))
                elif not unknown and kind != "extra_forbidden":
                    depth, expected = schema.expected(loc)
                    self._unexpected(".".join(map(str, loc[:depth])), expected)
        return None

    def _unexpected(self, path: str, expected: str) -> None:
        node = self.tree.find(path)
        if node is None or self.tree.refused_above(path):
            return
        message = f"expected {expected}, got {_found(node)}"
        if isinstance(node.value, str):
            message += choice(node.value, expected)
        self.tree.problem(path, message, node.where)

    def _missing_key(self, path: str) -> None:
        if path in self.meant or self.tree.refused_above(path):
            return
        section, _, key = path.rpartition(".")
        node = self.tree.find(section) if section else None
        known = components.REGISTERED.get(section.split(".")[0] if key == "type" else key, {})
        names = ", ".join(known)
        message = f"the key {key} is missing" + (f"; there are: {names}" if names else "")
        self.tree.problem(path, message, node.where if node else None)

    def _unknown_key(
        self, section: str, key: str, here: Collection[str], hint: str | None = None
    ) -> None:
        """A key that does not exist in this section: what it was meant to be, or where it goes."""
        parent = self.tree.find(section) if section else self.tree.root
        place = parent.value[key].key if parent else None
        near = closest(key, here)
        places = self.keys.get(key, [OTHER_KEYS[key]] if key in OTHER_KEYS else [])
        message = "unknown key"
        if near and (is_slip(key, near) or not places):
            self.meant.add(f"{section}.{near}" if section else near)
            message += f"; did you mean {near}?"
        else:
            if not places and (far := closest(key, self.keys)):
                places = self.keys[far]
            if places:
                self.meant.update(places)
                message += f" here; did you mean {' or '.join(places)}?"
        below = f"{section}." if section else ""
        hint = hint or f"{section or 'the file'} takes: {', '.join(here)}"
        self.tree.problem(below + key, message, place, hint)

    # Components

    def _component_nodes(self) -> list[tuple[str, str, Node]]:
        nodes = [(name, name, self.tree.find(name)) for name in schema.COMPONENTS]
        for kind in schema.LISTS:
            items = self.tree.find(kind)
            if items is not None and isinstance(items.value, list):
                nodes += [(f"{kind}.{i}", kind, node) for i, node in enumerate(items.value)]
        return [
            (path, kind, node)
            for path, kind, node in nodes
            if node is not None and path not in self.tree.wrong
        ]

    def _component(self, path: str, kind: str, node: Node) -> None:
        name = node.value.get("type") if isinstance(node.value, dict) else None
        if name is None or not isinstance(name.value, str) or not name.value:
            return  # the schema says what is wrong
        target = self._loaded(f"{path}.type", kind, name, node.value)
        if target is None:
            return
        imported = components.absolute(name.value, name.place.source.directory)
        resolved = self.components[path] = Resolved(kind, imported, target)
        own = ("type", *components.SECTION_KEYS.get(kind, ()))
        filled_in = components.FILLED_IN.get(kind, ())
        accepted = components.parameters(target)
        open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        settable = components.settable(target, imported)
        if kind not in schema.LISTS:
            self._know(path, settable)
        registered = not components.is_import_path(imported)
        find_hints = arguments.hints_of_registered if registered else arguments.hints_of
        hints = find_hints(target, settable)
        takes = f"{name.value} takes: {', '.join([*own[1:], *settable]) or 'no arguments'}"
        for key, value in node.value.items():
            if key in settable:
                resolved.given[key] = self._argument(
                    path,
                    key,
                    value,
                    hints.get(key, Any),
                    takes,
                    registered=registered,
                )
            elif key not in own and open_ended:
                resolved.given[key] = value.plain()
            elif key not in own:
                self._unknown_key(path, key, [*own[1:], *settable], takes)
        for key, parameter in settable.items():
            if key in node.value or key in filled_in or f"{path}.{key}" in self.meant:
                continue
            if parameter.default is parameter.empty:
                self.tree.problem(f"{path}.{key}", f"{name.value} needs {key}", name.where, takes)
            elif _is_plain(parameter.default):
                value = parameter.default
                resolved.defaults[key] = list(value) if isinstance(value, tuple) else value

    def _loaded(
        self, path: str, kind: str, name: Node, given: Collection[str] = ()
    ) -> Callable[..., Any] | None:
        """What the registered name or import path at `path` stands for; None with a problem."""
        if self.tree.refused_above(path):
            return None
        trust = not name.place.source.foreign if self.trust is None else self.trust
        if components.is_import_path(name.value) and not trust:
            message = "an import path runs code of that file; allow it with --trust"
            self.tree.problem(path, message, name.where, "look at the code before you trust it")
            return None
        imported = components.absolute(name.value, name.place.source.directory)
        try:
            return components.load(kind, imported, given)
        except ConfigError as error:
            self.tree.problem(path, str(error), name.where)
            return None

    def _trainer(self) -> None:
        """`trainer: ./my.py:MyTrainer`; a class that does not inherit from Trainer is refused."""
        node = self.tree.find("trainer")
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        target = self._loaded("trainer", "trainer", node)
        if target is None:
            return
        # Without importing the trainer: a class that inherits from it has done that.
        bases = [f"{base.__module__}.{base.__name__}" for base in getattr(target, "__mro__", ())]
        if TRAINER not in bases:
            message = f"is no class that inherits from {TRAINER}"
            self.tree.problem("trainer", f"{quoted(node.value)} {message}", node.where)

    def _argument(
        self, path: str, key: str, node: Node, hint: Any, takes: str, *, registered: bool
    ) -> Any:
        if self.tree.refused_above(f"{path}.{key}"):
            return None
        value = node.plain()
        try:
            conformed = arguments.conform(value, hint, node.place.source.directory)
            if registered and not arguments.in_range(key, value):
                raise arguments.Mismatch
        except arguments.Mismatch:
            words = arguments.range_phrase(key, hint) if registered else arguments.phrase(hint)
            message = f"expected {words}, got {_found(node)}"
            self.tree.problem(f"{path}.{key}", message, node.where, takes)
            return None
        return conformed

    # The result

    def _section(self, path: str, model: BaseModel, node: Node | None) -> Section:
        section = Section()
        for key in type(model).model_fields:
            below = f"{path}.{key}" if path else key
            if below == "base":
                continue  # it has been read
            value = getattr(model, key)
            child: Node | None = node.value.get(key) if node else None
            if child and below in self.components:
                value = self._component_section(below, value, child)
            elif child and key in schema.LISTS:
                value = [
                    self._component_section(f"{below}.{i}", item, child.value[i])
                    for i, item in enumerate(value)
                ]
            elif isinstance(value, BaseModel):
                value = self._section(below, value, child)
            elif below == "checkpoint.monitor" and value is None:
                value = "val/loss" if self.tree.right("data.split.val") else "train/loss"
            elif path == "data.split" and value is None:
                continue  # only the parts that there are
            elif child and below == "trainer" and value is not None:
                value = components.absolute(value, child.place.source.directory)
            elif child and below == "train.init_from" and value is not None:
                value = arguments.conform(value, Path, child.place.source.directory)
            section.fill(key, value, child.origin if child else "default")
        return section

    def _component_section(self, path: str, model: BaseModel, node: Node) -> Section:
        resolved = self.components[path]
        section = Section(kind=resolved.kind)
        section.fill("type", resolved.type, node.value["type"].origin)
        for key, value in resolved.given.items():
            section.fill(key, value, node.value[key].origin)
        for key, value in resolved.defaults.items():
            section.fill(key, value, "default")
        own = self._section(path, model, node)
        for key in components.SECTION_KEYS.get(resolved.kind, ()):
            section.fill(key, own[key], own.origins[key])
        return section

    # Where things are

    def _know(self, section: str, keys: Collection[str]) -> None:
        for key in keys:
            self.keys.setdefault(key, []).append(f"{section}.{key}" if section else key)


def _found(node: Node) -> str:
    made_from = f" from {node.environment} of the environment" if node.environment else ""
    return describe(node.plain()) + made_from


def _is_plain(value: object) -> bool:
    """Whether a default can stand in YAML and JSON."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
