"""Checks the tree of a configuration and makes a `Config` of it, or says all that is wrong.

Keys of sections and arguments of components take one way: what a callable takes, by its signature,
against what the YAML gives. One mistake is one problem: a check is silent where another has spoken,
and what shows across keys is checked where these are right. Rank 0 only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..common.spelling import OTHER_KEYS, choice, closest, is_slip
from ..common.words import quoted
from ..errors import ConfigError
from . import components, schema
from .across import contradictions
from .registered import PARTS, REGISTERED
from .schema import COMPONENTS, LISTS, OWN_KEYS, SECTIONS, Component, Config, Section, Wrong
from .tree import MOST, Node, Place, Problem, describe, join
from .values import Mismatch, conform, is_plain

PARTS_OF_DATA = ("data.split.val", "data.split.test")
TRAINER = "microtrain.train.trainer.Trainer"
S = TypeVar("S", bound=Section)


def checked(root: Node, problems: list[Problem], *, trust: bool | None = None) -> Config | None:
    """The configuration with every default filled in, or None with the reasons in `problems`.

    Import paths are followed with `trust`, and by default those of which no run is the source.
    """
    return _Checker(problems, trust).config(root)


def checked_section(path: str, node: Node, problems: list[Problem]) -> Any:
    """The section at `path` alone, or None with the reasons in `problems`."""
    checker = _Checker(problems, None)
    keys = _Keys(components.settable(Config, ""), "the file")
    value = checker._value(path, node, keys.parameters[path].annotation, keys)
    for unknown in checker.unknown:
        checker._explain(*unknown)
    return None if problems else value


@dataclass
class _Keys:
    """What can be written at one place, in a section or a component."""

    parameters: Mapping[str, inspect.Parameter]
    name: str
    is_component: bool = False
    filled_in: Collection[str] = ()  # what the run knows where the YAML does not say it
    open_ended: bool = False
    finite: bool = True

    @property
    def takes(self) -> str:
        """All of it in words."""
        names = [key for key in self.parameters if key != "type"]
        return f"{self.name} takes: {', '.join(names) or 'no arguments'}"


class _Checker:
    def __init__(self, problems: list[Problem], trust: bool | None) -> None:
        self.problems, self.trust = problems, trust
        self.places: dict[str, Place] = {}  # of what the YAML gives, by dotted path
        self.sections: dict[str, Section] = {}  # that are right, by dotted path
        self.unknown: list[tuple[str, str, Node, _Keys]] = []
        self.missing: list[Problem] = []
        self.of_data: _Keys | None = None  # what a part of the data may have otherwise
        self.known: list[tuple[str, Collection[str]]] = [  # sections, and the keys that they have
            (section, components.settable(cls, "")) for section, cls in SECTIONS.items()
        ]
        self.known.append(("data", OWN_KEYS["data"]))

    def config(self, root: Node) -> Config | None:
        keys = _Keys(components.settable(Config, ""), "the file")
        values = self._values("", root, keys)
        meant = {path for unknown in self.unknown[:MOST] for path in self._explain(*unknown)}
        for section, key, node, _ in self.unknown[MOST:]:  # to look for likely ones takes long
            self.problems.append(Problem(join(section, key), "unknown key", node.key))
        self.problems += [
            problem
            for problem in self.missing
            if not {problem.path, "base"} & meant and not self._refused(problem.path)
        ]
        needed = (key for key, p in keys.parameters.items() if p.default is p.empty)
        parts: dict[str, Any] = dict.fromkeys(needed) | values
        config: Any = Config(**parts)  # None is what is wrong
        for key in {path.partition(".")[0] for path in meant}:
            setattr(config, key, None)  # what is meant there is not known
        config.origins.update({path: str(place) for path, place in self.places.items()})
        if config.checkpoint and config.data and config.checkpoint.monitor is None:
            config.checkpoint.monitor = "val/loss" if config.data.split.has_val else "train/loss"
        for path, right in self.sections.items():
            if not any(key.startswith(f"{path}.") for key in meant):
                self._wrong(right.wrong(), path)
        self._wrong(contradictions(config))
        return None if self.problems else config

    # Problems

    def _wrong(self, found: Wrong, section: str = "") -> None:
        """What does not go together, at keys of a section."""
        for key, message in found:
            path = f"{section}.{key}".strip(".")
            self.problems.append(Problem(path, message, self.places.get(path)))

    def _is_right(self, path: str) -> bool:
        """Whether nothing is wrong at `path` and below, so that a section can be made."""
        wrong = [problem.path for problem in (*self.problems, *self.missing)]
        wrong += [section for section, *_ in self.unknown]
        return not any(f"{place}.".startswith(f"{path}.") for place in wrong)

    def _refused(self, path: str) -> bool:
        """Whether the key at `path`, or one that it is below, already has a problem."""
        return any(p.path and f"{path}.".startswith(f"{p.path}.") for p in self.problems)

    def _unexpected(self, path: str, node: Node, words: str, hint: str | None = None) -> None:
        value = node.plain()
        message = f"expected {words}, got {describe(value)}"
        if isinstance(value, str):
            message += choice(value, words)
        self.problems.append(Problem(path, message, node.where, hint))

    def _explain(self, section: str, key: str, node: Node, keys: _Keys) -> list[str]:
        """Say what a key that this section does not have may mean; the paths of what it may."""
        known: dict[str, list[str]] = {}  # every key that exists, to the paths it may have
        for path, names in self.known:
            for name in names:
                known.setdefault(name, []).append(join(path, name))
        elsewhere = {word: [path] for word, path in OTHER_KEYS.items()} | known
        near, far = closest(key, keys.parameters), closest(key, elsewhere)
        if far and not is_slip(key, far):
            far = None  # of all keys there are one is always near
        message, meant = "unknown key", list[str]()
        head, *below = key.split(".")
        if below and head in keys.parameters:
            meant = [join(section, key), join(section, head)]
            nested = "".join(f"{each}: {{" for each in (head, *below[:-1]))
            message += f": a dot does not make a section in a file; write {nested}{below[-1]}: ..."
            message += "}" * len(below)
        elif near and (is_slip(key, near) or not far):
            meant = [join(section, near)]
            message += f"; did you mean {near}?"
        elif far:
            meant = elsewhere[far]
            message += f" here; did you mean {' or '.join(meant)}?"
        self.problems.append(Problem(join(section, key), message, node.key, keys.takes))
        return meant

    # Sections and components

    def _section(self, path: str, cls: Callable[..., S], node: Node) -> S | None:
        """The section at `path`; None where anything in it is wrong."""
        values = self._values(path, node, _Keys(components.settable(cls, ""), path))
        if not self._is_right(path):
            return None
        self.sections[path] = section = cls(**values)
        return section

    def _component(self, path: str, kind: str, node: Node) -> Component | None:
        """The component at `path`; None where anything of it is wrong."""
        self.places[path] = node.where
        if not isinstance(node.value, dict):
            self._unexpected(path, node, schema.A_COMPONENT)
            return None
        cls = schema.Data if kind == "data" else Component
        signature = components.settable(cls, "")
        own = {key: signature[key] for key in ("type", *OWN_KEYS.get(kind, ()))}
        name = node.value.get("type", node)
        imported = _absolute(name)
        target = self._load(f"{path}.type", kind, name, node.value)
        settable = {} if target is None else components.settable(target, imported)
        if kind not in LISTS:
            self.known.append((path, settable))
        keys = _Keys(
            own | settable | own,
            kind if target is None else name.value,
            target is not None,
            components.FILLED_IN.get(kind, ()),
            target is None or components.is_open_ended(target),  # None: there is a problem already
            finite=not components.is_import_path(imported),
        )
        if kind == "data":
            parameters = {
                k: p.replace(default=None) for k, p in keys.parameters.items() if k not in own
            }
            self.of_data = replace(keys, parameters=parameters)
        arguments = self._values(path, node, keys)
        if target is None or not self._is_right(path):
            return None
        of_section = {key: arguments.pop(key) for key in own if key in arguments}
        for key, parameter in settable.items():
            known = key in arguments or key in keys.filled_in or key in own
            if not known and is_plain(default := parameter.default):
                arguments[key] = list(default) if isinstance(default, tuple) else default
        self.sections[path] = made = cls(
            kind=kind, arguments=arguments, **of_section | {"type": imported}
        )
        return made

    def _values(self, path: str, node: Node, keys: _Keys) -> dict[str, Any]:
        """What the entries of `node` give at `path`; None for what is wrong."""
        values = {}
        for key, value in node.value.items():
            below = join(path, key)
            is_type = "type" not in node.value and is_slip(key, "type")
            if key in keys.parameters or (keys.open_ended and not is_type):
                self.places[below] = value.where
                hint = keys.parameters[key].annotation if key in keys.parameters else Any
                values[key] = self._value(below, value, hint, keys)
            else:
                self.unknown.append((path, key, value, keys))
        for key, parameter in keys.parameters.items():
            given = key in values or key in keys.filled_in
            if not given and parameter.default is parameter.empty:
                self._miss(path, key, node, keys)
        return values

    def _miss(self, path: str, key: str, node: Node, keys: _Keys) -> None:
        below = join(path, key)
        if keys.is_component:
            message = f"{keys.name} needs {key}"
            problem = Problem(below, message, node.value["type"].where, keys.takes)
        else:
            registry = below.partition(".")[0] if key == "type" else below
            there = ", ".join(REGISTERED.get(registry, ()))
            message = f"the key {key} is missing" + (f"; there are: {there}" if there else "")
            problem = Problem(below, message, node.where if path else None)
        self.missing.append(problem)

    def _value(self, path: str, node: Node, hint: Any, keys: _Keys) -> Any:
        """What `node` gives; None for what is wrong."""
        if self._refused(path):
            return None
        value = node.value
        if path in COMPONENTS and not (path == "schedule" and value is None):
            return self._component(path, path, node)
        if path in LISTS and isinstance(value, list):
            listed = [self._component(f"{path}.{i}", path, item) for i, item in enumerate(value)]
            return None if None in listed else listed
        if path in SECTIONS and isinstance(value, dict):
            return self._section(path, SECTIONS[path], node)
        if path == "trainer" and value and isinstance(value, str):
            return self._trainer(node)
        if path in PARTS_OF_DATA and isinstance(value, dict | str) and self.of_data is not None:
            keys_of = value if isinstance(value, dict) else {"path": replace(node, key=node.place)}
            arguments = self._values(path, replace(node, value=keys_of), self.of_data)
            if not self._is_right(path):
                return None
            return arguments if keys_of is value else arguments["path"]
        if path == "data.columns" and isinstance(value, dict):
            return self._columns(path, node)
        try:
            return conform(node.plain(), hint, node.place.source.directory, finite=keys.finite)
        except Mismatch as mismatch:
            self._unexpected(path, node, str(mismatch), keys.takes if keys.is_component else None)
            return None

    def _columns(self, path: str, node: Node) -> dict[str, Any] | None:
        """What the columns of a table hold, each a type or the arguments of a Column."""
        from ..data.tables.columns import Column, Kind, as_columns

        columns = {}
        for name, spec in node.value.items():
            below = f"{path}.{name}"
            self.places[below] = spec.where
            if isinstance(spec.value, dict):
                keys = _Keys(components.settable(Column, ""), f"a column ({name})")
                columns[name] = self._values(below, spec, keys)
            else:
                columns[name] = self._value(below, spec, Kind, _Keys({}, below))
            if not self._is_right(below):
                continue
            try:
                as_columns({name: columns[name]})
            except ConfigError as error:
                message = str(error).partition(f"{name}: ")[2]
                self.problems.append(Problem(below, message, spec.where))
        return columns if self._is_right(path) else None

    def _trainer(self, node: Node) -> str:
        """`trainer: ./my.py:MyTrainer`; a class that does not inherit from Trainer is refused."""
        target = self._load("trainer", "trainer", node)
        # Without importing the trainer: a class that inherits from it has done that.
        bases = [f"{base.__module__}.{base.__name__}" for base in getattr(target, "__mro__", ())]
        if target is not None and TRAINER not in bases:
            message = f"{quoted(node.value)} is not a class that inherits from {TRAINER}"
            self.problems.append(Problem("trainer", message, node.where))
        return _absolute(node)

    def _load(
        self, path: str, kind: str, name: Node, arguments: Collection[str] = ()
    ) -> Callable[..., Any] | None:
        """What the registered name or import path at `path` stands for; None with a problem."""
        if not name.value or not isinstance(name.value, str) or self._refused(path):
            return None  # what is not a name is refused as any value
        hint = None
        trust = not name.place.source.foreign if self.trust is None else self.trust
        if components.is_import_path(name.value) and not trust:
            message = "an import path runs code of that file; allow it with --trust"
            hint = "look at the code before you trust it"
        else:
            try:
                return components.load(kind, _absolute(name), arguments)
            except ConfigError as error:
                message = str(error)
            registered = not components.is_import_path(name.value)
            if kind in PARTS and (registered or kind == "callbacks"):
                hint = components.own(kind).removeprefix("hint: ")
        self.problems.append(Problem(path, message, name.where, hint))
        return None


def _absolute(name: Node) -> str:
    """The name of a component; an import path was relative to the file that says it."""
    return components.absolute(str(name.value), name.place.source.directory)
