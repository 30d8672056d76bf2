"""`launch --in-place`: when a rank is killed, those that live go on in their processes.

By User Level Failure Mitigation, as Open MPI 5 has it under `mpirun --with-ft ulfm`. A call that
needs the lost rank raises `RankLost`; where ranks wait in memory that they share, they look for it.
It is no Exception: no `except` is to take it for an error of a call. It unwinds the command that is
under way. Then those that live shrink what was the world, and the command begins again: it goes on
from the state in memory, as a job does that is started again, but what was imported and compiled is
here already.

Ranks beyond those that train are spares: they wait, asleep, until one of these is lost.

Where that fails or takes too long, the job ends, and its launcher starts it again.
"""

from __future__ import annotations

import faulthandler
import time
from types import ModuleType
from typing import Any, NoReturn

from ..common import job
from ..errors import LaunchError
from . import abort, process_monitor

LIMIT = 20.0  # seconds in which those that live have found each other
HEARD = 2.0  # seconds after an error in which MPI hears that a rank is lost
NAP = 0.01  # seconds between two looks of a spare
END = 1  # the tag of the message that tells spares of the end

# The communicator of mpi4py of all that live; empty: MPI.COMM_WORLD.
_WORLD: list[Any] = []
_APART: list[bool] = []


class RankLost(BaseException):
    """Another rank of this job is gone, and this one is to go on without it."""


def world(MPI: ModuleType) -> Any:
    """The communicator of mpi4py of all ranks that live."""
    return _WORLD[0] if _WORLD else MPI.COMM_WORLD


def goes_on() -> bool:
    """Whether the ranks that live go on where one is lost."""
    return bool(job.in_place() and not _APART)


def apart() -> None:
    """From now on the ranks of this job do different things: one that is lost ends it."""
    _APART.append(True)
    process_monitor.tell(goes_on=False)


def are_fewer() -> bool:
    """Whether a rank was lost."""
    return bool(_WORLD)


def training(MPI: ModuleType) -> Any:
    """The communicator of those that train: the first of all that live. Collective over all.

    Of a spare it does not return: RankLost where one of those is gone, SystemExit at the end.
    """
    everyone, wanted = world(MPI), job.in_place()
    if not 0 < wanted < everyone.size:
        return everyone
    spare = everyone.rank >= wanted
    some = everyone.Split(MPI.UNDEFINED if spare else 0)
    if not spare:
        some.Set_errhandler(MPI.ERRORS_RETURN)
        return some
    found()
    process_monitor.tell(limit=None, goes_on=True)
    trains = everyone.group.Range_incl([(0, wanted - 1, 1)])
    while not MPI.Group.Intersection(everyone.Get_failed(), trains).size:
        if everyone.Iprobe(0, END):  # a call by which MPI hears of losses as well
            everyone.recv(source=0, tag=END)
            process_monitor.tell(over=True)
            abort.agreed_exit(0)
        time.sleep(NAP)
    raise RankLost


def found() -> None:
    """This rank waits for others no more, or may wait as long as it takes."""
    if job.in_place():
        faulthandler.cancel_dump_traceback_later()


def tell_spares(MPI: ModuleType | None) -> None:
    """The command has ended: what the first rank tells those that still wait."""
    wanted = job.in_place()
    if MPI is not None and wanted and world(MPI).rank == 0:
        for spare in range(wanted, world(MPI).size):
            world(MPI).isend(None, spare, END)


def check(MPI: ModuleType) -> None:
    """LaunchError unless this MPI can go on without a rank."""
    try:
        MPI.COMM_SELF.Is_revoked()
    except (AttributeError, NotImplementedError, MPI.Exception) as error:
        raise LaunchError(
            "--in-place needs an MPI with user level failure mitigation, such as Open MPI 5; this "
            f"one has none: {error}"
        ) from error


def is_loss(MPI: ModuleType, error: BaseException) -> bool:
    """Whether an error of MPI tells of a rank that is gone, in a job that goes on without."""
    losses = MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED
    return goes_on() and getattr(error, "error_class", None) in losses


def give_up(comm: Any) -> NoReturn:
    """Let nobody wait in a communicator of mpi4py of which a rank is lost; raises RankLost."""
    comm.Revoke()
    raise RankLost


def explain(MPI: ModuleType, comm: Any, error: Exception) -> None:
    """RankLost where that is why a call has failed, in a job that goes on without."""
    if is_loss(MPI, error):
        give_up(comm)
    end = time.monotonic() + (HEARD if goes_on() else 0.0)
    while time.monotonic() < end:  # some calls say another error, before MPI itself has heard of it
        look(MPI, comm)
        time.sleep(NAP)


def look(MPI: ModuleType, comm: Any) -> None:
    """RankLost where a rank of `comm` is gone, or another rank has found that."""
    if not goes_on():
        return
    try:
        comm.Iprobe()  # without a call, MPI would not hear of it
        lost = comm.Is_revoked()
    except MPI.Exception as error:
        if not is_loss(MPI, error):
            raise
        lost = True
    if lost:
        give_up(comm)


def shrink(MPI: ModuleType) -> None:
    """Make those that live the world, and note what was lost. Collective over them."""
    text = f"has waited {LIMIT:g} s for the other ranks that are left after one was lost"
    process_monitor.tell(limit=LIMIT, text=text, code=1, over=False, goes_on=False, together=0)
    faulthandler.dump_traceback_later(LIMIT + 5.0, exit=True)  # where the monitor is gone as well
    before = world(MPI)
    after = before.Shrink()
    after.Set_errhandler(MPI.ERRORS_RETURN)
    numbers = [*range(before.size)]
    found = MPI.Group.Translate_ranks(before.group, numbers, after.group)
    gone = [str(rank) for rank, new in zip(numbers, found, strict=True) if new == MPI.UNDEFINED]
    _WORLD[:] = [after]
    if gone:
        verb = "were" if len(gone) > 1 else "was"
        job.go_on(f"rank{'s' * (len(gone) > 1)} {', '.join(gone)} of {before.size} {verb} lost")
