"""The callbacks that every run has, in their order.

They measure, say, write down, and pass on that the run is to end. A timeline is of Chrome's trace
events, for chrome://tracing or https://ui.perfetto.dev: one file a rank, opened together they lie
below each other; the clocks of all ranks begin behind a barrier.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

from ...config.measure import Measure
from ...data import Source
from ...distributed.replicas import check_replicas
from ...files import make_directory, write_whole
from ..evaluation import evaluate, own_step
from ..metrics.base import Metric
from ..run import TrainingRun, next_multiple
from ..stop_requests import EVALUATE, STOP
from .base import Callback, Ending, Event

OF_CONFIGURATION: Final = "callbacks"  # where those stand that a configuration lists
# Each finds in the event what those before it have left there. Those of layers above are named.
CALLBACKS: Final = (
    "microtrain.train.callbacks.order:Bar",
    "microtrain.train.console.messages:Header",
    OF_CONFIGURATION,
    "microtrain.train.callbacks.order:Evaluator",
    "microtrain.train.callbacks.rows:RowWriter",
    "microtrain.train.callbacks.order:Agreement",
    "microtrain.train.callbacks.checkpoints:Checkpoints",
    "microtrain.train.callbacks.checkpoints:Results",
    "microtrain.report.observer:Report",
    "microtrain.train.callbacks.order:Timeline",
    "microtrain.train.console.messages:Summary",
)


class Timeline(Callback):
    """Writes the timelines of all ranks, beside the metrics, where they are asked for."""

    def on_start(self, run: TrainingRun) -> None:
        """Begin with all other ranks."""
        if run.wants_trace:
            run.comm.barrier()
            run.trace = Trace(run.comm.rank, socket.gethostname())
            run.model.on_reduced = run.trace.add

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """Without timelines a run has not failed."""
        if run.trace is not None:
            try:
                run.trace.write(run.path / "trace")
            except OSError as error:  # another host may not see the directory
                run.output.warn(f"no timeline of rank {run.comm.rank}: {error}")


class Evaluator(Callback):
    """Measures the validation data; without such, the metrics of the training data."""

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock."""
        return next_multiple(step, run.plan.evaluate)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Leave what was measured, by column name, and a line in metrics.jsonl."""
        split = run.evaluated
        if event.asked[EVALUATE]:
            run.requests.done(EVALUATE)
        if not event.evaluate or (split == "train" and not run.metrics):
            return
        began = time.perf_counter()
        values = measure(run, run.data.val or run.data.train)
        if split == "train":
            values.pop("loss")  # the row shows the loss of the steps themselves
        ended = time.perf_counter()
        run.progress.paused += ended - began
        run.log_metrics({"split": split, **run.where(), **values, "time": ended - run.started})
        event.measured = {Measure.of(split, name): value for name, value in values.items()}
        run.state.note_best(event.measured)


def measure(run: TrainingRun, dataset: Source, *more: Metric) -> dict[str, Any]:
    """Loss and metrics on a data set, once the ranks have seen that their replicas are equal."""
    started, module = time.perf_counter(), run.model.module
    # Here and not at every step: it reads all parameters.
    check_replicas(module, run.comm, f"step {run.step:,}")
    parts = [*run.metrics, *more], dataset, run.comm, run.device, run.shards
    row_bytes = None if run.of_row is None else run.of_row.output
    values = evaluate(module, run.loss, *parts, step=own_step(run), row_bytes=row_bytes)
    if run.trace is not None:
        run.trace.add("evaluate", started, time.perf_counter())
    return values


class Bar(Callback):
    """Moves the progress bar, where there is one: the first, so that it is above what is said."""

    _at = math.inf

    def due(self, run: TrainingRun, step: int) -> float:
        """Ten times a second or less often."""
        return max(self._at, step + 1)

    def on_start(self, run: TrainingRun) -> None:
        """Draw it."""
        self._at = run.output.start_bar(run.total_steps, run.step)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Draw it anew, if its time has come: from numbers that every step leaves."""
        if event.step >= self._at:
            self._at = run.output.look(event.step, *run.progress.look(run.samples))


class Agreement(Callback):
    """Lets all ranks end the run after the same step, for the same reason."""

    def on_start(self, run: TrainingRun) -> None:
        """A run that is resumed may have ended, or have to end after one more step."""
        if run.state.resumed_at is not None and not run.state.to_be_stopped:
            agree_to_stop(run)
            run.state.ended = bool(run.state.stop)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Where a checkpoint is written, rank 0 must know what others were asked for."""
        stopping = bool(event.asked[STOP])
        kept = event.evaluate or event.save or run.state.at_best
        if stopping or (kept and run.comm.any(bool(run.state.stop))):
            reason = agree_to_stop(run)
            if stopping or event.evaluate:  # else it travels with the next step
                event.stop = reason


def agree_to_stop(run: TrainingRun) -> str:
    """Let all ranks know what any was asked for; returns why to stop, if anyone wants that."""
    reasons = run.comm.all_gather_object((run.state.stop, run.requests.reason))
    clock = "duration" if ("", "duration") in reasons else ""
    run.state.stop = next((asked for asked, _ in reasons if asked), clock)
    return run.state.stop or next((reason for _, reason in reasons if reason), "")


MOST = 200_000  # events; a file of some 20 MB, which browsers still open

R = TypeVar("R")


class Trace:
    """The events of one rank."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank, self.host = rank, host
        self.began = time.perf_counter()
        self.events: list[tuple[str, float, float]] = []

    def add(self, name: str, start: float, end: float) -> None:
        """Note an event; times are those of `time.perf_counter`."""
        if len(self.events) < MOST:
            self.events.append((name, start, end))

    def timed(self, name: str, function: Callable[..., R]) -> Callable[..., R]:
        """`function`, each call of which is an event."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> R:
            start = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                self.add(name, start, time.perf_counter())

        return call

    def write(self, directory: Path) -> Path:
        """Write `rank-N.json` into `directory`, which is made; returns its path."""
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": self.rank,
             "args": {"name": f"rank {self.rank} on {self.host}"}},
            *(
                {"ph": "X", "name": name, "pid": self.rank, "tid": 0,
                 "ts": (start - self.began) * 1e6, "dur": (end - start) * 1e6}
                for name, start, end in self.events
            ),
        ]  # fmt: skip
        directory.parent.mkdir(parents=True, exist_ok=True)
        make_directory(directory)
        path = directory / f"rank-{self.rank}.json"
        write_whole(path, json.dumps({"traceEvents": events}).encode())
        return path
