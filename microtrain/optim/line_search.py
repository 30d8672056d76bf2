"""A line search for the strong Wolfe conditions, as PyTorch's LBFGS uses it.

J. Nocedal and S. Wright, "Numerical optimization", 2006, algorithms 3.5 and 3.6; trial points are
the minima of cubics (equation 3.59).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DECREASE = 1e-4  # share of the initial slope that the loss must fall by
CURVATURE = 0.9  # share of the initial slope that must be left at most
NARROW = 1e-9  # a bracket that moves no parameter by more is not searched further


@dataclass(frozen=True)
class Point:
    """A step of length `t`: the loss there, its gradient, and its slope along the direction."""

    t: float
    loss: float
    grad: Any
    slope: float


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, t: float, reach: float, most: int
) -> tuple[Point, int]:
    """The point found, and how often `evaluate` was called.

    Args:
        evaluate: computes the point at a step length.
        start: that of length 0.
        t: the first length tried.
        reach: the largest element of the direction.
        most: further evaluations.
    """

    def too_high(point: Point) -> bool:
        return point.loss > start.loss + DECREASE * point.t * start.slope

    def flat(point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * start.slope

    before, now = start, evaluate(t)
    bracket = None
    number = 0
    while number < most:
        if too_high(now) or (number > 1 and now.loss >= before.loss):
            bracket = [before, now]
            break
        if flat(now):
            return now, number + 1
        if now.slope >= 0:
            bracket = [before, now]
            break
        bounds = now.t + 0.01 * (now.t - before.t), now.t * 10
        before, now = now, evaluate(minimum_of_cubic(before, now, bounds))
        number += 1
    if bracket is None:
        bracket = [start, now]

    low = 0 if bracket[0].loss <= bracket[1].loss else 1
    near_end = False  # whether the trial point before was
    while number < most and not abs(bracket[1].t - bracket[0].t) * reach < NARROW:
        ends = bracket[0].t, bracket[1].t
        at = minimum_of_cubic(bracket[0], bracket[1], (min(ends), max(ends)))
        margin = 0.1 * (max(ends) - min(ends))
        near = min(max(ends) - at, at - min(ends)) < margin
        if near and (near_end or not min(ends) < at < max(ends)):
            to_upper = abs(at - max(ends)) < abs(at - min(ends))
            at = max(ends) - margin if to_upper else min(ends) + margin
            near = False
        near_end = near
        now = evaluate(at)
        number += 1
        if too_high(now) or now.loss >= bracket[low].loss:
            bracket[1 - low] = now
            low = 0 if bracket[0].loss <= bracket[1].loss else 1
            continue
        done = flat(now)
        if not done and now.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = now
        if done:
            break
    return bracket[low], number + 1


def minimum_of_cubic(one: Point, other: Point, bounds: tuple[float, float]) -> float:
    """Where the cubic through two points, with their slopes, is least within `bounds`.

    Their middle where it has no minimum.
    """
    left, right = (one, other) if one.t <= other.t else (other, one)
    with np.errstate(all="ignore"):
        width = np.float64(right.t - left.t)
        d1 = left.slope + right.slope - 3 * (right.loss - left.loss) / width
        square = d1 * d1 - left.slope * right.slope
        at = math.nan
        if square >= 0:
            d2 = np.sqrt(square)
            at = float(
                right.t - width * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2))
            )
    if math.isnan(at):
        return (bounds[0] + bounds[1]) / 2
    return min(max(at, bounds[0]), bounds[1])
