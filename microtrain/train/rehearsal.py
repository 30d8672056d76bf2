"""A rehearsal of a run: whether its parts go together, found out on two rows before it begins.

Errors of user-defined code keep their traceback, with a note that names the part.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Real
from typing import Any

import numpy as np

from ..autograd import enable_grad
from ..config.across import mode_missing
from ..config.components import CLASSES, build, is_import_path, load, own
from ..config.schema import TARGET_KEYS, Component, Config
from ..config.texts import Measure
from ..data import Prepared
from ..data.preparation.split import PARTS
from ..data.rows import in_memory, known_of_target, layout
from ..distributed.single import SingleCommunicator
from ..errors import ConfigError, UserError
from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, Module
from ..tensor import TENSORS, Tensor
from .evaluation import OfRow, Outputs, evaluate, evaluating, step_of, tensors, to_numpy
from .metrics.base import Metric
from .metrics.classification import ClassMetric, is_of_numbers
from .models_and_losses import (
    OF_NUMBERS,
    described,
    in_unit,
    leaves,
    loss_of_rows,
    mapped,
    negative_count,
    one_loss,
    refuse_unweighted,
    takes_weight,
)

COMPARE_NUMBERS = (*OF_NUMBERS, BCEWithLogitsLoss)
BUILT_IN = (*COMPARE_NUMBERS, CrossEntropyLoss)


def part_of(config: Config, path: str) -> Component:
    """The part at a dotted path, such as `loss` or `metrics.0`."""
    if path == "trainer":
        return Component("trainer", config.trainer or "")
    section, _, number = path.partition(".")
    part: Any = getattr(config, section)
    return part[int(number)] if number else part


def is_own(part: Component) -> bool:
    """Whether it is the user's: an object, or code that an import path names."""
    return is_import_path(part.type) or part.instance is not None


def refused(config: Config, path: str, found: str) -> ConfigError:
    """The error for a part, of which `found` is wrong."""
    part, line = part_of(config, path), ""
    at = f" ({config.origins[path]})" if path in config.origins else ""
    if is_own(part):
        with suppress(OSError, TypeError):  # an object, or made elsewhere than in a file
            target = part.instance or load(part.kind, part.type)
            line = f" (line {inspect.getsourcelines(inspect.unwrap(target))[1]})"
    return ConfigError(f"{path}{at}: {part.type}{line} {found}\n{own(path)}")


@contextmanager
def trying(config: Config, path: str, what: str = "") -> Iterator[None]:
    """An error of user-defined code in this block says which part it is of."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_own(part_of(config, path)):
            error.add_note(str(refused(config, path, f"raised the error{what}")))
        raise


def build_metrics(config: Config) -> list[Metric]:
    """The configured metrics; ConfigError for what is not one."""
    metrics = []
    for number, component in enumerate(config.metrics):
        path = f"metrics.{number}"
        with trying(config, path):
            metric = build(component)
        if wrong := _no_metric(metric):
            raise refused(config, path, wrong)
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


def rehearse(parts: Any, module: Module, trainer: Any) -> OfRow:
    """ConfigError where model, loss, metrics and data do not fit; two rows are tried.

    Args:
        parts: of the run; its model is `module`.
        trainer: the class of the run, whose `eval_step` is tried instead of model and loss where it
            has one.

    Returns what a row takes in memory; nothing is known of that with such a step.
    """
    config, device, data, loss = parts.config, parts.device, parts.data, parts.loss
    metrics: list[Metric] = parts.metrics
    _check_kinds(config, data, loss, metrics)
    if not any(param.requires_grad for param in module.parameters()):
        raise ConfigError(f"model {config.model.type}: no parameter requires grad")
    if name := _out_of_sight(module):
        found = (
            f"has modules in a plain list or dict, {name}, where no optimizer or checkpoint finds "
            "their parameters: make it a mt.nn.ModuleList or ModuleDict, or freeze them with "
            "requires_grad_(False)"
        )
        raise refused(config, "model", found)
    for metric in metrics:
        wrong = mode_missing(config, metric.higher_is_better)
        part = "val" if config.data.split.has_val else "train"
        if wrong and config.checkpoint.monitor == Measure.of(part, metric.name):
            raise ConfigError(f"checkpoint.monitor: {wrong}")
    if data.train.weighted and trainer.eval_step is None:
        refuse_unweighted(loss, config.loss.type)
    names = config.model.type, config.loss.type
    rows = in_memory(data.train, slice(2))
    # All that one that measures a run which has ended has as well.
    known = {"config": config, "device": device, "loss": loss, "metrics": metrics, "data": data}
    step, of_row = step_of(trainer, **known), OfRow(0, 0)
    try:
        with evaluating(module):  # running statistics begin with the first step
            if step is not None:
                with trying(config, "trainer"):
                    outputs, value = step(module, tensors(rows.arrays, device))
                value = one_loss(value)
                _check_loss(config, value)
            else:
                outputs, of_row = _try_model_and_loss(config, module, loss, rows, device)
        arrays, others = mapped(to_numpy, outputs), rows.arrays[len(rows.inputs) :]
        if (scaling := data.target_scaling) is not None:
            arrays = scaling.predictions(arrays)
            others = (scaling.inverse(others[0]), *others[1:])
        for number, metric in enumerate(metrics):
            _try_metric(config, number, metric, (arrays, *others))
        evaluate(
            module, loss, metrics, rows, SingleCommunicator(), device, step=step,
            target_scaling=scaling,
        )  # fmt: skip
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if any(is_import_path(name) for name in names) or getattr(error, "__notes__", None):
            raise
        shapes = ", ".join(str(array.shape[1:]) for array in (*layout(data.train)[0], rows.target))
        raise ConfigError(
            f"model {names[0]} and loss {names[1]} do not fit the data (rows of shapes {shapes}): "
            f"{error}"
        ) from error
    # Two rows need not hold the highest class.
    scores, classes = getattr(outputs, "shape", (0,))[-1], len(data.classes or ())
    if isinstance(loss, CrossEntropyLoss) and step is None and scores != classes:
        raise ConfigError(
            f"model {names[0]} gives {scores} scores a row, but the data have {classes} classes; "
            "leave out_features to the data"
        )
    return of_row


def _out_of_sight(module: Module) -> str:
    """An attribute whose modules have parameters that `module.parameters()` lacks; else nothing."""
    known = {*map(id, module.parameters())}
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            inside = [*value.values()] if isinstance(value, dict) else value
            for one in inside if isinstance(inside, list | tuple) else ():
                within = one.parameters() if isinstance(one, Module) else ()
                if any(param.requires_grad and id(param) not in known for param in within):
                    return f"{path}.{name}".removeprefix(".")
    return ""


def _check_kinds(config: Config, data: Prepared, loss: Any, metrics: list[Metric]) -> None:
    """ConfigError where loss or metrics compare classes and the target is numbers, or reversed."""
    if isinstance(loss, type):
        raise refused(config, "loss", f"is a class; give an instance: {loss.__name__}(...)")
    name, target = config.loss.type, layout(data.train)[1]
    found = f"{target.dtype.name} of shape {(len(data.train), *target.shape[1:])}"
    if isinstance(loss, CrossEntropyLoss) and data.classes is None:
        raise ConfigError(
            f"loss {name} compares classes, but the target is {found}: a regression; use mse, or "
            f"make it classes\n{CLASSES}"
        )
    if isinstance(loss, COMPARE_NUMBERS) and data.classes is not None:
        raise ConfigError(
            f"loss {name} compares numbers, but the target is one of {len(data.classes)} classes; "
            "use cross_entropy"
        )
    scaled = data.target_scaling is not None and not data.target_scaling.exp
    if scaled and not in_unit(loss):
        key = next(key for key in TARGET_KEYS if getattr(config.data, key))
        raise ConfigError(
            f"data.{key}: the loss {name} does not compare predictions with a target in a unit, as "
            "mse, mae and huber do; leave it out, or choose one of these (for counts with clip: "
            "poisson)"
        )
    if isinstance(loss, BCEWithLogitsLoss):
        known = known_of_target(data.train)
        if not 0 <= known.low <= known.high <= 1:
            raise ConfigError(
                f"loss {name} needs targets from 0 to 1, but they go from {known.low:g} to "
                f"{known.high:g}; use mse"
            )
    parts = (data.train, data.val, data.test)
    for part, rows in zip(PARTS, parts, strict=True):
        if rows is not None and (negative := negative_count(rows, loss)):
            raise ConfigError(
                f"loss {name} needs counts, targets of at least 0, but in the {part} part the "
                f"{negative}\nhint: rows count from 0; correct the target, or use mse"
            )
    of_classes = [metric.name for metric in metrics if isinstance(metric, ClassMetric)]
    if of_classes and is_of_numbers(loss, data.classes, parts):
        raise ConfigError(
            f"metric {of_classes[0]} compares classes, but with the loss {name} the target, "
            f"{found}, is numbers: use mse, rmse, mae or r2; for targets of 0 and 1 the loss bce, "
            f"else make it classes\n{CLASSES}"
        )


def _try_model_and_loss(
    config: Config, module: Module, loss: Any, rows: Any, device: Any
) -> tuple[Any, OfRow]:
    """A prediction, and what a row takes; ConfigError for what cannot be used."""
    batch, at = tensors(rows.arrays, device), len(rows.inputs)
    with trying(config, "model"), enable_grad():
        returned = module(*batch[:at])
        of_row, outputs = OfRow.of(returned, len(rows)), Outputs(module, (), batch)
        prediction = mapped(lambda one: outputs.leaf(one, None), returned)
    if any(type(one) not in TENSORS for one in leaves(prediction) or [None]):
        found = (
            f"returned {described(prediction)}; forward must return a Tensor, or several in a "
            "tuple, list or dict"
        )
        raise refused(config, "model", found)
    if not isinstance(prediction, Tensor) and isinstance(loss, BUILT_IN):
        found = (
            f"compares one Tensor with the target, but model {config.model.type} returned "
            f"{described(prediction)}; write a loss that takes what forward returns, or a trainer "
            "with eval_step (docs/your-loop.md)"
        )
        raise refused(config, "loss", found)
    given = f" for prediction: {described(prediction)}, target: {described(batch[at])}"
    with trying(config, "loss", given), enable_grad():
        value = one_loss(loss_of_rows(loss, prediction, *batch[at:]))
    _check_loss(config, value)
    if is_own(config.loss) and not isinstance(loss, BUILT_IN):
        twice = tensors([np.concatenate([each, each]) for each in rows.arrays], device)
        again = one_loss(loss_of_rows(loss, module(*twice[:at]), *twice[at:])).item()
        _check_reduction(config, loss, value.item(), again)
    if not value.requires_grad:
        found = (
            "returned a number without a gradient: compute it from the prediction by operations on "
            "Tensors, without detach(), item() and NumPy"
        )
        raise refused(config, "loss", found)
    return prediction, of_row


def _check_loss(config: Config, value: Any) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__
        found = f"returned {what}; expected one number as a Tensor"
        raise refused(config, "loss", found)


def _check_reduction(config: Config, loss: Any, once: float, twice: float) -> None:
    """ConfigError for a loss whose values for some rows, and for these twice, are not what it says.

    Several ranks would train otherwise than one: a mean is weighted with the rows, a sum added up.
    """
    is_sum = getattr(loss, "reduction", "mean") == "sum"
    of_sum, of_mean = (math.isclose(twice, n * once, rel_tol=1e-3) for n in (2, 1))
    if of_sum in (of_mean, is_sum):
        return
    name = getattr(loss, "__name__", "loss")
    found, way_out = (
        ('is a mean over the rows, but its `reduction` is "sum"', "remove that attribute")
        if is_sum
        else ("is a sum over the rows", f'return their mean, or say so: {name}.reduction = "sum"')
    )
    found = f"{found}: {once:g} for two rows, {twice:g} for each of them twice; {way_out}"
    raise refused(config, "loss", found)


def _try_metric(config: Config, number: int, metric: Metric, rows: Sequence[Any]) -> None:
    """Call a user-defined metric; ConfigError for what it may not return.

    rows: prediction, target, and the weights if there are any, as evaluations have them.
    """
    component, path = config.metrics[number], f"metrics.{number}"
    if not is_own(component):
        return
    takes = takes_weight(metric.sums if metric.of_rows is None else metric.of_rows)
    rows = rows[: 2 + takes]  # else evaluations say that it cannot measure rows with weights
    given, wrong = f" for prediction: {described(rows[0])}, target: {described(rows[1])}", ""
    with trying(config, path, given):
        if metric.of_rows is not None:
            value = metric.of_rows(*rows)
        else:
            some: Any = metric.sums(*rows)
            none: Any = metric.sums(*(mapped(lambda array: array[:0], each) for each in rows))
            for sums, of in ((some, ""), (none, " of no rows")):
                if not isinstance(sums, np.ndarray) or sums.ndim != 1 or sums.dtype != np.float64:
                    wrong = f"has sums{of} that are {described(sums)}; expected a float64 vector"
                    raise refused(config, path, f"{wrong} ({given.strip()})")
            if len(some) != len(none) or none.any():
                wrong = f"has sums of no rows that are {none}; expected {len(some)} zeros"
                raise refused(config, path, wrong)
            value = metric.value(some)
    if not isinstance(value, Real) and getattr(value, "shape", None) != ():
        wrong = f"gave {described(value)}{given}; expected one number"
        raise refused(config, path, wrong)
