"""Why a run has diverged."""

from __future__ import annotations

from typing import Any

from .divergence import worst_gradient

__all__ = ["autopsy"]


def autopsy(trainer: Any, micro_batches: Any) -> str:
    """The message: which step, which parameter, and what to do about it."""
    model, step = trainer.model, trainer.step + 1
    lines = [f"training diverged at step {step:,}: the loss is {model.loss}"]
    worst = worst_gradient(model)
    lines += [worst] if worst else []
    if trainer.skips is not None:
        lines.append(
            f"train.nan: skip gives up: {trainer.skips.most} updates in a row were skipped before"
        )
    lines.append(
        f"the update was not made; the parameters are those after step {step - 1:,}, and no "
        "checkpoint was written"
    )
    hint = "" if trainer.config.data.standardize else ", or data: {standardize: true}"
    lines.append(f"hint: a smaller optimizer.lr{hint}")
    return "\n".join(lines)
