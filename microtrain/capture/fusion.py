"""From lines to loops: which instructions share a loop, in which order, and what is never stored.

A Program's lines become units. An `Elements` unit is a loop over one shape that does the work of
all its lines for one element after the other; `Sum`, `Product`, `Scatter` are loops or BLAS calls
of their own; a `Call` stays a call of NumPy and a `PythonCall` stays Python. Every unit knows the
memory that it reads and writes, and nothing here relies on more than that: two units change places,
or become one, only where no element of memory is seen differently.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..backend import LIBRARIES, address, owner_of
from ..numerics.sums import SHORT
from . import c_compiler
from .elements import DTYPES, Expression, expression
from .plan import reuse
from .program import DRAWS, Line, Program, PythonCall, arrays_in, may_refuse
from .python_calls import Draw

REACH = 24  # units that a line may be moved ahead of
STREAMS = 16  # arrays in one loop
ARGUMENTS = 128  # of a kernel, numbers in memory among them: CUDA takes 4,096 bytes


class Place:
    """Where an operand is: its address and how far its elements are apart.

    Attributes:
        array: keeps the memory alive.
        shape, strides: without dimensions of length 1; strides in elements.
        low, high: the first byte and the one behind the last.
        regular: whether the strides are whole elements of a dtype that native code knows.
        row, whole: of the first of many rows, how far the next is, in elements, and all of them.
        period: after how many rows it is the first again; 0: never.
        apart: of a row that all use in turn, how far on there is room for another.
    """

    __slots__ = (
        "address", "apart", "array", "dtype", "high", "key", "low", "period", "regular", "row",
        "shape", "strides", "whole",
    )  # fmt: skip

    def __init__(self, array: Any, shape: Any = None) -> None:
        self.array = array
        if shape is not None:
            array = LIBRARIES[type(array)].module.broadcast_to(array, shape)
        shape, strides = array.shape, array.strides
        kept = [d for d, n in enumerate(shape) if n != 1]
        size = array.dtype.itemsize
        self.address = address(array)
        self.dtype = array.dtype
        self.shape = tuple(shape[d] for d in kept)
        steps = [strides[d] for d in kept]
        self.regular = self.dtype in DTYPES and all(step % size == 0 for step in steps)
        self.strides = tuple(step // size for step in steps)
        self.row = self.apart = self.period = 0
        self.whole: Place | None = None
        self._bound(steps)

    def _bound(self, steps: list[int]) -> None:
        ends = [(n - 1) * step for n, step in zip(self.shape, steps, strict=True)]
        self.low = self.address + sum(end for end in ends if end < 0)
        self.high = self.address + sum(end for end in ends if end > 0) + self.dtype.itemsize
        self.key = self.address, self.strides, self.dtype, self.row, self.period

    def part(
        self, shape: tuple[int, ...], strides: tuple[int, ...], row: int, period: int = 0
    ) -> Place:
        """The first of its rows, which are `row` elements apart."""
        found = copy.copy(self)
        found.shape, found.strides, found.row, found.whole = shape, strides, row, self.whole or self
        found.period = period
        found._bound([step * self.dtype.itemsize for step in strides])
        return found

    def meets(self, other: Place) -> bool:
        """Whether they may have memory in common."""
        return self.low < other.high and other.low < self.high and not self.beside(other)

    def beside(self, other: Place) -> bool:
        """Whether they are strips of one matrix, or more such, that do not overlap."""
        if self.strides != other.strides or self.shape != other.shape or self.dtype != other.dtype:
            return False
        size = self.dtype.itemsize
        steps = sorted((abs(s) * size, n) for s, n in zip(self.strides, self.shape, strict=True))
        offset, reach = other.low - self.low, size
        for number, (step, n) in enumerate(steps):
            # Addresses modulo a step that divides all larger ones.
            divides = step and all(larger % step == 0 for larger, _ in steps[number:])
            if divides and reach <= offset % step <= step - reach:
                return True
            reach += step * (n - 1)
        return abs(offset) >= reach

    def same(self, other: Place) -> bool:
        """Whether an index leads to the same element in both."""
        return self.key == other.key

    def covers(self, other: Place) -> bool:
        """Whether writing all of it leaves nothing of `other`."""
        return (self.key == other.key and self.shape == other.shape) or (
            self.solid and self.low <= other.low and other.high <= self.high
        )

    @property
    def distinct(self) -> bool:
        """Whether no two indices lead to the same element."""
        reach = 0
        for step, n in sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True)):
            if step <= reach:
                return False
            reach += step * (n - 1)
        return True

    @property
    def solid(self) -> bool:
        """Whether there are no gaps in it."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return self.distinct and self.high - self.low == count * self.dtype.itemsize


@dataclass
class Unit:
    """Something that is done at once.

    Attributes:
        lines: what it was made of.
        reads, writes: the memory.
    """

    lines: list[Line]
    reads: list[Place] = field(default_factory=list)
    writes: list[Place] = field(default_factory=list)

    def disturbs(self, other: Unit) -> bool:
        """Whether the two must stay in their order."""
        return (
            _meet(self.writes, other.reads)
            or _meet(self.writes, other.writes)
            or _meet(self.reads, other.writes)
        )


def _meet(some: list[Place], others: list[Place]) -> bool:
    return any(a.meets(b) for a in some for b in others)


class Source(NamedTuple):
    """What `take` reads: `step` elements on from where it reads for one index is the next.

    Attributes:
        whole: all of it.
        first: what there is for index 0, in the shape of the result.
        size: how many indices there are.
    """

    whole: Place
    first: Place
    size: int
    step: int


@dataclass
class Element:
    """One line of an `Elements` unit: `out = expression(args)`, where `mask` is set."""

    expression: Expression
    args: list[Any]  # Places and numbers
    out: Place
    mask: Place | None = None
    source: Source | None = None  # what `args[0]` is an index into (take)


@dataclass
class Elements(Unit):
    """A loop over `shape`; `launched`: by a GPU, where one more costs as much as its work."""

    shape: tuple[int, ...] = ()
    body: list[Element] = field(default_factory=list)
    stored: set[Any] = field(default_factory=set)  # keys of the Places that go to memory
    launched: bool = False

    def takes(self, other: Elements) -> bool:
        """Whether `other` can be done in the same loop, behind its lines."""
        if self.shape != other.shape:
            return False
        mine, theirs = self.reads + self.writes, other.reads + other.writes
        needed = [place for place in loads(other) if any(place.strides)]
        if self.shape and not self.launched and not any(a.same(b) for a in mine for b in needed):
            return False  # nothing to gain
        if len({p.key for p in mine + theirs if any(p.strides)}) > STREAMS:
            return False
        if self.launched and len({p.key for p in mine + theirs}) > ARGUMENTS:
            return False
        for one, two in ((self, other), (other, self)):
            for written in one.writes:
                for place in two.reads + two.writes:
                    if written.meets(place) and not written.same(place):
                        return False
        gathered = [e.source.whole for e in self.body + other.body if e.source is not None]
        return not _meet(gathered, self.writes + other.writes)

    def absorb(self, other: Elements) -> None:
        """Do `other` as well."""
        self.lines += other.lines
        self.body += other.body
        self.reads += other.reads
        self.writes += other.writes


@dataclass
class Reduction(Unit):
    """`sum`, `prod`, `max`, `min`, `any` or `all` of `x` over `axes`."""

    name: str = ""
    x: Any = None
    axes: tuple[int, ...] = ()


@dataclass
class Product(Unit):
    """A matrix product: `a` (batch, m, k), `b` (batch, k, n), `out` (batch, m, n)."""

    a: Any = None
    b: Any = None
    out: Any = None


@dataclass
class Convolution(Unit):
    """A convolution, or the gradient of its input or its weight."""


@dataclass
class Scatter(Unit):
    """`target[index] += values`, which are its reads, of one dimension, or of rows of a matrix.

    adds: else they take the place of what is there, all of one dimension.
    """

    adds: bool = True


@dataclass
class Draws(Unit):
    """The random words of a `Draw`."""


@dataclass
class Check(Unit):
    """Whether numbers are within the bounds of a PythonCall, which says what is not."""

    host: Any = None


@dataclass
class Call(Unit):
    """What NumPy does, or the Python of a PythonCall."""

    host: PythonCall | None = None


def units_of(program: Program) -> list[Unit]:
    """The units of `program`, in an order that may be replayed."""
    cpu = program.xp.kind == "cpu"
    lines: Iterable[Line | PythonCall] = program.lines
    if cpu:
        lines = (part for line in lines for part in _parts(line, program))
    made = (unit_of(line, program) for line in lines)
    found = _fused((unit for unit in made if unit is not None), program)
    found = _fused(found, program)  # what two loops had in common may have come later
    found = _ordered(found, program)
    _mark_stores(found, program)
    return [unit for unit in found if not _idle(unit)]


def is_native(host: PythonCall) -> bool:
    """Whether it only refuses numbers, of kinds that native code has."""
    return bool(host.bounds) and all(array.dtype in DTYPES for array in host.reads)


def _parts(line: Line | PythonCall, program: Program) -> Iterable[Line | PythonCall]:
    """Joining arrays is copying each to its place; a convolution may be one unit or many lines."""
    if isinstance(line, Line) and line.parts and not (_has_vectors(program) and _convolution(line)):
        for part in line.parts:
            yield from _parts(part, program)
        return
    if isinstance(line, Line) and line.name == "random_words" and not program.alone:
        yield (draw := Draw(line, program))
        yield draw.line
        return
    if isinstance(line, PythonCall) or line.name != "concatenate":
        yield line
        return
    arrays, axis = line.args[0], line.args[1] if len(line.args) > 1 else line.attrs.get("axis", 0)
    start = 0
    for array in arrays:
        stop = start + array.shape[axis]
        place = line.out[(slice(None),) * (axis % array.ndim) + (slice(start, stop),)]
        start = stop
        yield Line("copyto", (place, array), place, {}, line.where)


def unit_of(line: Line | PythonCall, program: Program) -> Unit | None:
    """What a line becomes; None where it does nothing."""
    if isinstance(line, PythonCall):
        reads, writes = (
            [Place(a) for a in some or () if a.size] for some in (line.reads, line.writes)
        )
        if reads and program.xp.kind == "cpu" and is_native(line):
            lines = [Line("check", (x,), x, {}, line.where) for x in line.reads]
            return Check(lines, reads, [], line)
        return Call([], reads, writes, line)
    if type(line.out) is not tuple and not line.out.size:
        return None
    made: Unit | None = None
    if type(line.out) is not tuple and line.out.dtype in DTYPES:
        if program.xp.kind != "cpu":  # CuPy has kernels for what is not element by element
            made = _elements(line, program)
        elif line.parts:
            made = _convolution(line)
        elif line.name in ("dot", "matmul"):
            made = _product(line, program)
        elif line.name in ("sum", "prod", "max", "min", "any", "all"):
            made = _reduction(line, program)
        elif line.name == "scatter_add" or (line.name == "setitem" and arrays_in(line.args[1])):
            made = _scatter(line)
        elif "place" in line.attrs:
            made = Draws([line], [Place(line.attrs["place"])], [Place(line.out)])
        else:
            made = _elements(line, program)
    known = made is not None and all(place.regular for place in made.reads + made.writes)
    if made is None or not known or not all(place.distinct for place in made.writes):
        outs = line.out if type(line.out) is tuple else (line.out,)
        given = arrays_in((line.args, tuple(line.attrs.values())))
        made = Call([line], [Place(a) for a in given if a.size], [Place(a) for a in outs])
    return made


# Lines ------------------------------------------------------------------------------------------


def _elements(line: Line, program: Program) -> Elements | None:
    out, args, attrs = line.out, line.args, line.attrs
    mask: Any = None
    source: Source | None = None
    cuda, size = program.xp.kind != "cpu", 0 if program.alone else out.size
    if line.name == "copyto" or line.name == "setitem":
        if line.name == "setitem":
            if arrays_in(args[1]):  # what is in their memory now need not be an index
                return None
            target = args[0][args[1]]
            if type(target) not in LIBRARIES or owner_of(target) is not owner_of(out):
                return None
            out, args, attrs = target, (target, args[2]), {}
        out, given, mask = args[0], args[1], attrs.get("where")
        dtype = given.dtype if type(given) in LIBRARIES else out.dtype
        found = Expression("{0}", (dtype,), dtype)
        args = (given,)
    elif line.name == "where":
        found = Expression("{0} ? {1} : {2}", (np.dtype(bool), out.dtype, out.dtype), out.dtype)
    elif line.name == "kept":
        found = Expression("{1} ? {0} : 0", (out.dtype, np.dtype(bool)), out.dtype)
    elif line.name == "take":
        source, index = _source(line)
        if source is None:
            return None
        found, args = Expression("", (np.dtype(np.int64),), args[0].dtype), (index,)
    else:
        made = expression(line.name, args, attrs, size, cuda)
        if made is None:
            return None
        found = made
    given_dtypes = [a.dtype for a in args if type(a) in LIBRARIES]
    pairs = [*zip(given_dtypes, found.taken, strict=False), (found.given, out.dtype)]
    if not program.alone and any(a.kind == "f" and b.kind in "iu" for a, b in pairs):
        return None  # NaN as an integer is NumPy's affair
    to = Place(out)
    places = [Place(a, out.shape) if type(a) in LIBRARIES else a for a in args]
    where = None if mask is None else Place(mask, out.shape)
    reads = [p for p in places if type(p) is Place] + ([where] if where is not None else [])
    if where is not None:
        reads.append(to)
    if any(p.meets(to) and not p.same(to) for p in reads):
        return None  # NumPy makes a copy first
    if source is not None:
        if source.whole.meets(to):
            return None
        reads.append(source.whole)
    body = [Element(found, places, to, where, source)]
    return Elements([line], reads, [to], to.shape, body, launched=cuda)


def _source(line: Line) -> tuple[Source | None, Any]:
    """What `take` reads, and the indices, to be broadcast to the shape of the result."""
    x, index, *more = line.args
    axis = line.attrs.get("axis", more[0] if more else None)
    if not (type(x) is type(index) is np.ndarray and index.dtype.kind in "iu" and x.size):
        return None, None
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis %= x.ndim
    step, rest = divmod(x.strides[axis], x.itemsize)
    if rest or line.attrs.keys() - {"axis"} or not np.may_share_memory(x, line.args[0]):
        return None, None
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    first = x[(slice(None),) * axis + (slice(1),)].reshape(*before, *(1,) * index.ndim, *after)
    index = index.reshape(*index.shape, *(1,) * len(after))
    return Source(Place(x), Place(first, line.out.shape), x.shape[axis], step), index


def _reduction(line: Line, program: Program) -> Reduction | None:
    x, attrs = line.args[0], line.attrs
    axis = attrs.get("axis", line.args[1] if len(line.args) > 1 else None)
    dtype = np.dtype(attrs.get("dtype") or line.out.dtype)
    allowed = attrs.keys() <= {"axis", "dtype", "keepdims"} and len(line.args) <= 2
    counted = line.name == "sum" and dtype == np.int64 and x.dtype.kind in "bui"
    fits = dtype == line.out.dtype and (x.dtype == dtype or counted) and dtype.kind != "b"
    truth = line.name in ("any", "all")
    if not allowed or not (fits or truth) or x.dtype not in DTYPES:
        return None
    if axis is None:
        axes = tuple(range(x.ndim))
    else:
        axes = tuple(a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    far = x.size > 65536 and (truth or not x.flags.c_contiguous) and not program.alone
    return None if far else _reduced(line, line.name, x, axes)


def _reduced(line: Line, name: str, x: Any, axes: tuple[int, ...]) -> Reduction | None:
    if not x.size and name in ("max", "min"):
        return None
    reads, to = [Place(x)] if x.size else [], Place(line.out)
    return None if _meet(reads, [to]) else Reduction([line], reads, [to], name, x, axes)


def _convolution(line: Line) -> Convolution | None:
    given = tuple(arrays_in(line.args))
    alike = all(a.flags.c_contiguous and a.dtype == line.out.dtype for a in (*given, line.out))
    if not alike or line.out.dtype not in DTYPES or not all(a.size for a in given):
        return None
    return Convolution([line], [*map(Place, given)], [Place(line.out)])


def _product(line: Line, program: Program) -> Unit | None:
    a, b, out = line.args[0], line.args[1], line.out
    both = type(a) is np.ndarray and type(b) is np.ndarray and a.ndim and b.ndim
    if not both or line.attrs or len(line.args) != 2 or a.dtype != out.dtype:
        return None
    if b.dtype != out.dtype or out.dtype.kind != "f":
        return None
    if line.name == "dot" and (a.ndim > 2 or b.ndim > 2):
        return None
    if Place(out).meets(Place(a)) or Place(out).meets(Place(b)):
        return None
    if b.ndim == 2 and a.ndim == 1 and b.size <= 16384 and len(a) <= SHORT and _ones(a, program):
        return _reduced(line, "sum", b, (0,))  # loops add row by row
    whole = a.size <= 16384 or a.flags.c_contiguous
    if a.ndim == 2 and b.ndim == 1 and whole and _ones(b, program):
        return _reduced(line, "sum", a, (1,))
    reads = [Place(a), Place(b)]
    first, second = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    m, k, n = first.shape[-2], first.shape[-1], second.shape[-1]
    batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    first = np.broadcast_to(first, (*batch, m, k))
    second = np.broadcast_to(second, (*batch, k, n))
    target = out.reshape((*batch, m, n))
    if not np.may_share_memory(target, out):
        return None
    found = Product([line], reads, [Place(out)], first, second, target)
    vectors = _has_vectors(program) and matrix(target)
    return found if program.alone or vectors or small(found, program) else None


def _has_vectors(program: Program) -> bool:
    """Whether native code has the products and convolutions of products.c and convolution.c."""
    return c_compiler.has_fma() and not program.alone


def matrix(array: Any) -> tuple[bool, int] | None:
    """Whether the last two dimensions are transposed in memory, and how far rows are apart there.

    None where neither rows nor columns are contiguous.
    """
    (rows, columns), size = array.shape[-2:], array.itemsize
    down, right = array.strides[-2:]
    if (right == size or columns == 1) and (rows == 1 or down >= columns * size):
        return False, down // size if rows > 1 else max(1, columns)
    if (down == size or rows == 1) and (columns == 1 or right >= rows * size):
        return True, right // size if columns > 1 else max(1, rows)
    return None


def small(product: Product, program: Program) -> bool:
    """Whether loops are faster than `product` of products.c, or than NumPy where that is slow."""
    products = program.alone or c_compiler.has_fma()
    m, n = product.out.shape[-2:]
    size = m * n * product.a.shape[-1]
    if m == 1 and n == 1:
        return bool(size < 16384)
    return bool(size <= (128 if products and m > 1 and n > 1 else 512 if products else 2304))


def _ones(array: Any, program: Program) -> bool:
    constant = program.kinds.get(id(owner_of(array))) == "constant"
    return constant and bool((array == 1).all())


def _scatter(line: Line) -> Scatter | None:
    target, index, values = line.args
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    arrays = [a for a in (target, index, values) if type(a) is np.ndarray]
    if len(arrays) != 3 or index.dtype != np.int64 or values.dtype != target.dtype:
        return None
    if index.ndim != 1 or values.shape != (*index.shape, *target.shape[1:]):
        return None
    adds = line.name == "scatter_add"
    if target.dtype.kind != "f" or target.ndim > 1 + adds:
        return None
    reads = [Place(a) for a in arrays]
    if reads[0].meets(reads[1]) or reads[0].meets(reads[2]):
        return None
    return Scatter([line], reads, [reads[0]], adds)


# Order ------------------------------------------------------------------------------------------


def _fused(units: Iterable[Unit], program: Program) -> list[Unit]:
    found: list[Unit] = []
    for unit in units:
        if not (type(unit) is Elements and _joined(unit, found, program)):
            found.append(unit)
    return found


def _joined(unit: Elements, units: list[Unit], program: Program) -> bool:
    """Whether `unit` found a loop among the last `units` that does its work as well."""
    raises, stays = may_raise(unit), lasts(unit, program)
    for other in reversed(units[-REACH:]):
        if (stays and may_raise(other)) or (raises and lasts(other, program)):
            return False
        if type(other) is Elements and other.takes(unit):
            other.absorb(unit)
            return True
        if type(other) is Call and other.host is not None:
            return False
        if other.disturbs(unit) or (raises and may_raise(other)):
            return False
    return False


def _barrier(unit: Unit) -> bool:
    return type(unit) is Call and unit.host is not None and unit.host.writes is None


def _pythons(unit: Unit) -> bool:
    """Whether it reads or changes what Python knows: these stay in order among themselves."""
    return type(unit) is Call and (unit.host is not None or unit.lines[0].name in DRAWS)


def may_raise(unit: Unit) -> bool:
    """Whether values can make it raise: the state is then as it was at that place of the step."""
    if type(unit) is not Call:
        body = getattr(unit, "body", ())
        return type(unit) in (Scatter, Check) or any(e.source is not None for e in body)
    if unit.host is not None:
        return bool(unit.host.reads)
    return may_refuse(unit.lines[0])


def lasts(unit: Unit, program: Program) -> bool:
    """Whether what it writes is there after the step."""
    return any(program.kinds.get(id(owner_of(p.array))) != "made" for p in unit.writes)


def _ordered(units: list[Unit], program: Program) -> list[Unit]:
    """All of Python that can be done first, then all native code that can be, and so on."""
    kept = [lasts(unit, program) for unit in units]
    raises = [may_raise(unit) for unit in units]
    pythons = [_pythons(unit) for unit in units]
    # Calls of NumPy are Python's; those of CuPy can be in a graph with kernels.
    first = [type(unit) is Call for unit in units] if program.xp.kind == "cpu" else pythons
    barriers = [_barrier(unit) for unit in units]
    near = _Neighbors([unit.reads + unit.writes for unit in units])
    writing = _Neighbors([unit.writes for unit in units])
    before: list[list[int]] = []
    for number, unit in enumerate(units):
        # NumPy would warn of what a check refuses.
        behind = raises[number] or kept[number] or type(unit) is Call
        touching = near.of(unit.writes) | writing.of(unit.reads)
        before.append(
            [
                i
                for i in range(number)
                if barriers[number]
                or barriers[i]
                or (pythons[number] and pythons[i])
                or (behind and raises[i])
                or (raises[number] and (kept[i] or pythons[i]))
                or (i in touching and units[i].disturbs(unit))
            ]
        )
    done: set[int] = set()
    found: list[Unit] = []
    left = list(range(len(units)))
    native = False
    while left:
        later = []
        for i in left:
            if first[i] is not native and done.issuperset(before[i]):
                done.add(i)
                found.append(units[i])
            else:
                later.append(i)
        left, native = later, not native
    return found


class _Neighbors:
    """Which of many units have to do with a stretch of memory, without a look at each of them.

    Args:
        places: of each unit.
    """

    def __init__(self, places: Sequence[Sequence[Place]]) -> None:
        found = [(place.low, place.high, n) for n, each in enumerate(places) for place in each]
        self._low, self._high, self._units = np.array(found, np.uint64).reshape(-1, 3).T.copy()

    def of(self, places: Iterable[Place]) -> set[int]:
        """The numbers of the units whose addresses overlap with those of one of `places`."""
        found: set[int] = set()
        for place in places:
            overlap = (self._low < place.high) & (self._high > place.low)
            found.update(self._units[overlap].tolist())
        return found


# Memory that is never needed ----------------------------------------------------------------------


def _mark_stores(units: list[Unit], program: Program) -> None:
    """Find the intermediate results that nobody reads from memory."""
    kept = [Place(a) for a in program.outputs if a.size]
    near = _Neighbors([loads(unit) + unit.writes for unit in units])
    barriers = {number for number, unit in enumerate(units) if _barrier(unit)}
    for number, unit in enumerate(units):
        if type(unit) is not Elements:
            continue
        for place in unit.writes:
            kind = program.kinds.get(id(owner_of(place.array)))
            concerned = sorted(near.of([place]) | barriers)
            later = [units[n] for n in concerned if n > number]
            sooner = [units[n] for n in concerned if n <= number]
            if kind != "made" or _meet([place], kept) or needed(place, later, sooner):
                unit.stored.add(place.key)


def needed(place: Place, later: list[Unit], sooner: list[Unit]) -> bool:
    """Whether one of the units that have to do with `place` reads it before it is written anew.

    later, sooner: those behind what writes it, and those up to there.
    """
    for unit in later:
        if _barrier(unit) or _meet([place], loads(unit)):
            return True
        if type(unit) is Elements and any(w.covers(place) for w in unit.writes):
            return False
    # What the next replay begins with: reads of it before it is written.
    for unit in sooner:
        if _meet([place], loads(unit)):
            return True
        if any(w.covers(place) for w in unit.writes):
            return False
    return False


def loads(unit: Unit) -> list[Place]:
    """What a unit reads from memory, and not from its own lines."""
    if type(unit) is not Elements:
        return unit.reads
    known: set[Any] = set()
    found = []
    for element in unit.body:
        places = [a for a in element.args if type(a) is Place]
        places += [element.mask] if element.mask is not None else []
        places += [element.source.whole] if element.source is not None else []
        if element.mask is not None:
            places.append(element.out)
        found += [p for p in places if p.key not in known]
        known.add(element.out.key)
    return found


def stores(unit: Unit) -> list[Place]:
    """What a unit writes to memory."""
    if type(unit) is not Elements:
        return unit.writes
    return [place for place in unit.writes if place.key in unit.stored]


def touches(unit: Unit) -> list[Place]:
    """What a unit reads and writes in memory, each once."""
    return list({place.key: place for place in loads(unit) + stores(unit)}.values())


def works_on(unit: Unit) -> list[Any]:
    """The arrays that a unit has to do with in memory."""
    return [place.array for place in touches(unit)]


def share_memory(units: Sequence[Unit], program: Program) -> dict[int, Any]:
    """Let results whose lives do not meet share memory: see `plan.reuse`."""
    lines = [line for unit in units for line in unit.lines]
    places = reuse(program, [works_on(unit) for unit in units], lines)
    for line in lines:
        line.parts = ()  # with the memory that they had in the capture
    return places


def traffic(units: Iterable[Unit]) -> int:
    """The bytes that `units` read and write."""
    return sum(place.high - place.low for unit in units for place in touches(unit))


def _idle(unit: Unit) -> bool:
    """Whether a unit does nothing any more: it stores no result and checks no index."""
    if type(unit) is not Elements or unit.stored:
        return False
    return all(element.source is None for element in unit.body)


def loop_dims(unit: Elements) -> list[tuple[int, list[int]]]:
    """The loops, outermost first: length, and the dimensions that became one."""
    sources = [e.source for e in unit.body if e.source is not None]
    whole = {id(source.whole) for source in sources}
    places = [p for p in unit.reads + unit.writes if id(p) not in whole]
    places = [p for p in places if len(p.strides) == len(unit.shape)]
    places += [source.first for source in sources]
    lead = unit.writes[-1].strides
    dims = sorted(range(len(unit.shape)), key=lambda d: -abs(lead[d]))
    found: list[tuple[int, list[int]]] = []
    for d in dims:
        if found:
            n, members = found[-1]
            last = members[-1]
            if all(p.strides[last] == p.strides[d] * unit.shape[d] for p in places):
                found[-1] = n * unit.shape[d], [*members, d]
                continue
        found.append((unit.shape[d], [d]))
    return found
