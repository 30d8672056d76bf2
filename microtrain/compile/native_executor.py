"""The native executor: a Program as native code, and NumPy calls for what is left.

Units (see `fusion`) become functions of C (see `c`). A run of them is a sequence: a table with the
addresses of their code and of what they work on, through which one function of runtime.c walks.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from . import c_compiler, fusion
from .arrival import Arrival
from .bookkeeping import WholePass
from .c import Word, Writer, Written
from .fusion import Call
from .loops import Loop, with_loops
from .numpy_executor import Text
from .program import Program
from .reuse import reuse
from .routines import blas

RELEASE = 200_000  # multiplications and elements from which other threads may run meanwhile


class Native:
    """The native code of a program.

    Attributes:
        words: what it is told; as an array: `table`.
        starts: by name in the replay, where in it a sequence begins, and whether other threads may
            run meanwhile.
        complete: whether it does all instructions.
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.starts: dict[str, tuple[int, bool]] = {}
        self.complete = False
        self.table: Any = None

    def laid_out(self, sequence: list[Written], codes: Any, turns: int = 1) -> list[Word]:
        """The words of a sequence, those of its units behind them."""
        heads, more, moves = [], [], []
        start = 3 + 2 * len(sequence)
        parts = [
            self.laid_out(unit.body, codes, unit.unit.count) if isinstance(unit.unit, Loop)
            else unit.words for unit in sequence
        ]  # fmt: skip
        moving = [
            (n, i) for n, part in enumerate(parts) for i, word in enumerate(part) if word.step
        ]
        start += 2 * len(moving)
        places = []
        for unit, part in zip(sequence, parts, strict=True):
            places.append(start + len(more))
            heads += [Word(codes(unit.code)), Word(places[-1])]
            more += part
        for n, i in moving:
            moves += [Word(places[n] + i), Word(parts[n][i].step)]
        if turns > 1 or moving:  # what is around this one does not move
            more = [Word(word.value, word.owner) for word in more]
        return [Word(turns), Word(len(sequence)), Word(len(moving)), *heads, *moves, *more]

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
            name: c_compiler.builtin(library, "run_apart" if apart else "run", none, start)
            for (name, (_, apart)), start in starts
        }


def executor(program: Program) -> tuple[Callable[[], None], Text]:
    """A function that replays `program`, with an `arrival` for arguments in place, and its text."""
    routines = blas()
    products = routines is not None
    units = with_loops(fusion.units_of(program, products), program, products)
    lines = [line for unit in units for line in unit.lines]
    places = reuse(program, [fusion.works_on(unit) for unit in units], lines)
    writer, text, native = Writer(program, routines, places), Text(program), Native()
    text.traffic = sum(place.high - place.low for unit in units for place in fusion.touches(unit))
    text.groups = [len(unit.lines) for unit in units if type(unit) is not Call]
    stretches: list[list[Written]] = []
    for is_call, run in groupby(units, lambda unit: type(unit) is Call):
        stretch: list[Written] = []
        for unit in run:
            if not is_call:
                # What may refuse an index begins a call of its own: its line is then known.
                if stretch and fusion._may_raise(unit):
                    stretches.append(_stretch(text, stretch))
                    stretch = []
                stretch.append(writer.written(unit))
                continue
            assert isinstance(unit, Call)
            host = unit.host.native() if type(unit.host) is WholePass else unit.host
            text.line(unit.lines[0]) if host is None else text.host(host)
        if stretch:
            stretches.append(_stretch(text, stretch))
    text.native = writer.functions
    codes = _codes(writer)
    for number, stretch in enumerate(stretches):
        apart = sum(unit.work for unit in stretch) >= RELEASE
        native.starts[f"native{number + 1}"] = len(native.words), apart
        native.words += native.laid_out(stretch, codes)
    for word in native.words:
        if isinstance(word.value, str):
            word.value = codes(word.value)
    native.table = np.array([word.value for word in native.words], np.int64)
    native.complete = all(unit.host is not None for unit in units if type(unit) is Call)
    text.native_code = native
    text.scope.update(native.functions(native.table))
    text.scope["owned"] = native
    replay = text.function()
    replay.arrival = Arrival(program, units, replay, native)
    return replay, text


def _stretch(text: Text, units: list[Written]) -> list[Written]:
    """Say a sequence of units in `text`."""
    lines = [line for unit in units for line in unit.unit.lines]
    text.native_calls += 1
    checked = (line for line in lines if line.name in ("take", "scatter_add"))
    text.lines.append((f"native{text.native_calls}()", True, next(checked, lines[0])))
    for unit in units:
        for one in unit.body or [unit]:
            places = (text.arrays.at(word.value) for word in one.words if word.owner is not None)
            name = one.code if isinstance(one.code, str) else f"u{one.code}"
            text.said.append((f"{name}({', '.join(filter(None, places))})", one.about))
    return units


def _codes(writer: Writer) -> Callable[[str | int], int]:
    """Where a function is: one of runtime.c by its name, one of the text by its number."""
    library = c_compiler.runtime()
    found: Any = ()
    if writer.functions:
        count = len(writer.functions)
        found = (ctypes.c_void_p * count).in_dll(c_compiler.load(writer.source()), "units")

    @functools.cache
    def code(name: str | int) -> int:
        return c_compiler.address(library, name) if isinstance(name, str) else found[name]

    return code
