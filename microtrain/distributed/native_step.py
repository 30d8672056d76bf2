"""The reduction of a captured step as one native call: pack, add up on this host, divide.

It does what `Whole.by_python` does, with the same bits and through the same memory, so one rank may
be here while another one is there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..optim.flat import LANE, FlatStorage
from .communicator import FORBIDDEN, Array, Communicator, refuse_alone
from .control_lane import NOTES, SILENT, Outcome, Totals, pack, split
from .shared_memory import FUTEX, WAIT, WAKE, SharedMemory

__all__ = ["NativeStep", "native_step"]

# `table`: the addresses of the gradients, of the loss, of the lane without it (control_lane.py) and
# of where sums go, in the order of `Outcome`. Then how many gradients, how many numbers in the
# lane, the rows; the rest is from `SharedMemory.turns`.
SOURCE = """\
from numba import float32, float64, int64, njit

from microtrain.compile.native import instructions

_I = instructions()
acquire, address, ahead, get = _I.acquire, _I.address, _I.ahead, _I.get
invoke, pointer, put, release = _I.invoke, _I.pointer, _I.put, _I.release


@njit("UniTuple(float64, 2)(float64)", cache=CACHE)
{split}

@njit("int64(int64, int64, int64)", cache=CACHE, error_model="numpy", nogil=True)
def step(table, word, first):
    wide, size, lane = pointer(table, 0, {real}), address(table, 4), address(table, 5)
    count = size + lane
    yielding, system_call = address(table, 9), address(table, 10)
    if first:
        before = pointer(table, 2, float64)
        for i in range(lane):
            put(wide, size + i, {real}(get(before, i, "")), "")
        high, low = split(0.0 + address(table, 6) * float64(get(pointer(table, 1, {loss}), 0, "")))
        put(wide, size + 2, {real}(high), "")
        put(wide, size + 3, {real}(low), "")
        mine, place = pointer(table, 7, {real}), address(table, 8)
        for i in range(count):
            put(mine, i, get(wide, i, ""), "")
        release(place, word)
        if acquire(place + 8):
            release(place + 8, 0)
            invoke(system_call, ({futex}, place + 4, {wake}, 0x7FFFFFFF, 0))
    yields, naps, others = address(table, 12), address(table, 13), address(table, 14)
    for n in range(others):
        place = address(table, 15 + n)
        while True:
            seen = acquire(place)
            if seen == word:
                break
            if seen >> 32 == word >> 32 or yields + naps == 0:
                return 1
            if yields > 0:
                yields -= 1
                invoke(yielding, ())
            else:
                naps -= 1
                release(place + 8, 1)
                invoke(system_call, ({futex}, place + 4, {wait}, seen >> 32, address(table, 11)))
    at = 15 + others
    for _ in range(address(table, at)):
        one, to = pointer(table, at + 1, {real}), pointer(table, at + 3, {real})
        if address(table, at + 2):
            more = pointer(table, at + 2, {real})
            for i in range(count):
                put(to, i, get(one, i, "") + get(more, i, ""), "")
        else:
            for i in range(count):
                put(to, i, get(one, i, ""), "")
        at += 3
    sums = ahead(wide, size)
    found = pointer(table, 3, float64)
    for n in range({notes}, {lane}):
        put(found, n - {notes} + 4, float64(get(sums, n, "")), "")
    weight = float64(get(sums, 5, "")) + float64(get(sums, 6, ""))
    put(found, 0, float64(get(sums, 0, "")) * 4096 + float64(get(sums, 1, "")), "")
    put(found, 1, weight, "")
    put(found, 2, float64(get(sums, 2, "")) + float64(get(sums, 3, "")), "")
    put(found, 3, float64(get(sums, 4, "")), "")
    if weight != 0:
        for i in range(size):
            put(wide, i, get(wide, i, "") / {real}(weight), "")
    return 0
"""
_FLOATS = {"f": "float32", "d": "float64"}  # that native code knows, by NumPy's letter


@functools.cache
def _compiled(real: str, loss: str) -> Callable[[int, int, int], int] | None:
    from ..compile.cache import load

    try:
        text = inspect.getsource(split)
    except OSError:  # a package without source
        return None
    numbers = {"notes": NOTES, "lane": LANE, "futex": FUTEX, "wait": WAIT, "wake": WAKE}
    compiled = load(SOURCE.format(split=text, real=real, loss=loss, **numbers))["step"]
    entry: Callable[[int, int, int], int]
    entry = compiled.overloads[compiled.signatures[0]].entry_point
    return entry


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
        turns = memory.turns(wide, [*places, size, len(self._lane), rows])
        self._turns = [(plan, table.ctypes.data) for plan, table in turns]
        self._kept = arrays, turns
        self._comm, self._run, self._code = comm, memory.run, code
        self._doing = "all_reduce", (wide,)

    def __call__(self, notes: Sequence[float], mark: float) -> Outcome:
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
        return Outcome(self._found.tolist())


def native_step(
    comm: Communicator, storage: FlatStorage, root: Array, rows: int
) -> NativeStep | None:
    """For a storage of one buffer; None where native code cannot do it."""
    wide = storage.buffers[0].wide
    memory, kinds = comm.memory_for(wide), [_FLOATS.get(a.dtype.char) for a in (wide, root)]
    if memory is None or None in kinds or type(root) is not np.ndarray:
        return None
    code = _compiled(*kinds)
    return code and NativeStep(code, comm, memory, storage, root, rows)
