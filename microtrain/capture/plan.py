"""Memory for intermediate results: each has it for its life, then another one.

The memory of a capture is that of an eager step that frees nothing. A replay knows when a result is
read for the last time, so results whose lives do not meet can share: a convolutional network needs
a third. Nothing is read in a replay before that replay has written it, because every capture began
with new memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..backend import LIBRARIES, address, owner_of, uint8
from .program import ALIGNED, Line, Program, PythonCall, works_on


def reuse(
    program: Program, steps: Sequence[Iterable[Any]], lines: Sequence[Line | PythonCall] = ()
) -> dict[int, Any]:
    """Move what `program` makes to one piece of memory, where lives that do not meet share.

    Args:
        steps: what a replay does, in order: the arrays in memory that each works on.
        lines: further instructions whose arrays are to be moved.

    Returns:
        By id of what owned it, the memory of a result now.
    """
    for line in program.lines:
        # Its function knows the arrays; a check alone in C is not that function any more.
        if isinstance(line, PythonCall) and not (program.alone and line.bounds):
            program.fixed.update(id(owner_of(array)) for array in works_on(line))
    made = {id(owner): owner for owner in program.memory if _movable(owner, program)}
    lives: dict[int, list[int]] = {}
    for number, arrays in enumerate([*steps, program.outputs]):
        for array in arrays:
            key = id(owner_of(array))
            if key in made:
                lives.setdefault(key, [number, number])[1] = number
    sizes = [-(-made[key].nbytes // ALIGNED) * ALIGNED for key in lives]
    starts = _starts([(*life, size) for life, size in zip(lives.values(), sizes, strict=True)])
    total = max((a + size for a, size in zip(starts, sizes, strict=True)), default=0)
    memory = program.xp.empty(total + ALIGNED, uint8)
    memory = memory[-address(memory) % ALIGNED :][:total]
    places = {
        key: memory[start : start + made[key].nbytes]
        for key, start in zip(lives, starts, strict=True)
    }
    before = sum(owner.nbytes for owner in made.values())
    program.buffers = (len(made), before, len(lives), total)
    move(program, places | _nowhere([made[key] for key in made.keys() - places]), lines)
    used = {id(owner_of(a)) for line in (*program.lines, *lines) for a in works_on(line)}
    used.update(id(owner_of(a)) for a in program.outputs)
    program.memory = [owner for owner in program.memory if id(owner) in used]
    program.kinds = {key: kind for key, kind in program.kinds.items() if key in used}
    return places


def _movable(owner: Any, program: Program) -> bool:
    made = program.kinds.get(id(owner)) == "made" and id(owner) not in program.fixed
    return made and owner.base is None and owner.nbytes > 0


def _starts(lives: list[tuple[int, int, int]]) -> list[int]:
    """Where to put what has a first and a last step and a size: the largest first, each where it

    fits (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
    """
    starts = [0] * len(lives)
    done = np.empty((len(lives), 4), np.int64)  # first, last, start, stop
    for count, i in enumerate(sorted(range(len(lives)), key=lambda i: -lives[i][2])):
        first, last, size = lives[i]
        meeting = done[:count]
        meeting = meeting[(meeting[:, 0] <= last) & (meeting[:, 1] >= first)]
        meeting = meeting[np.argsort(meeting[:, 2])]
        taken = np.maximum.accumulate([0, *meeting[:, 3]])
        room = np.append(meeting[:, 2], np.iinfo(np.int64).max) - taken
        starts[i] = int(taken[np.argmax(room >= size)])
        done[count] = first, last, starts[i], starts[i] + size
    return starts


def _nowhere(owners: list[Any]) -> dict[int, Any]:
    """Addresses for arrays that nobody reads or writes."""
    if not owners:
        return {}
    places = LIBRARIES[type(owners[0])].nowhere([owner.nbytes for owner in owners])
    return {id(owner): place for owner, place in zip(owners, places, strict=True)}


def move(program: Program, places: dict[int, Any], lines: Sequence[Line | PythonCall] = ()) -> None:
    """Let `program` and `lines` work in `places`, by id of what owned the memory until now."""
    for line in (*program.lines, *lines):
        if isinstance(line, Line):
            line.args = moved(line.args, places)
            line.out = moved(line.out, places)
            line.attrs = {key: moved(value, places) for key, value in line.attrs.items()}
    program.outputs[:] = moved(program.outputs, places)
    program.memory = [owner for owner in program.memory if id(owner) not in places]
    for key, place in places.items():
        del program.kinds[key]
        program.memory.append(owner_of(place))
    program.kinds.update({id(owner_of(place)): "made" for place in places.values()})


def moved(value: Any, places: dict[int, Any]) -> Any:
    """`value` with its arrays in `places`, by id of what owned their memory."""
    if type(value) in (tuple, list):  # none that has names: there is no array in it
        return type(value)(moved(v, places) for v in value)
    if type(value) not in LIBRARIES:
        return value
    owner = owner_of(value)
    place = places.get(id(owner))
    if place is None:
        return value
    return LIBRARIES[type(value)].view_of(place, address(value) - address(owner), value)
