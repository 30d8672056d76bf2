"""Ranks as processes over MPI: the only module that talks to mpi4py.

`connect` makes sure, before anything is sent, that the launcher and the loaded MPI belong to each
other. Started by the mpirun of another MPI, every process is rank 0 of 1 and N copies of the run
write the same files; or MPI_Init kills the process with words about its internals.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import math
import os
import pickle
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from ..backend import alive
from ..common import job, version
from ..common.stack_frames import outwards, user_place
from ..common.threads import LAUNCH, allowed_cores, blas_kernel, processor_quota
from ..errors import ConfigError, LaunchError, install
from . import abort, process_monitor, survivors, watchdog
from .agreement import differing
from .communicator import PAIRWISE, Array, Communicator, Op, T, by_rank, described, lines_by_rank
from .shared_memory import MOST, SharedMemory, create

R = TypeVar("R")

# Elements (bytes, where bytes are sent) in one MPI call: its counts are 32-bit integers in many
# versions. Tests make it small.
CHUNK: int = 2**30

# What MPI_Get_library_version begins with in an MPI that this kind of mpirun cannot start.
_FOREIGN: Final = {
    "openmpi": ("MPICH", "Intel", "MVAPICH", "CRAY"),
    "mpich": ("Open MPI", "IBM Spectrum"),
    "intel": ("Open MPI", "IBM Spectrum"),
}

# What the environment decides about collectives and results: it must be the same on all ranks.
_SETTINGS: Final = (
    "MICROTRAIN_COMPILE",
    "MICROTRAIN_DEBUG",
    "MICROTRAIN_TIMEOUT_S",
    "MICROTRAIN_WARN_S",
)


# The communicators of this process, for the watchdog.
ALIVE: weakref.WeakSet[MpiCommunicator] = weakref.WeakSet()


@cache
def _debug() -> frozenset[str]:
    """What MICROTRAIN_DEBUG asks for. Raises ConfigError for what there is not."""
    wishes = frozenset(filter(None, os.environ.get("MICROTRAIN_DEBUG", "").split(",")))
    if wishes - {"comm"}:
        raise ConfigError(f"MICROTRAIN_DEBUG: expected comm, found {', '.join(sorted(wishes))}")
    return wishes


def watched(method: Callable[..., R]) -> Callable[..., R]:
    """Let the watchdog see a call; with MICROTRAIN_DEBUG=comm compare what is collective."""
    name = method.__name__.removeprefix("_")
    pairwise = name in PAIRWISE

    @functools.wraps(method)
    def call(self: MpiCommunicator, *args: Any) -> R:
        self._doing = name, args
        try:
            if self._control is not None and not pairwise:
                self._compare()
            result = method(self, *args)
        except self._MPI.Exception as error:
            survivors.explain(self._MPI, self._comm, error)
            raise abort.MpiError(
                f"{described(*self._doing)}: {error}\n(another call on another rank, or another "
                "shape or dtype? MICROTRAIN_DEBUG=comm in the environment compares them)"
            ) from None
        finally:
            self._doing = None
        if pairwise:
            self._passed += 1
        else:
            self._done += 1
        return result

    return call


class MpiCommunicator(Communicator):
    """One process of a communicator of MPI that no other user of MPI has."""

    backend = "mpi"

    def __init__(self, MPI: ModuleType, comm: Any) -> None:
        self._MPI, self._comm = MPI, comm
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # an exception with a traceback, not an abort
        self._in_place = MPI.IN_PLACE
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self.rank, self.size = self._comm.rank, self._comm.size
        self.concurrent = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = node.rank, node.size
        # Machines are numbered by their first rank.
        first_ranks = sorted(set(self._comm.allgather(node.bcast(self.rank))))
        self.node_rank, self.num_nodes = first_ranks.index(node.bcast(self.rank)), len(first_ranks)
        self._shared = self._share(node)
        node.Free()
        #: The MPI and its version, in the library's own words.
        self.library: str = library_name(MPI.Get_library_version())
        self._control = comm.Dup() if "comm" in _debug() else None
        # Messages that may still be on their way: to whom, what, the request, its memory.
        self._sent: deque[tuple[int, str, Any, Any]] = deque()
        if isinstance(comm, MPI.Cartcomm):
            self.grid = tuple(comm.dims), tuple(map(bool, comm.periods))
        ALIVE.add(self)

    def _share(self, node: Any) -> SharedMemory | None:
        """What small arrays are combined through; None: MPI, on every rank. Collective."""
        if self.num_nodes == self.size:
            return None
        between = None
        if self.num_nodes > 1:
            self._first = self._comm.Split(self._MPI.UNDEFINED if node.rank else 0)

            def between(array: Array, op: Op) -> None:
                self._first.Allreduce(self._in_place, array, self._ops[op])

        name = create(node.size) if node.rank == 0 else ""
        names, allowed = zip(*node.allgather((name, allowed_cores())), strict=True)
        few_cores = min(len(set().union(*allowed)), processor_quota() or math.inf) < node.size
        shared = None
        if names[0]:
            with contextlib.suppress(OSError):
                look = functools.partial(survivors.look, self._MPI, self._comm)
                looks = look if job.in_place() else None
                shared = SharedMemory(names[0], node.rank, node.size, few_cores, between, looks)
        everywhere = self._comm.allreduce(shared is not None, self._MPI.LAND)
        if name:
            os.unlink(name)
        return shared if everywhere else None

    def memory_for(self, array: Array) -> SharedMemory | None:
        """As in the base class."""
        compared, small = self._control is not None, array.nbytes <= MOST
        return self._shared if self.num_nodes == 1 and small and not compared else None

    @watched
    def _all_reduce(self, array: Array, op: Op) -> Array:
        # MPI has no maximum of booleans; as bytes, 0 and 1 have one.
        numbers = array.view(np.uint8) if array.dtype.kind == "b" else array
        if self._shared is not None and numbers.nbytes <= MOST:
            self._shared.all_reduce(numbers, op)
            return array
        for chunk in (numbers,) if numbers.size <= CHUNK else _chunks(numbers):
            self._comm.Allreduce(self._in_place, chunk, self._ops[op])
        return array

    @watched
    def _broadcast(self, array: Array, root: int) -> Array:
        for chunk in _chunks(_bytes(array)):
            self._comm.Bcast(chunk, root)
        return array

    @watched
    def _all_gather(self, array: Array) -> Array:
        result = np.empty((self.size, *array.shape), array.dtype)
        received = _bytes(result).reshape(self.size, -1)
        self._by_columns(self._comm.Allgather, _bytes(array)[None], received)
        return result

    @watched
    def _reduce_scatter(self, array: Array, op: Op) -> Array:
        result = np.empty(array.shape[1:], array.dtype)
        sent, received = (a.view("u1") if a.dtype.kind == "b" else a for a in (array, result))
        reduce = functools.partial(self._comm.Reduce_scatter_block, op=self._ops[op])
        self._by_columns(reduce, sent.reshape(self.size, -1), received.reshape(1, -1))
        return result

    @watched
    def _all_to_all(self, array: Array) -> Array:
        result = np.empty(array.shape, array.dtype)
        sent, received = (_bytes(a).reshape(self.size, -1) for a in (array, result))
        self._by_columns(self._comm.Alltoall, sent, received)
        return result

    def _by_columns(self, call: Callable[..., Any], sent: Array, received: Array) -> None:
        """`call(sent, received)`, for as many columns at a time as one call takes."""
        step = max(1, CHUNK // self.size)
        if received.shape[1] <= step:
            call(sent, received)
            return
        for start in range(0, received.shape[1], step):
            columns = slice(start, start + step)
            part = np.empty_like(received[:, columns])  # MPI puts rows one after another
            call(np.ascontiguousarray(sent[:, columns]), part)
            received[:, columns] = part

    @watched
    def _send_to(
        self, dest: int, address: Any, array: Array | None, number: int | None, at: str
    ) -> None:
        like, parts = None, list[Any]()
        if array is not None and array.nbytes > MOST:  # behind the head: it is not copied there
            like, parts = (array.shape, array.dtype), _chunks(_bytes(np.array(array)))
        head = pickle.dumps((address, None if like else array, like, number, at))
        for part in ((head, self._MPI.BYTE), *parts):
            request = self._comm.Isend(part, dest)
            if not self.concurrent:
                request.Wait()
            elif self._sent or not request.Test():
                about = "a gradient" if array is None else f"{array.dtype}{[*array.shape]}"
                about = f"which has not received it ({about}, sent at {at}),"
                text = f"a message to rank {dest}, {about}"
                self._sent.append((dest, text, request, part))
                self._under_way.set()

    @functools.cached_property
    def _under_way(self) -> threading.Event:
        """Set while messages are on their way, which a thread sees to: MPI goes on when called.

        The receiver of a large message waits for that, and this rank may be computing meanwhile, or
        waiting in shared memory.
        """
        event = threading.Event()
        threading.Thread(target=_see_to, args=(self._sent, event), daemon=True).start()
        return event

    @watched
    def _next_from(self, source: int, text: object) -> tuple[Any, Any]:
        status, looks = self._MPI.Status(), 0
        # MPI's own wait keeps a core, which the rank that is waited for may need.
        while (message := self._comm.Improbe(source, status=status)) is None:
            looks += 1
            if looks < 300:
                os.sched_yield()
            else:
                time.sleep(min(1e-7 * looks, 1e-3))
        head = bytearray(status.Get_count(self._MPI.BYTE))
        message.Recv((head, self._MPI.BYTE))
        address, array, like, number, at = pickle.loads(head)
        if like is not None:
            array = np.empty(*like)
            for part in _chunks(_bytes(array)):
                self._comm.Recv(part, source)
        return address, (array, number, at)

    def finish(self) -> None:
        """Wait until all messages of this rank have been received."""
        while self._sent:
            with contextlib.suppress(IndexError):  # the last has been received
                dest, text, request, _ = self._sent[0]
                self._finish(dest, request, text)

    @watched
    def _finish(self, dest: int, request: Any, text: str) -> None:
        while self._sent and self._sent[0][2] is request:
            time.sleep(1e-3)

    @watched
    def _split(self, color: int | None, key: int) -> Communicator | None:
        color = self._MPI.UNDEFINED if color is None else color
        comm = self._comm.Split(color, key)
        return None if comm == self._MPI.COMM_NULL else MpiCommunicator(self._MPI, comm)

    def _meet(self) -> None:
        """Wait for the other ranks asleep: MPI would take the cores that they need to get here."""
        if self._shared is not None:
            self._shared.all_reduce(np.zeros(1, np.uint8), "max")

    @watched
    def _gather_object(self, obj: T, root: int) -> list[T] | None:
        self._meet()
        return self._comm.gather(obj, root)

    @watched
    def _all_gather_object(self, obj: T) -> list[T]:
        self._meet()
        return self._comm.allgather(obj)

    @watched
    def _broadcast_object(self, obj: T, root: int) -> T:
        self._meet()
        return self._comm.bcast(obj if self.rank == root else None, root)

    @watched
    def _barrier(self) -> None:
        self._meet()
        self._comm.Barrier()

    def end(self, why: str) -> None:
        """Free what MPI has of it: from now on RuntimeError for what needs MPI. Collective."""
        self.finish()
        self._leave("Free", why)

    def revoke(self) -> None:
        """Let nobody wait in it any more, here or on another rank: of it, a rank is lost."""
        self._sent.clear()
        self._leave("Revoke", "a rank of it was lost")

    def _leave(self, call: str, why: str) -> None:
        self._shared = None  # in which ranks would still meet
        for name in ("_comm", "_first", "_control"):
            own = vars(self).get(name)
            if isinstance(own, self._MPI.Comm):
                if own != self._MPI.COMM_NULL:
                    getattr(own, call)()
                setattr(self, name, Ended(f"{self!r}: {why}"))

    def _compare(self) -> None:
        """RuntimeError on every rank unless all are at the same call."""
        assert self._doing is not None and self._control is not None
        mine = described(*self._doing), user_place(outwards(sys._getframe(2)))
        everyone = self._control.allgather(mine)
        if any(call != mine[0] for call, _ in everyone):
            lines = lines_by_rank((rank, " at ".join(one)) for rank, one in enumerate(everyone))
            raise RuntimeError("\n".join(["the ranks are not at the same call:", *lines]))


def _see_to(sent: deque[Any], under_way: threading.Event) -> None:
    """Let MPI go on with messages that are under way."""
    while under_way.wait():
        under_way.clear()
        pause = 1e-5
        # Where a rank is lost, an error ends its messages, or all are forgotten meanwhile.
        with contextlib.suppress(IndexError):
            while sent:
                try:
                    received = sent[0][2].Test()
                except RuntimeError:  # of MPI
                    received = True
                if received:
                    sent.popleft()
                    pause = 1e-5
                else:
                    time.sleep(pause)
                    pause = min(2 * pause, 1e-3)


class Ended:
    """Stands for a communicator of MPI that is no more: whatever is asked of it, RuntimeError."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(self._why)


def _bytes(array: Array) -> Array:
    """The memory of a C-contiguous array of any shape and dtype, as a view of bytes."""
    return array.reshape(-1).view(np.uint8)


def _chunks(array: Array) -> list[Array]:
    flat = array.reshape(-1)
    return [flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK)]


# ---------------------------------------------------------------------------------- the connection


@cache
def abort_on_failure() -> None:
    """Make a failure of this process end the whole job, from now on (see `abort`).

    Under a launcher `import microtrain` does this, so that an error before `world()` ends the job
    as well.
    """

    atexit.register(_leave)  # before that of `abort`, so that it runs after it
    abort.install()


def _leave() -> None:
    """What remains for a program that has ended, before MPI_Finalize."""
    watchdog.lift()
    for comm in alive(ALIVE):
        comm.finish()
    watchdog.leave()
    if job.in_place():  # Open MPI's would wait for a rank that is lost
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        job.leave()
        os._exit(abort.AGREED[-1] if abort.AGREED else job.LEFT)


def connect() -> MpiCommunicator:
    """Initialize MPI where nobody has, compare it with the launcher, and let failures end the job.

    Collective: every rank of the job calls it. Raises LaunchError when mpi4py or its MPI is absent,
    when they do not belong to the launcher, or when the ranks have different settings in their
    environments.
    """
    abort_on_failure()
    watchdog.configure(*watchdog.LIMITS)
    with _beginning():
        MPI = _load()
        _check_launcher(MPI)
        if abort.place()[1] != 1:
            process_monitor.start(*abort.place())
            _limit("in MPI_Init, which returns when all ranks have called it")
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if job.in_place():
            survivors.check(MPI)
        where = "in the first collectives after MPI_Init"
        try:
            return _joined(MPI, survivors.training(MPI), where)
        except MPI.Exception as error:
            raise abort.MpiError(f"{where}: {error}") from None


def connect_living() -> MpiCommunicator | None:
    """As `connect`, of the ranks that live; None where another one was lost meanwhile.

    Collective over them.
    """
    MPI = sys.modules["mpi4py.MPI"]
    watchdog.stop()
    for made in [*ALIVE]:
        made.revoke()
        ALIVE.discard(made)
    try:
        survivors.shrink(MPI)
        with _beginning():
            where = "in the first collectives after a rank was lost"
            return _joined(MPI, survivors.training(MPI), where)
    except (survivors.RankLost, MPI.Exception) as error:
        if isinstance(error, survivors.RankLost) or survivors.is_loss(MPI, error):
            return None
        raise


def adopt(comm: Any) -> MpiCommunicator:
    """The communicator over a duplicate of `comm`, which is one of mpi4py; collective over it.

    The same one at every call, until `comm` is freed. Of other ranks nothing is needed. Raises
    TypeError and ValueError for what is no group of ranks with this one in it, RuntimeError where
    MPI does not run, LaunchError as `connect`.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    kind = f"{type(comm).__module__}.{type(comm).__qualname__}"
    if MPI is None or not isinstance(comm, MPI.Comm):
        raise TypeError(
            "comm: expected a communicator of mpi4py (MPI.COMM_WORLD, or what its Split returned), "
            f"or of microtrain.distributed (world(), or what its split returned), found {kind}"
        )
    if abort.running() is None:
        raise RuntimeError(
            f"comm: {kind} of an MPI that has not been initialized, or that has been finalized; "
            "call MPI.Init(), or microtrain.distributed.world(), on every rank before"
        )
    if comm == MPI.COMM_NULL:
        raise ValueError(
            "comm: this is MPI.COMM_NULL: the communicator has been freed, or this rank is in no "
            "group of the Split that returned it; such a rank has no part in what its group does"
        )
    if comm.Is_inter():
        raise TypeError(
            "comm: this is an inter-communicator, of two groups of ranks; pass the communicator of "
            "one group, or comm.Merge() for the ranks of both"
        )
    known: MpiCommunicator | None = comm.Get_attr(_key(MPI))
    if known is not None:
        return known
    if comm.size > 1:
        abort_on_failure()
        process_monitor.start(*abort.place())
    with _beginning():
        return _joined(MPI, comm, "in the first collectives of a communicator")


@contextlib.contextmanager
def _beginning() -> Iterator[None]:
    """Let an error be told by one rank, and the monitor know when all have found each other."""
    try:
        yield
    except LaunchError:
        # As a rule every rank fails alike. The first has the word; if it says nothing for a while
        # (its machine may be the one in order), the others speak.
        time.sleep(0.5 if LAUNCH.rank else 0.0)
        raise
    finally:  # whoever catches an error may leave as it likes
        survivors.found()
        process_monitor.tell(limit=None, over=not watchdog.watches(), together=0)


def _joined(MPI: ModuleType, comm: Any, where: str) -> MpiCommunicator:
    """What was made of a communicator of MPI, now or before; collective where it is made now."""
    known: MpiCommunicator | None = comm.Get_attr(_key(MPI))
    if known is not None:
        return known
    _limit(where)
    _check_launcher(MPI)
    _check_settings(comm)
    made = MpiCommunicator(MPI, comm.Dup())
    everyone = bool(job.in_place()) or made.size == MPI.COMM_WORLD.size
    # Where the ranks of several communicators are watched already, they stay so.
    if made.size > 1 and made.any(everyone or not watchdog.watches()):
        watchdog.start(made, ALIVE, everyone)
        process_monitor.tell(goes_on=bool(job.in_place()))
    comm.Set_attr(_key(MPI), made)
    return made


@cache
def _key(MPI: ModuleType) -> int:
    """Under which communicators of MPI keep what was made of them: they are freed together."""

    def freed(comm: Any, key: int, made: MpiCommunicator) -> None:
        made.end("the mpi4py communicator that it was made from has been freed")

    def finalized(comm: Any, key: int, _: object) -> None:
        for made in list(ALIVE):
            made.end("MPI has been finalized")

    # MPI_Finalize begins with freeing the attributes of COMM_SELF.
    end = MPI.Comm.Create_keyval(delete_fn=finalized)
    MPI.COMM_SELF.Set_attr(end, True)
    return MPI.Comm.Create_keyval(delete_fn=freed)


def _limit(where: str) -> None:
    """Let the monitor end the job when the ranks have not found each other in time."""
    first = not survivors.are_fewer()
    seconds = watchdog.seconds("MICROTRAIN_TIMEOUT_S", watchdog.LIMITS[1])
    seconds = seconds if first else min(seconds, survivors.LIMIT)
    since = time.strftime("%H:%M:%S")
    text = (
        f"has waited {seconds:g} s (MICROTRAIN_TIMEOUT_S), since {since}, {where}: a rank runs "
        "another program or does not come to microtrain.distributed.world(), is stopped, or "
        "cannot be reached over the network (microtrain doctor under the same launcher tests it)"
    )
    ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0)) if job.in_place() else 0
    process_monitor.tell(
        limit=seconds, text=text, code=LaunchError.exit_code, together=ranks if first else 0
    )
    if job.in_place():  # where the monitor was killed as well, and no launcher minds
        faulthandler.dump_traceback_later(seconds + 5.0, exit=True)


def _load() -> ModuleType:
    """Import mpi4py.MPI without MPI_Init, so that a wrong MPI can still be reported."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        with warnings.catch_warnings():
            # mpi4py notices a foreign launcher too; _check_launcher says what to do about it.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment")
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library was found
        raise LaunchError(
            f"{LAUNCH.launcher} started this process, but MPI cannot be loaded: {error}\n"
            f"install mpi4py with an MPI of its own: {install('mpich')}; or, if this machine has "
            "an MPI, load its module and install the extra `mpi` instead"
        ) from error
    return MPI


def library_name(version: str) -> str:
    """Name and version, as in "MPICH 5.0.2", out of the text of MPI_Get_library_version."""
    first_line = version.replace("\0", "").splitlines()[0].split(",")[0]
    return " ".join(first_line.replace("Version:", "").split())


def belongs(kind: str, library: str) -> bool:
    """Whether an mpirun of this kind (see `Launch`) may start ranks of that library."""
    return not library.startswith(_FOREIGN.get(kind, ()))


def _check_launcher(MPI: ModuleType) -> None:
    """LaunchError unless MPI, and its ranks as soon as there are some, are the launcher's."""
    library, found = library_name(MPI.Get_library_version()), ""
    if not belongs(LAUNCH.kind, library):
        found = f"mpi4py has loaded another MPI: {library}"
    elif LAUNCH.kind != "none" and MPI.Is_initialized():
        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (LAUNCH.rank, LAUNCH.size or world.size):
            found = f"{library}, which mpi4py has loaded, says rank {world.rank} of {world.size}"
    if not found:
        return
    beside = Path(sys.executable).with_name("mpirun")
    if LAUNCH.kind == "slurm":
        way_out = "start it with srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list: what there is)"
    elif beside.exists():
        way_out = f"start it with the mpirun of that MPI: {beside}"
    else:
        way_out = f"start it with the mpirun that came with {library}"
    raise LaunchError(
        f"{LAUNCH.launcher} started this process as rank {LAUNCH.rank} of "
        f"{LAUNCH.size or 'an unknown number'}, but {found}\n{way_out}"
    )


def _check_settings(comm: Any) -> None:
    """LaunchError on every rank unless all have the same settings and versions; collective.

    Rank 0 warns where their BLAS libraries compute by the code of different processors.
    """
    if comm.size == 1:
        return
    values = {name: os.environ.get(name) for name in _SETTINGS}
    mine = {name: repr(value) if value else "not set" for name, value in values.items()}
    mine |= {"microtrain": version.__version__, "NumPy": np.__version__}
    everyone, kernels = zip(*comm.allgather((mine, blas_kernel())), strict=True)
    for name, found in differing(everyone):
        what = f"the ranks run different versions of {name}:"
        way_out = "install one version on all machines"
        if name in _SETTINGS:
            what = f"the environments of the ranks differ: {name} is"
            way_out = "set it for all, or for none (Open MPI's mpirun hands it to other hosts with "
            way_out += f"-x {name}, as microtrain launch does)"
        raise LaunchError(f"{what} {by_rank(found)}\nthey would not do the same; {way_out}")
    if len({*kernels}) > 1 and comm.rank == 0:
        warnings.warn(
            f"BLAS computes by different code: {by_rank(kernels)}. Results are right, but their "
            "last digits depend on which rank computes a row, also with reproducible: world; "
            "processors differ, or OPENBLAS_CORETYPE is set for some ranks (set one for all)",
            stacklevel=2,
        )
