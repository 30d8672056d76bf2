"""The one place that prints: lines of rank 0, which log.txt keeps, and a progress bar beside them.

Lines are plain text that a pipe or a log can hold: no control characters, no colors, no wrapping.
The bar is there only where standard output is a terminal of this process's own, or the cell of a
notebook. Under a launcher that is never so, even if it looks so: Open MPI gives ranks a
pseudo-terminal whose other end may be a file.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from ..common import threads
from ..common.threads import LAUNCH, launch_environment
from ..common.words import elapsed, labeled, number, plural, printable, rate, size
from ..config.components import import_paths
from ..config.schema import Config
from ..data import ArrayDataset
from ..optim import Optimizer
from .callbacks.base import Callback, Ending
from .progress_bar import Bar, NotebookBar, TerminalBar

ProgressMode = Literal["auto", "on", "off"]


def in_notebook(stream: TextIO | None) -> bool:
    """Whether what is written to this stream is shown below the cell of a notebook."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(stream, kernel.OutStream)


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

    Attributes:
        silent: whether it prints nothing, so that nobody need make up lines for it.
    """

    silent = False

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
            total: optimizer steps of the run, None where only a clock ends it.
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
        if isinstance(self._bar, TerminalBar) and stream.isatty():
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


class Header(Callback):
    """Says what is known before the first step; run.json has it, too."""

    def on_start(self, run: Any) -> None:
        """Where mpirun names a process that was killed, run.json says which rank that was."""
        everyone = run.comm.gather_object((socket.gethostname(), os.getpid()))
        if everyone is None:
            return
        hosts, processes = map(list, zip(*everyone, strict=True))
        about = run.execution.about()
        run.update_info(
            hosts=hosts,
            processes=processes,
            ranks=run.comm.size,
            parameters=sum(p.numel() for p in run.model.parameters()),
            compile=about,
            higher_is_better=run.higher_is_better,
        )
        if run.directory is not None and not run.output.silent:
            compiled = f"{about['executor']}: {about['reason']}"
            run.output.say(*header(run, hosts, compiled, run.path))


class Summary(Callback):
    """Says what a run has come to, and what to type next."""

    def on_end(self, run: Any, ending: Ending) -> None:
        """What it is to say."""
        self._ending = ending

    def on_stop(self, run: Any) -> None:
        """After all else."""
        if run.directory is not None:
            run.output.say(*self._ending.lines, "", *summary(run, self._ending))

    def on_error(self, run: Any, error: BaseException) -> None:
        """Of a run that somebody has interrupted."""
        if isinstance(error, KeyboardInterrupt) and run.directory is not None:
            run.output.say(
                f"interrupted after step {run.step:,}; resume from the last checkpoint with "
                f"{next_command(run.config, run.path, 'resume')}"
            )


def header(run: Any, hosts: Sequence[str], compiled: str, results: Path) -> list[str]:
    """What is known before the first step, one fact a line.

    Args:
        run: that begins.
        hosts: host name of each rank, in rank order.
        compiled: what executes the steps, and why.
        results: the run directory.
    """
    from ..common.version import __version__
    from ..runs.directory import versions

    config, data, plan, ranks = run.config, run.data, run.plan, len(hosts)
    names = list(dict.fromkeys(hosts))
    named = ", ".join(names[:4]) + " ..." * (len(names) > 4)
    mpi = versions().get("mpi", "")
    epoch = plural(plan.epoch, "step")
    duration = f"until the time is over, epochs of {epoch}"
    if plan.total is not None:
        epochs = plural(plan.total / plan.epoch, "epoch")
        duration = f"{plural(plan.total, 'step')}: {epochs} of {epoch}"
    threads_of = plural(threads.blas_threads(), "BLAS thread")
    parts_of = {"train": data.train, "val": data.val, "test": data.test}
    counts = {name: len(part) for name, part in parts_of.items() if part is not None}
    facts = {
        "ranks": f"{ranks:,} on {plural(len(names), 'host')} ({named}){f', {mpi}' if mpi else ''}",
        "device": f"{run.device or 'cpu'}, {config.dtype}, {threads_of} per rank",
        "data": ", ".join(f"{n:,} {name}" for name, n in counts.items()),
        "cache": data.cache,
        **sizes(run),
        "train": f"{duration}, batch size {run.loader.batch_size:,}"
        + (f" over {ranks:,} ranks" if ranks > 1 else ""),
        "shared": _shared(run),
        "compile": compiled,
        "results": str(results),
    }
    known = {name: fact for name, fact in facts.items() if fact}
    return [f"microtrain {__version__}: {config.name}", *labeled(known)]


def _shared(parts: Any) -> str:
    """How the ranks work together, where there is something to say."""
    model, compression = parts.model, parts.config.distributed.compression
    if (shards := parts.shards) is not None:
        return f"{shards} shards: the same bits on every number of ranks up to {shards}"
    notes = [f"overlap {model.overlap}"] if parts.comm.size > 1 else []
    if compression != "none":
        notes.append(f"gradients in {compression}")
    if model.local_batch_norm:
        notes.append(
            "batch norm sees each rank's own rows (sync_batchnorm: false): results depend on "
            "the number of ranks"
        )
    return "; ".join(notes)


def summary(run: Any, ending: Ending) -> list[str]:
    """What a run ends with, one fact a line."""
    state, seconds = run.state, ending.seconds
    status = "finished" if ending.finished else "stopped"
    in_all = took = share = ""
    if run.resumed_at is not None:
        in_all = " in all"
        took = f" since the resume after step {run.resumed_at:,}"
    if run.comm.size > 1:
        share = f", {run.model.comm_seconds / seconds:.0%} in communication"
    speed = rate(state.samples / seconds if seconds else math.nan)
    reason, _, more = ending.stop.partition(": ")
    facts = {
        status + (f" ({reason})" if reason else ""): f"{plural(state.step, 'step')} in "
        f"{elapsed(seconds)}{in_all}, {speed} samples/s{share}{f'; {more}' if more else ''}"
    }
    if (best := state.best) is not None:
        facts["best"] = f"{best.name} {number(best.value)} at step {best.step:,}"
        longer = state.still_improves and ending.finished and not ending.stop
        if longer and run.data.val is not None and not run.optimizer.needs_closure:
            facts["best"] += ", the last; still improving: train longer"
    facts["results"] = str(run.path)
    facts["took"] = f"{elapsed(seconds - state.seconds)}{took}, peak memory {size(ending.peak)}"
    of_table = run.config.data.type in ("csv", "parquet")  # new rows of it come in a file
    done = "predict" if of_table else "evaluate"
    facts["next"] = next_command(run.config, run.path, done if ending.finished else "resume")
    return labeled(facts)


def next_command(config: Config, path: Path, command: str) -> str:
    """What to type next, as this run itself was started."""
    if config.model.instance is not None:  # which only Python can make again
        if command == "resume":
            return f"Trainer(..., resume={str(path)!r}).train()"
        return f"microtrain.load({str(path)!r}, model=...)"
    program = "python -m microtrain" if sys.argv[0].endswith(".py") else "microtrain"
    more = " --input FILE" if command == "predict" else ""
    more += " --trust" if import_paths(config) else ""
    return f"{program} {command} {shlex.quote(str(path))}{more}"


def memory(run: Any) -> dict[str, int]:
    """The bytes that can be counted of what this rank needs, by what they are for."""
    storage = run.model.storage
    gradients = sum(buffer.wide.nbytes for buffer in storage.buffers)
    data = (run.data.train, run.data.val, run.data.test)
    return {
        "parameters": sum(buffer.data.nbytes for buffer in storage.buffers),
        "data": sum(a.nbytes for d in data if isinstance(d, ArrayDataset) for a in d.arrays),
        "gradients": gradients,
        "shards": 0 if run.shards is None else gradients * -(-run.shards // run.comm.size),
        "optimizer": optimizer_bytes(run.optimizer),
        "activations": _activations(run),
    }


def sizes(run: Any) -> dict[str, str]:
    """For the header: `model` and `memory`."""
    needed = memory(run)
    count = plural(sum(p.numel() for p in run.model.parameters()), "parameter")
    sent = f", {size(needed['gradients'])} reduced per step" if run.comm.size > 1 else ""
    # What its ranks share is there once.
    once = " per host" if run.comm.local_size > 1 else ""
    counted = ", ".join(
        f"{name} {size(count)}{once if name == 'data' else ''}"
        for name, count in needed.items()
        if count
    )
    there = needed["parameters"] + needed["data"]
    coming = sum(needed.values()) - there if run.device is None else 0  # with the first step
    peak = peak_memory()
    least = size(max(peak, (_status("VmRSS") or peak) + coming))
    each = " per rank" if run.comm.size > 1 else ""
    return {"model": count + sent, "memory": f"at least {least}{each}: {counted}"}


def _activations(run: Any) -> int:
    """What the graph of a micro-batch keeps for its backward pass; 0 where that is not known."""
    rows = min(run.loader.batch_size, len(run.data.train))
    parts = run.loader.accumulate * (run.shards or run.comm.size)
    return int(-(-rows // parts) * run.of_row.kept)


def optimizer_bytes(optimizer: Optimizer) -> int:
    """The states that the optimizer makes at its first step; a custom one's are not known."""
    total = 0
    for group in optimizer.param_groups:
        states = len(optimizer.states_of_group(group))
        total += states * sum(p.numel() * p._array.dtype.itemsize for p in group["params"])
    return total


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    # What getrusage counts begins, under Linux, with the memory of the process that started this.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or (peak if sys.platform == "darwin" else peak * 1024)


def _status(field: str) -> int:
    """Bytes that Linux counts for this process; 0 elsewhere."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if f"{field}:" in line)
