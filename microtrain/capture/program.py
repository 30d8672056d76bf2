"""Program: what one call of a step did, as a list of lines over memory that does not move.

The arrays of the capture stay alive and are the buffers of every replay, so views stay views and
cost nothing. A line is an instruction (`Line`: arrays in, an array written) or a `PythonCall`: the
bookkeeping that every step needs (step counts, learning rates, which gradients are present).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..backend import LIBRARIES, NUMPY, address, owner_of, to_host

ALIGNED = 64  # bytes
MADE = "what Python or NumPy made there (random, numpy.random, time, a counter) is"
DRAWS = ("random_words", "random_numbers")  # instructions
# Instructions of NumPy that refuse some values: indices out of bounds, singular matrices.
RAISING = {"check", "cholesky", "eigh", "getitem", "inverse", "matrix_exp", "scatter_add",
           "setitem", "solve", "svd", "take"}  # fmt: skip


@dataclass(slots=True)
class Line:
    """One instruction.

    Attributes:
        name: the instruction's name, NumPy's or one of `backend.Namespace`.
        args: arrays, numbers, shapes, in the order of the call.
        out: the array that it writes (all or a part of).
        attrs: keyword arguments.
        where: file and line of the user's code that led to it.
        what: the layer and the operation, for people.
        parts: the instructions that it stands for, if it is a whole kernel: see `Library.as_one`.
    """

    name: str
    args: tuple[Any, ...]
    out: Any
    attrs: dict[str, Any]
    where: str
    what: str = ""
    parts: Sequence[Any] = ()


FINITE = ("finite",)
Name = Callable[[str, Any], str]  # names a value in a text, by a prefix


@dataclass(slots=True)
class PythonCall:
    """Python that runs between instructions: `function()`.

    Attributes:
        label: what that does, for people.
        where: file and line of the user's code that led to it.
        writes: the arrays that it writes, if that is all that instructions could notice of it: then
            it may run earlier. None: no line may be moved past it.
        reads: the arrays that it looks at. As it may raise, writes to state are not moved past it.
        about: what it works on. Two calls do the same if their types, labels and this are equal.
        bounds: if all it does is to refuse whole numbers in `reads`: the lowest, the end, and
            others it allows. If that is to refuse a step whose numbers are not finite: `FINITE`.
    """

    label: str
    function: Callable[[], Any]
    where: str
    writes: tuple[Any, ...] | None = None
    reads: tuple[Any, ...] = ()
    about: Any = None
    bounds: tuple[Any, ...] | None = None

    def inline(self, name: Name, times: str = "1") -> list[str]:
        """Lines of Python that do the same: here the call; subclasses spell it out.

        times: how often to do it, as text, where nothing else happens in between.
        """
        return [f"{name('host', self.function)}()"]


@dataclass
class Program:
    """Instructions in order, and what they work on.

    Attributes:
        xp: the library of its arrays.
        lines: the instructions.
        inputs: the arrays that a call's arguments are copied into.
        outputs: the arrays that a call returns copies of.
        names: the step's names of its arguments, with their arrays.
        kinds: by id of the array that owns the memory its kind: "input", "state", "constant" or
            "made" (see recorder.py); "kept" is made memory that a second program reads later.
        fixed: ids of "made" memory that must not be moved, as it is used outside the program too.
        buffers: the number of intermediate results and their bytes; the number of buffers that a
            replay needs for them, and their bytes.
    """

    xp: Any = NUMPY
    lines: list[Line | PythonCall] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    names: list[tuple[str, Any]] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)
    buffers: tuple[int, int, int, int] = (0, 0, 0, 0)
    draw: list[int] = field(default_factory=lambda: [0])  # the number of the first random draw
    memory: list[Any] = field(default_factory=list)  # keeps the owners alive, whose ids are keys
    description: list[Any] | None = None  # kept where the program is only compared any more
    alone: bool = False  # whether it becomes C without NumPy: see `standalone.py`

    def classify(self, array: Any, kind: str) -> None:
        """Note the kind of the memory of `array`; the first one stays."""
        owner = owner_of(array)
        if self.kinds.setdefault(id(owner), kind) == kind:
            self.memory.append(owner)

    def make(self, shape: Any, dtype: Any, kind: str = "made") -> Any:
        """A new array, of this kind."""
        array = self.xp.empty(shape, dtype)
        self.classify(array, kind)
        return array

    def described(self) -> list[Any]:
        """The lines and results as nested tuples: equal for programs that do the same."""
        numbers: dict[int, int] = {}  # of memory, by id, in order of first use
        said, found = functools.partial(self._said, numbers), list[Any]()
        said(self.inputs)
        for line in self.lines:
            if isinstance(line, PythonCall):
                found.append((line.where, line.label, type(line), line.about))
            else:
                works = map(said, (line.args, line.out, sorted(line.attrs.items())))
                found.append((line.where, line.name, *works))
        return [*found, ("what it returns", "the end", said(self.outputs))]

    def _said(self, numbers: dict[int, int], value: Any) -> Any:
        if isinstance(value, tuple | list):
            return (type(value), *(self._said(numbers, part) for part in value))
        if type(value) not in LIBRARIES:  # NaN is NaN, and 0.0 is not -0.0
            return type(value), repr(value) if type(value) is float else value
        owner = owner_of(value)
        kind = self.kinds.get(id(owner))
        at = 0 if owner is value else address(value) - address(owner)
        place: Any = numbers.setdefault(id(owner), len(numbers)), at
        if kind == "constant":
            place = to_host(value).tobytes()
        elif kind == "state":
            place = id(owner), at
        return Memory(kind, value.shape, value.strides, value.dtype, place)

    def difference(self, other: Program) -> str | None:
        """Where `other`, a later capture of the same step, first differs; None if nowhere."""
        other.description = other.described()
        mine, theirs = self.description or self.described(), other.description
        for (_, *then), (where, *now) in zip(mine, theirs, strict=False):
            if then[0] != now[0]:
                return f"{where}: {then[0]}, then {now[0]}"
            if then != now and (problem := _difference(then, now)):
                return f"{where}: {problem}"
        return None

    def forget(self) -> None:
        """Drop the lines and their memory, and keep what a comparison needs."""
        self.description = self.description or self.described()
        self.lines, self.inputs, self.outputs, self.names = [], [], [], []
        self.memory = [owner for owner in self.memory if self.kinds.get(id(owner)) == "state"]


class Memory(NamedTuple):
    """An array as programs are compared by; `place` is where it is, of a constant its values."""

    kind: str | None
    shape: Any
    strides: Any
    dtype: Any
    place: Any


def _difference(then: Any, now: Any) -> str | None:
    """How one description differs from another."""
    if type(then) is type(now) is Memory and then[:4] == now[:4] and then != now:
        if then.kind != "constant":
            return f"{then.kind} memory, then other {now.kind} memory"
        return f"{MADE} {_values(then)}, then {_values(now)}"
    if type(then) in (tuple, list) and type(then) is type(now) and len(then) == len(now):
        return next(filter(None, map(_difference, then, now)), None)
    same = type(then) is type(now) and then == now
    return None if same else f"{_short(then)}, then {_short(now)}"


def _values(constant: Memory) -> str:
    first = str(np.frombuffer(constant.place, constant.dtype)[0])
    plain = math.prod(constant.shape) == 1
    return first if plain else f"[{first}, ...] of shape {constant.shape}"


def _short(value: Any) -> str:
    if type(value) is Memory:
        return f"{value.kind} memory of {value.dtype.name}{[*value.shape]}"
    return str(value)[:100]


def arrays_in(value: Any) -> list[Any]:
    """The arrays in an argument, which may be a tuple or list of them."""
    if type(value) in LIBRARIES:
        return [value]
    return [a for v in value for a in arrays_in(v)] if isinstance(value, tuple | list) else []


def parts_of(line: Any) -> Sequence[Any]:
    """The instructions that a line stands for: its parts, or itself."""
    return getattr(line, "parts", ()) or (line,)


def may_refuse(line: Line) -> bool:
    """Whether values can make it raise."""
    return line.name in RAISING or (line.name == "power" and line.out.dtype.kind in "iu")


def works_on(line: Line | PythonCall) -> list[Any]:
    """The arrays that an instruction reads or writes."""
    if isinstance(line, PythonCall):
        return [*line.reads, *(line.writes or ())]
    return arrays_in((line.args, tuple(line.attrs.values()), line.out))


def touched(program: Program) -> set[int]:
    """The ids of the owners of all memory that the instructions of `program` work on."""
    lines = (line for line in program.lines if type(line) is Line)
    return {id(owner_of(array)) for line in lines for array in works_on(line)}
