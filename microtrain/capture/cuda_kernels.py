"""Loops over elements as kernels in CUDA's C++: one thread an element, what CuPy's kernels do.

The lines for an element are those of native code, but for the expressions in which CuPy differs,
and nothing is contracted (no fused multiply-add across lines), so the bits are those of a kernel
for each.
"""

from __future__ import annotations

import math
from typing import Any

from .c import Body
from .elements import DTYPES
from .fusion import Elements, Place
from .program import Program

THREADS = 128  # of a block

HEAD = """\
typedef float float32; typedef double float64;
typedef signed char int8; typedef short int16; typedef int int32; typedef long long int64;
typedef unsigned char uint8; typedef unsigned int uint32;
#define NaN __longlong_as_double(0x7ff8000000000000LL)
#define Inf __longlong_as_double(0x7ff0000000000000LL)
"""


class Kernel(Body):
    """The kernel of a unit.

    Args:
        program: for what is constant in it.

    Attributes:
        source: its text; the function is `fused`.
        arrays: its arguments, from whose first elements on it reads and writes.
        grid: how many blocks there are.
    """

    wide = "(int64)"
    overloads = True

    def __init__(self, program: Program, unit: Elements) -> None:
        super().__init__(program, unit)
        self._arguments: dict[Any, Any] = {}
        self.write()
        self.arrays = [*self._arguments.values()]
        count = math.prod(n for n, _ in self.dims)
        self.grid = -(-count // THREADS)
        kind = "int32" if self.grid * THREADS < 1 << 31 else "int64"
        begin = [f"{kind} at = ({kind})blockIdx.x * {THREADS} + threadIdx.x;",
                 f"if (at >= {count}) return;"]  # fmt: skip
        for d, (n, _) in reversed([*enumerate(self.dims)]):
            begin.append(f"const {kind} i{d} = at" + (f" % {n}; at /= {n};" if d else ";"))
        given = ", ".join(
            f"{DTYPES[array.dtype]}* p{number}" for number, array in enumerate(self.arrays)
        )
        lines = [*begin, *(line for level in self.levels for line in level)]
        body = "".join(f"    {line}\n" for line in lines)
        self.source = f'{HEAD}extern "C" __global__ void fused({given}) {{\n{body}}}\n'

    def pointer(self, place: Place) -> str:
        """An argument."""
        key = place.address, place.dtype
        self._arguments.setdefault(key, place.array)
        return f"p{[*self._arguments].index(key)}"


def options(module: Any) -> tuple[str, ...]:
    """What the compiler is told: products and sums of different lines are rounded one by one."""
    return ("-ffp-contract=off",) if module.cuda.runtime.is_hip else ("--fmad=false",)
