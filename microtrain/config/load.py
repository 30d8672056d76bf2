"""Reads the YAML file of a run: over its base, under its overrides, whole or with every mistake.

>>> config = load_config("configs/linreg.yaml", ["optimizer.lr=0.05"])
>>> config.train.batch_size
64

`base: other.yaml` names one parent a file. What a file says is laid over what its base says:
mappings key by key, everything else whole. A component of another `type` replaces that of the base
whole, for the arguments of one mean nothing to the other. An override `optimizer.lr=3e-3` is YAML
like the file: its value has the same types, its mistakes the same messages, with the override as
the source line. Every value still knows where it came from, and relative paths start there.

Only the rank that reads imports PyYAML and pydantic; the others receive plain values.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..common.files import nearby
from ..common.words import quoted
from ..errors import ConfigError
from .components import absolute
from .resolved import resolved_yaml
from .schema import COMPONENTS, Config, Members
from .tree import Astray, Node, Place, Problem, Source, assign, join, report, with_components

T = TypeVar("T")

__all__ = ["Config", "load_config", "load_sweep", "resolved_yaml"]

MOST_LINKS = 40  # from one to the next, as Linux follows them
_COMMENTED = re.compile(r"""[^][{},:"'\s][^][{},:"']* #[^][{},"']*""")


def load_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, trust: bool | None = None
) -> Config:
    """The configuration in the YAML file at `path`, after `overrides` such as `optimizer.lr=0.1`.

    Every default is filled in, durations are `Duration`s, components are for `build`. Paths of
    files inside it are absolute: those in the file were relative to the file's directory, those in
    overrides to the working directory.

    A file in the directory of a run may be someone else's, here and as a `base:`: it runs no code,
    unless `trust` is True, and reads no other file at all. `trust=False` treats any file like that.
    Raises ConfigError with all problems at once.

    Example:
        >>> config = mt.train.load_config("configs/linreg.yaml", ["optimizer.lr=0.5"])
        >>> config.optimizer.lr
        0.5
    """
    from .check import checked

    return _read(path, overrides, trust, lambda *tree: checked(*tree, trust=trust))


def load_sweep(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, trust: bool | None = None
) -> Members:
    """The sweep that a file describes, with the configuration of each member; or the run.

    Raises ConfigError as `load_config`: what is wrong with a member is said at the value of the
    sweep that is wrong.
    """

    from .check import checked

    def make(root: Node, problems: list[Problem]) -> Members | None:
        if "sweep" in root.value and root.value["sweep"].value is not None:
            from .sweep import members

            return members(root, problems, trust=trust)
        config = checked(root, problems, trust=trust)
        return None if config is None else Members(config, [])

    return _read(path, overrides, trust, make)


def _read(
    path: str | os.PathLike[str],
    overrides: Sequence[str],
    trust: bool | None,
    make: Callable[[Node, list[Problem]], T | None],
) -> T:
    """What `make` makes of the tree, or ConfigError with all problems."""
    name, path = str(path), Path(path)
    problems: list[Problem] = []
    config = None
    try:
        root = read_with_bases(path, name, problems, whole=trust is False)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(unreadable(path, name, error)) from error
    if root is not None:
        for text in overrides:
            root = override(root, text, problems)
        if "name" not in root.value:
            stem = Source("the file's name", (path.stem,), path.parent, is_file=False)
            place = Place(stem, 1, 1, len(path.stem))
            root.value["name"] = Node(path.stem, place, place)
        config = make(root, problems)
    if config is None:
        raise ConfigError(
            report(problems, name, f"microtrain check {shlex.join([name, *overrides])}")
        )
    return config


# Files and their bases


def read_with_bases(
    path: Path,
    name: str,
    problems: list[Problem],
    *,
    whole: bool = False,
    below: tuple[Path, ...] = (),
) -> Node | None:
    """The tree of the file at `path` over those of its bases, or None where it has none.

    Bare component names are spelled out. A configuration that a run wrote is whole, as any is said
    to be by `whole`: it may come from someone else, so it cannot read another file. `name` is how
    the user wrote the path, `below` are the files that build upon it. Raises OSError or ValueError
    where the file itself cannot be read.
    """
    from .document import read_file

    of_a_run = belongs_to_a_run(path)
    root = read_file(path, name, problems, foreign=of_a_run)
    if root is None:
        return None
    root = with_components(root)
    base = root.value.get("base")
    if base is None:
        return root
    if whole or of_a_run:
        message = "the configuration of a run is complete and has no base"
        problems.append(Problem("base", message, base.where))
        return root
    if not isinstance(base.value, str) or not base.value:
        return root  # the schema says what is wrong
    del root.value["base"]
    parent_path = path.parent / os.path.expanduser(base.value)
    parent_name = os.path.normpath(os.path.join(os.path.dirname(name), base.value))
    below = (*below, path.resolve())
    try:
        if parent_path.resolve() in below:
            shown = quoted(parent_name)[1:-1]
            raise Astray(f"circular base: {shown} is based on this file")
        parent = read_with_bases(parent_path, parent_name, problems, below=below)
        return root if parent is None else _merged(parent, root, "")
    except Astray as error:
        message = str(error)
    except (OSError, ValueError) as error:
        message = unreadable(parent_path, parent_name, error)
    problems.append(Problem("base", message, base.where))
    return root


def belongs_to_a_run(path: Path) -> bool:
    """Whether the file at `path` lies in the directory of a run or of a checkpoint.

    So does what leads there through links, and what leads out of there.
    """
    for _ in range(MOST_LINKS):
        directory = path.parent.resolve()
        if any(map(_is_a_run, {directory, *directory.parents, *path.absolute().parents})):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return True


def _is_a_run(directory: Path) -> bool:
    has = [os.path.lexists(directory / n) for n in ("config.yaml", "run.json", "manifest.json")]
    return has[0] and any(has[1:])


def unreadable(path: Path, name: str, error: Exception) -> str:
    """Why the YAML file at `path` cannot be read, and what may have been meant."""
    if os.path.isdir(path):
        return f"{name} is a directory; name a YAML file in it"
    if isinstance(error, FileNotFoundError):
        return f"there is no file {name}{nearby(path, '*.y*ml')}"
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot read {name}: {reason}"


def _merged(parent: Node, child: Node, path: str) -> Node:
    """`child` over `parent`, both at the dotted path `path`."""
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    if path in COMPONENTS and "type" in child.value and _type(parent) != _type(child):
        return child
    entries = dict(parent.value)
    for key, node in child.value.items():
        at = join(path, key)
        entries[key] = _merged(entries[key], node, at) if key in entries else node
    return replace(child, value=entries)


def _type(component: Node) -> object:
    node = component.value.get("type")
    if node is None or not isinstance(node.value, str):
        return None
    return absolute(node.value, node.place.source.directory)


# Overrides


def override(root: Node, text: str, problems: list[Problem]) -> Node:
    """The tree after the override `text`, or as it was, with a problem, where that is wrong."""
    from .document import cut_by_yaml, lines_of, parse

    source = Source("command line", lines_of(text), Path.cwd(), is_file=False)
    path, equals, value_text = text.partition("=")
    start = 1 + len(source.lines[0]) - len(source.lines[0].lstrip())
    path = path.strip()
    keys = path.split(".")
    if not equals or not all(key and key.isprintable() for key in keys):
        message = "an override is KEY=VALUE such as optimizer.lr=0.01"
        if not equals and text.rstrip().endswith(("]", "}", ",")):
            message += "; quote what has spaces: 'model.hidden=[16, 8]'"
        problems.append(Problem("", message, Place(source, 1, 1, len(text))))
        return root
    try:
        if keys[0] == "base":
            raise Astray("base is a key of the file; give the file that has it")
        way_out = f"; quote what is text: {shlex.quote(f'{path}={_as_text(value_text)}')}"
        if lost := cut_by_yaml(value_text):
            raise Astray(f"YAML would not keep {lost}{way_out}")
        value = parse(value_text, source, problems, path=path, column=len(text) - len(value_text))
        if value is None:
            if value_text[0] not in "[{'\"" or len(value_text) == 1:
                problems[-1] = replace(problems[-1], message=problems[-1].message + way_out)
            return root
        if value_text.endswith((" ", "\t")) and (value.value or "") == value_text.strip(" \t"):
            raise Astray(f"YAML would not keep white space after the text{way_out}")
        last = Place(source, 1, start + len(path) - len(keys[-1]), len(keys[-1]))
        return assign(root, path, replace(value, key=last))
    except Astray as error:
        problems.append(Problem(path, str(error), Place(source, 1, 1, len(path))))
        return root


def _as_text(text: str) -> str:
    """YAML that keeps a text; of a list or a mapping those parts of it that have a #."""
    from .document import cut_by_yaml

    inner = _COMMENTED.sub(lambda part: json.dumps(part[0], ensure_ascii=False), text)
    is_whole = text[:1] + text[-1:] in ("[]", "{}") and inner != text and not cut_by_yaml(inner)
    return inner if is_whole else json.dumps(text, ensure_ascii=False)
