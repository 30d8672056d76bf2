"""A small process beside each rank, which speaks where the rank cannot.

mpi4py holds the interpreter's lock inside MPI_Init, so no thread of a rank that waits there can
look at a clock; in MPI_Finalize there is no Python any more. A rank that is killed, or left by
`os._exit`, says nothing, and MPICH's launcher takes exit code 0 for the good end of the job. So a
rank starts this file as a program, which sleeps at the end of a pipe: it hears how long the rank
may be silent, and what to say after that; and it sees when the rank has gone.

Launchers learn of a process's end from the pipes that they share with it. The monitor shares them
too, and so it has spoken before the launcher ends the job. It is in the rank's process group, and
is killed with it. While a rank waits in MPI_Init it also looks whether the launcher is there: the
other ranks will not come where it is not. It imports little: it starts with every rank, before
MPI_Init.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

# Seconds. Others let rank 0 speak first, and those that a signal ended that launchers send to all
# let the one speak that died of something else. For HOLD nobody else on the machine speaks.
PATIENCE = 0.05
SENT_TO_ALL = 0.6
HOLD = 1.0
FORWARDED = 0.25  # launchers drop what they have not forwarded by then
STARTED_AGAIN = 0.05  # a job that is started again says the same in its next line

LIVES = -1

_PIPE: list[int] = []


def start(rank: int, size: int | None) -> None:
    """Start this process's monitor, if there is none. Not forked: this process has threads."""
    import signal

    from ..common import job

    if _PIPE or not sys.executable:
        return
    theirs, ours = os.pipe()
    pause = STARTED_AGAIN if job.name() else FORWARDED
    place = (rank, size or "?", os.getpid(), os.getppid(), pause, int(job.in_place()))
    command = [sys.executable, "-I", "-S", __file__, *map(str, place)]
    actions = [
        (os.POSIX_SPAWN_DUP2, theirs, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        # What launchers and terminals send to all is the rank's to answer.
        sent = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsigmask=sent)
    except OSError:  # no more processes allowed: then it is as it would be without
        os.close(ours)
        return
    finally:
        os.close(theirs)
    _PIPE.append(ours)
    os.register_at_fork(after_in_child=_forget)


def tell(**what: object) -> None:
    """Change what the monitor knows; a limit counts from now.

    limit: seconds until it says `text` and ends the job with exit code `code`; None: no limit.
    words: what it adds when the rank goes without a word; run: the run.json that is to say it.
    together: of how many ranks of this machine none may be gone yet.
    over: the rank may go. goes_on: the job goes on without the rank.
    """
    if what.get("limit") == float("inf"):
        what["limit"] = None
    for pipe in _PIPE:
        write(pipe, marshal.dumps(what).hex() + "\n")


def write(file: int, text: str) -> None:
    """In one piece: the lines of several ranks do not mix."""
    try:
        os.write(file, text.encode(errors="replace"))
    except OSError:  # nobody reads it
        return


def _forget() -> None:
    """A forked child is no rank, and must not look like a living one."""
    while _PIPE:
        os.close(_PIPE.pop())


# -------------------------------------------------------------------------------------- the program


class Monitor:
    """What the program knows of its rank; `tell` sets the attributes that it names."""

    def __init__(self, rank: str, size: str, process: str, launcher: str, *how: str) -> None:
        self.rank, self.process, self.launcher = int(rank), int(process), int(launcher)
        self.pause, self.in_place = float(how[0]), how[1] != "0"
        self.name = f"rank {rank} of {size} (host {os.uname().nodename}, PID {process})"
        self.limit: float | None = None
        self.text, self.code, self.words, self.over, self.run = "", 1, "", False, ""
        self.goes_on, self.together = False, 0
        self.waited = 0.0

    def listen(self) -> None:
        """Until the rank has gone, or has been silent for too long."""
        rest = b""
        while True:
            before = time.monotonic()
            left = None if self.limit is None else min(1.0, max(0.0, self.limit - self.waited))
            ready, _, _ = select.select([0], [], [], left)
            # A job that was suspended as a whole has not waited meanwhile.
            self.waited += min(time.monotonic() - before, 3.0)
            if ready:
                heard = os.read(0, 65536)
                if not heard:
                    return self.gone()
                *lines, rest = (rest + heard).split(b"\n")
                for line in lines:
                    vars(self).update(marshal.loads(bytes.fromhex(line.decode())))
                    self.waited = 0.0
            elif self.limit is not None and self.waited >= self.limit:
                return self.end(self.text, self.code, alive=True)
            elif self.limit is not None and (why := self.in_vain()):
                return self.end(why, 1, alive=True)

    def in_vain(self) -> str:
        """Why nobody will come for whom the rank waits; empty: they may."""
        if _stat(self.process)[1:2] not in ([str(self.launcher)], []):
            return f"has lost its launcher (PID {self.launcher}), which was killed or has crashed"
        if 0 < _children(self.launcher) < self.together:
            return "has lost another rank, which died before MPI knew of it"
        return ""

    def gone(self) -> None:
        """The rank's process has ended: end the job, unless that was right."""
        if self.over:
            return
        import signal

        status = _status(self.process)
        if status == LIVES:
            return
        sent_to_all, code = False, 1
        if status is None:
            how = "is gone: killed (signal 9, as where memory runs out), or left by os._exit"
        elif number := status & 0x7F:
            how, code = f"was ended by signal {number} ({signal.strsignal(number)})", 128 + number
            sent_to_all = number in (signal.SIGTERM, signal.SIGINT)
            how += _full() if number == signal.SIGBUS else ""
        else:
            how = f"left with exit code {status >> 8} before its end, by os._exit or the like"
            code = status >> 8 or 1
        self.end(how, code, sent_to_all)

    def end(self, why: str, code: int, sent_to_all: bool = False, alive: bool = False) -> None:
        """Say why, and end the job, unless another monitor of this machine is at it."""
        if self.goes_on and not alive:
            write(2, f"microtrain: {self.name} {why}; the other ranks go on\n")
            return
        time.sleep((PATIENCE if self.rank else 0.0) + (SENT_TO_ALL if sent_to_all else 0.0))
        if self.first():
            words = f"{self.words}\n" if self.words else ""
            write(2, f"microtrain: {self.name} {why}; the job ends\n{words}")
            self.note(f"{self.name} {why}", code)
            time.sleep(self.pause)
            # MPICH's obeys the request that MPI_Abort would send. Others end a job of which a
            # process dies of a signal.
            if (hydra := os.environ.get("PMI_FD", "")).isdigit():
                write(int(hydra), f"cmd=abort exitcode={code}\n")
            elif self.in_place:  # whose launcher does not mind a process that dies
                os.kill(self.launcher, 15)
        time.sleep(HOLD)
        if alive:
            try:
                os.kill(self.process, 9)
            except OSError:  # the launcher has
                return

    def note(self, error: str, code: int) -> None:
        """Let run.json say how the run has ended, if nobody has."""
        import json

        try:
            with open(self.run) as file:
                info = json.load(file)
            if info["status"] == "running":
                info |= {"status": "failed", "exit_code": code, "error": error}
                with open(f"{self.run}.{os.getpid()}.partial", "x") as file:
                    json.dump(info, file, indent=2)
                os.replace(file.name, self.run)
        except (OSError, ValueError, KeyError):  # there is no run, or no room
            return

    def first(self) -> bool:
        """Whether no other rank of this launcher has spoken here: a name is given away once."""
        import errno
        import socket

        self.speaking = socket.socket(socket.AF_UNIX)
        try:
            self.speaking.bind(f"\0microtrain-{os.getuid()}-{self.launcher}")
        except OSError as error:  # other systems have no such names: better twice than not at all
            return error.errno != errno.EADDRINUSE
        return True


def _full() -> str:
    """That there is no room where ranks share memory; empty: there is some, or no such place."""
    place = "/dev/shm"
    found = os.statvfs(place) if os.path.isdir(place) else None
    if found is None or found.f_bavail * found.f_frsize > 2**20:
        return ""
    return f", as {place} is full, through which ranks share memory: make room there"


def _stat(process: int) -> list[str]:
    """What the system tells of a process behind its name: state, parent ...; empty: nothing."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _children(process: int) -> int:
    """How many processes one has started that are still there; 0 where the system does not tell."""
    found = 0
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children") as file:
                found += len(file.read().split())
    except OSError:
        return 0
    return found


def _status(process: int) -> int | None:
    """How a process has ended, as os.wait() says it; None where its launcher was faster to ask."""
    found = 0
    for _ in range(50):
        fields = _stat(process)
        if not fields:
            return found or None
        found = int(fields[-1])  # set when it begins to end
        if fields[0] in "ZX":
            return found
        time.sleep(0.02)
    return LIVES  # as another program


if __name__ == "__main__":
    Monitor(*sys.argv[1:]).listen()
