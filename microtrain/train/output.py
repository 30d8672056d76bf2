"""What a run says before and after its rows, and the one place that prints.

Everything that formats returns lines; `Output` alone prints, on rank 0, and keeps the same lines
in log.txt. It is plain text that a pipe or a log can hold: no control characters, no colours, no
wrapping.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from ..words import elapsed, labelled, number, plural, printable, rate
from .live import Bar, Wish, why_none

__all__ = ["Header", "Output", "Summary", "truth_lines"]


@dataclass(frozen=True)
class Header:
    """What is known before the first step.

    Attributes:
        title: program, version and run name, as one line.
        hosts: host name of each rank, in rank order; its length is the number of ranks.
        mpi: name and version of the MPI library, "" without one.
        blas_threads: threads of each rank.
        samples: rows of each part of the data, `{"train": 8000, "val": 2000}`.
        prediction: what can be counted: model and memory.
        steps: optimiser steps of the run, None where only a clock ends it.
        steps_per_epoch, batch_size: of the whole job (a global batch).
        compile: what executes the steps, and why.
        results: the run directory.
        shared: how the ranks work together, "" where there is nothing to say.
    """

    title: str
    hosts: Sequence[str]
    mpi: str
    device: str
    dtype: str
    blas_threads: int
    samples: Mapping[str, int]
    prediction: Mapping[str, str]
    steps: int | None
    steps_per_epoch: int
    batch_size: int
    compile: str
    results: str
    shared: str = ""

    def lines(self) -> list[str]:
        """The header, one fact a line."""
        ranks = len(self.hosts)
        hosts = list(dict.fromkeys(self.hosts))
        named = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4:,} more" if len(hosts) > 4 else "")
        placed = f"{ranks:,} on {plural(len(hosts), 'host')} ({named})"
        epoch = plural(self.steps_per_epoch, "step")
        if self.steps is None:
            duration = f"until the time is over, epochs of {epoch}"
        else:
            epochs = plural(self.steps / self.steps_per_epoch, "epoch")
            duration = f"{plural(self.steps, 'step')}: {epochs} of {epoch}"
        facts = {
            "ranks": placed + (f", {self.mpi}" if self.mpi else ""),
            "device": f"{self.device}, {self.dtype}, "
            f"{plural(self.blas_threads, 'BLAS thread')} a rank",
            "data": ", ".join(f"{count:,} {part}" for part, count in self.samples.items()),
            **self.prediction,
            "train": f"{duration}, batch size {self.batch_size:,}"
            + (f" over {ranks:,} ranks" if ranks > 1 else ""),
            **({"shared": self.shared} if self.shared else {}),
            "compile": self.compile,
            "results": self.results,
        }
        return [self.title, *labelled(facts)]


@dataclass(frozen=True)
class Summary:
    """What a run ends with.

    Attributes:
        status: finished, stopped, diverged or failed.
        steps: optimiser steps taken.
        seconds: wall-clock time of training.
        in_all: words for a run of several parts, whose time that is.
        samples_per_s: over the whole run.
        comm_share: share of the time in communication, 0 to 1; None with one rank.
        best: (name, value, step) of the monitored value, None without one.
        results: the run directory.
        took: time and memory.
        next_command: what to type next.
    """

    status: str
    steps: int
    seconds: float
    samples_per_s: float
    comm_share: float | None
    best: tuple[str, float, int] | None
    results: str
    took: str
    next_command: str
    in_all: str = ""

    def lines(self) -> list[str]:
        """The summary, one fact a line."""
        share = "" if self.comm_share is None else f", {self.comm_share:.0%} in communication"
        facts = {
            self.status: f"{plural(self.steps, 'step')} in {elapsed(self.seconds)}{self.in_all}, "
            f"{rate(self.samples_per_s)} samples/s{share}"
        }
        if self.best is not None:
            name, value, step = self.best
            facts["best"] = f"{name} {number(value)} at step {step:,}"
        facts["results"] = self.results
        facts["took"] = self.took
        facts["next"] = self.next_command
        return labelled(facts)


def truth_lines(
    weight: Any, bias: Any, truth: Mapping[str, Any], names: Sequence[str], limit: int = 10
) -> list[str]:
    """Learned weights and bias of a linear model beside the true ones.

    Args:
        weight: one learned weight a feature, shape (features,) or (1, features).
        bias: the learned bias, a number or an array of one; None when the model has none.
        truth: `{"weights": [2.0], "bias": 3.0}`, as ArrayDataset.truth has it.
        names: one a feature.
        limit: features shown before the rest is summed up in one line.
    """
    learned = np.asarray(weight, dtype=np.float64).reshape(-1)
    true = np.asarray(truth["weights"], dtype=np.float64).reshape(-1)
    entries = list(zip(names, learned.tolist(), true.tolist(), strict=True))
    shown = entries[:limit]
    if bias is not None:
        learned_bias = float(np.asarray(bias, dtype=np.float64).reshape(()))
        shown.append(("bias", learned_bias, float(truth.get("bias", 0.0))))
    width = max(len(name) for name in ("weight", *(name for name, _, _ in shown)))
    lines = [f"{'weight':<{width}}  {'learned':>11}  {'truth':>11}  {'difference':>11}"]
    for name, found, expected in shown:
        cells = (number(found), number(expected), number(found - expected))
        lines.append(f"{name:<{width}}  " + "  ".join(cell.rjust(11) for cell in cells))
    if len(entries) > limit:
        worst = float(np.abs(learned - true)[limit:].max())
        rest = plural(len(entries) - limit, "more weight")
        lines.append(f"{rest}, the largest difference is {number(worst)}")
    return lines


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
        self._stream: TextIO | None = stream or sys.stdout  # None where it was closed
        self._errors: TextIO | None = errors or sys.stderr
        self._warned: set[str] = set()
        self._progress = progress
        self._bar: Bar | None = None

    def say(self, *lines: str) -> None:
        """Print lines on rank 0, flushed, so that a piped log is never behind."""
        if self.rank != 0:
            return
        for line in _lines(lines):
            if self._stream is not None:
                try:
                    self._print(self._stream, line)
                except OSError as error:  # the reader left (`| head`), or the disk is full
                    self._give_up(self._stream, error)
            if self.log is not None:
                self.log(line)

    def start_bar(self, total: int | None, start: int = 0) -> float:
        """Draw a progress bar below the rows, on rank 0, where standard output is a terminal.

        Args:
            total: optimiser steps of the run, None where only a clock ends it.
            start: steps taken before.

        Returns the step at which `look` wants to be called first: infinity where there is no bar.
        """
        if self.rank != 0 or self._progress == "off":
            return math.inf
        reason = why_none(self._stream)
        if reason:
            if self._progress == "on":
                self.warn(f"no progress bar: {reason}")
            return math.inf
        assert self._stream is not None
        self._bar = Bar(self._stream, total, start)
        return start

    def look(self, step: int) -> float:
        """Move the bar on; returns the step at which to call this again."""
        try:
            return math.inf if self._bar is None else self._bar.look(step)
        except OSError:  # the terminal has gone, which the next row will tell
            self.end_bar()
            return math.inf

    def end_bar(self) -> None:
        """Take the bar away, if there is one."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(OSError):
                bar.close()

    def _print(self, stream: TextIO, line: str) -> None:
        encoding = stream.encoding or "utf-8"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
        if self._bar is not None and stream.isatty():
            self._bar.print(line)  # above it
        else:
            stream.write(line + "\n")
            stream.flush()

    def _give_up(self, stream: TextIO, error: OSError) -> None:
        """Losing the terminal is no reason to lose the run: its rows are in log.txt."""
        self._stream = None
        self.end_bar()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())  # or the interpreter fails at exit, flushing what is left
        os.close(sink)
        self.warn(f"cannot print: {error.strerror}; the run goes on, its rows are in log.txt")

    def warn(self, text: str) -> None:
        """Print a warning with this rank's number on standard error; the same text only once."""
        if text in self._warned:
            return
        self._warned.add(text)
        for line in _lines([f"warning (rank {self.rank}): {text}"]):
            if self._errors is not None:
                try:
                    self._print(self._errors, line)
                except OSError:  # nobody reads it: the log does
                    self._errors = None
            if self.rank == 0 and self.log is not None:
                self.log(line)


def _lines(texts: Iterable[str]) -> list[str]:
    """One entry a line; control characters (of a host, file or column name) spelled out."""
    return [printable(line).rstrip() for text in texts for line in text.split("\n")]
