"""A loop over time as native code: one loop whose body is the units of a single step.

The body is told apart into units as a Program is (see `fusion`). What it works on moves from turn
to turn by one step for each piece of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..backend import owner_of
from . import fusion
from .fusion import Call, Check, Unit
from .program import Line, Program, PythonCall, arrays_in


@dataclass
class Loop(Unit):
    """`body`, `count` times; `steps`: by id of what owns memory, the bytes from turn to turn."""

    count: int = 0
    body_units: list[Unit] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)


class Notes:
    """An array library that does nothing but write down what it is asked to do."""

    def __init__(self, about: Line) -> None:
        self.about = about
        self.lines: list[Line | PythonCall] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def instruction(*args: Any, out: Any, **attrs: Any) -> Any:
            self._write(name, args, out, attrs)
            return out

        return instruction

    def copyto(self, target: Any, source: Any, **attrs: Any) -> None:
        """Copy values."""
        self._write("copyto", (target, source), target, attrs)

    def _write(self, name: str, args: tuple[Any, ...], out: Any, attrs: dict[str, Any]) -> None:
        if out.size:
            self.lines.append(Line(name, args, out, attrs, self.about.where, self.about.what))


def with_loops(units: list[Unit], program: Program) -> list[Unit]:
    """`units`, with native loops in place of NumPy's where that can be."""
    return [_loop(unit, program) or unit for unit in units]


def _loop(unit: Unit, program: Program) -> Loop | None:
    if type(unit) is not Call or not unit.lines or unit.lines[0].name != "loop":
        return None
    line = unit.lines[0]
    step, moving, fixed = line.args
    arrays = arrays_in(moving)
    steps: dict[int, int] = {}
    for array in (*arrays, *arrays_in(fixed)):
        stride = array.strides[0] if any(array is one for one in arrays) else 0
        # What moves in two ways is left to NumPy.
        if steps.setdefault(id(owner_of(array)), stride) != stride or stride % array.itemsize:
            return None
    notes = Notes(line)
    step(notes, tuple(None if array is None else array[0] for array in moving), fixed)
    kinds = dict.fromkeys(steps, "state")
    kinds |= {id(owner_of(array)): "made" for array in line.attrs["scratch"]}
    body = fusion.units_of(Program(program.xp, notes.lines, kinds=kinds, alone=program.alone))
    if any(type(part) in (Call, Check) for part in body):
        return None
    return Loop(unit.lines, unit.reads, unit.writes, len(arrays[0]), body, steps)
