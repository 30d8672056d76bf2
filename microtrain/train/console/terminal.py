"""The one place that prints: lines of rank 0, which log.txt keeps, and a progress bar beside them.

Lines are plain text that a pipe or a log can hold: no control characters, no colours, no wrapping.
The bar is there only where standard output is a terminal of this process's own, or the cell of a
notebook. Under a launcher that is never so, even if it looks so: Open MPI gives ranks a
pseudo-terminal whose other end may be a file.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ...threads import LAUNCH, launch_environment
from ...words import elapsed, number, printable, rate

if TYPE_CHECKING:
    from rich.table import Table

ProgressMode = Literal["auto", "on", "off"]
SECONDS = 0.1  # between two drawings
STEPS = 1000  # at most
_NEW = 0.5  # what the last steps count: one says little, many are long ago


def in_notebook(stream: TextIO | None) -> bool:
    """Whether what is written to this stream is shown below the cell of a notebook."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(stream, kernel.OutStream)


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
        """What it says, in the order in which it is read; the names are for `TerminalBar`."""
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

    def print(self, line: str) -> None:
        """Write a line above the bar, as it is."""
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
        from rich.live import Live

        super().__init__(total, start, noun)

        class Plain(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # hidden, it would stay hidden after a kill

        self._console = Plain(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, get_renderable=self._line
        )
        self._live.start()

    def _line(self) -> Table:
        """What fits into the window as it is now: the steps, and of the rest the first that do."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        said = self.words()
        share = None if not self.total else f"{self.step / self.total:>4.0%}"
        left = self._console.width - 1 - len(said["steps"])
        kept = {"steps"}
        for name in ("left", "loss", "rate"):
            if name in said and len(said[name]) + 2 <= left:
                kept.add(name)
                left -= len(said[name]) + 2
        line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        cells: list[Any] = [Text(text, no_wrap=True) for n, text in said.items() if n in kept]
        if share is not None and left >= 16:
            width = min(36, left - 8)
            cells = [Text(share), ProgressBar(self.total, self.step, width=width), *cells]
        line.add_row(*cells)
        return line

    def draw(self) -> None:
        """Show what it says now."""
        self._live.refresh()

    def print(self, line: str) -> None:
        """Write a line above the bar, as it is."""
        from rich.text import Text

        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Take the bar away; may be called again."""
        self._live.stop()


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

    def print(self, line: str) -> None:
        """The page puts what is written below the bar by itself."""
        raise AssertionError

    def close(self) -> None:
        """Take the bar away; may be called again."""
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


def why_no_bar(stream: TextIO | None) -> str:
    """Why no bar can be drawn on this stream; empty where one can."""
    launch = launch_environment()
    if launch.kind != "none":
        return f"the ranks of {launch.launcher} cannot tell where their output goes"
    if in_notebook(stream):
        return ""
    if stream is None or not stream.isatty():
        return "standard output is not a terminal"
    if os.environ.get("TERM", "") in ("", "dumb"):
        return f"the terminal cannot redraw a line (TERM={os.environ.get('TERM', '')})"
    return ""


class Output:
    """Prints on rank 0 and keeps the same lines in the log; other ranks only warn.

    Args:
        rank: of this process.
        log: receives each printed line (`RunDirectory.log`); may be set later.
        stream, errors: where lines and warnings go; standard output and error by default.
        progress: whether `start_bar` draws one: `auto` where it can, `on` says where it cannot.
    """

    quiet = False  # whether nobody hears what it says

    def __init__(
        self,
        rank: int = 0,
        log: Callable[[str], None] | None = None,
        stream: TextIO | None = None,
        errors: TextIO | None = None,
        progress: ProgressMode = "auto",
    ) -> None:
        self.rank = rank
        self.log = log
        # None where it was closed, and once it cannot be written to.
        self._streams: dict[str, TextIO | None] = {
            "stdout": stream or sys.stdout,
            "stderr": errors or sys.stderr,
        }
        self._warned: set[str] = set()
        self._progress = progress
        self._bar: Bar | None = None

    def say(self, *lines: str) -> None:
        """Print lines on rank 0, flushed, so that a piped log is never behind."""
        if self.rank == 0:
            self._write("stdout", lines)

    def warn(self, text: str) -> None:
        """Print a warning with this rank's number on standard error; the same text only once."""
        if text not in self._warned:
            self._warned.add(text)
            rank = f" (rank {self.rank})" if self.rank or LAUNCH.parallel else ""
            self._write("stderr", [f"warning{rank}: {text}"])

    def start_bar(self, total: int | None, start: int = 0, noun: str = "step") -> float:
        """Draw a progress bar, on rank 0, where standard output is a terminal or a notebook's.

        Args:
            total: optimiser steps of the run, None where only a clock ends it.
            start: steps taken before.
            noun: what is counted.

        Returns the step at which `look` wants to be called first: infinity where there is no bar.
        """
        if self.rank != 0 or self._progress == "off":
            return math.inf
        stream = self._streams["stdout"]
        reason = why_no_bar(stream)
        if reason or stream is None:
            if self._progress == "on":
                self.warn(f"no progress bar: {reason}")
            return math.inf
        notebook = in_notebook(stream)
        self._bar = (
            NotebookBar(total, start, noun) if notebook else TerminalBar(stream, total, start, noun)
        )
        return start

    @property
    def draws(self) -> bool:
        """Whether there is a progress bar."""
        return self._bar is not None

    def look(self, step: int, loss: float = math.nan, samples_per_s: float = math.nan) -> float:
        """Move the bar on, as `Bar.look`; returns the step at which to call this again."""
        try:
            return math.inf if self._bar is None else self._bar.look(step, loss, samples_per_s)
        except OSError:  # the terminal has gone, which the next row will tell
            self.end_bar()
            return math.inf

    def end_bar(self) -> None:
        """Take the bar away, if there is one."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(OSError):
                bar.close()

    def _write(self, name: str, texts: Sequence[str]) -> None:
        for line in (line for text in texts for line in text.split("\n")):
            line = printable(line).rstrip()  # a host, file or column may be named anyhow
            if (stream := self._streams[name]) is not None:
                try:
                    self._print(stream, line)
                except OSError as error:  # the reader left (`| head`), or the disk is full
                    self._streams[name] = None
                    if name == "stdout":
                        self._lose_terminal(stream, error)
            if self.rank == 0 and self.log is not None:
                self.log(line)

    def _print(self, stream: TextIO, line: str) -> None:
        encoding = stream.encoding or "utf-8"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
        if self._bar is not None and stream.isatty():
            self._bar.print(line)  # above it
        else:
            stream.write(line + "\n")
            stream.flush()

    def _lose_terminal(self, stream: TextIO, error: OSError) -> None:
        """Losing the terminal is no reason to lose the run: its rows are in log.txt."""
        self.end_bar()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())  # or the interpreter fails at exit, flushing what is left
        os.close(sink)
        goes_on = "; the run goes on, its rows are in log.txt" if self.log is not None else ""
        self.warn(f"cannot print: {error.strerror}{goes_on}")
