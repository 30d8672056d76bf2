"""A captured program as text of C that stands alone: no Python, no NumPy, no memory of its own.

The writer of native code writes it (see `c.py`), but a function is given its memory as arguments,
one by one, and the program is a function that calls them in order. Nothing is left to NumPy: what
has no form here is refused by its name. One thread does all, products are loops or CBLAS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..backend import owner_of
from ..errors import CaptureError
from . import fusion
from .c import (
    Word,
    Writer,
    _along_memory,
    _for,
    _index,
    _matrices,
    _nested,
    _outer,
    _sum,
    _times,
    mathematics,
    native_units,
)  # fmt: skip
from .elements import DTYPES
from .fusion import Call, Product, Unit
from .program import DRAWS, Line, Program, PythonCall, arrays_in
from .python_calls import Clear, End, Mark, optimize
from .step import ATTEMPTS, Capture, Compiled
from .time_loops import Loop

HEAD = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef USE_CBLAS
#include <cblas.h>
#endif

typedef float float32; typedef double float64;
typedef int8_t int8; typedef int16_t int16; typedef int32_t int32; typedef int64_t int64;
typedef uint8_t uint8; typedef uint32_t uint32; typedef uint64_t uint64;
#define NaN NAN
#define Inf INFINITY
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wpass-failed"
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLLED _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__) && __GNUC__ >= 8
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define INDEPENDENT
#define UNROLLED
#endif
"""
AT_ONCE = 4  # terms of a product that are added to a row at once
BLAS_FROM = 4096  # multiplications
COLUMNS = 100  # of a line of numbers
NOTED = Clear, Mark, End  # what Python notes, and C need not know
OTHERS = re.compile(r"check |zero_grad|a gradient is dropped|\d+ random draws")


def recorded(
    name: str, function: Callable[..., Any], *args: Any, state: Any = (),
    before: Callable[[Program], None] = lambda program: None,
) -> Capture:  # fmt: skip
    """A capture of `function`, which is called until two calls in a row did the same.

    before: is given the program before it is rewritten.
    """
    step = _Recorded(function, state, "numpy", "numpy")
    step.name, step.before = name, before
    for _ in range(ATTEMPTS):
        step(*args)
        if step.found is not None:
            break
    assert step.found is not None  # or the last call has raised
    return step.found


class _Recorded(Compiled):
    """Keeps its capture as it was recorded: an executor lets results share memory."""

    found: Capture | None = None
    before: Any = None

    def executed(self, capture: Capture) -> Any:
        self.before(capture.program)
        optimize(capture.program)
        self.found = capture
        return lambda: None


class _Base(NamedTuple):
    """Memory that is named in the text: by a pointer to numbers of one kind, or to bytes."""

    text: str
    kind: str
    start: int


@dataclass
class Standalone:
    """What a program is as C.

    Attributes:
        functions: the texts of what it calls.
        calls: the lines that call them.
        constants: of each array its name, and the numbers in it, which are those of the model.
        workspace: bytes.
    """

    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    workspace: int = 0

    @property
    def source(self) -> str:
        """The text in front of the function that calls."""
        return "\n".join([*mathematics(self.functions), *self.functions])


def standalone(
    program: Program,
    hosts: Callable[[PythonCall], list[str] | None] = lambda host: None,
    state: Callable[[Any], int] | None = None,
) -> Standalone:
    """The text of `program`.

    Its arguments are `in0`, `in1` ..., what it returns is written to `out0`, `out1` ...; `work` is
    its workspace, `kept` its state.

    Args:
        hosts: what bookkeeping is in C, where it is something. Of checks those of indices are.
        state: where memory that outlives a call is among the bytes of that, by its owner. None: it
            is only read, and a constant.

    Raises CaptureError for what has no form.
    """
    program.alone = True
    found, texts, fixed = Standalone(), dict[int, list[str]](), program.fixed
    lines: list[Line | PythonCall] = []
    for line in program.lines:
        if not isinstance(line, PythonCall) or line.bounds:
            lines.append(line)
        elif said := hosts(line):
            lines.append(PythonCall(line.label, line.function, line.where))  # which nothing passes
            texts[id(lines[-1])] = said
        elif type(line) not in NOTED and not OTHERS.match(line.label):
            raise CaptureError(f"{line.where}: {line.label} has no form in C")
    program.lines[:] = lines
    fixed.clear()
    bases = {id(owner_of(a)): _Base(f"in{n}", _kind(a.dtype), a.ctypes.data)
             for n, a in enumerate(program.inputs)}  # fmt: skip
    for n, array in enumerate(program.outputs):
        # Which nothing but this writes, and no replay reads.
        made = program.make(array.shape, array.dtype, "output")
        where = getattr(program.lines[-1], "where", "") if program.lines else ""
        program.lines.append(Line("copyto", (made, array), made, {}, where, f"output {n}"))
        bases[id(made)] = _Base(f"out{n}", _kind(made.dtype), made.ctypes.data)
    program.outputs = []
    units = native_units(program)
    places = fusion.share_memory(units, program)
    found.workspace = program.buffers[3]
    writer = _Writer(program, places, bases, units, found.constants, state)
    for unit in units:
        if type(unit) is Call and unit.host is not None:
            found.calls += texts[id(unit.host)]
        else:
            found.calls += writer.calls(unit)
    found.functions = writer.functions
    return found


class _Writer(Writer):
    """Functions that are given their memory as arguments."""

    def __init__(
        self, program: Program, places: dict[int, Any], bases: dict[int, _Base],
        units: list[Unit], constants: dict[str, Any], state: Callable[[Any], int] | None,
    ) -> None:  # fmt: skip
        super().__init__(program, places)
        self.start = min((place.ctypes.data for place in places.values()), default=0)
        for place in [*places.values()][:1]:  # as instructions know it by now
            bases[id(owner_of(place))] = _Base("work", "", self.start)
        self.bases, self.constants, self.state = bases, constants, state
        self._turned: dict[Any, Any] = {}  # matrices of constants, by where they were
        self._used: list[tuple[Word, str]] = []  # of the function: its arguments
        self._ends: dict[int, tuple[int, int]] = {}  # by owner: the bytes that are read
        for unit in units:
            for place in fusion.touches(unit):
                ends = self._ends.get(id(owner_of(place.array)), (place.low, place.high))
                both = min(ends[0], place.low), max(ends[1], place.high)
                self._ends[id(owner_of(place.array))] = both

    def calls(self, unit: Unit) -> list[str]:
        """The lines that do a unit."""
        if isinstance(unit, Loop):
            self.moving = unit.steps
            inner = [line for part in unit.body_units for line in self.calls(part)]
            self.moving = {}
            return _nested([_for("turn", unit.count)], inner)
        made = self.written(unit)
        args = ", ".join(self._argument(word, kind) for word, kind in self._used)
        call = f"{made.code}({args})"
        fails = "return 1;" in self.functions[int(made.code[1:])]
        about = re.sub(r", [^,/]*\.py:\d+", "", made.about)  # where: of no use there
        return [f"/* {comment(about)} */", f"if ({call}) return 1;" if fails else f"{call};"]

    def function(self, lines: list[str]) -> str:
        """The name of the function that these lines are."""
        text = "\n".join(lines)
        words = [(n, word, kind) for n, ((_, kind), word) in enumerate(self._words.items())
                 if re.search(rf"\bp{n}\b", text)]  # fmt: skip
        self._used = [(word, kind) for _, word, kind in words]
        head = ", ".join(f"{kind} *p{n}" for n, _, kind in words)
        fails = "return 1;" in text
        head = f"{'int' if fails else 'void'} {{}}({head or 'void'})"
        return self.named(head, [*lines, *["return 0;"] * fails])

    def loop(self, name: str, count: int, work: int) -> str:
        """The outermost loop of a unit."""
        return _for(name, count)

    def _word(self, address: int, owner: Any) -> Word:
        return Word(address, owner, self.moving.get(id(owner), 0))

    def _argument(self, word: Word, kind: str) -> str:
        """A pointer to the memory of a word."""
        base, plain = self._base(word.owner), kind.removeprefix("const ")
        far = word.value - base.start
        if base.kind == plain and not far % (size := np.dtype(plain).itemsize):
            return _sum(base.text, str(far // size), _times("turn", word.step // size))
        text = base.text if not base.kind else f"(const char *){base.text}"
        return f"({kind} *)({_sum(text, str(far), _times('turn', word.step))})"

    def _base(self, owner: Any) -> _Base:
        found = self.bases.get(id(owner))
        if found is None:
            place, kind = self.places.get(id(owner)), self.program.kinds.get(id(owner))
            if place is not None:
                found = _Base("work", "", owner.ctypes.data - place.ctypes.data + self.start)
            elif kind == "state" and self.state is not None:
                found = _Base("kept", "", owner.ctypes.data - self.state(owner))
            else:
                if id(owner) in self._stored:
                    raise CaptureError(
                        "it writes into its own state, a buffer or a parameter, which is a "
                        "constant in C"
                    )
                low, high = self._ends[id(owner)]
                size = owner.dtype.itemsize
                found = _Base(f"c{len(self.constants)}", _kind(owner.dtype), low)
                offset = (low - owner.ctypes.data) // size
                plain = as_strided(owner, (owner.size,), (size,))  # as it lies in memory
                self.constants[found.text] = plain[offset : offset + (high - low) // size]
            self.bases[id(owner)] = found
        return found

    # Products -------------------------------------------------------------------------------------

    def product(self, unit: Product) -> tuple[str, list[str]]:
        """A matrix product; a matrix of constants is kept with its rows along memory."""
        b = unit.b
        steps = [s // b.itemsize for s in b.strides[-2:]]
        plain = b.ndim == 2 and b.shape[1] > 1 and steps[1] != 1 and unit.out.flags.c_contiguous
        if plain and self._is_constant(owner_of(b)):
            made = self._turned.setdefault((b.ctypes.data, b.shape), np.ascontiguousarray(b))
            self.program.kinds[id(made)] = "constant"
            self._alive.add(id(made))
            self._ends[id(made)] = made.ctypes.data, made.ctypes.data + made.nbytes
            unit = replace(unit, b=made)
        return super().product(unit)

    def _is_constant(self, owner: Any) -> bool:
        kind = self.program.kinds.get(id(owner))
        return kind == "constant" or (kind == "state" and self.state is None)

    def _product_of(self, unit: Product) -> tuple[str, list[str]]:
        a, b, out = arrays = _along_memory(unit.a, unit.b, unit.out)
        (m, k), n = a.shape[-2:], b.shape[-1]
        lines, found = self.sums(a, b, out, 8, at_once=AT_ONCE), [*map(fusion.matrix, arrays)]
        if m * n * k >= BLAS_FROM and all(found) and found[2] and not found[2][0]:
            turned = [f"Cblas{'Trans' if one and one[0] else 'NoTrans'}" for one in found[:2]]
            places = [
                f"{_sum(self.of(v), _outer(v))}, {one and one[1]}"
                for v, one in zip(arrays, found, strict=True)
            ]
            call = (
                f"cblas_{'s' if out.itemsize == 4 else 'd'}gemm(CblasRowMajor, "
                f"{', '.join(turned)}, {m}, {n}, {k}, 1, {places[0]}, {places[1]}, 0, {places[2]});"
            )
            lines = [
                "#ifdef USE_CBLAS",
                *_nested(_matrices(out), [call]),
                "#else",
                *lines,
                "#endif",
            ]
        return "", lines

    # What NumPy does in a step --------------------------------------------------------------------

    def call(self, unit: Call) -> tuple[str, list[str]]:
        line = unit.lines[0]
        ordered = line.name in ("argmax", "argmin", "cumsum", "cumprod")
        self._alive |= {id(owner_of(a)) for a in arrays_in((line.args, line.out))}
        self._stored = {id(owner_of(a)) for a in arrays_in(line.out)}
        known = all(a.dtype in DTYPES for a in arrays_in((line.args, line.out)))
        lines = self._along(line) if ordered and known else None
        if lines is None:
            what = "random numbers have" if line.name in DRAWS else f"{line.name} of NumPy has"
            of = f" ({line.what})" if line.what else ""
            raise CaptureError(f"{line.where}: {what} no form in C{of}")
        return "", lines

    def _along(self, line: Line) -> list[str] | None:
        """What goes along an axis, one by one."""
        x, out = line.args[0], line.out
        axis = line.attrs.get("axis", line.args[1] if len(line.args) > 1 else None)
        if axis is None:
            if not x.flags.c_contiguous:
                return None
            x, axis = x.reshape(-1), 0
        axis, p, q = axis % x.ndim, self.of(x), self.of(out)
        kept = [d for d in range(x.ndim) if d != axis]
        keeps = out.ndim == x.ndim
        goals = {d: _step(out, d if keeps else n) for n, d in enumerate(kept)}
        start = _index({f"i{d}": _step(x, d) for d in kept})
        goal = _index({f"i{d}": step for d, step in goals.items()})
        value = f"{p}[{_sum(start, _times('r', _step(x, axis)))}]"
        loops, along = [_for(f"i{d}", x.shape[d]) for d in kept], _for("r", x.shape[axis])
        t = DTYPES[out.dtype if line.name.startswith("cum") else x.dtype]
        if line.name.startswith("cum"):
            how = "+=" if line.name == "cumsum" else "*="
            store = f"{q}[{_sum(goal, _times('r', _step(out, axis)))}] = a;"
            each = [f"a {how} {value};", store]
            return _nested(loops, [f"{t} a = {int(how == '*=')};", *_nested([along], each)])
        better = f"v {'>' if line.name == 'argmax' else '<'} a"
        if x.dtype.kind == "f":  # the first that is not a number is taken
            better = f"a == a && ({better} || v != v)"
        each = [f"const {t} v = {value};", f"if ({better}) {{ a = v; best = r; }}"]
        head = ["int64 best = 0;", f"{t} a = {p}[{start}];"]
        return _nested(loops, [*head, *_nested([along], each), f"{q}[{goal}] = best;"])


def _step(array: Any, dim: int) -> int:
    return int(array.strides[dim] // array.itemsize) if array.ndim else 0


def _kind(dtype: Any) -> str:
    """The C type of numbers in memory; CaptureError for one that C has not."""
    if dtype not in DTYPES:
        raise CaptureError(f"numbers of {dtype} have no form in C")
    return "uint8" if dtype.kind == "b" else DTYPES[dtype]


# Text ---------------------------------------------------------------------------------------------


def comment(text: str) -> str:
    """`text` as it may be in a comment."""
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    return re.sub(r"\?(?=\?)", "? ", plain).replace("*/", "* /").replace("/*", "/ *")


def string(text: str) -> str:
    """`text` as a literal, of its bytes in UTF-8."""
    plain = {ord(c): c for c in map(chr, range(32, 127)) if c not in '"\\?'}
    return '"' + "".join(plain.get(byte) or rf"\{byte:03o}" for byte in text.encode()) + '"'


def numbers(array: Any) -> list[str]:
    """The elements of an array as literals of C, each of the bits that it has."""
    flat = array.ravel()
    if flat.dtype.kind != "f":
        least = np.iinfo(np.int64).min
        long = flat.dtype.itemsize == 8
        return [f"(-{-(least + 1)}LL - 1)" if n == least and long else f"{n}{'LL' * long}"
                for n in flat.astype(np.int64).tolist()]  # fmt: skip
    single = flat.dtype.itemsize == 4
    special = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}
    texts = [f"{n:.{9 if single else 17}g}" for n in flat.tolist()]
    return [special.get(text) or _point(text, single) for text in texts]


def _point(text: str, single: bool) -> str:
    return f"{text if '.' in text or 'e' in text else f'{text}.0'}{'f' * single}"


def array_of(name: str, kind: str, values: list[str]) -> str:
    """A definition of an array of constants."""
    lines, line = [], "   "
    for value in values:
        if len(line) + len(value) + 2 > COLUMNS:
            lines.append(line)
            line = "   "
        line += f" {value},"
    body = "\n".join([*lines, line])
    return f"static const {kind} {name}[{len(values)}] = {{\n{body}\n}};\n"
