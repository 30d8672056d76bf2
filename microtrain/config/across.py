"""What only shows across keys: values that are right alone and wrong together.

All of it is known before any data are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeAlias

from ..compile.executors import numba_absent
from ..errors import ConfigError
from ..spelling import closest
from .components import GIVEN, REGISTERED, is_import_path
from .duration import Duration
from .problems import quoted
from .schema import Config

Report: TypeAlias = Callable[[str, str], None]


def check_across_keys(
    config: Config,
    targets: Mapping[str, Callable[..., Any]],
    problem: Report,
    wrong: Set[str],
) -> None:
    """Call `problem(path, message)` for what does not go together.

    Args:
        config: in which everything that is wrong or missing is None.
        targets: what components name, by dotted path.
        problem: adds one.
        wrong: paths of what is wrong or misspelt: nothing is concluded from their absence.
    """
    split, train = config.data.split, config.train
    if not any(path.startswith("data.split") for path in wrong):
        shares = split.shares
        total = sum(shares.values())
        if abs(total - 1) > 1e-6:
            shown = ", ".join(f"{name}: {share:g}" for name, share in shares.items())
            problem("data.split", f"{{{shown}}} adds up to {total:.6g}; expected 1")
    if train.batch_size and train.accumulate and train.accumulate > train.batch_size:
        message = (
            f"cannot cut a batch of {train.batch_size} samples into {train.accumulate} "
            "micro-batches"
        )
        problem("train.accumulate", message)
    if train.compile == "numba" and (why := numba_absent()):
        problem("train.compile", f"{why}; or choose auto or numpy")
    has_validation = bool(split.val) or not wrong.isdisjoint(("data", "data.split"))
    _monitors(config, targets, problem, wrong, has_validation)
    if train.duration:
        _durations(config, train.duration, targets.get("schedule"), problem)
    _distributed(config, problem)


def _monitors(
    config: Config,
    targets: Mapping[str, Callable[..., Any]],
    problem: Report,
    wrong: Set[str],
    has_validation: bool,
) -> None:
    """The values by which the best model is chosen and a run ends early are measured."""
    part = "val" if has_validation else "train"
    columns = {"train/loss": False, f"{part}/loss": False}  # to whether higher is better
    all_known = not any(path.startswith("metrics") for path in wrong)
    for i, metric in enumerate(config.metrics or ()):
        path = f"metrics.{i}"
        if any(f"{each}.".startswith(f"{path}.") for each in wrong):
            continue
        made: Any = targets[path]
        if not is_import_path(metric.type) and not metric.type.startswith(GIVEN):
            try:
                made = made(**metric.arguments)
            except ConfigError as error:
                problem(path, str(error))
        name = getattr(made, "name", None)
        if not isinstance(name, str):
            all_known = False  # of a user's class: known when it is built
        elif f"{part}/{name}" in columns:
            problem(path, f"the name {name} is taken by the loss or a metric before")
        else:
            columns[f"{part}/{name}"] = bool(getattr(made, "higher_is_better", False))
    watching = {"checkpoint.monitor": config.checkpoint.monitor}
    for i, callback in enumerate(config.callbacks or ()):
        if not is_import_path(callback.type):
            watching[f"callbacks.{i}.monitor"] = callback.arguments.get("monitor")
    for path, monitor in watching.items():
        if not monitor:
            continue
        if monitor in columns:
            chooses_best = path == "checkpoint.monitor"
            if columns[monitor] and chooses_best and "checkpoint.mode" not in config.origins:
                problem(path, f"of {monitor} the highest is best: set checkpoint.mode to max")
        elif monitor.startswith("val/") and not has_validation:
            problem(path, f"{monitor} needs validation data: set data.split.val")
        elif all_known or monitor.partition("/")[0] != part:
            name = monitor.rpartition("/")[2]
            near = f"{part}/{name}"
            meant = near if near in columns else closest(monitor, columns)
            suggestion = f"; did you mean {meant}?" if meant else ""
            if near not in columns and name in REGISTERED["metrics"]:
                suggestion = f"; add {name} to metrics"
            there = ", ".join(columns)
            problem(path, f"nothing measures {quoted(monitor)}{suggestion} (there are: {there})")


def _durations(
    config: Config, whole: Duration, schedule: Callable[..., Any] | None, problem: Report
) -> None:
    """Percentages have a whole, and a warm-up ends before the run does."""
    arguments = config.schedule.arguments if config.schedule else {}
    spans = {
        "train.eval_every": config.train.eval_every,
        "checkpoint.every": config.checkpoint.every,
        "log.every": config.log.every,
        "schedule.warmup": arguments.get("warmup"),
        "schedule.every": arguments.get("every"),
    }
    for path, span in spans.items():
        if not isinstance(span, Duration):
            continue
        of_schedule = path.startswith("schedule")
        if span.unit == "%" and whole.unit == "min":
            message = f"{span} of {whole} is no number of steps; give epochs or steps"
            problem(path, message if of_schedule else f"{message}, or minutes")
        elif of_schedule and span.unit == "min":
            problem(path, "a schedule counts optimiser steps, not minutes; give epochs or steps")
        elif path == "schedule.warmup" and _as_long(span, whole):
            problem(path, f"a warm-up of {span} leaves nothing of a run of {whole}")
    if whole.unit == "min" and getattr(schedule, "needs_end", False):
        message = (
            f"stretches over the steps of the run, whose number {whole} does not tell; give "
            "train.duration in epochs or steps, and the minutes as train.max_time"
        )
        problem("schedule.type", message)
    lowest = arguments.get("min_lr")
    rate = config.optimizer.arguments.get("lr")
    if isinstance(lowest, (int, float)) and isinstance(rate, (int, float)) and lowest > rate:
        problem("schedule.min_lr", f"is more than the optimizer's lr, {rate:g}")


def _as_long(span: Duration, whole: Duration) -> bool:
    if span.unit == "%":
        return span.amount >= 100
    return span.unit == whole.unit and span.amount >= whole.amount


def _distributed(config: Config, problem: Report) -> None:
    def wrong(key: str, message: str) -> None:
        problem(f"distributed.{key}", message)

    settings = config.distributed
    world, threads = settings.reproducible == "world", settings.blas_threads
    compressed = settings.compression in ("fp16", "bf16")
    if not world and settings.shards not in (None, 8):
        wrong("shards", "only world mode has shards; set distributed.reproducible to world")
    if world and compressed:
        wrong("compression", "rounds by rank, but reproducible: world wants the same bits")
    if world and settings.overlap is True:
        wrong("overlap", "reproducible: world adds up the shards when all are there")
    elif compressed and settings.overlap is True:
        wrong("overlap", "compressed gradients are reduced at once; set compression to none")
    if world and isinstance(threads, int) and threads > 1:
        wrong("blas_threads", "reproducible: world needs 1; with more, sums have other bits")
    warn, limit = settings.warn_s, settings.timeout_s
    if warn and limit and warn >= limit:
        path = "warn_s" if "distributed.warn_s" in config.origins else "timeout_s"
        wrong(path, f"no warning can come after {warn:g} s: the run ends after {limit:g} s")
