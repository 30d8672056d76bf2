"""The reduction of a captured step as one native call: pack, add up on this host, divide.

It does what `Whole.by_python` does, with the same bits and through the same memory, so one rank may
be here while another one is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..capture import c_compiler
from ..optim.flat import LANE, FlatStorage
from .communicator import FORBIDDEN, Array, Communicator, refuse_alone
from .footer import NOTES, SILENT, Summed, Totals, pack
from .shared_memory import SharedMemory

_CODES = {"f": "reduce32", "d": "reduce64"}  # by NumPy's letter


@functools.cache
def _library() -> Any:
    """native_reduction.c, None where there is no compiler."""
    if c_compiler.absent():
        return None
    text = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
    return c_compiler.load(f"enum {{ NOTES = {NOTES}, LANE = {LANE} }};\n{text}")


class NativeStep:
    """Reduces the gradients of a pass over `rows` from the mean `root`; collective when called."""

    def __init__(
        self, code: Callable[[int, int, int], int], comm: Communicator, memory: SharedMemory,
        storage: FlatStorage, root: Array, rows: int,
    ) -> None:  # fmt: skip
        wide, size = storage.buffers[0].wide, storage.buffers[0].grad.size
        used = (True,) * len(storage.slots)
        self._lane = np.array(pack(Totals(rows, float(rows), 0.0, 0), SILENT, used))
        found = np.zeros(4 + LANE - NOTES)
        views: Any = self._lane[NOTES:LANE].data, found.data  # faster than arrays
        self._notes, self._found = views
        arrays = wide, root, self._lane, found
        places = [array.ctypes.data for array in arrays]
        turns = memory.turns(wide, [*places, size, len(self._lane), rows, root.itemsize])
        self._turns = [(plan, table.ctypes.data) for plan, table in turns]
        self._kept = arrays, turns
        self._comm, self._run, self._code = comm, memory.run, code
        self._doing = "all_reduce", (wide,)

    def __call__(self, notes: Sequence[float], mark: float) -> Summed:
        if FORBIDDEN:
            refuse_alone("all_reduce")
        place = self._notes
        place[0], place[1], place[2] = notes
        place[3] = mark
        comm = self._comm
        comm._doing = self._doing  # for the watchdog
        try:
            self._run(self._code, self._turns)
        finally:
            comm._doing = None
        comm._done += 1
        found: Summed = self._found.tolist()
        return found


def native_step(
    comm: Communicator, storage: FlatStorage, root: Array, rows: int
) -> NativeStep | None:
    """For a storage of one buffer; None where native code cannot do it."""
    wide = storage.buffers[0].wide
    memory, name = comm.memory_for(wide), _CODES.get(wide.dtype.char)
    known = type(root) is np.ndarray and root.dtype.char in _CODES
    if memory is None or name is None or not known or _library() is None:
        return None
    code = c_compiler.builtin(_library(), name, c_compiler.SEVERAL)
    return NativeStep(code, comm, memory, storage, root, rows)
