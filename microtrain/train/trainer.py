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
import hashlib
import math
import shlex
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import threads
from ..autograd import no_grad
from ..backend import XP, default_dtype, resolve_device, to_host, use_gpu
from ..creation import from_numpy
from ..data import ArrayDataset, Batch, DataLoader, Prepared, prepare
from ..distributed.data_parallel import DataParallel
from ..errors import ConfigError, DataError, DivergedError, LaunchError, UserError
from ..nn import CrossEntropyLoss, Linear, Module, MSELoss
from ..optim import Optimizer
from ..random import manual_seed
from ..tensor import Tensor
from .checkpoint import save_checkpoint
from .components import build, is_import_path
from .duration import Duration
from .evaluation import evaluate
from .metrics import Metric
from .output import Header, Output, Summary, truth_lines
from .resolved import resolved_yaml
from .rows import Rows, RowSchedule
from .run_directory import RunDirectory, read_metrics
from .section import Section

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["Trainer"]

T = TypeVar("T")


class Trainer:
    """One run: builds what the configuration names, trains, and leaves a run directory.

    Args:
        config: from `load_config`, equal on all ranks.
        comm: the ranks of the run.
        output: where lines go; standard output by default.

    Attributes:
        model: the `DataParallel` model.
        step, samples: optimiser steps taken and samples seen, over all ranks.

    Raises (all on every rank): ConfigError, DataError, LaunchError before anything is trained,
    DivergedError when a loss or gradient is not finite.

    Example:
        >>> config = load_config("configs/linreg.yaml")
        >>> Trainer(config, microtrain.distributed.world()).train()
    """

    def __init__(self, config: Section, comm: Communicator, output: Output | None = None) -> None:
        self.config = config
        self.comm = comm
        self.output = output or Output(comm.rank)
        if config.distributed.blas_threads != "auto":
            threads.limit_blas_threads(config.distributed.blas_threads)
        self.device = together(comm, lambda: _choose_device(config, comm))
        self.data: Prepared = together(comm, self._load_data)
        together(comm, self._compare_data)
        with default_dtype(config.dtype):  # for what the user's own model creates
            module, self.loss, self.metrics = together(comm, self._build_model)
            reduction = getattr(self.loss, "reduction", "mean")
            self.model = DataParallel(module, comm, "sum" if reduction == "sum" else "mean")
            self.optimizer: Optimizer = together(
                comm, lambda: build(config.optimizer, params=list(self.model.parameters()))
            )
            together(comm, self._try_out)
        self.loader = together(comm, self._make_loader)
        self.steps_per_epoch = len(self.loader)
        self.total_steps = Duration(config.train.duration).steps(self.steps_per_epoch)
        self.eval_every = Duration(config.train.eval_every).steps(
            self.steps_per_epoch, self.total_steps
        )
        self.step = 0
        self.samples = 0
        self._best: tuple[str, float, int] | None = None
        self._run: RunDirectory | None = None

    # What is trained ------------------------------------------------------------------------------

    def _load_data(self) -> Prepared:
        data = self.config.data
        origin = f"data ({data.type})"
        loaded = build(data, seed=self.config.seed)
        return prepare(
            loaded,
            split={part: f for part, f in data.split.items() if f},
            standardize=data.standardize,
            dtype=np.dtype(self.config.dtype),
            seed=self.config.seed,
            origin=origin,
        )

    def _compare_data(self) -> None:
        """DataError unless every rank has loaded the same rows: the batches are cut from them."""
        if self.comm.size == 1:
            return
        digest = hashlib.blake2b()
        for part in (self.data.train, self.data.val, self.data.test):
            for array in () if part is None else part.arrays:
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        everyone = self.comm.all_gather_object((len(self.data.train), digest.hexdigest()))
        for rank, (rows, found) in enumerate(everyone):
            if found != everyone[0][1]:
                raise DataError(
                    f"data ({self.config.data.type}): rank {rank} has loaded other data than rank "
                    f"0 ({rows:,} and {everyone[0][0]:,} training rows); every rank must load the "
                    "same: draw random numbers from the seed that a component may take"
                )

    def _build_model(self) -> tuple[Module, Any, list[Metric]]:
        """Model, loss and metrics; the model's initial values are equal on all ranks."""
        manual_seed(self.config.seed)
        module = build_model(self.config, self.data)
        module.to(self.config.dtype, self.device)
        return module, build(self.config.loss), [build(one) for one in self.config.metrics]

    def _try_out(self) -> None:
        """Two rows through model, loss and metrics, so that what does not fit shows at once."""
        if isinstance(self.loss, CrossEntropyLoss) and self.data.classes is None:
            target = self.data.train.arrays[-1]
            raise ConfigError(
                f"loss {self.config.loss.type} compares classes, but the target is "
                f"{target.dtype.name} of shape {target.shape}: a regression; use mse or class codes"
            )
        if isinstance(self.loss, MSELoss) and self.data.classes is not None:
            raise ConfigError(
                f"loss {self.config.loss.type} compares numbers, but the target is one of "
                f"{len(self.data.classes)} classes; use cross_entropy"
            )
        rows = self.data.train.with_arrays(*self.data.train[:2])
        self._check_kinds(rows)
        try:
            evaluate(self.model.module, self.loss, self.metrics, rows, _ALONE(), self.device)
        except (RuntimeError, IndexError, TypeError) as error:
            names = [self.config.model.type, self.config.loss.type]
            if any(is_import_path(name) for name in names):
                raise
            shapes = ", ".join(str(array.shape[1:]) for array in self.data.train.arrays)
            raise ConfigError(
                f"model {names[0]} and loss {names[1]} do not fit the data (rows of shapes "
                f"{shapes}): {error}"
            ) from error

    def _check_kinds(self, rows: ArrayDataset) -> None:
        """ConfigError where the user's model, loss or metric returns what training cannot use."""
        if not any(param.requires_grad for param in self.model.parameters()):
            raise ConfigError(f"model {self.config.model.type}: no parameter requires grad")
        *inputs, target = (from_numpy(array).to(device=self.device) for array in rows.arrays)
        with no_grad():
            prediction = self.model.module(*inputs)
            if not isinstance(prediction, Tensor):
                raise ConfigError(
                    f"model {self.config.model.type} returned a {type(prediction).__name__}; "
                    "forward must return one Tensor"
                )
            loss = self._loss_to_check(prediction, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(
                f"loss {self.config.loss.type} returned {what}; expected one number as a Tensor"
            )
        for metric in self.metrics:
            if not isinstance(getattr(metric, "name", None), str):
                raise ConfigError(f"metric {type(metric).__name__} has no name")

    def _loss_to_check(self, prediction: Tensor, target: Tensor) -> Any:
        try:
            return self.loss(prediction, target)
        except (RuntimeError, IndexError, TypeError) as error:
            if is_import_path(self.config.loss.type):
                raise
            shapes = ", ".join(str(array.shape[1:]) for array in self.data.train.arrays)
            raise ConfigError(
                f"model {self.config.model.type} and loss {self.config.loss.type} do not fit the "
                f"data (rows of shapes {shapes}): {error}"
            ) from error

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
        )

    # Training -------------------------------------------------------------------------------------

    def train(self) -> None:
        """Run to the end and write what a run leaves behind; collective."""
        hosts = self.comm.all_gather_object(socket.gethostname())
        self._run = together(self.comm, self._open_run)
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
        mark = _Mark(started, self.model)
        while self.step < self.total_steps:
            for micro_batches in self.loader.steps():
                self.optimizer.zero_grad()
                for batch in micro_batches[:-1]:
                    with self.model.no_sync():
                        self.train_step(batch).backward()
                self.train_step(micro_batches[-1]).backward()
                self._check_finite()
                self.optimizer.step()
                self.step += 1
                self.samples += self.loader.global_size
                mark.add(self.model.loss, self.loader.global_size)
                measured = {}
                if self.step % self.eval_every == 0 or self.step == self.total_steps:
                    measured = self._evaluate_during_training(mark)
                if schedule.due(self.step) or (measured and every_evaluation):
                    self._report_row(rows, mark, measured)
                if self.step == self.total_steps:
                    break

    def train_step(self, batch: Batch) -> Tensor:
        """The loss of this rank's rows of one (micro-)batch, from which backward starts."""
        *inputs, target = batch if self.device is None else self._moved(batch)
        loss: Tensor = self.loss(self.model(*inputs), target)
        return loss

    def _moved(self, batch: Batch) -> list[Any]:
        return [tensor.to(device=self.device) for tensor in batch]

    def _check_finite(self) -> None:
        """Stop before an update with values that are not finite.

        Loss and gradients are global, the same bits on every rank, so all ranks decide alike.
        """
        loss = self.model.loss
        if loss is None or math.isfinite(loss):
            for buffer in self.model.storage.buffers:
                xp = XP[type(buffer.grad)]
                # The sum of squares may overflow for finite values; only then look at each.
                square = float(xp.dot(buffer.grad, buffer.grad))
                if not math.isfinite(square) and not bool(xp.isfinite(buffer.grad).all()):
                    break
            else:
                return
        raise _agreed(DivergedError(self._divergence()))

    def _divergence(self) -> str:
        """Which step, which parameter, and what to do about it."""
        lines = [f"training diverged at step {self.step + 1:,}: the loss is {self.model.loss}"]
        worst, largest = "", -1.0
        for name, param in self.model.named_parameters():
            if param.grad is None:
                continue
            grad = to_host(param.grad._array)
            bad = int(grad.size - np.isfinite(grad).sum())
            where = f"{name} (layer {name.rpartition('.')[0] or type(self.model.module).__name__})"
            if bad:
                worst = (
                    f"first parameter with a gradient that is not finite: {where}, "
                    f"{bad:,} of {grad.size:,} values"
                )
                break
            if grad.size and float(np.abs(grad).max()) > largest:
                largest = float(np.abs(grad).max())
                worst = f"gradients are finite; the largest is {largest:.5g}, of {where}"
        lines += [worst] if worst else []
        lines.append(
            f"the update was not made; the parameters are those after step {self.step:,}, and no "
            "checkpoint was written"
        )
        lines.append("hint: a smaller optimizer.lr, or data: {standardize: true}")
        return "\n".join(lines)

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
        return evaluate(self.model.module, self.loss, self.metrics, dataset, self.comm, self.device)

    def _evaluate_during_training(self, mark: _Mark) -> dict[str, float]:
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
        mark.paused += ended - began
        self._log({"split": part, **self._where(), **found, "time": ended - mark.started})
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

    def _report_row(self, rows: Rows, mark: _Mark, measured: dict[str, float]) -> None:
        """One line on the terminal and its values in metrics.jsonl."""
        seconds, loss, speed = mark.take(self.samples)
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
        self._run.update(hosts=hosts, ranks=self.comm.size)
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
            results=str(self._run.path),
        )
        self.output.say(*header.lines())

    # The end --------------------------------------------------------------------------------------

    def _finish(self, started: float) -> None:
        """Test results, checkpoint, plots, summary."""
        seconds = time.perf_counter() - started
        test = None if self.data.test is None else self._evaluate(self.data.test)
        problem = together(self.comm, lambda: self._write_end(test, seconds))
        if self._run is None:
            return
        if problem:
            self.output.warn(problem)
        if test is not None:
            from .rows import number

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
            next_command=f"microtrain evaluate {shlex.quote(str(self._run.path))}",
        )
        self.output.say("", *summary.lines())

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
            return self._draw(run)
        except Exception as error:  # a finished run stays finished whatever a picture meets
            return f"a picture could not be drawn: {type(error).__name__}: {error}"

    def _draw(self, run: RunDirectory) -> str | None:
        """The loss curve, and data with fitted line where there is one feature."""
        from .plots import Plots, line_label

        told: list[str] = []
        plots = Plots(run.plots, told.append, self.config.name)
        plots.loss(read_metrics(run.metrics_file), self.monitor)
        train = self.data.train
        x, y = train.arrays[0], train.arrays[-1]
        one_feature = len(train.arrays) == 2 and x.shape[1:] == (1,) == y.shape[1:]
        if not one_feature or y.dtype.kind != "f":
            return told[0] if told else None
        mean, scale = (float(v[0]) for v in _mean_and_scale(self.data))

        def fitted(places: Any) -> Any:
            from ..creation import tensor

            inputs = tensor((places[:, None] - mean) / scale, dtype=x.dtype, device=self.device)
            training = self.model.module.training
            self.model.module.eval()
            try:
                with no_grad():
                    return to_host(self.model.module(inputs)._array)
            finally:
                self.model.module.train(training)

        truth = train.truth
        line = self._line()
        plots.fit(
            x.astype(np.float64) * scale + mean,
            y,
            fitted,
            None if truth is None else lambda v: truth["weights"][0] * v + truth["bias"],
            fitted_label="fitted" if line is None else line_label("fitted", line[0][0], line[1]),
            true_label="true"
            if truth is None
            else line_label("true", truth["weights"][0], truth["bias"]),
            feature=train.feature_names[0] if train.feature_names else "x",
            target=train.target_name or "y",
        )
        return told[0] if told else None

    def _line(self) -> tuple[list[float], float] | None:
        """Weights and bias of a linear model with one output, in the units of the raw inputs."""
        module = self.model.module
        if not isinstance(module, Linear) or module.out_features != 1:
            return None
        mean, scale = _mean_and_scale(self.data)
        weight = to_host(module.weight._array).astype(np.float64)[0] / scale
        bias = 0.0 if module.bias is None else float(to_host(module.bias._array)[0])
        return [float(w) for w in weight], bias - float((weight * mean).sum())

    def _report_truth(self) -> None:
        line, truth = self._line(), self.data.train.truth
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


class _Mark:
    """What happened since the last row: the exact mean loss, and the time it took."""

    def __init__(self, started: float, model: DataParallel) -> None:
        self.started = self.since = started
        self.model = model
        self.mean = model.reduction == "mean"
        self.total = self.weight = 0.0
        self.samples = 0
        self.comm = model.comm_seconds
        self.paused = 0.0

    def add(self, loss: float | None, samples: int) -> None:
        """One optimiser step."""
        weight = samples if self.mean else 1
        self.total += math.nan if loss is None else loss * weight
        self.weight += weight

    def take(self, samples: int) -> tuple[float, float, dict[str, float]]:
        """Seconds since the start, the loss, and the speed since the last row; then begin anew.

        The loss is the mean over the steps since the last row, weighted by their samples; of a
        loss that is a sum, the mean of the steps' sums.
        """
        now = time.perf_counter()
        spent = max(now - self.since - self.paused, 1e-9)
        speed = {"samples_per_s": (samples - self.samples) / spent}
        if self.model.comm.size > 1:
            speed["comm_share"] = (self.model.comm_seconds - self.comm) / spent
        loss = self.total / self.weight if self.weight else math.nan
        self.since, self.samples, self.paused = now, samples, 0.0
        self.comm = self.model.comm_seconds
        self.total = self.weight = 0.0
        return now - self.started, loss, speed


def build_model(config: Section, data: Prepared) -> Module:
    """The configured model, with the sizes that the configuration leaves to the data.

    Raises ConfigError where it is not a Module with parameters.
    """
    sizes = {"in_features": data.in_features, "out_features": data.out_features}
    sizes["classes"] = None if data.classes is None else len(data.classes)
    known = {name: size for name, size in sizes.items() if size is not None}
    module = build(config.model, **known)
    if not isinstance(module, Module) or not any(True for _ in module.parameters()):
        raise ConfigError(
            f"model {config.model.type} made a {type(module).__name__}; expected a "
            "microtrain.nn.Module with parameters"
        )
    return module


def together(comm: Communicator, function: Callable[[], T]) -> T:
    """`function()` on every rank; a UserError on any of them is raised on all. Collective.

    So a mistake that only some ranks can see ends the job in good order, with one message.
    """
    result: Any = None
    mine: UserError | None = None
    try:
        result = function()
    except UserError as error:
        mine = error
    for rank, found in enumerate(comm.all_gather_object(mine)):
        if found is not None:
            if mine is None and rank:
                found = type(found)(f"rank {rank}: {found}")
            raise _agreed(found if mine is None else mine) from None
    return result  # type: ignore[no-any-return]


def _agreed(error: UserError) -> UserError:
    """Mark an error that every rank raises, so that the job may end without an abort."""
    error.agreed = True
    return error


def _choose_device(config: Section, comm: Communicator) -> Any:
    """None for the CPU, or the GPU of this rank: one for each rank of a host.

    Raises LaunchError where a GPU is asked for and absent, or there are fewer than local ranks.
    """
    from ..backend import cuda_device_count

    if config.device == "cpu":
        return None
    count = cuda_device_count()
    if not count:
        if config.device == "auto":
            return None
        try:
            resolve_device("cuda")
        except RuntimeError as error:
            raise LaunchError(f"device: cuda was asked for, but there is {error}") from error
    if comm.local_size > count and not config.distributed.share_gpu:
        raise LaunchError(
            f"{comm.local_size} ranks on host {socket.gethostname()}, but {count} GPU(s): start "
            "fewer ranks, or set distributed.share_gpu to true, or device to cpu"
        )
    return use_gpu(comm.local_rank % count)


def _mean_and_scale(data: Prepared) -> tuple[Any, Any]:
    return data.preprocessing.mean, data.preprocessing.scale


def _ALONE() -> Communicator:
    from ..distributed.single import SingleCommunicator

    return SingleCommunicator()
