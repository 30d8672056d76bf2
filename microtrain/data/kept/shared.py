"""Data once a host: one rank reads and prepares them, and all ranks of the host map one memory.

The arrays go into .npy files in memory that nobody else can open: all ranks have opened them, and
they have no names any more, before the first row is written, so a job that is killed leaves nothing
behind. Ranks that are threads of one process have the same arrays without files.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from ...common.files import reason
from ...common.words import size
from ...distributed.agreement import settled
from ...distributed.communicator import alone
from ...distributed.in_process import InProcessCommunicator
from ...errors import DataError, UserError
from ..preparation.prepare import Prepared
from ..preparation.split import PARTS
from ..readers.npy import npy_header, read_npy
from ..rows import is_lazy

if TYPE_CHECKING:
    from ...distributed.communicator import Communicator

__all__ = ["share"]

Array = NDArray[Any]
OfArrays = dict[str, list[Any]]  # by part, something for each of its arrays
Load = Callable[..., Prepared]
MEMORY: Final = ["/dev/shm"]  # where a file is memory; then comes the temporary directory
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
        found: in rows that are read when they are used, of which there are no files.
        rest: the data without arrays.
        place: the directory of the files.
        names: of the files; None for an array that each rank keeps.
        length: the bytes of the files.
    """

    found: Any
    rest: Prepared | None = None
    place: str = ""
    names: OfArrays = field(default_factory=dict)
    length: int = 0


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
        load: takes `found` of what the first rank of the host got, where that is not in memory.
        everyone: call it on every rank, for it may be collective. What it gives must be the same
            on all, and nobody fails.
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
    if same is not None and is_lazy(same.train) and node.rank > 0:
        return data if everyone else load(same.found)
    return same


def _same_memory(node: Communicator, load: Load, everyone: bool, given: bool) -> Prepared | None:
    """For processes: the arrays in files that all of them map."""
    data = load() if everyone else None
    if data is not None and is_lazy(data.train):
        return data
    parcel: Parcel | None = None
    error: UserError | None = None
    files: OfArrays = {}
    with contextlib.ExitStack() as stack:
        try:
            if node.rank == 0:
                with alone(WHY):
                    data = load() if data is None else data
                    parcel = Parcel(data.found) if is_lazy(data.train) else _parcel(data, given)
        except UserError as caught:
            error = caught
        parcel = node.broadcast_object(parcel)
        if parcel is None:
            if error is None:  # what the first rank raises is raised on all
                return None
            raise error
        try:
            for part, names in parcel.names.items():
                paths = [name and os.path.join(parcel.place, name) for name in names]
                files[part] = [path and stack.enter_context(open(path, "r+b")) for path in paths]
        except OSError as caught:
            error = DataError(
                f"data: {reason(caught)}: the first rank of this host shares the data there; do "
                "its ranks not see the same directories?"
            )
        finally:
            node.barrier()
            if node.rank == 0 and parcel.place:
                shutil.rmtree(parcel.place)
        if error is not None:
            raise error
        if parcel.rest is None:
            return load(parcel.found) if data is None else data
        arrays: OfArrays = {part: [None] * len(some) for part, some in files.items()}
        if data is not None:
            arrays = _apart(data)[1]
            del data  # each array is freed once it is written
        with alone(WHY):
            for part, some in files.items():
                for number, file in enumerate(some):
                    if file is not None:
                        mapped = read_npy(file, 0, "what the ranks of a host share")
                        if node.rank == 0:
                            _write(arrays[part][number], file, parcel)
                        arrays[part][number] = mapped
            gc.collect()
            if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
                trim(0)  # glibc keeps what the preparation has freed
    return _with(parcel.rest, arrays)


def _apart(data: Prepared) -> tuple[Prepared, OfArrays]:
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


def _parcel(data: Prepared, given: bool) -> Parcel:
    """New files, which take no room yet but for what they begin with."""
    rest, arrays = _apart(data)
    names: OfArrays = {
        part: [
            None if given and isinstance(array.base, np.ndarray) else f"{part}-{number}.npy"
            for number, array in enumerate(some)
        ]
        for part, some in arrays.items()
    }
    pairs = [pair for part in names for pair in zip(names[part], arrays[part], strict=True)]
    length = sum(array.nbytes for name, array in pairs if name)
    tried: list[str] = []
    for directory in filter(os.path.isdir, (*MEMORY, tempfile.gettempdir())):
        total, _, free = shutil.disk_usage(directory)
        if total and free < length:
            tried.append(f"{directory} has {size(free)}")
            continue
        place = ""
        try:
            place = tempfile.mkdtemp(prefix="microtrain-", dir=directory)
            for name, array in pairs:
                if name:
                    with open(os.path.join(place, name), "xb") as file:
                        file.truncate(file.write(_header(array)) + array.nbytes)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            tried.append(f"{directory}: {error.strerror}")
            continue
        where = f"the ranks of a host share {size(length)} of data through files in {directory}"
        if tried:
            rest = replace(rest, notes=(*rest.notes, f"{where}: {', '.join(tried)}"))
        return Parcel(None, rest, place, names, length)
    raise DataError(
        f"data: no room for the {size(length)} that the ranks of host {socket.gethostname()} "
        f"share: {', '.join(tried)}\nhint: name a directory with more in TMPDIR, give a container "
        "a larger /dev/shm (docker run --shm-size), or start one rank a host"
    )


def _header(array: Array) -> bytes:
    return npy_header(array.dtype, array.shape, array.flags.fnc)


def _write(array: Array, file: BinaryIO, parcel: Parcel) -> None:
    """Write an array behind its header.

    Room that is missing after all is an error of `write`; a mapped page without it would end the
    process.
    """
    file.seek(len(_header(array)))
    rows = np.ascontiguousarray(array.T if array.flags.fnc else array)
    try:
        file.write(rows.data.cast("B"))
        file.flush()
    except OSError as error:
        raise DataError(
            f"data: {error.strerror}: {parcel.place}, through which the ranks of host "
            f"{socket.gethostname()} share {size(parcel.length)} of data"
        ) from error
