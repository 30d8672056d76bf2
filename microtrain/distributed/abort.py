"""One rank fails, the whole job ends: promptly, with that rank's traceback and an exit code.

A rank that raises would otherwise wait in MPI_Finalize while the others wait for it in a
collective, forever. So every script under a launcher has this behavior: an uncaught exception in
any thread, or SystemExit with a non-zero code, is printed once, whole, with its rank, and ends the
job. MPI_Abort runs neither atexit handlers nor destructors, so streams are flushed first. Exits
that all ranks have agreed on go through `agreed_exit` and end in MPI_Finalize.

How each way out of a Python program is seen:
- exceptions: `sys.excepthook`, `threading.excepthook`; a foreign `sys.excepthook` installed later
  prints in its own way, and an atexit handler ends the job after it;
- SystemExit, which no hook reports: see `_watch_system_exit`.
Not seen: exceptions in threads started with `_thread` directly; `os._exit` and signals, for which
there is `process_monitor`; a rank that returns normally while others wait for it (`watchdog`).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from ..common import job
from ..common.stack_frames import is_own, of_threads
from ..common.threads import LAUNCH
from ..errors import UserError
from . import process_monitor

# Seconds. The other ranks let rank 0 speak first: most errors are the same on all of them, and one
# traceback is enough. Launchers drop what they have not forwarded when MPI_Abort arrives, so they
# are given time to. A process that MPI_Abort has not ended by the last is ended without MPI.
PATIENCE: Final = 0.5
FORWARDING: Final = 0.25
GRACE: Final = 2.0


# What is called with the exit code and a line that says why, before this process ends the job.
HEARS: list[Callable[[int, str], object]] = []


AGREED: list[int] = []  # with what this process leaves, where all have agreed on it


class MpiError(RuntimeError):
    """What MPI reports of a call: another one on another rank, or a rank that cannot be reached."""


class AgreedExit(SystemExit):
    """The SystemExit of `agreed_exit`: every rank raises one, so nobody is left waiting."""


def agreed_exit(code: int) -> NoReturn:
    """Leave with `code` where every rank does the same at this point of the program.

    For ends that the ranks have settled together: wrong configuration (2), diverged (4), stopped
    early (75). The process ends as after any SystemExit, atexit handlers and MPI_Finalize included.

    Example:
        >>> stopped = mt.distributed.all_reduce(mt.tensor(0.0), op="max")  # what each rank wants
        >>> if stopped.item():
        ...     mt.distributed.agreed_exit(75)
    """
    AGREED.append(code)
    raise AgreedExit(code)


def running() -> ModuleType | None:
    """mpi4py.MPI between MPI_Init and MPI_Finalize, whoever called them; else None."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized() else None


def place() -> tuple[int, int | None]:
    """Rank and size of this process; where MPI contradicts the launcher, what that has said."""
    if LAUNCH.kind == "none" and (MPI := running()) is not None:
        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    return LAUNCH.rank, LAUNCH.size


def kill(code: int) -> NoReturn:
    """End all ranks by MPI_Abort, or by what the launcher understands where MPI connects none."""
    process_monitor.tell(over=True)
    MPI = running()
    if MPI is not None or LAUNCH.kind != "none":
        time.sleep(FORWARDING)
    if MPI is not None and MPI.COMM_WORLD.size > 1:
        MPI.COMM_WORLD.Abort(code)
    if (hydra := os.environ.get("PMI_FD")) is not None:
        # MPICH's mpirun does not mind a process that exits before MPI_Init, and the others wait for
        # it there forever (mpich#6124). It obeys the request that MPI_Abort would send, and it ends
        # the job when a process dies of a signal.
        with contextlib.suppress(OSError, ValueError):
            os.write(int(hydra), f"cmd=abort exitcode={code}\n".encode())
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


def end_process(code: int, text: str = "", patience: float = 0.0, why: str = "") -> NoReturn:
    """Flush the streams, print `text` in one piece, and end all ranks.

    why: what is told to HEARS; default the first line of the text.
    patience: seconds to let other ranks go first. Whatever blocks (a full pipe, MPI_Abort
    itself), the process is gone GRACE seconds later: faulthandler's timer is a C thread, which
    needs neither the GIL nor the main thread.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(patience + GRACE, exit=True, file=nowhere)
    time.sleep(patience)
    for hear in HEARS:
        hear(code, why or text.partition("\n")[0].removeprefix("microtrain: "))
    for stream, last in ((sys.stdout, ""), (sys.stderr, text)):
        try:
            stream.write(last)
            stream.flush()
        except (AttributeError, OSError, ValueError):  # None, a closed pipe, a closed file
            continue
    kill(code)


def install() -> None:
    """Make failures of this process end the job.

    Called once, before the first collective. A forked child keeps Python's own behavior.
    """
    pid = os.getpid()
    ending = threading.Lock()

    def end_job(code: int, what: str, text: str = "", mine: bool = True, why: str = "") -> None:
        if os.getpid() != pid:
            return
        ending.acquire()  # and keep: a second failure, or the end of the program, waits here
        rank, size = place()
        who = f"rank {rank} of {'?' if size is None else size} (host {socket.gethostname()})"
        message = f"microtrain: {who} {what}; aborting the job\n{text}"
        if mine:
            job.note_failure(message)
        why = f"{who} {why or what}"
        end_process(code, message, patience=PATIENCE if rank else 0.0, why=why)

    def failed(error: BaseException, where: str = "") -> None:
        if isinstance(error, UserError):
            end_job(error.exit_code, f"failed{where}", f"error: {error}\n")
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        text = "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not is_own(frame.filename)] or frames
        at = "".join(f" at {frame.filename}:{frame.lineno}" for frame in theirs[-1:])
        why = f"failed{at}: {type(error).__name__}: {error}"
        end_job(code, f"failed{where}", text, mine=not isinstance(error, MpiError), why=why)

    def left(error: SystemExit, where: str = "") -> None:
        code, text = exit_status(error.code)
        if code != 0 and not isinstance(error, AgreedExit):
            # 130 is what shells know, and the command line gives, for Ctrl-C.
            what = "was interrupted" if code == 130 else f"left with exit code {code}"
            end_job(code, f"{what}{where}", text)

    foreign_hook, foreign_thread_hook = sys.excepthook, threading.excepthook

    def excepthook(*args: Any) -> None:
        failed(args[1])
        foreign_hook(*args)

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        where = f" in thread {args.thread.name!r}" if args.thread else " in a thread"
        error = args.exc_value or args.exc_type()
        if isinstance(error, SystemExit):
            left(error, where)
        else:
            failed(error, where)
        foreign_thread_hook(args)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    _watch_system_exit(left)

    main_ident = threading.main_thread().ident or 0
    main = of_threads([main_ident])[main_ident][-1]

    def at_exit() -> None:
        if os.getpid() != pid:
            return
        # Python leaves this trace before it calls sys.excepthook: if it begins in the frame at the
        # bottom of the main thread, that exception ended the program, and our hook was not asked.
        with ending:  # a thread that is about to end the job does so; the exit code is its
            trace = getattr(sys, "last_traceback", None)
        if trace is not None and trace.tb_frame is main:
            end_job(1, "failed")

    atexit.register(at_exit)


def exit_status(code: object) -> tuple[int, str]:
    """The exit status that Python gives SystemExit(code), and the text it prints for it."""
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code & 0xFF, ""
    return 1, f"{code}\n"


def _watch_system_exit(left: Callable[[SystemExit], None]) -> None:
    """Call `left(error)` when a SystemExit leaves the bottom frame of the main thread.

    No hook reports SystemExit, and wrapping `sys.exit` would miss `raise SystemExit(main())` and
    take one that is caught later for the end. In both cases below Python itself says that it is
    the end: no Python frame is left below.
    """

    def is_last(frame: FrameType) -> bool:
        return frame.f_back is None and threading.get_ident() == threading.main_thread().ident

    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        tool = next((n for n in (4, 3, 5, 2, 1, 0) if monitoring.get_tool(n) is None), None)
        if tool is None:
            return  # six other tools are watching; this one is not worth breaking any of them

        def unwind(code: object, offset: int, error: BaseException) -> None:
            if isinstance(error, SystemExit) and is_last(sys._getframe(1)):
                left(error)

        # Costs nothing until an exception leaves a function.
        monitoring.use_tool_id(tool, "microtrain")
        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, unwind)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)
    else:
        # Python 3.11 has no such event. But its last act before it shuts down is to read the
        # attribute `code` of the exception, from C, with no Python frame below: a property there
        # sees exactly that. The class is built in, so it is set in its dictionary, behind the
        # read-only proxy.
        import ctypes

        stored: Any = SystemExit.__dict__["code"]

        def code(error: SystemExit) -> object:
            if is_last(sys._getframe()):
                left(error)
            return stored.__get__(error)

        attributes: dict[str, Any] = gc.get_referents(SystemExit.__dict__)[0]
        attributes["code"] = property(code, stored.__set__, stored.__delete__)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))

        # What `sys.exit` raises becomes an object with attributes only when some handler looks at
        # it. This one does; it also replaces the name where `from sys import exit` has copied it.
        builtin_exit = sys.exit

        def sys_exit(*status: Any) -> NoReturn:
            try:
                builtin_exit(*status)
            except SystemExit:
                raise

        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            for name in [name for name, value in names.items() if value is builtin_exit]:
                names[name] = sys_exit
