"""Loops over elements as kernels in CUDA's C++: one thread an element, what CuPy's kernels do.

Each line is the expression that CuPy has for it, and nothing is contracted (no fused multiply-add
across lines), so the bits are those of a kernel for each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import owner_of
from .elements import DTYPES, converted
from .fusion import Element, Elements, Place, loop_dims
from .program import Program

THREADS = 128  # of a block
NAN = "__longlong_as_double(0x7ff8000000000000LL)"

HEAD = """\
typedef float float32; typedef double float64;
typedef signed char int8; typedef short int16; typedef int int32; typedef long long int64;
typedef unsigned char uint8; typedef unsigned int uint32;
"""


class Kernel:
    """The kernel of a unit.

    Args:
        program: for what is constant in it.

    Attributes:
        source: its text; the function is `fused`.
        arrays: its arguments, from whose first elements on it reads and writes.
        grid: how many blocks there are.
    """

    def __init__(self, program: Program, unit: Elements) -> None:
        self.program, self.unit = program, unit
        self.arrays: list[Any] = []
        self._pointers: dict[Any, int] = {}
        self._lines: list[str] = []
        self._values: dict[Any, str] = {}
        self._dims = loop_dims(unit)
        last: dict[Any, tuple[Place, str]] = {}
        for element in unit.body:
            last[element.out.key] = element.out, self._element(element)
        for key, (place, value) in last.items():
            if key in unit.stored:
                self._lines.append(f"{self._at(place)} = {value};")
        count = math.prod(n for n, _ in self._dims)
        self.grid = -(-count // THREADS)
        kind = "int32" if self.grid * THREADS < 1 << 31 else "int64"
        begin = [f"{kind} at = {kind}(blockIdx.x) * {THREADS} + threadIdx.x;",
                 f"if (at >= {count}) return;"]  # fmt: skip
        for d, (n, _) in reversed([*enumerate(self._dims)]):
            begin.append(f"const {kind} i{d} = at" + (f" % {n}; at /= {n};" if d else ";"))
        given = ", ".join(
            f"{DTYPES[array.dtype]}* p{number}" for number, array in enumerate(self.arrays)
        )
        body = "".join(f"    {line}\n" for line in begin + self._lines)
        self.source = f'{HEAD}extern "C" __global__ void fused({given}) {{\n{body}}}\n'

    def _pointer(self, place: Place) -> str:
        key = place.address, place.dtype
        if key not in self._pointers:
            self._pointers[key] = len(self.arrays)
            self.arrays.append(place.array)
        return f"p{self._pointers[key]}"

    def _at(self, place: Place) -> str:
        steps = [
            f"int64(i{d}) * {step}"
            for d, (_, members) in enumerate(self._dims)
            if (step := place.strides[members[-1]] if place.strides else 0)
        ]
        return f"{self._pointer(place)}[{' + '.join(steps) or '0'}]"

    def _name(self, dtype: Any, text: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"const {DTYPES[dtype]} {name} = {text};")
        return name

    def _value(self, given: Any, dtype: Any) -> str:
        """The operand `given` as a value of `dtype`."""
        if type(given) is not Place:
            return literal(given, dtype)
        known = self.program.kinds.get(id(owner_of(given.array))) == "constant"
        if known and not any(given.strides):
            return literal(given.array[(0,) * given.array.ndim].item(), dtype)
        name = self._values.get(given.key)
        if name is None:
            name = self._values[given.key] = self._name(given.dtype, self._at(given))
        return name if given.dtype == dtype else f"({converted(name, given.dtype, dtype)})"

    def _element(self, element: Element) -> str:
        found, out = element.expression, element.out
        args = [self._value(a, t) for a, t in zip(element.args, found.taken, strict=True)]
        if element.source is not None:  # an index out of bounds wraps, as in CuPy's `take`
            source = element.source
            size, step = source.array.size, source.strides[0] if source.strides else 0
            index = self._name(np.dtype(np.int64), f"{args[0]} % {size}")
            text = f"{self._pointer(source)}[({index} < 0 ? {index} + {size} : {index}) * {step}]"
        else:
            kind = DTYPES[found.taken[0]]
            power = "powf" if kind == "float32" else "pow"
            text = found.text.format(*args, t=kind, pow=power, nan=NAN)
        value = self._name(found.given, text)
        if found.given != out.dtype:
            value = self._name(out.dtype, converted(value, found.given, out.dtype))
        if element.mask is not None:
            mask = self._value(element.mask, np.dtype(bool))
            value = self._name(out.dtype, f"{mask} ? {value} : {self._value(out, out.dtype)}")
        self._values[out.key] = value
        return value


def options(module: Any) -> tuple[str, ...]:
    """What the compiler is told: products and sums of different lines are rounded one by one."""
    return ("-ffp-contract=off",) if module.cuda.runtime.is_hip else ("--fmad=false",)


def literal(value: Any, dtype: Any) -> str:
    """A number as a constant of `dtype`."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        return f"{DTYPES[dtype]}({int(value)}LL)"
    number = np.float64(dtype.type(value))
    if np.isfinite(number):
        return f"{DTYPES[dtype]}({float(number)!r})"
    return f"{DTYPES[dtype]}(__longlong_as_double({int(number.view(np.int64))}LL))"
