"""Arguments read where they are: native code is given their addresses instead of copies.

What looks whether an argument may be read in place is C too (`arrive` in runtime.c): it is handed
the array object, and reads in it what NumPy's C interface puts there (data, dimensions, strides,
dtype). An argument must be row-major and aligned, and must not have memory in common with what the
step writes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import numpy as np

from ..backend import owner_of
from . import c_compiler
from .fusion import Call, Check, Place, Unit
from .program import Program, works_on

HEADER = object.__basicsize__ // 8  # words of an object before its own


class ArgumentsInPlace:
    """Which arguments are read in place, and how native code is told.

    Args:
        units: what a replay does.
        replay: the function for it, which reads copies.
        native: the code that it calls.

    Attributes:
        moved: the numbers of these arguments.
        run: the replay that reads them; it has a table of its own.
        function: `function(*arrays)` tells native code of them, or returns False.
    """

    __slots__ = ("function", "moved", "run")

    def __init__(self, program: Program, units: list[Unit], replay: Any, native: Any) -> None:
        self.moved = _moved(program, units)
        table = native.table.copy()
        scope = replay.__globals__ | native.functions(table)
        self.run = FunctionType(replay.__code__, scope)
        ranges = [n for place in _written(program) for n in (place.low, place.high)]
        words = [HEADER, table.ctypes.data, len(ranges) // 2, *ranges]
        for array in (program.inputs[number] for number in self.moved):
            sizes = (n for pair in zip(array.shape, array.strides, strict=True) for n in pair)
            words += [id(array.dtype), array.ndim, *sizes, array.nbytes, array.dtype.alignment]
            parts = native.parts_of(array)
            words += [len(parts), *(n for part in parts for n in part)]
        plan = np.array(words, np.int64)
        scope["kept"] = plan, table, program.inputs  # whoever has the function has these
        self.function = c_compiler.builtin(
            c_compiler.runtime(), "arrive", c_compiler.SEVERAL, plan.ctypes.data
        )


def _moved(program: Program, units: Iterable[Unit]) -> list[int]:
    """The inputs that native code alone reads, and nobody is given, or is to say what is wrong."""
    seen = [unit for unit in units if type(unit) in (Call, Check)]
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
