"""Which ranks there are: `world` connects to them when it is first asked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ..common import threads
from ..errors import ConfigError, LaunchError
from ..optim.flat import owner
from . import abort, mpi
from .communicator import Communicator, T
from .in_process import THIS_THREAD
from .single import SingleCommunicator
from .survivors import RankLost, tell_spares

BACKENDS: Final = ("auto", "none", "mpi", "nccl")
_CONNECTING: Final = threading.Lock()
LIVING: Final[list[Communicator]] = []  # where a rank was lost: of those that are left


def world() -> Communicator:
    """The communicator of this process: all ranks of the job. The same object at every call.

    The first call under a launcher is collective: it initializes MPI, limits the BLAS threads of a
    program that imported NumPy first, and makes an uncaught exception on any rank end the whole
    job (see `microtrain.distributed.abort`). Raises LaunchError (exit code 5) when MPI is absent
    or belongs to another launcher.

    >>> comm = microtrain.distributed.world()
    >>> if comm.rank == 0:
    ...     print(f"ranks: {comm.size}, machines: {comm.num_nodes}")
    ranks: 1, machines: 1
    """
    return THIS_THREAD.communicator or connect()


def ranks_of(comm: Any, *parts: Any) -> Communicator:
    """The communicator that a call was given as `comm`, one of ours or of mpi4py.

    None: that of the first of `parts` (models, optimizers, loaders) that has one, else `world()`.
    The first call with a communicator of mpi4py is collective over its ranks. Raises TypeError and
    ValueError for what is none, or has no place for this rank; LaunchError as `world`.
    """
    if comm is None:
        return next(filter(None, map(_has_ranks, parts)), None) or world()
    if isinstance(comm, Communicator):
        return comm
    with _CONNECTING:
        adopted = mpi.adopt(comm)
        threads.limit_late(threads.LAUNCH.local_size or adopted.local_size)
    return adopted


def _has_ranks(part: Any) -> Communicator | None:
    """Those of a wrapper or loader, or of the wrapper of the parameters of a model or optimizer."""
    storage = getattr(part, "storage", None)
    if storage is None and hasattr(part, "parameters"):
        storage = next(filter(None, map(owner, part.parameters())), None)
    holders = [] if storage is None else [alive() for _, alive in storage.holders if alive]
    found = (getattr(each, "comm", None) for each in (part, *holders))
    return next((comm for comm in found if isinstance(comm, Communicator)), None)


def connect(backend: str = "auto") -> Communicator:
    """The communicator that `distributed.backend` of the configuration asks for.

    auto: MPI under a launcher of more than one process, or where the program has started MPI for
    more than one itself; else none. none: a single process; LaunchError under a launcher of more.
    mpi: MPI also without a launcher that microtrain knows. nccl: as auto, gradients on GPUs being
    left to NCCL (see `DataParallel`). Raises ConfigError for another name,
    LaunchError as `world` does.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"distributed.backend: expected {', '.join(BACKENDS)}, found {backend!r}")
    launch = threads.LAUNCH
    if backend == "none" and launch.parallel:
        raise LaunchError(
            f"distributed.backend is none, but {launch.launcher} started this process as rank "
            f"{launch.rank} of {launch.size}: each rank would do the whole run\n"
            "start it without a launcher, or set distributed.backend to auto"
        )
    # A launcher that microtrain does not know is noticed when the program has started MPI itself.
    running = abort.running()
    in_use = running is not None and running.COMM_WORLD.size > 1  # whatever the launcher says
    with _CONNECTING:  # threads that ask at the same time get the same communicator
        return _connect(backend == "mpi" or launch.parallel or in_use)


def going_on(command: Callable[[], T]) -> T:
    """What `command` returns; it begins anew where a rank is lost and the others go on in place."""
    whole = True
    while True:
        try:
            result = command()
            tell_spares(abort.running())
            return result
        except RankLost:
            whole = False
        except (SystemExit, ConfigError) as error:
            if whole or isinstance(error, SystemExit):
                tell_spares(abort.running())
                raise
            # Of so few ranks, as it worked before: the launcher starts it again with all.
            if (comm := world()).rank == 0:
                print(f"cannot go on with {comm.size} ranks: {error}", file=sys.stderr)
            comm.abort(1)
        while not (living := mpi.connect_living()):
            continue
        LIVING[:] = [living]
        _connect.cache_clear()


@cache
def _connect(with_mpi: bool) -> Communicator:
    if not with_mpi:
        return SingleCommunicator()
    comm = LIVING[0] if LIVING else mpi.connect()
    threads.limit_late(comm.local_size)
    return comm
