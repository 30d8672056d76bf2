"""The directory of one run: made before training, written by rank 0 alone, read by other commands.

`<parent>/<name>/<time>/` holds config.yaml, run.json, metrics.jsonl, log.txt, checkpoints/ and
plots/; `<parent>/<name>/latest` points at the newest. Files that are rewritten (run.json) appear
whole or not at all; files that grow (metrics.jsonl, log.txt) are flushed line by line, so a killed
run loses at most the line it was writing. All numbers are valid JSON: what is not finite is null,
which pandas and every other reader take as a missing value (run.json's status says what happened).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..errors import ConfigError, DataError, LaunchError
from .checkpoint import list_checkpoints, reason, sync_directory, write_synced
from .provenance import git_state, versions

__all__ = ["STATUSES", "Run", "RunDirectory", "newest_run", "open_run", "read_metrics"]

STATUSES = ("running", "finished", "stopped", "diverged", "failed")
_LEADING = ("split", "step", "epoch", "samples", "loss")
_WALL_CLOCK = ("time", "samples_per_s", "comm_share")
_WAY_OUT = "choose a place you can write with run_dir=PATH"
_STAMP = "%Y-%m-%d_%H-%M-%S"
_DIRECTORY = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


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
            run.write_config(text)
            run.log_metrics({"split": "train", "step": 1, "epoch": 0.1, "samples": 64, "loss": 2.5})
            run.update(status="finished", exit_code=0)
    """

    def __init__(self, path: str | Path, wait_s: float = 0.0) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.plots = self.path / "plots"
        self.metrics_file = self.path / "metrics.jsonl"
        with contextlib.ExitStack() as opened, self._refusing("cannot write in"):
            self._lock = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
            opened.callback(os.close, self._lock)
            self._acquire(wait_s)
            self._log = opened.enter_context(_open_to_append(self.path / "log.txt"))
            self._metrics = opened.enter_context(_open_to_append(self.metrics_file))
            info = self.path / "run.json"
            self._info = _read_json(info) if info.exists() else {}
            self._opened = opened.pop_all()

    @classmethod
    def create(
        cls, parent: str | Path, name: str, now: datetime | None = None, config_text: str = ""
    ) -> RunDirectory:
        """Make `<parent>/<name>/<time>` (local time) with its config.yaml; point `latest` at it.

        It is a run as soon as it has a run.json, which comes last: whoever is killed before has
        left none, and one that can be resumed after.

        Runs that start in the same second get `<time>-2`, `<time>-3`, ... Raises ConfigError for a
        name that is no file name, LaunchError when the directory cannot be made.
        """
        if name in ("", ".", "..", "latest") or "/" in name or not name.isprintable():
            raise ConfigError(f"name: expected a plain file name, got {name!r}")
        now = now or datetime.now().astimezone()
        path = _make_unique(Path(os.path.expanduser(parent)) / name, now.strftime(_STAMP))
        run = cls(path)
        try:
            run.write_config(config_text)
            _point_latest_at(path)
            run.update(
                status="running",
                exit_code=None,
                name=name,
                started=now.isoformat(timespec="seconds"),
                versions=versions(),
                git=git_state(),
            )
        except BaseException:
            run.close()
            raise
        return run

    def info(self, field: str, default: Any = None) -> Any:
        """A field of run.json."""
        return self._info.get(field, default)

    def write_config(self, text: str) -> None:
        """Write config.yaml: the resolved configuration."""
        self._replace("config.yaml", text)

    def update(self, **fields: Any) -> None:
        """Set fields of run.json: status, exit_code, params_sha256, hosts, ranks, timings, best.

        Raises ValueError for a status that is none of `STATUSES`.
        """
        if fields.get("status", "running") not in STATUSES:
            raise ValueError(f"status is one of {', '.join(STATUSES)}, got {fields['status']!r}")
        self._info.update(fields)
        self._replace("run.json", json.dumps(_plain(self._info), indent=2) + "\n")

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one object to metrics.jsonl and flush.

        `split`, `step` (int), `epoch` (float) and `samples` (int, seen so far) come first, then
        `loss`, then metrics in the order given; wall-clock values come last and are named `time`
        (seconds since the start), `samples_per_s` and `comm_share` (0 to 1) and nothing else, so
        that the rest of a row is bitwise the same after a resume. Floats are written in the
        shortest form that reads back to the same float64.
        """
        leading = [key for key in _LEADING if key in row]
        wall_clock = [key for key in _WALL_CLOCK if key in row]
        middle = [key for key in row if key not in _LEADING and key not in _WALL_CLOCK]
        ordered = {key: row[key] for key in (*leading, *middle, *wall_clock)}
        with self._refusing("cannot write metrics.jsonl in"):
            self._metrics.write(json.dumps(_plain(ordered)) + "\n")
            self._metrics.flush()

    @property
    def metrics_bytes(self) -> int:
        """The length of metrics.jsonl, which a checkpoint keeps for `trim_metrics`."""
        return os.fstat(self._metrics.fileno()).st_size

    def sync(self) -> None:
        """Wait until the disk has the metrics, of which a checkpoint is about to speak."""
        os.fsync(self._metrics.fileno())

    def trim_metrics(self, length: int) -> None:
        """Forget the rows after a checkpoint; DataError where rows before it are missing."""
        found = self.metrics_bytes
        if found < length:
            raise DataError(
                f"damaged file: {self.metrics_file} has {found:,} bytes, but the checkpoint was "
                f"written when it had {length:,}"
            )
        with self._refusing("cannot trim metrics.jsonl in"):
            os.ftruncate(self._metrics.fileno(), length)
            os.fsync(self._metrics.fileno())

    def log(self, line: str) -> None:
        """Append a line to log.txt and flush."""
        with self._refusing("cannot write log.txt in"):
            self._log.write(line + "\n")
            self._log.flush()

    def close(self) -> None:
        """Close the files and release the lock; does nothing the second time."""
        with contextlib.suppress(OSError):  # a full disk was reported by the write that failed
            self._opened.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace(self, name: str, text: str) -> None:
        """Write a whole file beside and rename it: a reader never sees half of it."""
        partial = self.path / f".{name}.partial"
        with self._refusing(f"cannot write {name} in"):
            partial.unlink(missing_ok=True)
            try:
                write_synced(partial, text.encode())
                partial.replace(self.path / name)
            except OSError:
                partial.unlink(missing_ok=True)  # on a full disk its space is wanted
                raise
            sync_directory(self.path)

    @contextlib.contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Turn the file system's refusal into a LaunchError with a way out."""
        try:
            yield
        except OSError as error:
            raise LaunchError(
                f"{what} the run directory {self.path}: {reason(error)}\n{_WAY_OUT}"
            ) from error

    def _acquire(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                # The lock belongs to the open file and goes with the process, however it dies.
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._lock, 1000, 0).decode(errors="replace").strip()
                    raise LaunchError(
                        f"the run directory {self.path} is in use by {holder or 'another process'}"
                        f"\nwait for it to end, or stop it"
                    ) from None
                time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"host {socket.gethostname()}, pid {os.getpid()}\n".encode(), 0)


@dataclass(frozen=True)
class Run:
    """The reading side: what a run left behind, for evaluate, plot and report.

    Attributes:
        path: the run directory, links resolved.
        config_text: its config.yaml.
        info: its run.json.
        checkpoints: its complete checkpoints, oldest first; may be empty.
    """

    path: Path
    config_text: str
    info: dict[str, Any]
    checkpoints: list[Path]


def open_run(path: str | Path) -> Run:
    """Find a run to read: its directory, a `latest` link, or `<runs>/<name>` for its newest run.

    Raises DataError (exit code 3) saying what is missing and what was looked for.
    """
    given = Path(os.path.expanduser(path))
    try:
        if not given.is_dir():
            link = "it is a link to nothing" if given.is_symlink() else "there is no such directory"
            raise DataError(
                f"no run at {path}: {'it is a file' if given.exists() else link}\n"
                f"expected a run directory, or <run_dir>/<name> for the newest run of that name"
            )
        found = given if (given / "run.json").exists() else newest_run(given)
        if found is None:
            raise DataError(
                f"no run in {path}: looked for {given / 'run.json'} and {given / '<time>/run.json'}"
            )
        if not (found / "config.yaml").exists():
            raise DataError(f"the run {found} is not complete: it has no config.yaml")
        return Run(
            path=found.resolve(),
            config_text=(found / "config.yaml").read_text(encoding="utf-8"),
            info=_read_json(found / "run.json"),
            checkpoints=list_checkpoints(found / "checkpoints"),
        )
    except (OSError, UnicodeDecodeError) as error:
        detail = reason(error) if isinstance(error, OSError) else "config.yaml is not UTF-8"
        raise DataError(f"cannot read the run {path}: {detail}") from error


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, null read as nan; a last line cut short by a kill is left out.

    Raises DataError naming the line of anything else that is not a JSON object.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read the metrics of a run: {reason(error)}") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: not a JSON object")
        rows.append({key: math.nan if value is None else value for key, value in row.items()})
    return rows


def _open_to_append(path: Path) -> TextIO:
    return open(path, "a", encoding="utf-8", errors="backslashreplace")


def _make_unique(base: Path, stamp: str) -> Path:
    number = 1
    while True:
        path = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            base.mkdir(parents=True, exist_ok=True)
            path.mkdir()  # fails if it exists: two runs that start together cannot share it
            return path
        except OSError as error:
            if isinstance(error, FileExistsError) and os.path.lexists(path):
                number += 1
                continue
            first = next((p for p in (base, *base.parents) if os.path.lexists(p)), base)
            why = reason(error) if first.is_dir() else f"{first} is not a directory"
            raise LaunchError(f"cannot make the run directory {path}: {why}\n{_WAY_OUT}") from error


def _point_latest_at(path: Path) -> None:
    latest = path.parent / "latest"
    partial = path.parent / f".latest.{path.name}"
    if latest.exists() and not latest.is_symlink():
        return  # someone's own file or directory
    with contextlib.suppress(OSError):  # a file system without links: open_run does without
        partial.symlink_to(path.name)
        partial.replace(latest)


def newest_run(directory: Path) -> Path | None:
    """What `latest` points at, else the run of the greatest time (and number) in its name."""
    runs: dict[tuple[str, int], Path] = {}
    for entry in directory.iterdir() if directory.is_dir() else ():
        match = _DIRECTORY.fullmatch(entry.name)
        if (match or entry.name == "latest") and (entry / "run.json").exists():
            runs[(match[1], int(match[2] or 1)) if match else ("latest", 0)] = entry
    return runs[max(runs)] if runs else None  # "latest" is greater than any digit


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"damaged file: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"damaged file: {path} holds no JSON object")
    return content


def _plain(value: Any) -> Any:
    """`value` as JSON has it: NumPy scalars and arrays as Python's, non-finite floats as null."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
