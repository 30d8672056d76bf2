"""A captured step for many batches in one native call: no Python between them.

A replay is a few native functions and bookkeeping in Python. Here native code does the functions
for batch after batch, with a table of addresses in which the arguments move on, and the bookkeeping
of all of them is done once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.stack_frames import ENTRY, generated
from ..optim.optimizer import Run
from . import c_compiler
from .arguments_and_results import Output
from .native import Native
from .numpy_executor import Text
from .program import Program, PythonCall
from .python_calls import Clear, Count, End, Mark
from .step import COUNTED, GRADIENTS

MOST = 64  # tables of an optimizer's numbers that are kept: one for each learning rate


class Scan:
    """Native code for many steps of one program.

    Args:
        program: what one step does; its first result is the loss.
        native: its code.
    """

    def __init__(self, program: Program, native: Native) -> None:
        self._table = native.table.copy()
        self._sequences = native.sequences(self._table)
        self._counts = [line for line in program.lines if type(line) is Count]
        self._inputs = program.inputs
        hosts = (line for line in program.lines if isinstance(line, PythonCall))
        self._checks = [host for host in hosts if host.bounds]
        text = Text(program)
        for line in program.lines:
            if isinstance(line, PythonCall) and not line.bounds:
                text.host(line, "times")
        body = "".join(f"    {line}\n" for line, *_ in text.lines) or "    pass\n"
        self._note = generated(f"def note(times):\n{body}", "note", ENTRY, text.scope)
        self._outputs = program.outputs
        loss = program.outputs[0]
        self._loss = loss.ctypes.data, loss.nbytes
        self._known: dict[Any, Any] = {}
        # By argument, which words of the table are in it and how far from its beginning.
        self._parts = [native.parts_of(array) for array in program.inputs]

    def __call__(self, stacks: Sequence[Any]) -> Any:
        """Take a step for each element of `stacks`, up to the first whose loss is not finite.

        Returns the losses of the steps that were taken.
        """
        steps = len(stacks[0])
        losses = np.empty(steps, self._outputs[0].dtype)
        moves, before, tables = [], [], []
        for stack, parts in zip(stacks, self._parts, strict=True):
            start, at = stack.ctypes.data, self._table.ctypes.data
            moves += [(at + 8 * word, start + offset, stack.strides[0]) for word, offset in parts]
        for host in self._counts:
            if host.optimizer.by_step:
                tables.append((host, *self._table_of(host, steps)))
                for number, values in zip(host.writes or (), tables[-1][1], strict=True):
                    size = number.nbytes
                    before.append((number.ctypes.data, 0, values.ctypes.data, size, size))
        place, size = self._loss
        behind = [(losses.ctypes.data, size, place, 0, size)]
        plan = [steps, place, size, len(self._sequences), *self._sequences]
        for part in (moves, before, behind):
            plan += [len(part), *(word for row in part for word in row)]
        words = np.array(plan, np.int64)
        done = _scan()(words.ctypes.data)
        if done < 0:
            for array, stack in zip(self._inputs, stacks, strict=True):
                array[...] = stack[-1 - done]
            for check in self._checks:  # one of them says what native code has refused
                check.function()
            raise RuntimeError(f"native code failed in step {-1 - done} of {steps}")
        self._note(done)
        for host, _, numbers in tables:
            for run, values in zip(host.runs, numbers[done - 1], strict=True):
                _numbers(run)[:] = values
        return losses[:done]

    def _table_of(self, host: Count, steps: int) -> tuple[list[Any], list[Any]]:
        """For each of `host.writes` its values at each of the next steps; the runs' numbers then.

        Equal for members with equal options that have taken as many steps.
        """
        runs, optimizer = host.runs, host.optimizer
        key = id(host), steps, *((run.options, run.progress.count, *_numbers(run)) for run in runs)
        if key not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            tables = [np.empty((steps, *array.shape), array.dtype) for array in host.writes or ()]
            numbers = []
            earlier = optimizer.calls, [(run.progress.count, [*_numbers(run)]) for run in runs]
            for step in range(steps):
                optimizer.count_step()
                numbers.append([[*_numbers(run)] for run in runs])
                for row, array in zip(tables, host.writes or (), strict=True):
                    row[step] = array
            optimizer.calls = earlier[0]
            for run, (count, values) in zip(runs, earlier[1], strict=True):
                run.progress.count = count
                _numbers(run)[:] = values
            self._known[key] = tables, numbers
        found: tuple[list[Any], list[Any]] = self._known[key]
        return found


def _numbers(run: Run) -> list[float]:
    return run.progress.numbers or []


def scannable(capture: Any) -> bool:
    """Whether nothing of a capture is left to Python but bookkeeping that can be done at once."""
    hosts = (line for line in capture.program.lines if isinstance(line, PythonCall))
    outputs = capture.program.outputs
    return (
        capture.text.native_code is not None
        and capture.text.native_code.complete
        and all(type(host) in (Clear, Mark, Count, End) or host.bounds for host in hosts)
        and capture.outside is None
        and not capture.leaves
        and not any(fact.label in (GRADIENTS, COUNTED) for fact in capture.guard.facts)
        and type(capture.result) is Output
        and len(outputs) == 1
        and outputs[0].size == 1
        and outputs[0].dtype.kind == "f"
    )


@functools.cache
def _scan() -> Any:
    return c_compiler.builtin(c_compiler.runtime(), "scan", c_compiler.ONE)
