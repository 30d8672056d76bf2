"""What a run is known by at its end: its test row, its classes, how it stands to guessing."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from dataclasses import asdict
from typing import Any

from ...common.words import listed, number
from ...config.schema import Component
from ...distributed.abort import exit_status
from ...distributed.agreement import from_root, settled
from ...distributed.communicator import alone
from ...errors import DivergedError, LaunchError, UserError
from ...runs.metrics import ClassCounts
from ...runs.run import Run
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
from ..model_state import load_model_arrays, model_arrays
from ..models_and_losses import truth_beside
from ..run import TrainingRun
from .base import Callback, Ending
from .order import measure

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
                measured = "  ".join(f"{name} {number(test[name])}" for name in test)
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
            given = run.config.loss
            missing = never_predicted(self._counts)
            if missing and run.comm.rank == 0:
                said = f"never predicted in the {split} data: {listed(missing)}  ({ending.which})"
                key = {"cross_entropy": "class_weight", "bce": "pos_weight"}.get(given.type)
                if key and not _weighs_classes(given):
                    said += f"\nhint: weigh rare classes more, with loss.{key}: balanced"
                run.output.warn(said)
            log_loss = values["loss"] if given.type in ("cross_entropy", "bce") else math.inf
            worse = not_better(self._counts, log_loss, ending.which)
            # With such weights rows of rare classes are wanted at the price of others.
            if worse and run.comm.rank == 0 and not _weighs_classes(given):
                run.output.warn(worse)
        return values

    def _take_best(self, run: TrainingRun, ending: Ending) -> dict[str, Any]:
        """Give the model the values that the run is known by; returns where these were taken."""

        @alone("rank 0 alone reads the best checkpoint")
        def read() -> tuple[int, int, str, dict[str, Any] | None]:
            """Step and samples, what it is called, and its values where they are others."""
            best, chosen, fell_back = Run.read(run.path).checkpoint("best", run.output.warn)
            if run.state.best is None:
                fell_back = f"{run.monitor} was never finite, so no checkpoint is the best"
            if fell_back and run.config.checkpoint.keep_best:
                run.output.warn(f"{fell_back}; the results of the run are those of the {chosen}")
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
