"""The numba executor: a Program as a few native functions, and NumPy calls for what is left.

Units (see `fusion`) become loops and BLAS calls in Python that numba compiles; a run of them is one
function that is given the address of a table of addresses. fastmath and parallel stay off: sums are
those of the text, NaN and infinities go the way they go in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from ..backend import owner_of
from ..numerics.sums import FEW
from . import fusion
from .arrival import Arrival, places_of
from .bookkeeping import WholePass
from .elements import DTYPES, converted, literal
from .explain import size
from .fusion import Call, Element, Elements, Place, Product, Reduction, Scatter, Unit
from .loops import Applied, Loop, text_of_applied, text_of_loop, with_loops
from .native import ROUTINES, blas
from .numpy_executor import Text
from .pieces import Piece, Slot, Written, pieces
from .program import Program, arrays_in
from .reuse import reuse

RELEASE = 200_000  # multiplications and elements from which other threads may run meanwhile

HEAD = """\
import math

from numba import float32, float64, int8, int16, int32, int64, njit, uint8, uint32, uint64
from numpy import ceil as math_ceil, floor as math_floor, zeros

from microtrain.compile.native import instructions

_I = instructions()
address, pointer, get, put = _I.address, _I.pointer, _I.get, _I.put
ahead, apply, gemm, gemv, done = _I.ahead, _I.apply, _I.gemm, _I.gemv, _I.done
"""


def executor(program: Program) -> tuple[Callable[[], None], Text]:
    """A function that replays `program`, with an `arrival` for arguments in place, and its text."""
    from .cache import load

    routines = blas()
    units = _units(program)
    lines = [line for unit in units for line in unit.lines]
    table = Table(
        program, routines, reuse(program, [fusion.works_on(unit) for unit in units], lines)
    )
    text = Text(program)
    table.label = text.arrays.at
    text.traffic = sum(place.high - place.low for unit in units for place in fusion.touches(unit))
    text.groups = [len(unit.lines) for unit in units if type(unit) is not Call]
    names: dict[str, str] = {}  # of native functions, by what they do
    starts: dict[str, int] = {}  # where in the table they begin to read
    calls: list[tuple[str, int]] = []  # of them, with where they begin
    for native, run in groupby(units, lambda unit: type(unit) is not Call):
        members = list(run)
        if not native:
            for unit in members:
                assert isinstance(unit, Call)
                host = unit.host.native() if type(unit.host) is WholePass else unit.host
                text.line(unit.lines[0]) if host is None else text.host(host)
            continue
        for piece in pieces([table.written(unit) for unit in members]):
            body = _compiled(table.function("", piece))
            if body not in names:
                names[body] = f"native{len(names) + 1}"
                text.native.append(table.function(names[body], piece))
            start = len(table.slots)
            table.slots += piece.slots
            place = f"table{start or ''}"
            starts[place] = start
            calls.append((names[body], start))
            lines = [line for unit in piece.units for line in unit.lines]
            checked = (line for line in lines if line.name in ("take", "scatter_add"))
            text.origin = next(checked, lines[0])
            text.emit(f"{names[body]}({place})", f"{len(lines)} instructions")
            text.native_calls += 1
    scope = text.scope
    codes: dict[str, Any] = {}  # the functions, as numba has them
    if names:
        defined = load(_compiled("\n\n".join([HEAD, *text.native])))
        for name in names.values():
            compiled = defined[name]
            # The entry point itself: what looks at the types of arguments costs as much again.
            found = compiled.overloads[compiled.signatures[0]]
            scope[name] = found.entry_point
            codes[name] = found
    addresses = np.array([address for address, _ in table.slots], np.int64)
    scope.update(places_of(addresses, starts))
    scope["owned"] = addresses, [owner for _, owner in table.slots]
    replay = text.function()
    replay.arrival = Arrival(program, units, replay, addresses, table.slots, starts)
    if all(unit.host is not None for unit in units if type(unit) is Call):
        text.native_code = [(codes[name], start) for name, start in calls], addresses, table.slots
    return replay, text


def _compiled(text: str) -> str:
    """`text` without what is for people."""
    return "\n".join(line.partition("  # ")[0] for line in text.split("\n"))


def coverage(program: Program) -> tuple[int, int, int]:
    """How many of the instructions native code does, how many there are, and what is compiled.

    The last counts what repeats once.
    """
    units = _units(program)
    native = sum(len(unit.lines) for unit in units if type(unit) is not Call)
    table = Table(program, blas(), {})
    once: dict[str, int] = {}
    for found, run in groupby(units, lambda unit: type(unit) is not Call):
        for piece in pieces([table.written(unit) for unit in run]) if found else ():
            first = [unit.unit for part in piece.parts for unit in part.first]
            text = _compiled(table.function("", piece))
            once.setdefault(text, sum(len(unit.lines) for unit in first))
    return native, sum(len(unit.lines) for unit in units), sum(once.values())


def _units(program: Program) -> list[Unit]:
    products = blas() is not None
    return with_loops(fusion.units_of(program, products), program, products)


class Table:
    """The addresses that native code works on, and the text of that code."""

    def __init__(
        self,
        program: Program,
        routines: tuple[dict[str, int], int] | None,
        places: dict[int, Any],
    ) -> None:
        self.program = program
        self.places = places
        self.routines, self.bits = routines or ({}, 64)
        self.slots: list[tuple[int, Any]] = []
        self.part = 0  # the number of a loop in the unit that is written
        self.moving: dict[int, int] = {}  # in a loop over time: see `Loop`
        self.turns = 1
        self.pointers: dict[str, str] = {}  # where what moves is in a turn
        self.label: Callable[[int], str] = lambda address: ""  # what people call memory
        self._own: dict[Any, tuple[int, Slot]] = {}  # of the unit that is written

    @property
    def loops(self) -> str:
        """The name of the loop that is written: see `Written`."""
        return f"§{self.part}"

    def slot(self, name: str, key: Any, reading: str, address: int, owner: Any) -> str:
        """The name, which begins with `name`, of what `reading` reads from a slot of the table."""
        if key not in self._own:
            label = "" if owner is None else self.label(address)
            slot = Slot(key, f"{name}«» = {reading}", address, owner, label)
            self._own[key] = len(self._own), slot
        return f"{name}«{self._own[key][0]}»"

    def written(self, unit: Unit) -> Written:
        """The text of `unit`."""
        self._own, self.part = {}, 0
        given = [tuple(vars(unit).values()), *(line.args for line in unit.lines)]
        empty = (a for a in arrays_in(given) if not a.size)  # of no place in memory
        self.alive = {id(owner_of(array)) for array in (*fusion.works_on(unit), *empty)}
        first, last = unit.lines[0], unit.lines[-1]
        where = sorted({line.where.rpartition("/")[2] for line in (first, last)})
        names = " ".join(line.name for line in unit.lines)
        what = dict.fromkeys(line.what for line in unit.lines if line.what)
        about = " ".join(", ".join([*what, *where]).split())
        out = last.out[0] if type(last.out) is tuple else last.out
        length = len(unit.body_units) if isinstance(unit, Loop) else 1
        lines = self.text(unit)
        slots = [slot for _, slot in self._own.values()]
        about = f"{size(out)}: {names}  # {about}"
        return Written(unit, about, lines, slots, length, _work(unit))

    def function(self, name: str, piece: Piece) -> str:
        """The text of a native function that does `piece`."""
        work = sum(unit.work for part in piece.parts for unit in part.units)
        release = ", nogil=True" if work >= RELEASE else ""
        return piece.text(name, f'"void(int64)", cache=CACHE, error_model="numpy"{release}')

    def text(self, unit: Unit) -> list[str]:
        """The text of what `unit` does."""
        return _BY_TYPE[type(unit)](self, unit)

    def memory(self, address: int, dtype: Any, owner: Any) -> str:
        """The name of the memory at `address`."""
        kind = "uint8" if dtype.kind == "b" else DTYPES[dtype]
        assert id(owner) in self.alive  # or its memory could be another's
        # The number of the slot is known when the function is written.
        key, reading, owned = (address, kind), f"pointer(table, «», {kind})", id(owner)
        if (place := self.places.get(owned)) is not None:
            address += place.ctypes.data - owner.ctypes.data
            owner = place
        name = self.slot("p", key, reading, address, owner)
        step = self.moving.get(owned, 0) // dtype.itemsize
        if not step:
            return name
        self.pointers[f"{name}_t"] = f"ahead({name}, t * {step})"
        return f"{name}_t"

    def of(self, array: Any) -> str:
        return self.memory(array.__array_interface__["data"][0], array.dtype, owner_of(array))

    def of_place(self, place: Place) -> str:
        return self.memory(place.address, place.dtype, owner_of(place.array))

    def address(self, name: str, value: int) -> str:
        """The name of an address that is known in this process alone."""
        return self.slot("a", name, "address(table, «»)", value, None)

    def routine(self, dtype: Any, name: str) -> str:
        """Where in the table a BLAS routine is."""
        name = ("s" if dtype == np.float32 else "d") + name
        assert name in ROUTINES
        return self.slot(name, name, "address(table, «»)", self.routines[name], None)

    # Loops over elements ------------------------------------------------------------------------

    def elements(self, unit: Elements) -> list[str]:
        writer = _Loop(self, unit)
        for element in unit.body:
            writer.element(element)
        return writer.text()

    # Sums and products --------------------------------------------------------------------------

    def reduction(self, unit: Reduction) -> list[str]:
        x, out = unit.x, unit.writes[0].array
        steps = [s // x.itemsize for s in x.strides]
        kept = [d for d in range(x.ndim) if d not in unit.axes and x.shape[d] != 1]
        gone = [d for d in unit.axes if x.shape[d] != 1]
        gone.sort(key=lambda d: -abs(steps[d]))
        places = [s for n, s in zip(out.shape, out.strides, strict=True) if n != 1]
        goals = dict(zip(kept, [s // out.itemsize for s in places], strict=True))
        kept.sort(key=lambda d: -abs(goals[d]))
        p, q, t = self.of(x), self.of(out), DTYPES[out.dtype]
        scope = f"'{self.loops} 0 2'", f"'{self.loops} 1 2'"
        index = _index({f"i{d}": steps[d] for d in range(x.ndim) if x.shape[d] != 1})
        goal = _index({f"i{d}": step for d, step in goals.items()})
        ranges = {d: f"for i{d} in range({x.shape[d]}):" for d in range(x.ndim)}
        # As in `elements`, what may overflow is unsigned.
        whole = "uint64" if out.dtype.kind in "iu" and unit.name in ("sum", "prod") else ""
        wide = whole or ("float64" if t == "float32" and unit.name == "sum" else t)

        def at(index: str) -> str:
            return f"{whole}(get({p}, {index}, {scope[0]}))"

        if kept and gone and unit.name == "sum" and abs(steps[kept[-1]]) < abs(steps[gone[-1]]):
            # Along memory: into the results, row by row.
            outer = [ranges[d] for d in kept if abs(steps[d]) > abs(steps[gone[0]])]
            near = [ranges[d] for d in kept if abs(steps[d]) <= abs(steps[gone[0]])]
            zero = _nested(near, [f"put({q}, {goal}, {t}(0), {scope[1]})"])
            more = f"{whole}(get({q}, {goal}, {scope[1]})) + {at(index)}"
            rows = [*(ranges[d] for d in gone), *near]
            add = _nested(rows, [f"put({q}, {goal}, {t}({more}), {scope[1]})"])
            return _nested(outer, zero + add)
        length = int(np.prod([x.shape[d] for d in gone], dtype=np.int64))
        first = _index({f"i{d}": steps[d] for d in kept})
        joined = all(steps[d] == steps[e] * x.shape[e] for d, e in pairwise(gone))
        if unit.name == "sum" and joined and gone and length >= 16:
            step = steps[gone[-1]]
            inner = _lanes(length, lambda r: at(_sum(first, _times(r, step))), whole or t)
        else:
            start = {"sum": f"{wide}(0)", "prod": f"{wide}(1)"}.get(unit.name, at(first))
            one = f"x = {at(index)}"
            step = {
                "sum": "a = a + x",
                "prod": f"a = {wide}(a * x)",
                "max": "a = x if x >= a or x != x else a",
                "min": "a = x if x <= a or x != x else a",
            }[unit.name]
            inner = [f"a = {start}", *_nested([ranges[d] for d in gone], [one, step])]
        return _nested([ranges[d] for d in kept], [*inner, f"put({q}, {goal}, {t}(a), {scope[1]})"])

    def product(self, unit: Product) -> list[str]:
        a, b, out = unit.a, unit.b, unit.out
        turns = [d for d in range(out.ndim - 2) if out.shape[d] != 1]
        loops = [f"for n{d} in range({out.shape[d]}):" for d in turns]
        starts = [
            _index({f"n{d}": array.strides[d] // array.itemsize for d in turns})
            for array in (a, b, out)
        ]
        inner = (
            self._loops_of(unit, starts)
            if fusion.small(unit, bool(self.routines))
            else self._blas_of(unit, starts)
        )
        return _nested(loops, inner)

    def _loops_of(self, unit: Product, starts: list[str]) -> list[str]:
        a, b, out = unit.a, unit.b, unit.out
        (m, k), n, t = a.shape[-2:], b.shape[-1], DTYPES[out.dtype]
        p, q, r = self.of(a), self.of(b), self.of(out)
        one, two, three = (f"'{self.loops} {number} 3'" for number in range(3))
        (ai, ap), (bp, bj), (oi, oj) = (
            [s // array.itemsize for s in array.strides[-2:]] for array in (a, b, out)
        )
        if m > 1 and n > 1 and not (bj == 1 and oj == 1) and ai == 1 and oi == 1:
            # The transposed product runs along memory.
            p, q, m, n, starts = q, p, n, m, [starts[1], starts[0], starts[2]]
            (ai, ap), (bp, bj), (oi, oj) = (bj, bp), (ap, ai), (oj, oi)
        x, y, z = starts
        if m == 1 and n == 1 and k >= 16:

            def term(r: str) -> str:
                left = f"get({p}, {_sum(x, _times(r, ap))}, {one})"
                return f"{left} * get({q}, {_sum(y, _times(r, bp))}, {two})"

            return [*_lanes(k, term, t), f"put({r}, {z}, {t}(a), {three})"]
        # A loop of one turn is none.
        i, j, v = ("i" if m > 1 else "0"), ("j" if n > 1 else "0"), ("k" if k > 1 else "0")
        rows = [f"for i in range({m}):"] * (m > 1)
        columns = [f"for j in range({n}):"] * (n > 1)
        deep = [f"for k in range({k}):"] * (k != 1)
        goal = _sum(z, *(_times(*s) for s in ((i, oi), (j, oj)) if s[0] != "0"))
        left = _sum(x, *(_times(*s) for s in ((i, ai), (v, ap)) if s[0] != "0"))
        right = _sum(y, *(_times(*s) for s in ((v, bp), (j, bj)) if s[0] != "0"))
        left, right = f"get({p}, {left}, {one})", f"get({q}, {right}, {two})"
        if k == 1:
            return _nested(rows + columns, [f"put({r}, {goal}, {left} * {right}, {three})"])
        if n > 1 and bj == 1 and oj == 1:
            zero = _nested(columns, [f"put({r}, {goal}, {t}(0), {three})"])
            more = f"get({r}, {goal}, {three}) + a * {right}"
            inner = _nested(columns, [f"put({r}, {goal}, {more}, {three})"])
            return _nested(rows, [*zero, *_nested(deep, [f"a = {left}", *inner])])
        dot = [f"a = {t}(0)", *_nested(deep, [f"a += {left} * {right}"])]
        return _nested(rows + columns, [*dot, f"put({r}, {goal}, a, {three})"])

    def _blas_of(self, unit: Product, starts: list[str]) -> list[str]:
        a, b, out = unit.a, unit.b, unit.out
        t, (m, k), n = DTYPES[out.dtype], a.shape[-2:], b.shape[-1]
        x, y, z = (
            self.of(array) if start == "0" else f"ahead({self.of(array)}, {start})"
            for array, start in zip((a, b, out), starts, strict=True)
        )
        (ta, lda), (tb, ldb), (tc, ldc) = (fusion.matrix(v) or (False, 0) for v in (a, b, out))
        size = out.itemsize
        one, zero = f"{t}(1)", f"{t}(0)"
        if n == 1:
            name = self.routine(out.dtype, "gemv")
            shape = f"{k}, {m}" if ta else f"{m}, {k}"
            steps = max(1, b.strides[-2] // size), max(1, out.strides[-2] // size)
            given = f"{_flag(ta)}, {shape}, {one}, {x}, {lda}, {y}, {steps[0]}"
            return [f"gemv({self.bits}, {name}, 101, {given}, {zero}, {z}, {steps[1]})"]
        if m == 1:
            name = self.routine(out.dtype, "gemv")
            shape = f"{n}, {k}" if tb else f"{k}, {n}"
            steps = max(1, a.strides[-1] // size), max(1, out.strides[-1] // size)
            given = f"{_flag(not tb)}, {shape}, {one}, {y}, {ldb}, {x}, {steps[0]}"
            return [f"gemv({self.bits}, {name}, 101, {given}, {zero}, {z}, {steps[1]})"]
        name = self.routine(out.dtype, "gemm")
        if tc:  # the transposed product
            given = (
                f"{_flag(not tb)}, {_flag(not ta)}, {n}, {m}, {k}, {one}, {y}, {ldb}, {x}, {lda}"
            )
        else:
            given = f"{_flag(ta)}, {_flag(tb)}, {m}, {n}, {k}, {one}, {x}, {lda}, {y}, {ldb}"
        return [f"gemm({self.bits}, {name}, 101, {given}, {zero}, {z}, {ldc})"]

    def scatter(self, unit: Scatter) -> list[str]:
        target, index, values = unit.target, unit.index, unit.values
        p, i, v = (self.of(place.array) for place in (target, index, values))
        n, *wide = target.array.shape
        (to, *along), (at,), (step, *beside) = (
            [s // place.array.itemsize for s in place.array.strides]
            for place in (target, index, values)
        )
        goal, term = (
            _sum(_times(*rows), *(_times("c", s) for s in more))
            for rows, more in ((("j", to), along), (("i", step), beside))
        )
        size = wide[0] if wide else 1
        loop, columns = [f"for i in range({len(index.array)}):"], [f"for c in range({size}):"]
        row, every = f"j = get({i}, i * {at}, '')", [f"for j in range({n}):", "if counts[j]:"]
        value = f"get({v}, {term}, '')"
        plain = _nested(columns, [f"put({p}, {goal}, get({p}, {goal}, '') + {value}, '')"])
        if not wide or len(index.array) <= FEW or target.dtype != np.float32:
            return _nested(loop, [row, *_checked("j", n), *plain])
        # As in `add_rows`: what is added to a row many times is added up in float64.
        found = [row, f"j = j + {n} if j < 0 else j"]
        cell = f"total[(counts[j] - 1) * {size} + c]"
        whole = f"put({p}, {goal}, float32(get({p}, {goal}, '') + {cell}), '')"
        count = [row, *_checked("j", n), "counts[j] += 1", "top = max(top, counts[j])"]
        many = [
            "top = 0",
            *_nested(every, ["top += 1", "counts[j] = top"]),
            f"total = zeros(top * {size}, float64)",
            *_nested(loop, [*found, *_nested(columns, [f"{cell} += {value}"])]),
            *_nested([*every, *columns], [whole]),
        ]
        lines = [f"counts, top = zeros({n}, int64), 0", *_nested(loop, count)]
        lines += [f"if top <= {FEW}:", *_indented(_nested(loop, [*found, *plain]))]
        return [*lines, "else:", *_indented(many)]


class _Loop:
    """The text of one loop over elements."""

    def __init__(self, table: Table, unit: Elements) -> None:
        self.table = table
        self.unit = unit
        self.before: list[str] = []
        self.body: list[str] = []
        self.values: dict[Any, str] = {}  # by key of a Place: its value now
        self.dims = fusion.loop_dims(unit)
        self.written = {place.key for place in unit.writes}
        self.scopes = _scopes(unit, table.moving, table.turns)
        self.last: dict[Any, tuple[Place, str]] = {}

    def text(self) -> list[str]:
        stores = []
        for key, (place, value) in self.last.items():
            if key in self.unit.stored:
                value = f"uint8({value})" if place.dtype.kind == "b" else value
                stores.append(f"put({self.at(place)}, {value}, {self.scope(place)})")
        loops = [f"for i{d} in range({n}):" for d, (n, _) in enumerate(self.dims)]
        return self.before + _nested(loops, self.body + stores)

    def scope(self, place: Place) -> str:
        count = max(self.scopes.values(), default=0) + 1
        loop = self.table.loops
        return f"'{loop} {self.scopes[place.key]} {count}'" if count > 1 else "''"

    def at(self, place: Place) -> str:
        memory = self.table.memory(place.address, place.dtype, owner_of(place.array))
        steps = {f"i{d}": place.strides[members[-1]] for d, (_, members) in enumerate(self.dims)}
        return f"{memory}, {_index(steps)}"

    def value(self, given: Any, dtype: Any) -> str:
        """The operand `given` as a value of `dtype`, in a name or a literal."""
        if type(given) is not Place:
            return literal(given, dtype)
        fixed = not any(given.strides)
        moves = self.table.moving.get(id(owner_of(given.array)), 0)
        kinds = self.table.program.kinds
        if fixed and not moves and kinds.get(id(owner_of(given.array))) == "constant":
            return literal(given.array.flat[0], dtype)
        hoisted = fixed and given.key not in self.written
        name = self.values.get(given.key)
        if name is None:
            text = f"get({self.at(given)}, {self.scope(given)})"
            name = self.name(text + " != 0" if given.dtype.kind == "b" else text, hoisted)
            self.values[given.key] = name
        if given.dtype == dtype:
            return name
        key = given.key, name, dtype
        if key not in self.values:
            self.values[key] = self.name(converted(name, given.dtype, dtype), hoisted)
        return self.values[key]

    def name(self, text: str, hoisted: bool = False) -> str:
        name = f"v{self.table.loops}_{len(self.before) + len(self.body)}"
        (self.before if hoisted else self.body).append(f"{name} = {text}")
        return name

    def element(self, element: Element) -> None:
        found, out = element.expression, element.out
        args = [self.value(a, t) for a, t in zip(element.args, found.taken, strict=True)]
        if element.source is not None:
            source = element.source
            index = self.name(args[0])
            self.body += _checked(index, source.array.size)
            memory = self.table.memory(source.address, source.dtype, owner_of(source.array))
            step = source.strides[0] if source.strides else 0
            text = f"get({memory}, {_times(index, step)}, {self.scope(source)})"
            text += " != 0" if source.dtype.kind == "b" else ""
        else:
            text = found.text.format(*args, t=DTYPES[found.taken[0]])
            if found.given.kind in "iu" and found.text != "{0}":
                text = f"{DTYPES[found.given]}({text})"  # numba computes with 64 bits
        value = text if text.isidentifier() else self.name(text)
        if found.given != out.dtype:
            value = self.name(converted(value, found.given, out.dtype))
        if element.mask is not None:
            mask = self.value(element.mask, np.dtype(bool))
            value = self.name(f"{value} if {mask} else {self.value(out, out.dtype)}")
        self.values[out.key] = value
        self.last[out.key] = out, value


def _scopes(unit: Elements, steps: dict[int, int], turns: int) -> dict[Any, int]:
    """Numbers for the Places of a loop: those that may have memory in common share one.

    `steps` is how far they move, by id of their owners, in the `turns` of a loop around it.
    """
    places = list({p.key: p for p in unit.reads + unit.writes}.values())
    numbers: dict[Any, int] = {}
    for place in places:
        # Numbered as they come, not by address: the same program has the same text in every
        # process, so that ranks and resumed runs find it compiled.
        numbers[place.key] = len(numbers)
        for other in places[: places.index(place)]:
            if _may_meet(place, other, steps, turns) and numbers[other.key] != numbers[place.key]:
                old, new = sorted((numbers[place.key], numbers[other.key]), reverse=True)
                numbers = {key: new if n == old else n for key, n in numbers.items()}
    order: dict[int, int] = {}
    return {key: order.setdefault(number, len(order)) for key, number in numbers.items()}


def _may_meet(one: Place, two: Place, steps: dict[int, int], turns: int) -> bool:
    """Whether they may have memory in common, in this turn or another."""
    step = steps.get(id(owner_of(one.array)), 0)
    if step and owner_of(one.array) is owner_of(two.array):
        return not one.beside(two, step, turns)
    return one.meets(two)


def _work(unit: Unit) -> int:
    if isinstance(unit, Product):
        return int(unit.out.size * unit.a.shape[-1])
    if isinstance(unit, Reduction):
        return int(unit.x.size)
    if isinstance(unit, Loop):
        return unit.count * sum(map(_work, unit.body_units))
    return int(np.prod(unit.shape, dtype=np.int64)) if isinstance(unit, Elements) else 1


def _index(steps: dict[str, int]) -> str:
    """The text of an index: names times steps."""
    return _sum(*(_times(name, step) for name, step in steps.items()))


def _sum(*parts: str) -> str:
    return " + ".join(part for part in parts if part != "0") or "0"


def _times(name: str, step: int) -> str:
    return "0" if not step else name if step == 1 else f"{name} * {step}"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _nested(loops: list[str], body: list[str]) -> list[str]:
    for loop in reversed(loops):
        body = [loop, *_indented(body)]
    return body


def _lanes(length: int, term: Callable[[str], str], kind: str) -> list[str]:
    """`a`, the sum of `length` terms, in several sums that a processor can make at once."""
    wide = "float64" if kind == "float32" else kind
    count = 1 if length < 64 else 8
    whole = length // count * count
    names = [f"a{j}" for j in range(count)] if count > 1 else ["a"]
    lines = [" = ".join(names) + f" = {wide}(0)", f"for r in range(0, {whole}, {count}):"]
    lines += [f"    {name} += {term(_sum('r', str(j)) if count == 1 else f'(r + {j})')}"
              for j, name in enumerate(names)]  # fmt: skip
    if count > 1:
        lines.append("a = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))")
    if length > whole:
        lines += [f"for r in range({whole}, {length}):", f"    a += {term('r')}"]
    return lines


def _checked(index: str, length: int) -> list[str]:
    return [
        f"if {index} < 0:",
        f"    {index} += {length}",
        f"if {index} < 0 or {index} >= {length}:",
        '    raise IndexError("an index of a compiled step is out of bounds")',
    ]


def _flag(transposed: bool) -> int:
    return 112 if transposed else 111


_BY_TYPE: dict[type, Callable[[Table, Any], list[str]]] = {
    Elements: Table.elements,
    Reduction: Table.reduction,
    Product: Table.product,
    Scatter: Table.scatter,
    Loop: text_of_loop,
    Applied: text_of_applied,
}
