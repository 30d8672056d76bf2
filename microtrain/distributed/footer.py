"""The footer behind the gradients: the rows, the loss, notes, and which parameters were used.

    [ rows rows  nl nl  non-scalar roots  n n  notes ...  mark | used(param 0) ... ]

The ranks' footers are added up with the gradients. Counts and the loss travel as a high and a low
part, because float32 has 24 bits. The mark (replicas.py) is the last of the notes of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..optim.flat import FOOTER

NOTES = 7  # the place of the first
SILENT = (0.0,) * (FOOTER - NOTES)  # notes that say nothing, and a mark that does not


class Totals(NamedTuple):
    """Sums over the backward passes of a step: of one rank, or of all.

    Attributes:
        rows: of the forward calls.
        weight: the sum of n, what the values that the passes started from are means over.
        loss: the sum of n times that value.
        not_scalar: how many passes did not start from a scalar, and are not in `loss`.
    """

    rows: int
    weight: float
    loss: float
    not_scalar: int


Summed = Sequence[float]  # over all ranks: those of `Totals`, the notes, the mark
NOTHING: Summed = (0, 0.0, 0.0, 1, *SILENT)  # before the first step


def pack(totals: Totals, notes: Sequence[float], used: Sequence[bool]) -> list[float]:
    """The footer of a rank; `used`: of each parameter whether it has a gradient."""
    rows, weight, loss, not_scalar = totals
    return [*divmod(rows, 4096), *split(loss), not_scalar, *split(weight), *notes, *used]


def values_of(footer: Sequence[float]) -> list[float]:
    """The values in a sum of footers, without the flags of the parameters."""
    high, low, loss, rest, not_scalar, weight, more = footer[:NOTES]
    return [high * 4096 + low, weight + more, loss + rest, not_scalar, *footer[NOTES:FOOTER]]


def split(value: float) -> tuple[float, float]:
    """`value` as a part of 12 significant bits, whose sums are exact in float32, and the rest.

    Native code has this text too (native_reduction.c). T. Dekker, "A floating-point technique for
    extending the available precision", 1971.
    """
    if not -1e290 < value < 1e290:  # float32 has no such numbers, and the product may have none
        return value, 0.0
    scaled = value * 2199023255553.0  # 2**41 + 1
    high = scaled - (scaled - value)
    return high, value - high
