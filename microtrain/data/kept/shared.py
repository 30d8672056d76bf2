"""Data once a host: one rank reads and prepares them, and all ranks of the host map one memory.

The arrays go one after another into a file in memory that nobody else can open: all ranks have
opened it, and it has no name any more, before the first row is written, so a job that is killed
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ...common.files import refusing
from ...common.words import size
from ...distributed.agreement import from_root, settled
from ...distributed.communicator import alone
from ...errors import DataError
from ..preparation.prepare import Prepared
from ..rows import is_lazy
from ..source import ArrayDataset

if TYPE_CHECKING:
    from ...distributed.communicator import Communicator

Load = Callable[..., Prepared]
MEMORY: Final = ["/dev/shm"]  # where a file is memory; then comes the temporary directory
ALIGNED: Final = 64  # bytes: a multiple of them is where an array begins
NOT_SEEN: Final = ": the ranks of a host share data there; do they all see the same directories?"
WHY: Final = "it reads and prepares the data for all ranks of its host"


@contextlib.contextmanager
def during(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """A variable has a value meanwhile."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@dataclass(frozen=True)
class Parcel:
    """What the first rank of a host tells the others.

    Attributes:
        found: in rows that are read when they are used, of which there is no file.
        rest: the data, pickled without the numbers of its arrays; empty where there is no file.
        spans: first and last-plus-one byte in the file of the numbers of each array.
        path: of the file.
        notes: on its place.
    """

    found: Any
    rest: bytes = b""
    spans: Sequence[tuple[int, int]] = ()
    path: str = ""
    notes: tuple[str, ...] = ()


def share(comm: Communicator, load: Load, *, everyone: bool = False) -> Prepared:
    """The data that `load()` gives on the first rank of each host, on all ranks of that host.

    Collective. Where several ranks share them, the arrays are read-only. Of rows that are read when
    they are used each rank opens the source, whose pages the system shares, and is told what the
    first one has found in it.

    Args:
        load: takes `found` of what the first rank of the host got, where that is not in memory.
        everyone: call it on every rank, for it may be collective. What it gives must be the same
            on all, and nobody fails.

    Raises, on every rank, a UserError of any rank; and DataError where no directory has the room.
    """
    node = comm.node()
    with settled(comm):  # a rank that fails in here has left out no collective call
        return load() if node.size == 1 else _of_first(node, load, everyone)


def _of_first(node: Communicator, load: Load, everyone: bool) -> Prepared:
    """What the first of several ranks has loaded."""
    data = load() if everyone else None
    if data is not None and is_lazy(data.train):
        return data
    numbers: list[PickleBuffer] = []  # of the arrays, on the first rank

    def first() -> Parcel:
        nonlocal data
        with alone(WHY):
            data = load() if data is None else data
            return Parcel(data.found) if is_lazy(data.train) else _parcel(data, numbers)

    parcel = from_root(node, first)
    if not parcel.rest:
        return load(parcel.found) if data is None else data
    del data
    return _in_memory(node, parcel, numbers)


def _in_memory(node: Communicator, parcel: Parcel, numbers: list[PickleBuffer]) -> Prepared:
    """The data of a parcel, with arrays in the file that all ranks map.

    numbers: of the arrays, on the first rank; each is freed once it is written.
    """
    with contextlib.ExitStack() as stack:
        try:
            with refusing("data", NOT_SEEN, DataError):
                file = stack.enter_context(open(parcel.path, "r+b"))
        finally:
            node.barrier()
            if node.rank == 0:
                os.unlink(parcel.path)
        stack.enter_context(alone(WHY))
        for start, _ in parcel.spans if numbers else ():
            _write(numbers.pop(0), file, start, parcel)
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        mapped = [memory[start:stop] for start, stop in parcel.spans]
        data: Prepared = pickle.loads(parcel.rest, buffers=mapped)
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)  # glibc keeps what the preparation has freed
    return replace(data, notes=(*data.notes, *parcel.notes))


def _parcel(data: Prepared, numbers: list[PickleBuffer]) -> Parcel:
    """A new file, which takes no room yet, what is where in it, and the `numbers` to be written."""
    for part in (data.train, data.val, data.test):
        if isinstance(part, ArrayDataset):  # what is not in one piece would be pickled
            part.arrays = tuple(a if a.flags.forc else a.copy() for a in part.arrays)
    rest = pickle.dumps(data, 5, buffer_callback=numbers.append)
    spans, length, tried = list[tuple[int, int]](), 0, list[str]()
    for each in numbers:
        start = -(-length // ALIGNED) * ALIGNED
        length = start + each.raw().nbytes
        spans.append((start, length))
    for directory in filter(os.path.isdir, (*MEMORY, tempfile.gettempdir())):
        total, _, free = shutil.disk_usage(directory)
        if total and free < length:
            tried.append(f"{directory} has {size(free)}")
            continue
        try:
            file, path = tempfile.mkstemp(prefix="microtrain-", dir=directory)
        except OSError as error:
            tried.append(f"{directory}: {error.strerror}")
            continue
        with open(file, "wb") as empty:
            empty.truncate(length)
        where = f"the ranks of a host share {size(length)} of data through a file in {directory}"
        notes = (f"{where}: {', '.join(tried)}",) if tried else ()
        return Parcel(None, rest, spans, path, notes)
    raise DataError(
        f"data: no room for the {size(length)} that the ranks of host {socket.gethostname()} "
        f"share: {', '.join(tried)}\nhint: name a directory with more in TMPDIR, give a container "
        "a larger /dev/shm (docker run --shm-size), or start one rank a host"
    )


def _write(numbers: PickleBuffer, file: BinaryIO, start: int, parcel: Parcel) -> None:
    """Write the numbers of an array into their place.

    Room that is missing after all is an error of `write`; a mapped page without it would end the
    process.
    """
    where = f": {parcel.path}, through which the ranks of host {socket.gethostname()} share"
    with refusing("data", f"{where} {size(parcel.spans[-1][1])} of data", DataError):
        file.seek(start)
        file.write(numbers.raw())
        file.flush()
