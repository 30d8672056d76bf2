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

from .bookkeeping import Clear, Count, End, Mark
from .program import Host, Output, Program

# `plan`: the address of the table, the number of steps, where the loss is and how many bytes it
# has; then, their number before each: functions and where in the table they begin to read; slots of
# the table, where they point first and how far they move on; copies before a step and copies behind
# it: to where, from where, how far both move on, how many bytes. It ends behind a step whose loss
# is not finite: all bits of its exponent are set.
SOURCE = """\
from numba import int16, int32, int64, njit

from microtrain.compile.native import instructions

_I = instructions()
address, call, copy, get, pointer, put = _I.address, _I.call, _I.copy, _I.get, _I.pointer, _I.put


@njit("int64(int64, int64, int64)", cache=CACHE, nogil=True)
def copies(plan, at, step):
    count = address(plan, at)
    at += 1
    for _ in range(count):
        to = address(plan, at) + step * address(plan, at + 1)
        of = address(plan, at + 2) + step * address(plan, at + 3)
        copy(to, of, address(plan, at + 4))
        at += 5
    return at


@njit("int64(int64)", cache=CACHE, nogil=True)
def scan(plan):
    table, steps, size, functions = (
        address(plan, 0), address(plan, 1), address(plan, 3), address(plan, 4)
    )
    slots = pointer(plan, 0, int64)
    for step in range(steps):
        at = 5 + 2 * functions
        count = address(plan, at)
        at += 1
        for _ in range(count):
            put(slots, address(plan, at), address(plan, at + 1) + step * address(plan, at + 2), "")
            at += 3
        at = copies(plan, at, step)
        for f in range(functions):
            if call(address(plan, 5 + 2 * f), table + address(plan, 6 + 2 * f)) != 0:
                return -1 - step
        copies(plan, at, step)
        if size == 4:
            ended = (get(pointer(plan, 2, int32), 0, "") & 0x7F800000) == 0x7F800000
        elif size == 8:
            ended = (get(pointer(plan, 2, int64), 0, "") >> 52) & 0x7FF == 0x7FF
        else:
            ended = (get(pointer(plan, 2, int16), 0, "") & 0x7C00) == 0x7C00
        if ended:
            return step + 1
    return steps
"""
MOST = 64  # tables of an optimizer's numbers that are kept: one for each learning rate


class Scan:
    """Native code for many steps of one program.

    Args:
        program: what one step does; its first result is the loss.
        native: its functions and where in the table they begin, the table of addresses and where
            these are from.
    """

    __slots__ = ("_codes", "_hosts", "_known", "_loss", "_outputs", "_slots", "_table")

    def __init__(self, program: Program, native: Any) -> None:
        functions, table, slots = native
        self._codes = [
            (found.library.get_pointer_to_function(found.fndesc.llvm_func_name), start)
            for found, start in functions
        ]
        self._table = table.copy()
        self._hosts = [line for line in program.lines if isinstance(line, Host)]
        self._outputs = program.outputs
        loss = program.outputs[0]
        self._loss = loss.ctypes.data, loss.nbytes
        self._known: dict[Any, Any] = {}
        inputs = {id(array): number for number, array in enumerate(program.inputs)}
        # By argument, where in the table its parts are and how far they are from its beginning.
        self._slots: list[list[tuple[int, int]]] = [[] for _ in program.inputs]
        for slot, (place, owner) in enumerate(slots):
            if id(owner) in inputs:
                number = inputs[id(owner)]
                self._slots[number].append((slot, place - owner.ctypes.data))

    def __call__(self, stacks: Sequence[Any]) -> Any:
        """Take a step for each element of `stacks`, up to the first whose loss is not finite.

        Returns the losses of the steps that were taken.
        """
        steps = len(stacks[0])
        losses = np.empty(steps, self._outputs[0].dtype)
        moves, before, tables = [], [], []
        for stack, parts in zip(stacks, self._slots, strict=True):
            start = stack.ctypes.data
            moves += [(slot, start + offset, stack.strides[0]) for slot, offset in parts]
        for host in self._hosts:
            if type(host) is Count and host.optimizer.by_step:
                tables.append((host, *self._table_of(host, steps)))
                for number, values in zip(host.writes or (), tables[-1][1], strict=True):
                    size = number.nbytes
                    before.append((number.ctypes.data, 0, values.ctypes.data, size, size))
        place, size = self._loss
        behind = [(losses.ctypes.data, size, place, 0, size)]
        plan = [self._table.ctypes.data, steps, place, size, len(self._codes)]
        plan += [
            word for code, start in self._codes for word in (code, start * self._table.itemsize)
        ]
        for part in (moves, before, behind):
            plan += [len(part), *(word for row in part for word in row)]
        words = np.array(plan, np.int64)
        done = _scan()(words.ctypes.data)
        if done < 0:
            raise RuntimeError(f"native code failed in step {-1 - done} of {steps}")
        for host in self._hosts:
            host.repeat(done)  # type: ignore[attr-defined]
        for host, _, numbers in tables:
            for run, values in zip(host.runs, numbers[done - 1], strict=True):
                run.numbers[:] = values
        return losses[:done]

    def _table_of(self, host: Count, steps: int) -> tuple[list[Any], list[Any]]:
        """For each of `host.writes` its values at each of the next steps; `Run.numbers` behind it.

        Equal for members with equal options that have taken as many steps.
        """
        runs, optimizer = host.runs, host.optimizer
        key = id(host), steps, *((run.options, run.count, *run.numbers) for run in runs)
        if key not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            tables = [np.empty((steps, *array.shape), array.dtype) for array in host.writes or ()]
            numbers = []
            earlier = optimizer.calls, [(run.count, [*run.numbers]) for run in runs]
            for step in range(steps):
                optimizer.count_step()
                numbers.append([[*run.numbers] for run in runs])
                for row, array in zip(tables, host.writes or (), strict=True):
                    row[step] = array
            optimizer.calls = earlier[0]
            for run, (count, values) in zip(runs, earlier[1], strict=True):
                run.count = count
                run.numbers[:] = values
            self._known[key] = tables, numbers
        found: tuple[list[Any], list[Any]] = self._known[key]
        return found


def scannable(capture: Any) -> bool:
    """Whether nothing of a capture is left to Python but bookkeeping that can be done at once."""
    hosts = (line for line in capture.program.lines if isinstance(line, Host))
    outputs = capture.program.outputs
    return (
        capture.text.native_code is not None
        and all(type(host) in (Clear, Mark, Count, End) for host in hosts)
        and capture.outside is None
        and not capture.leaves
        and not capture.counted
        and all(then is None for _, then in capture.presence)
        and type(capture.result) is Output
        and len(outputs) == 1
        and outputs[0].size == 1
        and outputs[0].dtype.kind == "f"
    )


@functools.cache
def _scan() -> Any:
    from .cache import load

    compiled = load(SOURCE)["scan"]
    return compiled.overloads[compiled.signatures[0]].entry_point
