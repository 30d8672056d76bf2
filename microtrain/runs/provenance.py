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
from numpy.typing import NDArray

from ..version import __version__

__all__ = ["git_state", "params_sha256", "versions"]


def params_sha256(named_arrays: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Hash of names, dtypes, shapes and values in definition order.

    Bytes are taken in C order and little-endian, so memory layout and machine do not matter; a
    single changed bit, name, dtype or shape does.
    """
    digest = hashlib.sha256()
    for name, value in dict(named_arrays).items():
        array: NDArray[Any] = np.asarray(value)
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode() + b"\n")
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
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


def git_state(directory: str | Path = ".") -> dict[str, Any] | None:
    """`{"commit": hash, "dirty": bool}` of the repository around `directory`, or None.

    Dirty means that tracked files differ from the commit. None: no git, no repository, no commit
    yet, or no answer within 5 seconds.
    """
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # only look: leave the index as it is
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, dirty, _ = result.stdout.decode(errors="replace").strip().partition("-dirty")
    return {"commit": commit, "dirty": bool(dirty)}
