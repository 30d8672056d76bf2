"""Units as C: a loop over elements, a sum or a product is a function of its own.

A function is given the words of a table, most of them addresses, so its text knows no memory: units
that differ in nothing else, as those of equal layers, are one function. A large product or a
convolution is a function of a file of its own, which finds sizes in its words as well. A loop over
time is a sequence of units whose words move on.

Sums are those of the text, NaN and infinities go the way they go in NumPy. Functions of one number
are those of functions.c.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..backend import address, owner_of
from ..numerics.sums import FEW
from . import c_compiler, convolutions, fusion
from .elements import DTYPES, literal, meant
from .explain import flops_of, size
from .fusion import (
    Check,
    Convolution,
    Draws,
    Element,
    Elements,
    Place,
    Product,
    Reduction,
    Scatter,
    Unit,
)
from .program import Program, arrays_in
from .rows import Rows, with_rows
from .time_loops import Loop, with_loops

HEAD = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float float32; typedef double float64;
typedef int8_t int8; typedef int16_t int16; typedef int32_t int32; typedef int64_t int64;
typedef uint8_t uint8; typedef uint32_t uint32; typedef uint64_t uint64;
#define NaN __builtin_nan("")
#define Inf __builtin_inf()
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#pragma GCC optimize("vect-cost-model=dynamic")
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLLED _Pragma("GCC unroll 8")
#endif
"""
_VALUE, _MADE = re.compile(r"\bv\d+\b"), re.compile(r"const \w+ (v\d+) = ")
WIDE = 8  # elements that a vector has
PHILOX = 512  # random words of a turn: see runtime.c
OWN = 14  # words of a call before those that say how many: see runtime.c
DEEP, BROAD, ROWS = 256, 4096, 320  # of products.c: terms and columns at a time; rows, and a panel
SHARED = 1 << 16  # elements of a loop, times its lines, from which on several threads may do it
NARROW, AT_ONCE = 128, 8  # elements of a row of which several are done at once, and how many
RATE = 4  # of these in a nanosecond, about


@dataclass
class Word:
    """What a unit is told: a number, an address, or a function by its name.

    Attributes:
        owner: what keeps the memory at an address alive.
        step: how far that moves on in each turn of a loop around it.
    """

    value: Any
    owner: Any = None
    step: int = 0


@dataclass
class Written:
    """A unit: the name of its function, in the text or in runtime.c, and its words."""

    unit: Unit
    about: str
    code: str
    words: list[Word]
    turns: tuple[int, ...] = ()  # of a job for several threads: how many, and nanoseconds in all
    body: list[Written] = field(default_factory=list)  # of a loop over time


def native_units(program: Program) -> list[Unit]:
    """What C does of `program` at once, and what is left."""
    return with_rows(with_loops(fusion.units_of(program), program), program)


class Writer:
    """The text of the units of a program, and what each is told.

    Args:
        places: by id of what owned it, the memory of a result now.

    Attributes:
        functions: the texts.
    """

    def __init__(self, program: Program, places: dict[int, Any]) -> None:
        self.program, self.places = program, places
        self.functions: list[str] = []
        self.plans: list[Any] = []  # of convolutions; they are told by address
        self.rooms: list[Word] = []  # that are told where scratch memory is, of `scratch` bytes
        self._turns: Any = ()  # see `Written`
        self._together = 1  # rows of `Rows`
        self._whole = False  # whether the loop that is written is in one of several
        self.scratch = 0
        self.moving: dict[int, int] = {}  # in a loop over time: see `Loop`
        self._names: dict[str, str] = {}  # of the functions, by what they do
        self._words: dict[Any, Word] = {}  # of the unit that is written
        self._in_row: dict[tuple[str, str], str] = {}  # where its row is

    def source(self) -> str:
        """All of the text."""
        names = ", ".join(f"(unit){name}" for name in self.names)
        table = f"typedef int (*unit)(int64 *);\nunit const units[] = {{{names}}};\n"
        return "\n".join([HEAD, *mathematics(self.functions), *self.functions, table])

    @property
    def names(self) -> list[str]:
        """Of the functions, in order."""
        return [*self._names.values()]

    def written(self, unit: Unit) -> Written:
        """A unit, whose text is among the functions by then."""
        given = [tuple(vars(unit).values()), *(line.args for line in unit.lines)]
        empty = (a for a in arrays_in(given) if not a.size)  # of no place in memory
        alive = {id(owner_of(array)) for array in (*fusion.works_on(unit), *empty)}
        first, last = unit.lines[0], unit.lines[-1]
        where = sorted({line.where.rpartition("/")[2] for line in (first, last)})
        names = " ".join(line.name for line in unit.lines)
        what = dict.fromkeys(line.what for line in unit.lines if line.what)
        out = last.out[0] if type(last.out) is tuple else last.out
        about = f"{size(out)}: {names}, {', '.join([*what, *where])}"
        if isinstance(unit, Loop):
            self.moving = unit.steps
            parts = [self.written(part) for part in unit.body_units]
            self.moving = {}
            return Written(unit, about, "sequence", [], (), parts)
        self._words, self._in_row, self._alive, self._turns = {}, {}, alive, ()
        self._stored = {id(owner_of(place.array)) for place in fusion.stores(unit)}
        code, lines = self.lines_of(unit)
        words = [*self._words.values()]
        code = code or self.function(lines)
        return Written(unit, about, code, words, self._turns)

    def function(self, lines: list[str]) -> str:
        """The name of the function that these lines are, of the words that they have led to."""
        heads = [f"{kind} *p{n} = ({kind} *)t[{n}];" for n, (_, kind) in enumerate(self._words)]
        some = ", int64 from, int64 to, int64 member" if self._turns else ""
        return self.named(f"int {{}}(int64 *t{some})", [*heads, *lines, "return 0;"])

    def named(self, head: str, lines: list[str]) -> str:
        """The name of a function, one for all of equal text; `head` has a place for it."""
        body = "".join(f"    {line}\n" for line in lines)
        if head + body not in self._names:
            self._names[head + body] = name = f"u{len(self.functions)}"
            self.functions.append(f"static {head.format(name)} {{\n{body}}}\n")
        return self._names[head + body]

    def lines_of(self, unit: Unit) -> tuple[str, list[str]]:
        """The function of C that does a unit, or else the lines of one; by a method of its name."""
        return getattr(self, type(unit).__name__.lower())(unit)

    def loop(self, name: str, count: int, work: int) -> str:
        """The outermost loop of a unit, `work` elements in all: its turns may be shared."""
        if count < 2 or work < SHARED or self._whole:
            return _for(name, count)
        self._turns = count, work // RATE
        return f"for (int64 {name} = from; {name} < to; {name}++)"

    def memory(self, address: int, dtype: Any, owner: Any, row: str = "", step: int = 0) -> str:
        """The name of the memory at `address`; `row`: how far it is moved on for each row.

        step: how far its elements are apart. What lies in between has a name that shows it, so that
        the compiler loads and stores both at once.
        """
        kind = "uint8" if dtype.kind == "b" else DTYPES[dtype]
        kind = kind if id(owner) in self._stored else f"const {kind}"
        if (address, kind) not in self._words:
            word = self._word(address, owner)
            for number, ((other, its), near) in enumerate(self._words.items()):
                apart, rest = divmod(address - other, dtype.itemsize)
                same = its == kind and near.owner is word.owner and not (rest or row)
                if same and abs(apart) < step:
                    return f"(p{number} + {apart})"
            self._words[address, kind] = word
        name = f"p{[*self._words].index((address, kind))}"
        if row:
            text = f"{kind} *r{len(self._in_row)} = {name} + {row};"
            name = self._in_row.setdefault((name, row), text).partition("*")[2].split()[0]
        return name

    def at(self, place: Place) -> str:
        """The name of the memory of a place."""
        step = min(map(abs, filter(None, place.strides)), default=0)
        row = f"row{f' % {place.period}' * bool(place.period)} * {place.row}" if place.row else ""
        if place.apart:  # a row that all use in turn, those at once and threads one each
            terms = ["from"] * bool(self._turns) + ["row - first"] * (self._together > 1)
            row = f"({' + '.join(terms)}) * {place.apart}" if terms else ""
        return self.memory(place.address, place.dtype, owner_of(place.array), row, step)

    def _word(self, address: int, owner: Any) -> Word:
        assert id(owner) in self._alive  # or its memory could be another's
        step = self.moving.get(id(owner), 0)
        place = self.places.get(id(owner))
        if place is None:
            return Word(address, owner, step)
        return Word(address + place.ctypes.data - owner.ctypes.data, place, step)

    def of(self, array: Any) -> str:
        return self.memory(array.__array_interface__["data"][0], array.dtype, owner_of(array))

    def _call(
        self, leaf: str, arrays: list[Any], own: list[Any], dims: list[Any],
        work: int = 0,
    ) -> tuple[str, list[str]]:  # fmt: skip
        """Calls of a function of C, for the places in further dimensions.

        own: its words. work: about how many nanoseconds one takes; 0: one thread does all.
        """
        words = [Word(leaf), *(self._word(address(v), owner_of(v)) for v in arrays)]
        words += [n if type(n) is Word else Word(n) for n in own]
        words += [Word(0)] * (OWN - len(words))
        words += [Word(n) for n in (work, len(dims), *(n for dim in dims for n in dim))]
        self._words = dict(enumerate(words))
        return "calls", []

    def _room(self, packed: int, room: int, itemsize: int) -> Word:
        """Scratch memory: elements for all threads, and for each, while a unit is done."""
        most = packed + c_compiler.most_threads() * room
        self.scratch = max(self.scratch, most * itemsize)
        self.rooms.append(Word(0))
        return self.rooms[-1]

    def rows(self, unit: Rows) -> tuple[str, list[str]]:
        self.loop("row", unit.count, work(unit))  # whose turns may be shared
        self._whole = True
        # What a row waits for, one sum after the other, several short ones wait for at once.
        self._together = AT_ONCE if max(map(work, unit.parts)) <= NARROW else 1
        parts = [self.lines_of(part)[1] for part in unit.parts]
        self._whole = False
        start, stop = ("from", "to") if self._turns else ("0", str(unit.count))
        far = self._together
        each = [f"const int64 last = first + {far} < {stop} ? first + {far} : {stop};"]
        for part in parts:
            rows = "for (int64 row = first; row < last; row++)"
            each += _nested([rows], [*self._moved(part), *part])
        groups = f"for (int64 first = {start}; first < {stop}; first += {far})"
        return "", _nested([groups], each)

    def _moved(self, lines: list[str]) -> list[str]:
        """The lines that name where the row of these lines is."""
        used = {name for line in lines for name in re.findall(r"\br\d+\b", line)}
        return [line for line in self._in_row.values() if line.split(" *")[1].split()[0] in used]

    def elements(self, unit: Elements) -> tuple[str, list[str]]:
        return "", _Loop(self, unit).text()

    def draws(self, unit: Draws) -> tuple[str, list[str]]:
        size = unit.writes[0].array.size
        self._turns = -(-(size + 14) // PHILOX), 1 + size  # some may be skipped
        places = [p.array for p in (unit.reads[0], unit.writes[0])]
        told = [self._word(address(array), owner_of(array)) for array in places]
        self._words = dict(enumerate([*told, Word(size)]))
        return "philox", []

    def check(self, unit: Check) -> tuple[str, list[str]]:
        """All are looked at, without a way out of the loop, so that several are at once."""
        low, *more = unit.host.bounds
        lines = []
        for x in filter(operator.attrgetter("size"), unit.host.reads):
            steps = {f"i{d}": x.strides[d] // x.itemsize for d, n in enumerate(x.shape) if n != 1}
            if low == "finite":
                kind, bad = DTYPES[x.dtype], "v - v != 0"  # of infinity, too, it is NaN
            else:
                inside = f"((v < {low}) | (v >= {more[0]}))"
                kind, bad = "int64", " & ".join([inside, *(f"(v != {one})" for one in more[1:])])
            each = [f"const {kind} v = ({kind}){self.of(x)}[{_index(steps)}];", f"bad |= {bad};"]
            loops = _nested([_for(f"i{d}", n) for d, n in enumerate(x.shape) if n != 1], each)
            # As wide as the numbers: as many of both are in a vector.
            wide = "int32" if kind == "float32" else "int64"
            lines += ["{", f"    {wide} bad = 0;", *(f"    {line}" for line in loops)]
            lines += ["    if (bad) return 1;", "}"]
        return "", lines

    def reduction(self, unit: Reduction) -> tuple[str, list[str]]:
        x, to = unit.x, unit.writes[0]
        steps = [s // x.itemsize for s in x.strides]
        kept = [d for d in range(x.ndim) if d not in unit.axes and x.shape[d] != 1]
        gone = [d for d in unit.axes if x.shape[d] != 1]
        gone.sort(key=lambda d: -abs(steps[d]))
        goals = dict(zip(kept, to.strides, strict=True))
        kept.sort(key=lambda d: -abs(goals[d]))
        p, q, t = (self.at(unit.reads[0]) if x.size else self.of(x)), self.at(to), DTYPES[to.dtype]
        goal = f"{q}[{_index({f'i{d}': step for d, step in goals.items()})}]"
        ranges = {d: _for(f"i{d}", x.shape[d]) for d in range(x.ndim)}
        adds = unit.name == "sum" and bool(kept and gone)
        adds = adds and abs(steps[kept[-1]]) < abs(steps[gone[-1]])  # along memory, row by row
        outer = [d for d in kept if not adds or abs(steps[d]) > abs(steps[gone[0]])]
        near = [d for d in kept if d not in outer]
        for d in (outer or near)[:1]:
            ranges[d] = self.loop(f"i{d}", x.shape[d], x.size)
        whole = "uint64" if to.dtype.kind in "iu" and unit.name in ("sum", "prod") else ""
        wide = whole or ("float64" if t == "float32" and unit.name == "sum" else t)

        truth = unit.name in ("any", "all")

        def at(index: str) -> str:
            one = f"{p}[{index}]"
            return f"({whole}){one}" if whole else f"({one} != 0)" if truth else one

        here = at(_index({f"i{d}": steps[d] for d in range(x.ndim) if x.shape[d] != 1}))
        if adds:
            inside = [ranges[d] for d in near]
            zero = _nested(inside, [f"{goal} = 0;"], True)
            rows = _nested([*(ranges[d] for d in gone), *inside], [f"{goal} += {here};"], True)
            return "", _nested([ranges[d] for d in outer], zero + rows)
        length = int(np.prod([x.shape[d] for d in gone], dtype=np.int64))
        first = _index({f"i{d}": steps[d] for d in kept})
        joined = all(steps[d] == steps[e] * x.shape[e] for d, e in pairwise(gone))
        start = {"sum": "0", "prod": "1", "any": "0", "all": "1"}.get(unit.name, at(first))
        kind = wide if unit.name == "sum" else whole or t
        if unit.name != "prod" and joined and gone and length >= 16:
            far = steps[gone[-1]]
            inner = _lanes(
                length, lambda r: at(_sum(first, _times(r, far))), kind, unit.name, start
            )
        else:
            each = [
                f"const {whole or DTYPES[to.dtype if truth else x.dtype]} x = {here};",
                _STEPS[unit.name].format("a", "x"),
            ]
            nan = unit.name in ("max", "min") and to.dtype.kind == "f"
            inner = _nested([ranges[d] for d in gone], [*each, *["n |= x != x;"] * nan])
            inner = [f"{kind} a = {start};", *["int32 n = 0;"] * nan, *inner]
        if unit.name in ("max", "min") and to.dtype.kind == "f":
            inner.append("if (n) a = NaN;")
        return "", _nested([ranges[d] for d in kept], [*inner, f"{goal} = a;"])

    def product(self, unit: Product) -> tuple[str, list[str]]:
        if not fusion.small(unit, self.program):
            return self._product_of(unit)
        one, single = unit.out.shape[-2:] == (1, 1), unit.out.dtype == np.float32
        arrays = _along_memory(unit.a, unit.b, unit.out)
        return "", self.sums(*arrays, 16 if one else None, "float64" if single else "")

    def sums(
        self, a: Any, b: Any, out: Any, lanes: int | None, kind: str = "", at_once: int = 1
    ) -> list[str]:
        """Loops for a product.

        Args:
            lanes: how many terms a sum has at least that becomes several, of this `kind`.
            at_once: terms that are added to a row at once.
        """
        (m, k), n, t = a.shape[-2:], b.shape[-1], DTYPES[out.dtype]
        (ai, ap), (bp, bj), (oi, oj) = (
            [s // v.itemsize * (size > 1) for s, size in zip(v.strides, v.shape, strict=True)][-2:]
            for v in (a, b, out)
        )
        p, q, r = map(self.of, (a, b, out))
        goal = f"{r}[{_sum(_outer(out), _times('i', oi), _times('c', oj))}]"
        # A loop of one turn is none.
        rows, columns = ([_for(name, size)] * (size > 1) for name, size in (("i", m), ("c", n)))

        def left(at: str) -> str:
            return f"{p}[{_sum(_outer(a), _times('i', ai), _times(at, ap))}]"

        def right(at: str) -> str:
            return f"{q}[{_sum(_outer(b), _times(at, bp), _times('c', bj))}]"

        def term(at: str) -> str:
            return f"{left(at)} * {right(at)}"

        if k == 1 and at_once == 1:
            lines = _nested(rows + columns, [f"{goal} = {term('k')};"], True)
        elif n > 1 and bj == 1 and oj == 1:
            lines = _nested(columns, [f"{goal} = 0;"], True)
            whole = k // at_once * at_once if at_once > 1 else 0
            if whole:
                places = [f"(k + {u})" for u in range(at_once)]
                each = [f"const {t} a{u} = {left(place)};" for u, place in enumerate(places)]
                pairs = [f"a{u} * {right(place)}" for u, place in enumerate(places)]
                more = f"{goal} += ({' + '.join(pairs[:2])}) + ({' + '.join(pairs[2:])});"
                each += _nested(columns, [more], True)
                lines += _nested([_for("k", whole, step=at_once)], each)
            if k > whole:
                each = _nested(columns, [f"{goal} += a * {right('k')};"], True)
                lines += _nested([_for("k", k, whole)], [f"const {t} a = {left('k')};", *each])
            lines = _nested(rows, lines)
        else:
            dot = [f"{t} a = 0;", *_nested([_for("k", k)], [f"a += {term('k')};"])]
            if lanes is not None and k >= lanes:
                dot = _lanes(k, term, kind or t)
            lines = _nested(rows + columns, [*dot, f"{goal} = a;"])
        return _nested(_matrices(out), lines)

    def convolution(self, unit: Convolution) -> tuple[str, list[str]]:
        line = unit.lines[0]
        plan, (a, b, *more) = convolutions.plan(line), [place.array for place in unit.reads]
        self.plans.append(plan.words)
        room = self._room(plan.packed, plan.room, line.out.itemsize)
        bias: list[Any] = [self._word(address(v), owner_of(v)) for v in more] or [0]
        name = "convolution"
        if line.name == "convolution_weight":
            name, bias = line.name, []
        rate = 120 // line.out.itemsize  # terms in a nanosecond, about
        own = [plan.words.ctypes.data, room, plan.room, *bias, work(unit) // rate]
        arrays = [a, b, unit.writes[0].array]
        return self._call(f"{DTYPES[line.out.dtype]} {name}", arrays, own, [])

    def _product_of(self, unit: Product) -> tuple[str, list[str]]:
        a, b, out = unit.a, unit.b, unit.out
        size, kind, outer = out.itemsize, DTYPES[out.dtype], out.shape[:-2]

        def call(name: str, arrays: list[Any], own: list[Any], rate: int) -> Any:
            strides = zip(*(array.strides[:-2] for array in arrays), strict=True)
            dims = [(n, *steps) for n, steps in zip(outer, strides, strict=True) if n != 1]
            return self._call(f"{kind} {name}", arrays, own, dims, 1 + m * n * k // rate)

        (turned, _) = fusion.matrix(out) or (False, 0)
        if turned or out.shape[-2] == 1:
            a, b, out = (v.swapaxes(-1, -2) for v in (b, a, out))
        (m, k), n = a.shape[-2:], b.shape[-1]
        steps = [[step // size for step in v.strides[-2:]] for v in (a, b, out)]
        if n == 1 and (steps[0][0] == 1 or steps[0][1] == steps[1][0] == 1):
            own = [m, k, *steps[0], steps[1][0], steps[2][0]]
            return call("matrix_vector", [a, b, out], own, RATE)
        room = (min(n, BROAD) + ROWS) * min(k, DEEP)
        own = [m, n, k, *steps[0], *steps[1], steps[2][0], self._room(0, room, size), room]
        return call("product", [a, b, out], own, 160 // size)

    def scatter(self, unit: Scatter) -> tuple[str, list[str]]:
        target, index, values = unit.reads
        p, i, v = (self.of(place.array) for place in (target, index, values))
        n, *wide = target.array.shape
        (to, *along), (at,), (step, *beside) = (
            [s // place.array.itemsize for s in place.array.strides]
            for place in (target, index, values)
        )
        goal, term = (
            f"{name}[{_sum(_times(*rows), *(_times('c', s) for s in more))}]"
            for name, rows, more in ((p, ("j", to), along), (v, ("i", step), beside))
        )
        count = wide[0] if wide else 1
        loop, columns = [_for("i", len(index.array))], [_for("c", count)]
        row = f"int64 j = {i}[{_times('i', at)}];"
        plain = _nested(columns, [f"{goal} {'+' * unit.adds}= {term};"], True)
        few = len(index.array) <= FEW or target.dtype != np.float32 or self.program.alone
        if not wide or few:  # NumPy looks at all indices before it puts anything anywhere
            looked = [] if unit.adds else _nested(loop, [row, *_checked("j", n)])
            return "", [*looked, *_nested(loop, [row, *_checked("j", n), *plain])]
        # As in `add_rows`: what is added to a row many times is added up in float64.
        found, every = [row, f"if (j < 0) j += {n};"], [_for("j", n), "if (counts[j])"]
        cell = f"total[(counts[j] - 1) * {count} + c]"
        many = [
            "top = 0;",
            *_nested(every, ["counts[j] = ++top;"]),
            f"float64 *total = calloc(top * {count}, sizeof(float64));",
            "if (!total) { free(counts); return 2; }",
            *_nested(loop, [*found, *_nested(columns, [f"{cell} += {term};"], True)]),
            *_nested([*every, *columns], [f"{goal} += {cell};"], True),
            "free(total);",
        ]
        return "", [
            f"int64 top = 0, *counts = calloc({n}, sizeof(int64));",
            "if (!counts) return 2;",
            *_nested(loop, [
                row, *_checked("j", n, "{ free(counts); return 1; }"),
                "if (++counts[j] > top) top = counts[j];",
            ]),
            *_nested([f"if (top <= {FEW})"], _nested(loop, [*found, *plain])),
            *_nested(["else"], many),
            "free(counts);",
        ]  # fmt: skip


class Body:
    """The lines of C for one element of an `Elements` unit, also for a GPU.

    Attributes:
        dims: the loops, outermost first: see `fusion.loop_dims`.
        levels: the lines before all loops, in the outermost one, and so on.
    """

    wide = ""  # how the number of a turn is made one of 64 bits
    overloads = False  # whether functions of mathematics have one name for all types

    def __init__(self, program: Program, unit: Elements) -> None:
        self.program, self.unit = program, unit
        self.dims = fusion.loop_dims(unit)
        self.levels: list[list[str]] = [[] for _ in range(len(self.dims) + 1)]
        self.storing: list[tuple[int, str]] = []  # addresses, and the lines that write there
        self._count = 0
        self._values: dict[Any, tuple[str, int]] = {}  # by key of a Place: its value now
        self._written = {place.key for place in unit.writes}
        self._made: dict[str, tuple[str, ...]] = {}  # by name of a value, how: see `meant`

    def pointer(self, place: Place) -> str:
        """The name of the memory of a place."""
        raise NotImplementedError

    def moves(self, place: Place) -> bool:
        """Whether it is in other memory each time."""
        return False

    def write(self) -> None:
        """Write all lines."""
        last: dict[Any, tuple[Place, str]] = {}
        for element in self.unit.body:
            last[element.out.key] = element.out, self._element(element)
        for key, (place, value) in last.items():
            if key in self.unit.stored:
                self.storing.append((place.address, f"{self._at(place)} = {value};"))
        self.levels[-1] += [line for _, line in self.storing]
        used: set[str] = set()
        for level in reversed(self.levels):
            level[:] = _read(level, used)

    def _at(self, place: Place, more: str = "0") -> str:
        steps = {f"{self.wide}i{d}": place.strides[members[-1]] if place.strides else 0
                 for d, (_, members) in enumerate(self.dims)}  # fmt: skip
        return f"{self.pointer(place)}[{_sum(_index(steps), more)}]"

    def name(self, dtype: Any, text: str, level: int = -1) -> str:
        """A name for a value."""
        name, self._count = f"v{self._count}", self._count + 1
        self.levels[level].append(f"const {DTYPES[dtype]} {name} = {text};")
        return name

    def _value(self, given: Any, dtype: Any) -> str:
        """The operand `given` as a value of `dtype`, in a name or a literal."""
        if type(given) is not Place:
            return literal(given, dtype)
        kind = self.program.kinds.get(id(owner_of(given.array)))
        if kind == "constant" and not any(given.strides) and not self.moves(given):
            return literal(given.array[(0,) * given.array.ndim].item(), dtype)
        if given.key not in self._values:
            inside = [d + 1 for d, (_, members) in enumerate(self.dims)
                      if given.strides and given.strides[members[-1]]]  # fmt: skip
            level = len(self.dims) if given.key in self._written else max(inside, default=0)
            self._values[given.key] = self.name(given.dtype, self._at(given), level), level
        name, level = self._values[given.key]
        if given.dtype == dtype:
            return name
        key = name, dtype
        if key not in self._values:
            self._values[key] = self.name(dtype, name, level), level
        return self._values[key][0]

    def _element(self, element: Element) -> str:
        found, out = element.expression, element.out
        args = [self._value(a, t) for a, t in zip(element.args, found.taken, strict=True)]
        template = found.text
        if element.source is not None:
            source, (_, level) = element.source, self._values.get(element.args[0].key, ("", 0))
            index, self._count = f"n{self._count}", self._count + 1
            self.levels[level] += [f"int64 {index} = {args[0]};", *_checked(index, source.size)]
            text = self._at(source.first, _times(index, source.step))
        else:
            kind = DTYPES[found.taken[0]]
            end = "f" if kind == "float32" else ""
            if end and not self.overloads:
                template, args = meant(template, args, self._made)
            text = template.format(*args, t=kind, p=end, f="" if self.overloads else end)
        value = text
        if not text.isidentifier():
            value = self.name(found.given, text)
            self._made[value] = template, *args
        if found.given != out.dtype:
            value = self.name(out.dtype, value)
        if element.mask is not None:
            mask = self._value(element.mask, np.dtype(bool))
            value = self.name(out.dtype, f"{mask} ? {value} : {self._value(out, out.dtype)}")
        self._values[out.key] = value, len(self.dims)
        return value


class _Loop(Body):
    """A loop over elements in native code."""

    def __init__(self, writer: Writer, unit: Elements) -> None:
        super().__init__(writer.program, unit)
        self.writer = writer

    def pointer(self, place: Place) -> str:
        return self.writer.at(place)

    def moves(self, place: Place) -> bool:
        return bool(place.row or self.writer.moving.get(id(owner_of(place.array)), 0))

    def text(self) -> list[str]:
        self.write()
        lines, last = self.levels[-1], len(self.dims) - 1
        for d, (n, _) in reversed([*enumerate(self.dims)]):
            loops = self._short(n) if d == last else [self._loop(d)]
            each = [line for loop in loops for line in _nested([loop], lines, d == last)]
            if d == 0 and last == 1 and self._overruns():
                values = self.levels[-1][: -len(self.storing)]
                wide = [
                    line
                    for _, store in sorted(self.storing)
                    for line in _nested([_for("i1", WIDE)], _read([*values, store], set()), True)
                ]
                start, _, stop = self._loop(0).partition("< ")
                stop, _, step = stop.partition(";")
                most = _nested([f"{start}< {stop} - 1;{step}"], [*self.levels[1], *wide])
                each = [*most, "{", f"const int64 i0 = {stop} - 1;", *lines, "}"]
            lines = [*self.levels[d], *each]
        return lines

    def _loop(self, d: int) -> str:
        name, count = f"i{d}", self.dims[d][0]
        if d:
            return _for(name, count)
        return self.writer.loop(name, count, math.prod(self.unit.shape) * len(self.unit.body))

    def _short(self, n: int) -> list[str]:
        """The innermost loop: a short one as two of whole vectors that have elements in common.

        What one of them leaves over would be done one by one, with branches.
        """
        last = len(self.dims) - 1
        name = f"i{last}"
        if n % WIDE == 0 or not WIDE < n < 8 * WIDE or not self._repeatable():
            return [self._loop(last)]
        return [_for(name, n // WIDE * WIDE), _for(name, n, n - WIDE)]

    def _overruns(self) -> bool:
        """Whether all rows but the last, shorter than a vector, may be done as a whole one.

        What that writes behind a row's end is written anew by the next row, in this or in the next
        turn: rows are written one after the other, in the order of their addresses.
        """
        n = self.dims[1][0]
        if not WIDE // 2 < n < WIDE or not self._repeatable():
            return False

        def steps(place: Place) -> tuple[int, ...]:
            return tuple(place.strides[d[-1]] if place.strides else 0 for _, d in self.dims)

        stores, loads = fusion.stores(self.unit), fusion.loads(self.unit)
        rows = {(id(owner_of(p.array)), p.dtype, *steps(p), p.address) for p in stores}
        behind = (
            any((owner, t, far, 1, at + (n - back) * t.itemsize) in rows for back in (0, far))
            for owner, t, far, _, at in rows
        )
        places = map(steps, (*stores, *loads))
        return all(behind) and all(0 <= near * (WIDE - n) <= far for far, near in places)

    def _repeatable(self) -> bool:
        """Whether an element may be computed twice: it is not read where it is written."""
        read, gathers = fusion.loads(self.unit), any(e.source for e in self.unit.body)
        return not gathers and not any(a.meets(b) for a in fusion.stores(self.unit) for b in read)


def mathematics(texts: list[str]) -> list[str]:
    """The functions of one number, where `texts` call any."""
    return [c_compiler.text_of("functions")] if any("mt_" in text for text in texts) else []


def work(unit: Unit) -> int:
    """Multiplications and elements."""
    if isinstance(unit, Product):
        return int(unit.out.size * unit.a.shape[-1])
    if isinstance(unit, Convolution):
        return flops_of(unit.lines[0]) // 2
    if isinstance(unit, Reduction):
        return int(unit.x.size)
    if isinstance(unit, Loop):
        return unit.count * sum(map(work, unit.body_units))
    if isinstance(unit, Rows):
        return unit.count * sum(map(work, unit.parts))
    return math.prod(unit.shape) if isinstance(unit, Elements) else 1


def _along_memory(a: Any, b: Any, out: Any) -> tuple[Any, Any, Any]:
    """The factors of a product and itself, transposed where that one runs along memory."""
    size, (ai, _), (_, bj), (oi, oj) = out.itemsize, *(v.strides[-2:] for v in (a, b, out))
    along = (bj == oj == size) or 1 in out.shape[-2:]
    if not along and ai == oi == size:
        a, b, out = (v.swapaxes(-1, -2) for v in (b, a, out))
    return a, b, out


def _matrices(array: Any) -> list[str]:
    """Loops over the matrices of an array."""
    return [_for(f"n{d}", n) for d, n in enumerate(array.shape[:-2]) if n != 1]


def _outer(array: Any) -> str:
    """The text of where in an array a matrix begins."""
    steps = zip(array.strides[:-2], array.shape[:-2], strict=True)
    return _index({f"n{d}": s // array.itemsize for d, (s, n) in enumerate(steps) if n != 1})


def _read(lines: list[str], used: set[str]) -> list[str]:
    """Lines without the values that nothing behind reads; `used`: those that are, which grow."""
    kept = []
    for line in reversed(lines):
        made = _MADE.match(line)
        if made is None or made[1] in used:
            used.update(_VALUE.findall(line))
            kept.append(line)
    return kept[::-1]


def _index(steps: dict[str, int]) -> str:
    """The text of an index: names times steps."""
    return _sum(*(_times(name, step) for name, step in steps.items()))


def _sum(*parts: str) -> str:
    return " + ".join(part for part in parts if part != "0") or "0"


def _times(name: str, step: int) -> str:
    return "0" if not step else name if step == 1 else f"{name} * {step}"


def _for(name: str, stop: int, start: int = 0, step: int = 1) -> str:
    more = f"{name}++" if step == 1 else f"{name} += {step}"
    return f"for (int64 {name} = {start}; {name} < {stop}; {more})"


def _nested(loops: list[str], body: list[str], independent: bool = False) -> list[str]:
    """`body` in loops; `independent`: no turn of the innermost one needs another one."""
    for number, loop in enumerate(reversed(loops)):
        head = ["INDEPENDENT"] * (independent and not number)
        body = [*head, f"{loop} {{", *(f"    {line}" for line in body), "}"]
    return body


# What a reduction does with one more value; of equal ones it takes the last.
_STEPS = {
    "sum": "{0} += {1};",
    "prod": "{0} *= {1};",
    "max": "{0} = {1} < {0} ? {0} : {1};",
    "min": "{0} = {1} > {0} ? {0} : {1};",
    "any": "{0} |= {1};",
    "all": "{0} &= {1};",
}


def _lanes(
    length: int, term: Callable[[str], str], kind: str, name: str = "sum", start: str = "0"
) -> list[str]:
    """`a`, the reduction of `length` terms, by several that a processor can do at once."""
    step, whole = _STEPS[name], length // 8 * 8
    lanes = ["UNROLLED", "for (int j = 0; j < 8; j++)"]
    one = [f"const {kind} x = {term('(r + j)')};", step.format("l[j]", "x")]
    lines = [f"{kind} l[8];", *lanes, f"    l[j] = {start};"]
    lines += _nested([_for("r", whole, step=8)], [lanes[0], *_nested(lanes[1:], one)])
    for far in (1, 2, 4):  # ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7))
        lines += [step.format(f"l[{j}]", f"l[{j + far}]") for j in range(0, 8, 2 * far)]
    lines.append(f"{kind} a = l[0];")
    if length > whole:
        last = [f"const {kind} x = {term('r')};", step.format("a", "x")]
        lines += _nested([_for("r", length, whole)], last)
    if name in ("max", "min") and kind[:5] == "float":  # a comparison with NaN does not hold
        each = [f"const {kind} x = {term('r')};", "n |= x != x;"]
        lines += ["int32 n = 0;", *_nested([_for("r", length)], each)]
    return lines


def _checked(index: str, length: int, bad: str = "return 1;") -> list[str]:
    return [
        f"if ({index} < 0) {index} += {length};",
        f"if ({index} < 0 || {index} >= {length}) {bad}",
    ]
