"""What a Program consists of, what it must cost at least and what it does cost, for people."""

from __future__ import annotations

import functools
import itertools
import math
import time
import timeit
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..backend import NUMPY, owner_of
from .numpy_executor import Text, size, traffic
from .program import Host, Line, Program, works_on

ROUNDS = 15
SMALLEST, LARGEST = 1 << 15, 1 << 26  # bytes: what memory is measured with


def explain(program: Program, text: Text, reason: str, measure: bool) -> str:
    """Instructions, groups, memory, calls and bounds of one capture; see `Compiled.explain`."""
    lines = [line for line in program.lines if isinstance(line, Line)]
    hosts = [line.label for line in program.lines if isinstance(line, Host)]
    owners = {id(owner_of(a)): owner_of(a) for line in lines for a in works_on(line)}
    memory: Counter[str] = Counter()
    for number, owner in owners.items():
        memory[program.kinds[number]] += owner.nbytes
    results, apart, kept, shared = program.buffers
    fixed = sum(owner.nbytes for number, owner in owners.items() if number in program.fixed)
    memory["made"] = shared + fixed
    names = {id(array): name for name, array in program.names}
    arguments = [f"{names.get(id(a), '')} {size(a)}".strip() for a in program.inputs]
    counted = ", ".join(f"{n} {k}" for n, k in Counter(x.name for x in lines).most_common())
    native, groups, xp = text.native_calls, len(text.groups), program.xp
    executor, library, stretches = ("numba" if native else "numpy"), "NumPy", ""
    if xp.kind != "cpu":
        executor, library = "cupy", "CuPy"
        runs = [kind for kind, _ in itertools.groupby(text.lines, lambda line: line[1])]
        stretches = f"; {sum(runs)} stretches without Python"
    calls = sum(instruction for _, instruction, _ in text.lines) - native
    flops = sum(_flops(line) for line in lines)
    rows = {
        "arguments": ", ".join(arguments) or "none",
        "executor": f"{executor}: {reason}",
        "instructions": f"{len(lines)}: {counted}",
        "fused groups": f"{groups} of {sum(text.groups)} instructions, the largest of "
        f"{max(text.groups)}" if groups else f"none, each instruction is a call of {library}",
        "calls": f"{native} of native code, {calls} of {library}; {len(hosts)} pieces of "
        f"bookkeeping in Python: {', '.join(hosts)}{stretches}",
        "buffers": f"{results} results of {_bytes(apart)} apart; {kept} of them are in memory and "
        f"share {_bytes(shared)}",
        "memory": ", ".join(f"{kind} {_bytes(n)}" for kind, n in sorted(memory.items())),
        "traffic": f"{_bytes(traffic(program))} read and written by instruction, "
        f"{_bytes(text.traffic)} by group",
        "at least": f"{_bytes(text.traffic)} read and written, {flops:,} flops in products",
    }  # fmt: skip
    if measure:
        power = 1 << sum(memory.values()).bit_length()
        speed = bandwidth(xp, min(max(power, SMALLEST), LARGEST))
        dtypes = [line.out.dtype for line in lines if _flops(line)]
        dtype = max(dtypes, key=lambda d: d.itemsize).name if dtypes else "float32"
        rate = multiplication(xp, dtype)
        floor = max(text.traffic / speed, flops / rate)
        rows["floor"] = (
            f"{floor * 1e6:,.1f} us, the longer of memory at {speed / 1e9:.3g} GB/s and products "
            f"at {rate / 1e9:.3g} Gflop/s, as measured here"
        )
        took = _measure(program, text.function(bookkeeping=False))
        rows["measured"] = f"{took * 1e6:,.1f} us for the instructions, without bookkeeping"
    return "\n".join(f"{title:<14}{row}" for title, row in rows.items())


def _measure(program: Program, run: Callable[[], None]) -> float:
    """Seconds for one replay; what it writes is set back."""
    written = {
        id(owner_of(array)): owner_of(array)
        for line in program.lines
        for array in works_on(line)
        if program.kinds[id(owner_of(array))] == "state"
    }
    before = [(owner, owner.copy()) for owner in written.values()]
    took = []
    try:
        with NUMPY.module.errstate(all="ignore"):
            for _ in range(ROUNDS):
                start = time.perf_counter()
                run()
                program.xp.wait()
                took.append(time.perf_counter() - start)
                for owner, values in before:
                    owner[...] = values
                program.xp.wait()
    finally:
        for owner, values in before:
            owner[...] = values
    return sorted(took)[ROUNDS // 2]


@functools.cache
def bandwidth(xp: Any, nbytes: int) -> float:
    """Bytes a second that copying inside memory of this size reads and writes."""
    source, target = xp.ones(nbytes // 16), xp.ones(nbytes // 16)
    return nbytes / _best(xp, lambda: xp.copyto(target, source))


@functools.cache
def multiplication(xp: Any, dtype: str) -> float:
    """Flops a second of a product of matrices."""
    a, b, out = (xp.ones((384, 384), dtype) for _ in range(3))
    return 2 * 384**3 / _best(xp, lambda: xp.dot(a, b, out=out))


def _best(xp: Any, function: Callable[[], Any]) -> float:
    def done() -> None:
        function()
        xp.wait()

    return min(timeit.repeat(done, number=1, repeat=ROUNDS))


def _flops(line: Line) -> int:
    """Of a product of matrices; what else there is is counted by its bytes."""
    if line.name not in ("dot", "matmul"):
        return 0
    left, right = line.args[:2]
    return 2 * math.prod(line.out.shape) * (left.shape[-1] if left.ndim else 1) if right.ndim else 0


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"
