"""A backward pass that makes a step by itself, as a replay notes it: at its end, all at once.

A small step takes as long as what Python does around it, and ranks that share a core pay for that
several times: each begins with cold caches. So the usual case is short here. One forward call and
one pass from a scalar make the step, and gradients are reduced at once, when the pass is over.

Where the gradients are small, the reduction is one native call (native_reduction.c): pack, add up
on this host, divide. It has the bits of Python and uses the same memory, so one rank may be in the
one while another is in the other.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import STRUCTURE
from ..capture import c_compiler
from ..optim.flat import FOOTER, FlatStorage
from .communicator import FORBIDDEN, Array, Communicator, refuse_alone
from .footer import NOTES, SILENT, Summed, Totals, pack
from .reducer import AtOnce, Reducer
from .weighted_loss import Denominators

_CODES = {"f": "reduce32", "d": "reduce64"}  # by NumPy's letter


def whole(parallel: Any, root: Any, rows: int | None, weights: Denominators | None) -> Whole | None:
    """How to note the next pass of a `DataParallel`, from the array `root`; None: step by step.

    weights: what it is the mean over, where that is not the rows.
    """
    passes = parallel.passes
    if not rows or passes.samples_given is not None or not passes.sync or passes.pending:
        return None
    at_once = type(parallel.reducer) in (Reducer, AtOnce)
    usual = at_once and parallel.reduction == "mean" and root.size == 1
    found = Whole(parallel, root, rows, weights)
    if weights is not None:
        kinds = {array.dtype for array in (*found.gradients, root)}
        known = type(found.count) is np.ndarray or bool(found.count)
        usual = usual and found.alone and known and len(kinds) == 1
    return found if usual else None


class Whole:
    """Functions that note a pass.

    Args:
        parallel: the `DataParallel`.
        root: the array of the value that the pass starts from.
        rows: of the forward call.
        weights: what it is a mean over, where that is not these.

    Attributes:
        count: by how much the gradients are divided at last, a number or a 0-d array.
        alone: on one CPU: what is left of the reduction is this division, for others to do.
    """

    def __init__(self, parallel: Any, root: Any, rows: int, weights: Denominators | None) -> None:
        self.parallel, self.root, self.rows, self.weights = parallel, root, rows, weights
        self.count: Any = float(rows) if weights is None else weights.single
        self.alone = not parallel.reducer.communicates and type(root) is np.ndarray

    @property
    def gradients(self) -> list[Any]:
        """All gradients, one array for each dtype."""
        return [buffer.grad for buffer in self.parallel.storage.buffers]

    def by_python(self) -> Callable[..., None]:
        """With NumPy; where it is alone, also for many steps: `note(steps)`."""
        parallel, root, rows, weights = self.parallel, self.root, self.rows, self.weights
        reducer = parallel.reducer
        weight = float(rows)
        if not reducer.communicates:

            def done(steps: int = 1) -> None:
                over = weight if weights is None else weights.weight(1, True)
                loss = 0.0 + (over * float(root.item()) if over else 0.0)
                values = (rows, over, loss, 0, *parallel.notes, 0.0)
                if self.alone:
                    parallel.passes.steps += steps
                    parallel.publish(values, True)
                else:
                    parallel.finish(values)

            return self._noting(done)

        def added_up(notes: Sequence[float], mark: float) -> Summed:
            totals = Totals(rows, weight, 0.0 + rows * float(root.item()), 0)
            return reducer.added_up(totals, (*notes, mark))

        return self._sharing(added_up, parallel.finish)

    def by_native_code(self, complete: bool) -> Callable[[], None] | None:
        """With native code for all but the checks; None: there is none for this."""
        parallel, reducer, reduce = self.parallel, self.parallel.reducer, None
        if complete and type(reducer) is AtOnce and reducer.kind == "none":
            reduce = native_step(parallel.comm, parallel.storage, self.root, self.rows)
        if reduce is None:
            return None
        passes = parallel.passes

        def done(values: Summed) -> None:
            passes.steps += 1
            parallel.publish(values, True)

        return self._sharing(reduce, done)

    def _sharing(self, reduce: Any, done: Callable[[Summed], None]) -> Callable[[], None]:
        parallel, passes, alike = self.parallel, self.parallel.passes, self.parallel.alike

        def share() -> None:
            started = time.perf_counter()
            mark = alike.mark(passes.steps)
            values = reduce(parallel.notes, mark)
            parallel.communicated(started)
            if mark or values[-1]:
                alike.check(values[-1])
            done(values)

        return self._noting(share)

    def _noting(self, share: Callable[..., None]) -> Callable[..., None]:
        parallel, passes = self.parallel, self.parallel.passes

        def note(*steps: int) -> None:
            if STRUCTURE[0] != passes.structure:
                parallel.refuse_new_parameters()
            if passes.pending:  # by passes that zero_grad() has discarded
                parallel.discard()
            passes.waits = False
            if passes.forwards:
                passes.settle()
            share(*steps)

        return note


@functools.cache
def _library() -> Any:
    """native_reduction.c, None where there is no compiler."""
    if c_compiler.absent():
        return None
    text = Path(__file__).with_name("native_reduction.c").read_text(encoding="utf-8")
    return c_compiler.load(f"enum {{ NOTES = {NOTES}, FOOTER = {FOOTER} }};\n{text}")


def native_step(
    comm: Communicator, storage: FlatStorage, root: Array, rows: int
) -> Callable[[Sequence[float], float], Summed] | None:
    """What reduces the gradients of a pass over `rows` from the mean `root`; given notes, a mark.

    As `Whole.by_python` does it; None where native code cannot. Collective when called.
    """
    wide, size = storage.buffers[0].wide, storage.buffers[0].grad.size
    known = all(type(a) is np.ndarray and a.dtype.char in _CODES for a in (wide, root))
    memory = comm.memory_for(wide) if known and len(storage.buffers) == 1 else None
    if memory is None or _library() is None:
        return None
    name, run = _CODES[wide.dtype.char], memory.run
    code = c_compiler.builtin(_library(), name, c_compiler.SEVERAL)
    used = (True,) * len(storage.slots)
    footer = np.array(pack(Totals(rows, float(rows), 0.0, 0), SILENT, used))
    found = np.zeros(4 + FOOTER - NOTES)
    places = [array.ctypes.data for array in (wide, root, footer, found)]
    tables = memory.turns(wide, [*places, size, len(footer), rows, root.itemsize])
    turns = [(plan, table.ctypes.data) for plan, table in tables]
    place: Any = footer[NOTES:FOOTER].data  # views are faster than arrays
    sums: Any = found.data
    doing = "all_reduce", (wide,)

    def reduce(notes: Sequence[float], mark: float, _: Any = (root, tables)) -> Summed:
        if FORBIDDEN:
            refuse_alone("all_reduce")
        place[0], place[1], place[2] = notes
        place[3] = mark
        comm._doing = doing  # for the watchdog
        try:
            run(code, turns)
        finally:
            comm._doing = None
        comm._done += 1
        return sums.tolist()

    return reduce
