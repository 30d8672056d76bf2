"""The bookkeeping of a step as straight-line Python, in place of the calls that it was.

A small step spends as much time on what Python notes about it (which gradients are there, how often
a parameter was written) as on its numbers, so a replay does this without calls and loops, and what
one note can say at once is one. What computes the same at every replay is left out, and what
nobody reads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from ..backend import owner_of
from ..optim.flat import FlatStorage, Slot
from ..random import STREAM, forward_place
from .program import DRAWS, FINITE, Line, Name, Program, PythonCall, arrays_in, may_refuse, works_on

FORWARD = "a forward call"  # what the note of one begins with


class Clear(PythonCall):
    """`zero_grad()`: the gradients of a storage are absent."""

    def __init__(self, storage: FlatStorage, where: str) -> None:
        super().__init__("zero_grad", storage.zero_grad, where, (), about=storage)
        self.storage = storage

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """`FlatStorage.zero_grad`."""
        lines = [f"{name('storage', self.storage)}.cleared += {times}"]
        for buffer in self.storage.buffers:
            it, forget = name("buffer", buffer), name("forget", self.storage.drop_graphs)
            lines += [f"{it}.epoch += {times}", f"if {it}.graphs: {forget}({it})"]
        return lines


class Mark(PythonCall):
    """The gradients of `slots` are there; in the buffers of `clean` none has a graph by then."""

    def __init__(self, slots: Sequence[Slot], where: str, clean: Set[Any] = frozenset()) -> None:
        label = f"{len(slots)} gradients are there"
        super().__init__(label, lambda: [*map(Slot.set_present, slots)], where, (), about=slots)
        self.slots = slots
        self.clean = clean

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """`Slot.set_present` of each."""
        lines = []
        for buffer in dict.fromkeys(slot.buffer for slot in self.slots):
            lines.append(f"epoch = {name('buffer', buffer)}.epoch")
            for slot in self.slots:
                if slot.buffer is buffer:
                    it = name("slot", slot)
                    lines += [
                        f"{it}.epoch = epoch",
                        f"{name('version', slot.grad_version)}.n += {times}",
                    ]
                    lines += [f"{it}.graph = None"] * (buffer not in self.clean)
        return lines


class Count(PythonCall):
    """An optimizer counts its step, also in `numbers`, constants of its runs."""

    def __init__(self, optimizer: Any, numbers: tuple[Any, ...], where: str) -> None:
        # Other runs of it have other instructions.
        super().__init__(
            "the optimizer counts", optimizer.count_step, where, numbers, (), optimizer
        )
        self.optimizer, self.runs = optimizer, tuple(optimizer.runs)

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """`Optimizer.count_step`."""
        lines = [f"{name('optimizer', self.optimizer)}.calls += {times}"]
        for run in self.runs:
            it, run_name = name("progress", run.progress), name("run", run)
            lines.append(f"{it}.count += {times}")
            if self.optimizer.by_step:
                rates = name("rates", self.optimizer.rates)
                lines.append(f"rates = {rates}({run_name}.given, {it}.count, {it}.numbers)")
                lines += [f"{name('number', a)}.fill(rates[{n}])" for n, a in enumerate(run.rates)]
        return lines


class End(PythonCall):
    """The end of an optimizer's step: the parameters are new, and the next step begins."""

    def __init__(self, optimizer: Any, where: str) -> None:
        self.versions = tuple(optimizer.written)
        super().__init__(
            "the parameters are new", optimizer.end_step, where, (), about=self.versions
        )
        self.stream = vars(STREAM)  # of this thread, which alone replays what it has captured

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """`Optimizer.end_step`; no run of a replay is fresh."""
        lines = [f"{name('version', version)}.n += {times}" for version in self.versions]
        stream = name("stream", self.stream)  # as `random.end_step`
        return [*lines, f'{stream}["step"] += {times}', f'{stream}["draw"] = 0']


class Pass(PythonCall):
    """What a listener notes of a backward pass: the rows before it, its beginning, its end.

    Attributes:
        listener: whose it is.
        forward: whether it is of a forward call.
        whole: at the beginning: how all of this is done at the end of a pass which makes a step by
            itself, where no gradient was there before. None: it is not such a pass.
    """

    def __init__(
        self, label: str, function: Any, where: str, listener: Any, whole: Any = None
    ) -> None:
        super().__init__(label, function, where)
        self.listener, self.whole = listener, whole
        self.forward = label.startswith(FORWARD)


class WholePass(PythonCall):
    """All that is noted of a pass which makes a step by itself.

    Args:
        first, last: its beginning and its end.
        complete: whether all gradients are there then.
    """

    def __init__(self, first: Pass, last: Pass, complete: bool) -> None:
        whole = first.whole
        looks: tuple[Any, ...] = ((), (whole.root, *arrays_in(whole.count))) if whole.alone else ()
        super().__init__(f"{first.label}: {last.label}", whole.by_python(), last.where, *looks)
        self.whole, self.complete = whole, complete

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """Of many steps at once the loss is that of the last."""
        return [f"{name('host', self.function)}({times if self.whole.alone else ''})"]

    def native(self) -> PythonCall:
        """The same with native code, where that can do it."""
        found = self.whole.by_native_code(self.complete)
        return PythonCall(f"{self.label}, by native code", found, self.where) if found else self


class Draw(PythonCall):
    """Where the random words of a line come from, for native code that makes them.

    Attributes:
        place: (4,) int64: the key, the block of eight words with the first one, its number there.
        fresh: whether its number is counted from the beginning of a call.
    """

    def __init__(self, line: Line, program: Program) -> None:
        (shape, number), self.fresh = line.args, line.attrs["fresh"]
        first = program.draw if self.fresh else (0,)
        place = self.place = np.empty(4, np.int64)
        words, key, whose = place.data, place.view(np.uint8)[:16].data, forward_place(shape)

        def find() -> None:
            key[:], start = whose(first[0] + number)
            words[2], words[3] = start >> 3, start & 7

        super().__init__("random words", find, line.where, (place,))
        self.line = replace(line, attrs={**line.attrs, "place": place})
        program.kinds[id(place)] = "made"  # and stays where it is


def skip(count: int) -> None:
    """Go on as if `count` numbers more had been drawn."""
    STREAM.draw += count


def optimize(program: Program) -> None:
    """Rewrite the lines of `program`, which has run and whose memory holds its results."""
    program.description = None
    _fold_constants(program)
    _drop_unread(program)
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
    kept: list[Line | PythonCall] = []
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


def _drop_unread(program: Program) -> None:
    """Drop what makes only what nobody reads, such as gradients that `grad` was not asked for."""
    kept: list[Line | PythonCall] = []
    read = {id(owner_of(a)) for a in program.outputs} | program.fixed
    for line in reversed(program.lines):
        if type(line) is Line and line.name not in DRAWS and not may_refuse(line):
            outs = [id(owner_of(a)) for a in arrays_in(line.out)]
            if outs and all(program.kinds.get(o) == "made" and o not in read for o in outs):
                continue
        read.update(id(owner_of(a)) for a in works_on(line))
        kept.append(line)
    program.lines[:] = reversed(kept)


def _join_marks(program: Program) -> None:
    """Mark gradients present together, before the next bookkeeping that may look."""
    kept: list[Line | PythonCall] = []
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
            at = next(n for n, line in enumerate(program.lines) if line is parts[-1])
            behind = program.lines[at + 1 :]
            if last.whole.alone:
                behind = _alone(last, program, behind)
            before = [x for x in program.lines[:at] if all(x is not one for one in parts)]
            program.lines[:] = [*before, last, *behind]


def _alone(
    done: WholePass, program: Program, behind: list[Line | PythonCall]
) -> list[Line | PythonCall]:
    """What follows a pass on one rank: the division, and checks that native code can do."""
    whole, divisor, lines = done.whole, done.whole.count, list[Line | PythonCall]()
    numbers = whole.root, *whole.gradients

    def add(name: str, *args: Any, out: Any) -> Any:
        lines.append(Line(name, args, out, {}, done.where, "the mean over what counts"))
        return out

    if arrays_in(divisor):
        zero, divisor, nothing = (program.make((), t) for t in (bool, *[divisor.dtype] * 2))
        add("equal", whole.count, 0, out=zero)
        add("where", zero, 1, whole.count, out=divisor)
        numbers = *numbers, add("where", zero, math.inf, 0, out=nothing)  # Python looks at this
    for grad in whole.gradients:
        add("divide", grad, divisor, out=grad)
    for line in behind:
        if isinstance(line, PythonCall) and getattr(line.function, "refuses_only", False):
            known = replace(line, writes=(), reads=numbers, bounds=FINITE)
            line = known if done.complete else line
        lines.append(line)
    return lines
