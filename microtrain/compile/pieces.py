"""Native functions from the texts of units, where what repeats is written once.

A deep model does the same to other memory, layer after layer. A unit's text knows memory only as
slots of a table, so units of equal layers have equal texts. Where such units follow each other, one
loop does them all: in each turn its table begins further on. Where calls of NumPy lie between them,
one function is called again and again, each time with its own part of the table.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .fusion import Unit

LONGEST = 24  # units in one native function: what numba compiles grows faster than that
LEAST = 4  # units that a loop must save
_SLOT = re.compile("«(\\d+)»")


@dataclass
class Slot:
    """What a unit needs to know of this process: an address.

    Attributes:
        key: equal keys are one address.
        head: the text that reads it, with `«»` for its number.
        address, owner: where it is, and what keeps that alive.
        label: what people call it.
    """

    key: Hashable
    head: str
    address: int
    owner: Any
    label: str = ""


@dataclass
class Written:
    """The text of a unit: `«k»` in it is its slot k, `§` its number in a function.

    Attributes:
        unit: what it does.
        about: a comment.
        length: how many units' worth of compiling that is.
        work: multiplications and elements.
    """

    unit: Unit
    about: str
    lines: list[str]
    slots: list[Slot]
    length: int
    work: int

    def shape(self) -> tuple[str, ...]:
        """Equal for units that differ in nothing but memory."""
        return (*self.lines, *(slot.head for slot in self.slots))


@dataclass
class Part:
    """Units that are done `turns` times, each time with other memory.

    `units` are those of all turns, in order.
    """

    units: list[Written]
    turns: int = 1

    @property
    def first(self) -> list[Written]:
        """The units of the first turn."""
        return self.units[: len(self.units) // self.turns]


@dataclass
class Piece:
    """A native function, and what it is called with: `body` is its text, of `parts`."""

    parts: list[Part]
    body: list[str] = field(default_factory=list)
    slots: list[tuple[int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # What is done once reads its slots at the beginning, a loop at the beginning of a turn.
        once = [unit for part in self.parts if part.turns == 1 for unit in part.units]
        heads, names = self._slots([once], "table")
        body: list[str] = []
        number = 0
        for part in self.parts:
            block, base = part.first, len(self.slots)
            lines: list[str] = []
            if part.turns > 1:
                size = len(block)
                turns = [part.units[n : n + size] for n in range(0, len(part.units), size)]
                lines, found = self._slots(turns, "here")
                names |= found
            for unit in block:
                number += 1
                lines.append(f"# {unit.about}")
                lines += [_placed(line, names[id(unit)], number) for line in unit.lines]
            if part.turns > 1:
                width = (len(self.slots) - base) // part.turns
                lines = [f"here = table + turn * {8 * width}", *lines, "done()"]
                lines = [f"for turn in range({part.turns}):", *(f"    {line}" for line in lines)]
            body += lines
        self.body = heads + body

    def _slots(
        self, turns: Sequence[Sequence[Written]], table: str
    ) -> tuple[list[str], dict[int, list[int]]]:
        """Take slots for what is done in `turns`.

        Slots that are one address in every turn are one.

        Returns the text that reads those of a turn, and by id of the units in the first turn the
        numbers of theirs.
        """
        heads: list[str] = []
        found: dict[Any, int] = {}
        rows: list[tuple[Slot, ...]] = []
        names: dict[int, list[int]] = {}
        base = len(self.slots)
        for units in zip(*turns, strict=True):
            numbers = names[id(units[0])] = []
            for slots in zip(*(unit.slots for unit in units), strict=True):
                key = slots[0].head, *(slot.key for slot in slots)
                if key not in found:
                    found[key] = base + len(rows)
                    rows.append(slots)
                    label = f"  # {slots[0].label}" if slots[0].label else ""
                    head = slots[0].head.replace("«»", str(found[key]))
                    heads.append(head.replace("(table", f"({table}") + label)
                numbers.append(found[key])
        for turn in range(len(turns)):
            self.slots += [(slots[turn].address, slots[turn].owner) for slots in rows]
        return heads, names

    @property
    def units(self) -> list[Unit]:
        """All that it does."""
        return [unit.unit for part in self.parts for unit in part.units]

    def text(self, name: str, options: str) -> str:
        """The function."""
        body = "".join(f"    {line}\n" for line in self.body)
        return f"@njit({options})\ndef {name}(table):\n{body}"


def _placed(line: str, places: list[int], number: int) -> str:
    """A line of the text of a unit, with the numbers of its slots and its own."""
    line = _SLOT.sub(lambda found: str(places[int(found[1])]), line)
    return line.replace("§", f"{number}_")


def pieces(units: Sequence[Written]) -> Iterator[Piece]:
    """Native functions for `units`, in order, each short enough to be compiled."""
    numbers: dict[Any, int] = {}
    shapes = [numbers.setdefault(unit.shape(), len(numbers)) for unit in units]
    parts: list[Part] = []
    length = 0
    for start, period, turns in repeats(shapes):
        block = units[start : start + period]
        more = sum(unit.length for unit in block)
        again = turns > 1 and more <= LONGEST
        if parts and (length + more > LONGEST or (turns > 1 and not again)):
            yield Piece(parts)
            parts, length = [], 0
        if again:
            parts.append(Part(list(units[start : start + period * turns]), turns))
            length += more
            continue
        for turn in range(turns):  # once, or too long for one function: one after the other
            for unit in units[start + turn * period : start + (turn + 1) * period]:
                if parts and length + unit.length > LONGEST:
                    yield Piece(parts)
                    parts, length = [], 0
                if not parts or parts[-1].turns > 1:
                    parts.append(Part([]))
                parts[-1].units.append(unit)
                length += unit.length
            if turns > 1:
                yield Piece(parts)
                parts, length = [], 0
    if parts:
        yield Piece(parts)


def repeats(shapes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, period, turns) of the stretches of `shapes`, in order: what repeats, and the rest.

    What does not repeat comes one by one.
    """
    array = np.array(shapes)
    count = len(array)
    saved, periods = np.zeros(count, np.int64), np.ones(count, np.int64)
    for period in range(1, min(count // 2, 8 * LONGEST) + 1):
        # Where it is no longer what it was `period` ago.
        ends = np.flatnonzero(np.append(array[period:] != array[:-period], True))
        starts = np.arange(count - period + 1)
        alike = ends[np.searchsorted(ends, starts)] - starts
        gain = alike // period * period
        better = gain > saved[: len(gain)]
        saved[: len(gain)][better] = gain[better]
        periods[: len(gain)][better] = period
    start = 0
    while start < count:
        period = int(periods[start])
        turns = int(saved[start]) // period + 1
        if saved[start] < LEAST:
            period = turns = 1
        yield start, period, turns
        start += period * turns
