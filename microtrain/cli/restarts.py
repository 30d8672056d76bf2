"""`microtrain launch --restarts N`: a job that ends by a fault is started again, by itself.

This process starts mpirun and waits. It reads nothing of the run but where it is; what the next
start goes on from, the ranks keep and find themselves (see `common/job.py`). A fault is what no
program has decided: a rank, mpirun or a host that is gone, or a hang that the watchdog has ended. A
Python exception, a wrong configuration, or an end that was asked for is none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..common import job
from ..common.words import elapsed
from ..errors import DataError, LaunchError
from ..runs.directory import note_end, read_run_json
from ..train.run import RANKS_FILE
from .mpirun import Line

# Exit codes that a further start would not change: done, wrong input, diverged, no MPI, Ctrl-C.
FINAL = (0, 2, 3, 4, 5, 130)
STOPPED = 75
TRIES = 3  # ends in a row at the same state, by which a fault is known to come again
# The last but one asks for an end after the step under way.
FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
# Seconds between two looks, and how many in a row at which mpirun has no process under it any more:
# MPICH's may wait forever where these were killed while they began.
LOOK, ALONE = 5.0, 3
REACHES = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


class Job:
    """All starts of one job.

    Args:
        line: of a number of ranks, `hosts` and `environ`.
        ranks: of the first start.
        restarts: at most so many further ones after a fault.
        hosts: where; none: here, or where a scheduler says.
        gently: whether mpirun kills its ranks when it is told to end, and so has to ask them first.
        least: with how many ranks it may go on where a host is gone; None: with all.
        in_place: whether ranks that live go on without one that is lost.
        spares: how many more wait until then.
    """

    def __init__(
        self, line: Callable[..., Line], ranks: int, restarts: int, hosts: Sequence[str],
        least: int | None, gently: bool, in_place: bool = False, spares: int = 0,
    ) -> None:  # fmt: skip
        self.line, self.ranks, self.restarts = line, ranks, restarts
        self.hosts, self.least, self.gently = hosts, least, gently
        self.in_place, self.spares = in_place, spares
        self.again = ""
        self.ended_by: int | None = None  # the signal that has asked for the end

    def run(self) -> int:
        """Start it until it has come to its end; returns its exit code."""
        place = job.begin()
        job.remove_left_behind(_is_useless)
        signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
        try:
            return self._starts(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _starts(self, place: Path) -> int:
        left, seen, first = self.restarts, list[set[Path]](), time.time()
        before = self.ranks  # with which it ran, where others have been asked for
        while True:
            began = time.monotonic()
            code = self._start()
            now, took = time.time(), elapsed(time.monotonic() - began)
            run = place / "run"
            if self.in_place:  # 0 is that of ranks that were all killed
                code = {job.LEFT: 0, 0: 128 + signal.SIGKILL}.get(code, code)
            if code == 2 and before != self.ranks:
                _say(f"cannot go on with {self.ranks} ranks: going on with {before}")
                self.ranks = before
                continue
            before = self.ranks
            if code == STOPPED and not self.ended_by and (asked := _taken(run / RANKS_FILE)):
                if asked.isdecimal() and int(asked):
                    self.ranks = int(asked)
                how = f"{RANKS_FILE} asks for {asked!r}"
                _say(f"going on with {self.ranks} ranks: {run.resolve()}/{how}")
                self.again = f"{first} {now} the job ended ({how})"
                continue
            if code in (*FINAL, STOPPED) or self.ended_by or (place / "failed").exists():
                break
            signals = {128 + number for number in signal.valid_signals()}
            how = f"signal {code - 128}" if code in signals else f"exit code {code}"
            seen.append(_states(place, run))
            why = ""
            if not (place / "launcher").exists():
                why = f", and {place}, which knew its run, was removed meanwhile"
            elif run.exists() and seen[-TRIES:] == [seen[-1]] * TRIES:
                why = f", {TRIES} times at the same state"
            elif not left:
                why = f" after {self.restarts} restarts"
            if why:
                _say(f"the job ended with {how}{why}: not started again")
            if why or not self._find_ranks():
                break
            left -= 1
            start = f"{self.ranks} ranks, restart {self.restarts - left} of {self.restarts}"
            _say(f"the job ended with {how} after {took}; starting it again with {start}")
            self.again = f"{first} {now} the job ended ({how})"
        if code:
            note_end(run, code, f"the job ended with exit code {code}")
        return code

    def _start(self) -> int:
        """One start; returns the exit code, as shells give it."""
        own = {job.NAME: job.name(), job.AGAIN: self.again}
        own |= {job.IN_PLACE: str(self.ranks)} if self.in_place else {}
        environ = {**os.environ, **own}
        line = self.line(self.ranks + self.spares, hosts=self.hosts, environ=environ)
        _say(f"$ {line}")
        # What a terminal sends reaches this process alone then; and nobody else reads from it.
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        apart: Any = {"setpgroup": 0, "file_actions": actions} if self.gently else {}
        try:
            process = os.posix_spawn(
                line.command[0], line.command, {**environ, **line.environment},
                setsigmask=(), setsigdef=(signal.SIGPIPE,), **apart,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(f"cannot start {line.command[0]}: {error.strerror}") from error
        alone = 0
        while True:
            found = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, LOOK)
            if found is None:
                alone = 0 if _has_children(process) else alone + 1
                if alone == ALONE:
                    os.kill(process, signal.SIGKILL)
                continue
            if found.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return 128 - code if code < 0 else code
                continue
            number, again = found.si_signo, self.ended_by
            if number != signal.SIGUSR2:
                self.ended_by = number
            if self.gently and not again and number in (signal.SIGTERM, signal.SIGINT):
                number = signal.SIGUSR1
            # A terminal sends a signal to all of its processes, another process to this one.
            if self.gently or found.si_code <= 0:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def _find_ranks(self) -> bool:
        """Leave out hosts that are gone; whether enough ranks are left."""
        gone = [host for host in self.hosts if not _reachable(host)] if self.least else []
        if not gone:
            return True
        each = {host: self.ranks // len(self.hosts) for host in self.hosts}
        for host in self.hosts[: self.ranks % len(self.hosts)]:
            each[host] += 1
        self.hosts = [host for host in self.hosts if host not in gone]
        self.ranks = sum(each[host] for host in self.hosts)
        _say(f"cannot be reached: {', '.join(gone)}")
        if self.ranks < (self.least or 1):
            _say(f"{self.ranks} ranks are left, fewer than --min-ranks {self.least}")
            return False
        return True


def _say(text: str) -> None:
    click.echo(f"microtrain: {text}" if text[0] != "$" else text, err=True)


def _has_children(process: int) -> bool:
    """Whether a process has others under it; true where the system does not tell."""
    try:
        return any(c.read_text() for c in Path(f"/proc/{process}/task").glob("*/children"))
    except OSError:
        return True


def _reachable(host: str) -> bool:
    if host in ("localhost", os.uname().nodename):
        return True
    try:
        said = subprocess.run(
            [*REACHES, host, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=15,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0


def _taken(file: Path) -> str:
    """What a file says that is removed; empty where there is none."""
    with contextlib.suppress(OSError):
        said = file.read_text(errors="replace")[:100].strip()
        file.unlink()
        return said or "nothing"
    return ""


def _is_useless(place: Path) -> bool:
    """Whether nobody would go on from what a job has left."""
    with contextlib.suppress(OSError, DataError):
        ended = read_run_json(place / "run" / "run.json").get("status") in ("finished", "diverged")
        return ended or not any(place.glob("states/*/step-*"))
    return True


def _states(place: Path, run: Path) -> set[Path]:
    """All that a further start could go on from, of a sweep those of its members."""
    return {*place.glob("states/*/step-*"), *run.resolve().glob("**/checkpoints/step-*")}
