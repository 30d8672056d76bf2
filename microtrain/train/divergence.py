"""A loss or gradient that is not finite: found before the update, and named."""

from __future__ import annotations

import math

import numpy as np

from ..backend import XP, to_host
from ..distributed.agreement import agreed
from ..distributed.data_parallel import DataParallel
from ..errors import DivergedError

__all__ = ["check_finite"]


def check_finite(model: DataParallel, step: int, standardized: bool) -> None:
    """Raise DivergedError, on every rank, where the update of `step` would not be finite.

    Loss and gradients are global, the same bits on every rank, so all ranks decide alike.
    """
    loss = model.loss
    if loss is None or math.isfinite(loss):
        for buffer in model.storage.buffers:
            xp = XP[type(buffer.grad)]
            # The sum of squares may overflow for finite values; only then look at each.
            square = xp.dot(buffer.grad, buffer.grad).item()
            if not math.isfinite(square) and not xp.isfinite(buffer.grad).all().item():
                break
        else:
            return
    raise agreed(DivergedError(_message(model, step, standardized)))


def _message(model: DataParallel, step: int, standardized: bool) -> str:
    """Which step, which parameter, and what to do about it."""
    lines = [f"training diverged at step {step:,}: the loss is {model.loss}"]
    worst, largest = "", -1.0
    for name, param in model.named_parameters():
        if param.grad is None:
            continue
        grad = to_host(param.grad._array)
        bad = int(grad.size - np.isfinite(grad).sum())
        where = f"{name} (layer {name.rpartition('.')[0] or type(model.module).__name__})"
        if bad:
            worst = (
                f"first parameter with a gradient that is not finite: {where}, "
                f"{bad:,} of {grad.size:,} values"
            )
            break
        if grad.size and float(np.abs(grad).max()) > largest:
            largest = float(np.abs(grad).max())
            worst = f"gradients are finite; the largest is {largest:.5g}, of {where}"
    lines += [worst] if worst else []
    lines.append(
        f"the update was not made; the parameters are those after step {step - 1:,}, and no "
        "checkpoint was written"
    )
    hint = "" if standardized else ", or data: {standardize: true}"
    lines.append(f"hint: a smaller optimizer.lr{hint}")
    return "\n".join(lines)
