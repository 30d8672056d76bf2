"""C text as a library in this process: the compiler, what it has made before, and functions of it.

Libraries are kept in `$XDG_CACHE_HOME/microtrain`, a directory that only its owner can write to:
code is loaded from there. The name of one says what it was made of (text, flags, compiler,
processor) and what it contains, so that a damaged or a foreign one is made anew. Where there is no
such directory everything is compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..common import threads
from ..common.files import read_plain, write_whole
from ..errors import CaptureError, install

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# Sums and products are rounded one by one, whole numbers wrap around, memory may hold one dtype now
# and another one later; pow is the one of the library of mathematics, whatever its operands are. No
# -O3: gcc unrolls short loops then, for four times as long, and the steps are not faster.
FLAGS = (
    "-std=c99", "-O2", "-ftree-vectorize",
    "-march=native" if platform.machine() == "x86_64" else "-mcpu=native",
    "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing",
    "-fno-builtin-pow", "-fno-builtin-powf", "-fno-trapping-math", "-w", "-fPIC", "-shared",
    *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []),
)  # fmt: skip
LIMIT = 120.0  # seconds that a compiler may take
PATIENCE = 10.0  # seconds that another process which compiles the same is waited for
MOST_THREADS = 64  # as in runtime.c
MOST_FILES = 512  # that are kept; the oldest go
NO_ARGUMENTS, ONE, SEVERAL = 0x4, 0x8, 0x80  # METH_NOARGS, METH_O, METH_FASTCALL
_LOADING = threading.RLock()


class NativeError(CaptureError):
    """There is no native code, and why."""


class Compiler(NamedTuple):
    """A C compiler: how it is called, and what it says of its version."""

    command: tuple[str, ...]
    version: str

    @property
    def call(self) -> list[str]:
        """The command with all flags; those of `$CC` come last, and win."""
        own = (word for word in self.command if word[:2] in ("-m", "-f", "-O") and len(word) > 2)
        return [*self.command, *FLAGS, *own]


@functools.cache
def compiler() -> Compiler:
    """The first that there is of `$CC`, cc, gcc, clang and `zig cc`; NativeError."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:  # a quotation without its end
        raise NativeError(f"CC={os.environ['CC']} cannot be read: {error}") from None
    commands = [named] if named else [["cc"], ["gcc"], ["clang"]]
    if not named and importlib.util.find_spec("ziglang") is not None:
        commands.append([sys.executable, "-m", "ziglang", "cc"])
    for command in commands:
        if shutil.which(command[0]) is not None:
            first, *_ = [*_output([*command, "--version"]).splitlines(), ""]
            return Compiler((*command,), first)
    where = f"CC={shlex.join(named)} is not a command" if named else "there is no C compiler"
    raise NativeError(f"{where} (install gcc or clang, or {install('native')})")


@functools.cache
def absent() -> str:
    """Why there is no native code; empty where there is."""
    try:
        runtime()
    except NativeError as error:
        return str(error)
    return ""


@functools.cache
def _thread_limit() -> int:
    """The address of the function that says how many threads NumPy's OpenBLAS may use; 0: none."""
    package = Path(np.__file__).parent
    ends = [(prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", "")]
    places = package.with_name("numpy.libs"), package / ".dylibs"
    for path in (path for place in places for path in place.glob("*openblas*")):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))  # loaded already: the same handle
            for prefix, suffix in ends:
                if hasattr(library, name := f"{prefix}openblas_get_num_threads{suffix}"):
                    return address(library, name)
    return 0


@functools.cache
def runtime() -> Any:
    """The library of what native code does for every step, with its threads.

    There are as many as BLAS may use, and no more than cores.
    """
    made, limit = load(text_of("runtime")), _thread_limit()
    most = threads.cores() if limit else min(threads.cores(), threads.blas_threads() or 1)
    ctypes.c_int64.in_dll(made, "cores").value = min(most, MOST_THREADS)
    ctypes.c_void_p.in_dll(made, "limit").value = limit
    return made


def most_threads() -> int:
    """How many threads a step has at most."""
    return int(ctypes.c_int64.in_dll(runtime(), "cores").value)


@functools.cache
def vectors(name: str, real: str) -> Any:
    """The library of a file that works with vectors of `real`: products, or convolution."""
    made = load("\n".join([f"#define REAL {real}", text_of("vectors"), text_of(name)]))
    for function in ("split", "members"):
        ctypes.c_void_p.in_dll(made, function).value = address(runtime(), function)
    return made


@functools.cache
def has_fma() -> bool:
    """Whether this processor multiplies and adds at once; else the functions above are slow."""
    flags = [line for line in _processor().splitlines() if line.startswith("flags")]
    return not flags or "fma" in flags[0].split()


@functools.cache
def text_of(name: str) -> str:
    """A file of C that stands beside this one."""
    return Path(__file__).with_name(f"{name}.c").read_text(encoding="utf-8")


def load(text: str) -> Any:
    """The library that `text` makes; NativeError.

    Ranks, threads or processes, want the same at the same time: one compiles, the others wait.
    """
    with _LOADING:
        try:
            return _load(text)
        except OSError as error:
            raise NativeError(f"what the compiler made cannot be loaded: {error}") from None


@functools.lru_cache(maxsize=256)
def _load(text: str) -> Any:
    made_of = text, *compiler().call, compiler().version, _processor()
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    place = directory()
    if place is not None:
        # Whatever is wrong there, a full disk or no right to execute: another place will do.
        with contextlib.suppress(OSError):
            found = _kept(place, key)
            if found is None:
                with _alone(place / f"{key}.lock"):
                    found = _kept(place, key) or _keep(place, key, compiled(text))
            return ctypes.CDLL(str(found))
    with tempfile.TemporaryDirectory(prefix="microtrain-") as folder:
        path = Path(folder) / "native.so"
        path.write_bytes(compiled(text))
        return ctypes.CDLL(str(path))


def address(library: Any, name: str) -> int:
    """Where a function of a library is."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


@functools.cache
def _method(name: str, code: int, flags: int) -> _Method:
    """It is kept: functions point to it."""
    return _Method(name.encode(), code, flags, None)


def builtin(library: Any, name: str, flags: int, words: int = 0) -> Any:
    """A function of a library as Python's own are; it finds the address `words` in its `self`."""
    python = ctypes.pythonapi
    capsule, function = python["PyCapsule_New"], python["PyCFunction_NewEx"]  # of its own
    capsule.argtypes, capsule.restype = [ctypes.c_void_p] * 3, ctypes.py_object
    function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    function.restype = ctypes.py_object
    method = _method(name, address(library, name), flags)
    mine = capsule(words, None, None) if words else None
    return function(ctypes.addressof(method), mine, None)


# Compiling ----------------------------------------------------------------------------------------


def compiled(text: str) -> bytes:
    """The library that the compiler makes of `text`; NativeError."""
    with tempfile.TemporaryDirectory(prefix="microtrain-") as folder:
        source, target = Path(folder) / "native.c", Path(folder) / "native.so"
        source.write_text(text, encoding="utf-8")
        _output([*compiler().call, str(source), "-o", str(target), "-lm"])
        return target.read_bytes()


def _output(command: list[str]) -> str:
    """What a command says; NativeError where it fails or does not end."""
    what = shlex.join(command[:1])
    with tempfile.TemporaryFile() as said:
        try:
            # A session of its own: what it has started ends with it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        except OSError as error:
            raise NativeError(f"the C compiler {what} cannot be run: {error}") from None
        try:
            code = process.wait(LIMIT)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text = f"the C compiler {what} did not end within {LIMIT:g} s"
            raise NativeError(text) from None
        said.seek(0)
        output = said.read().decode(errors="replace").strip()
    if code:
        lines = output.splitlines()
        line = next((line for line in lines if "error" in line), lines[-1] if lines else "")
        raise NativeError(f"the C compiler {what} failed with code {code}: {line}")
    return output


@functools.cache
def _processor() -> str:
    """What `native` means here."""
    with contextlib.suppress(OSError):
        kinds = ("model name", "flags", "CPU part", "Features")
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kinds)))
    return f"{platform.machine()} {platform.processor()}"


# What is kept -------------------------------------------------------------------------------------


def directory() -> Path | None:
    """Where libraries are kept; None where that is not a directory of ours and ours alone."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(home) / "microtrain"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or not _is_ours(found):  # a link, or open to others
            return None
        return path if os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # a user without a home among them
        return None


def _is_ours(found: os.stat_result) -> bool:
    """Whether nobody else can have written it."""
    return not (hasattr(os, "getuid") and found.st_uid != os.getuid()) and not found.st_mode & 0o022


def _kept(place: Path, key: str) -> Path | None:
    """The library made of what `key` says, if it is as it was; what is not is removed."""
    for path in place.glob(f"{key}-*.so"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            whole = stat.S_ISREG(found.st_mode) and _is_ours(found)
            if whole and path.name == _name(key, read_plain(path)):
                return path
        path.unlink(missing_ok=True)
    return None


def _keep(place: Path, key: str, content: bytes) -> Path:
    path = place / _name(key, content)
    write_whole(path, content, sync=False, mode=0o600)
    for pattern in ("*.so", "*.lock"):
        files = sorted(place.glob(pattern), key=lambda path: path.stat().st_mtime)
        for old in files[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    return path


def _name(key: str, content: bytes) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()[:32]}.so"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process of this machine is here, if that does not take too long.

    What two write is the same, and is put in place whole.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(AttributeError):  # no fcntl
            while time.monotonic() < end:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.02)
                else:
                    break
        yield
    finally:
        os.close(handle)
