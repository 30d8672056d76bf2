"""By what rows are ranked: numbers that do not round to 1 as probabilities do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.float64]


class LogOdds:
    """How likely each class is against all others: score - log(sum of exp(other scores)).

    `odds[k]` is that of class k, or of a class for each row, float64 of shape (n,). Rows that
    differ by what is added to all scores, or by which of the other classes has which score, give
    the same. Of two classes it is the difference of their scores; one score a row is that against
    0. nan for scores that are not numbers.
    """

    def __init__(self, scores: NDArray[Any]) -> None:
        wide = scores.astype(np.float64, order="C")
        if wide.shape[1] == 1:
            wide = np.hstack([np.zeros_like(wide), wide])
        self._scores, ranked = wide, np.sort(wide, axis=1)  # so that sums have one order
        self._second, self._first = ranked[:, -2:].T
        with np.errstate(invalid="ignore"):
            # Of all but the highest, and of all but the highest two, against the highest of them.
            self._below_first = np.exp(ranked[:, :-1] - self._first[:, None]).sum(axis=1)
            self._below_second = np.exp(ranked[:, :-2] - self._second[:, None]).sum(axis=1)

    def __getitem__(self, k: int | NDArray[np.int64]) -> Sums:
        score = self._scores[np.arange(len(self._scores)), k]
        highest = score == self._first
        with np.errstate(invalid="ignore"):
            ahead = score - np.where(highest, self._second, self._first)
            rest = self._below_first - np.exp(score - self._first)
            beside = np.log(1 + np.where(highest, self._below_second, rest))
            return np.asarray(np.where(np.isinf(ahead), ahead, ahead - beside))
