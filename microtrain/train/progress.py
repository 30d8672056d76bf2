"""What happened since the last row of a run, the exact mean loss and the speed."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..distributed.data_parallel import DataParallel


class Progress:
    """Adds up optimiser steps between two rows.

    Attributes:
        samples: seen until the last row.
        paused: seconds since the last row that were not spent training.
    """

    def __init__(self, model: DataParallel) -> None:
        self.model = model
        self.mean = model.reduction == "mean"
        self.total = self.weight = 0.0
        self.begin(0)

    def begin(self, samples: int) -> None:
        """From now on the time counts, when `samples` have been seen."""
        self.since, self.samples, self.paused = time.perf_counter(), samples, 0.0
        self.comm = self.model.comm_seconds
        self._looked = 0.0, 0.0

    def add(self) -> None:
        """One optimiser step: its loss counts by what it is the mean over."""
        loss, weight = self.model.loss, self.model.weight if self.mean else 1
        if weight:
            self.total += math.nan if loss is None else loss * weight
            self.weight += weight

    def look(self, samples: int) -> tuple[float, float]:
        """For people who watch: the loss since the last look, the speed since the last row.

        As `take`, of which it changes nothing; nan where there is nothing to tell.
        """
        total, weight = (
            a - b for a, b in zip((self.total, self.weight), self._looked, strict=True)
        )
        self._looked = self.total, self.weight
        spent = max(time.perf_counter() - self.since - self.paused, 1e-9)
        return total / weight if weight > 0 else math.nan, (samples - self.samples) / spent

    def state_dict(self) -> list[str]:
        """What a checkpoint keeps of it: exact, and JSON also where a loss was not finite."""
        return [self.total.hex(), float(self.weight).hex()]

    def load_state_dict(self, state: list[str]) -> None:
        """Go on from `state_dict()`."""
        self.total, self.weight = map(float.fromhex, state)

    def take(self, samples: int) -> tuple[float, float, dict[str, float]]:
        """The time now, the loss, and the speed since the last row; then begin anew.

        The loss is the mean over the steps since the last row, weighted by what counts in each; of
        a loss that is a sum, the mean of the steps' sums.
        """
        now = time.perf_counter()
        spent = max(now - self.since - self.paused, 1e-9)
        speed = {"samples_per_s": (samples - self.samples) / spent}
        if self.model.comm.size > 1:
            speed["comm_share"] = (self.model.comm_seconds - self.comm) / spent
        loss = self.total / self.weight if self.weight else math.nan
        self.begin(samples)
        self.total = self.weight = 0.0
        return now, loss, speed
