"""What a run keeps: its checkpoints, and what it is known by once it has ended."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from dataclasses import asdict
from typing import Any

from ...config.schema import Component
from ...data.loading.order import order_name
from ...distributed.abort import exit_status
from ...distributed.agreement import from_root, settled
from ...distributed.communicator import alone
from ...errors import DivergedError, LaunchError, UserError
from ...runs.arrays import params_sha256
from ...runs.checkpoint import name_of
from ...runs.run import Run
from ...runs.run_info import ClassCounts
from ...runs.saver import Saver
from ...words import listed, number
from ..console.messages import truth_beside
from ..metrics.class_table import Confusion, class_counts, class_lines, class_names, never_predicted
from ..model_state import checkpoint_of, load_model_arrays, model_arrays
from ..run import TrainingRun, next_multiple
from ..stop_requests import SAVE
from .base import Callback, Ending, Event
from .order import measure


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
            again = run.state.stop != before  # a callback heard of it, and has had enough
            if again:
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


def contents(run: TrainingRun) -> dict[str, Any]:
    """All that a run is, as `save_checkpoint` takes it; the arrays are the run's own."""
    assert run.directory is not None
    state = {
        "seed": run.config.seed,
        **run.where(),
        "seconds": time.perf_counter() - run.started,
        "run": run.directory.info("id"),
        **run.directory.rows_so_far(),
        **run.state.state_dict(),
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

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """The test row of a finished run, and run.json."""
        test: dict[str, Any] | None = None
        if ending.finished:
            where = self._take_best(run, ending)
            values = self._measure(run, ending)
            if run.data.test is not None:
                test = values
                measured = "  ".join(f"{name} {number(value)}" for name, value in test.items())
                ending.lines += ["", f"test  {measured}  ({ending.which})"]
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
        """Measure the test data, and count classes there or else in the validation data."""
        data = run.data
        split, part = ("val", data.val) if data.test is None else ("test", data.test)
        loss = run.loss if run.eval_step is None else None  # it says nothing of that prediction
        names = class_names(loss, run.metrics, data.classes, (data.train, data.val, data.test))
        if part is None or (names is None and data.test is None):
            return {}
        values = measure(run, part, *([] if names is None else [Confusion()]))
        if names is not None:
            self._counts = class_counts(values, split, names)
            missing = never_predicted(self._counts)
            if missing and run.comm.rank == 0:
                run.output.warn(
                    f"never predicted in the {split} data: {listed(missing)}  ({ending.which})"
                    + _hint_of_weights(run.config.loss)
                )
        return values

    def _take_best(self, run: TrainingRun, ending: Ending) -> dict[str, Any]:
        """Give the model the values that the run is known by; returns where these were taken."""

        @alone("rank 0 alone reads the best checkpoint")
        def read() -> tuple[int, int, str, dict[str, Any] | None]:
            """Step and samples, what it is called, and its values where they are others."""
            best, chosen, fell_back = Run.read(run.path).checkpoint("best", run.output.warn)
            if fell_back and run.config.checkpoint.keep_best:
                run.output.warn(f"{fell_back}; what is said about the run is of the {chosen}")
            return (
                best.step,
                best.state["samples"],
                chosen,
                None if best.step == run.step else best.model,
            )

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
            **{
                "steps": run.step,
                "best": run.state.best_as_dict(),
                "test": test,
                "classes": self._counts and asdict(self._counts),
                "params_sha256": ending.params_sha256,
                "timings": {"train_s": ending.seconds, "comm_s": run.model.comm_seconds},
                **({} if skips is None else {"skipped_steps": skips.total}),
            }
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
                best=run.state.best_as_dict(),
                error=lines[0],
                timings={"train_s": time.perf_counter() - run.started},
            )
            for line in lines:
                run.directory.log(line)


def _hint_of_weights(loss: Component) -> str:
    """How to weigh rare classes more, where the loss can and does not yet."""
    key = {"cross_entropy": "class_weight", "bce": "pos_weight"}.get(loss.type)
    if key is None or {key, "weight"} & {k for k, v in loss.arguments.items() if v is not None}:
        return ""
    return f"\nhint: weigh rare classes more, with loss.{key}: balanced"
