"""Checks the tree of a configuration and turns it into a Section, or says all that is wrong.

Three checks, each blind to what another has already refused: the schema (pydantic knows what is
wrong, the tree knows where), the arguments of components against their signatures, and what only
shows across keys. Rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from microtrain.compile.executors import numba_absent
from microtrain.errors import ConfigError
from microtrain.train import arguments, components, schema
from microtrain.train.duration import Duration
from microtrain.train.problems import Problem, describe, quoted
from microtrain.train.section import Section
from microtrain.train.spelling import OTHER_KEYS, choice, closest, is_slip
from microtrain.train.yaml_source import Node


@dataclass
class _Resolved:
    """A component whose name was found: what goes into its Section besides `type`."""

    kind: str
    type: str
    given: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def validate(root: Node, problems: list[Problem], *, trust: bool = True) -> Section | None:
    """The configuration with every default filled in, or None with the reasons in `problems`."""
    return _Validator(root, problems, trust).section()


class _Validator:
    def __init__(self, root: Node, problems: list[Problem], trust: bool) -> None:
        self.root, self.problems, self.trust = root, problems, trust
        self.components: dict[str, _Resolved] = {}
        self.wrong: set[str] = set()  # dotted paths with a problem
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
        self._across_keys()
        if self.problems:
            return None
        assert config is not None
        return self._section("", config, self.root)

    # The schema

    def _refuse_not_yet(self) -> None:
        for path in schema.NOT_YET:
            node = self._find(path)
            if node is not None and (reason := schema.refused(path, node.plain())):
                self._problem(path, reason, node.where)

    def _schema(self) -> schema.Config | None:
        try:
            return schema.Config.model_validate(self.root.plain())
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
        node = self._find(path)
        if node is None or self._refused_above(path):
            return
        message = f"expected {expected}, got {describe(node.value)}"
        if isinstance(node.value, str):
            message += choice(node.value, expected)
        self._problem(path, message, node.where)

    def _missing_key(self, path: str) -> None:
        if path in self.meant or self._refused_above(path):
            return
        section, _, key = path.rpartition(".")
        node = self._find(section) if section else None
        known = components.REGISTERED.get(section.split(".")[0] if key == "type" else key, {})
        names = ", ".join(name for name, target in known.items() if target)
        message = f"the key {key} is missing" + (f"; there are: {names}" if names else "")
        self._problem(path, message, node.where if node else None)

    def _unknown_key(
        self, section: str, key: str, here: Collection[str], hint: str | None = None
    ) -> None:
        """A key that does not exist in this section: what it was meant to be, or where it goes."""
        parent = self._find(section) if section else self.root
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
        self._problem(below + key, message, place, hint)

    # Components

    def _component_nodes(self) -> list[tuple[str, str, Node]]:
        nodes = [(name, name, self._find(name)) for name in schema.COMPONENTS]
        for kind in schema.LISTS:
            items = self._find(kind)
            if items is not None and isinstance(items.value, list):
                nodes += [(f"{kind}.{i}", kind, node) for i, node in enumerate(items.value)]
        return [
            (path, kind, node)
            for path, kind, node in nodes
            if node is not None and path not in self.wrong
        ]

    def _component(self, path: str, kind: str, node: Node) -> None:
        name = node.value.get("type") if isinstance(node.value, dict) else None
        if name is None or not isinstance(name.value, str) or not name.value:
            return  # the schema says what is wrong
        target = self._loaded(f"{path}.type", kind, name)
        if target is None:
            return
        imported = components.absolute(name.value, name.place.source.directory)
        resolved = self.components[path] = _Resolved(kind, imported)
        own = ("type", *components.SECTION_KEYS.get(kind, ()))
        filled_in = components.FILLED_IN.get(kind, ())
        accepted = components.parameters(target)
        open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        hidden = components.hidden(imported)
        settable = {
            key: p
            for key, p in accepted.items()
            if p.kind is not p.VAR_KEYWORD and key not in hidden
        }
        if kind not in schema.LISTS:
            self._know(path, settable)
        hints = arguments.hints_of(target, settable)
        if not components.is_import_path(imported):
            hints |= {key: Duration | None for key in arguments.DURATIONS if key in settable}
        takes = f"{name.value} takes: {', '.join([*own[1:], *settable]) or 'no arguments'}"
        for key, value in node.value.items():
            if key in settable:
                resolved.given[key] = self._argument(
                    path,
                    key,
                    value,
                    hints.get(key, Any),
                    takes,
                    registered=not components.is_import_path(imported),
                )
            elif key not in own and open_ended:
                resolved.given[key] = value.plain()
            elif key not in own:
                self._unknown_key(path, key, [*own[1:], *settable], takes)
        for key, parameter in settable.items():
            if key in node.value or key in filled_in or f"{path}.{key}" in self.meant:
                continue
            if parameter.default is parameter.empty:
                self._problem(f"{path}.{key}", f"{name.value} needs {key}", name.where, takes)
            elif _is_plain(parameter.default):
                value = parameter.default
                resolved.defaults[key] = list(value) if isinstance(value, tuple) else value

    def _loaded(self, path: str, kind: str, name: Node) -> Callable[..., Any] | None:
        """What the registered name or import path at `path` stands for; None with a problem."""
        if components.is_import_path(name.value) and not self.trust:
            message = "an import path runs code of that file; allow it with --trust"
            self._problem(path, message, name.where)
            return None
        imported = components.absolute(name.value, name.place.source.directory)
        try:
            return components.load(kind, imported)
        except ConfigError as error:
            self._problem(path, str(error), name.where)
            return None

    def _trainer(self) -> None:
        """`trainer: ./my.py:MyTrainer`; a class that does not inherit from Trainer is refused."""
        node = self._find("trainer")
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        target = self._loaded("trainer", "trainer", node)
        if target is None:
            return
        from microtrain.train.trainer import Trainer  # loads much that a check can do without

        if not isinstance(target, type) or not issubclass(target, Trainer):
            message = "is no class that inherits from microtrain.train.trainer.Trainer"
            self._problem("trainer", f"{quoted(node.value)} {message}", node.where)

    def _argument(
        self, path: str, key: str, node: Node, hint: Any, takes: str, *, registered: bool
    ) -> Any:
        value = node.plain()
        try:
            conformed = arguments.conform(value, hint, node.place.source.directory)
            if registered and not arguments.in_range(key, value):
                raise arguments.Mismatch
        except arguments.Mismatch:
            words = arguments.range_phrase(key, hint) if registered else arguments.phrase(hint)
            message = f"expected {words}, got {describe(value)}"
            self._problem(f"{path}.{key}", message, node.where, takes)
            return None
        return conformed

    # What only shows across keys

    def _across_keys(self) -> None:
        split = self._right("data.split")
        if isinstance(split, dict):
            parts = [x for x in split.values() if isinstance(x, (int, float))]
            if parts and abs(sum(parts) - 1) > 1e-6:
                message = f"the fractions add up to {sum(parts):.6g}; expected 1"
                self._problem("data.split", message, self._where("data.split"))
        monitor = self._right("checkpoint.monitor")
        has_validation = isinstance(split, dict) and split.get("val")
        if monitor == "val/loss" and not has_validation and "data.split" not in self.meant:
            message = "val/loss needs validation data: set data.split.val"
            self._problem("checkpoint.monitor", message, self._where("checkpoint.monitor"))
        batch, cuts = self._right("train.batch_size"), self._right("train.accumulate")
        if isinstance(batch, int) and isinstance(cuts, int) and cuts > batch:
            message = f"cannot cut a batch of {batch} samples into {cuts} micro-batches"
            self._problem("train.accumulate", message, self._where("train.accumulate"))

        self._distributed()
        if self._right("train.compile") == "numba" and (why := numba_absent()):
            self._problem(
                "train.compile", f"{why}; or choose auto or numpy", self._where("train.compile")
            )

    def _distributed(self) -> None:
        defaults = schema.Distributed()

        def value(key: str) -> Any:
            """What holds, or None where it is wrong."""
            path = f"distributed.{key}"
            return getattr(defaults, key) if self._find(path) is None else self._right(path)

        def wrong(key: str, message: str) -> None:
            self._problem(f"distributed.{key}", message, self._where(f"distributed.{key}"))

        world, threads = value("reproducible") == "world", value("blas_threads")
        if not world and value("shards") not in (None, defaults.shards):
            wrong("shards", "only world mode has shards; set distributed.reproducible to world")
        if world and value("compression") in ("fp16", "bf16"):
            wrong("compression", "rounds by rank, but reproducible: world wants the same bits")
        if world and value("overlap") is True:
            wrong("overlap", "reproducible: world adds up the shards when all are there")
        if world and isinstance(threads, int) and threads > 1:
            wrong("blas_threads", "reproducible: world needs 1; with more, sums have other bits")
        warn, limit = value("warn_s"), value("timeout_s")
        if warn is not None and limit is not None and warn >= limit:
            wrong("warn_s", f"no warning can come after {warn:g} s: the run ends after {limit:g} s")

    # The result

    def _section(self, path: str, model: BaseModel, node: Node | None) -> Section:
        section = Section()
        for key in type(model).model_fields:
            below = f"{path}.{key}" if path else key
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
                value = "val/loss" if self._right("data.split.val") else "train/loss"
            elif path == "data.split" and value is None:
                continue  # only the parts that there are
            elif child and below == "trainer" and value is not None:
                value = components.absolute(value, child.place.source.directory)
            elif child and below == "train.init_from" and value is not None:
                value = arguments.conform(value, Path, child.place.source.directory)
            section.fill(key, value, str(child.where) if child else "default")
        return section

    def _component_section(self, path: str, model: BaseModel, node: Node) -> Section:
        resolved = self.components[path]
        section = Section(kind=resolved.kind)
        section.fill("type", resolved.type, str(node.value["type"].where))
        for key, value in resolved.given.items():
            section.fill(key, value, str(node.value[key].where))
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

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for part in path.split("."):
            if node is None or not isinstance(node.value, (dict, list)):
                return None
            if isinstance(node.value, dict):
                node = node.value.get(part)
            else:
                node = node.value[int(part)] if part.isdecimal() else None
        return node

    def _refused_above(self, path: str) -> bool:
        """Whether the key at `path`, or one that it is below, already has a problem."""
        return any(path == wrong or path.startswith(f"{wrong}.") for wrong in self.wrong)

    def _right(self, path: str) -> Any:
        """The plain value at `path`, or None where it is absent or something in it is wrong."""
        node = self._find(path)
        if node is None or any(f"{wrong}.".startswith(f"{path}.") for wrong in self.wrong):
            return None
        return node.plain()

    def _where(self, path: str) -> Any:
        node = self._find(path)
        return node.where if node else None

    def _problem(self, path: str, message: str, place: Any, hint: str | None = None) -> None:
        self.wrong.add(path)
        self.problems.append(Problem(path, message, place, hint))


def _is_plain(value: object) -> bool:
    """Whether a default can stand in YAML and JSON."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
