"""Whether model, loss, metrics and data go together: found out before a run begins, on two rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd import enable_grad
from ..config.across import mode_missing
from ..config.components import CLASSES, is_import_path
from ..config.measure import Measure
from ..config.schema import Component, Config
from ..creation import from_numpy
from ..data import ArrayDataset, Prepared
from ..data.rows import in_memory, known_of_target, layout
from ..distributed.single import SingleCommunicator
from ..errors import ConfigError
from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, Module, MSELoss
from ..tensor import TENSORS, Tensor
from .components.losses import loss_of_rows, one_loss, refuse_unweighted
from .evaluation import Outputs, Step, evaluate, evaluating, step_of, to_numpy
from .metrics.base import Metric
from .metrics.class_table import is_of_numbers
from .metrics.classification import ClassMetric
from .model_outputs import OfRow, described, leaves, mapped
from .user_code import refused, try_metric, trying

COMPARE_NUMBERS = (MSELoss, L1Loss, HuberLoss, BCEWithLogitsLoss)
BUILT_IN = (*COMPARE_NUMBERS, CrossEntropyLoss)


def check_fit(
    config: Config,
    data: Prepared,
    module: Module,
    loss: Any,
    metrics: list[Metric],
    device: Any,
    trainer: Any,
) -> OfRow | None:
    """ConfigError where model, loss, metrics and data do not fit; two rows are tried.

    Errors in the user's own code keep their traceback. `trainer` is the class of the run, whose
    `eval_step` is tried instead of model and loss where it has one; returns None then, else what a
    row takes in memory.
    """
    names = config.model.type, config.loss.type
    inputs, target = layout(data.train)
    parts, shape = (data.train, data.val, data.test), (len(data.train), *target.shape[1:])
    if isinstance(loss, CrossEntropyLoss) and data.classes is None:
        raise ConfigError(
            f"loss {names[1]} compares classes, but the target is {target.dtype.name} of shape "
            f"{shape}: a regression; use mse, or make it classes\n{CLASSES}"
        )
    if isinstance(loss, COMPARE_NUMBERS) and data.classes is not None:
        raise ConfigError(
            f"loss {names[1]} compares numbers, but the target is one of {len(data.classes)} "
            "classes; use cross_entropy"
        )
    if isinstance(loss, BCEWithLogitsLoss):
        known = known_of_target(data.train)
        if not 0 <= known.low <= known.high <= 1:
            raise ConfigError(
                f"loss {names[1]} wants targets from 0 to 1, but they go from {known.low:g} to "
                f"{known.high:g}; use mse"
            )
    if not any(param.requires_grad for param in module.parameters()):
        raise ConfigError(f"model {names[0]}: no parameter requires grad")
    check_monitor(config, metrics)
    for metric in metrics:
        if isinstance(metric, ClassMetric) and is_of_numbers(loss, data.classes, parts):
            raise ConfigError(
                f"metric {metric.name} compares classes, but with the loss {names[1]} the target, "
                f"{target.dtype.name} of shape {shape}, is numbers: use mse, rmse, mae or "
                f"r2; for targets of 0 and 1 the loss bce, else make it classes\n{CLASSES}"
            )
    if data.train.weighted and trainer.eval_step is None:
        refuse_unweighted(loss, names[1])
    rows = in_memory(data.train, slice(2))
    parts_of_run = {
        "config": config,
        "device": device,
        "loss": loss,
        "metrics": metrics,
        "data": data,
    }
    step = step_of(trainer, **parts_of_run)
    try:
        outputs, of_row = _tried(config, module, loss, rows, device, step)
        arrays = mapped(to_numpy, outputs)
        for number, metric in enumerate(metrics):
            try_metric(config, number, metric, (arrays, *rows.arrays[len(rows.inputs) :]))
        evaluate(module, loss, metrics, rows, SingleCommunicator(), device, step=step)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if any(is_import_path(name) for name in names) or getattr(error, "__notes__", None):
            raise
        arrays = (*inputs, target)
        shapes = ", ".join(str(array.shape[1:]) for array in arrays)
        raise ConfigError(
            f"model {names[0]} and loss {names[1]} do not fit the data (rows of shapes {shapes}): "
            f"{error}"
        ) from error
    # Two rows need not hold the highest class.
    scores = getattr(outputs, "shape", (0,))[-1]
    if isinstance(loss, CrossEntropyLoss) and step is None and scores != len(data.classes or ()):
        raise ConfigError(
            f"model {names[0]} gives {scores} scores a row, but the data have "
            f"{len(data.classes or ())} classes; leave out_features to the data"
        )
    return of_row


def check_monitor(config: Config, metrics: list[Metric]) -> None:
    """ConfigError where the highest value of the monitored metric is best, or nobody knows."""
    part = "val" if config.data.split.has_val else "train"
    for metric in metrics:
        wrong = mode_missing(config, metric.higher_is_better)
        if wrong and config.checkpoint.monitor == Measure.of(part, metric.name):
            raise ConfigError(f"checkpoint.monitor: {wrong}")


def _tried(
    config: Config, module: Module, loss: Any, rows: ArrayDataset, device: Any, step: Step | None
) -> tuple[Any, OfRow | None]:
    """A prediction, and what a row takes; ConfigError for what cannot be used."""
    arrays = rows.arrays
    batch = tuple(from_numpy(array).to(device=device) for array in arrays)
    at, of_row = len(rows.inputs), None
    with evaluating(module):  # running statistics begin with the first step
        if step is not None:
            with trying(config, "trainer", Component("trainer", str(config.trainer))):
                prediction, value = step(module, batch)
        else:
            with trying(config, "model", config.model), enable_grad():
                returned = module(*batch[:at])
                of_row = OfRow.of(returned, len(rows))
                outputs = Outputs(module, (), batch)
                prediction = mapped(lambda one: outputs.leaf(one, None), returned)
            if any(type(one) not in TENSORS for one in leaves(prediction) or [None]):
                raise refused(
                    config, "model", config.model,
                    f"returned {described(prediction)}; forward must return a Tensor, or several "
                    "in a tuple, list or dict",
                )  # fmt: skip
            if not isinstance(prediction, Tensor) and isinstance(loss, BUILT_IN):
                raise refused(
                    config, "loss", config.loss,
                    f"compares one Tensor with the target, but model {config.model.type} returned "
                    f"{described(prediction)}; write a loss that takes what forward returns, or a "
                    "trainer with eval_step (docs/your-loop.md)",
                )  # fmt: skip
            given = f" for prediction: {described(prediction)}, target: {described(batch[at])}"
            with trying(config, "loss", config.loss, given), enable_grad():
                value = loss_of_rows(loss, prediction, *batch[at:])
        value = one_loss(value)
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__
        raise refused(
            config, "loss", config.loss, f"returned {what}; expected one number as a Tensor"
        )  # fmt: skip
    own = is_import_path(config.loss.type) or config.loss.instance is not None
    if step is None and own and not isinstance(loss, BUILT_IN):
        with evaluating(module):
            twice = [from_numpy(np.concatenate([rows, rows])).to(device=device) for rows in arrays]
            again = one_loss(loss_of_rows(loss, module(*twice[:at]), *twice[at:])).item()
        _check_reduction(config, loss, value.item(), again)
    if step is None and not value.requires_grad:
        raise refused(
            config, "loss", config.loss,
            "returned a number without a gradient: compute it from the prediction by operations on "
            "Tensors, without detach(), item() and NumPy",
        )  # fmt: skip
    return prediction, of_row


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
    raise refused(config, "loss", config.loss, found)
