"""What only shows across keys: values that are right alone and wrong together.

All of it is known before any data are loaded.
"""

from __future__ import annotations

from typing import Any

from ..common.spelling import closest
from ..common.words import quoted
from .components import load
from .registered import REGISTERED
from .schema import Config, Wrong
from .texts import Measure


def contradictions(config: Config) -> Wrong:
    """The dotted path of each key that does not go together with other sections, and why.

    A key of `config` that is None has a problem already: what reads it is not asked.
    """
    if None not in (config.data, config.metrics, config.checkpoint, config.callbacks):
        yield from _monitors(config)
    if None not in (config.train, config.checkpoint, config.log):
        spans = {
            "train.eval_every": config.train.eval_every,
            "checkpoint.every": config.checkpoint.every,
            "log.every": config.log.every,
        }
        for path, span in spans.items():
            if config.train.duration.unit == "min" and span.endswith("%"):
                way_out = "give epochs or steps, or minutes"
                yield path, f"{span} of {config.train.duration} is not a number of steps; {way_out}"
    if config.device == "cpu" and getattr(config.distributed, "backend", "") == "nccl":
        message = "nccl adds up gradients on GPUs, but device is cpu; set device to cuda"
        yield "distributed.backend", message


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
            yield f"metrics.{i}", f"the name {name} is taken by the loss or an earlier metric"
        else:
            unsaid = False if isinstance(made, type) else None
            higher[measure] = getattr(made, "higher_is_better", unsaid)
    if monitored in higher and (message := mode_missing(config, higher[monitored])):
        yield "checkpoint.monitor", message
    watched = {"checkpoint.monitor": monitored}
    for i, callback in enumerate(config.callbacks):
        if callback.type in REGISTERED["callbacks"]:
            monitor = watched[f"callbacks.{i}.monitor"] = callback.arguments.get("monitor") or ""
            unsaid = monitor != monitored and higher.get(monitor, True) is None
            if unsaid and callback.arguments.get("mode") is None:
                question = f"is the highest or the lowest {monitor} best?"
                yield f"callbacks.{i}.monitor", f"{question} It does not say; set mode"
    for path, monitor in watched.items():
        if not monitor or monitor in higher:
            continue
        where, name = Measure(monitor).part, Measure(monitor).field
        near = Measure.of(part, name)
        if where == "val" and part == "train":
            yield path, f"{monitor} needs validation data: set data.split.val"
        elif all_known or where != part:
            fields = {Measure(each).field: each for each in higher}
            meant = near if near in higher else fields.get(closest(name, fields) or "")
            suggestion = f"; did you mean {meant}?" if meant else ""
            if near not in higher and name in REGISTERED["metrics"]:
                suggestion = f"; add {name} to metrics"
            there = ", ".join(higher)
            yield path, f"nothing measures {quoted(monitor)}{suggestion} (there are: {there})"


def mode_missing(config: Config, higher: bool | None) -> str:
    """Why `checkpoint.mode` has to be given: of what is monitored the highest may be best."""
    monitored = config.checkpoint.monitor
    if higher is False or "checkpoint.mode" in config.origins:
        return ""
    if higher:
        return f"the highest {monitored} is best: set checkpoint.mode to max"
    way_out = "set checkpoint.mode, or give the function an attribute higher_is_better"
    return f"is the highest or the lowest {monitored} best? It does not say; {way_out}"
