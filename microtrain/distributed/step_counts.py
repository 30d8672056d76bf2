"""What a wrapped model counts on the way to a step: forward calls, and backward passes so far."""

from __future__ import annotations

from typing import Any

from .calls import Call
from .footer import Totals

MOST = 64  # calls that are kept without a look at who has their results


class Passes:
    """Of the forward calls since the last backward pass, and of the passes since the last step.

    Attributes:
        sync: whether the next pass makes a step, so that gradients are reduced after it.
        waits: whether a pass is to follow a forward call.
        given: what `count` was told the samples are; None: nothing.
        forwards: the calls that a pass may depend on, freed: those whose graphs a pass has freed.
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
        self._most = MOST
        self.kept: list[Any] | None = None
        self.current: int | None = None
        self.forwards: list[Call] = []
        self.freed: list[Call] = []
        self.forget()
        self.reset()

    def forget(self) -> None:
        """Forget what the next pass is told, and the pass under way."""
        self.waits = False
        self.given: int | None = None
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

    def wait(self) -> None:
        """A pass is to follow a forward call."""
        self.waits = True

    def called(self, call: Call) -> None:
        """Keep a forward call for the pass that may follow."""
        self.waits = True
        self.forwards.append(call)
        if len(self.forwards) > self._most:  # whose results nobody has any more
            self.forwards[:] = [one for one in self.forwards if one.alive]
            self._most = max(MOST, 2 * len(self.forwards))

    def settle(self, reached: Any = (), freed: bool = True) -> None:
        """A pass has depended on the calls `reached`, and `freed` their graphs.

        Others wait on if somebody has what they returned.
        """
        forwards = self.forwards
        used = [call for call in forwards if call in reached]
        left = [call for call in forwards if call not in reached and call.alive]
        if freed:
            forwards[:] = used
            self.free()
            used = []
        forwards[:] = sorted((*used, *left), key=lambda call: call.first)

    def free(self) -> None:
        """As `settle` where a pass has depended on all calls."""
        freed = self.freed
        freed += self.forwards
        self.forwards.clear()
        if len(freed) > 2 * MOST:
            freed[:] = [call for call in freed if call.alive][-MOST:]
