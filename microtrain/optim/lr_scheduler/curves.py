"""The ways from one value to another that several schedules take.

`at` of `steps` says how far they are.
"""

from __future__ import annotations

import math


def line(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` in equal steps."""
    return (end - start) * (at / steps) + start


def cosine(start: float, end: float, at: float, steps: float = 1) -> float:
    """From `start` to `end` along half a cosine wave, flat at both ends."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * at / steps) + 1)
