"""The native executor: a Program as native code, and NumPy calls for what is left.

Units (see `fusion`) become functions of C (see `c`). A run of them is a sequence: a table with the
addresses of their code and of what they work on, through which one function of runtime.c walks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from ..backend import NUMPY, uint8
from . import c_compiler, fusion
from .arguments_in_place import ArgumentsInPlace
from .c import Word, Writer, Written, native_units, work
from .fusion import Call, Check, may_raise
from .numpy_executor import Text
from .program import ALIGNED, Program
from .python_calls import Draw, WholePass
from .time_loops import Loop

RELEASE = 200_000  # multiplications and elements from which other threads may run meanwhile


class Native:
    """The native code of a program.

    Attributes:
        words: what it is told; as an array: `table`.
        starts: by name in the replay, where in it a sequence begins, and what of runtime.c does it.
        complete: whether it does all instructions.
        draws: what says where random words come from.
    """

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.words: list[Word] = []
        self.starts: dict[str, tuple[int, str]] = {}
        self.complete = False
        self.table: Any = None
        self.memory: Any = None  # else that is told by address

    def add(self, units: list[Written]) -> str:
        """The name of one more sequence."""
        how = "run_apart" if sum(work(one.unit) for one in units) >= RELEASE else "run"
        how = "look" if type(units[0].unit) is Check else how
        self.starts[name := f"native{len(self.starts) + 1}"] = len(self.words), how
        self.words += _sequence(units)
        return name

    def resolve(self, writer: Writer) -> None:
        """Compile, and make the table."""
        codes, names = dict[str, Any](), writer.names
        if names:
            made = c_compiler.load(writer.source())
            found = (ctypes.c_void_p * len(names)).in_dll(made, "units")
            codes = dict(zip(names, found, strict=True))
        for word in self.words:
            if isinstance(word.value, str):
                if word.value not in codes:
                    codes[word.value] = _address(word.value)
                word.value = codes[word.value]
        scratch = NUMPY.empty(writer.scratch + ALIGNED, uint8)
        for word in writer.rooms:
            word.value = scratch.ctypes.data + -scratch.ctypes.data % ALIGNED
        self.memory = scratch, writer.plans
        self.table = np.array([word.value for word in self.words], np.int64)

    def parts_of(self, array: Any) -> list[tuple[int, int]]:
        """Which words are addresses in the memory of `array`, and how far from its beginning."""
        start, words = array.ctypes.data, enumerate(self.words)
        return [(number, word.value - start) for number, word in words if word.owner is array]

    def sequences(self, table: Any) -> list[int]:
        """The addresses of the sequences in `table`."""
        return [table.ctypes.data + 8 * start for start, _ in self.starts.values()]

    def functions(self, table: Any) -> dict[str, Any]:
        """By name in the replay, what does the sequences in `table`."""
        library, none = c_compiler.runtime(), c_compiler.NO_ARGUMENTS
        starts = zip(self.starts.items(), self.sequences(table), strict=True)
        return {
            name: c_compiler.builtin(library, how, none, start)
            for (name, (_, how)), start in starts
        }


def executor(program: Program) -> tuple[Callable[[], None], Text]:
    """A function that replays `program`, with `in_place` for arguments, and its text."""
    units = native_units(program)
    places = fusion.share_memory(units, program)
    writer, text, native = Writer(program, places), Text(program), Native()
    text.traffic = fusion.traffic(units)
    text.groups = [len(unit.lines) for unit in units if type(unit) not in (Call, Check)]
    for is_call, run in groupby(units, lambda unit: type(unit) is Call):
        members = [*run]
        for unit in members if is_call else ():
            assert isinstance(unit, Call)
            host = unit.host.native() if type(unit.host) is WholePass else unit.host
            text.line(unit.lines[0]) if host is None else text.host(host)
        while members and not is_call:
            # What may refuse an index begins a call of its own: its line is then known. A check is
            # one: where it finds something, its Python decides.
            count = next((n for n, u in enumerate(members) if n and may_raise(u)), len(members))
            count = 1 if type(members[0]) is Check else count
            written = [writer.written(unit) for unit in members[:count]]
            _say(text, native.add(written), written)
            members = members[count:]
    text.native = writer.functions
    native.resolve(writer)
    native.draws = [u.host for u in units if type(u) is Call and type(u.host) is Draw]
    native.complete = all(unit.host is not None for unit in units if type(unit) is Call)
    text.native_code = native
    text.scope.update(native.functions(native.table))
    text.scope["owned"] = native
    replay = text.function()
    replay.in_place = ArgumentsInPlace(program, units, replay, native)
    return replay, text


def _address(name: str) -> int:
    """Of a function that every program has, of numbers of one type or of any."""
    real, _, name = name.rpartition(" ")
    if not real:
        return c_compiler.address(c_compiler.runtime(), name)
    file = "convolution" if name.startswith("convolution") else "products"
    return c_compiler.address(c_compiler.vectors(file, real), name)


def _sequence(units: list[Written], turns: int = 1) -> list[Word]:
    """The words of a sequence, those of its units behind them."""
    parts = [
        _sequence(one.body, one.unit.count) if isinstance(one.unit, Loop)
        else [Word(one.code), *map(Word, one.turns), *one.words] if one.turns else one.words
        for one in units
    ]  # fmt: skip
    codes = ["shared" if one.turns else one.code for one in units]
    moving = [word for part in parts for word in part if word.step]
    places: dict[int, int] = {}  # where a word is, by its id
    starts, place = [], 3 + 2 * len(units) + 2 * len(moving)
    for part in parts:
        starts.append(place)
        places.update({id(word): place + n for n, word in enumerate(part)})
        place += len(part)
    heads = [part for head in zip(codes, starts, strict=True) for part in head]
    moves = [part for word in moving for part in (places[id(word)], word.step)]
    for word in moving:  # not in what is around this one
        word.step = 0
    numbers = turns, len(units), len(moving), *heads, *moves
    return [*map(Word, numbers), *(word for part in parts for word in part)]


def _say(text: Text, name: str, units: list[Written]) -> None:
    """Say a sequence in `text`."""
    lines, first = [line for one in units for line in one.unit.lines], units[0].unit
    if type(first) is Check:
        (host,) = first.host.inline(text.by_id)
        text.lines.append((f"{name}() or {host}", False, first.host))
    else:
        checked = (line for line in lines if line.name in ("take", "scatter_add", "setitem"))
        text.lines.append((f"{name}()", True, next(checked, lines[0])))
    for one in [part for each in units for part in each.body or [each]]:
        places = (text.arrays.at(word.value) for word in one.words if word.owner is not None)
        text.said.append((f"{one.code}({', '.join(filter(None, places))})", one.about))
