"""What a run is made of, built and checked: device, data, model, loss, optimizer, loader."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from .. import backend, threads
from ..backend import default_dtype
from ..config.components import build, is_import_path, load, own, parameters
from ..config.schema import Config
from ..data import ArrayDataset, DataLoader, Encoder, Prepared, Preprocessing, prepare
from ..data.kept.cache import CHECKED
from ..data.kept.shared import during, share
from ..data.rows import Rows, layout
from ..distributed import watchdog
from ..distributed.agreement import agreed, all_equal, first_word, settled, together
from ..distributed.communicator import alone
from ..distributed.data_parallel import DataParallel
from ..distributed.replicas import difference
from ..distributed.shards import local_shards
from ..errors import ConfigError, DataError, LaunchError
from ..nn import Module
from ..optim import Optimizer
from ..random import manual_seed
from .components.losses import balance
from .components.schedules import Rates, Schedule
from .data_cache import cached, prepared, read
from .metrics.base import Metric
from .model_outputs import described
from .model_state import model_arrays
from .rehearsal import build_metrics, refused, rehearse, trying
from .run import Parts, Plan, shards_of
from .step.guard import Guard, Skips

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

OVERLAP: Final[dict[Any, Literal["auto", "on", "off"]]] = {
    "auto": "auto", True: "on", False: "off",
}  # fmt: skip


def build_run(
    config: Config, comm: Communicator, warn: Callable[[str], None], trainer: Any
) -> Parts:
    """All that a run of the class `trainer` is made of, compared between the ranks; collective.

    Raises, on every rank, ConfigError, DataError and LaunchError for what cannot be had or does not
    fit.
    """
    shared, train, shards = config.distributed, config.train, shards_of(config)
    watchdog.configure(shared.warn_s, shared.timeout_s)
    _limit_threads(config, warn)
    if shards is not None:
        together(comm, lambda: local_shards(shards, comm))  # the ranks must divide them
    device = choose_device(config, comm, warn)
    data, its_hash = load_run_data(config, comm)
    if comm.rank == 0:
        for note in data.notes:
            warn(note)
    # The dtype is for what a user-defined model creates; what is not finite is found later.
    with default_dtype(config.dtype), np.errstate(all="ignore"):
        with settled(comm):
            module, loss, metrics = build_parts(config, data, device)
        with settled(comm):
            compare_models(config, module, comm)
        with settled(comm):
            of_row = rehearse(config, data, module, loss, metrics, device, trainer)
            model_arrays(module)  # what cannot be saved is said at once
        model = DataParallel(
            module,
            comm,
            "sum" if getattr(loss, "reduction", "mean") == "sum" else "mean",
            sync_batchnorm=shared.sync_batchnorm,
            overlap=OVERLAP[shared.overlap],
            bucket_mb=None if shared.bucket_mb == "auto" else shared.bucket_mb,
            compression=shared.compression,
            shards=shards,
            backend="nccl" if shared.backend == "nccl" else "mpi",
            compared=True,
        )
        with settled(comm):
            optimizer = build_optimizer(config, list(model.parameters()))
    with settled(comm):
        loader = DataLoader(
            data.train,
            train.batch_size,
            seed=config.seed,
            shuffle=train.shuffle,
            drop_last=train.drop_last,
            comm=comm,
            accumulate=train.accumulate,
            shards=shards,
        )
        plan = Plan.of(config, len(loader))
        rates = build_rates(config, optimizer, plan)
    guard, skips = Guard(model, train.clip_norm), Skips(model) if train.nan == "skip" else None
    return Parts(
        config, comm, device, data, model, loss, metrics, optimizer, loader, plan, rates, guard,
        skips, data_state(data, its_hash), of_row,
    )  # fmt: skip


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
        schedule = build(config.schedule)
        if not isinstance(schedule, Schedule):
            found = (
                "is not a schedule: expected a function of the step and the number of all steps, "
                f"or a subclass of microtrain.train.Schedule, found {described(schedule)}"
            )
            raise refused(config, "schedule", found)
        schedule.begin(plan.epoch, plan.total)
        return Rates(schedule, optimizer.param_groups)


SEVERAL_EVALUATIONS = (
    "computes the loss several times in a step, and a training step takes one gradient; use it in "
    "a loop of your own (docs/your-loop.md)"
)


def build_optimizer(config: Config, params: list[Any]) -> Optimizer:
    """The configured optimizer; ConfigError for what is none."""
    with trying(config, "optimizer"):
        optimizer = build(config.optimizer, params=params)
    if not isinstance(optimizer, Optimizer):
        found = (
            "is not an optimizer: expected a class that derives from microtrain.optim.Optimizer, "
            f"found {described(optimizer)}"
        )
        raise refused(config, "optimizer", found)
    if optimizer.needs_closure:
        raise refused(config, "optimizer", SEVERAL_EVALUATIONS)
    return optimizer


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


def load_data(
    config: Config,
    preprocessing: Preprocessing | None = None,
    encoder: Encoder | None = None,
    found: Any = None,
) -> Prepared:
    """The configured data, split, encoded and standardised, cast.

    `preprocessing` and `encoder` are those of a training before, `found` is what another rank of
    the host has found in the same rows.
    """
    data, split = config.data, config.data.split
    origin = f"data ({data.type})"
    with trying(config, "data"), during(CHECKED, found is not None):
        loaded = read(data, config.seed)
        others = {
            part: read(replace(data, arguments=data.arguments | keys), config.seed)
            for part, keys in split.files.items()
        }
    try:
        prepared = prepare(
            loaded,
            split=split.shares,
            standardize=data.standardize,
            dtype=np.dtype(config.dtype),
            seed=split.seed,
            stratify=split.stratify,
            group=split.group,
            time=split.time,
            fold=None if split.folds is None or split.fold is None else (split.fold, split.folds),
            others=others,
            origin=origin,
            preprocessing=preprocessing,
            encoder=encoder,
            found=found,
        )
    except DataError as error:
        raise DataError(f"{error}\n{own('data')}") if is_import_path(data.type) else error from None
    if prepared.classes is not None and len(prepared.classes) < 2:
        found = ", ".join(prepared.classes)
        raise DataError(f"{origin}: all rows are of one class, {found}; expected two or more")
    return prepared


def load_run_data(config: Config, comm: Communicator) -> tuple[Prepared, str]:
    """The data of a run that begins or goes on, and their hash, as `load_once`; collective."""

    def load(found: Any = None) -> Prepared:
        return load_data(config) if found is None else load_data(config, found=found)

    if config.data.cache is None:
        return prepared(config, lambda: load_once(config, comm, load))
    load = cached(config, load, data_hash)
    if comm.size > comm.node().size:
        with settled(comm):  # once, where all hosts see one directory
            if comm.rank == 0:
                with alone("it reads and prepares the data for all hosts"):
                    load()
    return load_once(config, comm, load)


def load_once(
    config: Config, comm: Communicator, load: Callable[..., Prepared]
) -> tuple[Prepared, str]:
    """The data that `load()` gives, once a host, and their hash; collective.

    DataError unless all have loaded the same: the batches are cut from them.
    """
    given = config.data.instance is not None
    if everyone := given or is_import_path(config.data.type):
        # Apart from the rest: user-defined code may let its ranks wait for each other.
        held = [together(comm, load)]
        found = held[0]
    else:
        found = share(comm, load)
    with alone("it reads the data for their hash"):
        mine = data_hash(found) if everyone or comm.local_rank == 0 else ""
    if not everyone:
        mine = comm.node().broadcast_object(mine)
    if not all_equal(comm, bytes.fromhex(mine)):
        hashes = comm.all_gather_object((len(found.train), mine))
        rank = next(rank for rank, (_, one) in enumerate(hashes) if one != hashes[0][1])
        raise agreed(
            DataError(
                f"data ({config.data.type}): rank {rank} loaded different data from rank 0 "
                f"({hashes[rank][0]:,} and {hashes[0][0]:,} training rows); every rank must load "
                "the same: draw random numbers from the seed that a component may take"
            )
        )
    if everyone:
        del found
        found = share(comm, held.pop, everyone=True, given=given)
    return found, mine


def compare_models(config: Config, module: Module, comm: Communicator) -> None:
    """ConfigError unless every rank has built a model of the same names, shapes and dtypes."""
    if what := difference(comm, module, {}):
        raise ConfigError(
            f"model {config.model.type}: {what}; every rank must build the same: compare the files "
            "and the environment of the hosts"
        )


def data_hash(data: Prepared) -> str:
    """A hash of all rows of all parts as they are trained on."""
    if data.digest is not None:
        return data.digest
    digest = hashlib.blake2b(digest_size=16)
    for part in (data.train, data.val, data.test):
        if isinstance(part, Rows):
            digest.update(part.digest.encode())  # of the one pass that all of its rows were read in
        for array in part.arrays if isinstance(part, ArrayDataset) else ():
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def data_state(data: Prepared, its_hash: str) -> dict[str, Any]:
    """What a checkpoint's state.json holds of the data a model was trained on."""
    train = data.train
    return {
        "preprocessing": data.preprocessing.to_json(),
        "table": None if data.encoder is None else data.encoder.to_json(),
        "classes": None if data.classes is None else list(data.classes),
        "feature_names": None if train.feature_names is None else list(train.feature_names),
        "target_name": train.target_name,
        "out_features": data.out_features,
        "inputs": [
            {"shape": list(array.shape[1:]), "dtype": array.dtype.name}
            for array in layout(train)[0]
        ],
        "data_hash": its_hash,
    }


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
        found = f"made a {type(module).__name__}; expected a microtrain.nn.Module with parameters"
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
