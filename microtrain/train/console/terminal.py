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
from collections.abc import Callable, Sequence
from typing import Literal, TextIO

from ...threads import LAUNCH, launch_environment
from ...words import printable
from .bar import Bar, NotebookBar, TerminalBar, in_notebook

Wish = Literal["auto", "on", "off"]


def why_none(stream: TextIO | None) -> str:
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

    def __init__(
        self,
        rank: int = 0,
        log: Callable[[str], None] | None = None,
        stream: TextIO | None = None,
        errors: TextIO | None = None,
        progress: Wish = "auto",
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
        reason = why_none(stream)
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
        self.warn(f"cannot print: {error.strerror}; the run goes on, its rows are in log.txt")
