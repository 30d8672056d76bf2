"""Arguments read where they are: native code is given their addresses instead of copies.

What looks whether an argument may be read in place is native too: it is handed the array object,
and reads in it what NumPy's C interface puts there (data, dimensions, strides, dtype). An argument
must be row-major and aligned, and must not have memory in common with what the step writes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import numpy as np

from ..backend import owner_of
from .fusion import Call, Place, Unit
from .program import Program, works_on

HEADER = object.__basicsize__ // 8  # words of an object before its own

# `plan`: the address of the table; the count of ranges, and theirs; then for every array its dtype,
# dimensions and strides, bytes, alignment, and where in the table its parts are, at which offsets.
SOURCE = """\
from numba import int64, njit

from microtrain.compile.native import instructions

_I = instructions()
address, pointer, put = _I.address, _I.pointer, _I.put


@njit("int64(int64{types})", cache=CACHE)
def arrive(plan, {names}):
    table = pointer(plan, 0, int64)
    ranges = address(plan, 1)
    at = 2 + 2 * ranges
    for array in ({names},):
        data = address(array, {data})
        count = address(plan, at + 1)
        # The number of dimensions is an int, of 32 bits.
        if address(array, {dtype}) != address(plan, at):
            return 0
        if address(array, {count}) & 0xFFFFFFFF != count:
            return 0
        shape, strides = address(array, {shape}), address(array, {strides})
        at += 2
        for d in range(count):
            length = address(plan, at)
            if address(shape, d) != length:
                return 0
            if length != 1 and address(strides, d) != address(plan, at + 1):
                return 0
            at += 2
        end = data + address(plan, at)
        if data % address(plan, at + 1):
            return 0
        for r in range(ranges):
            if data < address(plan, 3 + 2 * r) and address(plan, 2 + 2 * r) < end:
                return 0
        parts = address(plan, at + 2)
        at += 3
        for _ in range(parts):
            put(table, address(plan, at), data + address(plan, at + 1), "")
            at += 2
    return 1
"""


class Arrival:
    """Which arguments are read in place, and how native code is told.

    Args:
        units: what a replay does.
        replay: the function for it, which reads copies.
        table, slots: what native code is told, and where each address in it comes from.
        starts: by name in the replay, where in the table a native function begins to read.

    Attributes:
        moved: the numbers of these arguments.
        run: the replay that reads them; it has a table of its own.
        function: `function(plan, *ids)` of arrays tells native code of them, or returns 0.
        plan: what it needs to know, the address of it.
    """

    __slots__ = ("function", "moved", "plan", "run")

    def __init__(
        self, program: Program, units: list[Unit], replay: Any, table: Any, slots: Any,
        starts: dict[str, int],
    ) -> None:  # fmt: skip
        self.moved = _moved(program, units)
        table = table.copy()
        scope = replay.__globals__ | places_of(table, starts)
        self.run = FunctionType(replay.__code__, scope)
        ranges = [n for place in _written(program) for n in (place.low, place.high)]
        words = [table.ctypes.data, len(ranges) // 2, *ranges]
        for array in (program.inputs[number] for number in self.moved):
            sizes = (n for pair in zip(array.shape, array.strides, strict=True) for n in pair)
            parts = [
                (number, address - array.ctypes.data)
                for number, (address, owner) in enumerate(slots)
                if owner is array
            ]
            words += [id(array.dtype), array.ndim, *sizes, array.nbytes, array.dtype.alignment]
            words += [len(parts), *(n for part in parts for n in part)]
        plan = np.array(words, np.int64)
        self.plan = plan.ctypes.data
        scope["kept"] = plan, table, program.inputs  # whoever has the function has these
        self.function = _function(len(self.moved)) if self.moved else None


def places_of(table: Any, starts: dict[str, int]) -> dict[str, int]:
    """By name in a replay, the addresses of the parts of `table` that begin at `starts`."""
    return {name: table.ctypes.data + 8 * start for name, start in starts.items()}


@functools.cache
def _function(count: int) -> Any:
    from .cache import load

    source = SOURCE.format(
        types=", int64" * count, names=", ".join(f"a{n}" for n in range(count)),
        data=HEADER, count=HEADER + 1, shape=HEADER + 2, strides=HEADER + 3, dtype=HEADER + 5,
    )  # fmt: skip
    compiled = load(source)["arrive"]
    return compiled.overloads[compiled.signatures[0]].entry_point


def _moved(program: Program, units: Iterable[Unit]) -> list[int]:
    """The inputs that native code alone reads, and nobody is given."""
    seen = [unit for unit in units if type(unit) is Call]
    lines = [line for unit in seen for line in unit.lines]
    arrays = [place.array for unit in seen for place in unit.reads]
    arrays += [array for line in lines for array in works_on(line)]
    others = {id(owner_of(array)) for array in arrays + program.outputs}
    return [
        number
        for number, array in enumerate(program.inputs)
        if _legible() and array.size and array.flags.carray and id(owner_of(array)) == id(array)
        if id(array) not in others
    ]


def _written(program: Program) -> list[Place]:
    """The state that the step may write."""
    owners: dict[int, Any] = {}
    for line in program.lines:
        for array in works_on(line):
            owner = owner_of(array)
            if owner.size and program.kinds.get(id(owner)) == "state":
                owners[id(owner)] = owner
    return [Place(owner) for owner in owners.values()]


@functools.cache
def _legible() -> bool:
    """Whether an array is laid out as is known here."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    array = np.zeros((2, 3), np.int16)
    words = (ctypes.c_int64 * (HEADER + 6)).from_address(id(array))
    if (words[HEADER], words[HEADER + 1] & 0xFFFFFFFF, words[HEADER + 5]) != (
        array.ctypes.data, 2, id(array.dtype)
    ):  # fmt: skip
        return False
    shape, strides = ((ctypes.c_int64 * 2).from_address(words[HEADER + n]) for n in (2, 3))
    return tuple(shape) == array.shape and tuple(strides) == array.strides
