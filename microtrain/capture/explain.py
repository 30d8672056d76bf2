"""A program for people: what its arrays and lines are called, what it costs at least and does cost.

Names are those of the model: `0.weight`, `0.weight.grad`, `0 Linear`.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..backend import LIBRARIES, NUMPY, address, alive, owner_of
from ..nn.module import MODULES, Module
from .guard import Fact
from .program import Line, Program, PythonCall, arrays_in, works_on
from .python_calls import Count
from .time_loops import Notes

ROUNDS = 15
CONVOLUTIONS = {"convolution", "convolution_input", "convolution_weight"}
SMALLEST, LARGEST = 1 << 15, 1 << 26  # bytes: what memory is measured with


def explain(program: Program, text: Any, reason: str, measure: bool) -> str:
    """Instructions, groups, memory, calls and bounds of one capture; see `Compiled.explain`."""
    lines = [line for line in program.lines if isinstance(line, Line)]
    native = len(text.native_code.starts) if text.native_code else 0
    hosts = [
        line.label
        for line in program.lines
        if isinstance(line, PythonCall) and not (native and line.bounds)
    ]
    counted = ", ".join(f"{n} {k}" for n, k in Counter(x.name for x in lines).most_common())
    owners = {id(owner_of(a)): owner_of(a) for line in lines for a in works_on(line)}
    results, apart, kept, shared = program.buffers
    memory = Counter({"made": shared})
    for number, owner in owners.items():
        if (kind := program.kinds[number]) != "made" or number in program.fixed:
            memory[kind] += owner.nbytes
    names = {id(array): f"{name} " for name, array in program.names}
    groups, xp = len(text.groups), program.xp
    cpu = xp.kind == "cpu"
    executor = ("native" if native else "numpy") if cpu else "cupy"
    runs = [kind for kind, _ in itertools.groupby(text.lines, lambda line: line[1])]
    stretches = "" if cpu else f"; {sum(runs)} stretches without Python"
    if not cpu and text.graphs:
        stretches += f", {len(text.graphs)} CUDA graphs of {sum(text.graphs)} calls"
    library = "NumPy" if cpu else "CuPy"
    calls = sum(line and not call.startswith("native") for call, line, _ in text.lines)
    flops = sum(map(flops_of, lines))
    rows = {
        "arguments": ", ".join(names.get(id(a), "") + size(a) for a in program.inputs) or "none",
        "executor": f"{executor}: {reason}",
        "instructions": f"{len(lines)}: {counted}",
        "fused groups": f"{groups} of {sum(text.groups)} instructions, the largest of "
        f"{max(text.groups)}" if groups else f"none, each instruction is a call of {library}",
        "calls": f"{native} of native code, {calls} of {library}; {len(hosts)} pieces of "
        f"bookkeeping in Python: {', '.join(hosts)}{stretches}",
        "buffers": f"{results} results of {_bytes(apart)} apart; {kept} of them are in memory and "
        f"share {_bytes(shared)}",
        "memory": ", ".join(f"{kind} {_bytes(n)}" for kind, n in sorted(memory.items())),
        "traffic": f"{_bytes(traffic(lines))} read and written by instruction, "
        f"{_bytes(text.traffic)} by group",
        "at least": f"{_bytes(text.traffic)} read and written, {flops:,} flops in products",
    }  # fmt: skip
    if measure:
        power = 1 << sum(memory.values()).bit_length()
        speed = bandwidth(xp, min(max(power, SMALLEST), LARGEST))
        dtypes = [arrays_in(line.out)[0].dtype for line in lines if flops_of(line)]
        dtype = max(dtypes, key=lambda d: d.itemsize).name if dtypes else "float32"
        rate = multiplication(xp, dtype)
        floor = max(text.traffic / speed, flops / rate)
        rows["floor"] = (
            f"{floor * 1e6:,.1f} us, the longer of memory at {speed / 1e9:.3g} GB/s and products "
            f"at {rate / 1e9:.3g} Gflop/s, as measured here"
        )
        took = _measure(program, text.function(bookkeeping=False), owners)
        rows["measured"] = f"{took * 1e6:,.1f} us for the instructions, without bookkeeping"
    return "\n".join(f"{title:<14}{row}" for title, row in rows.items())


def _measure(program: Program, run: Callable[[], None], owners: dict[int, Any]) -> float:
    """Seconds for one replay; what it writes is set back."""
    state = [owner for number, owner in owners.items() if program.kinds[number] == "state"]
    before, took = [owner.copy() for owner in state], []
    with NUMPY.module.errstate(all="ignore"):
        for _ in range(ROUNDS):
            start = time.perf_counter()
            try:
                run()
                program.xp.wait()
                took.append(time.perf_counter() - start)
            finally:
                for owner, values in zip(state, before, strict=True):
                    owner[...] = values
                program.xp.wait()
    return sorted(took)[ROUNDS // 2]


@functools.cache
def bandwidth(xp: Any, nbytes: int) -> float:
    """Bytes a second that a loop inside memory of this size reads and writes."""
    source, target = xp.ones(nbytes // 16), xp.ones(nbytes // 16)
    # No copy: that of the C library takes ten times as long between some addresses.
    return nbytes / _best(xp, lambda: xp.negative(source, out=target))


@functools.cache
def multiplication(xp: Any, dtype: str) -> float:
    """Flops a second of a product of matrices."""
    a, b, out = (xp.ones((384, 384), dtype) for _ in range(3))
    return 2 * 384**3 / _best(xp, lambda: xp.dot(a, b, out=out))


def _best(xp: Any, function: Callable[[], Any]) -> float:
    return min(timeit.repeat(lambda: (function(), xp.wait()), number=1, repeat=ROUNDS))


def flops_of(line: Line) -> int:
    """Of products of matrices, as they are written; what else there is is counted by its bytes.

    Attention and einsum are such products, of layers and of their gradients. A sum over rows may be
    one too (with ones). Of a convolution all windows are counted, also where they reach beyond the
    image.
    """
    if line.name == "loop":
        step, moving, fixed = line.args
        turns, notes = max(map(len, arrays_in(moving))), Notes(line)
        step(notes, tuple(None if array is None else array[0] for array in moving), fixed)
        return turns * sum(flops_of(each) for each in notes.lines if isinstance(each, Line))
    if line.name in CONVOLUTIONS:
        windows = line.out if line.name == "convolution" else line.args[0]
        weight = line.out if line.name == "convolution_weight" else line.args[1]
        return 2 * windows.size * math.prod(weight.shape[1:])
    if line.name not in ("dot", "matmul") or not line.args[1].ndim:
        return 0
    return 2 * math.prod(line.out.shape) * math.prod(line.args[0].shape[-1:])


def _bytes(n: float) -> str:
    power = min(max(math.floor(math.log10(n)) // 3, 0), 3) if n else 0
    return f"{n / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"


def size(array: Any) -> str:
    """The shape of `array`."""
    return "x".join(map(str, array.shape)) or "0-d"


def traffic(lines: Iterable[Line | PythonCall]) -> int:
    """The bytes that instructions read and write, one by one."""
    mine = (line for line in lines if isinstance(line, Line))
    return sum(array.nbytes for line in mine for array in works_on(line))


def varying(captures: Iterable[Sequence[Fact]]) -> str:
    """Which fact differs most among captures, oldest first: its last two values, the way out."""
    found: dict[str, list[Fact]] = {}
    for facts in captures:
        for fact in facts:
            found.setdefault(fact.label, []).append(fact)
    most = max(found.values(), key=lambda facts: len({fact.value for fact in facts}))
    last = most[-1]
    before = next((fact for fact in reversed(most) if fact.value != last.value), last)
    values = ", then ".join(_said(fact.value) for fact in (before, last))
    return f"{last.label} varies most: {values}. {last.hint}"


def _said(value: Any) -> str:
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], type):
        value = value[1]  # of a certain kind
    return value if isinstance(value, str) else repr(value)


# Names --------------------------------------------------------------------------------------------


def layers() -> dict[Module, str]:
    """The place and class of every module, in the largest module that it is a part of."""
    return {
        module: _printable(f"{name} {type(module).__name__}".strip())
        for root in _roots()
        for name, module in root.named_modules()
    }


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _roots() -> list[Module]:
    # Not wrappers, which may be half-made: what they wrap has the same names.
    own = Module.named_parameters
    modules = [one for one in alive(MODULES) if type(one).named_parameters is own]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


class Names:
    """Names for the arrays of `program`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[int, list[tuple[str, Any]]] = {}  # by address: what begins there
        used = {id(owner) for owner in program.memory} | {id(owner_of(a)) for a in program.inputs}
        for name, array in (*_of_modules(), *_of_optimizers(program), *program.names):
            if id(owner_of(array)) in used:
                self.known.setdefault(address(array), []).append((_printable(name), array))
        self.given: dict[str, Any] = {}

    def of(self, array: Any) -> str | None:
        """The name of `array`; None where it has none but that of the text."""
        owner = id(owner_of(array))
        kind = self.program.kinds.get(owner)
        if kind == "constant":
            return repr(array.item()) if array.size == 1 else None
        if kind == "made" and owner not in self.program.fixed:
            return None
        views = [_view(name, whole, array) for name, whole in self.known.get(address(array), [])]
        if not views:
            return None
        name = min(views, key=lambda view: (view.endswith("[...]"), len(view)))
        # Two models may have a parameter of the same name.
        place = address(array), array.shape, array.strides
        names = itertools.chain([name], (f"{name}#{n}" for n in itertools.count(2)))
        return next(one for one in names if self.given.setdefault(one, place) == place)

    def at(self, address: int) -> str:
        """What begins at an address."""
        return ", ".join(dict.fromkeys(name for name, _ in self.known.get(address, ())))


def _of_modules() -> Iterator[tuple[str, Any]]:
    for root in _roots():
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if type(tensor._array) in LIBRARIES:
                yield name, tensor._array
                if tensor._extra is not None and tensor._extra.slot is not None:
                    yield f"{name}.grad", tensor._extra.slot.array


def _of_optimizers(program: Program) -> Iterator[tuple[str, Any]]:
    """The stretches of flat memory that an update goes over."""
    for line in (line for line in program.lines if isinstance(line, Count)):
        for run in line.runs:
            optimizer, owner = line.optimizer, owner_of(run.param)
            flat = (buffer.data for buffer in optimizer.storage.buffers)
            whole = next(data for data in flat if owner_of(data) is owner)
            for block in run.blocks:
                param, names = block[0], ("parameters", "gradients", *run.states)
                start = (address(param) - address(whole)) // whole.itemsize
                part = "" if param.size == whole.size else f"[{start}:{start + param.size}]"
                yield from ((name + part, a) for name, a in zip(names, block, strict=True))
            yield from ((f"scratch[:{array.size}]", array) for array in optimizer.scratch(run))
            for name, array in run.constants.items():
                if type(array) in LIBRARIES:
                    yield f"{type(optimizer).__name__}.{name}", array


def _view(name: str, whole: Any, array: Any) -> str:
    """How `array`, which begins where `whole` does, comes from it."""
    for one, text in ((whole, name), (whole.T, f"{name}.T")):
        if (one.shape, one.strides) == (array.shape, array.strides):
            return text
    same = array.size == whole.size
    return f"{name}.reshape({', '.join(map(str, array.shape))})" if same else f"{name}[...]"
