"""What all losses share: their reduction, and which arguments they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from ...autograd.graph import MARKS, MEANS
from ...backend import LISTENERS, MODES, SCALAR, float16, float32
from ..fronts import Front
from ..pointwise.elementwise import eq, where
from ..reduce.reductions import mean, sum
from ..registry import primitive

_F = TypeVar("_F", bound=Callable[..., Any])

# Means that are not over rows ---------------------------------------------------------------------


# The node says what a loss was divided by: data parallelism finds it there (`weighted_loss.py`).
@primitive(
    "mean_over",
    total=lambda g, total, count, divisor, name, elements: g / divisor,
    count=lambda g, total, divisor: -g * total / (divisor * divisor),
    extras=("divisor",),
    recompute={"divisor": lambda count: where(eq(count, 0), 1, count)},
    promote=("total", "count"),
)
def mean_over(xp, total, count, *, name="loss", elements=None, defined=False):
    """`total / count`, and what gradients are divided by: 1 for 0, where nothing counts."""
    one = xp.constant(1, count.dtype)
    if elements is not None:
        divisor = xp.maximum(count, one)
    else:
        divisor = xp.where(xp.equal(count, xp.constant(0, count.dtype)), one, count)
    return xp.divide(total, divisor if defined else count), divisor


def counting(losses: Any) -> bool:
    """Whether anyone wants to know what a loss divides by, who then adds up several.

    So it is between a forward call of a wrapped model and the backward pass. Not of half precision,
    which has no room for a total, and which ranks do not add up.
    """
    return losses.dtype != float16 and _asked()


def _asked() -> bool:
    return MODES.counts or any(one.waits for one in LISTENERS)


def sum_of(values: Any) -> Any:
    """The sum, of half precision in single: half has no room for it."""
    return sum(values, dtype=float32 if values.dtype == float16 else None)


def mean_loss(name: str, total: Any, count: Any, elements: int | None) -> Any:
    """The loss `total / count`, both 0-d, where the count is the sum of the weights of what counts.

    Where it is to be added to others (see `counting`) it is 0, not NaN, if nothing counts.

    Args:
        name: of the loss, for messages.
        elements: how many there are where each counts 1 or 0; None where they have weights.
    """
    MEANS.add(mean_over.operation)
    MARKS[0] += 1
    return mean_over(total, count, name, elements, _asked())


def reduced(losses: Any, reduction: str) -> Any:
    """`losses`, their mean or their sum."""
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum(losses)


def reduced_array(xp, losses, reduction):
    """The same in a kernel."""
    if reduction == "none":
        return losses
    if losses.dtype == float16:  # which has room for no total above 65504, and no such number
        return xp.asarray(reduced_array(xp, xp.asarray(losses, float32), reduction), float16)
    total = xp.sum(losses)
    return total if reduction == "sum" else average(xp, total, math.prod(losses.shape))


def average(xp, total, n):
    """In a kernel: `total / n`; NaN where there is nothing to average."""
    if n:
        # What NumPy sums is a number of its own, which it divides faster than an array of one.
        number = isinstance(total, SCALAR)
        return total / n if number else xp.divide(total, xp.constant(n, total.dtype))
    return xp.full(total.shape, math.nan, total.dtype)


class _Loss(Front):
    """A front that reduces the losses that its function computes."""

    def last_lines(self, call: str) -> list[str]:
        self.names["reduced"] = reduced
        return [f"return reduced({call}, reduction)"]


def loss(function: _F) -> _F:
    """The public form of a formula of losses, one for each element, which it reduces.

    The formula has the argument `reduction` (and `size_average` and `reduce`, refused) for its
    signature alone.
    """
    return _Loss(function, function.__name__).apply  # type: ignore[return-value]
