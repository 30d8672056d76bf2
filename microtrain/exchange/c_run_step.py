"""The training step that a run's configuration describes, as C, from one of its checkpoints on.

Rows are raw, as `predict` takes them, and the target is in its own unit: the step scales both as
the run did.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import default_dtype
from ..config.components import load
from ..errors import CaptureError, ConfigError
from ..inference.evaluate import load_data_again
from ..inference.model import TrainedModel
from ..nn.normalization import BatchNorm
from ..nn.utils import clip_grad_norm_
from ..optim import Optimizer
from ..runs.checkpoint import load_checkpoint
from ..train.build_run import build_loss, build_optimizer, shards_of
from ..train.model_state import take_over
from ..train.models_and_losses import loss_of_rows
from ..train.trainer import Trainer
from .c import MOST, VECTORS
from .c_files import Written
from .c_run import checks, columns_in_c, functions_of, meaning, vectors_of
from .c_step import step_in_c, undoing
from .predictor import Predictor

OF_TRAINER = "train_step", "gradients", "update", "take_step"
CODES = (
    "1: an index, or the number of a class, is out of bounds; 2: a value is not finite, is empty "
    "where that was an error in training, or is not a category."
)


def run_step_in_c(model: TrainedModel, name: str, rows: int) -> Written:
    """The step of a run; ConfigError for what has no form in C.

    rows: of a step; 0: as many as the run takes.
    """
    config, columns = model.config, columns_in_c(model)
    predictor = Predictor(model, columns)
    train, module, clip = load_data_again(model).train, model.module.train(), config.train.clip_norm
    with default_dtype(config.dtype):
        loss, optimizer = build_loss(config), build_optimizer(config, [*module.parameters()])
    _refuse(model, optimizer)
    take_over(load_checkpoint(model.path), module, optimizer)
    arrays = [x._array for x in (*module.parameters(), *module.buffers())]
    for parameter in optimizer.storage.params:
        arrays += optimizer.state_of(parameter).values()
    size = config.train.batch_size
    rows = rows or min(len(train) if size == "all" else size, len(train))
    kinds, given = _batches(model, train, rows, columns)
    last = len(given) - len(kinds)  # the target

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        outputs = module(*predictor.inputs(batch[:last]))
        scaled = predictor.target(batch[last]), *batch[last + 1 :]
        targets = [x.to(kind) for x, kind in zip(scaled, kinds, strict=True)]
        value = loss_of_rows(loss, outputs, *targets)
        value.backward()
        if clip is not None:
            clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        return value

    own = "in its own unit" if model.classes is None else "the number of the class"
    texts = ["the rows, raw values", *(f"input {n}" for n in range(1, last))]
    texts += [f"the target, {own}", *["the weights of the rows"] * train.weighted]
    try:
        with default_dtype(config.dtype), np.errstate(all="ignore"):
            return step_in_c(
                name, step, given, f"{config.name}: a step of training, from the {model.chosen} on",
                begin=undoing(arrays, [optimizer]), about=(texts, ["the loss, before the update"]),
                before=checks(columns, given), extra=functions_of(model, name, columns),
                notes=meaning(model, columns, "[row]", f"in{last}[row]")
                + _notes(model, loss, train), codes=CODES,
            )  # fmt: skip
    except CaptureError as error:
        raise ConfigError(f"the step cannot be written as C: {error}") from error


def _refuse(model: TrainedModel, optimizer: Optimizer) -> None:
    """ConfigError for what is not in the step, or would be another one in it."""
    config = model.config
    kind = load("trainer", config.trainer) if config.trainer else Trainer
    own = any(getattr(kind, each) is not getattr(Trainer, each) for each in OF_TRAINER)
    cut = config.train.accumulate > 1 or shards_of(config) is not None
    normed = any(isinstance(each, BatchNorm) for each in model.module.modules())
    for refused, why in (
        (own, f"the trainer {config.trainer} has a step of its own; give it to mt.export_step"),
        (optimizer.needs_closure, f"the optimizer {config.optimizer.type} computes its loss "
         "several times in a step"),
        (cut and normed, "batch norms have the statistics of micro-batches or shards, and C takes "
         "a batch at once: leave out train.accumulate and distributed.shards"),
    ):  # fmt: skip
        if refused:
            raise ConfigError(f"the step cannot be written as C: {why}")


def _batches(
    model: TrainedModel, train: Any, rows: int, columns: Any
) -> tuple[list[Any], list[Any]]:
    """The dtypes of the target and the weights; batches of raw rows like those of training."""
    arrays, at = train.read(slice(min(VECTORS * rows, len(train)))), len(model.signature.inputs)
    kinds, size = [each.dtype for each in arrays[at:]], sum(each[0].size for each in arrays)
    count = max(1, min(VECTORS, MOST // (rows * size)))
    number = np.arange(count * rows) % len(arrays[0])
    raw = [each[number].astype(np.float64 if each.dtype.kind == "f" else each.dtype)
           for each in arrays]  # fmt: skip
    if (scaling := model.target_scaling) is not None:
        raw[at] = scaling.inverse(raw[at])
    if columns:
        raw[:at] = [vectors_of(model, columns, count * rows)[0][:, 0]]
    elif not model.preprocessing.is_identity:
        raw[0] = raw[0] * model.preprocessing.scale + model.preprocessing.mean
    return kinds, [each.reshape(count, rows, *each.shape[1:]) for each in raw]


def _notes(model: TrainedModel, loss: Any, train: Any) -> list[str]:
    """What of a run is left to the program around its steps, for the header."""
    schedule, callbacks = model.config.schedule, [one.type for one in model.config.callbacks]
    of_sum = getattr(loss, "reduction", "mean") == "sum"
    weighted = train.weighted or getattr(loss, "weight", None) is not None
    return [note for there, note in (
        (True, "where the loss or a gradient is not finite Python does not update (train.nan), but "
         "C does: look at out0, and keep a copy of the state"),
        (schedule, f"the rate is that of step {model.step:,}; the schedule, "
         f"{schedule and schedule.type}, is yours to follow, by the function that sets a rate"),
        (callbacks, f"not called: the callbacks {', '.join(callbacks)}"),
        (of_sum, "the loss is a sum over rows: over ranks, reduce leaves the sum, not the mean"),
        (weighted and not of_sum, "the loss is a weighted mean: over ranks, reduce leaves the mean "
         "that is weighted with each rank's sum of weights"),
    ) if there]  # fmt: skip
