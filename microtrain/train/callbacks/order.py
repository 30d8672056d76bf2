"""The callbacks that every run has, in their order.

They measure, say, write down, and pass on that the run is to end.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from typing import Any, Final

from ...config.measure import Measure
from ...data import Source
from ...distributed.replicas import check_replicas
from ..evaluation import evaluate, own_step
from ..metrics.base import Metric
from ..run import TrainingRun, next_multiple
from ..stop_requests import EVALUATE, STOP
from .base import Callback, Ending, Event
from .rows import Rows, RowSchedule
from .timeline import Trace

OF_CONFIGURATION: Final = "callbacks"  # where those stand that a configuration lists
# Each finds in the event what those before it have left there. Those of layers above are named.
CALLBACKS: Final = (
    "microtrain.train.callbacks.order:Bar",
    "microtrain.train.console.messages:Header",
    OF_CONFIGURATION,
    "microtrain.train.callbacks.order:Evaluator",
    "microtrain.train.callbacks.order:RowWriter",
    "microtrain.train.callbacks.order:Agreement",
    "microtrain.train.callbacks.checkpoints:Checkpoints",
    "microtrain.train.callbacks.results:Results",
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


class RowWriter(Callback):
    """Prints the rows of a run, and writes their values into metrics.jsonl."""

    state_name = "rows"

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
        self._rows = Rows(names, run.monitor, plan.total, plan.epoch)

    def state_dict(self) -> dict[str, int]:
        """Of the schedule."""
        return self._schedule.state()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Of a schedule of the same run."""
        self._schedule.restore(state)

    def due(self, run: TrainingRun, step: int) -> float:
        """As the schedule says."""
        return self._schedule.next_step(step)

    def on_start(self, run: TrainingRun) -> None:
        """Print the heading."""
        run.output.say("", self._rows.heading())

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
        self.show(run, {"step": run.step, "epoch": row["epoch"], **values, **speed})
        return loss

    def show(self, run: TrainingRun, values: dict[str, float]) -> None:
        """Print a row."""
        run.output.say(self._rows.row(values, best=run.state.at_best))


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
