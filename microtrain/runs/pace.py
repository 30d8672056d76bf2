"""When so many seconds have passed, with few looks at the clock."""

from __future__ import annotations

import math
import time

__all__ = ["Pace"]

STEPS = 1000  # at most between two looks at the clock


class Pace:
    """Says every so many seconds that they have passed, without a look at the clock at each step.

    Attributes:
        at: the step at which to ask next.
    """

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds = seconds
        self._every = 1
        self._step, self._time = step, time.monotonic()
        self.at = step

    def passed(self, step: int) -> bool:
        """Whether the seconds have passed since this last said so."""
        now = time.monotonic()
        spent = now - self._time
        passed = spent >= self._seconds
        wanted = 2.0 * self._every
        if passed:
            wanted = (step - self._step) * self._seconds / spent
            self._step, self._time = step, now
        self._every = max(1, min(STEPS, 2 * self._every, math.ceil(wanted)))
        self.at = step + self._every
        return passed
