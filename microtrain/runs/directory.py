"""The directory of one run: made before training, written by rank 0 alone, read by other commands.

`<parent>/<name>/<time>/` holds config.yaml, run.json, metrics.jsonl, log.txt, checkpoints/ and
plots/; `<parent>/<name>/latest` points at the newest. Files that are rewritten (run.json) appear
whole or not at all; files that grow (metrics.jsonl, log.txt) are flushed once a second, so a killed
run loses at most the lines of its last moment. Nothing is written through a link that lies in the
directory, which may have come from someone else. All numbers are valid JSON: what is not finite is
null, which pandas and every other reader take as a missing value (run.json's status says what
happened).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import operator
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..common import files
from ..common.version import __version__
from ..errors import ConfigError, DataError, LaunchError
from .metrics import LEADING, RESERVED, WALL_CLOCK, Lines, rows_until

EVERY = 1.0  # second, in which lines that come one after the other are written at once
_WAY_OUT = "choose a place you can write with run_dir=PATH"
_STAMP = "%Y-%m-%d_%H-%M-%S"


class Gone(LaunchError):
    """The directory of a run is no longer where it was: what is written to it is lost."""


class RunDirectory:
    """The writing side, held open and locked by rank 0 while the run lasts.

    `create` makes the directory of a new run; the constructor opens one that exists.

    Args:
        path: an existing run directory.
        wait_s: how long to wait for another process that holds the run, in seconds.

    Raises LaunchError (exit code 5), here and in every method that writes: locked (naming host and
    pid of the holder) or not writable (naming the path and the system's reason).

    Example:
        with RunDirectory.create("runs", "linreg") as run:
            run.write("config.yaml", text)
            run.log_metrics({"split": "train", "step": 1, "epoch": 0.1, "samples": 64, "loss": 2.5})
            run.update(status="finished", exit_code=0)
    """

    def __init__(self, path: str | Path, wait_s: float = 0.0) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.metrics_file = self.path / "metrics.jsonl"
        with contextlib.ExitStack() as opened, self._refusing("cannot write in"):
            for name in ("checkpoints", "plots", "trace", "board"):
                files.refuse_link(self.path / name)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, self._descriptor)
            self._holder = files.open_to_write(self.path / "run.lock", os.O_RDWR)
            opened.callback(os.close, self._holder)
            self._acquire(wait_s)
            for name in ("run.json", "config.yaml"):  # who has left half of one is dead
                files.clear_partials(self.path / name, 0.0)

            def lines(path: Path) -> Lines:
                refuses = partial(self._refusing, f"cannot write {path.name} in")
                return opened.enter_context(contextlib.closing(Lines(path, refuses)))

            self._log, self._metrics = lines(self.path / "log.txt"), lines(self.metrics_file)
            self._updating = threading.Lock()
            info = self.path / "run.json"
            self._info = read_run_json(info) if info.exists() else {}
            self._opened = opened.pop_all()

    @classmethod
    def create(
        cls, parent: str | Path, name: str, now: datetime | None = None, config_text: str = ""
    ) -> RunDirectory:
        """Make `<parent>/<name>/<time>` (local time) with its config.yaml; point `latest` at it.

        It is a run as soon as it has a run.json, which comes last: whoever is killed before has
        left none, and one that can be resumed after.

        Runs that start in the same second get `<time>-2`, `<time>-3`, ... Raises ConfigError for a
        name that is not a file name, LaunchError when the directory cannot be made.
        """
        if name in ("", ".", "..", "latest") or "/" in name or not name.isprintable():
            raise ConfigError(f"name: expected a plain file name, got {name!r}")
        try:
            now = now or datetime.now().astimezone()
        except ValueError as error:
            zone = os.environ.get("TZ")
            raise LaunchError(f"the time zone {zone!r} cannot be used: {error}; set TZ") from error
        path = _make_unique(Path(os.path.expanduser(parent)) / name, now.strftime(_STAMP))
        return cls._begun(path, name, now, config_text, path.with_name("latest"), git=git_state())

    @classmethod
    def create_member(cls, path: Path, name: str, config_text: str, **of: Any) -> RunDirectory:
        """Make the directory of a member of a sweep at `path`; its run.json says `of` the sweep.

        Raises LaunchError when it cannot be made.
        """
        with files.refusing(f"cannot make the run directory {path}", f"\n{_WAY_OUT}"):
            for each in (path.parent, path):
                files.make_directory(each)
        return cls._begun(path, name, datetime.now().astimezone(), config_text, None, **of)

    @classmethod
    def _begun(
        cls, path: Path, name: str, now: datetime, text: str, latest: Path | None, **fields: Any
    ) -> RunDirectory:
        run = cls(path)
        try:
            run.write("config.yaml", text)
            if latest and (latest.is_symlink() or not latest.exists()):  # else someone's own
                files.point(latest, path)
            run.update(
                status="running",
                exit_code=None,
                id=os.urandom(16).hex(),
                name=name,
                started=now.isoformat(timespec="seconds"),
                versions=versions(),
                command=command_line(),
                **fields,
            )
        except BaseException:
            run.close()
            raise
        return run

    def info(self, field: str, default: Any = None) -> Any:
        """A field of run.json."""
        return self._info.get(field, default)

    def update(self, **fields: Any) -> None:
        """Set fields of run.json: status, exit_code, params_sha256, hosts, ranks, timings, best.

        A status is running, finished, stopped, paused (by halving), diverged or failed.
        """
        with self._updating:
            self._info.update(fields)
            self.write("run.json", _in_json(self._info, indent=2) + "\n")

    def note_checkpoint(self) -> None:
        """Say in run.json that there is a checkpoint; from any thread."""
        if not self.info("has_checkpoints"):
            self.update(has_checkpoints=True)

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one object to metrics.jsonl; it is written at the next `flush`.

        `split`, `step` (int), `epoch` (float) and `samples` (int, seen so far) come first, then
        `loss`, then metrics in the order given; wall-clock values come last and are named `time`
        (seconds since the start), `samples_per_s` and `comm_share` (0 to 1) and nothing else, so
        that the rest of a row is bitwise the same after a resume. Floats are written in the
        shortest form that reads back to the same float64.
        """
        metrics = [key for key in row if key not in RESERVED]
        ordered = {key: row[key] for key in (*LEADING, *metrics, *WALL_CLOCK) if key in row}
        self._metrics.add(_in_json(ordered))

    def rows_so_far(self) -> dict[str, Any]:
        """Length and sha256 of metrics.jsonl with all rows, which a checkpoint keeps for `trim`.

        They may not be written yet; before the checkpoint is, `sync` waits for them.
        """
        return {"metrics_bytes": self._metrics.length, "metrics_sha256": self._metrics.sha256()}

    def flush(self, after: float = 0.0) -> None:
        """Write all rows and lines, which a kill does not lose from then on.

        after: only where so many seconds have gone by since the last time.
        """
        self._metrics.flush(after)
        self._log.flush(after)

    def sync(self) -> None:
        """Wait until the disk has the metrics, of which a checkpoint is about to speak."""
        self._look()
        self._metrics.sync()

    def trim_metrics(self, step: int = 0, rows: Mapping[str, Any] | None = None) -> str:
        """Forget the rows after a checkpoint, of a step, which has kept `rows_so_far`; else all.

        Returns what there is to say of rows that are not those that the checkpoint has seen: all
        that can be read and are of no later step stay, and the file is kept as it was beside.
        """
        length, size = rows["metrics_bytes"] if rows else 0, self._metrics.length
        if rows is None or (
            size >= length and rows["metrics_sha256"] == self._metrics.sha256(length)
        ):
            self._metrics.trim(length)
            return ""
        aside = self.path / f"metrics.before-step-{step}.jsonl"
        with self._refusing("cannot keep the rows in"):
            content = files.read_plain(self.metrics_file, size)
            files.write_whole(aside, content)
        kept, steps = rows_until(content, step)
        self._metrics.trim(0)
        for line in kept:
            self._metrics.add(line)
        found = f"{size:,} bytes" if size < length else "different rows"
        last = f"up to step {max(steps):,}" if steps else "none"
        return (
            f"damaged file: {self.metrics_file} has {found}, and had {length:,} bytes at the "
            f"checkpoint of step {step:,}; the run goes on whole, and its rows that can be read "
            f"stay ({len(kept):,}, {last}); the file as it was is {aside}"
        )

    def log(self, line: str) -> None:
        """Append a line to log.txt, which is written now or, of many in a second, at a `flush`."""
        self._log.add(line)
        self._log.flush(EVERY)

    def close(self) -> None:
        """Close the files and release the lock; does nothing the second time."""
        with contextlib.suppress(OSError):  # a full disk was reported by the write that failed
            self._opened.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, name: str, text: str) -> None:
        """Write a whole file: a reader never sees half of it."""
        self._look()
        with self._refusing(f"cannot write {name} in"):
            files.write_whole(self.path / name, text.encode())

    def _look(self) -> None:
        """Raise Gone where the directory that was opened is no longer at its path."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                return
        raise Gone(
            f"the run directory {self.path} is gone: it was removed or moved while the run went "
            "on\nwhat was moved goes on where it is now, with microtrain resume; what was removed "
            "has to begin again"
        )

    def _refusing(self, what: str) -> AbstractContextManager[None]:
        """Turn the file system's refusal into a LaunchError with a way out."""
        return files.refusing(f"{what} the run directory {self.path}", f"\n{_WAY_OUT}")

    def _acquire(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                # A lock belongs to the open file and goes with the process, however it dies. That
                # of the directory cannot be removed as a file can; the file says who holds it, and
                # is all that there is where no directory can be locked (NFS).
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
                        raise
                fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._holder, 1000, 0).decode(errors="replace").strip()
                    raise LaunchError(
                        f"the run directory {self.path} is in use by {holder or 'another process'}"
                        f"\nwait for it to end, or stop it"
                    ) from None
                time.sleep(0.05)
        os.ftruncate(self._holder, 0)
        os.pwrite(self._holder, f"host {socket.gethostname()}, pid {os.getpid()}\n".encode(), 0)


def _make_unique(base: Path, stamp: str) -> Path:
    with files.refusing(f"cannot make the run directory {base / stamp}", f"\n{_WAY_OUT}"):
        for each in reversed((base, *base.parents)):
            files.make_directory(each, links=True)
        for number in itertools.count(1):
            path = base / (stamp if number == 1 else f"{stamp}-{number}")
            with contextlib.suppress(FileExistsError):  # two runs that start together share none
                path.mkdir()
                break
        with contextlib.suppress(PermissionError):
            files.sync_directory(base)
    return path


def _in_json(value: Any, indent: int | None = None) -> str:
    """`value` as JSON: NumPy's numbers as Python's, what is not finite as null.

    A byte in a path that is not UTF-8 is half of a surrogate pair, which no reader of JSON takes.
    """
    as_list = operator.methodcaller("tolist")
    with contextlib.suppress(ValueError):  # for what is not finite
        text = json.dumps(value, default=as_list, allow_nan=False, indent=indent)
        if "\\ud" not in text:
            return text
    text = json.dumps(value, default=as_list, ensure_ascii=False)
    text = re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half[0]):04x}", text)
    return json.dumps(json.loads(text, parse_constant=lambda name: None), indent=indent)


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

    Dirty means that tracked files differ from the commit. None: no git, no repository, no commit
    yet, or no answer within 5 seconds.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # only look: leave the index as it is
    try:
        said = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, dirty, _ = said.stdout.decode(errors="replace").strip().partition("-dirty")
    return {"commit": commit, "dirty": bool(dirty)}


def read_run_json(path: Path) -> dict[str, Any]:
    """The object in a run.json, unchecked; DataError where there is none, OSError."""
    try:
        return files.read_object(path)
    except ValueError as error:
        raise DataError(f"damaged file: {path}: {error}") from error


def note_end(path: Path, code: int, error: str) -> None:
    """Let run.json say how a run has failed whose own writer could not say anything.

    Nothing where it has, or where it cannot be written.
    """
    with contextlib.suppress(OSError, DataError):
        info = read_run_json(path / "run.json")
        if info.get("status") == "running":
            info |= {"status": "failed", "exit_code": code, "error": error}
            files.write_whole(path / "run.json", (json.dumps(info, indent=2) + "\n").encode())


_DIRECTORY = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


def newest_run(directory: Path) -> Path | None:
    """What `latest` points at, else the run of the greatest time (and number) in its name."""
    runs: dict[tuple[str, int], Path] = {}
    for entry in directory.iterdir() if directory.is_dir() else ():
        match = _DIRECTORY.fullmatch(entry.name)
        if (match or entry.name == "latest") and (entry / "run.json").exists():
            runs[(match[1], int(match[2] or 1)) if match else ("latest", 0)] = entry
    return runs[max(runs)] if runs else None  # "latest" is greater than any digit


def find_run(path: str | Path) -> Path:
    """The run directory that is meant by `path`."""
    directory = Path(os.path.expanduser(path))
    if not directory.is_dir():
        link = "it is a link to nothing" if directory.is_symlink() else "there is no such directory"
        raise DataError(
            f"no run at {path}: {'it is a file' if directory.exists() else link}\n"
            f"expected a run directory, or <run_dir>/<name> for the newest run of that name"
            + (f"\n{files.from_torch(path)}" if directory.suffix.lower() in files.TORCH else "")
        )
    run = directory if (directory / "run.json").exists() else newest_run(directory)
    if run is None:
        raise DataError(
            f"no run in {path}: looked for {directory / 'run.json'} and "
            f"{directory / '<time>/run.json'}"
        )
    if not (run / "config.yaml").exists():
        raise DataError(f"the run {run} is not complete: it has no config.yaml")
    return run
