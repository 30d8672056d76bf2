"""What a job that its launcher starts again keeps in memory on each host, under one name.

`microtrain launch --restarts` gives all starts of a job one name. Under it lie the newest state of
its runs (as a checkpoint), their rows as they are trained on, a link to the run, and what a program
of its own ended with, which a further start would not mend. Each process that uses them holds a
lock, so what nobody holds was left by a job that was killed as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import LaunchError
from .files import refusing

NAME: Final = "MICROTRAIN_JOB"  # of the job
# The times of the first start and of the last end, in seconds since 1970, and how that was.
AGAIN: Final = "MICROTRAIN_STARTED_AGAIN"
# With how many ranks the job trains that goes on in place where one is lost; more of them wait.
IN_PLACE: Final = "MICROTRAIN_IN_PLACE"
# What this process was given. What it starts itself is no rank of the job.
_GIVEN: Final = {name: os.environ.pop(name, "") for name in (NAME, AGAIN, IN_PLACE)}
_MEMORY: Final = Path("/dev/shm")
# With what a rank leaves a job in place at its end: mpirun says 0 of one that was killed as well.
LEFT: Final = 76
_BEGUN: Final = time.time()
_HELD: list[int] = []  # descriptors of locks, of the process that has taken them


def _beginning() -> str:
    return f"microtrain-job-{os.getuid()}-"


def _memory() -> Path:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def begin() -> Path:
    """Make a job of this launcher, whose starts are to have NAME; LaunchError without room."""
    _GIVEN[NAME] = os.urandom(8).hex()
    if (found := enter()) is None:
        raise LaunchError(f"--restarts keeps what a job goes on from in {_memory()}: no room there")
    (found / "launcher").touch()
    return found


def name() -> str:
    """Of the job of this process; empty where its launcher will not start it again."""
    return _GIVEN[NAME] if _GIVEN[NAME].isalnum() else ""


def place() -> Path | None:
    """The directory of this process's job; None where its launcher will not start it again."""
    return _memory() / f"{_beginning()}{name()}" if name() else None


def enter() -> Path | None:
    """The same, made and held until this process ends; None where that cannot be had."""
    if (found := place()) is None or (_HELD and not found.exists()):  # gone: the job has ended
        return None
    try:
        found.mkdir(0o700, exist_ok=True)
        if not _is_ours(found):
            return None
        if not _HELD:
            _HELD.append(os.open(found / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(_HELD[0], fcntl.LOCK_SH)
    except OSError:
        return None
    return found


def started_again() -> tuple[float, float, str] | None:
    """When the job began, when it has ended and how; None: this is its first start."""
    began, ended, *how = _GIVEN[AGAIN].split(" ", 2) + ["", ""]
    try:
        return float(began), float(ended), how[0]
    except ValueError:
        return None


def in_place() -> int:
    """How many ranks train where those that live go on without one that is lost; 0: they do not."""
    return int(_GIVEN[IN_PLACE]) if name() and _GIVEN[IN_PLACE].isdecimal() else 0


def go_on(how: str) -> None:
    """This process begins its command anew, for what `how` says."""
    now, before = time.time(), started_again()
    _GIVEN[AGAIN] = f"{before[0] if before else _BEGUN} {now} {how}"


def leave() -> None:
    """Keep nothing more on a host where the launcher is not, which removes it on its own."""
    if (found := place()) is not None and not (found / "launcher").exists():
        shutil.rmtree(found, ignore_errors=True)


def seconds_of(run: Path) -> float:
    """How long it is since the first start of this job began a run; 0.0 for another run."""
    again = started_again()
    return 0.0 if again is None or begun_run() != run.resolve() else time.time() - again[0]


def is_first(settings: str) -> bool:
    """Whether a run of these settings is the first that the job has had."""
    if (found := enter()) is None:
        return False
    link = found / "settings"  # to a hash: where memory is full, there is room for that still
    mine = hashlib.sha256(settings.encode()).hexdigest()
    with contextlib.suppress(OSError):
        link.symlink_to(mine)
    return link.is_symlink() and os.readlink(link) == mine


def begun_run() -> Path | None:
    """The run that earlier starts of this job were of."""
    if (found := place()) is None or started_again() is None or not (found / "run").is_dir():
        return None
    return (found / "run").resolve()


def note_run(path: Path) -> None:
    """Let the launcher know which run the job is; LaunchError where there is no room for that."""
    if (found := enter()) is not None:
        what = f"a further start would not find the run by {found / 'run'}"
        way_out = "\nmake room there, or start it without --restarts"
        with refusing(what, way_out), contextlib.suppress(FileExistsError):  # of a start before
            (found / "run").symlink_to(path.absolute())


def note_failure(text: str) -> None:
    """Let the launcher know that a further start would end alike: a program has raised an error."""
    if (found := enter()) is not None:
        with contextlib.suppress(OSError):
            (found / "failed").write_text(text, errors="replace")


def states_of(run: str) -> list[Path]:
    """Where jobs of this user have kept the state of a run, by the id of the run."""
    return [s for job in _jobs() if (s := job / "states" / run).is_dir()] if run.isalnum() else []


def forget_states(run: str) -> None:
    """A run has come to its end: nobody goes on from what was kept of it."""
    for states in states_of(run):
        shutil.rmtree(states, ignore_errors=True)
    remove_left_behind(lambda job: not any(job.glob("states/*")))


def left_behind() -> list[Path]:
    """The directories of jobs that were killed as a whole, on this host."""
    found = []
    for job in _jobs():
        with contextlib.suppress(OSError), open(job / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(job)
    return found


def remove_left_behind(useless: Callable[[Path], bool]) -> None:
    """Remove those of which nobody could go on."""
    for job in filter(useless, left_behind()):
        shutil.rmtree(job, ignore_errors=True)


def _jobs() -> list[Path]:
    return [path for path in _memory().glob(f"{_beginning()}*") if _is_ours(path)]


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have put it there: the directory above is everybody's."""
    try:
        info = path.lstat()
    except OSError:  # its job has ended meanwhile
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
