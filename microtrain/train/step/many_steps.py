"""Steps between which nobody looks, many in one native call, with the bits of single ones.

On one rank nothing but the trainer's own Python stands between two steps of a run, and that takes
several times as long as a small step. So steps like one that was captured are done by a `Scan`, up
to the one after which there is more to do. One that a check refuses is done by Python, which says
why.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from ...capture.scan import scan_of
from ...data.loading.loader import MicroBatches
from ...tensor import wrap

SECONDS = 0.05  # that a call is to take: a signal waits for its end
MOST = 4096  # steps


class ManySteps:
    """Takes steps of a run.

    Args:
        run: the Trainer, before its first step.
        usual: whether its steps are taken as it says itself.
    """

    def __init__(self, run: Any, usual: bool) -> None:
        usual = usual and run.comm.size == 1 and run.trace is None and run.skips is None
        self._skipped: int | None = None  # steps since the last one in Python; None before that
        self._run, self._position, self._most = run, (0, 0), 2.0 if usual else 0.0
        self._of: Any = None  # the run's pass over the batches
        self._known: list[Any] = []  # captures that steps were for when somebody last looked

    def look_again(self) -> None:
        """Others have had their turn: what was captured may no longer fit."""
        self._known.clear()

    def next_of(self, steps: Generator[MicroBatches, int | None, None]) -> MicroBatches:
        """What the loader has for a step that Python takes, behind those that were taken here."""
        micro_batches = steps.send(self._skipped)
        self._position, self._of, self._skipped = micro_batches.position, micro_batches.of, 0
        return micro_batches

    def __call__(self, most: float) -> int:
        """Take at most `most` steps and count them; how many were taken."""
        run = self._run
        compiled, limit = run.execution.compiled, int(min(most, MOST, self._most))
        if compiled is None or limit < 1 or run.execution.pending or self._skipped is None:
            return 0
        if any(run.model.notes):  # asked for after the next step
            return 0
        captures = [one for one in compiled.captures if scan_of(one)]
        stacks = run.loader.upcoming(self._of, self._position, limit) if captures else None
        if not stacks:
            return 0
        one = [wrap(stack[0]) for stack in stacks]
        fits = (c for c in captures if c in self._known or c.fits(True, True, *one))
        shapes = [tensor._array.shape for tensor in one]
        capture = next((c for c in fits if [a.shape for a in c.program.inputs] == shapes), None)
        if capture is None:
            return 0
        self._known.append(capture)
        step, rates, rows, (epoch, number) = run.step, run.rates, shapes[0][0], self._position
        place = epoch, number + 1, len(run.loader)
        began = time.perf_counter()
        found = capture.scan(stacks, place, rates and (lambda n: rates.set(step + n)))
        losses, *counts = [values.tolist() for values in found]
        if taken := len(losses):
            self._most = max(1, taken * SECONDS / (time.perf_counter() - began))
            self._position = run.loader.took(self._of, self._position, taken, rows)
            self._skipped += taken
        run.state.step += taken
        run.state.samples += taken * rows
        # Where what a loss is a mean over is no array, it is the same at each of these steps.
        weights = counts[0] if counts else [run.model.weight] * taken
        for loss, weight in zip(losses, weights, strict=True):
            run.progress.add(weight and weight * loss / weight, weight)  # as `DataParallel` has it
        return taken
