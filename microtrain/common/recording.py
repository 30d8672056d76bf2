"""`MODES.capture`: what the rest of the package tells a recorder while a step is captured.

Arithmetic needs no call: the arrays of a captured step lead to the recorder. What else a replay
must repeat, or must refuse, goes through the methods here. Outside of capture `MODES.capture` is
`EAGER`, which does it at once; while a step is captured it is the `Recorder` of
`capture/recorder.py`, which also writes it down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Eager:
    """Nobody records: all is done at once, and nothing is refused.

    Attributes:
        on: whether a step is recorded.
        forwards: in a recorded step the forward calls of wrapped models.
    """

    on = False
    forwards: Any = ()

    # Python that a replay repeats
    def bookkeeping(self, label: str, function: Callable[[], Any], listener: Any = None) -> None:
        """Call `function` now, and at this place of every replay; `label` says what it does.

        listener: of passes, where it is a note of theirs.
        """
        function()

    def later(self, label: str, function: Callable[[], Any]) -> bool:
        """Call `function` now; in a captured step only at this place of every replay.

        Returns whether it was called.
        """
        function()
        return True

    def examine(self, array: Any, check: Callable[[Any], None]) -> None:
        """Let `check` look at the values on the CPU, also at every replay; it may raise."""
        if type(array) is np.ndarray:
            check(array)

    # Memory
    def made(self, array: Any) -> Any:
        """A new array that has the values it has now where its life begins in every replay."""
        return array

    def looked_at(self, array: Any) -> np.ndarray[Any, Any]:
        """`array` on the host, where its values are looked at."""
        return array if type(array) is np.ndarray else array.get()

    def fixed(self, array: Any) -> Any:
        """The memory of `array`, which holds its values after each replay."""
        return array

    # What no replay would do
    def refuse(self, what: str) -> None:
        """CaptureError in a captured step, with the user's line: `what` cannot be replayed."""

    def refuse_look(self, what: str) -> None:
        """CaptureError in a captured step: `what` looks at values."""

    def refuse_hook(self, what: str) -> None:
        """CaptureError in a captured step: a replay does not run hooks, the user's Python."""


EAGER = Eager()
