"""The mean of runs that differ in luck alone: its deviation, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["Spread", "interval", "t_quantile"]


class Spread(float):
    """A mean that knows its sample standard deviation."""

    deviation: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Of some values; None where there are none."""
        if not values:
            return None
        spread = cls(statistics.fmean(values))
        if len(values) > 1:
            spread.deviation = statistics.stdev(values)
        return spread


def interval(values: Sequence[float], folds: int = 0) -> float | None:
    """Half of the 95 % interval of the mean of some values; None of fewer than two.

    Student's t. Values from folds of the same rows are not independent draws: their variance is
    s^2 (1/n + 1/(folds - 1)), after Nadeau and Bengio, Inference for the Generalization Error,
    Machine Learning 52 (2003).
    """
    n = len(values)
    if n < 2:
        return None
    more = 1 / (folds - 1) if folds else 0.0
    return t_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 / n + more)


# Of 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t with so many degrees of freedom, within 0.0001.

    Above 30 by the expansion of Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
