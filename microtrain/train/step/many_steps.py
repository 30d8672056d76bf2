"""Steps between which nobody looks, many in one native call, with the bits of single ones.

On one rank nothing but the trainer's own Python stands between two steps of a run, and that takes
several times as long as a small step. So after a replay, whose guard has seen that all is as it was
captured, the next steps are done by a `Scan`, up to the one after which there is more to do. One
that a check refuses is done by Python, which says why.
"""

from __future__ import annotations

import time
from typing import Any

from ...capture.scan import scan_of

SECONDS = 0.05  # that a call is to take: a signal waits for its end
MOST = 4096  # steps


class ManySteps:
    """Takes the steps after one that was taken in Python.

    Args:
        run: the Trainer.

    Attributes:
        fits: whether it may be asked for steps at all.
    """

    def __init__(self, run: Any) -> None:
        self.fits = run.comm.size == 1 and run.trace is None and run.skips is None
        self._run, self._most = run, 16.0
        self._seen: Any = None  # what captures steps, and how many calls that has recorded

    def __call__(self, most: int) -> list[tuple[float, float]]:
        """Take at most `most` steps; the losses of those that were taken, and their weights.

        Each is of as many rows as the step before.
        """
        run, compiled = self._run, self._run.execution.compiled
        seen = compiled, compiled and compiled.recorded
        if seen != self._seen or compiled is None:  # or the last step was recorded
            self._seen = seen
            return []
        scan = scan_of(compiled.captures[0])  # the one that was replayed
        most = min(most, MOST, int(self._most))
        self._most += self._most < 2 and 0.1  # the machine may have been at something else
        stacks = run.loader.upcoming(most) if scan and most > 1 else None
        if not stacks:
            return []
        assert scan is not None
        step, rates, rows = run.step, run.rates, run.loader.batch_size
        began = time.perf_counter()
        found = scan(stacks, rates and (lambda number: rates.set(step + number)))
        losses, *counts = [values.tolist() for values in found]
        if losses:
            self._most = max(1, len(losses) * SECONDS / (time.perf_counter() - began))
        run.loader.skip(len(losses))
        weights = counts[0] if counts else [float(rows)] * len(losses)
        # As the `DataParallel` has them.
        return [(w and w * loss / w, w) for loss, w in zip(losses, weights, strict=True)]
