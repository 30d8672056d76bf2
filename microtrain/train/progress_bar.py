"""Progress bars: one line of a terminal, or an element above what a cell of a notebook prints."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, TextIO

from ..common.words import elapsed, number, rate

SECONDS = 0.1  # between two drawings
STEPS = 1000  # at most
_NEW = 0.5  # what the last steps count: one says little, many are long ago


class Bar:
    """What the bars have in common: when they are drawn, and what they say.

    Args:
        total: steps of the run, None where only a clock ends it.
        start: steps taken before.
        noun: what is counted.
    """

    def __init__(self, total: int | None, start: int = 0, noun: str = "step") -> None:
        self.total, self.step, self.noun = total, start, noun
        self.loss = self.rate = math.nan
        self._past = deque([(time.monotonic(), start)], maxlen=100)  # drawings: time, step

    def look(self, step: int, loss: float = math.nan, samples_per_s: float = math.nan) -> int:
        """Draw the bar; returns the step at which to call this again, by the speed so far.

        Args:
            step: steps taken.
            loss: the mean over those since the last drawing.
            samples_per_s: since the last row.
        """
        self.step, self.rate = step, samples_per_s
        if math.isfinite(loss):
            self.loss = loss if math.isnan(self.loss) else self.loss + _NEW * (loss - self.loss)
        self.draw()
        before, taken_before = self._past[-1]
        now = time.monotonic()
        self._past.append((now, step))
        taken, spent = max(1, step - taken_before), max(now - before, 1e-9)
        return step + max(1, min(STEPS, 2 * taken, math.ceil(taken * SECONDS / spent)))

    def words(self) -> dict[str, str]:
        """What it says, in the order in which it is read."""
        steps = f"{self.noun} {self.step:,}"
        said = {"steps": steps + (f" of {self.total:,}" if self.total is not None else "")}
        if math.isfinite(self.loss):
            said["loss"] = f"loss {number(self.loss)}"
        if math.isfinite(self.rate):
            said["rate"] = f"{rate(self.rate)} samples/s"
        began, first = self._past[0]
        if self.total is not None and self.step > first:
            left = (time.monotonic() - began) / (self.step - first) * (self.total - self.step)
            said["left"] = f"{elapsed(left) if left > 59 else f'{left:.0f} s'} left"
        return said

    def draw(self) -> None:
        """Show what it says now."""
        raise NotImplementedError

    def close(self) -> None:
        """Take the bar away; may be called again."""
        raise NotImplementedError


class TerminalBar(Bar):
    """One line of a terminal, never wider than it; what `print` writes stands above it."""

    def __init__(
        self, stream: TextIO, total: int | None, start: int = 0, noun: str = "step"
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(total, start, noun)

        class Plain(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # hidden, it would stay hidden after a kill

        console = Plain(file=stream, highlight=False, markup=False, emoji=False)
        share = [] if total is None else [TextColumn("{task.percentage:>3.0f}%"), BarColumn(None)]
        words = TextColumn("{task.description}", markup=False)
        self._progress = Progress(
            *share, words, console=console, auto_refresh=False, transient=True, expand=True
        )
        self._task = self._progress.add_task(self.words()["steps"], total=total, completed=start)
        self._progress.start()

    def draw(self) -> None:
        """Show what it says now."""
        words = "  ".join(self.words().values())
        self._progress.update(self._task, completed=self.step, description=words, refresh=True)

    def print(self, line: str) -> None:
        """Write a line above the bar, as it is."""
        from rich.text import Text

        self._progress.console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Take the bar away; may be called again."""
        self._progress.stop()


class NotebookBar(Bar):
    """An element above what a cell of a notebook prints, drawn by the page; needs no widgets."""

    def __init__(self, total: int | None, start: int = 0, noun: str = "step") -> None:
        from IPython import display

        super().__init__(total, start, noun)
        show: Any = display.display
        self._handle = show(self._bundle(), raw=True, display_id=True)

    def _bundle(self) -> dict[str, str]:
        text = ", ".join(self.words().values())
        ends = "" if self.total is None else f'value="{self.step}" max="{self.total}"'
        element = f'<progress {ends} style="width: 18em; vertical-align: middle"></progress>'
        return {"text/plain": text, "text/html": f"{element}&ensp;<code>{text}</code>"}

    def draw(self) -> None:
        """Show what it says now."""
        self._handle.update(self._bundle(), raw=True)

    def close(self) -> None:
        """Take the bar away; may be called again."""
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
