"""Many passes over the rows of a matrix as one: everything is done for a row, then for the next.

Softmax, a norm or a cross entropy is a few loops and reductions over the same rows. One behind the
other each reads all rows from memory again; here a row stays in the nearest cache until it is done.
What only the row itself needs has room for a single row, which all rows use in turn. The sums of a
row are those that it has alone, so no bit changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..backend import owner_of
from .fusion import (
    REACH,
    Call,
    Element,
    Elements,
    Place,
    Reduction,
    Unit,
    lasts,
    loads,
    may_raise,
    needed,
    stores,
)
from .program import Program

SHORTEST = 16  # elements of a row from which on its loops become vectors


@dataclass
class Rows(Unit):
    """`parts`, each for the first row, for `count` rows."""

    count: int = 0
    parts: list[Unit] = field(default_factory=list)


def with_rows(units: list[Unit], program: Program) -> list[Unit]:
    """`units`, with those joined that go through the same rows."""
    found, done = list[Unit](), set[int]()
    for number, unit in enumerate(units):
        if number not in done:
            count, run = _run(units, number, done, program)
            done.update(run)
            found.append(_joined(units, run, count, done, program) if len(run) > 1 else unit)
    return found


def _run(units: list[Unit], start: int, done: set[int], program: Program) -> tuple[int, list[int]]:
    """How many rows, and which units can be done row by row together with that at `start`."""
    near = units[start : start + 3]  # what begins may be the loop in front of a reduction
    counts = (_rows_of(unit) for unit in near if type(unit) is Reduction)
    count = next((count for count in counts if count), 0)
    first = _part(units[start], count) if count else None
    if first is None:
        return 0, [start]
    run, parts, passed = [start], [first], list[Unit]()
    for number in range(start + 1, len(units)):
        unit = units[number]
        if type(unit) is Call or len(passed) > REACH:
            break
        if number in done:
            continue
        part = _part(unit, count)
        # What a refused index leaves is the state as it was there.
        late = lasts(unit, program) and any(map(may_raise, passed))
        late = late or any(one.disturbs(unit) for one in passed)
        if part and not late and _fits(part, parts):
            run.append(number)
            parts.append(part)
        else:
            passed.append(unit)
    return (count, run) if any(type(units[n]) is Reduction for n in run) else (0, [start])


def _joined(
    units: list[Unit], run: list[int], count: int, done: set[int], program: Program
) -> Rows:
    members = [units[n] for n in run]
    # Those that were passed come behind it now, and what runs before took from there before it.
    later = [unit for n, unit in enumerate(units) if n not in done]
    sooner = [unit for n, unit in enumerate(units) if n in done and n not in run]
    kept = [Place(array) for array in program.outputs if array.size]

    def alone(owner: Any) -> bool:
        places = _of(owner, stored)
        known = any(needed(p, later, sooner) or any(map(p.meets, kept)) for p in places)
        made = program.kinds.get(id(owner)) == "made"
        return made and not known and _inside(owner, members, count)

    stored = [place for unit in members for place in stores(unit)]
    owners = {id(owner): owner for owner in (owner_of(place.array) for place in stored)}
    single = {key for key, owner in owners.items() if alone(owner)}
    parts = [part for unit in members if (part := _part(unit, count, single))]
    reads = {place.key: place for unit in members for place in loads(unit)}
    writes = {place.key: place for place in stored}
    lines = [line for unit in members for line in unit.lines]
    return Rows(lines, [*reads.values()], [*writes.values()], count, parts)


def _inside(owner: Any, members: Iterable[Unit], count: int) -> bool:
    """Whether a row of this memory is written whole before any of it is read."""
    parts = [part for unit in members if (part := _part(unit, count))]
    begins = next(n for n, part in enumerate(parts) if any(_of(owner, stores(part))))
    (first, *_) = _of(owner, stores(parts[begins]))
    later = [p for part in parts[begins:] for p in _of(owner, [*loads(part), *stores(part)])]
    read = [p for part in parts[: begins + 1] for p in _of(owner, loads(part))]
    mine = all(p.row == first.row and not p.period and first.covers(p) for p in later)
    return not read and mine


def _of(owner: Any, places: list[Place]) -> list[Place]:
    return [place for place in places if owner_of(place.array) is owner]


# A unit for its first row -------------------------------------------------------------------------


def _rows_of(unit: Reduction) -> int:
    """How many rows a reduction reduces; 0 where that is not what it does."""
    x = unit.x
    gone = [d for d in unit.axes if x.shape[d] != 1]
    kept = [d for d in range(x.ndim) if d not in unit.axes and x.shape[d] != 1]
    long = math.prod(x.shape[d] for d in gone) >= SHORTEST
    return math.prod(x.shape[d] for d in kept) if long and kept and max(kept) < min(gone) else 0


def _part(unit: Unit, count: int, single: Iterable[int] = ()) -> Unit | None:
    """The unit for the first of `count` rows; None where it does not go through so many.

    single: ids of what owns memory that all rows use in turn.
    """

    def first(place: Place) -> Place | None:
        row = _first(place, count)
        if row is not None and id(owner_of(place.array)) in single:
            one = row.part(row.shape, row.strides, 0)
            one.apart = row.row
            return one
        return row

    if type(unit) is Reduction:
        if _rows_of(unit) != count:
            return None
        read, written = first(unit.reads[0]), first(unit.writes[0])
        if read is None or written is None:
            return None
        gone = {d for d in unit.axes if unit.x.shape[d] != 1}
        x = unit.x[tuple(slice(None) if d in gone else 0 for d in range(unit.x.ndim))]
        return Reduction(unit.lines, [read], [written], unit.name, x, tuple(range(x.ndim)))
    if type(unit) is not Elements or any(element.source is not None for element in unit.body):
        return None
    inner = math.prod(unit.shape) // count
    if math.prod(unit.shape) != inner * count or 1 < inner < SHORTEST:
        return None
    operands = [p for e in unit.body for p in (*e.args, e.out, e.mask) if type(p) is Place]
    places = {p.key: first(p) for p in (*operands, *unit.reads, *unit.writes)}

    def of(value: Any) -> Any:
        return places[value.key] if type(value) is Place else value

    if not all(places.values()):
        return None
    body = [Element(e.expression, [*map(of, e.args)], of(e.out), of(e.mask)) for e in unit.body]
    reads, writes = [*map(of, unit.reads)], [*map(of, unit.writes)]
    stored = {place.key for key, place in places.items() if place and key in unit.stored}
    return Elements(unit.lines, reads, writes, writes[-1].shape, body, stored)


def _first(place: Place, count: int) -> Place | None:
    """The first of `count` rows of a place; None where its rows are not so many, one step apart.

    What a norm has for each channel comes again with every sample.
    """
    if not any(place.strides):  # one number for all
        return place.part((), (), 0)
    left, lead = count, 0
    while left > 1 and lead < len(place.shape) and left % place.shape[lead] == 0:
        left //= place.shape[lead]
        lead += 1
    again = next(d for d, step in enumerate(place.strides) if step)
    again = again if again < lead else 0
    steps, sizes = place.strides[again:lead], place.shape[again:lead]
    apart = all(a == b * n for a, b, n in zip(steps, steps[1:], sizes[1:], strict=False))
    if left > 1 or not apart:
        return None
    period = math.prod(sizes) if again else 0
    return place.part(place.shape[lead:], place.strides[lead:], steps[-1], period)


def _fits(part: Unit, parts: list[Unit]) -> bool:
    """Whether `part` shares memory with `parts`, and only that of the same row if it is written."""
    shares = False
    for other in parts:
        for mine, theirs, writes in (
            (stores(part), loads(other), True), (stores(part), stores(other), True),
            (loads(part), stores(other), True), (loads(part), loads(other), False),
        ):  # fmt: skip
            for a in mine:
                for b in theirs:
                    if (a.whole or a).meets(b.whole or b):
                        size = abs(a.row) * a.dtype.itemsize
                        same = size == abs(b.row) * b.dtype.itemsize
                        same = same and not (a.period or b.period)
                        ends = max(a.high, b.high) - min(a.low, b.low)
                        if size and same and a.row * b.row > 0 and ends <= size:
                            shares = True
                        elif writes:
                            return False
    return shares
