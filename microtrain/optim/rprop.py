"""Rprop, as PyTorch defines it, over flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..backend import XP
from .optimizer import Optimizer, Run, arguments


class Rprop(Optimizer):
    """Steps whose size goes by the sign of the gradient alone, for gradients of all samples.

    M. Riedmiller and H. Braun, "A direct adaptive method for faster backpropagation learning: the
    RPROP algorithm", 1993. Every element has a step size of its own, lr at first: times `etas[1]`
    where the sign of its gradient is that of the step before, times `etas[0]` where it changed;
    then it stays as it is for this step.

    Args:
        params: Tensors or parameter groups.
        lr: first step size, at least 0.
        etas: what step sizes are multiplied by: between 0 and 1, and above 1.
        step_sizes: the least and the largest step size.
        maximize: maximize instead of minimize.
        foreach, capturable, differentiable: PyTorch's switches, which can only be off.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.Rprop(model.parameters(), lr=1e-2)
    """

    states = ("prev", "step_size")
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, arguments(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        self._check_numbers(group, "lr")
        for name in ("etas", "step_sizes"):
            if not isinstance(group[name], list | tuple) or len(group[name]) != 2:
                raise ValueError(f"Rprop: {name} must be two numbers, got {group[name]!r}")
            group[name] = tuple(group[name])
        if not 0 < group["etas"][0] < 1 < group["etas"][1]:
            raise ValueError(
                f"Rprop: etas must be between 0 and 1, and above 1, got {group['etas']!r}"
            )

    def _constants(self, run: Run) -> tuple[Any, ...]:
        lr, etas, sizes, maximize = run.options
        asarray, dtype = XP[type(run.param)].asarray, run.param.dtype
        return (*(asarray(value, dtype) for value in (lr, *etas, *sizes)), maximize)

    def update(self, run: Run) -> None:
        lr, down, up, least, most, maximize = run.constants
        before, size = run.states
        param, work = run.param, run.scratch
        xp = XP[type(param)]
        if run.fresh:
            xp.copyto(before, 0)
            xp.copyto(size, lr)
        step = run.direction(None, maximize)
        turn = xp.multiply(before, step)
        turned = xp.less(turn, 0)
        one = xp.constant(1, param.dtype)
        factor = xp.where(turned, down, xp.where(xp.greater(turn, 0), up, one))
        xp.multiply(size, factor, size)
        xp.maximum(size, least, out=size)
        xp.minimum(size, most, out=size)
        xp.copyto(before, xp.where(turned, xp.constant(0, param.dtype), step))
        xp.multiply(xp.sign(before, work), size, work)
        xp.subtract(param, work, param)
