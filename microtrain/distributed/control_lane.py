"""What travels behind the gradients: the rows, the loss, notes, and which parameters were used.

    [ rows rows  nl nl  non-scalar roots  n n  notes ... | used(param 0) ... ]

The ranks' lanes are added up with the gradients. Counts and the loss travel as a high and a low
part, because float32 has 24 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..optim.flat import LANE

__all__ = ["SILENT", "Totals", "pack", "unpack"]

_ROWS, _LOSS, _NOT_SCALAR, _WEIGHT, _NOTES = 0, 2, 4, 5, 7
SILENT = (0.0,) * (LANE - _NOTES)  # notes that say nothing


class Totals(NamedTuple):
    """What backward passes add up to: of one rank, or of all.

    Attributes:
        rows: of the forward calls.
        weight: the sum of n, what the values that the passes started from are means over.
        loss: the sum of n times that value.
        not_scalar: how many started from something else, which `loss` is without.
    """

    rows: int
    weight: float
    loss: float
    not_scalar: int


def pack(totals: Totals, notes: Sequence[float], used: Sequence[bool]) -> list[float]:
    """The lane of a rank; `used`: of each parameter whether it has a gradient."""
    loss, weight = _split(totals.loss), _split(totals.weight)
    return [*divmod(totals.rows, 4096), *loss, totals.not_scalar, *weight, *notes, *used]


def unpack(lane: list[float]) -> tuple[Totals, list[float], list[float]]:
    """Totals, notes and uses out of a sum of lanes; a parameter that any rank used is above 0."""
    weight, loss = (lane[i] + lane[i + 1] for i in (_WEIGHT, _LOSS))
    rows = int(lane[_ROWS]) * 4096 + int(lane[_ROWS + 1])
    totals = Totals(rows, weight, loss, int(lane[_NOT_SCALAR]))
    return totals, lane[_NOTES:LANE], lane[LANE:]


def _split(value: float) -> tuple[float, float]:
    """`value` as a part of 12 significant bits, whose sums are exact in float32, and the rest."""
    if not math.isfinite(value):
        return value, 0.0
    mantissa, exponent = math.frexp(value)
    high = math.ldexp(round(mantissa * 4096), exponent - 12)
    return high, value - high
