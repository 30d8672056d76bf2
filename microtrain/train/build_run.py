"""What a run is made of, built and checked: device, data, model, loss, optimizer, loader, plan."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import backend
from ..backend import default_dtype
from ..common import threads
from ..config.components import GIVEN, build, is_import_path, load, parameters
from ..config.schema import Config
from ..config.texts import Duration
from ..data import DataLoader, Prepared
from ..distributed import watchdog
from ..distributed.agreement import first_word, settled, together
from ..distributed.communicator import Communicator
from ..distributed.data_parallel import DataParallel
from ..distributed.replicas import difference
from ..distributed.shards import local_shards
from ..errors import ConfigError, DataError, LaunchError, noun_of
from ..nn import Module
from ..optim import Optimizer
from ..random import manual_seed
from ..runs.run import checkpoint_at
from .metrics.base import Metric
from .model_state import load_model_arrays, model_arrays
from .models_and_losses import balance, described, predicting_counts
from .rehearsal import build_metrics, refused, rehearse, trying
from .run_data import data_state, load_run_data
from .schedules import Rates, Schedule
from .step.divergence import Guard, Skips

T = TypeVar("T")
STOP, EVALUATE, SAVE = range(3)  # what a run is asked for: places in `DataParallel.notes`


class Plan:
    """Every duration of a configuration: in optimizer steps, or in seconds where a clock counts.

    Attributes:
        epoch: steps of one epoch.
        total: steps of the run; None where a clock ends it.
        evaluate, save, row: steps between two evaluations, checkpoints, rows; None where others
            say when.
        ends: seconds until the run ends, by name: `duration`, `max_time`.
        intervals: seconds between two evaluations and two checkpoints, by their place in the
            notes.
    """

    def __init__(self, config: Config, epoch: int) -> None:
        self.epoch = epoch
        self.ends, self.intervals = dict[str, float](), dict[int, float]()
        self.total: int | None = None

        def steps(text: str | None, clock: dict[Any, float], what: str | int) -> int | None:
            if text is None or text == "auto":
                return None
            duration = Duration(text)
            if duration.unit != "min":
                return duration.steps(epoch, self.total)
            clock[what] = min(float(duration.amount * 60), clock.get(what, math.inf))
            return None

        self.total = steps(config.train.duration, self.ends, "duration")
        steps(config.train.max_time, self.ends, "max_time")
        self.evaluate = steps(config.train.eval_every, self.intervals, EVALUATE)
        self.save = steps(config.checkpoint.every, self.intervals, SAVE)
        self.row = steps(config.log.every, self.intervals, EVALUATE)


class Parts:
    """What a run of the class `trainer` is made of, alike on every rank; collective.

    Attributes:
        config: the whole configuration.
        comm: the ranks of the run.
        shards: slices of every batch whatever the number of ranks, under `reproducible: world`.
        device: None for the CPU.
        data: its parts, prepared.
        model: the `DataParallel` model.
        loss: a callable of prediction and target.
        metrics: what is measured beside it.
        optimizer: of the model's parameters.
        loader: of the training data.
        plan: every duration.
        rates: sets the rates of a schedule; None where they stay.
        guard: what every update passes.
        skips: the policy `train.nan: skip`; None where what is not finite ends the run.
        data_state: what a checkpoint holds of the data.
        of_row: memory that a row takes; zeros where `eval_step` is in the model's place.

    Raises, on every rank, ConfigError, DataError and LaunchError for what cannot be had or does not
    fit.
    """

    def __init__(
        self, config: Config, comm: Communicator, warn: Callable[[str], None], trainer: Any
    ) -> None:
        self.config, self.comm = config, comm
        shared, train = config.distributed, config.train
        self.shards = shards = shards_of(config)
        watchdog.configure(shared.warn_s, shared.timeout_s)
        _limit_threads(config, warn)
        if shards is not None:
            together(comm, lambda: local_shards(shards, comm))  # not more ranks
        self.device = choose_device(config, comm, warn)
        data, its_hash = load_run_data(config, comm)
        if comm.rank == 0:
            for note in data.notes:
                warn(note)
        # The dtype is for what a user-defined model creates; what is not finite is found later.
        with default_dtype(config.dtype), np.errstate(all="ignore"):
            with settled(comm):
                module, self.loss, self.metrics = build_parts(config, data, self.device)
                self.data = data = predicting_counts(data, self.loss)
            with settled(comm):
                if what := difference(comm, module, {}):
                    raise ConfigError(
                        f"model {config.model.type}: {what}; every rank must build the same: "
                        "compare the files and the environment of the hosts"
                    )
            with settled(comm):
                self.of_row = rehearse(self, module, trainer)
                model_arrays(module)  # what cannot be saved is said at once
            self.model = model = DataParallel(
                module,
                comm,
                "sum" if getattr(self.loss, "reduction", "mean") == "sum" else "mean",
                sync_batchnorm=shared.sync_batchnorm,
                overlap="auto" if shared.overlap == "auto" else "on" if shared.overlap else "off",
                bucket_mb=None if shared.bucket_mb == "auto" else shared.bucket_mb,
                compression=shared.compression,
                shards=shards,
                backend="nccl" if shared.backend == "nccl" else "mpi",
                compared=True,
            )
            with settled(comm):
                self.optimizer = build_optimizer(config, list(model.parameters()))
        with settled(comm):
            self.loader = DataLoader(
                data.train,
                max(len(data.train), 1) if train.batch_size == "all" else train.batch_size,
                seed=config.seed,
                shuffle=train.shuffle and train.batch_size != "all",
                drop_last=train.drop_last,
                comm=comm,
                accumulate=train.accumulate,
                shards=shards,
            )
            if self.optimizer.needs_closure:
                refuse_another_loss(config, len(self.loader))
            self.plan = plan = Plan(config, len(self.loader))
            penalties = len(getattr(self.optimizer, "l2", ()))
            if comm.rank == 0 and penalties > (plan.total or math.inf):
                warn(f"optimizer.l2 has {penalties} penalties, but the run {plan.total} steps")
            self.rates = build_rates(config, self.optimizer, plan)
        self.guard = Guard(model, train.clip_norm)
        self.skips = Skips(model) if train.nan == "skip" else None
        self.data_state = data_state(data, its_hash)


def shards_of(config: Config) -> int | None:
    """What `distributed.shards` says, where it counts."""
    shared = config.distributed
    return int(shared.shards) if shared.reproducible == "world" else None


def _limit_threads(config: Config, warn: Callable[[str], None]) -> None:
    """One BLAS thread in world mode: two add up in another order."""
    count = config.distributed.blas_threads
    if shards_of(config) is not None:
        current = threads.blas_threads()
        if count == "auto" and current > 1:
            warn(f"reproducible: world computes with 1 BLAS thread, not {current}")
        count = 1
    if count != "auto":
        threads.limit_blas_threads(count)


def build_rates(config: Config, optimizer: Optimizer, plan: Plan) -> Rates | None:
    """What sets the rates of the configured schedule; None without one."""
    if config.schedule is None:
        return None
    with trying(config, "schedule"):
        expected = (
            "a schedule: expected a function of the step and the number of all steps, or a "
            "subclass of microtrain.train.Schedule"
        )
        schedule = made(config, "schedule", Schedule, expected)
        schedule.begin(plan.epoch, plan.total)
        return Rates(schedule, optimizer.param_groups)


def build_optimizer(config: Config, params: list[Any]) -> Optimizer:
    """The configured optimizer; ConfigError for what is not one."""
    with trying(config, "optimizer"):
        expected = "an optimizer: expected a class that derives from microtrain.optim.Optimizer"
        return made(config, "optimizer", Optimizer, expected, params=params)


def made(config: Config, path: str, kind: type[T], expected: str, **filled: Any) -> T:
    """The part at `path`; ConfigError where that is not a `kind`."""
    part = build(getattr(config, path), **filled)
    if not isinstance(part, kind):
        raise refused(config, path, f"is not {expected}, found {described(part)}")
    return part


def refuse_another_loss(config: Config, batches: int) -> None:
    """ConfigError for what does not go with an optimizer that computes its loss several times.

    All these times it has to be the same function: of all rows, without a change from outside.
    """
    train, name = config.train, config.optimizer.type.removeprefix(GIVEN)
    wrong = {
        "train.batch_size": batches > 1 and "an epoch has several batches; set it to all",
        "schedule": config.schedule is not None and "there is no rate to change; leave it out",
        "train.clip_norm": train.clip_norm and "gradients cannot be clipped; leave it out",
        "train.nan": train.nan == "skip" and "no step can be skipped; set it to stop",
        "train.compile": train.compile not in ("auto", "off")
        and "such a step cannot be captured; leave it out",
    }
    for path, why in wrong.items():
        if why:
            at = f" ({config.origins[path]})" if path in config.origins else ""
            raise ConfigError(
                f"{path}{at}: the optimizer {name} computes its loss several times in a step, so "
                f"it must be the same function of all training rows each time: {why}"
            )


def choose_device(config: Config, comm: Communicator, warn: Callable[[str], None]) -> Any:
    """None for the CPU, or the GPU of this rank: one for each rank of a host; collective.

    `auto` takes the CPU on all ranks where one has no GPU that computes, and rank 0 warns if there
    was one to take. Raises LaunchError for that with `cuda`, and for fewer GPUs than local ranks.
    """
    if config.device == "cpu":
        return None
    device, problem = None, ""
    with settled(comm):
        count = backend.cuda_device_count()
        if 0 < count < comm.local_size and not config.distributed.share_gpu:
            raise LaunchError(
                f"{comm.local_size} ranks on host {socket.gethostname()}, but {count} GPU(s): "
                "start fewer ranks, or set distributed.share_gpu to true, or device to cpu"
            )
        try:
            device = backend.use_gpu(comm.local_rank % (count or 1))
        except RuntimeError as error:
            problem = str(error)
            if config.device == "cuda":
                raise LaunchError(f"device: cuda: {problem}") from error
    if (found := first_word(comm, problem or None)) is None:
        return device
    if comm.any(count > 0) and comm.rank == 0:
        warn(f"device: auto takes the CPU: on rank {found[0]} {found[1]}")
    return None


def build_model(config: Config, data: Any) -> Module:
    """The configured model, with the sizes that the configuration leaves to the data.

    `data` has them: a Prepared, or what a checkpoint says of one. Raises ConfigError where the
    model is not a Module with parameters.
    """
    sizes = {"in_features": data.in_features, "out_features": data.out_features}
    sizes["classes"] = None if data.classes is None else len(data.classes)
    sizes["categories"] = data.categories and list(data.categories)
    kind = config.model.type
    ours = config.model.instance is None and not is_import_path(kind)
    if data.categories and ours and "categories" not in parameters(load("model", kind)):
        raise ConfigError(
            f"model {kind} takes no embedded categories: choose mlp, or encode: one_hot"
        )
    known = {name: size for name, size in sizes.items() if size is not None}
    module = build(config.model, **known)
    if not isinstance(module, Module) or not any(True for _ in module.parameters()):
        found = f"made {noun_of(module)}; expected a microtrain.nn.Module with parameters"
        found += " (those of modules in a list are found in a mt.nn.ModuleList)"
        raise refused(config, "model", found)
    return module


def build_parts(config: Config, data: Prepared, device: Any) -> tuple[Module, Any, list[Metric]]:
    """Model, loss and metrics; the model's initial values are equal on all ranks."""
    manual_seed(config.seed)
    module = build_model(config, data)
    module.to(config.dtype, device)
    balance(config, data)
    return module, build_loss(config, device), build_metrics(config)


def build_loss(config: Config, device: Any = None) -> Any:
    """The loss; what a module keeps, such as class weights, in the dtype of the model."""
    loss = build(config.loss)
    return loss.to(config.dtype, device) if isinstance(loss, Module) else loss


def take_initial_values(config: Config, model: Module, warn: Callable[[str], None]) -> None:
    """The values of another run's model, before the first step, where train.init_from names one."""
    path = config.train.init_from
    if path is None:
        return
    checkpoint = checkpoint_at(path, warn)
    try:
        load_model_arrays(model, checkpoint.model)
    except RuntimeError as error:
        raise DataError(f"train.init_from: {checkpoint.path} does not fit: {error}") from error
