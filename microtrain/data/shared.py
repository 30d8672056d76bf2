"""Data once a host: one rank reads and prepares them, and all ranks of the host map one memory.

The arrays go, as .npy files one after another, into a file in memory that nobody else can open: it
has no name any more before the first of them is written, so a job that is killed leaves nothing
behind. Every rank maps it, to be read alone. The rank that writes it gives its own memory back
meanwhile, so that the data are there once and not twice. Ranks that are threads of one process have
the same arrays without a file.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ..distributed.agreement import settled
from ..distributed.communicator import alone
from ..distributed.in_process import InProcessCommunicator
from ..errors import DataError, UserError
from ..files import reason
from ..words import size
from .mapped import npy_header, read_npy
from .prepared import Prepared
from .view import is_lazy

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["share"]

Array = NDArray[Any]
MEMORY: Final = ["/dev/shm"]  # where a file is memory; then comes the temporary directory
BLOCK: Final = 2**23  # bytes that are there twice while they are written
ALIGNED: Final = 64  # bytes: where an array begins
PARTS: Final = ("train", "val", "test")
WHY: Final = "it reads and prepares the data for all ranks of its host"


# By part: its arrays, or where their .npy begin; None for what is another rank's, or not shared.
Arrays = dict[str, list[Array | None]]
Places = dict[str, list[int | None]]
Load = Callable[..., Prepared]


@dataclass(frozen=True)
class Parcel:
    """What the first rank of a host tells the others; `rest` is None where they have their own.

    Rows that are read when they are used are not shared: there is no name, and no file, but what
    was `found` in them.
    """

    name: str
    length: int
    places: Places
    rest: Prepared | None
    found: Any = None


def share(
    comm: Communicator,
    load: Load,
    *,
    everyone: bool = False,
    given: bool = False,
) -> Prepared:
    """The data that `load()` gives on the first rank of each host, on all ranks of that host.

    Collective. Where several ranks share them, the arrays are read-only. Of rows that are read when
    they are used each rank opens the source, whose pages the system shares, and is told what the
    first one has found in it.

    Args:
        load: nobody else may hold what it returns, or that is in memory twice. Takes `found` of
            what the first rank of the host got, where that is not in memory.
        everyone: call it on every rank, for it may be collective. What it gives must be the same
            on all, and nobody fails; each rank keeps its own but for the arrays.
        given: the user has arrays of which these may be views. A copy of them would save nothing.

    Raises, on every rank, a UserError of any rank; and DataError where no directory has the room.
    """
    node = comm.node()
    data: Prepared | None = None
    with settled(comm):  # a rank that fails in here has left out no collective call
        if node.size == 1:
            data = load()
        elif isinstance(node, InProcessCommunicator):
            data = _same_objects(node, load, everyone)
        else:
            data = _same_memory(node, load, everyone, given)
    assert data is not None  # else the first rank of the host has raised
    return data


def _same_objects(node: InProcessCommunicator, load: Load, everyone: bool) -> Prepared | None:
    """For threads: what the first one got."""
    data: Prepared | None = None
    error: UserError | None = None
    try:
        if everyone:
            data = load()
        elif node.rank == 0:
            with alone(WHY):
                data = load()
    except UserError as caught:
        error = caught
    same: Prepared | None = node.exchange("shares its data", data, lambda ranks: ranks[0])
    if error is not None:
        raise error
    if same is not None and _by_rows(same) and node.rank > 0:
        return data if everyone else load(same.found)
    return same


def _by_rows(data: Prepared) -> bool:
    """Whether rows are read when they are used."""
    return is_lazy(data.train)


def _same_memory(node: Communicator, load: Load, everyone: bool, given: bool) -> Prepared | None:
    """For processes: the arrays in a file that all of them map."""
    first = node.rank == 0
    rest: Prepared | None = None
    arrays: Arrays = {}
    parcel: Parcel | None = None
    error: UserError | None = None
    read: Prepared | None = None
    if everyone:
        data = load()
        if _by_rows(data):
            return data
        rest, arrays = _apart(data)
        del data
    if first:
        try:
            with alone(WHY):
                if rest is None:
                    loaded = [load()]
                    if _by_rows(loaded[0]):
                        read = loaded[0]
                    else:
                        rest, arrays = _apart(loaded.pop())
                if rest is None:
                    parcel = Parcel("", 0, {}, None, None if read is None else read.found)
                else:
                    places, headers, length = _layout(arrays, everyone, given)
                    name, notes = _new_file(headers, length)
                    rest = replace(rest, notes=(*rest.notes, *notes))
                    parcel = Parcel(name, length, places, None if everyone else rest)
        except UserError as caught:
            error = caught
    try:
        file, parcel, error = _opened(node, parcel, error)
    finally:
        if first and parcel is not None and parcel.name:
            os.unlink(parcel.name)
    if error is not None:
        raise error
    if parcel is not None and not parcel.name:
        return load(parcel.found) if read is None else read
    if file is None or parcel is None:
        return None
    with file, alone(WHY):
        _trim()
        mapped: Arrays = {}
        for part, starts in parcel.places.items():
            mapped[part] = mine = arrays.get(part, [None] * len(starts))
            for number, place in enumerate(starts):
                if place is not None:
                    array = read_npy(file, place, "what the ranks of a host share")
                    held, mine[number] = [mine[number]], array
                    if first:
                        _write(held, file, place, parcel)
        _trim()
    return _with(parcel.rest if rest is None else rest, mapped)


def _opened(
    node: Communicator, parcel: Parcel | None, error: UserError | None
) -> tuple[FileIO | None, Parcel | None, UserError | None]:
    """The file of the first rank, open on every rank; and what this one sent, and is wrong here."""
    parcel = node.broadcast_object(parcel)
    file = None
    if parcel is not None and parcel.name:
        try:
            file = open(parcel.name, "r+b", buffering=0)  # noqa: SIM115 (until it is mapped)
        except OSError as caught:
            error = DataError(
                f"data: {reason(caught)}: the first rank of this host shares the data there; do "
                "its ranks not see the same directories?"
            )
    node.barrier()
    return file, parcel, error


def _apart(data: Prepared) -> tuple[Prepared, Arrays]:
    """The data without arrays, and these; nothing that is returned holds them but the lists."""
    parts = {name: getattr(data, name) for name in PARTS}
    arrays = {name: [*part.arrays] for name, part in parts.items() if part is not None}
    return _with(data, {name: [] for name in arrays}), arrays


def _with(data: Any, arrays: Mapping[str, Sequence[Any]]) -> Prepared:
    """The data with other arrays, of which nothing is checked."""
    parts = {name: copy.copy(getattr(data, name)) for name in arrays}
    for name, part in parts.items():
        part.arrays = tuple(arrays[name])
    found: Prepared = replace(data, **parts)
    return found


def _layout(arrays: Arrays, everyone: bool, given: bool) -> tuple[Places, dict[int, bytes], int]:
    """Where the arrays go, what they begin with there, and how long the file is."""
    places: Places = {}
    headers: dict[int, bytes] = {}
    end = 0
    for name, some in arrays.items():
        places[name] = []
        for array in some:
            assert array is not None
            if everyone and given and _owner(array) is not array:
                places[name].append(None)
                continue
            start = -(-end // ALIGNED) * ALIGNED
            places[name].append(start)
            headers[start] = npy_header(array.dtype, array.shape, _is_turned(array))
            end = start + len(headers[start]) + array.nbytes
    return places, headers, max(end, 1)


def _is_turned(array: Array) -> bool:
    """Whether the transpose is what is contiguous."""
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _owner(array: Array) -> Array:
    """The array whose memory this one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _new_file(headers: dict[int, bytes], length: int) -> tuple[str, list[str]]:
    """A file of `length` bytes that takes no room yet but for `headers`; what to know of it."""
    tried: list[str] = []
    for directory in filter(os.path.isdir, (*MEMORY, tempfile.gettempdir())):
        total, _, free = shutil.disk_usage(directory)
        if total and free < length:
            tried.append(f"{directory} has {size(free)}")
            continue
        try:
            handle, name = tempfile.mkstemp(prefix="microtrain-", dir=directory)
        except OSError as error:
            tried.append(f"{directory}: {error.strerror}")
            continue
        try:
            os.truncate(handle, length)
            for start, header in headers.items():
                os.pwrite(handle, header, start)
        except OSError as error:
            os.unlink(name)
            tried.append(f"{directory}: {error.strerror}")
            continue
        finally:
            os.close(handle)
        where = f"the ranks of a host share {size(length)} of data through a file in {directory}"
        return name, [f"{where}: {', '.join(tried)}"] if tried else []
    raise DataError(
        f"data: no room for the {size(length)} that the ranks of host {socket.gethostname()} "
        f"share: {', '.join(tried)}\nhint: name a directory with more in TMPDIR, give a container "
        "a larger /dev/shm (docker run --shm-size), or start one rank a host"
    )


def _write(held: list[Array | None], file: FileIO, place: int, parcel: Parcel) -> None:
    """Write an array, taken from `held`, from its end on, and give its memory back meanwhile.

    Room that is missing after all is an error of `write`; a mapped page without it would end the
    process.
    """
    array = held.pop()
    assert array is not None
    turned = _is_turned(array)
    place += len(npy_header(array.dtype, array.shape, turned))
    array = np.ascontiguousarray(array.T if turned else array)
    owner = _owner(array)
    # Of a view of all of it: the owner, whose memory can be given back.
    if owner.size == array.size and owner.dtype == array.dtype and owner.flags.c_contiguous:
        array = owner
    del owner
    step, end = BLOCK // array.itemsize, array.size
    try:
        while end:
            begin = max(0, end - step)
            file.seek(place + begin * array.itemsize)
            _put(array.reshape(-1)[begin:end].data.cast("B"), file)
            end = begin
            with contextlib.suppress(ValueError):  # where somebody else has it, too
                array.resize(end)
    except OSError as error:
        raise DataError(
            f"data: {error.strerror}: {parcel.name}, through which the ranks of host "
            f"{socket.gethostname()} share {size(parcel.length)} of data"
        ) from error


def _trim() -> None:
    """Give back what the preparation has left: cycles, and freed memory that glibc keeps."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _put(block: memoryview, file: FileIO) -> None:
    while block:
        block = block[file.write(block) :]
