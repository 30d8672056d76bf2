"""One member of a sweep: a run like any other, of which the memory is kept instead of a directory.

It is built and trained by the code of a run, so it has the bits that it would have alone. What
prints, draws and writes files of its own is left out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..backend import default_dtype
from ..config.components import load
from ..config.schema import Config
from ..config.sweep import Member
from ..distributed.single import SingleCommunicator
from ..errors import DivergedError
from ..runs.members import Result
from ..runs.provenance import params_sha256
from ..train.callbacks import Callback
from ..train.executor import Execution
from ..train.model_state import load_model_arrays, model_arrays
from ..train.observers import RowWriter
from ..train.output import Output
from ..train.results import Results
from ..train.state import Ending, Event, Parts, TrainingRun
from ..train.trainer import Trainer
from .shared_step import Held

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator
    from ..tensor import Tensor

__all__ = ["Trained", "sharing", "train_member"]

RUNG = "rung"  # why a member ends that is to be compared with others
_LEFT_OUT = {
    f"microtrain.{name}"
    for name in (
        "train.observers:Bar", "train.console:Header", "report.observer:Report",
        "train.observers:Timeline", "train.console:Summary",
    )
}  # fmt: skip
_CHECKPOINTS, _RESULTS, _ROWS = (
    "microtrain.train.checkpointing:Checkpoints",
    "microtrain.train.results:Results",
    "microtrain.train.observers:RowWriter",
)


class Quiet(Output):
    """Says nothing, and warns as the output of the sweep does: of each thing once.

    Attributes:
        warnings: the first lines of those of its member.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(output.rank, progress="off")
        self._of_sweep = output
        self.warnings: list[str] = []

    def say(self, *lines: str) -> None:
        """Members have no rows on the terminal."""

    def warn(self, text: str) -> None:
        """Say it once for all members, and note it for this one."""
        if (first := text.partition("\n")[0]) not in self.warnings:
            self.warnings.append(first)
        self._of_sweep.warn(text)


class Trained(Trainer):
    """The run of a member, once its class is known: see `_class_of`.

    Attributes:
        pause: the step after which it is to be compared; None at its end.
        rows: of metrics.
        kept: step and samples of its best model, with the values of that; None before.
        outcome: of the test data; None without.
    """

    pause: int | None = None
    kept: tuple[int, int, dict[str, Any]] | None = None
    outcome: dict[str, Any] | None = None
    sha256 = ""
    finished = False
    stopped_by = ""
    held: ClassVar[Held | None] = None  # steps of others, of which a member may have one
    kind: Any = None
    taken: Execution | None = None  # of such a step

    def log_metrics(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows: list[dict[str, Any]] = vars(self).setdefault("rows", [])
        self.rows.append(row)
        self.notify("on_log", row)

    def train_alone(self) -> None:
        """Train to the end, or to the rung."""
        self.path = Path()
        self.started = time.perf_counter()
        with np.errstate(all="ignore"), default_dtype(self.config.dtype):
            self.stopped_by = self._loop()
            self._end(self.stopped_by)

    def _build(self, config: Config, comm: Communicator, output: Output) -> Parts:
        """What another member of its kind has left is taken over."""
        parts = super()._build(config, comm, output)
        if self.held is not None:
            self.kind, self.taken = self.held.lend(parts)
        return parts

    def _executor(self) -> Execution:
        if self.taken is None:
            return Execution(self, shared=self.kind is not None)
        self.taken.begin(self)
        return self.taken

    def _loop(self) -> str:
        """A first step is none of those that are captured: the optimizer has no state yet."""
        if self.taken is not None:
            self._execute = self._first_step
        return super()._loop()

    def _first_step(self, first: bool, last: bool, *batch: Tensor) -> None:
        self.execution.eagerly(first, last, *batch)
        if last:
            self._execute = self.execution


class UnseenRows(RowWriter):
    """Keeps rows, which nobody sees."""

    def show(self, run: TrainingRun, values: dict[str, float]) -> None:
        """Members have no rows on the terminal."""


class KeepBest(Callback):
    """Copies the model where it is the best so far, as checkpoints of a run do."""

    def on_pause(self, run: Any, event: Event) -> None:
        """The last one is not copied: it stays."""
        if run.state.at_best and run.config.checkpoint.keep_best > 0 and not event.last:
            run.kept = run.step, run.samples, model_arrays(run.model)

    def on_end(self, run: Any, ending: Ending) -> None:
        """The parameters of the last step are those that are named."""
        run.sha256 = ending.params_sha256 = params_sha256(model_arrays(run.model))


class Rung(Callback):
    """Ends the training where it is to be compared with others."""

    def due(self, run: Any, step: int) -> float:
        """The rung, while it is ahead."""
        return math.inf if run.pause is None or run.pause <= step else float(run.pause)

    def on_pause(self, run: Any, event: Event) -> None:
        """Not where it ends anyway."""
        if event.step == run.pause and not event.stop:
            event.stop = RUNG


class Measured(Results):
    """Measures the test data with the best model, from memory."""

    def _take_best(self, run: Any, ending: Ending) -> dict[str, Any]:
        kept, best = run.kept, run.state.best
        step, samples = run.step, run.samples
        ending.chosen = ending.which = "the last"
        if kept is not None and best is not None and best[2] == kept[0] != run.step:
            step, samples, values = kept
            last = model_arrays(run.model)
            ending.undo.callback(load_model_arrays, run.model, last)
            load_model_arrays(run.model, values)
            ending.chosen = ending.which = "the best"
        else:
            run.kept = step, samples, model_arrays(run.model)
        return {"step": step, "epoch": step / run.steps_per_epoch, "samples": samples}

    def _write_down(self, run: Any, ending: Ending, test: dict[str, Any] | None) -> None:
        run.outcome, run.finished = test, ending.finished

    def on_error(self, run: Any, error: BaseException) -> None:
        """There is no run.json."""


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Inside, members that are trained one after the other share captured steps."""
    try:
        Trained.held = Held()
        yield
    finally:
        Trained.held = None


@functools.cache
def _class_of(kind: Any) -> Any:
    """The class of a member's run: the configured Trainer, with other callbacks."""
    instead: dict[Any, list[Any]] = {
        _CHECKPOINTS: [KeepBest], _RESULTS: [Rung, Measured], _ROWS: [UnseenRows]
    }  # fmt: skip
    types: list[Any] = []
    for each in kind.callback_types:
        types += [] if each in _LEFT_OUT else instead.get(each, [each])
    own = {"callback_types": tuple(types)}
    return type(kind.__name__, (Trained,) if kind is Trainer else (Trained, kind), own)


def train_member(
    member: Member, output: Output, rung: int | None = None
) -> tuple[Result, dict[str, Any], dict[str, Any]]:
    """Train a member in this process; its result, its best model, and what that takes and gives.

    rung: it is to be compared with others after 1/rung of its steps; None: to its end.

    Raises KeyboardInterrupt where a signal has stopped it, and the errors of a run, but for
    DivergedError, which is a result.
    """
    began = time.perf_counter()
    config = copy.deepcopy(member.config)  # class weights are filled in
    kind = Trainer if config.trainer is None else load("trainer", str(config.trainer))
    quiet = Quiet(output)
    run: Trained = _class_of(kind).from_config(config, SingleCommunicator(), quiet)
    run.pause, run.rows = _pause(run, rung), []
    status, error = "finished", ""
    try:
        run.train_alone()
    except DivergedError as diverged:
        status, error = "diverged", str(diverged).splitlines()[0]
    else:
        if run.stopped_by == RUNG:
            status = "paused"
        elif not run.finished:
            raise KeyboardInterrupt(run.stopped_by)
        if run.held is not None and run.execution.compiled is not None and run.kind is not None:
            run.held.add(run.kind, run, run.execution)
    best = run.state.best_as_dict()
    values = _values_at(run.rows, best["step"] if best else run.step)
    if run.outcome is not None:
        values |= {f"test/{name}": value for name, value in run.outcome.items() if name != "step"}
    result = Result(
        number=member.number,
        setting=member.setting,
        varied=member.varied,
        status=status,
        rung=rung if status == "paused" else None,
        step=run.step,
        best=best,
        values={name: _finite(value) for name, value in values.items()},
        params_sha256=run.sha256,
        data=run.data_state["data_hash"],
        seconds=time.perf_counter() - began,
        error=error,
        warnings=quiet.warnings,
        curve=_curve(run.rows),
    )
    arrays = run.kept[2] if status == "finished" and run.kept is not None else {}
    return result, arrays, run.data_state


def _pause(run: Trained, rung: int | None) -> int | None:
    """The first evaluation after 1/rung of the steps; None where the run ends with it."""
    total, every = run.total_steps, run.plan.evaluate
    assert total is not None and every is not None  # the clock has no say in a sweep
    step = total if rung is None else -(-total // (rung * every)) * every
    return None if step >= total else step


_OF_THE_CLOCK = {"time", "samples_per_s", "comm_share", "split", "step", "epoch", "samples"}


def _values_at(rows: Sequence[dict[str, Any]], step: int) -> dict[str, float]:
    """What was measured at a step, by column."""
    return {
        f"{row['split']}/{name}": value
        for row in rows
        if row["step"] == step and row["split"] != "test"
        for name, value in row.items()
        if name not in _OF_THE_CLOCK and name not in ("lr", "grad_norm", "skipped")
    }


def _curve(rows: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The measured columns, a value for each step that has any."""
    steps = sorted({row["step"] for row in rows if row["split"] != "test"})
    at = {step: _values_at(rows, step) for step in steps}
    names = dict.fromkeys(name for values in at.values() for name in values)
    curve: dict[str, list[float | None]] = {"step": [float(step) for step in steps]}
    for name in names:
        curve[name] = [_finite(at[step].get(name)) for step in steps]
    return curve


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
