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
import shlex
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from .. import threads
from ..backend import MODES, default_dtype, to_host
from ..data import DataLoader
from ..distributed import watchdog
from ..distributed.agreement import together
from ..distributed.data_parallel import DataParallel
from ..distributed.replicas import check_replicas
from ..distributed.shards import local_shards
from ..errors import DivergedError, LaunchError
from ..optim import Optimizer
from ..tensor import Tensor
from .checkpoint import save_checkpoint
from .components import build, is_import_path
from .divergence import check_finite
from .duration import Duration
from .evaluation import evaluate
from .execution import Execution
from .output import Header, Output, Summary, truth_lines
from .parts import build_parts, check_fit, choose_device, compare_data, data_hash, load_data
from .pictures import draw, line_of
from .progress import Progress
from .resolved import resolved_yaml
from .rows import Rows, RowSchedule, number
from .run_directory import RunDirectory
from .section import Section
from .trace import Trace

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["Trainer"]


OVERLAP: Final[dict[Any, Literal["auto", "on", "off"]]] = {
    "auto": "auto", True: "on", False: "off",
}  # fmt: skip


class Trainer:
    """One run: builds what the configuration names, trains, and leaves a run directory.

    Args:
        config: from `load_config`, equal on all ranks.
        comm: the ranks of the run.
        output: where lines go; standard output by default.
        trace: write a timeline of every rank into the run directory.

    Attributes:
        model: the `DataParallel` model.
        step, samples: optimiser steps taken and samples seen, over all ranks.
        execution: what executes the steps: the code below, or a capture of it.

    Raises (all on every rank): ConfigError, DataError, LaunchError before anything is trained,
    DivergedError when a loss or gradient is not finite.

    Example:
        >>> config = load_config("configs/linreg.yaml")
        >>> Trainer(config, microtrain.distributed.world()).train()
    """

    def __init__(
        self,
        config: Section,
        comm: Communicator,
        output: Output | None = None,
        *,
        trace: bool = False,
    ) -> None:
        self.config = config
        self.comm = comm
        self.output = output or Output(comm.rank)
        shared = config.distributed
        watchdog.configure(shared.warn_s, shared.timeout_s)
        self.shards: int | None = shared.shards if shared.reproducible == "world" else None
        self._limit_threads()
        if self.shards is not None:
            shards = self.shards
            together(comm, lambda: local_shards(shards, comm))  # the ranks must divide them
        self.device = together(comm, lambda: choose_device(config, comm))
        self.data = together(comm, lambda: load_data(config))
        together(comm, lambda: compare_data(config, self.data, comm))
        with default_dtype(config.dtype):  # for what the user's own model creates
            parts = together(comm, lambda: build_parts(config, self.data, self.device))
            module, self.loss, self.metrics = parts
            together(comm, lambda: check_fit(config, self.data, *parts, self.device))
            reduction = getattr(self.loss, "reduction", "mean")
            self.model = DataParallel(
                module,
                comm,
                "sum" if reduction == "sum" else "mean",
                sync_batchnorm=shared.sync_batchnorm,
                overlap=OVERLAP[shared.overlap],
                bucket_mb=None if shared.bucket_mb == "auto" else shared.bucket_mb,
                compression=shared.compression,
                shards=self.shards,
            )
            self.optimizer: Optimizer = together(
                comm, lambda: build(config.optimizer, params=list(self.model.parameters()))
            )
        self.loader = together(comm, self._make_loader)
        self.steps_per_epoch = len(self.loader)
        self.total_steps = Duration(config.train.duration).steps(self.steps_per_epoch)
        self.eval_every = Duration(config.train.eval_every).steps(
            self.steps_per_epoch, self.total_steps
        )
        self.step = 0
        self.samples = 0
        self._standardized = config.data.standardize
        self.execution = Execution(self)
        self._wants_trace = trace
        self._trace: Trace | None = None
        self._best: tuple[str, float, int] | None = None
        self._run: RunDirectory | None = None

    def _limit_threads(self) -> None:
        """One BLAS thread in world mode: two add up in another order."""
        wish = self.config.distributed.blas_threads
        if self.shards is not None:
            found = threads.blas_threads()
            if wish == "auto" and found > 1:
                self.output.warn(f"reproducible: world computes with 1 BLAS thread, not {found}")
            wish = 1
        if wish != "auto":
            threads.limit_blas_threads(wish)

    def _make_loader(self) -> DataLoader:
        train = self.config.train
        return DataLoader(
            self.data.train,
            train.batch_size,
            seed=self.config.seed,
            shuffle=train.shuffle,
            drop_last=train.drop_last,
            comm=self.comm,
            accumulate=train.accumulate,
            shards=self.shards,
        )

    # Training -------------------------------------------------------------------------------------

    def train(self) -> None:
        """Run to the end and write what a run leaves behind; collective."""
        hosts = self.comm.all_gather_object(socket.gethostname())
        self._run = together(self.comm, self._open_run)
        if self.comm.num_nodes > 1:
            board = None if self._run is None else self._run.path / "board"
            watchdog.share(self.comm.broadcast_object(board))
        if self._wants_trace:
            self.comm.barrier()
            self._trace = Trace(self.comm.rank, socket.gethostname())
            self.model.on_reduced = self._trace.add
        started = time.perf_counter()
        try:
            self._report_header(hosts)
            # What is not finite is found and named below: NumPy need not warn of it.
            with np.errstate(all="ignore"), default_dtype(self.config.dtype):
                self._loop(started)
                self._finish(started)
        except BaseException as error:
            self._leave(error, started)
            raise
        finally:
            if self._run is not None:
                self._run.close()

    def _loop(self, started: float) -> None:
        rows = self._rows()
        schedule = RowSchedule(self.total_steps, self.steps_per_epoch, self._log_every())
        every_evaluation = self.total_steps / self.eval_every <= RowSchedule.limit
        self.output.say("", rows.heading())
        progress = Progress(started, self.model)
        execute: Any = self.execution
        if self._trace is not None:
            execute = self._trace.timed("pass", execute)
        while self.step < self.total_steps:
            for micro_batches in self.loader.steps():
                left = len(micro_batches)
                first = True
                for batch in micro_batches:
                    left -= 1
                    execute(first, not left, *batch)
                    first = False
                self.step = step = self.step + 1
                rows_seen = self.loader.global_size
                self.samples += rows_seen
                progress.add(self.model.loss, rows_seen)
                measured = {}
                evaluating = step % self.eval_every == 0 or step == self.total_steps
                if evaluating or step & (step - 1) == 0:
                    self.execution.settle()
                if evaluating:
                    measured = self._evaluate_during_training(progress)
                if schedule.due(step) or (measured and every_evaluation):
                    self._report_row(rows, progress, measured)
                if step == self.total_steps:
                    break

    # A step is these two; `execution` calls them, or replays what they did.

    def gradients(self, first: bool, last: bool, batch: tuple[Tensor, ...]) -> None:
        """Add the gradients of one micro-batch to those of its step; final after the last."""
        if first:
            self.optimizer.zero_grad()
        with contextlib.nullcontext() if last else self.model.no_sync():
            self.train_step(batch).backward()

    def update(self) -> None:
        """The optimiser's step, if the gradients are finite."""
        recorder = MODES.recorder
        if recorder is None:
            self._refuse_not_finite()
        else:
            recorder.bookkeeping("stop unless finite", self._refuse_not_finite)
        self.optimizer.step()

    def _refuse_not_finite(self) -> None:
        check_finite(self.model, self.step + 1, self._standardized)

    def train_step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss of this rank's rows of one (micro-)batch, from which backward starts."""
        *inputs, target = batch if self.device is None else self._moved(batch)
        loss: Tensor = self.loss(self.model(*inputs), target)
        return loss

    def _moved(self, batch: tuple[Tensor, ...]) -> list[Any]:
        return [tensor.to(device=self.device) for tensor in batch]

    # Observing ------------------------------------------------------------------------------------

    @property
    def monitor(self) -> str:
        """The column whose best value is marked."""
        return str(self.config.checkpoint.monitor)

    def _rows(self) -> Rows:
        part = "val" if self.data.val is not None else "train"
        names = ["train/loss"] + (["val/loss"] if part == "val" else [])
        names += [f"{part}/{metric.name}" for metric in self.metrics]
        return Rows(names, self.monitor, self.total_steps, self.steps_per_epoch)

    def _log_every(self) -> int | None:
        every = self.config.log.every
        if every == "auto":
            return None
        return Duration(every).steps(self.steps_per_epoch, self.total_steps)

    def _evaluate(self, dataset: Any) -> dict[str, float]:
        started = time.perf_counter()
        # Here and not at every step: it reads all parameters.
        check_replicas(self.model.module, self.comm, f"step {self.step:,}")
        parts = self.model.module, self.loss, self.metrics
        found = evaluate(*parts, dataset, self.comm, self.device, self.shards)
        if self._trace is not None:
            self._trace.add("evaluate", started, time.perf_counter())
        return found

    def _evaluate_during_training(self, progress: Progress) -> dict[str, float]:
        """Values by column name: of the validation data, else metrics of the training data."""
        part = "val" if self.data.val is not None else "train"
        dataset = self.data.val or self.data.train
        if part == "train" and not self.metrics:
            return {}
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

    def _where(self) -> dict[str, Any]:
        epoch = self.step / self.steps_per_epoch
        return {"step": self.step, "epoch": epoch, "samples": self.samples}

    def _note_best(self, values: dict[str, float]) -> None:
        value = values.get(self.monitor)
        if value is None or math.isnan(value):
            return
        if self._best is None or value < self._best[1]:
            self._best = (self.monitor, value, self.step)

    def _report_row(self, rows: Rows, progress: Progress, measured: dict[str, float]) -> None:
        """One line on the terminal and its values in metrics.jsonl."""
        seconds, loss, speed = progress.take(self.samples)
        where = self._where()
        self._log({"split": "train", **where, "loss": loss, "time": seconds, **speed})
        values = {"train/loss": loss, **measured}
        if self.monitor == "train/loss":
            self._note_best(values)
        best = self._best is not None and self._best[2] == self.step
        shown = {"step": self.step, "epoch": where["epoch"], **values, **speed}
        self.output.say(rows.row(shown, best=best))

    def _log(self, row: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.log_metrics(row)

    def _open_run(self) -> RunDirectory | None:
        if self.comm.rank != 0:
            return None
        run = RunDirectory.create(self.config.run_dir, self.config.name)
        run.write_config(resolved_yaml(self.config))
        self.output.log = run.log
        return run

    def _report_header(self, hosts: list[str]) -> None:
        if self._run is None:
            return
        from .. import __version__
        from .provenance import versions

        parts = {"train": self.data.train, "val": self.data.val, "test": self.data.test}
        self._run.update(hosts=hosts, ranks=self.comm.size, compile=self.execution.about())
        header = Header(
            title=f"microtrain {__version__}: {self.config.name}",
            hosts=hosts,
            mpi=versions().get("mpi", ""),
            device=str(self.device or "cpu"),
            dtype=self.config.dtype,
            blas_threads=threads.blas_threads(),
            samples={name: len(part) for name, part in parts.items() if part is not None},
            parameters=sum(p.numel() for p in self.model.parameters()),
            bytes_per_step=sum(b.wide.nbytes for b in self.model.storage.buffers),
            steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            batch_size=self.config.train.batch_size,
            compile=f"{self.execution.name}: {self.execution.reason}",
            results=str(self._run.path),
            shared=self._shared(),
        )
        self.output.say(*header.lines())

    def _shared(self) -> str:
        """What the header says of how the ranks work together."""
        if self.shards is not None:
            return f"{self.shards} shards: the same bits at every number of ranks that divides them"
        notes = [f"overlap {self.model.overlap}"] if self.comm.size > 1 else []
        if self.config.distributed.compression != "none":
            notes.append(f"gradients in {self.config.distributed.compression}")
        if self.model.local_batch_norm:
            notes.append(
                "batch norm sees each rank's own rows (sync_batchnorm: false): results depend on "
                "the number of ranks"
            )
        return "; ".join(notes)

    def note_execution(self) -> None:
        """Write down what executes the steps from now on."""
        if self._run is not None:
            self._run.update(compile=self.execution.about())

    # The end --------------------------------------------------------------------------------------

    def _finish(self, started: float) -> None:
        """Test results, checkpoint, plots, summary."""
        seconds = time.perf_counter() - started
        test = None if self.data.test is None else self._evaluate(self.data.test)
        problem = together(self.comm, lambda: self._write_end(test, seconds))
        self._write_trace()
        if self._run is None:
            return
        if problem:
            self.output.warn(problem)
        if test is not None:
            values = "  ".join(f"{name} {number(value)}" for name, value in test.items())
            self.output.say("", f"test  {values}")
        self._report_truth()
        summary = Summary(
            status="finished",
            steps=self.step,
            seconds=seconds,
            samples_per_s=self.samples / seconds if seconds else math.nan,
            comm_share=self.model.comm_seconds / seconds if self.comm.size > 1 else None,
            best=self._best,
            results=str(self._run.path),
            next_command=self._next_command(self._run),
        )
        self.output.say("", *summary.lines())

    def _write_trace(self) -> None:
        """The timelines of all ranks, beside the metrics; without them a run has not failed."""
        if self._trace is None:
            return
        place = self.comm.broadcast_object(None if self._run is None else self._run.path / "trace")
        assert place is not None  # rank 0's
        try:
            self._trace.write(place)
        except OSError as error:  # another host may not see the directory
            self.output.warn(f"no timeline of rank {self.comm.rank}: {error}")

    def _next_command(self, run: RunDirectory) -> str:
        """What to type next, as this run itself was started."""
        program = "python -m microtrain" if sys.argv[0].endswith(".py") else "microtrain"
        parts = [self.config.data, self.config.model, self.config.loss, *self.config.metrics]
        own_code = any(is_import_path(part.type) for part in [*parts, self.config.optimizer])
        trust = " --trust" if own_code else ""
        return f"{program} evaluate {shlex.quote(str(run.path))}{trust}"

    def _write_end(self, test: dict[str, float] | None, seconds: float) -> str | None:
        """Everything on disk; rank 0 only. Returns a warning, if there is one to give."""
        run = self._run
        if run is None:
            return None
        where = self._where()
        if test is not None:
            self._log({"split": "test", **where, **test, "time": seconds})
        named = [(name, to_host(t._array)) for name, t in self.model.state_dict().items()]
        optimizer = {
            f"{name}.{state}": to_host(array)
            for name, param in self.model.named_parameters()
            for state, array in self.optimizer.state_of(param).items()
        }
        save_checkpoint(
            run.checkpoints,
            self.step,
            model=dict(named),
            optimizer=optimizer,
            state={
                "seed": self.config.seed,
                **where,
                "preprocessing": self.data.preprocessing.to_json(),
                "classes": None if self.data.classes is None else list(self.data.classes),
                "data_hash": data_hash(self.data),
                "compile": self.execution.about(),
            },
            config_text=resolved_yaml(self.config),
        )
        from .provenance import params_sha256

        best = None
        if self._best is not None:
            best = dict(zip(("name", "value", "step"), self._best, strict=True))
        run.update(
            status="finished",
            exit_code=0,
            steps=self.step,
            best=best,
            test=test,
            params_sha256=params_sha256(named),
            timings={"train_s": seconds, "comm_s": self.model.comm_seconds},
        )
        try:
            return draw(run, self.config, self.model, self.data, self.device)
        except Exception as error:  # a finished run stays finished whatever a picture meets
            return f"a picture could not be drawn: {type(error).__name__}: {error}"

    def _report_truth(self) -> None:
        line, truth = line_of(self.model.module, self.data), self.data.train.truth
        if line is None or truth is None or len(truth.get("weights", ())) != len(line[0]):
            return
        names = self.data.train.feature_names or [f"x{i}" for i in range(len(line[0]))]
        self.output.say("", *truth_lines(line[0], line[1], truth, names))

    def _leave(self, error: BaseException, started: float) -> None:
        """Note in run.json how a run ended that did not finish."""
        if self._run is None:
            return
        status, code = "failed", getattr(error, "exit_code", 1)
        if isinstance(error, DivergedError):
            status = "diverged"
        elif isinstance(error, KeyboardInterrupt):
            status, code = "stopped", 130
        lines = str(error).splitlines() or [type(error).__name__]
        with contextlib.suppress(LaunchError):  # a full disk must not hide the first error
            self._run.update(
                status=status,
                exit_code=code,
                steps=self.step,
                error=lines[0],
                timings={"train_s": time.perf_counter() - started},
            )
            for line in lines:
                self._run.log(line)
        if isinstance(error, KeyboardInterrupt):
            self.output.say(
                f"interrupted after step {self.step:,}; the rows are in {self._run.path}, the "
                "model was not saved"
            )
