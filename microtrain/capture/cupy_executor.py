"""The cupy executor: kernels for loops over elements, and calls of CuPy for all else.

The bits are those of the step that was captured. Nothing in it waits for the GPU or copies to the
host but what talks to other ranks; the random words of a step are copied to it at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import owner_of, uint8
from ..common.stack_frames import REPLAY, generated
from ..random import forward_numbers, forward_words
from . import cuda_graphs, fusion
from .cuda_kernels import THREADS, Kernel, options
from .numpy_executor import Text, in_one_piece
from .plan import move, moved
from .program import DRAWS, Line, Program, works_on


def executor(program: Program) -> tuple[Callable[[], None], Text]:
    """A function that replays `program`, and its text.

    Python comes at the beginning, and where a collective or the count of steps must. From the
    second replay on the stretches of kernels between are CUDA graphs.
    """
    draws = (line for line in program.lines if isinstance(line, Line) and line.name in DRAWS)
    fresh = [line for line in draws if line.attrs["fresh"] and line.out.size]
    words, text = Words(program, fresh) if fresh else None, _Text(program)
    program.lines[:] = [each for line in program.lines for each in in_one_piece(line, program)]
    units = fusion.units_of(program)
    text.places, text.traffic = fusion.share_memory(units, program), fusion.traffic(units)
    if words is not None:
        text.draws(words)
    for unit in units:
        if isinstance(unit, fusion.Elements):
            text.kernel(unit)
        elif isinstance(unit, fusion.Call) and unit.host is not None:
            text.host(unit.host)
        elif all(line is not unit.lines[0] for line in fresh):
            text.line(unit.lines[0])
    return text.function(), text


class _Text(Text):
    """The text of a function of Python that replays lines over CuPy."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.places: dict[int, Any] = {}  # where results are, by id of what owned their memory
        self.graphs: list[int] = []  # how many calls of CuPy each graph replaces

    def kernel(self, unit: fusion.Elements) -> None:
        """A loop over elements."""
        kernel = Kernel(self.program, unit)
        module = self.program.xp.module
        compiled = module.RawKernel(kernel.source, "fused", options(module))
        compiled.compile()  # now: an error in the middle of a replay would be one of half a step
        self.groups.append(len(unit.lines))
        self.native.append(kernel.source)
        name = self.named("kernel", compiled, kernel.source)
        arrays = [self.array(array) for array in moved(kernel.arrays, self.places)]
        given = "".join(f"{array}, " for array in arrays)
        names = " ".join(line.name for line in unit.lines)
        self.emit(f"{name}(({kernel.grid},), ({THREADS},), ({given}))", unit.lines[0], f"{names}: ")

    def draws(self, words: Words) -> None:
        """All random words that are counted from the beginning of the call."""
        send, draw = self.called("send", words.send), self.called("draw", self.program.draw)
        text, count = f"{send}({draw}[0])", len(words.lines)
        self.lines.append((text, False, words.lines[0]))
        self.said.append((text, f"the random words of {count} draws"))

    def reduction(self, name: str, x: str, given: list[str]) -> str:
        """A method of the array; those that only compare take no dtype."""
        axis, dtype, out, keep = given
        given = [axis, dtype, out, keep] if name in ("sum", "prod") else [axis, out, keep]
        return f"{x}.{name}({', '.join(given)})"

    def function(self, bookkeeping: bool = True) -> Any:
        """The function: once as the lines say, then with graphs in place of what they can hold."""
        replay, replays = super().function(bookkeeping), 0
        if not cuda_graphs.possible(self.program.xp.module):
            return replay

        def run() -> None:
            nonlocal replay, replays
            if replays == 1:
                replay = self.in_graphs(bookkeeping)
            replay()
            replays += replays < 2

        return run

    def in_graphs(self, bookkeeping: bool) -> Any:
        """The function with graphs in it."""
        lines, self.graphs = self.lines, []
        try:
            self.lines = []
            for held, group in itertools.groupby(lines, _held):
                stretch = [*group]
                self.lines += self.graph(stretch) if held else stretch
            return super().function(bookkeeping)
        finally:
            self.lines = lines

    def graph(self, lines: list[Any]) -> list[Any]:
        """`lines` as one that launches a graph; where there can be none, as those of halves."""
        if len(lines) < 2:
            return lines
        body = "".join(f"    {text}\n" for text, *_ in lines)
        stretch = generated(f"def stretch():\n{body}", "stretch", REPLAY, self.scope)
        try:
            graph = cuda_graphs.captured(self.program.xp.module, stretch)
        except Exception:  # of CuPy's, CUDA's: what a capture refuses runs as it did
            half = len(lines) // 2
            return self.graph(lines[:half]) + self.graph(lines[half:])
        self.graphs.append(len(lines))
        name = f"graph{len(self.graphs)}"
        self.called(name, graph)
        return [(f"{name}()", True, lines[0][2])]

    def taken(self, line: Line, args: str, out: str) -> str:
        """`take`; an index out of bounds wraps."""
        axis = line.attrs.get("axis", line.args[2] if len(line.args) > 2 else None)
        return f"{self.called('take', self.program.xp.take)}({args}, {axis}, {out})"


def _held(line: tuple[str, bool, Any]) -> bool:
    """Whether a graph may hold a line: one that copies nothing from the host."""
    _, instruction, origin = line
    if not instruction or origin.name in DRAWS or origin.name == "concatenate":
        return False  # CuPy copies the addresses of what it joins
    return all(type(array) is not np.ndarray for array in works_on(origin))


class Words:
    """The random words and numbers of a step: drawn on the host, copied to the GPU at once.

    Args:
        program: whose draws become views of one piece of memory.
        lines: the draws, which are counted from the beginning of the call.
    """

    def __init__(self, program: Program, lines: list[Line]) -> None:
        self.lines = lines
        sizes = [-(-line.out.nbytes // 8) * 8 for line in lines]  # words may be half as wide
        xp = program.xp
        self.memory = xp.empty(sum(sizes), uint8)
        program.fixed.add(id(self.memory))
        stops = itertools.accumulate(sizes)
        starts = [stop - n for n, stop in zip(sizes, stops, strict=True)]
        parts = [slice(n, n + line.out.nbytes) for n, line in zip(starts, lines, strict=True)]
        owners = [id(owner_of(line.out)) for line in lines]
        move(program, {key: self.memory[part] for key, part in zip(owners, parts, strict=True)})
        self.draws = [
            (forward_words if line.name == "random_words" else forward_numbers, *line.args, part)
            for line, part in zip(lines, parts, strict=True)
        ]
        # Two, so that one can be filled while the other is still on its way.
        self.buffers = [xp.pinned(self.memory.nbytes) for _ in range(2)]
        self.sent: list[Any] = [None, None]
        self.send_to = xp.send

    def send(self, draw: int) -> None:
        """Draw the words of a step whose draws begin at `draw`."""
        host, before = self.buffers[0], self.sent[0]
        if before is not None:
            before.synchronize()  # of the step before last
        for function, shape, number, *how, part in self.draws:
            host[part] = function(shape, draw + number, *how).ravel().view(uint8)
        self.buffers.reverse()
        self.sent = [self.sent[1], self.send_to(host, self.memory)]
