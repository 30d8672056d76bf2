"""The progress bar below the rows of a run, where a person watches: drawn by rich, for rank 0.

It is drawn only where standard output is a terminal of this process's own. Under a launcher that is
never so, even if it looks so: Open MPI gives ranks a pseudo-terminal whose other end may be a file.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Literal, TextIO

from ..threads import launch_environment

__all__ = ["Bar", "Wish", "why_none"]

Wish = Literal["auto", "on", "off"]

SECONDS = 0.1  # between two drawings
STEPS = 1000  # at most between two looks at the clock


def why_none(stream: TextIO | None) -> str:
    """Why no bar can be drawn on this stream; empty where one can."""
    launch = launch_environment()
    if launch.kind != "none":
        return f"the ranks of {launch.launcher} cannot tell where their output goes"
    if stream is None or not stream.isatty():
        return "standard output is not a terminal"
    if os.environ.get("TERM", "") in ("", "dumb"):
        return f"the terminal cannot redraw a line (TERM={os.environ.get('TERM', '')})"
    return ""


class Bar:
    """One line that shows how far a run is; what `print` writes stands above it.

    No thread draws it: the loop calls `look` at the steps that it is told, ten times a second or
    less often. A run that is killed leaves the terminal as it was, the cursor included.

    Args:
        stream: a terminal.
        total: steps of the run, None where only a clock ends it.
        start: steps taken before.
    """

    def __init__(self, stream: TextIO, total: int | None, start: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        class Plain(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # hidden, it would stay hidden after a kill

        self._progress = Progress(
            TextColumn("{task.percentage:>3.0f}%" if total else ""),
            BarColumn(bar_width=36),
            TextColumn("step {task.fields[shown]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left" if total else ""),
            console=Plain(file=stream, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=True,
        )
        self._of = f" of {total:,}" if total else ""
        shown = f"{start:,}{self._of}"
        self._task = self._progress.add_task("", total=total, completed=start, shown=shown)
        self._pace = Pace(SECONDS, start)
        self._progress.start()

    def look(self, step: int) -> int:
        """Draw the bar if its time has come; returns the step to call this at again."""
        if self._pace.passed(step):
            shown = f"{step:,}{self._of}"
            self._progress.update(self._task, completed=step, shown=shown, refresh=True)
        return self._pace.at

    def print(self, line: str) -> None:
        """Write a line above the bar, as it is."""
        from rich.text import Text

        self._progress.console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Take the bar away; may be called again."""
        self._progress.stop()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Pace:
    """Says every so many seconds that they have passed, without a look at the clock at each step.

    Attributes:
        at: the step at which to ask next.
    """

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds = seconds
        self._every = 1
        self._step, self._time = step, time.monotonic()
        self.at = step

    def passed(self, step: int) -> bool:
        """Whether the seconds have passed since this last said so."""
        now = time.monotonic()
        spent = now - self._time
        passed = spent >= self._seconds
        wanted = 2.0 * self._every
        if passed:
            wanted = (step - self._step) * self._seconds / spent
            self._step, self._time = step, now
        self._every = max(1, min(STEPS, 2 * self._every, math.ceil(wanted)))
        self.at = step + self._every
        return passed
