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
from ..optim.flat import FOOTER, FlatStorage
from .communicator import FORBIDDEN, Array, Communicator, refuse_alone
from .footer import NOTES, SILENT, Summed, Totals, pack

_CODES = {"f": "reduce32", "d": "reduce64"}  # by NumPy's letter


@functools.cache
def _library() -> Any:
    """native_reduction.c, None where there is no compiler."""
    if c_compiler.absent():
        return None
    text = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
    return c_compiler.load(f"enum {{ NOTES = {NOTES}, FOOTER = {FOOTER} }};\n{text}")


def native_step(
    comm: Communicator, storage: FlatStorage, root: Array, rows: int
) -> Callable[[Sequence[float], float], Summed] | None:
    """What reduces the gradients of a pass over `rows` from the mean `root`; given notes, a mark.

    For a storage of one buffer; None where native code cannot do it. Collective when called.
    """
    wide, size = storage.buffers[0].wide, storage.buffers[0].grad.size
    memory, name = comm.memory_for(wide), _CODES.get(wide.dtype.char)
    known = type(root) is np.ndarray and root.dtype.char in _CODES
    if memory is None or name is None or not known or _library() is None:
        return None
    code, run = c_compiler.builtin(_library(), name, c_compiler.SEVERAL), memory.run
    used = (True,) * len(storage.slots)
    footer = np.array(pack(Totals(rows, float(rows), 0.0, 0), SILENT, used))
    found = np.zeros(4 + FOOTER - NOTES)
    places = [array.ctypes.data for array in (wide, root, footer, found)]
    tables = memory.turns(wide, [*places, size, len(footer), rows, root.itemsize])
    turns = [(plan, table.ctypes.data) for plan, table in tables]
    place: Any = footer[NOTES:FOOTER].data  # views are faster than arrays
    sums: Any = found.data
    doing = "all_reduce", (wide,)

    def reduce(notes: Sequence[float], mark: float, _: Any = (root, tables)) -> Summed:
        if FORBIDDEN:
            refuse_alone("all_reduce")
        place[0], place[1], place[2] = notes
        place[3] = mark
        comm._doing = doing  # for the watchdog
        try:
            run(code, turns)
        finally:
            comm._doing = None
        comm._done += 1
        return sums.tolist()

    return reduce
