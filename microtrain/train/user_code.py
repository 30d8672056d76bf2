"""Parts of the user's own: what a function becomes, and what is refused before a run begins."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np

from ..config.components import build, is_import_path, load, own
from ..config.schema import Component, Config
from ..errors import ConfigError, UserError
from .metrics.base import Metric, takes_weight
from .model_outputs import described, mapped


class FunctionMetric(Metric):
    """What `function(prediction, target)` returns for all rows at once, under its name.

    Its attribute `higher_is_better` says which value is best; without it that is not known.
    """

    higher_is_better: Any = None

    def __init__(self, function: Any) -> None:
        self.name, self.of_rows = function.__name__, function
        self.higher_is_better = getattr(function, "higher_is_better", None)


def refused(config: Config, path: str, component: Component, found: str) -> ConfigError:
    """The error for a part of the user's own, at a dotted path, of which `found` is wrong."""
    at = f" ({config.origins[path]})" if path in config.origins else ""
    return ConfigError(f"{path}{at}: {component.type}{_line(component)} {found}\n{own(path)}")


def _line(component: Component) -> str:
    """Where a function or class of the user's own begins in its file."""
    if component.instance is None and not is_import_path(component.type):
        return ""
    try:
        target = component.instance or load(component.kind, component.type)
        return f" (line {inspect.getsourcelines(inspect.unwrap(target))[1]})"
    except (OSError, TypeError):  # an object, or made elsewhere than in a file
        return ""


@contextmanager
def trying(config: Config, path: str, component: Component, what: str = "") -> Iterator[None]:
    """An error of the user's own code in this block says which part it is of."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_import_path(component.type) or component.instance is not None:
            error.add_note(str(refused(config, path, component, f"raised the error{what}")))
        raise


def build_metrics(config: Config) -> list[Metric]:
    """The configured metrics; ConfigError for what is none."""
    metrics = []
    for number, component in enumerate(config.metrics):
        path = f"metrics.{number}"
        with trying(config, path, component):
            metric = build(component)
        if wrong := _no_metric(metric):
            raise refused(config, path, component, wrong)
        metrics.append(metric)
    return metrics


def _no_metric(metric: Any) -> str:
    """What is wrong with what stands for a metric; nothing if it is one."""
    if isinstance(metric, type):
        return f"is a class; give an instance: {metric.__name__}(...)"
    if not isinstance(metric, Metric):
        return (
            "is not a metric: expected a function of prediction and target that returns a number, "
            f"or a class that derives from microtrain.train.Metric, found {described(metric)}"
        )
    name = getattr(metric, "name", None)
    if not isinstance(name, str) or not name.isprintable() or name[:1] in ("", "<"):
        return f'has no name that a column can have, such as `name = "f1"`, but {name!r}'
    if metric.of_rows is None and type(metric).sums is Metric.sums:
        return "measures nothing: expected `sums` and `value`, or `of_rows`"
    return ""


def _is_vector(sums: Any) -> bool:
    return isinstance(sums, np.ndarray) and sums.ndim == 1 and sums.dtype == np.float64


def try_metric(config: Config, number: int, metric: Metric, rows: Sequence[Any]) -> None:
    """Call a metric of the user's own on a few rows; ConfigError for what it may not return.

    rows: prediction, target, and the weights if there are any, as evaluations have them.
    """
    component, path = config.metrics[number], f"metrics.{number}"
    if not is_import_path(component.type) and component.instance is None:
        return
    takes = takes_weight(metric.sums if metric.of_rows is None else metric.of_rows)
    rows = rows[: 2 + takes]  # else evaluations say that it cannot measure rows with weights
    given = f" for prediction: {described(rows[0])}, target: {described(rows[1])}"
    with trying(config, path, component, given):
        if metric.of_rows is not None:
            value = metric.of_rows(*rows)
        else:
            some = metric.sums(*rows)
            none = metric.sums(*(mapped(lambda array: array[:0], each) for each in rows))
            for sums, of in ((some, ""), (none, " of no rows")):
                if not _is_vector(sums):
                    wrong = f"has sums{of} that are {described(sums)}; expected a float64 vector"
                    raise refused(config, path, component, f"{wrong} ({given.strip()})")
            if len(some) != len(none) or none.any():
                wrong = f"has sums of no rows that are {none}; expected {len(some)} zeros"
                raise refused(config, path, component, wrong)
            value = metric.value(some)
    if not isinstance(value, Real) and getattr(value, "shape", None) != ():
        wrong = f"gave {described(value)}{given}; expected one number"
        raise refused(config, path, component, wrong)
