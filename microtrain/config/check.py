"""Checks the tree of a configuration and makes a `Config` of it, or says all that is wrong.

Keys of sections and arguments of components take one way: what a callable takes, by its signature,
against what the YAML gives. One mistake is one problem: a check is silent where another has spoken.
Rank 0 only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigError
from ..spelling import OTHER_KEYS, choice, closest, is_slip
from . import components
from .across import check_across_keys
from .document import Node
from .problems import Problem, describe, quoted
from .schema import (
    A_COMPONENT,
    COMPONENTS,
    LISTS,
    OWN_KEYS,
    SECTIONS,
    Component,
    Config,
    Data,
)
from .values import Mismatch, conform, expectation, hints_of, is_plain

TRAINER = "microtrain.train.trainer.Trainer"
T = TypeVar("T")


def checked(root: Node, problems: list[Problem], *, trust: bool | None = None) -> Config | None:
    """The configuration with every default filled in, or None with the reasons in `problems`.

    Import paths are followed with `trust`, and by default those of which no run is the source.
    """
    return _Checker(root, problems, trust).config()


@dataclass
class _Keys:
    """What can be written at one place, in a section or a component."""

    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    takes: str = ""  # all of it in words
    component: str = ""  # its name
    filled_in: Collection[str] = ()  # what the run knows where the YAML does not say it
    open_ended: bool = False
    finite: bool = True


class _Checker:
    def __init__(self, root: Node, problems: list[Problem], trust: bool | None) -> None:
        self.root, self.problems, self.trust = root, problems, trust
        self.wrong = {problem.path for problem in problems if problem.path}
        self.missing: list[Problem] = []
        self.meant: set[str] = set()  # what misspelt keys were meant to be: not missing, too
        self.origins: dict[str, str] = {}
        self.targets: dict[str, Callable[..., Any]] = {}  # of components, by dotted path
        self.known: dict[str, list[str]] = {}  # every key that exists, to the paths it may have
        for section, cls in SECTIONS.items():
            self._know(section, components.settable(cls, ""))
        self._know("data", OWN_KEYS["data"])

    def config(self) -> Config | None:
        for path in COMPONENTS:
            self._find_target(path, path)
        for kind in LISTS:
            node = self._find(kind)
            for i in range(len(node.value) if node and isinstance(node.value, list) else 0):
                self._find_target(f"{kind}.{i}", kind)
        config = self._section("", Config, self.root)
        config.origins.update(self.origins)
        self._trainer(config)
        for problem in self.missing:
            if problem.path not in self.meant and not self._refused(problem.path):
                self._add(problem)
        check_across_keys(config, self.targets, self._across, self.meant | self.wrong)
        if self.problems:
            return None
        if config.checkpoint.monitor is None:
            config.checkpoint.monitor = "val/loss" if config.data.split.val else "train/loss"
        return config

    # Problems

    def _find(self, path: str) -> Node | None:
        """The node at a dotted path, where there is one."""
        node: Node | None = self.root
        for part in path.split("."):
            value = node.value if node else None
            if isinstance(value, dict):
                node = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                node = value[int(part)]
            else:
                return None
        return node

    def _refused(self, path: str) -> bool:
        """Whether the key at `path`, or one that it is below, already has a problem."""
        return any(path == wrong or path.startswith(f"{wrong}.") for wrong in self.wrong)

    def _add(self, problem: Problem) -> None:
        self.wrong.add(problem.path)
        self.problems.append(problem)

    def _across(self, path: str, message: str) -> None:
        """A problem with the value at `path`, which is right alone."""
        node = self._find(path)
        self._add(Problem(path, message, node.where if node else None))

    def _unexpected(self, path: str, node: Node, words: str, hint: str | None = None) -> None:
        value = node.plain()
        message = f"expected {words}, got {describe(value)}"
        if isinstance(value, str):
            message += choice(value, words)
        self._add(Problem(path, message, node.where, hint))

    def _unknown(self, section: str, key: str, node: Node, keys: _Keys) -> None:
        """A key that does not exist in this section: what it was meant to be, or where it goes."""
        near = closest(key, keys.parameters)
        places = self.known.get(key, [OTHER_KEYS[key]] if key in OTHER_KEYS else [])
        message = "unknown key"
        if near and (is_slip(key, near) or not places):
            self.meant.add(_join(section, near))
            message += f"; did you mean {near}?"
        else:
            if not places and (far := closest(key, self.known)):
                places = self.known[far]
            if places:
                self.meant.update(places)
                message += f" here; did you mean {' or '.join(places)}?"
        self._add(Problem(_join(section, key), message, node.key, keys.takes))

    def _know(self, section: str, keys: Collection[str]) -> None:
        for key in keys:
            self.known.setdefault(key, []).append(_join(section, key))

    # Sections and components

    def _section(self, path: str, cls: Callable[..., T], node: Node) -> T:
        """The section at `path`; what is wrong or missing in it is None."""
        parameters = components.settable(cls, "")
        takes = f"{path or 'the file'} takes: {', '.join(parameters)}"
        keys = _Keys(parameters, hints_of(cls, parameters), takes)
        values = self._values(path, node.value, keys, node)
        for key, parameter in parameters.items():
            below = _join(path, key)
            if self._refused(below) or (key not in values and parameter.default is parameter.empty):
                values[key] = values.get(key) or _nothing(below)
        return cls(**values)

    def _values(
        self, path: str, entries: Mapping[str, Node], keys: _Keys, node: Node
    ) -> dict[str, Any]:
        """What `entries` give at `path`; None for what is wrong."""
        values = {}
        for key, value in entries.items():
            if key not in keys.parameters and not keys.open_ended:
                self._unknown(path, key, value, keys)
                continue
            values[key] = self._value(_join(path, key), key, value, keys)
            self.origins[_join(path, key)] = str(value.where)
        for key, parameter in keys.parameters.items():
            below = _join(path, key)
            if key in entries or key in keys.filled_in or parameter.default is not parameter.empty:
                continue
            if keys.component:
                message = f"{keys.component} needs {key}"
                problem = Problem(below, message, node.where, keys.takes)
            else:
                registry = below.partition(".")[0] if key == "type" else below
                there = ", ".join(components.REGISTERED.get(registry, ()))
                message = f"the key {key} is missing" + (f"; there are: {there}" if there else "")
                problem = Problem(below, message, node.where if path else None)
            self.missing.append(problem)
        return values

    def _value(self, path: str, key: str, node: Node, keys: _Keys) -> Any:
        if self._refused(path):
            return None
        hint = keys.hints.get(key, Any)
        if path in COMPONENTS and not (path == "schedule" and node.value is None):
            return self._component(path, path, node)
        if path in LISTS and isinstance(node.value, list):
            return [self._component(f"{path}.{i}", path, n) for i, n in enumerate(node.value)]
        if path in SECTIONS and isinstance(node.value, dict):
            return self._section(path, SECTIONS[path], node)
        try:
            if path in (*LISTS, *SECTIONS):
                raise Mismatch(expectation(hint))
            return conform(node.plain(), hint, node.place.source.directory, finite=keys.finite)
        except Mismatch as mismatch:
            self._unexpected(path, node, str(mismatch), keys.takes if keys.component else None)
            return None

    def _component(self, path: str, kind: str, node: Node) -> Component:
        cls = Data if kind == "data" else Component
        if not isinstance(node.value, dict):
            self._unexpected(path, node, A_COMPONENT)
            return cls(kind, "")
        own = ("type", *OWN_KEYS.get(kind, ()))
        signature = inspect.signature(cls).parameters
        keys = _Keys({key: signature[key] for key in own}, hints_of(cls, own), open_ended=True)
        target, name = self.targets.get(path), node
        if target is not None:  # else there is a problem already
            name = node.value["type"]
            imported = components.absolute(name.value, name.place.source.directory)
            settable = components.settable(target, imported)
            takes = ", ".join([*own[1:], *settable]) or "no arguments"
            keys = _Keys(
                {**settable, **keys.parameters},
                {**hints_of(target, settable), **keys.hints},
                f"{name.value} takes: {takes}",
                name.value,
                components.FILLED_IN.get(kind, ()),
                components.is_open_ended(target),
                finite=not components.is_import_path(imported),
            )
        values = self._values(path, node.value, keys, name)
        origins = {k: self.origins.pop(f"{path}.{k}") for k in values if k not in own[1:]}
        of_section = {key: values.pop(key, None) for key in own}
        right = {key: value for key, value in of_section.items() if value is not None}
        for key, parameter in keys.parameters.items():
            given_by_run = key in values or key in own or key in keys.filled_in
            if not given_by_run and is_plain(default := parameter.default):
                values[key] = list(default) if isinstance(default, tuple) else default
        right["type"] = "" if target is None else imported
        return cls(kind=kind, arguments=values, origins=origins, **right)

    def _find_target(self, path: str, kind: str) -> None:
        """Note what the component at `path` names, with a problem where that is nothing."""
        node = self._find(path)
        name = node.value.get("type") if node and isinstance(node.value, dict) else None
        if node and name and isinstance(name.value, str) and name.value and path not in self.wrong:
            target = self._loaded(f"{path}.type", kind, name, node.value)
            if target is not None:
                self.targets[path] = target
                if kind not in LISTS:
                    self._know(path, components.settable(target, name.value))

    def _loaded(
        self, path: str, kind: str, name: Node, arguments: Collection[str] = ()
    ) -> Callable[..., Any] | None:
        """What the registered name or import path at `path` stands for; None with a problem."""
        if self._refused(path):
            return None
        hint = None
        trust = not name.place.source.foreign if self.trust is None else self.trust
        if components.is_import_path(name.value) and not trust:
            message = "an import path runs code of that file; allow it with --trust"
            hint = "look at the code before you trust it"
        else:
            imported = components.absolute(name.value, name.place.source.directory)
            try:
                return components.load(kind, imported, arguments)
            except ConfigError as error:
                message = str(error)
        self._add(Problem(path, message, name.where, hint))
        return None

    def _trainer(self, config: Config) -> None:
        """`trainer: ./my.py:MyTrainer`; a class that does not inherit from Trainer is refused."""
        node = self._find("trainer")
        if node is None or not config.trainer:
            return
        target = self._loaded("trainer", "trainer", node)
        if target is None:
            return
        # Without importing the trainer: a class that inherits from it has done that.
        bases = [f"{base.__module__}.{base.__name__}" for base in getattr(target, "__mro__", ())]
        if TRAINER not in bases:
            message = f"{quoted(node.value)} is no class that inherits from {TRAINER}"
            self._add(Problem("trainer", message, node.where))
        config.trainer = components.absolute(node.value, node.place.source.directory)


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _nothing(path: str) -> Any:
    """What stands for a value that is wrong or missing, while others are checked."""
    if path in COMPONENTS:
        return (Data if path == "data" else Component)(path, "")
    section = SECTIONS.get(path)
    return section and section(**dict.fromkeys(components.settable(section, "")))
