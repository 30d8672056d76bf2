"""The callbacks that every run has, in their order.

They measure, say, write down, and pass on that the run is to end. A timeline is of Chrome's trace
events, for chrome://tracing or https://ui.perfetto.dev: one file a rank, opened together they lie
below each other; the clocks of all ranks begin behind a barrier. A row is one line, its columns
were fixed before training began, and their number is bounded: a run of a million steps is still
read in one sitting.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...common.files import make_directory, write_whole
from ...common.words import number, rate, terminal_width, unfit
from ...config.texts import Measure
from ...data import Source
from ...distributed.replicas import check_replicas, take_buffers_of_rank_0
from ..build_run import EVALUATE, STOP
from ..evaluation import evaluate, own_step
from ..metrics.base import Metric
from ..run import TrainingRun, next_multiple
from .base import Callback, Ending, Event

OF_CONFIGURATION: Final = "callbacks"  # where those stand that a configuration lists
# Each finds in the event what those before it have left there. Those of layers above are named.
CALLBACKS: Final = (
    "microtrain.train.callbacks.order:Bar",
    "microtrain.train.console:Header",
    OF_CONFIGURATION,
    "microtrain.train.callbacks.order:Evaluator",
    "microtrain.train.callbacks.order:RowWriter",
    "microtrain.train.callbacks.order:Agreement",
    "microtrain.train.callbacks.checkpoints:Checkpoints",
    "microtrain.train.callbacks.checkpoints:InMemory",
    "microtrain.train.callbacks.results:Results",
    "microtrain.report.observer:Report",
    "microtrain.train.callbacks.order:Timeline",
    "microtrain.train.console:Summary",
)


MOST = 200_000  # events; a file of some 20 MB, which browsers still open


class Timeline(Callback):
    """Writes the timelines of all ranks, beside the metrics, where they are asked for."""

    def __init__(self) -> None:
        self.began, self.events = time.perf_counter(), list[tuple[str, float, float]]()

    def on_start(self, run: TrainingRun) -> None:
        """Begin with all other ranks."""
        if run.wants_trace:
            run.comm.barrier()
            self.began = time.perf_counter()
            run.trace, run.model.on_reduced = self, self.add

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """Without timelines a run has not failed."""
        if run.trace is not None:
            try:
                self.write(run.path / "trace", run.comm.rank)
            except OSError as error:  # another host may not see the directory
                run.output.warn(f"no timeline of rank {run.comm.rank}: {error}")

    def add(self, name: str, start: float, end: float) -> None:
        """Note an event; times are those of `time.perf_counter`."""
        if len(self.events) < MOST:
            self.events.append((name, start, end))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, each call of which is an event."""

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.add(name, start, time.perf_counter())

        return call

    def write(self, directory: Path, rank: int) -> None:
        """Write `rank-N.json` into `directory`, which is made."""
        about = {"name": f"rank {rank} on {socket.gethostname()}"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": about},
            *(
                {"ph": "X", "name": name, "pid": rank, "tid": 0,
                 "ts": (start - self.began) * 1e6, "dur": (end - start) * 1e6}
                for name, start, end in self.events
            ),
        ]  # fmt: skip
        directory.parent.mkdir(parents=True, exist_ok=True)
        make_directory(directory)
        content = json.dumps({"traceEvents": events}).encode()
        write_whole(directory / f"rank-{rank}.json", content)


class Evaluator(Callback):
    """Measures the validation data; without such, the metrics of the training data."""

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock."""
        return next_multiple(step, run.plan.evaluate)

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Leave what was measured, by column name, and a line in metrics.jsonl."""
        split = run.evaluated
        run.state.monitored = None  # until it is measured after this step, too
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
    if run.model.local_batch_norm:  # whose running statistics a checkpoint has of rank 0
        take_buffers_of_rank_0(run.comm, module)
    parts = [*run.metrics, *more], dataset, run.comm, run.device, run.shards
    values = evaluate(
        module, run.loss, *parts, step=own_step(run), row_bytes=run.of_row.output,
        target_scaling=run.data.target_scaling,
    )  # fmt: skip
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
        if run.resumed_at is not None and not run.to_be_stopped:
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


class RowSchedule:
    """After which optimizer steps a row is printed.

    Without `every` (log.every: auto) a run has at most 200 rows: one an epoch, or one every 2, 5,
    10, 20 ... epochs in a long run, and several an epoch in a run of fewer than 20. Rows fall on
    the ends of epochs, where validation is. The last step always has one.

    Args:
        total_steps: optimizer steps of the run; None where only a clock ends it, when the distance
            of rows doubles every 20 rows: after 20, 60, 140 ... epochs.
        steps_per_epoch: optimizer steps of one epoch.
        every: rows are this many steps apart, however many that makes.
    """

    limit = 200

    def __init__(
        self, total_steps: int | None, steps_per_epoch: int, every: int | None = None
    ) -> None:
        self._total = total_steps
        self._doubling = total_steps is None and every is None
        # So many rows in so many steps, evenly.
        self._rows, self._steps = 1, every or steps_per_epoch
        if total_steps is not None and every is None:
            epochs = total_steps / steps_per_epoch
            if epochs < 20:
                self._rows = math.ceil(20 / epochs)
            else:
                self._steps *= round_up(epochs / (self.limit - 1))

    def next_step(self, step: int) -> int:
        """The first step after `step` that has a row."""
        steps = self._steps
        if self._doubling:
            steps <<= (step // (20 * steps) + 1).bit_length() - 1
        before = step * self._rows // steps
        due = -(-(before + 1) * steps // self._rows)
        return due if self._total is None else min(due, self._total)

    def due(self, step: int) -> bool:
        """Whether this step has a row."""
        return self.next_step(step - 1) == step


class Rows:
    """The aligned table of a run: step, epoch, losses and metrics, samples/s, communication.

    Args:
        names: the columns between epoch and samples/s, such as `train/loss`, `val/loss`, `val/r2`.
        monitor: the one of `names` whose best value is marked by `*`.
        total_steps: sets the width of the first columns; None leaves room for a billion.
        steps_per_epoch: optimizer steps of one epoch.
        width: columns that do not fit into so many characters are left out: the clock's first, then
            the last metrics, never a loss nor what is monitored.

    Attributes:
        left_out: their headings.

    Example:
        rows = Rows(["train/loss", "val/loss"], "val/loss", total_steps=2500, steps_per_epoch=125)
        print(rows.heading())
        print(rows.row({"step": 125, "epoch": 1.0, "train/loss": 0.4, "val/loss": 0.3}, best=True))
    """

    def __init__(
        self,
        names: Sequence[str],
        monitor: str,
        total_steps: int | None,
        steps_per_epoch: int,
        width: float = math.inf,
    ) -> None:
        steps = 10**9 if total_steps is None else total_steps
        self._monitor = monitor
        self._widths = {
            "step": max(4, len(f"{steps:,}")),
            "epoch": max(5, len(f"{steps / steps_per_epoch:,.2f}")),
            **{name: max(len("-1.2346e-05"), len(name)) for name in names},
            "samples_per_s": 9,
            "comm_share": 4,
        }
        self._known = dict.fromkeys(self._widths, "-")
        losses = [name for name in names if name.endswith("/loss")]
        spare = [name for name in (*names, *_CLOCK) if name not in (*losses, monitor)]
        while spare and len(self.heading()) > width:
            del self._widths[spare.pop()]
        hidden = [name for name in self._known if name not in self._widths]
        self.left_out = [_HEADINGS.get(name, name) for name in hidden]

    def heading(self) -> str:
        """The names of the columns."""
        return self._line({name: _HEADINGS.get(name, name) for name in self._widths}, " ")

    def row(self, values: Mapping[str, float | None], best: bool = False) -> str:
        """One row. Keys: step, epoch, the names, samples_per_s, comm_share; absent shows as `-`.

        `best` marks the monitored value. Raises KeyError for a value that has no column.
        """
        cells = self._known.copy()
        for name, value in values.items():
            cells[name]  # a value without a column must not vanish
            if value is not None:
                cells[name] = _FORMATS.get(name, number)(value)
        return self._line(cells, "*" if best else " ")

    def _line(self, cells: Mapping[str, str], mark: str) -> str:
        return "  ".join(
            cells[name].rjust(width) + (mark if name == self._monitor else "")
            for name, width in self._widths.items()
        )


_CLOCK = ("samples_per_s", "comm_share")
_HEADINGS = {"samples_per_s": "samples/s", "comm_share": "comm"}
_FORMATS: dict[str, Callable[[float], str]] = {
    "step": "{:,.0f}".format,
    "epoch": "{:,.2f}".format,
    "samples_per_s": rate,
    "comm_share": "{:.0%}".format,
}


def round_up(value: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50 ... that is not below `value`."""
    scale: int = 10 ** int(math.log10(max(value, 1)))
    return next(digit * scale for digit in (1, 2, 5, 10) if digit * scale >= value)


class RowWriter(Callback):
    """Prints the rows of a run, and writes their values into metrics.jsonl."""

    def on_build(self, run: TrainingRun) -> None:
        """The schedule and the columns."""
        plan, split = run.plan, run.evaluated
        self._by_clock = plan.row is None and run.config.log.every != "auto"
        every = sys.maxsize if self._by_clock else plan.row
        self._schedule = RowSchedule(plan.total, plan.epoch, every)
        self._every_evaluation = every is None and (
            plan.total is None
            or plan.evaluate is None
            or plan.total / plan.evaluate <= RowSchedule.limit
        )
        names: list[str] = [*dict.fromkeys(("train/loss", Measure.of(split, "loss")))]
        names += [Measure.of(split, metric.name) for metric in run.metrics]
        names += [] if run.rates is None else ["lr"]
        self._rows = Rows(names, run.monitor, plan.total, plan.epoch, terminal_width())

    def due(self, run: TrainingRun, step: int) -> float:
        """As the schedule says."""
        return self._schedule.next_step(step)

    def on_start(self, run: TrainingRun) -> None:
        """Print the heading."""
        run.output.say("", *unfit(self._rows.left_out, terminal_width()), self._rows.heading())

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """Leave the loss of the row, where one is due; it is the one that callbacks hear of."""
        evaluated = event.evaluate and self._every_evaluation
        if self._schedule.due(event.step) or (
            event.asked[EVALUATE] if self._by_clock else evaluated
        ):
            event.loss = self._write(run, event.measured)
        if event.evaluate:
            run.notify("on_eval", {"train/loss": event.loss, **event.measured})
        if event.step % run.steps_per_epoch == 0:
            run.notify("on_epoch")

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The last step of a run has a row."""
        if ending.finished and run.progress.samples != run.samples:
            self._write(run, {})

    def _write(self, run: TrainingRun, measured: dict[str, float]) -> float:
        """One row; returns the loss in it."""
        now, loss, speed = run.progress.take(run.samples)
        lr = run.optimizer.param_groups[0]["lr"]
        row = {"split": "train", **run.where(), "loss": loss, "lr": lr}
        if run.guard.clip_norm is not None:
            row["grad_norm"] = run.guard.norm
        if run.skips is not None:
            row["skipped"] = run.skips.total
        run.log_metrics({**row, "time": now - run.started, **speed})
        values = {"train/loss": loss, **measured}
        if run.rates is not None:
            values["lr"] = lr
        if run.monitor == "train/loss":
            run.state.note_best(values)
        values |= {"step": run.step, "epoch": row["epoch"], **speed}
        run.output.say(self._rows.row(values, best=run.state.at_best))
        return loss
