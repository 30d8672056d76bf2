"""Generated source on disk, so that another process finds it compiled.

numba keeps compiled code next to the file that its source is in, and none for source in memory. So
the source goes to `$XDG_CACHE_HOME/microtrain/<hash>.py`, in a directory that only its owner can
enter: code is loaded from there. Where there is no such directory everything is compiled anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import stat
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_plain, write_whole
from ..version import __version__
from . import native
from .notice import Notice
from .waiting import alone

MOST_FILES = 512  # of each kind; the oldest go


def directory() -> Path | None:
    """Where source is kept; None where that is not a directory of ours and ours alone."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(home) / "microtrain"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if hasattr(os, "getuid") and found.st_uid != os.getuid():
            return None
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            return None  # a link, or others could put code there
        return path if os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # a user without a home among them
        return None


_LOADING = threading.RLock()


def load(source: str) -> dict[str, Any]:
    """The names that `source` defines; `CACHE` in it says whether numba can keep its code.

    Ranks, threads or processes, want the same at the same time: one compiles, the others wait.
    What is compiled, and for whom one waits, is announced (see `notice`).
    """
    with _LOADING:
        return _load(source)


@functools.lru_cache(maxsize=256)
def _load(source: str) -> dict[str, Any]:
    import numba

    made_of = source, numba.__version__, np.__version__, __version__, platform.machine(), _library()
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    place = directory()
    with warnings.catch_warnings(), Notice(source) as notice:
        warnings.simplefilter("ignore", numba.NumbaWarning)
        if place is not None:
            # Whatever is wrong there, a full disk or a broken file: memory will do, and an error
            # of the source itself comes again.
            lock = place / f"{name}.lock"
            with contextlib.suppress(Exception), alone(lock, notice.waits, lambda: notice.text):
                notice.goes_on()
                notice.kept = True
                path = _written(place, name, source)
                _clear_damaged(path)
                loaded = _imported(path, name)
                if not _is_whole(path):
                    write_whole(path.with_suffix(".sha256"), _sums(path), sync=False)
                return loaded
        notice.kept = False
        scope = {"CACHE": False}
        exec(compile(source, "<native step>", "exec"), scope)
        return scope


@functools.cache
def _library() -> str:
    """What the generated source calls: another text, another result."""
    return Path(native.__file__).read_text(encoding="utf-8")


def _written(place: Path, name: str, source: str) -> Path:
    path = place / f"{name}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != source:
        # A new time stamp would make numba compile again: what is there stays.
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        _tidy(place)
    return path


def _sums(path: Path) -> bytes:
    """The hashes of what numba has kept of a source."""
    kept = sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.nb[ic]"))
    lines = [f"{hashlib.sha256(read_plain(each)).hexdigest()}  {each.name}\n" for each in kept]
    return "".join(lines).encode()


def _is_whole(path: Path) -> bool:
    index = path.with_suffix(".sha256")
    return index.exists() and read_plain(index) == _sums(path)


def _clear_damaged(path: Path) -> None:
    """Remove what numba has kept of a source unless it is as it was: it would run as it is."""
    if not _is_whole(path):
        for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.nb[ic]"):
            kept.unlink()


def _tidy(place: Path) -> None:
    """Delete the oldest files, so that MOST_FILES of each kind stay."""
    pycache = place / "__pycache__"
    kinds = (place, "*.py"), (place, "*.lock"), (place, "*.sha256"), (pycache, "*.nb?")
    for folder, pattern in kinds:
        files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def _imported(path: Path, name: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"microtrain_native_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["CACHE"] = True
    sys.modules[spec.name] = module  # numba looks for it there while it loads
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return vars(module)
