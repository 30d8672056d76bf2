"""What a wrapped model counts on the way to a step: forward calls, and backward passes so far."""

from __future__ import annotations

from typing import Any

from .control_lane import Totals

__all__ = ["Passes"]


class Passes:
    """Of the forward calls since the last backward pass, and of the passes since the last step.

    Attributes:
        sync: whether the next pass makes a step, so that gradients are reduced after it.
        pending: samples of the forward calls; None: there was none.
        given: what `count` was told instead; None: nothing.
        forwards: numbers of nodes around these calls.
        running: whether a backward pass is under way.
        alone: whether that one makes a step by itself.
        current: its samples.
        empty: where that is 0, what the gradients were before it.
        open: whether passes wait to be reduced with others.
        cleared: how often gradients had been cleared when the first of them began.
        rows, weight, loss, not_scalar: as in `Totals`.
        counted: whether the samples of all of them are known.
        made: how many made a step.
        structure: `STRUCTURE` when all parameters were known to be those that were wrapped.
        kept: gradients of earlier steps, to be added to; None: there were none.
    """

    def __init__(self) -> None:
        self.sync = self.alone = True
        self.cleared, self.structure, self.made = 0, -1, 0
        self.kept: list[Any] | None = None
        self.current: int | None = None
        self.forget()
        self.reset()

    def forget(self) -> None:
        """Forget the forward calls, and the pass under way."""
        self.pending: int | None = None
        self.given: int | None = None
        self.forwards: list[tuple[int, int]] = []
        self.empty: list[Any] | None = None
        self.running = False

    def reset(self) -> None:
        """Forget the passes that wait."""
        self.open, self.counted, self.kept = False, True, None
        self.clear_totals()

    def clear_totals(self) -> None:
        """Count from 0 again."""
        self.rows, self.weight, self.loss, self.not_scalar = 0, 0.0, 0.0, 0

    def totals(self) -> Totals:
        """What the passes that wait add up to."""
        return Totals(self.rows, self.weight, self.loss, self.not_scalar)

    @property
    def samples(self) -> int | None:
        """Of the forward calls, or as given."""
        return self.pending if self.given is None else self.given
