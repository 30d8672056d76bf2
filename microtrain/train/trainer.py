"""The training loop of a run described by a configuration, to be read from top to bottom.

What changes the mathematics stands here: the order of batches, accumulation, the policy for values
that are not finite. What only observes is called from here and lives in its own file: metrics,
rows, the run directory, checkpoints, plots.

Every rank runs the same code; rank 0 alone prints and writes. Mistakes of the user that some ranks
may meet and others not (a file missing on one host) are settled by `together` before training, so
that all ranks leave with one message instead of some waiting for the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..backend import MODES, default_dtype
from ..config.components import build, load
from ..config.library import library_config
from ..config.resolved import resolved_yaml
from ..config.schema import Config
from ..distributed import warden, watchdog, world
from ..distributed.agreement import agreed, from_root, together
from ..distributed.communicator import alone
from ..distributed.replicas import check_replicas
from ..errors import DataError, DivergedError
from ..runs.checkpoint import name_of
from ..runs.directory import RunDirectory
from ..runs.keeper import Saver
from ..runs.record import checkpoint_at
from ..tensor import TENSORS, Tensor
from .autopsy import autopsy
from .callbacks import Callbacks
from .checkpointing import contents, restore
from .divergence import NotFinite, worst_gradient
from .ending import end, leave
from .evaluation import evaluate
from .executor import BEGIN, Execution
from .forecast import dry_run
from .losses import one_loss
from .model_state import load_model_arrays
from .output import Output
from .parts import build_run, data_state
from .progress import Progress
from .resume import choose_run, go_on, split_as_then, take_up
from .rows import Rows, RowSchedule
from .state import RunState
from .telling import header, next_command
from .trace import Trace
from .wishes import EVALUATE, SAVE, STOP, Stopper

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..distributed.communicator import Communicator

__all__ = ["Trainer"]


LOCK_WAIT = 30.0  # seconds in which the ranks of a killed job have died


class Trainer:
    """One run: builds what the configuration names, trains, and leaves a run directory.

    From Python, the keys of the YAML are the keywords; those of `train` may stand at the top, and
    components may be objects. `Trainer.from_config` takes a configuration instead. A training step
    of another shape overrides `train_step`.

    Args:
        model: an `nn.Module`; DataParallel is made here.
        data: an `ArrayDataset`, arrays (inputs..., target), or a component as in the YAML.
        loss: a callable of prediction and target, or a name such as `mse`.
        optimizer: a function of the parameters that makes one, or a component as in the YAML.
        comm: the ranks of the run; all that the launcher started by default.
        output: where lines go; standard output by default.
        trace: write a timeline of every rank into the run directory.
        resume: `auto` or the directory of a run to go on with; None begins one.
        settings: all else, such as `duration="20 epochs"`, `batch_size=64`, `split={"train": 0.8,
            "val": 0.2}`, `metrics=["r2"]`, `callbacks=[...]`, `checkpoint={"every": "5 min"}`.

    Attributes:
        model: the `DataParallel` model.
        step, samples: optimiser steps taken and samples seen, over all ranks.
        total_steps: optimiser steps of the whole run; None where a clock ends it.
        execution: what executes the steps: the code below, or a capture of it.
        path: the run directory, from the beginning of `train`.

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

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        loss: Any,
        optimizer: Any,
        comm: Communicator | None = None,
        output: Output | None = None,
        trace: bool = False,
        resume: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(model, Config):
            raise TypeError("Trainer: a configuration is taken by Trainer.from_config(config)")
        parts = {"model": model, "data": data, "loss": loss, "optimizer": optimizer}
        ranks = world() if comm is None else comm
        config = library_config(ranks, {"name": "run", **parts, **settings})
        place, message, code = choose_run(config, resume, ranks)
        output = output or Output(ranks.rank)
        if message:
            output.say(message)
        self._nothing_to_do = code
        self._set_up(config, ranks, output, trace, place)

    @classmethod
    def from_config(
        cls,
        config: Config,
        comm: Communicator | None = None,
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
        trainer = cls.__new__(cls)
        trainer._nothing_to_do = None
        ranks = world() if comm is None else comm
        trainer._set_up(config, ranks, output or Output(ranks.rank), trace, resume)
        return trainer

    def _set_up(
        self,
        config: Config,
        comm: Communicator,
        output: Output,
        trace: bool,
        resume: Path | None,
    ) -> None:
        if resume is not None:
            split_as_then(config, resume, comm)
        self.output = output
        self.parts = parts = build_run(config, comm, output.warn)
        self.state = RunState()
        self.config, self.comm, self.device, self.data = config, comm, parts.device, parts.data
        self.model, self.loss, self.metrics = parts.model, parts.loss, parts.metrics
        self.optimizer, self.loader, self.rates = parts.optimizer, parts.loader, parts.rates
        self.guard, self.skips = parts.guard, parts.skips
        self.steps_per_epoch, self.total_steps = parts.plan.epoch, parts.plan.total
        self._data_state = data_state(self.data)
        self._resume = resume
        self.callbacks = together(comm, self._make_callbacks)
        self._hear_epochs = self.callbacks.hear("on_epoch")
        self.execution = Execution(
            parts, self.state, output, self.gradients, self.update, self.train_step
        )
        self.execution.noted = self._note_execution
        self._execute: Callable[..., None] = self.execution
        self._wants_trace = trace
        self._trace: Trace | None = None
        self._run: RunDirectory | None = None
        self._saver: Saver | None = None
        if resume is None and self._nothing_to_do is None:
            together(comm, self._take_initial_values)

    def _make_callbacks(self) -> Callbacks:
        found = []
        for component in self.config.callbacks:
            made = component.instance or load("callbacks", component.type)
            # What `every` has decorated is a callback already, as is an object.
            found.append(build(component) if isinstance(made, type) else made)
        return Callbacks(found, self)

    def _take_initial_values(self) -> None:
        """The values of another run's model, before the first step."""
        path = self.config.train.init_from
        if path is None:
            return
        checkpoint = checkpoint_at(path, self.output.warn)
        try:
            load_model_arrays(self.model, checkpoint.model)
        except RuntimeError as error:
            raise DataError(f"train.init_from: {checkpoint.path} does not fit: {error}") from error

    # Training -------------------------------------------------------------------------------------

    def train(self) -> int:
        """Run to the end and write what a run leaves behind; collective.

        Returns the exit code: 0 done, 75 stopped early in good order and resumable. The model then
        has the values of the last step; what is told of a finished run (test results, report) is
        of its best checkpoint, which `microtrain.load(trainer.path)` gives.
        """
        if self._nothing_to_do is not None:
            return self._nothing_to_do
        if (path := getattr(self, "path", None)) is not None:
            raise RuntimeError(
                f"this Trainer has trained already, in {path}; make another one, with resume= "
                "of that directory to go on with it"
            )
        # Where mpirun names a process that was killed, run.json says which rank that was.
        everyone = self.comm.all_gather_object((socket.gethostname(), os.getpid()))
        hosts, processes = map(list, zip(*everyone, strict=True))
        self._run = together(self.comm, self._open_run)
        place = None if self._run is None else str(self._run.path)
        self.path = Path(self.comm.broadcast_object(place) or "")
        try:
            self._continue()
            warden.tell(words=f"go on with: {next_command(self, 'resume')}")
            if self.comm.num_nodes > 1:
                watchdog.share(self.path / "board")
            if self._wants_trace:
                self.comm.barrier()
                self._trace = Trace(self.comm.rank, socket.gethostname())
                self.model.on_reduced = self._trace.add
            started = time.perf_counter() - self.state.elapsed
            try:
                self._report_header(hosts, processes)
                # What is not finite is found and named below: NumPy need not warn of it.
                with np.errstate(all="ignore"), default_dtype(self.config.dtype):
                    return self._loop(started)
            except BaseException as error:
                leave(self, error, started)
                raise
        finally:
            self.output.end_bar()
            if self._saver is not None:
                self._saver.wait()
            if self._run is not None:
                self._run.close()

    def dry_run(self) -> list[str]:
        """Take a few steps, write nothing; returns what the run needs. Collective, once."""
        return dry_run(self.parts, self.state, self.take_step, self.execution.settle)

    def stop(self, reason: str) -> None:
        """End the run, as finished, after the step or evaluation under way; on any ranks.

        Checkpoints keep the wish: a run that is killed before its end, and resumed, ends where it
        would have. Asked for in `on_start` of a run that is resumed, it takes no further step; a
        resume with another `train.duration` forgets it.
        """
        self.state.stop = self.state.stop or reason
        self._stopper.ask(reason)

    def _loop(self, started: float) -> int:
        self._rows = self._make_rows()
        self._rows_by_clock = self.parts.plan.row is None and self.config.log.every != "auto"
        every = sys.maxsize if self._rows_by_clock else self.parts.plan.row
        self._schedule = RowSchedule(self.total_steps, self.steps_per_epoch, every)
        self._progress = progress = Progress(started, self.model)
        self._every_evaluation = every is None and (
            self.total_steps is None
            or self.parts.plan.evaluate is None
            or self.total_steps / self.parts.plan.evaluate <= RowSchedule.limit
        )
        if self._restored is not None:
            progress.restore(self._restored["progress"], self.samples)
            self._schedule.restore(self._restored["rows"])
        self.output.say("", self._rows.heading())
        self._look_at = self.output.start_bar(self.total_steps, self.step)
        if self._trace is not None:
            self._execute = self._trace.timed("pass", self.execution)
        model, loader, state = self.model, self.loader, self.state
        path = None if self._run is None else self._run.path
        seconds = {
            name: max(limit - (self.state.elapsed if name == "duration" else 0.0), 0.0)
            for name, limit in self.parts.plan.ends.items()
        }
        with Stopper(model, path, seconds, self.parts.plan.intervals) as self._stopper:
            stop = self._begin()
            self.callbacks.state()  # one that cannot be saved is found now, not at a checkpoint
            attend = self._next_attention()
            # Closed at once, whatever ends it: its end moves the stream of draws.
            with contextlib.closing(loader.steps(self.step % self.steps_per_epoch, None)) as steps:
                while not stop and state.step != self.total_steps:
                    micro_batches = next(steps)
                    rows = loader.global_size
                    try:
                        self.take_step(micro_batches)
                    except NotFinite:
                        self._skip_or_stop(micro_batches)
                    else:
                        progress.add()
                    state.step += 1
                    state.samples += rows
                    if state.step == attend or any(model.noted):
                        stop = self._attend()
                        attend = self._next_attention()
        return end(self, stop, started)

    def _begin(self) -> str:
        """Call `on_start`; returns why a run that is resumed is at its end already, if it is."""
        asked = self.state.stop  # before the resume
        if asked and not self.state.ended:
            self._stopper.ask(asked)
        self.callbacks.call("on_start")
        if self._restored is None or (asked and not self.state.ended):
            return ""
        self._agree_to_stop()
        self.state.ended = bool(self.state.stop)
        return self.state.stop

    def _agree_to_stop(self) -> str:
        """Let all ranks know what any was asked for; returns why to stop, if anyone wants that."""
        reasons = self.comm.all_gather_object((self.state.stop, self._stopper.reason))
        clock = "duration" if ("", "duration") in reasons else ""
        self.state.stop = next((asked for asked, _ in reasons if asked), clock)
        return self.state.stop or next((reason for _, reason in reasons if reason), "")

    def _next_attention(self) -> int:
        """The next step after which there is more to do than to go on."""
        step = self.step
        due: list[float] = [self._schedule.next_step(step), 1 << step.bit_length()]
        plan = self.parts.plan
        intervals = (plan.evaluate, plan.save, self.steps_per_epoch if self._hear_epochs else None)
        due += [(step // every + 1) * every for every in intervals if every is not None]
        due += [n for n in (self.callbacks.next_step(step), self.total_steps) if n is not None]
        due.append(max(self._look_at, step + 1))
        if self._saver is not None:
            due.append(self._saver.next_step(step))
        return int(min(n for n in due if n > step or n == self.total_steps))

    def _attend(self) -> str:
        """All that is due after this step; returns why the run is to end, if it is."""
        step, noted = self.step, self.model.noted
        last = step == self.total_steps
        evaluating = last or bool(
            noted[EVALUATE] or (self.parts.plan.evaluate and not step % self.parts.plan.evaluate)
        )
        if evaluating or not step & (step - 1):
            self.execution.settle()
        self.callbacks.on_step(step)
        measured: dict[str, float] = {}
        if noted[EVALUATE]:
            self._stopper.done(EVALUATE)
        if evaluating:
            measured = self._evaluate_during_training()
        loss: Any = self.model.loss
        row = noted[EVALUATE] if self._rows_by_clock else evaluating and self._every_evaluation
        if self._schedule.due(step) or row:
            loss = self._report_row(measured)
        if evaluating:
            self.callbacks.call("on_eval", {"train/loss": loss, **measured})
        if not step % self.steps_per_epoch:
            self.callbacks.call("on_epoch")
        if step >= self._look_at:
            self._look_at = self.output.look(step)
        best = self.state.best is not None and self.state.best[2] == step
        best = best and self.config.checkpoint.keep_best > 0
        every = self.parts.plan.save
        saving = bool(best or noted[SAVE] or (every and not step % every))
        stop = ""
        # Where a checkpoint is written, rank 0 must know what others were asked for.
        if noted[STOP] or ((evaluating or saving) and self.comm.any(bool(self.state.stop))):
            stop = self._agree_to_stop()
            if not (noted[STOP] or evaluating):
                stop = ""  # it travels with the next step
        saver = self._saver
        if saver is not None and not last and not stop:
            if saving:
                self._stopper.done(SAVE)
                saver.submit(contents(self), best)
                before = self.state.stop
                self._tell_of_save()
                if self.state.stop != before:  # a callback heard of it, and has had enough
                    saver.submit(contents(self), best)
            if saver.due(step):
                self._stopper.note(SAVE)
        return stop

    def take_step(self, micro_batches: MicroBatches) -> None:
        """One optimiser step; NotFinite where its update was refused."""
        step = self.state.step
        if self.execution.pending and step >= BEGIN - 1:
            self.execution.rehearse(self.loader.kinds(self.total_steps or sys.maxsize))
        if self.rates is not None:
            self.rates.set(step)
        if self.skips is not None:
            self.skips.begin()
        left = len(micro_batches)
        first = True
        for batch in micro_batches:
            left -= 1
            self._execute(first, not left, *batch)
            first = False

    # A step is these two; `execution` calls them, or replays what they did.

    def gradients(self, first: bool, last: bool, batch: tuple[Tensor, ...]) -> None:
        """Add the gradients of one micro-batch to those of its step; final after the last."""
        if first:
            self.optimizer.zero_grad()
        with contextlib.nullcontext() if last else self.model.no_sync():
            loss = self.train_step(batch)
            if type(loss) not in TENSORS:
                raise TypeError(
                    f"train_step returned a {type(loss).__name__}; expected the loss as a Tensor"
                )
            loss.backward()

    def update(self) -> None:
        """The optimiser's step, if the gradients are finite; they are clipped first."""
        recorder = MODES.recorder
        if recorder is None:
            self.guard()
        else:
            recorder.bookkeeping("stop unless finite", self.guard)
        self.optimizer.step()

    def _skip_or_stop(self, micro_batches: MicroBatches) -> None:
        """Go on without the update of this step where the policy says so; else DivergedError."""
        skips, step = self.skips, self.step + 1
        if skips is None or not skips.skip(step):
            if self._saver is not None:
                self._saver.wait()  # the last good checkpoint is named
            text = autopsy(self.parts, step, micro_batches, self.gradients, self._run)
            raise agreed(DivergedError(text))
        if skips.worth_a_warning and self.comm.rank == 0:
            self.output.warn(
                f"the update of step {step:,} was skipped (train.nan: skip), {skips.total:,} so "
                f"far: the loss is {self.model.loss}; {worst_gradient(self.model)}"
            )

    def train_step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss of this rank's rows of one (micro-)batch, from which backward starts."""
        *inputs, target = batch if self.device is None else self._moved(batch)
        loss: Tensor = one_loss(self.loss(self.model(*inputs), target))
        return loss

    def _moved(self, batch: tuple[Tensor, ...]) -> list[Any]:
        return [tensor.to(device=self.device) for tensor in batch]

    # Observing ------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Optimiser steps taken."""
        return self.state.step

    @property
    def samples(self) -> int:
        """Samples seen, over all ranks."""
        return self.state.samples

    @property
    def monitor(self) -> str:
        """The column whose best value is marked."""
        return str(self.config.checkpoint.monitor)

    def _monitor(self) -> list[str]:
        """What is best, and which way: another may be chosen at a resume."""
        return [self.monitor, self.config.checkpoint.mode]

    def _make_rows(self) -> Rows:
        part = "val" if self.data.val is not None else "train"
        names = ["train/loss"] + (["val/loss"] if part == "val" else [])
        names += [f"{part}/{metric.name}" for metric in self.metrics]
        names += [] if self.rates is None else ["lr"]
        return Rows(names, self.monitor, self.total_steps, self.steps_per_epoch)

    def _evaluate(self, dataset: Any) -> dict[str, float]:
        started = time.perf_counter()
        # Here and not at every step: it reads all parameters.
        check_replicas(self.model.module, self.comm, f"step {self.step:,}")
        parts = self.model.module, self.loss, self.metrics
        found = evaluate(*parts, dataset, self.comm, self.device, self.parts.shards)
        if self._trace is not None:
            self._trace.add("evaluate", started, time.perf_counter())
        return found

    def _evaluate_during_training(self) -> dict[str, float]:
        """Values by column name: of the validation data, else metrics of the training data."""
        part = "val" if self.data.val is not None else "train"
        dataset = self.data.val or self.data.train
        if part == "train" and not self.metrics:
            return {}
        progress = self._progress
        began = time.perf_counter()
        found = self._evaluate(dataset)
        if part == "train":
            found.pop("loss")  # the row shows the loss of the steps themselves
        ended = time.perf_counter()
        progress.paused += ended - began
        self._log({"split": part, **self._where(), **found, "time": ended - progress.started})
        measured = {f"{part}/{name}": value for name, value in found.items()}
        self._note_best(measured)
        return measured

    def _where(self, step: int | None = None, samples: int | None = None) -> dict[str, Any]:
        step, samples = (self.step, self.samples) if step is None else (step, samples)
        return {"step": step, "epoch": step / self.steps_per_epoch, "samples": samples}

    def _note_best(self, values: dict[str, float]) -> None:
        value = values.get(self.monitor)
        if value is None or not math.isfinite(value):
            return
        self.state.measured = self.step, value
        sign = 1 if self.config.checkpoint.mode == "min" else -1
        if self.state.best is None or sign * value < sign * self.state.best[1]:
            self.state.best = (self.monitor, value, self.step)

    def _report_row(self, measured: dict[str, float]) -> float:
        """One line on the terminal and its values in metrics.jsonl; returns the loss in it."""
        seconds, loss, speed = self._progress.take(self.samples)
        where = self._where()
        details: dict[str, Any] = {"lr": self.optimizer.param_groups[0]["lr"]}
        if self.guard.clip_norm is not None:
            details["grad_norm"] = self.guard.norm
        if self.skips is not None:
            details["skipped"] = self.skips.total
        self._log({"split": "train", **where, "loss": loss, **details, "time": seconds, **speed})
        values = {"train/loss": loss, **measured}
        if self.rates is not None:
            values["lr"] = details["lr"]
        if self.monitor == "train/loss":
            self._note_best(values)
        best = self.state.best is not None and self.state.best[2] == self.step
        shown = {"step": self.step, "epoch": where["epoch"], **values, **speed}
        self.output.say(self._rows.row(shown, best=best))
        return loss

    def _log(self, row: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.log_metrics(row)

    def _open_run(self) -> RunDirectory | None:
        if self.comm.rank != 0:
            return None
        self._config_text = resolved_yaml(self.config)  # once: as long as many steps
        if self._resume is not None:
            # A killed job's ranks may still be dying.
            run = RunDirectory(self._resume, wait_s=LOCK_WAIT)
        else:
            run = RunDirectory.create(
                self.config.run_dir, self.config.name, config_text=self._config_text
            )
        self.output.log = run.log
        keep = self.config.checkpoint
        monitor = self.monitor, keep.mode
        self._saver = Saver(
            run.checkpoints,
            keep.keep_last,
            keep.keep_best,
            monitor,
            self.output.warn,
            run.sync,
            epoch=self.steps_per_epoch if self.config.checkpoint.every == "auto" else None,
        )
        return run

    def _continue(self) -> None:
        """Take over where the run that is resumed has come to; collective."""
        self._restored: dict[str, Any] | None = None
        if self._resume is None:
            return
        found = from_root(self.comm, lambda: take_up(self))
        if found is None:  # nothing was saved
            together(self.comm, self._take_initial_values)
        else:
            together(self.comm, lambda: restore(self, *found))
        together(self.comm, lambda: go_on(self, self._restored))

    def _tell_of_save(self) -> None:
        if self._saver is not None:  # when it saves is decided by the first rank's disk
            with alone("on_save is called on rank 0 alone"):
                self.callbacks.call("on_save", self.path / "checkpoints" / name_of(self.step))

    def _best_as_dict(self) -> dict[str, Any] | None:
        if self.state.best is None:
            return None
        return dict(zip(("name", "value", "step"), self.state.best, strict=True))

    def _report_header(self, hosts: list[str], processes: list[int]) -> None:
        if self._run is None:
            return
        about = self.execution.about()
        self._run.update(hosts=hosts, processes=processes, ranks=self.comm.size, compile=about)
        self.output.say(*header(self, hosts).lines())

    def _note_execution(self, about: dict[str, Any]) -> None:
        """Write down what executes the steps from now on."""
        if self._run is not None:
            self._run.update(compile=about)
