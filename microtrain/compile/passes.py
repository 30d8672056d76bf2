"""What a Program can do without: lines of constants alone, and notes that one can say at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..backend import owner_of
from .bookkeeping import Clear, Mark, Pass, WholePass
from .program import DRAWS, Host, Line, Program, arrays_in


def optimise(program: Program) -> None:
    """Rewrite the lines of `program`, which has run and whose memory holds its results."""
    _fold_constants(program)
    _join_passes(program)
    _join_marks(program)


def _fold_constants(program: Program) -> None:
    """Drop what computes the same at every replay: it is in memory already."""
    kinds = program.kinds
    writes = Counter(
        id(owner_of(a))
        for line in program.lines
        for a in arrays_in(line.out if isinstance(line, Line) else line.writes)
    )
    kept: list[Line | Host] = []
    for line in program.lines:
        if type(line) is Line and line.name not in DRAWS:
            outs = [owner_of(a) for a in arrays_in(line.out)]
            read = arrays_in(line.args) + arrays_in(tuple(line.attrs.values()))
            # A line's own result is among its arguments where it writes in place.
            given = {id(owner_of(a)) for a in read} - {id(o) for o in outs}
            if all(kinds.get(g) == "constant" for g in given) and all(
                kinds.get(id(o)) in ("made", "kept") and writes[id(o)] == 1 for o in outs
            ):
                for o in outs:
                    kinds[id(o)] = "constant"
                continue
        kept.append(line)
    program.lines[:] = kept


def _join_marks(program: Program) -> None:
    """Mark gradients present together, before the next bookkeeping that may look."""
    kept: list[Line | Host] = []
    slots: list[Any] = []
    clean: frozenset[Any] = frozenset()  # buffers whose gradients with a graph have been dropped
    for line in [*program.lines, None]:
        if isinstance(line, Mark):
            slots += line.slots
            continue
        if slots and not isinstance(line, Line):
            kept.append(Mark(slots, (line or program.lines[-1]).where, clean))
            slots = []
        if isinstance(line, Clear):
            clean |= frozenset(line.storage.buffers)
        if line is not None:
            kept.append(line)
    program.lines[:] = kept


def _join_passes(program: Program) -> None:
    """Note a pass that makes a step by itself at its end, all at once."""
    clean: set[Any] = set()  # storages without gradients
    marked: set[Any] = set()  # the places of gradients that are there
    told: dict[Any, list[Pass]] = {}
    for line in program.lines:
        if isinstance(line, Clear):
            clean.add(line.storage)
        elif isinstance(line, Mark):
            marked |= {*line.slots}
            clean -= {slot.buffer.storage() for slot in line.slots}
        elif isinstance(line, Pass):
            told.setdefault(line.listener, []).append(line)
            if line.whole is not None and line.listener.storage not in clean:
                line.whole = None
    for listener, parts in told.items():
        # Forward calls, however many; the beginning; and the end.
        if len(parts) > 1 and parts[-2].whole and all(one.forward for one in parts[:-2]):
            complete = marked.issuperset(listener.storage.slots)
            last = WholePass(parts[-2], parts[-1], complete)
            lines = [last if line is parts[-1] else line for line in program.lines]
            program.lines[:] = [x for x in lines if all(x is not one for one in parts)]
