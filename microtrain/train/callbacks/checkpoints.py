"""What a run keeps: its checkpoints, and what it is known by once it has ended.

Rank 0 writes checkpoints beside the training: the loop hands over the state, which is copied, and
goes on; a thread writes the copy, since waiting for a disk would cost a fast run more than its
steps. A newer state takes the place of one that still waits, but that of the best only if it is
better. So the best at the end is the best of all that were measured; it is written with the next
checkpoint, and before it, so that a run that goes on from that finds the best as well.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...common.words import listed, number
from ...config.schema import Component
from ...data.loading.loader import order_name
from ...distributed.abort import exit_status
from ...distributed.agreement import from_root, settled
from ...distributed.communicator import alone
from ...errors import DivergedError, LaunchError, UserError
from ...runs.arrays import copied, params_sha256
from ...runs.checkpoint import name_of, prune, save_checkpoint
from ...runs.directory import Gone
from ...runs.metrics import Unwritten
from ...runs.run import ClassCounts, Run
from ..build_run import SAVE
from ..evaluation import target_mean
from ..metrics.base import BesideMean, Metric, predicts_numbers
from ..metrics.classification import (
    Confusion,
    class_counts,
    class_lines,
    class_names,
    never_predicted,
    not_better,
)
from ..metrics.probabilities import repeated
from ..model_state import checkpoint_of, load_model_arrays, model_arrays
from ..models_and_losses import truth_beside
from ..run import TrainingRun, next_multiple
from .base import Callback, Ending, Event
from .order import measure

APART = 16  # steps: `auto` looks at the clock less often, which costs as much as a small step


class Saver:
    """Writes checkpoints into one directory.

    Args:
        directory: the run's `checkpoints`.
        keep_last, keep_best: how many of the newest and of the best stay.
        monitor: what is best, such as `val/loss`, and which way: `min` or `max`.
        warn: gets the text of a failure that the run survives.
        sync: called before a checkpoint is written: the disk has all that it speaks of.
        sealed: called after, from any thread.
        epoch: steps of one epoch, where a checkpoint is wanted at the ends of epochs (of short ones
            every few), as often as takes a twentieth of the time at most (`auto`); what is handed
            over meanwhile waits in memory. None: others say when.
    """

    def __init__(
        self,
        directory: Path,
        keep_last: int,
        keep_best: int,
        monitor: Sequence[str],
        warn: Callable[[str], None],
        sync: Callable[[], None],
        epoch: int | None = None,
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._keep = keep_last, keep_best, monitor
        self._warn, self._sync, self._sealed = warn, sync, sealed
        self._every = math.inf if epoch is None else -(-APART // epoch) * epoch
        self._error: BaseException | None = None  # of the last one
        self._free_at = 0.0  # of time.monotonic: when `auto` may write the next
        self._waiting: dict[bool, dict[str, Any]] = {}  # copies by whether they are of the best
        self._wanted = False  # whether one of them is a checkpoint of its own
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def next_step(self, step: int) -> float:
        """The first step after `step` at which to ask `due`; infinite where others say when.

        It is the one before an epoch's last: the request reaches all ranks with the step after it.
        """
        return ((step + 1) // self._every + 1) * self._every - 1

    def due(self, step: int) -> bool:
        """Whether one is to be written after the step that follows, and would be now."""
        at_end = (step + 1) % self._every == 0
        return at_end and self._thread is None and time.monotonic() >= self._free_at

    def rest(self, seconds: float) -> None:
        """Let `auto` write none for so long."""
        self._free_at = time.monotonic() + seconds

    def submit(self, contents: dict[str, Any], best: bool, save: bool = True) -> None:
        """Copy this; `contents` are `save_checkpoint`'s.

        save: write it as soon as the disk is free; else before the next that is written.

        Raises LaunchError where the one before found that there is no run directory any more, or a
        row that could not be written.
        """
        if isinstance(self._error, Gone | Unwritten):
            raise self._error
        copies = {
            kind: {name: copied(array) for name, array in contents[kind].items()}
            for kind in ("model", "optimizer")
        }
        with self._lock:
            if best:
                self._waiting.clear()
            self._waiting[best] = {**contents, **copies}
            self._wanted |= save
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._write, name="saver")
                try:
                    self._thread.start()
                except BaseException:  # there can be none, or a Ctrl-C: nobody waits for it
                    self._thread = None
                    self._waiting.clear()
                    raise

    def save(self, contents: dict[str, Any]) -> None:
        """Write this now, as the last; LaunchError where the file system refuses."""
        self.wait()
        self._save(contents)

    def wait(self) -> None:
        """Wait until all that was submitted is on disk, or has failed."""
        if (thread := self._thread) is not None:
            thread.join()
        self._wanted = True
        self._write()

    def _write(self) -> None:
        """All that waits, the best first, where one is wanted."""
        while True:
            with self._lock:
                if not self._wanted or not self._waiting:
                    self._wanted, self._thread = False, None
                    return
                contents = self._waiting.pop(next(iter(self._waiting)))
                self._wanted = bool(self._waiting)
            began = time.monotonic()
            try:
                self._save(contents)
            except Exception as error:  # in a thread nobody else would hear of it
                if self._error is None and not isinstance(error, Gone | Unwritten):
                    with contextlib.suppress(LaunchError):  # a full disk takes no line of the log
                        self._warn(f"the run continues without a new checkpoint: {error}")
                self._error = error
            else:
                self._error = None
            self._free_at = time.monotonic() + 19 * (time.monotonic() - began)

    def _save(self, contents: dict[str, Any]) -> None:
        self._sync()
        save_checkpoint(self.directory, **contents)
        self._sealed()
        prune(self.directory, *self._keep)


class Checkpoints(Callback):
    """Hands the state to the thread that writes it, on rank 0."""

    def due(self, run: TrainingRun, step: int) -> float:
        """Where it is not by the clock, or by how long the disk takes."""
        saver = run.checkpoints
        when = math.inf if saver is None else saver.next_step(step)
        return min(next_multiple(step, run.plan.save), when)

    def on_start(self, run: TrainingRun) -> None:
        """Make what writes them, on rank 0."""
        keep = run.config.checkpoint
        if run.directory is not None:
            run.checkpoints = Saver(
                run.path / "checkpoints",
                keep.keep_last,
                keep.keep_best,
                run.state.monitor,
                warn=run.output.warn,
                sync=run.directory.sync,
                sealed=run.directory.note_checkpoint,
                epoch=run.steps_per_epoch if keep.every == "auto" else None,
            )

    def on_pause(self, run: TrainingRun, event: Event) -> None:
        """At the end of a run `end` writes it."""
        saver = run.checkpoints
        if saver is None or event.last or event.stop:
            return
        best = run.state.at_best and run.config.checkpoint.keep_best > 0
        if event.save or best:
            run.requests.done(SAVE)
            saver.submit(contents(run), best, event.save)
            before = run.state.stop
            self._tell(run)
            if run.state.stop != before:  # a callback heard of it, and has had enough
                saver.submit(contents(run), best, event.save)
        if saver.due(event.step):
            run.requests.note(SAVE)

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The last one, before the test row, which a longer run would not have."""
        saver = run.checkpoints
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if run.directory is not None and saver is not None:
                last = contents(run)
                saver.save(last)
                ending.params_sha256 = params_sha256(last["model"])
        self._tell(run)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """What was handed over is on disk before anybody speaks of it."""
        if run.checkpoints is not None:
            run.checkpoints.wait()

    def _tell(self, run: TrainingRun) -> None:
        if run.directory is not None:  # when it saves is decided by the first rank's disk
            with alone("on_save is called on rank 0 alone"):
                run.notify("on_save", run.path / "checkpoints" / name_of(run.step))


def contents(run: Any) -> dict[str, Any]:
    """All that a run is, as `save_checkpoint` takes it; the arrays are the run's own."""
    assert run.directory is not None
    state = {
        "seed": run.config.seed,
        **run.where(),
        **asdict(run.state),
        "seconds": time.perf_counter() - run.started,
        "run": run.directory.info("id"),
        **run.directory.rows_so_far(),
        **run.data_state,
        "order": order_name(len(run.loader.dataset), run.loader.shuffle),
        "skips": None,
        **{name: keeper.state_dict() for name, keeper in run.stateful().items()},
    }
    return checkpoint_of(run.step, run.model, run.optimizer, state, run.config_text)


STOPPED = 75  # exit code: stopped early, resumable


class Results(Callback):
    """Measures the test data with the best checkpoint's model, and writes down the end.

    What is told of a finished run is told of one model, that of its best checkpoint where there is
    one: its values are there until all callbacks have ended.
    """

    _counts: ClassCounts | None = None
    _better = ""  # than the mean, of a regression

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The test row of a finished run, and run.json."""
        test: dict[str, Any] | None = None
        if ending.finished:
            where = self._take_best(run, ending)
            values = self._measure(run, ending)
            if run.data.test is not None:
                test = values
                twice = repeated(run.loss, run.metrics, run.eval_step)
                told = (f"{name} {number(test[name])}" for name in test if name not in twice)
                measured = "  ".join(told)
                ending.lines += ["", f"test  {measured}  ({ending.which})"]
            if self._better:
                ending.lines += [*[""] * (test is None), self._better]
            if self._counts is not None:
                ending.lines += ["", *class_lines(self._counts, ending.which)]
            ending.lines += truth_beside(run.model.module, run.data, ending.which)
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            if test is not None:
                run.log_metrics({"split": "test", **where, **test, "time": ending.seconds})
                test = {"step": where["step"], **test}
            if run.directory is not None:
                run.directory.flush()  # what run.json speaks of is there
            self._write_down(run, ending, test)

    def _measure(self, run: TrainingRun, ending: Ending) -> dict[str, Any]:
        """Measure the test data; there, or else in the validation data, count classes, or compare
        with always predicting the mean of the training rows.
        """
        data = run.data
        split, part = ("val", data.val) if data.test is None else ("test", data.test)
        loss = run.loss if run.eval_step is None else None  # it says nothing of that prediction
        names = class_names(loss, run.metrics, data.classes, (data.train, data.val, data.test))
        more: list[Metric] = [] if names is None else [Confusion()]
        if names is None and predicts_numbers(loss, run.metrics, data.train):
            more = [BesideMean(target_mean(data.train, data.target_scaling))]
        if part is None or (not more and data.test is None):
            return {}
        values = measure(run, part, *more)
        mine, means = values.pop(BesideMean.name, (0.0, 0.0))
        if means:
            said = f"better than always predicting the mean: rmse {number(mine)} instead of "
            said += f"{number(means)}  ({split}, {ending.which})"
            if mine < means:
                self._better = said
            elif run.comm.rank == 0:
                scaled = run.config.data.standardize_target
                hint = "" if scaled else "\nhint: a target of large numbers may need "
                run.output.warn(f"not {said}{hint and hint + 'data.standardize_target: true'}")
        if names is not None:
            self._counts = class_counts(values, split, names)
            missing = never_predicted(self._counts)
            if missing and run.comm.rank == 0:
                run.output.warn(
                    f"never predicted in the {split} data: {listed(missing)}  ({ending.which})"
                    + _hint_of_weights(run.config.loss)
                )
            worse = not_better(self._counts, ending.which)
            # With such weights rows of rare classes are wanted at the price of others.
            if worse and run.comm.rank == 0 and not _weighs_classes(run.config.loss):
                run.output.warn(worse)
        return values

    def _take_best(self, run: TrainingRun, ending: Ending) -> dict[str, Any]:
        """Give the model the values that the run is known by; returns where these were taken."""

        @alone("rank 0 alone reads the best checkpoint")
        def read() -> tuple[int, int, str, dict[str, Any] | None]:
            """Step and samples, what it is called, and its values where they are others."""
            best, chosen, fell_back = Run.read(run.path).checkpoint("best", run.output.warn)
            if fell_back and run.config.checkpoint.keep_best:
                run.output.warn(f"{fell_back}; what is said about the run is of the {chosen}")
            values = None if best.step == run.step else best.model
            return best.step, best.state["samples"], chosen, values

        step, samples, ending.chosen, best = from_root(run.comm, read)
        last = ending.chosen.endswith("the last")
        ending.which = f"step {step:,}, the {'last' if last else 'best'}"
        if best is not None:
            ending.undo.callback(load_model_arrays, run.model, model_arrays(run.model))
            load_model_arrays(run.model, best)
        return {"step": step, "epoch": step / run.steps_per_epoch, "samples": samples}

    def _write_down(self, run: TrainingRun, ending: Ending, test: dict[str, Any] | None) -> None:
        """All that run.json says of the end but that there was one, on rank 0."""
        skips = run.skips
        self._said = {
            "status": "finished" if ending.finished else "stopped",
            "exit_code": 0 if ending.finished else STOPPED,
            **ending.about,
        }
        run.update_info(
            steps=run.step,
            best=run.state.best and asdict(run.state.best),
            test=test,
            classes=self._counts and asdict(self._counts),
            params_sha256=ending.params_sha256,
            timings={"train_s": ending.seconds, "comm_s": run.model.comm_seconds},
            **({} if skips is None else {"skipped_steps": skips.total}),
        )

    def on_stop(self, run: TrainingRun) -> None:
        """Last: a run that is killed before its page is there is resumed to write it."""
        with settled(run.comm), alone("rank 0 alone writes the end of the run"):
            run.update_info(**self._said)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Note in run.json and the log how a run ended that did not finish."""
        if run.directory is None:
            return
        status, code = "failed", getattr(error, "exit_code", 1)
        if isinstance(error, DivergedError):
            status = "diverged"
        elif isinstance(error, KeyboardInterrupt):
            status, code = "stopped", 130
        elif isinstance(error, SystemExit):
            code, _ = exit_status(error.code)
        lines = str(error).splitlines() or [type(error).__name__]
        if not isinstance(error, UserError | KeyboardInterrupt):  # someone's code: where it was
            whole = "".join(traceback.format_exception(error))
            lines = [f"{type(error).__name__}: {error}".splitlines()[0], *whole.splitlines()]
        with contextlib.suppress(LaunchError):  # a full disk must not hide the first error
            run.directory.update(
                status=status,
                exit_code=code,
                steps=run.step,
                best=run.state.best and asdict(run.state.best),
                error=lines[0],
                timings={"train_s": time.perf_counter() - run.started},
            )
            for line in lines:
                run.directory.log(line)


def _weighs_classes(loss: Component) -> bool:
    keys = ("class_weight", "pos_weight", "weight")
    return any(loss.arguments.get(key) is not None for key in keys)


def _hint_of_weights(loss: Component) -> str:
    """How to weigh rare classes more, where the loss can and does not yet."""
    key = {"cross_entropy": "class_weight", "bce": "pos_weight"}.get(loss.type)
    if key is None or _weighs_classes(loss):
        return ""
    return f"\nhint: weigh rare classes more, with loss.{key}: balanced"
