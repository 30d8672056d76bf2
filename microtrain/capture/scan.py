"""A captured step for many batches in one native call: no Python between them.

A replay is a few native functions and bookkeeping in Python. Here native code does the functions
for batch after batch, with a table of addresses in which the arguments move on, and the bookkeeping
of all of them is done once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend import is_plain, owner_of
from ..common.stack_frames import ENTRY, generated
from ..optim.optimizer import Run
from ..random import STREAM
from . import c_compiler
from .arguments_and_results import Output
from .fusion import Place, is_native
from .numpy_executor import Text
from .program import FINITE, Program, PythonCall, arrays_in, may_refuse
from .python_calls import Clear, Count, End, Mark, WholePass
from .step import COUNTED, GRADIENTS, Capture

MOST = 64  # tables of an optimizer's numbers that are kept: one for each learning rate


class Scan:
    """Native code for many steps of one capture.

    Args:
        capture: what one step does.
        loss: where its program writes the loss, and behind it what that is a mean over.
    """

    def __init__(self, capture: Capture, loss: Sequence[Any]) -> None:
        program, native = capture.program, capture.text.native_code
        self._table = native.table.copy()
        self._sequences = native.sequences(self._table)
        self._counts = [line for line in program.lines if type(line) is Count]
        self._draws, self._draw = native.draws, program.draw
        self._ends = sum(type(line) is End for line in program.lines)
        text = Text(program)
        for line in program.lines:
            if isinstance(line, PythonCall) and not line.bounds:
                text.host(line, "times")
        body = "".join(f"    {line}\n" for line, *_ in text.lines) or "    pass\n"
        self._note = generated(f"def note(times):\n{body}", "note", ENTRY, text.scope)
        self._loss = loss
        self._known: dict[Any, Any] = {}
        self._locks = capture.locks
        # What Python, which does a step again that was refused, is to find as before it.
        self._early = [(p, np.empty(p.high - p.low, np.uint8)) for p in _early(program)]
        # Which words of the table are in which argument, and how far from its beginning.
        parts, at = enumerate(map(native.parts_of, program.inputs)), self._table.ctypes.data
        self._moves = [(at + 8 * word, which, by) for which, each in parts for word, by in each]
        # Asked for once: an address takes Python a microsecond.
        self._places = [draw.place.ctypes.data for draw in self._draws]
        self._losses = [(one.dtype, one.ctypes.data, one.itemsize) for one in loss]
        self._keep = [(kept.ctypes.data, 0, p.low, 0, kept.nbytes) for p, kept in self._early]

    def __call__(
        self,
        stacks: Sequence[Any],
        place: tuple[int, int, int],
        set_options: Callable[[int], None] | None = None,
    ) -> Any:
        """Take a step for each element of `stacks`, up to the first whose loss is not finite.

        Args:
            place: the epoch of the first of these batches, its number, and how many an epoch has.
            set_options: sets those of the optimizers for each of these steps, numbered from 0.

        Returns the losses of the steps that were taken, and what they are means over where that is
        an array of the program. One that a check has refused, such as of an index, and those behind
        it were not taken: to do it alone says why.
        """
        steps, (_, loss, size) = len(stacks[0]), self._losses[0]
        found = [np.empty(steps, dtype) for dtype, *_ in self._losses]
        starts = [(stack.ctypes.data, stack.strides[0]) for stack in stacks]
        moves = [(word, starts[which][0] + by, starts[which][1]) for word, which, by in self._moves]
        before, tables = [*self._keep], []
        for host in self._counts:
            if host.optimizer.by_step or set_options:
                tables.append((host, *self._table_of(host, steps, set_options)))
                before += tables[-1][1]
        drawn = self._drawn(steps, *place)
        for to, table in zip(self._places, drawn, strict=True):
            before.append((to, 0, table.ctypes.data, 32, 32))
        behind = [
            (to.ctypes.data, size, one, 0, size)
            for to, (_, one, size) in zip(found, self._losses, strict=True)
        ]
        plan = [steps, loss, size, len(self._sequences), *self._sequences]
        for part in (moves, before, behind):
            plan.append(len(part))
            plan += itertools.chain.from_iterable(part)
        words = np.array(plan, np.int64)
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            done = _scan()(words.ctypes.data)
        if done < 0:
            done = -1 - done
            for early, kept in self._early:
                ctypes.memmove(early.low, kept.ctypes.data, kept.nbytes)
        if done:
            if set_options:
                set_options(done - 1)
                for host in self._counts:
                    host.optimizer.follow_options()
            self._note(done)
            for host, _, numbers, _ in tables:
                for run, values in zip(host.runs, numbers[done - 1], strict=True):
                    _numbers(run)[:] = values
        return [values[:done] for values in found]

    def _drawn(self, steps: int, epoch: int, number: int, count: int) -> Any:
        """For each draw its `place` at each of the next steps."""
        tables = np.empty((len(self._draws), steps, 4), np.int64)
        if self._draws:
            stream, self._draw[0] = vars(STREAM), 0
            before = {**stream}
            for step in range(steps):
                more, at = divmod(number + step, count)
                stream["step"] = before["step"] + step * self._ends
                stream["batch"], stream["first_row"] = (epoch + more, at), 0
                for draw, table in zip(self._draws, tables, strict=True):
                    draw.function()
                    table[step] = draw.place
            stream.update(before)
        return tables

    def _table_of(
        self, host: Count, steps: int, set_options: Callable[[int], None] | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What `host` writes at each of the next steps; the runs' numbers then; what holds these.

        Equal for members with equal options that have taken as many steps.
        """
        runs, optimizer = host.runs, host.optimizer
        key = id(host), steps, *((run.options, run.progress.count, *_numbers(run)) for run in runs)
        if set_options or key not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            tables = [np.empty((steps, *array.shape), array.dtype) for array in host.writes or ()]
            numbers = []
            earlier = optimizer.calls, [(run.progress.count, [*_numbers(run)]) for run in runs]
            for step in range(steps):
                if set_options:
                    set_options(step)
                    optimizer.follow_options()
                optimizer.count_step()
                numbers.append([[*_numbers(run)] for run in runs])
                for row, array in zip(tables, host.writes or (), strict=True):
                    row[step] = array
            optimizer.calls = earlier[0]
            for run, (count, values) in zip(runs, earlier[1], strict=True):
                run.progress.count = count
                _numbers(run)[:] = values
            each = zip(host.writes or (), tables, strict=True)
            rows = [(to.ctypes.data, 0, t.ctypes.data, to.nbytes, to.nbytes) for to, t in each]
            self._known[key] = rows, numbers, tables
        return self._known[key]


def _numbers(run: Run) -> list[float]:
    return run.progress.numbers or []


def scan_of(capture: Capture) -> Scan | None:
    """Many steps of `capture`; None where more than bookkeeping is left to Python."""
    if capture.scan is False:
        loss = _loss_of(capture)
        capture.scan = Scan(capture, loss) if loss else None
    return capture.scan


def _loss_of(capture: Capture) -> list[Any]:
    """The `loss` of a `Scan` of `capture`; empty where there can be none."""
    program, native = capture.program, capture.text.native_code
    hosts = [line for line in program.lines if isinstance(line, PythonCall)]
    passes = [host.whole for host in hosts if isinstance(host, WholePass) and host.whole.alone]
    counts = [array for whole in passes for array in arrays_in(whole.count)]
    known = (Clear, Mark, Count, End, WholePass) if passes else (Clear, Mark, Count, End)
    unknown = (GRADIENTS,) if passes else (GRADIENTS, COUNTED)
    fits = (
        native is not None
        and native.complete
        and all(draw.fresh for draw in native.draws)
        and all(type(host) in known or is_native(host) for host in hosts)
        and (not counts or any(host.bounds == FINITE for host in hosts))
        and all(is_plain(array) and owner_of(array) is array for array in program.inputs)
        and capture.outside is None
        and not capture.leaves
        and not any(fact.label in unknown for fact in capture.guard.facts)
    )
    if fits and capture.result is None and len(passes) == 1:
        return [passes[0].root, *counts]
    one = type(capture.result) is Output and len(program.outputs) == 1
    one = one and program.outputs[0].size == 1 and program.outputs[0].dtype.kind == "f"
    return program.outputs if fits and one else []


def _early(program: Program) -> list[Place]:
    """The state that a step writes before the last check of it, but gradients, which it clears."""
    lines, kinds, end = program.lines, program.kinds, 0
    for number, line in enumerate(lines, 1):
        if line.bounds if isinstance(line, PythonCall) else may_refuse(line):
            end = number
    storages = [line.storage for line in lines if type(line) is Clear]
    cleared = {id(owner_of(buffer.grad)) for storage in storages for buffer in storage.buffers}
    written = map(owner_of, arrays_in([getattr(line, "out", ()) for line in lines[:end]]))
    state = {key: one for one in written if kinds.get(key := id(one)) == "state" and one.size}
    return [Place(one) for key, one in state.items() if key not in cleared]


@functools.cache
def _scan() -> Any:
    return c_compiler.builtin(c_compiler.runtime(), "scan", c_compiler.ONE)
