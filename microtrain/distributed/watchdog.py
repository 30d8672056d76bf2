"""No silent hang: who waits, in which call, for whom; and after long enough the end of the job.

A rank that raises ends the job (see `abort`). One that is stopped, loops, skips a collective or
has left raises nothing, and the others wait in MPI forever. So every rank has a thread that writes
down, once a second, what its main thread is doing, on a board that the ranks of a machine share. It
never calls MPI. A rank that waits reads the board: after `warn_s` seconds one of those that wait
says who waits where and who is missing; after `timeout_s` the ranks say where they are, each place
once, and the job ends with exit code 1. A rank whose program has ended without taking part will
never come: then the others do not wait that long. One that says that it is busy alone (see `alone`)
is given ten times as long, and as long as it takes where its words change: it is getting on.

Before MPI_Finalize, where nothing of Python is left to look at a clock, a rank waits here for the
others to come to their end. That has no limit while they run; it has one where all that is left of
them are threads which do not end, and what follows it has one, too (see `process_monitor`).

The board is a file in memory that nobody else can open: it has no name any more once all have it
open, so nothing is left behind. Ranks of other machines are seen where `share` has named a
directory that all can reach: one rank writes one file there for its machine, and what others wrote
is read only when somebody has waited long. So a job in order costs a file system one small file a
machine every few seconds, however many ranks it has.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import math
import mmap
import os
import socket
import struct
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from ..backend import alive
from ..common import job
from ..common.files import make_directory, read_object, reason, write_whole
from ..common.stack_frames import of_threads, user_place
from ..errors import ConfigError, LaunchError
from ..random import STREAM
from . import abort, process_monitor
from .agreement import settled
from .communicator import FORBIDDEN, PAIRWISE, Communicator, described, lines_by_rank, ranks_named
from .shared_memory import PLACE, zeros

RECORD: Final = 2**15  # bytes of the board for each rank
PERIOD: Final = 1.0  # seconds between two looks, less where the limits are short
GONE: Final = 2.0  # seconds from which a rank that has left is not waited for
LIMITS: Final = (30.0, 600.0)  # seconds: warn_s and timeout_s where nobody has set them
ALONE: Final = 10  # a rank that is busy alone, by its own word, is waited for so many times longer
LEFT: Final = ("the end of the program", 0)
OWN_LIMIT: Final = "distributed.timeout_s"
SIGHT: Final = 5.0  # seconds between two files of a machine, and between two looks at those
ENDING: Final = "ending.json"  # where those of other machines learn that the job ends

Record = dict[str, Any]


def limits(warn_s: float, timeout_s: float) -> None:
    """Set how long a rank may wait in a collective: until all are told, and until the job ends.

    Seconds; `math.inf` is never. Without other ranks there is nothing to wait for. Raises
    ConfigError unless both are above 0.
    """
    for name, value in (("warn_s", warn_s), ("timeout_s", timeout_s)):
        if not value > 0:
            raise ConfigError(f"{name}: expected seconds above 0 (inf: never), found {value!r}")
    if _WATCHDOG:
        _WATCHDOG[0].warn_s, _WATCHDOG[0].timeout_s = float(warn_s), float(timeout_s)


def configure(warn_s: float, timeout_s: float) -> None:
    """`limits` of a configuration: those of the environment, where it has some, win."""
    limits(seconds("MICROTRAIN_WARN_S", warn_s), seconds("MICROTRAIN_TIMEOUT_S", timeout_s))


def share(directory: Path | None) -> None:
    """Let ranks of other machines be seen: `directory` is one that all machines can reach."""
    if _WATCHDOG and _WATCHDOG[0].comm.num_nodes > 1:
        _WATCHDOG[0].board.directory = directory


def watches() -> bool:
    """Whether this process is watched."""
    return bool(_WATCHDOG)


def start(comm: Communicator, communicators: WeakSet[Any], everyone: bool = True) -> None:
    """Watch the ranks of `comm` from now on, in place of those that were watched. Collective.

    The limits are those of MICROTRAIN_WARN_S and MICROTRAIN_TIMEOUT_S, or `LIMITS`.

    Args:
        comm: all ranks, or those that use microtrain.
        communicators: those of this process that are in use; they come and go in any thread.
        everyone: whether the job has no other ranks, for which MPI_Finalize would wait.
    """
    watchdog = Watchdog(comm, communicators, everyone)
    _WATCHDOG[:] = [watchdog]
    configure(*LIMITS)
    import concurrent.futures.thread  # noqa: F401  its hook waits for pools: this one comes before

    # Of the hooks of atexit, what is registered last runs first: this one when the threads have
    # ended, so before those that the program registers from now on.
    begin: Any = getattr(threading, "_register_atexit", lambda call, *args: call(*args))
    begin(atexit.register, watchdog.end_soon)
    begin(setattr, watchdog, "only_threads", True)
    threading.Thread(target=watchdog.watch, name="microtrain-watchdog", daemon=True).start()


def stop() -> None:
    """Watch nobody until the next `start`."""
    _WATCHDOG.clear()


def lift() -> None:
    """The program of this rank has ended, and others take what it has for them when they like."""
    for _ in _WATCHDOG:
        faulthandler.cancel_dump_traceback_later()
        process_monitor.tell(limit=None)


def leave() -> None:
    """The program of this rank has ended, its atexit hooks too."""
    for watchdog in _WATCHDOG:
        watchdog.leave()


_WATCHDOG: list[Watchdog] = []


def seconds(variable: str, default: float) -> float:
    """The seconds that a variable of the environment has. Raises ConfigError for another thing."""
    text = os.environ.get(variable)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ConfigError(f"{variable}: expected a number of seconds, found {text!r}") from None


class Board:
    """What the ranks have written about themselves; `comm` is all of them. Collective."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.place, self.places = comm.rank, comm.node_rank, comm.num_nodes
        self.directory: Path | None = None
        # Files of another job are not looked at: a run that is resumed finds those of before.
        self.job: str = comm.broadcast_object(os.urandom(8).hex())
        self._known = (False, False)  # what the file of this machine says of this rank already
        self._found: dict[int, Record] = {}
        self._read_at = -math.inf
        node = comm.node()
        self._lines = {rank: n for n, rank in enumerate(node.all_gather_object(comm.rank))}
        size = RECORD * (node.size + 1)  # the last line is the time of the file of this machine
        name = ""
        if node.rank == 0:
            try:
                name = zeros(PLACE, size)
            except OSError:  # there is none, or it is full
                name = zeros(None, size)
        name = node.broadcast_object(name)
        try:
            with settled(node):
                self._memory = _opened(name, size)
        finally:
            if node.rank == 0:
                os.unlink(name)

    def write(self, record: Record) -> None:
        """Put this rank's record up, and those of this machine where it is time for that."""
        record = record | {"at": record["at"][-200:], "stacks": record["stacks"][-10_000:]}
        record |= {n: record.get(n, "")[:200] for n in ("doing", "alone", "threads")}
        line = self._lines[self.rank]
        while len(text := json.dumps(record).encode() + b"\0") > RECORD:  # letters beyond ASCII
            record["stacks"] = record["stacks"][1000:]
        self._memory[line * RECORD : line * RECORD + len(text)] = text
        if self.directory is None:
            return
        known = record["left"], bool(record["stacks"])
        now, clock = time.monotonic(), len(self._lines) * RECORD
        (written,) = struct.unpack_from("d", self._memory, clock)
        # Another rank does it only where those before it do not: they may be stopped.
        if now <= written + SIGHT + line * PERIOD and known == self._known:
            return
        struct.pack_into("d", self._memory, clock, now)
        news = {"job": self.job, "ranks": {str(r): x for r, x in self.here().items()}}
        self._put(f"{self.place}.json", news)
        if record["stacks"] and not self._known[1]:
            self._put(ENDING, {"job": self.job})
        self._known = known

    def _put(self, name: str, content: Record) -> None:
        if self.directory is not None:
            try:
                make_directory(self.directory)
                write_whole(self.directory / name, json.dumps(content).encode(), sync=False)
            except OSError:  # seen less far is no reason to end a run
                self.directory = None

    def _get(self, name: str) -> Record:
        """What a file of this job says; empty: nothing, or nothing yet."""
        with contextlib.suppress(OSError, ValueError):
            if self.directory is not None:
                found = read_object(self.directory / name)
                return found if found.get("job") == self.job else {}
        return {}

    def all_left(self) -> bool:
        """Whether the programs of all ranks of this machine have ended."""
        seen = self.here()
        return all(rank in seen and _has_left(seen[rank]) for rank in self._lines)

    def here(self) -> dict[int, Record]:
        """The records of the ranks of this machine."""
        found = {}
        for rank, line in self._lines.items():
            with contextlib.suppress(ValueError):  # not yet written, or being written
                end = self._memory.find(b"\0", line * RECORD)
                found[rank] = json.loads(self._memory[line * RECORD : end])
        return found

    def elsewhere(self, pause: float) -> dict[int, Record]:
        """Those of the other machines that can be seen, as of at most `pause` seconds ago."""
        if time.monotonic() >= self._read_at + pause:
            self._read_at = time.monotonic()
            files = (self._get(f"{n}.json") for n in range(self.places) if n != self.place)
            self._found = {int(r): x for file in files for r, x in file.get("ranks", {}).items()}
        return self._found

    def ends_elsewhere(self) -> bool:
        """Whether a rank of another machine ends the job; one rank a machine looks."""
        return self._lines[self.rank] == 0 and bool(self._get(ENDING))


class Watchdog:
    """The thread that watches, and what it knows."""

    def __init__(
        self, comm: Communicator, communicators: WeakSet[Any], everyone: bool = True
    ) -> None:
        self.comm, self.communicators, self.everyone = comm, communicators, everyone
        self.warn_s = self.timeout_s = math.inf
        self.board = Board(comm)
        comm.barrier()  # the clocks of machines differ: all count from here on
        self.began = time.monotonic()
        self.watched = threading.current_thread()
        self.steps = vars(STREAM)  # of the thread that trains
        # The calls that this rank is in: their number in the communicator, and how long.
        self.waits: dict[Any, float] = {}
        self.longest: tuple[Any, int] | None = None
        self.busy: dict[int, str] = {}  # by rank what it is busy with alone
        # How long it has waited: now, when `busy` last changed, and when that was last said.
        self.waited = self.moved = self.told = 0.0
        self.here = self.closing = ""  # the stacks of this rank, once the job ends; what it ends in
        self.only_threads = False  # of this program, whose main thread has ended
        self.pairwise = False  # whether it is a message that this rank waits for
        self.left = False
        self.host, self.process = socket.gethostname(), os.getpid()
        self.board.write(self.record(""))

    def watch(self) -> None:
        """Look again and again, for as long as the process lives or another one does so."""
        before = time.monotonic()
        launcher = os.getppid()
        while self in _WATCHDOG:
            time.sleep(self.period())
            # It starts the job again, and those of before must not write into the run any more.
            if job.name() and os.getppid() != launcher:
                abort.end_process(1, why="has lost its launcher")
            now = time.monotonic()
            # A job that was suspended as a whole has not waited meanwhile.
            self.look(min(now - before, 3 * self.period()))
            before = now

    def period(self) -> float:
        """Seconds between two looks."""
        return max(0.05, min(PERIOD, self.warn_s / 4, self.timeout_s / 4))

    def end_soon(self) -> None:
        """This rank's program has ended, and its atexit hooks run: they may hang."""
        if os.getpid() == self.process:
            self.closing = "its atexit hooks run"
            self.limit("an atexit hook does not return")

    def limit(self, why: str) -> None:
        """Let the monitor end the job when this process is still there after `timeout_s`."""
        if math.isfinite(self.timeout_s):
            faulthandler.dump_traceback_later(self.timeout_s, file=2)
            text = f"has been ending for {self.timeout_s:g} s (distributed.timeout_s): {why}"
            process_monitor.tell(limit=self.timeout_s + 1.0, text=text, code=1)

    def leave(self) -> None:
        """Wait for the other ranks of this machine to come to their end, as MPI_Finalize would."""
        if os.getpid() != self.process:
            return
        self.left = True
        self.board.write(self.record(""))
        try:
            while not self.board.all_left():
                time.sleep(0.005)
        finally:
            process_monitor.tell(over=True)
            if self.everyone and self.comm.num_nodes == 1:
                self.limit("an atexit hook or MPI_Finalize does not return, here or elsewhere")

    def record(self, doing: str) -> Record:
        """What this rank writes about itself; `doing` is the collective that it waits in."""
        me = self.watched.ident or 0
        return {
            "time": time.monotonic() - self.began, "pid": os.getpid(), "host": self.host,
            "doing": doing, "waited": self.waited, "done": self.comm._done,
            "step": self.steps.get("step", 0), "at": user_place(of_threads([me]).get(me, ())),
            "left": self.left, "alone": FORBIDDEN.get(me, "" if self.left else self.closing),
            "threads": self.threads(), "stacks": self.here,
        }  # fmt: skip

    def threads(self) -> str:
        """The threads that alone keep this program from its end, and where they are."""
        if not self.only_threads or self.closing:
            return ""
        main = threading.main_thread()
        found = [t for t in threading.enumerate() if t is not main and not t.daemon]
        calls = of_threads([thread.ident for thread in found if thread.ident])
        return ", ".join(f"{t.name} at {user_place(calls.get(t.ident or 0, ()))}" for t in found)

    def look(self, elapsed: float) -> None:
        """Write this rank's record, read the others', and say or do what is due."""
        left, before = self.left, self.waits
        # Threads may be in calls of communicators of their own: each waits by itself. At its end a
        # rank waits for the others.
        calls = [
            (c, (c._done, c._passed), c._doing) for c in (() if left else alive(self.communicators))
        ]
        doing: dict[Any, Any] = {(c, done): what for c, done, what in calls if what}
        if left:
            doing[LEFT] = None
        self.waits = {at: before[at] + elapsed if at in before else 0.0 for at in doing}
        longest = max(doing, key=self.waits.__getitem__, default=None)
        if longest != self.longest:
            self.longest, self.told, self.moved = longest, 0.0, 0.0
        self.waited = self.waits.get(longest, 0.0)
        what = doing.get(longest)
        mine = self.record("" if what is None else described(*what))
        self.board.write(mine | {"left": self.left})
        seen = self.board.here()
        ends = any(x["stacks"] for x in seen.values()) or self.board.ends_elsewhere()
        if ends and not left and not self.here:
            self.here = _stacks()  # for the rank that ends the job
            self.board.write(mine | {"stacks": self.here})
        if longest is None:
            return
        seen |= self.far(self.first(seen))
        first = self.first(seen)  # one speaks for all that have waited about as long
        if left:
            others = [record for record in seen.values() if not record["left"]]
            over = any(map(self.silent, others)) or all(x.get("threads") for x in others)
            limit, whose, late = self.timeout_s if over else math.inf, OWN_LIMIT, math.inf
            if not others:
                return
        else:
            whole = longest[0] is self.comm
            due = seen
            self.pairwise = what is not None and what[0] in PAIRWISE
            if what is not None and self.pairwise and whole:  # nobody else needs to come
                due = {rank: x for rank, x in seen.items() if rank == what[1][0]}
            busy = self.busy | {rank: x["alone"] for rank, x in due.items() if x["alone"]}
            if busy != self.busy:  # it is getting on
                self.busy, self.moved = busy, self.waited if self.busy else self.moved
            gone = [
                rank for rank, x in due.items()
                if x["left"] and whole and (self.pairwise or x["done"] <= mine["done"])
            ]  # fmt: skip
            if gone and self.waited >= GONE and (first or self.waited >= 3 * GONE):
                self.end(f"{ranks_named(gone)} will not come", mine, seen)
                return
            alone = any(record["alone"] and not self.silent(record) for record in due.values())
            limit = self.moved + self.timeout_s * (ALONE if alone else 1)
            whose, late = f"{ALONE} times {OWN_LIMIT}" if alone else OWN_LIMIT, limit + 3 * GONE
            if what is not None and what[0] == "finish":
                limit = late = math.inf  # they may be at work
        if self.waited >= limit and (first or self.waited >= late):
            self.end(f"{limit:.4g} s are over ({whose})", mine, seen)
        elif first and self.waited >= max(self.warn_s, 2 * self.told):
            self.told = self.waited
            after = f"  after {limit:.4g} s the job ends ({whose})\n" if limit < math.inf else ""
            process_monitor.write(2, f"microtrain: {self.situation(mine, seen)}\n{after}")

    def first(self, seen: dict[int, Record]) -> bool:
        """Whether no lower rank of these waits as this one does, for about as long."""

        def waits(record: Record) -> bool:
            in_call = record["doing"] and 2 * record["waited"] > self.waited
            return bool(record["left"] if self.left else in_call)

        return not any(rank < self.comm.rank and waits(record) for rank, record in seen.items())

    def far(self, first: bool) -> dict[int, Record]:
        """The ranks of other machines: read after a long wait, by the `first` that waits here."""
        half = min(self.warn_s, self.timeout_s) / 2
        late = self.waited >= self.timeout_s + 3 * GONE  # that one may be stopped
        if self.waited < half or not (first or late):
            return {}
        return self.board.elsewhere(min(SIGHT, half))

    def age(self, record: Record) -> float:
        """For how many seconds a rank has shown no sign of life."""
        return float(time.monotonic() - self.began - record["time"])

    def silent(self, record: Record) -> bool:
        """Whether that is as long as a rank may wait."""
        return self.age(record) >= self.timeout_s

    def situation(self, mine: Record, seen: dict[int, Record]) -> str:
        """Who waits in which call, and where the others are: one line for each."""
        where = f"in {mine['doing']} at {_where(mine)}"
        if self.left:
            where = "for the others at the end of its program"
        lines = [
            f"rank {self.comm.rank} of {self.comm.size} has waited {self.waited:.0f} s {where}"
        ]
        others = (rank for rank in range(self.comm.size) if rank != self.comm.rank)
        lines += lines_by_rank((rank, self._about(seen.get(rank), mine)) for rank in others)
        return "\n".join(lines)

    def _about(self, record: Record | None, mine: Record) -> str:
        if record is None:
            return "on a machine that cannot be seen from here"
        host = "" if record["host"] == self.host else f" (host {record['host']})"
        if not self.left and all(record[name] == mine[name] for name in ("doing", "done")):
            place = "" if _where(record) == _where(mine) else f" at {_where(record)}"
            return f"in the same call{place}{host}"
        silent = self.age(record)
        if record["left"]:
            what = "its program has ended"
        elif record.get("threads"):
            what = f"its program has ended, but not its thread {record['threads']}"
        elif silent > 4 * self.period() + (SIGHT if host else 0.0):
            what = f"no sign of life for {silent:.0f} s (stopped, or its machine is gone)"
            what += f", last seen at {_where(record)}"
        elif record["doing"]:
            what = f"in another call: {record['doing']} at {_where(record)}"
        elif record["alone"]:
            what = f"busy ({record['alone']}), last seen at {_where(record)}"
        else:
            word = "in no call" if self.pairwise else "missing"
            what = f"{word}: last seen at {_where(record)}"
        return f"{what}; process {record['pid']}{host}"

    def end(self, why: str, mine: Record, seen: dict[int, Record]) -> None:
        """End the job, with words of where all ranks are, each place once."""
        self.here = _stacks()
        self.board.write(mine | {"stacks": self.here})
        time.sleep(2.5 * self.period())
        found = self.board.elsewhere(0.0) | self.board.here()
        told = ((rank, found[rank]["stacks"]) for rank in sorted(found) if found[rank]["stacks"])
        text = f"microtrain: {self.situation(mine, seen)}\n  {why}; aborting the job\n"
        text += "\n".join(["where the ranks are:", *lines_by_rank(told)])
        abort.end_process(1, text)


def _has_left(record: Record) -> bool:
    """Whether a rank of this machine has come to its end; in a job in place it may be dead."""
    dead = job.in_place() and not os.path.exists(f"/proc/{record['pid']}")
    return bool(record["left"] or dead)


def _opened(name: str, size: int) -> mmap.mmap:
    """The memory of a file that another rank of this host has made."""
    try:
        with open(name, "r+b") as file:
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise LaunchError(
            f"this rank does not see what the first rank of its host ({socket.gethostname()}) has "
            f"made: {reason(error)}\nranks in containers have to share {os.path.dirname(name)}"
        ) from error


def _where(record: Record) -> str:
    step = f" in step {record['step']}" if record["step"] else ""
    return f"{record['at']}{step}"


def _stacks() -> str:
    """Where every thread of this process but this one is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, calls in of_threads().items():
        if ident != threading.get_ident():
            stack = traceback.StackSummary.extract((each, each.f_lineno) for each in calls[::-1])
            lines = "".join(stack.format())
            found.append(f"thread {names.get(ident, ident)} (most recent call last):\n{lines}")
    return "".join(found)
