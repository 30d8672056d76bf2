"""Where a result comes from: library versions, the commit, and a hash of the parameters."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..version import __version__
from .arrays import blocks

__all__ = ["command_line", "git_state", "params_sha256", "versions"]


def params_sha256(named_arrays: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Hash of names, dtypes, shapes and values in definition order.

    Bytes are taken in C order and little-endian, so memory layout and machine do not matter; a
    single changed bit, name, dtype or shape does.
    """
    digest = hashlib.sha256()
    for name, value in dict(named_arrays).items():
        array = value if hasattr(value, "dtype") else np.asarray(value)
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode() + b"\n")
        for block in blocks(array):
            digest.update(block)
    return digest.hexdigest()


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
