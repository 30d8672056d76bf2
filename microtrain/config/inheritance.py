"""Reads a YAML file and those it builds upon: `base: other.yaml`, one parent a file.

What a file says is laid over what its base says: mappings key by key, everything else whole. A
component of another `type` replaces that of the base whole, for the arguments of one mean nothing
to the other. Every value still knows the file and line it came from.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..spelling import did_you_mean
from .components import absolute
from .document import Node, read_file
from .environment import substituted
from .overrides import with_components
from .problems import Problem, quoted
from .schema import COMPONENTS

MOST_BASES = 20
MOST_LINKS = 40  # from one to the next, as Linux follows them


def read_with_bases(path: Path, name: str, problems: list[Problem]) -> Node | None:
    """The tree of the file at `path` over those of its bases, or None where it has none.

    Variables of the environment are filled in, bare component names spelled out, but for a file
    that a run has written: that is taken as `read_stored` takes it. `name` is how the user wrote
    the path. Raises OSError or ValueError where the file itself cannot be read.
    """
    return _read(path, name, problems, ())


def read_stored(path: Path, name: str, problems: list[Problem]) -> Node | None:
    """The tree of a configuration that a run wrote, which is whole: nothing else is looked at.

    It may come from someone else, so it can neither read another file nor the environment.
    """
    of_a_run = belongs_to_a_run(path)
    root = read_file(path, name, problems, foreign=of_a_run)
    if root is not None and of_a_run:
        _split_as_then(root)
    if root is not None and (base := root.value.get("base")) is not None:
        message = "the configuration of a run is whole and has no base"
        problems.append(Problem("base", message, base.where))
    return None if root is None else with_components(root)


def _split_as_then(root: Node) -> None:
    """A run of before the split had a seed of its own drew it with `seed`."""
    data = root.value.get("data")
    split = data and isinstance(data.value, dict) and data.value.get("split")
    if split and isinstance(split.value, dict) and "seed" in root.value:
        split.value.setdefault("seed", root.value["seed"])


def belongs_to_a_run(path: Path) -> bool:
    """Whether the file at `path` lies in the directory of a run or of a checkpoint.

    So does what leads there through links, and what leads out of there.
    """
    for _ in range(MOST_LINKS):
        place = path.parent.resolve()
        if any(map(_is_a_run, {place, *place.parents, *path.absolute().parents})):
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
        near = ""
        if os.path.isdir(path.parent):
            files = sorted(map(str, path.parent.glob("*.y*ml")))
            near = did_you_mean(str(path), files)
        return f"there is no file {name}{near}"
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot read {name}: {reason}"


def _read(path: Path, name: str, problems: list[Problem], below: tuple[Path, ...]) -> Node | None:
    if belongs_to_a_run(path):
        return read_stored(path, name, problems)
    root = read_file(path, name, problems)
    if root is None:
        return None
    root = with_components(substituted(root, problems))
    base = root.value.get("base")
    if base is None or not isinstance(base.value, str) or not base.value:
        return root  # the schema says what is wrong
    root = replace(root, value={key: node for key, node in root.value.items() if key != "base"})
    parent_path = path.parent / os.path.expanduser(base.value)
    parent_name = os.path.normpath(os.path.join(os.path.dirname(name), base.value))
    below = (*below, path.resolve())
    if len(below) > MOST_BASES:
        problems.append(Problem("base", f"more than {MOST_BASES} bases", base.where))
        return root
    if parent_path.resolve() in below:
        message = f"a circle of bases: {quoted(parent_name)[1:-1]} builds upon this file"
        problems.append(Problem("base", message, base.where))
        return root
    try:
        parent = _read(parent_path, parent_name, problems, below)
    except (OSError, ValueError) as error:
        message = unreadable(parent_path, parent_name, error)
        problems.append(Problem("base", message, base.where))
        return root
    return root if parent is None else _merged(parent, root, "")


def _merged(parent: Node, child: Node, path: str) -> Node:
    """`child` over `parent`, both at the dotted path `path`."""
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    if path in COMPONENTS and "type" in child.value and _type(parent) != _type(child):
        return child
    entries = dict(parent.value)
    for key, node in child.value.items():
        below = f"{path}.{key}" if path else key
        entries[key] = _merged(entries[key], node, below) if key in entries else node
    return replace(child, value=entries)


def _type(component: Node) -> object:
    node = component.value.get("type")
    if node is None or not isinstance(node.value, str):
        return None
    return absolute(node.value, node.place.source.directory)
