"""What is done between the steps of a run, in this order.

Nothing here changes the mathematics: it measures, says, writes down, and passes on that the run is
to end. One of your own is one class and one line: `Trainer.observer_types` (docs/observers.md).
"""

from __future__ import annotations

import math
import socket
import sys
import time
from typing import Final

from ..data import ArrayDataset
from ..distributed import warden
from ..distributed.communicator import alone
from ..distributed.replicas import check_replicas
from .checkpointing import tell_of_save
from .evaluation import evaluate
from .rows import Rows, RowSchedule
from .state import Ending, Event, Observer, TrainingRun, next_multiple
from .trace import Trace
from .wishes import EVALUATE, STOP

__all__ = ["OBSERVERS"]

# Each finds in the event what those before it have left there. Those of layers above are named.
OBSERVERS: Final = (
    "microtrain.train.console:Header",
    "microtrain.train.observers:StepHooks",
    "microtrain.train.observers:Evaluator",
    "microtrain.train.observers:RowWriter",
    "microtrain.train.observers:AfterEvaluation",
    "microtrain.train.observers:Bar",
    "microtrain.train.observers:Agreement",
    "microtrain.train.checkpointing:Checkpoints",
    "microtrain.train.results:Results",
    "microtrain.report.observer:Report",
    "microtrain.train.results:LastValues",
    "microtrain.train.observers:EndHooks",
    "microtrain.train.observers:Timeline",
    "microtrain.train.console:Summary",
)


class Timeline(Observer):
    """Writes the timelines of all ranks, beside the metrics, where they are asked for."""

    def start(self) -> None:
        """Begin with all other ranks."""
        run = self.run
        if run.wants_trace:
            run.comm.barrier()
            run.trace = Trace(run.comm.rank, socket.gethostname())
            run.model.on_reduced = run.trace.add

    def end(self, ending: Ending) -> None:
        """Without timelines a run has not failed."""
        if self.run.trace is not None:
            try:
                self.run.trace.write(self.run.path / "trace")
            except OSError as error:  # another host may not see the directory
                self.run.output.warn(f"no timeline of rank {self.run.comm.rank}: {error}")


class StepHooks(Observer):
    """Calls the users' `on_step` and `on_error`."""

    def due(self, step: int) -> float:
        """When the next interval ends."""
        return self.run.callbacks.next_step(step)

    def attend(self, event: Event) -> None:
        """Call those whose interval ends here."""
        self.run.callbacks.on_step(event.step)

    def failed(self, error: BaseException) -> None:
        """Call `on_error` of all, whatever one of them does."""
        try:
            with alone("a rank that fails is alone"):
                self.run.callbacks.call("on_error", error)
        except Exception as another:
            self.run.output.warn(f"on_error of a callback: {type(another).__name__}: {another}")


class Evaluator(Observer):
    """Measures the validation data; without such, the metrics of the training data."""

    def due(self, step: int) -> float:
        """Where it is not by the clock."""
        return next_multiple(step, self.run.parts.plan.evaluate)

    def attend(self, event: Event) -> None:
        """Leave what was measured, by column name, and a line in metrics.jsonl."""
        run = self.run
        if event.asked[EVALUATE]:
            run.wishes.done(EVALUATE)
        part = "train" if run.data.val is None else "val"
        if not event.evaluate or (part == "train" and not run.metrics):
            return
        began = time.perf_counter()
        values = measure(run, run.data.val or run.data.train)
        if part == "train":
            values.pop("loss")  # the row shows the loss of the steps themselves
        ended = time.perf_counter()
        run.progress.paused += ended - began
        run.log_metrics({"split": part, **run.where(), **values, "time": ended - run.started})
        event.measured = {f"{part}/{name}": value for name, value in values.items()}
        note_best(run, event, event.measured)


def measure(run: TrainingRun, dataset: ArrayDataset) -> dict[str, float]:
    """Loss and metrics on a data set, once the ranks have seen that their replicas are equal."""
    started, parts = time.perf_counter(), run.parts
    # Here and not at every step: it reads all parameters.
    check_replicas(run.model.module, run.comm, f"step {run.step:,}")
    values = evaluate(
        run.model.module, run.loss, run.metrics, dataset, run.comm, run.device, parts.shards
    )
    if run.trace is not None:
        run.trace.add("evaluate", started, time.perf_counter())
    return values


def note_best(run: TrainingRun, event: Event, values: dict[str, float]) -> None:
    """Let a checkpoint be written where the monitored value is the best so far."""
    if run.state.note_best(values) and run.config.checkpoint.keep_best > 0:
        event.save = True


class RowWriter(Observer):
    """Prints the rows of a run, and writes their values into metrics.jsonl."""

    name = "rows"

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        plan, rates = run.parts.plan, run.parts.rates
        self._by_clock = plan.row is None and run.config.log.every != "auto"
        every = sys.maxsize if self._by_clock else plan.row
        self._schedule = RowSchedule(plan.total, plan.epoch, every)
        self._every_evaluation = every is None and (
            plan.total is None
            or plan.evaluate is None
            or plan.total / plan.evaluate <= RowSchedule.limit
        )
        part = "train" if run.data.val is None else "val"
        names = ["train/loss"] + (["val/loss"] if part == "val" else [])
        names += [f"{part}/{metric.name}" for metric in run.metrics]
        self._rows = Rows(
            names if rates is None else [*names, "lr"], run.monitor, plan.total, plan.epoch
        )

    def state_dict(self) -> dict[str, int]:
        """Of the schedule."""
        return self._schedule.state()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Of a schedule of the same run."""
        self._schedule.restore(state)

    def due(self, step: int) -> float:
        """As the schedule says."""
        return self._schedule.next_step(step)

    def start(self) -> None:
        """Print the heading."""
        self.run.output.say("", self._rows.heading())

    def attend(self, event: Event) -> None:
        """Leave the loss of the row, where one is due."""
        evaluated = event.evaluate and self._every_evaluation
        if self._schedule.due(event.step) or (
            event.asked[EVALUATE] if self._by_clock else evaluated
        ):
            event.loss = self._write(event)

    def end(self, ending: Ending) -> None:
        """The last step of a run has a row."""
        if ending.finished and self.run.progress.samples != self.run.samples:
            self._write(Event(self.run.step, True, False, False, (), None))

    def _write(self, event: Event) -> float:
        """One row; returns the loss in it."""
        run, parts = self.run, self.run.parts
        now, loss, speed = run.progress.take(run.samples)
        lr = run.optimizer.param_groups[0]["lr"]
        row = {"split": "train", **run.where(), "loss": loss, "lr": lr}
        if parts.guard.clip_norm is not None:
            row["grad_norm"] = parts.guard.norm
        if parts.skips is not None:
            row["skipped"] = parts.skips.total
        run.log_metrics({**row, "time": now - run.started, **speed})
        values = {"train/loss": loss, **event.measured}
        if parts.rates is not None:
            values["lr"] = lr
        if run.monitor == "train/loss":
            note_best(run, event, values)
        shown = {"step": run.step, "epoch": row["epoch"], **values, **speed}
        run.output.say(self._rows.row(shown, best=run.state.at_best))
        return loss


class AfterEvaluation(Observer):
    """Calls the users' `on_start`, `on_eval` and `on_epoch`."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._epoch = run.steps_per_epoch if run.callbacks.hear("on_epoch") else None

    def due(self, step: int) -> float:
        """At the ends of epochs, where somebody hears of them."""
        return next_multiple(step, self._epoch)

    def start(self) -> None:
        """One whose state cannot be saved is found now, not at a checkpoint."""
        self.run.callbacks.call("on_start")
        self.run.callbacks.state_dict()

    def attend(self, event: Event) -> None:
        """The loss is that of the row, where there is one."""
        if event.evaluate:
            self.run.callbacks.call("on_eval", {"train/loss": event.loss, **event.measured})
        if not event.step % self.run.steps_per_epoch:
            self.run.callbacks.call("on_epoch")


class Bar(Observer):
    """Moves the progress bar, where there is one."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._at = math.inf

    def due(self, step: int) -> float:
        """Ten times a second or less often."""
        return max(self._at, step + 1)

    def start(self) -> None:
        """Draw it."""
        self._at = self.run.output.start_bar(self.run.total_steps, self.run.step)

    def attend(self, event: Event) -> None:
        """Draw it anew, if its time has come."""
        if event.step >= self._at:
            self._at = self.run.output.look(event.step)


class Agreement(Observer):
    """Lets all ranks end the run after the same step, for the same reason."""

    def start(self) -> None:
        """A run that is resumed may have ended, or have to end after one more step."""
        state = self.run.state
        if state.resumed_at is None:
            return
        if state.to_be_stopped:
            self.run.wishes.ask(state.stop)
        else:
            agree_to_stop(self.run)
            state.ended = bool(state.stop)

    def attend(self, event: Event) -> None:
        """Where a checkpoint is written, rank 0 must know what others were asked for."""
        run, stopping = self.run, bool(event.asked[STOP])
        if stopping or ((event.evaluate or event.save) and run.comm.any(bool(run.state.stop))):
            reason = agree_to_stop(run)
            if stopping or event.evaluate:  # else it travels with the next step
                event.stop = reason


def agree_to_stop(run: TrainingRun) -> str:
    """Let all ranks know what any was asked for; returns why to stop, if anyone wants that."""
    reasons = run.comm.all_gather_object((run.state.stop, run.wishes.reason))
    clock = "duration" if ("", "duration") in reasons else ""
    run.state.stop = next((asked for asked, _ in reasons if asked), clock)
    return run.state.stop or next((reason for _, reason in reasons if reason), "")


class EndHooks(Observer):
    """Calls the users' `on_save` and `on_stop`, with the model of the last step."""

    def end(self, ending: Ending) -> None:
        """A rank that is killed from now on has nothing left to go on with."""
        warden.tell(words="")
        tell_of_save(self.run)
        self.run.callbacks.call("on_stop")
