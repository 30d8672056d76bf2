"""What only shows across keys: values that are right alone and wrong together.

All of it is known before any data are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..compile.executors import numba_absent
from ..errors import ConfigError
from ..spelling import closest
from .components import REGISTERED, is_import_path
from .duration import Duration
from .located import Located
from .problems import quoted


@dataclass
class Resolved:
    """A component whose name was found, and what goes into its Section besides `type`."""

    kind: str
    type: str
    target: Callable[..., Any]
    given: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def check_across_keys(tree: Located, components: Mapping[str, Resolved], meant: set[str]) -> None:
    """Add to the problems of `tree` what does not go together.

    `components` are those that were found, by dotted path; `meant` are the keys that misspelt ones
    were meant to be, which are therefore not absent.
    """
    split = tree.right("data.split")
    if isinstance(split, dict):
        parts = {
            name: x for name, x in split.items() if isinstance(x, (int, float)) and name != "seed"
        }
        if parts and abs(sum(parts.values()) - 1) > 1e-6:
            shown = ", ".join(f"{name}: {x:g}" for name, x in parts.items())
            message = f"{{{shown}}} adds up to {sum(parts.values()):.6g}; expected 1"
            tree.problem("data.split", message)
    batch, cuts = tree.right("train.batch_size"), tree.right("train.accumulate")
    if isinstance(batch, int) and isinstance(cuts, int) and cuts > batch:
        message = f"cannot cut a batch of {batch} samples into {cuts} micro-batches"
        tree.problem("train.accumulate", message)
    if tree.right("train.compile") == "numba" and (why := numba_absent()):
        tree.problem("train.compile", f"{why}; or choose auto or numpy")
    has_validation = bool(isinstance(split, dict) and split.get("val")) or "data.split" in meant
    _monitors(tree, components, has_validation)
    _durations(tree, components.get("schedule"))
    _distributed(tree)


def _monitors(tree: Located, components: Mapping[str, Resolved], has_validation: bool) -> None:
    """The values by which the best model is chosen and a run ends early are measured."""
    part = "val" if has_validation else "train"
    columns = {"train/loss": False, f"{part}/loss": False}  # to whether higher is better
    all_known = True
    for path, metric in components.items():
        if metric.kind != "metrics" or tree.right(path) is None:
            continue
        made: Any = metric.target
        if not is_import_path(metric.type):
            try:
                made = metric.target(**metric.given)
            except ConfigError as error:
                tree.problem(path, str(error))
        name = getattr(made, "name", None)
        if not isinstance(name, str):
            all_known = False  # of a user's class: known when it is built
        elif f"{part}/{name}" in columns:
            tree.problem(path, f"the name {name} is taken by the loss or a metric before")
        else:
            columns[f"{part}/{name}"] = bool(getattr(made, "higher_is_better", False))
    all_known = all_known and not any(path.startswith("metrics") for path in tree.wrong)
    watching: dict[str, Any] = {"checkpoint": "min"}  # to the mode that holds unless given
    for path, callback in components.items():
        if callback.kind == "callbacks" and not is_import_path(callback.type):
            watching[path] = callback.defaults.get("mode")
    for path, mode in watching.items():
        monitor = tree.right(f"{path}.monitor")
        if isinstance(monitor, str) and monitor:
            if monitor in columns:
                if columns[monitor] and mode == "min" and tree.find(f"{path}.mode") is None:
                    message = f"of {monitor} the highest is best: set {path}.mode to max"
                    tree.problem(f"{path}.monitor", message)
            elif monitor.startswith("val/") and not has_validation:
                message = f"{monitor} needs validation data: set data.split.val"
                tree.problem(f"{path}.monitor", message)
            elif all_known or monitor.partition("/")[0] != part:
                name = monitor.rpartition("/")[2]
                near = f"{part}/{name}"
                meant = near if near in columns else closest(monitor, columns)
                suggestion = f"; did you mean {meant}?" if meant else ""
                if near not in columns and name in REGISTERED["metrics"]:
                    suggestion = f"; add {name} to metrics"
                there = ", ".join(columns)
                message = f"nothing measures {quoted(monitor)}{suggestion} (there are: {there})"
                tree.problem(f"{path}.monitor", message)


def _durations(tree: Located, schedule: Resolved | None) -> None:
    """Percentages have a whole, and a warm-up ends before the run does."""
    whole = _duration(tree.right("train.duration"))
    if whole is None:
        return
    spans = ("train.eval_every", "checkpoint.every", "log.every")
    of_schedule = ("schedule.warmup", "schedule.every") if schedule else ()
    for path in (*spans, *of_schedule):
        span = _duration(tree.right(path))
        if span is None:
            continue
        if span.unit == "%" and whole.unit == "min":
            message = f"{span} of {whole} is no number of steps; give epochs or steps"
            tree.problem(path, message if path in of_schedule else f"{message}, or minutes")
        elif path in of_schedule and span.unit == "min":
            message = "a schedule counts optimiser steps, not minutes; give epochs or steps"
            tree.problem(path, message)
        elif path == "schedule.warmup" and _as_long(span, whole):
            message = f"a warm-up of {span} leaves nothing of a run of {whole}"
            tree.problem(path, message)
    if schedule is None or tree.refused_above("schedule.type"):
        return
    if whole.unit == "min" and getattr(schedule.target, "needs_end", False):
        message = (
            f"stretches over the steps of the run, whose number {whole} does not tell; give "
            "train.duration in epochs or steps, and the minutes as train.max_time"
        )
        tree.problem("schedule.type", message)
    lowest, rate = tree.right("schedule.min_lr"), tree.right("optimizer.lr")
    if isinstance(lowest, (int, float)) and isinstance(rate, (int, float)) and lowest > rate:
        tree.problem("schedule.min_lr", f"is more than the optimizer's lr, {rate:g}")


def _duration(value: Any) -> Duration | None:
    try:
        return Duration(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _as_long(span: Duration, whole: Duration) -> bool:
    if span.unit == "%":
        return span.amount >= 100
    return span.unit == whole.unit and span.amount >= whole.amount


def _distributed(tree: Located) -> None:
    def value(key: str) -> Any:
        return tree.holds(f"distributed.{key}")

    def wrong(key: str, message: str) -> None:
        tree.problem(f"distributed.{key}", message)

    world, threads = value("reproducible") == "world", value("blas_threads")
    if not world and tree.right("distributed.shards") not in (None, 8):
        wrong("shards", "only world mode has shards; set distributed.reproducible to world")
    if world and value("compression") in ("fp16", "bf16"):
        wrong("compression", "rounds by rank, but reproducible: world wants the same bits")
    if world and value("overlap") is True:
        wrong("overlap", "reproducible: world adds up the shards when all are there")
    elif value("compression") in ("fp16", "bf16") and value("overlap") is True:
        wrong("overlap", "compressed gradients are reduced at once; set compression to none")
    if world and isinstance(threads, int) and threads > 1:
        wrong("blas_threads", "reproducible: world needs 1; with more, sums have other bits")
    warn, limit = value("warn_s"), value("timeout_s")
    if isinstance(warn, (int, float)) and isinstance(limit, (int, float)) and warn >= limit:
        path = "warn_s" if tree.find("distributed.warn_s") else "timeout_s"
        wrong(path, f"no warning can come after {warn:g} s: the run ends after {limit:g} s")
