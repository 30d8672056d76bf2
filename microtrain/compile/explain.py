"""What a Program consists of and what it must cost at least, for people to read."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from .passes import arrays_in
from .program import Host, Line, Program, owner_of


def explain(program: Program) -> str:
    """Instructions by name, memory, and the bytes and flops that no executor can avoid."""
    lines = [line for line in program.lines if type(line) is Line]
    hosts = [line for line in program.lines if type(line) is Host]
    owners: dict[int, Any] = {}
    for line in lines:
        for array in (*arrays_in(line.args), *arrays_in(line.out)):
            owner = owner_of(array)
            owners[id(owner)] = owner
    by_kind: Counter[str] = Counter()
    for number, owner in owners.items():
        by_kind[program.kinds[number]] += owner.nbytes
    moved = sum(a.nbytes for x in lines for a in (*arrays_in(x.args), *arrays_in(x.out)))
    flops = sum(_flops(line) for line in lines)
    names = Counter(line.name for line in lines)
    shown = ", ".join(f"{name} {n}" for name, n in names.most_common())
    memory = ", ".join(f"{kind} {_bytes(n)}" for kind, n in sorted(by_kind.items()))
    shapes = ", ".join("x".join(map(str, a.shape)) or "0-d" for a in program.inputs)
    return "\n".join(
        [
            f"arguments     {shapes or 'none'}",
            f"instructions  {len(lines)}: {shown}",
            f"bookkeeping   {len(hosts)} calls of Python: " + ", ".join(h.label for h in hosts),
            f"memory        {memory}",
            f"at least      {_bytes(moved)} read and written, {flops:,} flops in products",
        ]
    )


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
