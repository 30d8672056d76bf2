"""The training loop of a run described by a configuration, to be read from top to bottom.

What changes the mathematics stands here: the order of batches, accumulation, the policy for values
that are not finite. What only observes is a callback, and `callbacks/order.py` has their order:
those of the user, evaluation, rows, checkpoints, the report.

Every rank runs the same code; rank 0 alone prints and writes. Mistakes of the user that some ranks
may meet and others not (a file missing on one host) are settled before training, so that all ranks
leave with one message instead of some waiting for the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..autograd.grad_mode import keeping_grad_mode
from ..backend import MODES, default_dtype
from ..config.components import load
from ..config.library import library_config
from ..config.resolved import compared
from ..config.schema import Config
from ..data.kept.cache import PROGRESS
from ..data.kept.shared import during
from ..data.loading.loader import MicroBatches
from ..data.rows import layout
from ..distributed import watchdog
from ..distributed.agreement import agreed, same, settled
from ..distributed.communicator import Communicator, alone
from ..distributed.connection import ranks_of
from ..distributed.survivors import RankLost
from ..errors import ConfigError, DivergedError, noun_of
from ..runs.directory import EVERY, RunDirectory
from ..runs.state import RunState
from ..tensor import TENSORS, Tensor
from .build_run import EVALUATE, SAVE, take_initial_values
from .callbacks.base import Callback, Ending, Event, States, call, callback_of, steps_between
from .callbacks.order import CALLBACKS, OF_CONFIGURATION
from .callbacks.results import STOPPED
from .console import Output, peak_memory
from .dry_run import dry_run
from .models_and_losses import loss_of_rows
from .resume import LOCK_WAIT, choose_run, take_up
from .run import ExitCode, Progress, Requests, TrainingRun, next_multiple, run_directory, tell_end
from .step.divergence import NotFinite, Trials, autopsy, worst_gradient
from .step.executor import BEGIN, ManySteps

SAME = "all ranks of a run have the same settings and files of code"


class Trainer(TrainingRun):
    """One run: builds what the configuration names, trains, and leaves a run directory.

    From Python, the keys of the YAML are the keywords; those of `train` may stand at the top, and
    components may be objects. `Trainer.from_config` takes a configuration instead. A training step
    of another shape overrides `train_step`.

    Args:
        model: an `nn.Module`; DataParallel is made here.
        data: an `ArrayDataset` or another `Source`, arrays (inputs..., target), or a component as
            in the YAML.
        loss: a callable of prediction and target, or a name such as `mse`.
        optimizer: a function of the parameters that makes one, or a component as in the YAML.
        comm: the ranks of the run, a communicator of microtrain or mpi4py; all that the launcher
            started by default.
        output: where lines go; standard output by default.
        trace: write a timeline of every rank into the run directory.
        resume: `auto` or the directory of a run to go on with; None begins one.
        settings: all else, such as `duration="20 epochs"`, `batch_size=64`, `split={"train": 0.8,
            "val": 0.2}`, `metrics=["r2"]`, `callbacks=[...]`, `checkpoint={"every": "5 min"}`.

    Attributes:
        model: the `DataParallel` model.
        step, samples: optimizer steps taken and samples seen, over all ranks.
        total_steps: optimizer steps of the whole run; None where a clock ends it.
        execution: what executes the steps: the code below, or a capture of it.
        path: the run directory, from the beginning of `train`.
        eval_step: where a subclass has such a method, it takes the place of
            `loss(model(inputs), target)` in evaluations: `eval_step(batch)` returns the prediction,
            which metrics get, and the loss, a mean over the rows or the sum and what it is divided
            by. It calls `self.model`, and of the trainer has `loss`, `config` and `device` for
            certain, as where `microtrain evaluate` measures a run that has ended.
        callback_types: what is done between steps: classes, or import paths of such.
        callbacks: these, of this run, with those of the configuration among them.

    Raises (all on every rank): ConfigError, DataError, LaunchError before anything is trained,
    DivergedError when a loss or gradient is not finite.

    Example:
        >>> x = np.linspace(0, 1, 100, dtype=np.float32)[:, None]
        >>> trainer = mt.train.Trainer(
        ...     mt.nn.Linear(1, 1), (x, 2 * x + 3), loss="mse",
        ...     optimizer={"type": "sgd", "lr": 0.1}, name="line",
        ...     duration="20 epochs", batch_size=10)
        >>> trainer.train()
        microtrain 0.1.0: line
        ...
        0
    """

    eval_step: Callable[[tuple[Tensor, ...]], tuple[Any, Any]] | None = None
    callback_types: Sequence[str | type[Callback]] = CALLBACKS
    stop_before = ""  # why no step is taken; a callback may set it in `on_start`
    _nothing_to_do: int | None = None  # the exit code, where the run to go on with has finished

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        loss: Any,
        optimizer: Any,
        comm: Communicator | Any = None,
        output: Output | None = None,
        trace: bool = False,
        resume: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(model, Config):
            raise TypeError("Trainer: a configuration is taken by Trainer.from_config(config)")
        parts = {"model": model, "data": data, "loss": loss, "optimizer": optimizer}
        ranks = ranks_of(comm)
        config = library_config(ranks, {"name": "run", **parts, **settings})
        output, place = output or Output(ranks.rank), None
        if resume is not None:
            place, message, self._nothing_to_do = choose_run(config, resume, ranks)
            if message:
                output.say(message)
        self._set_up(config, ranks, output, trace, place)

    @classmethod
    def from_config(
        cls,
        config: Config,
        comm: Communicator | Any = None,
        output: Output | None = None,
        *,
        trace: bool = False,
        resume: Path | None = None,
    ) -> Self:
        """The run that a configuration describes.

        Args:
            config: from `load_config`, equal on all ranks.
            comm, output, trace: as in the constructor.
            resume: the directory of a run to go on with; None begins one.

        Example:
            >>> config = mt.train.load_config("configs/linreg.yaml")
            >>> mt.train.Trainer.from_config(config).train()
            microtrain 0.1.0: linreg
            ...
            0
        """
        if config.sweep is not None:
            raise ConfigError("a configuration with `sweep` describes many runs: microtrain train")
        trainer = cls.__new__(cls)
        ranks = ranks_of(comm)
        same(ranks, compared(config) if ranks.size > 1 else {}, SAME)
        trainer._set_up(config, ranks, output or Output(ranks.rank), trace, resume)
        return trainer

    @keeping_grad_mode
    def _set_up(
        self, config: Config, comm: Communicator, output: Output, trace: bool, resume: Path | None
    ) -> None:
        keep, duration = config.checkpoint, str(config.train.duration)
        state = RunState(
            [str(keep.monitor), keep.mode], duration, step=0, samples=0, seconds=0.0,
            monitored=None, best=None, before=None, stop="", ended=False,
        )  # fmt: skip
        with during(PROGRESS, output):
            parts = self._build(config, comm, output)
        super().__init__(parts, state, output)
        self._resume, self.wants_trace = resume, trace
        self._inputs = len(layout(self.data.train)[0])
        self.progress = Progress(self.model)
        self.execution = self._executed()
        self._execute: Callable[..., None] = self.execution
        with settled(comm):
            self.callbacks = []
            for each in self.callback_types:
                if each == OF_CONFIGURATION:
                    self.callbacks += map(callback_of, config.callbacks)
                else:
                    kind: Any = load("callback", each) if isinstance(each, str) else each
                    self.callbacks.append(kind())
            span = self.steps_per_epoch, self.total_steps
            self._intervals = [
                (steps, each) for each in self.callbacks if (steps := steps_between(each, *span))
            ]
            hears = any(type(each).on_epoch is not Callback.on_epoch for each in self.callbacks)
            self._epoch = self.steps_per_epoch if hears else None
            self.notify("on_build")
            if resume is None and self._nothing_to_do is None:
                take_initial_values(config, self.model, output.warn)

    def open_directory(self, resume: Path | None) -> RunDirectory:
        """The directory of the run, made or that of `resume`; on rank 0."""
        if resume is not None:
            return RunDirectory(resume, wait_s=LOCK_WAIT)
        place = self.config.run_dir, self.config.name
        return RunDirectory.create(*place, config_text=self.config_text)

    # Training -------------------------------------------------------------------------------------

    @keeping_grad_mode
    def train(self) -> int:
        """Run to the end and write what a run leaves behind; collective.

        Returns the exit code, an int of which a notebook shows nothing: 0 done, 75 stopped early in
        good order and resumable. The model then has the values of the last step; what is told of a
        finished run (test results, report) is of its best checkpoint, which
        `microtrain.load(trainer.path)` gives.
        """
        if self._nothing_to_do is not None:
            return self._nothing_to_do
        if (path := getattr(self, "path", None)) is not None:
            raise RuntimeError(
                f"this Trainer has already trained, in {path}; create another one, with resume= "
                "that directory to continue the run"
            )
        with run_directory(self, self._resume):
            if self._resume is not None:
                take_up(self)
            tell_end(self.path.absolute(), f"resume with: {self._way_on()}")
            if self.comm.num_nodes > 1:
                watchdog.share(self.path / "board")
            self.started = time.perf_counter() - self.state.seconds
            try:
                # What is not finite is found and named below: NumPy need not warn of it.
                with np.errstate(all="ignore"), default_dtype(self.config.dtype):
                    return self._end(self._loop())
            except BaseException as error:
                if not isinstance(error, RankLost):  # the run goes on
                    self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        """Call `on_error` of all, whatever one of them does."""
        with alone("a rank that fails is alone"):
            for callback in self.callbacks:
                try:
                    call(callback, "on_error", self, error)
                except Exception as another:
                    self.output.warn(f"on_error of a callback: {type(another).__name__}: {another}")

    def _loop(self) -> str:
        """Take the steps; returns why the run ends before the last one, if it does."""
        loader, model, state, progress = self.loader, self.model, self.state, self.progress
        total, epoch = self.plan.total, self.plan.epoch
        with Requests(self) as self.requests:
            if state.stop and not state.ended:  # asked for as it was built, or before a resume
                self.requests.ask(state.stop)
            self.notify("on_start")
            States(self.callbacks).state_dict()  # what cannot be saved is found now
            if self.directory is not None:
                self.directory.flush()
            if self.trace is not None:
                self._execute = self.trace.timed("pass", self.execution)
            progress.begin(state.samples)
            # A run that is resumed may be at its end.
            stop = state.stop if state.ended else self.stop_before
            attend = self._next_attention()
            many = ManySteps(self, type(self).take_step is Trainer.take_step)
            # Closed at once, whatever ends it: its end moves the stream of draws.
            with contextlib.closing(loader.steps(state.step % epoch, None)) as steps:
                while not stop and state.step != total:
                    if not many(attend - state.step):
                        micro_batches = many.next_of(steps)
                        try:
                            self.take_step(micro_batches)
                        except NotFinite:
                            self._skip_or_stop(micro_batches)
                        else:
                            progress.add(model.loss, model.weight)
                        state.step += 1
                        state.samples += loader.global_size
                    if state.step == attend or any(model.noted):
                        stop, attend = self._attend(), self._next_attention()
                        many.look_again()
        return stop

    def _next_attention(self) -> float:
        """The next step after which there is more to do than to go on."""
        step, total = self.state.step, self.total_steps
        due = [1 << step.bit_length(), *(callback.due(self, step) for callback in self.callbacks)]
        due += [next_multiple(step, steps) for steps, _ in self._intervals]
        due += [next_multiple(step, self._epoch)]
        due += [] if total is None else [total]
        return min(n for n in due if n > step or n == total)

    def _attend(self) -> str:
        """All that is due after this step; returns why the run is to end, if it is."""
        plan, step, noted = self.plan, self.state.step, self.model.noted
        last = step == plan.total
        evaluate = last or bool(noted[EVALUATE] or (plan.evaluate and not step % plan.evaluate))
        save = bool(noted[SAVE] or (plan.save and not step % plan.save))
        if evaluate or not step & (step - 1):
            self.execution.settle()
        event = Event(step, last, evaluate, save, noted, self.model.loss)
        for steps, callback in self._intervals:
            if step % steps == 0:
                call(callback, "on_step", self)  # before: what it does to the model is measured
        self.notify("on_pause", event)
        if self.directory is not None:
            self.directory.flush(EVERY)
        return event.stop

    def _end(self, stop: str) -> int:
        """Let callbacks write what they know; returns the exit code."""
        self.output.end_bar()
        state, seconds = self.state, time.perf_counter() - self.started
        state.ended = bool(state.stop)
        finished = state.step == self.total_steps or state.ended
        ending = Ending(finished, stop, seconds, peak_memory())
        with ending.undo:
            self.notify("on_end", ending)
        self.notify("on_stop")
        self.execution.end()
        # A rank that is killed from now on has nothing left to go on with.
        tell_end(None)
        return ExitCode(0 if finished else STOPPED)

    def __repr__(self) -> str:
        total = "" if self.total_steps is None else f" of {self.total_steps:,}"
        return f"{type(self).__name__}({self.config.name}, step {self.state.step:,}{total})"

    def stop(self, reason: str) -> None:
        """End the run, as finished, after the step or evaluation under way; on any ranks.

        Before its first step it ends after that.

        Checkpoints keep the request: a run that is killed before its end, and resumed, ends where
        it would have. Asked for in `on_start` of a run that is resumed, it takes no further step; a
        resume with another `train.duration` forgets it.
        """
        self.state.stop = self.state.stop or reason
        if hasattr(self, "requests"):
            self.requests.ask(reason)

    def dry_run(self) -> list[str]:
        """Take a few steps, write nothing; returns what the run needs. Collective, once."""
        return dry_run(self)

    # One optimizer step ---------------------------------------------------------------------------

    def take_step(self, micro_batches: MicroBatches) -> None:
        """One optimizer step; NotFinite where its update was refused."""
        step = self.state.step
        if self.execution.pending and step >= BEGIN - 1:
            self.execution.rehearse(self.loader.kinds(self.total_steps or sys.maxsize))
        if self.rates is not None:
            self.rates.set(step)
        if self.skips is not None:
            self.skips.begin()
        if self.optimizer.needs_closure:
            trials = Trials(functools.partial(self._passes, micro_batches))
            self.optimizer.step(trials)
            trials.end()
        else:
            self._passes(micro_batches)

    def _passes(self, micro_batches: MicroBatches) -> float | None:
        """The passes of a step, and its update where it takes one gradient; returns the loss."""
        left = len(micro_batches)
        first = True
        for batch in micro_batches:
            left -= 1
            self._execute(first, not left, *batch)
            first = False
        return self.model.loss

    # A step is these two; `execution` calls them, or replays what they did.

    def gradients(self, first: bool, last: bool, batch: tuple[Tensor, ...]) -> None:
        """Add the gradients of one micro-batch to those of its step; final after the last."""
        if first:
            self.optimizer.zero_grad()
        with contextlib.nullcontext() if last else self.model.no_sync():
            loss = self.train_step(batch)
            if type(loss) not in TENSORS:
                raise TypeError(
                    f"train_step returned {noun_of(loss)}; expected the loss as a Tensor"
                )
            loss.backward()

    def update(self) -> None:
        """The optimizer's step, if the gradients are finite; they are clipped first.

        One that computes several gradients calls for this, as for `gradients`, in its step.
        """
        MODES.capture.bookkeeping("stop unless finite", self.guard)
        if not self.optimizer.needs_closure:
            self.optimizer.step()

    def _skip_or_stop(self, micro_batches: MicroBatches) -> None:
        """Go on without the update of this step where the policy says so; else DivergedError."""
        skips, step = self.skips, self.step + 1
        if skips is None or not skips.skip(step):
            if self.checkpoints is not None:
                self.checkpoints.wait()  # the last good checkpoint is named
            raise agreed(DivergedError(autopsy(self, step, micro_batches)))
        if str(skips.total).strip("0") == "1" and self.comm.rank == 0:  # the 1st, 10th, 100th ...
            self.output.warn(
                f"the update of step {step:,} was skipped (train.nan: skip), {skips.total:,} so "
                f"far: the loss is {self.model.loss}; {worst_gradient(self.model)}"
            )

    def train_step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss of this rank's rows of one (micro-)batch, from which backward starts.

        batch: inputs, target, and the weights of the rows if the data have any.
        """
        if self.device is not None:
            batch = tuple(tensor.to(device=self.device) for tensor in batch)
        at = self._inputs
        return loss_of_rows(self.loss, self.model(*batch[:at]), *batch[at:])

    def stateful(self) -> dict[str, Any]:
        """What keeps a state of its own in a checkpoint, in the order in which it is restored."""
        keepers: dict[str, Any] = {"compile": self.execution, "progress": self.progress}
        if self.skips is not None:
            keepers["skips"] = self.skips
        named = {each.state_name: each for each in self.callbacks if each.state_name}
        return {**keepers, **named, "callbacks": States(self.callbacks)}
