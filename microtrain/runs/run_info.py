"""run.json: where a result comes from, and what it says read back.

A file of JSON may be someone else's, damaged, or of another version. What is taken from it is
looked at once, where it is read, as the type that it should be: pydantic checks it, key by key.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from annotated_types import Ge, Gt, Lt

from ..errors import DataError
from ..files import read_object
from ..version import __version__

T = TypeVar("T")
Count = Annotated[int, Ge(0), Lt(2**53)]
Number = Annotated[float, Gt(-(2.0**1023)), Lt(2.0**1023)]


@dataclass(frozen=True)
class Best:
    """The best value of the monitored column."""

    name: str
    value: float | None
    step: int


@dataclass(frozen=True)
class Git:
    """The commit that a run was started from."""

    commit: str
    dirty: bool
    diff: str = ""


@dataclass(frozen=True)
class ClassCounts:
    """How often each class was predicted for each, by the model that a run is known by.

    Attributes:
        split: the part of the data that was counted.
        names: of the classes, in the order of their codes.
        support: rows of each class; the sums of their weights where they have such.
        confusion: a list for each true class: how often each class was predicted.
    """

    split: str
    names: list[str]
    support: list[Count | Number]
    confusion: list[list[Count | Number]]

    def __post_init__(self) -> None:
        count = len(self.names)
        if {len(self.support), len(self.confusion), *map(len, self.confusion)} != {count}:
            raise ValueError(f"expected counts of {count} classes")

    @cached_property
    def figures(self) -> list[tuple[float, float, float]]:
        """Precision, recall and f1 of each class; 0 where one is not defined."""
        counts = np.array(self.confusion, np.float64)
        right, predicted, there = counts.diagonal(), counts.sum(axis=0), np.array(self.support)
        parts = ((right, predicted), (right, there), (2 * right, predicted + there))
        each = [above / np.where(below > 0, below, 1.0) for above, below in parts]
        return [tuple(row) for row in np.transpose(each).tolist()]


@dataclass(frozen=True)
class RunInfo:
    """run.json; any key may be absent, since a run is read at any moment of its life."""

    id: str | None = None
    status: str = "unknown"
    exit_code: int | None = None
    name: str = ""
    started: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    git: Git | None = None
    command: list[str] = field(default_factory=list)
    parameters: int | None = None
    hosts: list[str] = field(default_factory=list)
    ranks: int = 1
    device: str | None = None
    compile: dict[str, Any] | None = None
    steps: int | None = None
    higher_is_better: dict[str, bool | None] = field(default_factory=lambda: {"loss": False})
    best: Best | None = None
    test: dict[str, float | None] | None = None
    classes: ClassCounts | None = None
    params_sha256: str | None = None
    data_hash: str | None = None
    error: str | None = None
    timings: dict[str, Number | None] = field(default_factory=dict)
    sweep: bool = False
    members: dict[str, int] = field(default_factory=dict)
    best_member: str | int | None = None
    halved: dict[str, list[Count]] = field(default_factory=dict)
    of_sweep: str | None = None
    rung: int | None = None
    has_checkpoints: bool = False
    resumed_at: list[Count] = field(default_factory=list)

    def seconds(self, timing: str) -> float | None:
        """A timing in seconds, None where the run has not noted it."""
        return self.timings.get(timing)


def read_run_json(path: Path) -> dict[str, Any]:
    """The object in a run.json, unchecked; DataError where there is none, OSError."""
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from error


def read_info(path: Path) -> RunInfo:
    """A run.json; DataError for what is not as it should be."""
    try:
        return typed(RunInfo, read_run_json(path))
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from None


def typed(kind: type[T], content: Any) -> T:
    """`content`, which is JSON, as a `kind`; ValueError naming the first key that is of no use."""
    from pydantic import ValidationError  # where runs are read, not where they train

    hashable: Any = kind
    try:
        found: T = _adapter(hashable).validate_json(json.dumps(content), strict=True)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    """What checks a `kind`: made once, which takes longer than to check with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def versions() -> dict[str, str]:
    """Versions of python, numpy, microtrain, and of the MPI library where one is loaded."""
    known = {"python": platform.python_version(), "numpy": np.__version__}
    known["microtrain"] = __version__
    mpi = sys.modules.get("mpi4py.MPI")  # importing it here would start MPI
    if mpi is not None:
        library = mpi.Get_library_version().replace("\0", "").splitlines()[0]
        known["mpi"] = " ".join(library.split())
    return known


def command_line() -> list[str]:
    """What this process was started with: the script first, as it was typed, then its arguments."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m
    if module is None:
        return list(sys.argv)
    return ["python", "-m", module.name.removesuffix(".__main__"), *sys.argv[1:]]


def git_state(directory: str | Path = ".") -> dict[str, Any] | None:
    """`{"commit": hash, "dirty": bool}` of the repository around `directory`, or None.

    Dirty means that tracked files differ from the commit; there is `"diff"` then, how much:
    `1 file changed, 2 insertions(+)`. None: no git, no repository, no commit yet, or no answer
    within 5 seconds.
    """

    def ask(*arguments: str) -> str:
        result = subprocess.run(
            ["git", *arguments],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # only look: leave the index as it is
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=True,
        )
        return result.stdout.decode(errors="replace").strip()

    try:
        found = ask("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        commit, dirty, _ = found.partition("-dirty")
        diff = {"diff": ask("diff", "--shortstat", "HEAD")} if dirty else {}
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(dirty), **diff}
