"""What all losses share: their reduction, and which arguments they refuse."""

from __future__ import annotations

import math
from typing import Any

from ..autograd.graph import MEANS
from ..backend import LISTENERS, MODES, float16
from .arguments import want_tensors
from .comparison import eq
from .elementwise import where
from .reductions import mean, sum
from .registry import primitive

REDUCTIONS = ("none", "mean", "sum")

# Means that are not over rows ---------------------------------------------------------------------


def _mean_over(xp, total, count, *, name="loss", elements=None, defined=False):
    """`total / count`, and what gradients are divided by: 1 for 0, where nothing counts."""
    one = xp.constant(1, count.dtype)
    if elements is not None:
        divisor = xp.maximum(count, one)
    else:
        divisor = xp.where(xp.equal(count, xp.constant(0, count.dtype)), one, count)
    return xp.divide(total, divisor if defined else count), divisor


# The node says what a loss was divided by: data parallelism finds it there (`denominators.py`).
mean_over = primitive(
    "mean_over",
    _mean_over,
    total=lambda g, total, count, divisor, name, elements: g / divisor,
    count=lambda g, total, divisor: -g * total / (divisor * divisor),
    options={
        "extras": ("divisor",),
        "recompute": {"divisor": lambda count: where(eq(count, 0), 1, count)},
        "promote": ("total", "count"),
    },
)
MEANS.add(mean_over.operation)


def counting(losses: Any) -> bool:
    """Whether anyone wants to know what a loss divides by, who then adds up several.

    So it is between a forward call of a wrapped model and the backward pass. Not of half precision,
    which has no room for a total, and which ranks do not add up.
    """
    return losses.dtype != float16 and _asked()


def _asked() -> bool:
    return MODES.counts or any((one := ref()) and one.waits for ref in tuple(LISTENERS))


def mean_loss(name: str, total: Any, count: Any, elements: int | None) -> Any:
    """The loss `total / count`, both 0-d, where the count is the sum of the weights of what counts.

    Where it is to be added to others (see `counting`) it is 0, not NaN, if nothing counts.

    Args:
        name: of the loss, for messages.
        elements: how many there are where each counts 1 or 0; None where they have weights.
    """
    return mean_over(total, count, name, elements, _asked())


def check_reduction(
    reduction: str,
    size_average: Any = None,
    reduce: Any = None,
    known: tuple[str, ...] = REDUCTIONS,
) -> None:
    """ValueError unless `reduction` is one of none, mean, sum; TypeError for its old spelling."""
    if size_average is not None or reduce is not None:
        raise TypeError(
            "size_average and reduce are the old spelling of reduction; write "
            f"reduction= one of {', '.join(known)}"
        )
    if reduction not in known:
        raise ValueError(f"{reduction!r} is not a reduction; there are {', '.join(known)}")


def reduced(losses: Any, reduction: str, size_average: Any = None, reduce: Any = None) -> Any:
    """`losses`, their mean or their sum; errors as `check_reduction`."""
    check_reduction(reduction, size_average, reduce)
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum(losses)


def reduced_array(xp, losses, reduction):
    """The same in a kernel."""
    if reduction == "none":
        return losses
    total = xp.asarray(xp.sum(losses))
    if reduction == "sum":
        return total
    return average(xp, total, math.prod(losses.shape))


def average(xp, total, n):
    """In a kernel: `total / n`; NaN where there is nothing to average."""
    if n:
        return xp.divide(total, xp.constant(n, total.dtype))
    return xp.full(total.shape, math.nan, total.dtype)


def check_pair(name: str, input: Any, target: Any, error: type[Exception] = RuntimeError) -> None:
    """TypeError unless both are Tensors, `error` unless they have one shape."""
    want_tensors(name, input=input, target=target)
    if input.shape != target.shape:
        raise error(
            f"{name}: input of shape {tuple(input.shape)} and target of shape "
            f"{tuple(target.shape)} must have one shape; reshape the target, for instance "
            "target.view(-1, 1)"
        )
