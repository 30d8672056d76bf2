"""Data once a host: one rank reads and prepares them, and all ranks of the host map one memory.

The arrays go one after another into a file in memory that nobody else can open: all ranks have
opened it, and it has no name any more, before the first row is written, so a job that is killed
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from ...common.files import refusing
from ...common.words import size
from ...distributed.agreement import from_root, settled
from ...distributed.communicator import alone
from ...errors import DataError
from ..preparation.prepare import Prepared
from ..preparation.split import PARTS
from ..rows import is_lazy

if TYPE_CHECKING:
    from ...distributed.communicator import Communicator

__all__ = ["share"]

Array = NDArray[Any]
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
class Span:
    """Where an array is in the file."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any


@dataclass(frozen=True)
class Parcel:
    """What the first rank of a host tells the others.

    Attributes:
        found: in rows that are read when they are used, of which there is no file.
        rest: the data, in which a `Span` stands for each array.
        path, length: of the file, in bytes.
    """

    found: Any
    rest: Prepared | None = None
    path: str = ""
    length: int = 0


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

    def first() -> Parcel:
        nonlocal data
        with alone(WHY):
            data = load() if data is None else data
            return Parcel(data.found) if is_lazy(data.train) else _parcel(data)

    parcel = from_root(node, first)
    if parcel.rest is None:
        return load(parcel.found) if data is None else data
    own: list[Array] = []
    if data is not None:
        _with(data, own.append)
    del data
    return _in_memory(node, parcel, own)


def _in_memory(node: Communicator, parcel: Parcel, own: list[Array]) -> Prepared:
    """The data of a parcel, with arrays in the file that all ranks map.

    own: the arrays of this rank, if it has loaded them; each is freed once it is written.
    """
    assert parcel.rest is not None

    def mapped(span: Span) -> Array:
        array = own.pop(0) if own else None
        if array is not None and node.rank == 0:
            _write(array, file, span, parcel)
        return np.ndarray(span.shape, span.dtype, memory, span.start, order=span.order)

    with contextlib.ExitStack() as stack:
        try:
            with refusing("data", NOT_SEEN, DataError):
                file = stack.enter_context(open(parcel.path, "r+b"))
        finally:
            node.barrier()
            if node.rank == 0:
                os.unlink(parcel.path)
        stack.enter_context(alone(WHY))
        memory = mmap.mmap(file.fileno(), parcel.length, access=mmap.ACCESS_READ)
        data = _with(parcel.rest, mapped)
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)  # glibc keeps what the preparation has freed
    return data


def _with(data: Any, change: Callable[[Any], Any]) -> Prepared:
    """The data with something different for each array, of which nothing is checked."""
    parts = {name: copy.copy(getattr(data, name)) for name in PARTS}
    for part in parts.values():
        if part is not None:
            part.arrays = tuple(map(change, part.arrays))
    return replace(data, **parts)


def _parcel(data: Prepared) -> Parcel:
    """A new file, which takes no room yet, and what is where in it."""
    length = 0

    def span(array: Array) -> Span:
        nonlocal length
        start = -(-length // ALIGNED) * ALIGNED
        length = start + array.nbytes
        return Span(start, array.dtype, array.shape, "F" if array.flags.fnc else "C")

    rest, tried = _with(data, span), list[str]()
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
            empty.truncate(length := max(length, 1))
        where = f"the ranks of a host share {size(length)} of data through a file in {directory}"
        if tried:
            rest = replace(rest, notes=(*rest.notes, f"{where}: {', '.join(tried)}"))
        return Parcel(None, rest, path, length)
    raise DataError(
        f"data: no room for the {size(length)} that the ranks of host {socket.gethostname()} "
        f"share: {', '.join(tried)}\nhint: name a directory with more in TMPDIR, give a container "
        "a larger /dev/shm (docker run --shm-size), or start one rank a host"
    )


def _write(array: Array, file: BinaryIO, span: Span, parcel: Parcel) -> None:
    """Write an array into its place.

    Room that is missing after all is an error of `write`; a mapped page without it would end the
    process.
    """
    where = f": {parcel.path}, through which the ranks of host {socket.gethostname()} share"
    with refusing("data", f"{where} {size(parcel.length)} of data", DataError):
        file.seek(span.start)
        file.write(np.ascontiguousarray(array.T if span.order == "F" else array).data.cast("B"))
        file.flush()
