"""What a `DataParallel` model counts during a step: its forward calls and backward passes.

A step ends with the pass whose gradients are reduced; under `no_sync` several passes precede it,
which are pending until then.
"""

from __future__ import annotations

from typing import Any

from .calls import Call
from .footer import Totals

MOST = 64  # forward calls that are kept before those whose results are gone are dropped


class Passes:
    """The forward calls that wait for a backward pass, and the passes since the last step.

    Attributes:
        sync: whether the next pass ends a step: gradients are reduced after it.
        waits: whether a forward call waits for its backward pass.
        samples_given: the samples of the next pass, by `count`; None: they are to be found.
        forwards: the calls that a pass may depend on.
        freed: calls whose graphs a pass has freed, to recognize an attempt to use them again.
        running: whether a backward pass is under way.
        alone: whether that pass is the only one of its step.
        samples: those of that pass.
        undo: where that is 0: the gradients before the pass, which it must not change.
        pending: whether passes have been made that are not reduced yet.
        cleared: the storage's `cleared` when the first of these began: if it has changed since,
            zero_grad() has discarded them.
        rows, weight, loss, not_scalar: the sums over these, as in `Totals`.
        counted: whether the samples of all these are known.
        steps: how many steps were made.
        structure: the value of `STRUCTURE` when the parameters were last compared with the model's.
        earlier: gradients of earlier steps, set aside to be added again; None: there were none.
    """

    def __init__(self) -> None:
        self.sync = self.alone = True
        self.cleared, self.structure, self.steps = 0, -1, 0
        self._most = MOST
        self.earlier: list[Any] | None = None
        self.samples: int | None = None
        self.forwards: list[Call] = []
        self.freed: list[Call] = []
        self.forget()
        self.reset()

    def forget(self) -> None:
        """Forget the pass under way, and what was said of the next one."""
        self.waits = False
        self.samples_given: int | None = None
        self.undo: list[Any] | None = None
        self.running = False

    def reset(self) -> None:
        """Forget the pending passes."""
        self.pending, self.counted, self.earlier = False, True, None
        self.clear_totals()

    def clear_totals(self) -> None:
        """Set the sums to 0."""
        self.rows, self.weight, self.loss, self.not_scalar = 0, 0.0, 0.0, 0

    def totals(self) -> Totals:
        """The sums over the pending passes."""
        return Totals(self.rows, self.weight, self.loss, self.not_scalar)

    def wait(self) -> None:
        """Note a forward call that waits for its backward pass."""
        self.waits = True

    def called(self, call: Call) -> None:
        """Keep a forward call for the pass that may follow."""
        self.waits = True
        self.forwards.append(call)
        if len(self.forwards) > self._most:  # of some the results may be gone
            self.forwards[:] = [one for one in self.forwards if one.alive]
            self._most = max(MOST, 2 * len(self.forwards))

    def settle(self, reached: Any = (), freed: bool = True) -> None:
        """Note that a pass has depended on the calls `reached`, and has `freed` their graphs.

        The others keep waiting while what they returned is alive.
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
        """`settle` of a pass that has depended on all calls, and freed their graphs."""
        freed = self.freed
        freed += self.forwards
        self.forwards.clear()
        if len(freed) > 2 * MOST:
            freed[:] = [call for call in freed if call.alive][-MOST:]
