"""Reads the YAML file of a run and its overrides: the whole configuration or every mistake in it.

>>> config = load_config("configs/linreg.yaml", ["optimizer.lr=0.05"])
>>> config.train.batch_size
64

Only the rank that reads imports PyYAML and pydantic; the others receive plain values.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError
from .resolved import resolved_yaml
from .schema import Config

if TYPE_CHECKING:
    from .sweep import Members

T = TypeVar("T")

__all__ = ["Config", "load_config", "load_sweep", "resolved_yaml"]


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
    from .sweep import members

    return _read(path, overrides, trust, lambda *tree: members(*tree, trust=trust))


def _read(
    path: str | os.PathLike[str],
    overrides: Sequence[str],
    trust: bool | None,
    make: Callable[[Any, list[Any]], T | None],
) -> T:
    """What `make` makes of the tree, or ConfigError with all problems."""
    from .compose import override, read_with_bases, unreadable
    from .document import Node
    from .problems import Place, Problem, Source, report

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
