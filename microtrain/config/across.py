"""What only shows across keys: values that are right alone and wrong together.

All of it is known before any data are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, TypeAlias

from ..compile.executors import numba_absent
from ..errors import install
from ..spelling import closest
from .components import is_import_path, load
from .duration import Duration
from .measure import Measure
from .problems import quoted
from .registered import REGISTERED
from .schema import Config, Distributed

_WRITES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}  # by callback

Wrong: TypeAlias = Iterator[tuple[str, str]]  # dotted paths and what is wrong there


def contradictions(config: Config, known: dict[Any, Any]) -> Wrong:
    """The dotted path of each key that does not go together with others, and why.

    A key of `config` that is None has a problem already: what reads it is not asked. `known` keeps
    what was found of the same sections.
    """
    for rule, keys in RULES:
        values = [getattr(config, key) for key in keys]
        if None not in values:
            name = (rule, *(id(value) if value else repr(value) for value in values))
            if name not in known:
                known[name] = [*rule(config)], values  # which live as long as their ids count
            yield from known[name][0]


def _shares(config: Config) -> Wrong:
    shares = config.data.split.shares
    total = sum(shares.values())
    if abs(total - 1) > 1e-6:
        shown = ", ".join(f"{name}: {share:g}" for name, share in shares.items())
        yield "data.split", f"{{{shown}}} adds up to {total:.6g}; expected 1"
    split, arguments = config.data.split, config.data.arguments
    for part, keys in split.files.items():
        if {*keys} == {"path"} and "path" not in arguments:
            hint = "; name its inputs and its target" if "inputs" in arguments else ""
            kind = f"data of type {config.data.type} are not read from a file"
            yield f"data.split.{part}", kind + hint
        elif all(arguments.get(key) == value for key, value in keys.items()):
            same = ", ".join(f"data.{key}" for key in keys)
            yield f"data.split.{part}", f"is the file that the model is trained on ({same})"
    data = config.data
    of_files = {"path", "inputs"} & {*data.arguments} and not is_import_path(data.type)
    if data.cache is not None and not of_files:
        yield "data.cache", f"keeps the rows of files; data of type {data.type} are none"
    ways = [way for way in ("stratify", "group", "time") if getattr(split, way)]
    if len(ways) > 1:
        yield f"data.split.{ways[1]}", f"cannot be combined with {ways[0]}; choose one"
    for other in ("val", "time"):
        if split.folds is not None and getattr(split, other) is not None:
            yield f"data.split.{other}", "cannot be combined with folds; choose one"
    if (split.folds is None) != (split.fold is None):
        given, missing = ("fold", "folds") if split.folds is None else ("folds", "fold")
        yield (
            f"data.split.{given}",
            f"needs {missing}: folds are how many, fold is the one held out",
        )
    elif split.folds is not None and split.fold is not None and split.fold >= split.folds:
        last = split.folds - 1
        yield "data.split.fold", f"expected a fold from 0 to {last}, got {split.fold}"


def _steps(config: Config) -> Wrong:
    train = config.train
    if train.accumulate > train.batch_size:
        cut = f"a batch of {train.batch_size} samples into {train.accumulate} micro-batches"
        yield "train.accumulate", f"cannot cut {cut}"
    if train.compile == "numba" and (why := numba_absent()):
        yield "train.compile", f"{why}; or choose auto or numpy"


def _loss(config: Config) -> Wrong:
    """The weights of the classes are given once."""
    given = config.loss.arguments
    twice = None not in (given.get("weight"), given.get("class_weight"))
    if twice and config.loss.type == "cross_entropy":
        yield "loss.weight", "is the same as class_weight; leave one of them out"


def _monitors(config: Config) -> Wrong:
    """The values by which the best model is chosen and a run ends early are measured."""
    monitored = config.checkpoint.monitor or ""
    part = "val" if config.data.split.has_val else "train"
    # Of what is measured: is higher better?
    higher: dict[str, bool | None] = {"train/loss": False, Measure.of(part, "loss"): False}
    all_known = True
    for i, metric in enumerate(config.metrics):
        made: Any = load("metrics", metric.type)
        if metric.type in REGISTERED["metrics"]:
            made = made(**metric.arguments)
        name = getattr(made, "name", None)
        if not isinstance(name, str):
            all_known = False  # of a user's class: known when it is built
        elif (measure := Measure.of(part, name)) in higher:
            yield f"metrics.{i}", f"the name {name} is taken by the loss or a metric before"
        else:
            unsaid = False if isinstance(made, type) else None
            higher[measure] = getattr(made, "higher_is_better", unsaid)
    watching: dict[str, Any] = {"checkpoint.monitor": monitored}
    if monitored in higher and (message := mode_missing(config, higher[monitored])):
        yield "checkpoint.monitor", message
    for i, callback in enumerate(config.callbacks):
        if not is_import_path(callback.type):
            watching[f"callbacks.{i}.monitor"] = callback.arguments.get("monitor")
    for path, monitor in watching.items():
        if monitor in higher and higher[monitor] is None and monitor != monitored:
            callback = config.callbacks[int(path.split(".")[1])]
            if callback.arguments.get("mode") is None:
                yield (
                    path,
                    f"is the highest or the lowest {monitor} best? It does not say; set mode",
                )
        if not monitor or monitor in higher:
            continue
        where, name = Measure(monitor).part, Measure(monitor).field
        near = Measure.of(part, name)
        if where == "val" and part == "train":
            yield path, f"{monitor} needs validation data: set data.split.val"
        elif all_known or where != part:
            meant = near if near in higher else closest(monitor, higher)
            suggestion = f"; did you mean {meant}?" if meant else ""
            if near not in higher and name in REGISTERED["metrics"]:
                suggestion = f"; add {name} to metrics"
            there = ", ".join(higher)
            yield path, f"nothing measures {quoted(monitor)}{suggestion} (there are: {there})"


def _trackers(config: Config) -> Wrong:
    for i, callback in enumerate(config.callbacks):
        package = _WRITES.get(callback.type)
        if package is not None and find_spec(package) is None:
            yield f"callbacks.{i}", f"{package} is not installed; {install(callback.type)}"


def mode_missing(config: Config, higher: bool | None) -> str:
    """Why `checkpoint.mode` has to be given: of what is monitored the highest may be best."""
    monitored = config.checkpoint.monitor
    if higher is False or "checkpoint.mode" in config.origins:
        return ""
    if higher:
        return f"of {monitored} the highest is best: set checkpoint.mode to max"
    way_out = "set checkpoint.mode, or give the function an attribute higher_is_better"
    return f"is the highest or the lowest {monitored} best? It does not say; {way_out}"


def _durations(config: Config) -> Wrong:
    """A percentage has a whole."""
    whole = config.train.duration
    spans = {
        "train.eval_every": config.train.eval_every,
        "checkpoint.every": config.checkpoint.every,
        "log.every": config.log.every,
    }
    for path, span in spans.items():
        if whole.unit == "min" and isinstance(span, Duration) and span.unit == "%":
            way_out = "give epochs or steps, or minutes"
            yield path, f"{span} of {whole} is not a number of steps; {way_out}"


def _schedule(config: Config) -> Wrong:
    """A schedule counts steps, its warm-up ends before the run does, and it lowers the rate."""
    schedule, whole = config.schedule, config.train.duration
    assert schedule is not None, "RULES"
    all_of: dict[str, Any] = {"%": 100, whole.unit: whole.amount}
    for key in ("warmup", "every"):
        span, path = schedule.arguments.get(key), f"schedule.{key}"
        if not isinstance(span, Duration):
            continue
        if span.unit == "min":
            yield path, "a schedule counts optimizer steps, not minutes; give epochs or steps"
        elif span.unit == "%" and whole.unit == "min":
            yield path, f"{span} of {whole} is not a number of steps; give epochs or steps"
        elif key == "warmup" and span.amount >= all_of.get(span.unit, math.inf):
            yield path, f"a warm-up of {span} leaves nothing of a run of {whole}"
    if whole.unit == "min" and getattr(load("schedule", schedule.type), "needs_end", False):
        way_out = "give train.duration in epochs or steps, and the minutes as train.max_time"
        message = f"stretches over the steps of the run, whose number {whole} does not tell"
        yield "schedule.type", f"{message}; {way_out}"
    lowest = schedule.arguments.get("min_lr")
    rate = config.optimizer.arguments.get("lr")
    if isinstance(lowest, (int, float)) and isinstance(rate, (int, float)) and lowest > rate:
        yield "schedule.min_lr", f"is more than the optimizer's lr, {rate:g}"


def _distributed(config: Config) -> Wrong:
    for key, message in _together(config.distributed, config.origins):
        yield f"distributed.{key}", message
    if config.distributed.backend == "nccl" and config.device == "cpu":
        message = "nccl adds up gradients on GPUs, but device is cpu; set device to cuda"
        yield "distributed.backend", message


def _together(settings: Distributed, origins: Mapping[str, str]) -> Wrong:
    world, sent_early = settings.reproducible == "world", settings.overlap is True
    compressed = settings.compression != "none"
    if not world and settings.shards != 8:
        yield "shards", "only world mode has shards; set distributed.reproducible to world"
    if world and compressed:
        yield "compression", "rounds by rank, but reproducible: world wants the same bits"
    if world and sent_early:
        yield "overlap", "reproducible: world adds up the shards when all are there"
    elif compressed and sent_early:
        yield "overlap", "compressed gradients are reduced at once; set compression to none"
    if settings.backend == "nccl":
        if world:
            yield (
                "backend",
                "nccl adds up in its own order; reproducible: world has a fixed one",
            )
        if compressed or sent_early:
            key = "compression" if compressed else "overlap"
            yield key, "nccl adds up whole gradients, when the backward pass is over"
    if world and settings.blas_threads not in ("auto", 1):
        yield "blas_threads", "reproducible: world needs 1; with more, sums have other bits"
    warn, limit = settings.warn_s, settings.timeout_s
    if warn >= limit:
        key = "warn_s" if "distributed.warn_s" in origins else "timeout_s"
        yield key, f"no warning can come after {warn:g} s: the run ends after {limit:g} s"


# Each rule with the keys that it reads.
RULES: tuple[tuple[Callable[[Config], Wrong], tuple[str, ...]], ...] = (
    (_shares, ("data",)),
    (_steps, ("train",)),
    (_loss, ("loss",)),
    (_monitors, ("data", "metrics", "checkpoint", "callbacks")),
    (_trackers, ("callbacks",)),
    (_durations, ("train", "checkpoint", "log")),
    (_schedule, ("schedule", "train", "optimizer")),
    (_distributed, ("distributed", "device")),
)
