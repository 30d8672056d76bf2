"""A trained model as something to use: raw values in, predictions in the user's units out."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..autograd import no_grad
from ..backend import default_dtype, to_host
from ..config.components import GIVEN, build, is_import_path
from ..creation import from_numpy
from ..data.frame import Frame, shortened
from ..data.preparation import cast, check_finite
from ..errors import ConfigError, DataError
from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, Module
from ..train.evaluation import ROWS
from ..words import listed
from .saved import Saved, read_saved, saved_model
from .signature import Signature

__all__ = ["TrainedModel", "load"]

Array = NDArray[Any]
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")


def load(
    path: str | os.PathLike[str],
    *,
    trust: bool = False,
    checkpoint: str | int = "best",
    model: Module | None = None,
) -> TrainedModel:
    """The trained model of a run, with the preparation of its inputs.

    Args:
        path: a run directory, `<runs>/<name>` or its `latest` for the newest run of that name, or
            one checkpoint directory.
        trust: run the code that the run's import paths name. Everything else is read without
            running anything: there is no pickle in a run.
        checkpoint: `best` (where that was not kept, the last, with a UserWarning), `last`, or a
            step.
        model: of the same architecture, whose values are replaced; instead of what the
            configuration describes, as for a run whose model was given to `Trainer` in Python.

    Raises ConfigError for import paths without `trust`, DataError for what is missing, damaged or
    does not fit.

    Example:
        >>> model = mt.load("runs/iris")
        >>> model.predict([[5.1, 3.5, 1.4, 0.2]])
        array(['setosa'], dtype='<U10')
        >>> model.predict({"sepal_length": [5.1], "sepal_width": [3.5],
        ...                "petal_length": [1.4], "petal_width": [0.2]})
        array(['setosa'], dtype='<U10')
    """
    saved = read_saved(path, checkpoint, trust=trust, warn=_warn)
    if saved.fell_back:
        _warn(f"{saved.fell_back}; this is the {saved.chosen}")
    return TrainedModel(saved, model)


class TrainedModel:
    """What `mt.load` gives: a module, and what it must know of the data it was trained on.

    Attributes:
        module: the `nn.Module` with the values of the checkpoint, on the CPU, in evaluation mode.
        preprocessing: what `predict` does to raw inputs first.
        feature_names: columns of the input, None where the data had no names.
        target_names: what is predicted, one name a column; None where the data had none.
        classes: names of the classes, None for a regression.
        step, path: of the checkpoint.
        chosen: which checkpoint that is, in words.

    Called with Tensors it is the module alone: inputs already prepared, raw scores out.
    """

    def __init__(self, saved: Saved, model: Module | None = None) -> None:
        self.config = saved.config
        self.path: Path = saved.checkpoint.path
        self.step, self.chosen = saved.checkpoint.step, saved.chosen
        self.signature = found = Signature.of(saved.checkpoint.state, self.path)
        self.preprocessing, self.feature_names = found.preprocessing, found.feature_names
        self.classes, self.target_names = found.classes, found.target_names
        columns = found.inputs[0][0]
        self.module: Module = saved_model(
            saved,
            model,
            in_features=columns[0] if len(found.inputs) == 1 and len(columns) == 1 else None,
            out_features=found.out_features,
            classes=None if found.classes is None else len(found.classes),
        )
        given = self.config.loss.type.startswith(GIVEN)
        self._loss = None if given else build(self.config.loss)

    def __call__(self, *inputs: Any) -> Any:
        """The module on Tensors that are prepared already."""
        return self.module(*inputs)

    def __repr__(self) -> str:
        what = f"classes {', '.join(self.classes)}" if self.classes else "regression"
        return f"TrainedModel({self.config.name}, {what:.60}, {self.chosen}, {self.path})"

    def predict(self, *inputs: Any) -> Array:
        """Predictions for raw inputs, in the units of the data the model was trained on.

        Args:
            *inputs: rows as an array of numbers, one argument for each input of the model; or named
                columns (a dict, a pandas or pyarrow table, a structured array), taken by their
                names in any order. The target may be among them; other columns are left out with a
                UserWarning.

        Returns:
            Classification: the label of each row, shape (n,), whole numbers where the classes are
            named by such. Regression: shape (n,) for one target, else as the model gives it. With
            the loss `bce`: the probability.

        Raises DataError for missing columns, other shapes, values that are not finite numbers, and
        predictions that are none.
        """
        outputs = self._outputs(inputs)
        if self.classes is None:
            values = _sigmoid(outputs) if self._binary else outputs
            return values[:, 0] if values.shape[1:] == (1,) else values
        labels: Array = self.labels[outputs.argmax(axis=1)]
        return labels

    def predict_proba(self, *inputs: Any) -> Array:
        """Probabilities: of each class, shape (n, classes); with the loss `bce`, as `predict`.

        Raises ConfigError for a regression, and for a loss that says nothing of probabilities.
        """
        self.check_proba()
        outputs = self._outputs(inputs)
        if self.classes is None:
            values = _sigmoid(outputs)
            return values[:, 0] if values.shape[1:] == (1,) else values
        return _softmax(outputs)

    def check_proba(self) -> None:
        """ConfigError where the model has no probabilities to give."""
        if not isinstance(self._loss, CrossEntropyLoss | BCEWithLogitsLoss):
            kind = "a regression" if self.classes is None else "not known to give probabilities"
            raise ConfigError(
                f"the model of {self.config.name} is {kind} (its loss is {self.config.loss.type}): "
                "there are no probabilities to give"
            )

    @property
    def _binary(self) -> bool:
        return isinstance(self._loss, BCEWithLogitsLoss)

    @property
    def labels(self) -> Array:
        """The classes as an array: of int64 where all are named by whole numbers."""
        names = self.classes or ()
        if all(_WHOLE.fullmatch(name) and abs(int(name)) < 2**63 for name in names):
            return np.array([int(name) for name in names], np.int64)
        return np.array(names)

    def _outputs(self, inputs: tuple[Any, ...]) -> Array:
        """What the module gives for raw inputs, a bounded number of rows at a time."""
        arrays = self.prepare(*inputs)
        count = len(arrays[0])
        parts = []
        training = self.module.training
        self.module.eval()
        try:
            with no_grad(), default_dtype(self.config.dtype), np.errstate(all="ignore"):
                for first in range(0, max(count, 1), ROWS):
                    rows = [from_numpy(array[first : first + ROWS]) for array in arrays]
                    parts.append(to_host(self._apply(rows)._array))
        finally:
            self.module.train(training)
        outputs = np.concatenate(parts)
        self._check(outputs, count)
        return outputs

    def _apply(self, rows: list[Any]) -> Any:
        try:
            return self.module(*rows)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if is_import_path(self.config.model.type):
                raise  # the user's own code
            raise DataError(
                f"model {self.config.model.type} cannot take the data: {error}"
            ) from error

    def _check(self, outputs: Array, count: int) -> None:
        if len(outputs) != count:
            raise DataError(f"the model gave {len(outputs)} predictions for {count} rows")
        if self.classes is not None and outputs.shape[1:] != (len(self.classes),):
            raise DataError(
                f"the model gives rows of shape {outputs.shape[1:]}, expected a score for each of "
                f"its {len(self.classes)} classes; call it with Tensors for what it gives"
            )
        if not np.isfinite(outputs).all():
            row = int(np.argwhere(~np.isfinite(outputs))[0][0])
            raise DataError(
                f"the prediction for row {row} is not a finite number\n"
                "hint: rows count from 0; are its inputs of the size the model was trained on?"
            )

    def take_columns(self, table: Frame, note: Callable[[str], None]) -> Array:
        """The columns of the input, found by their names; `note` is told of those left over."""
        names, known = self.feature_names or (), {*(self.target_names or ())}
        array = table.matrix(names, "a model takes numbers, as it was trained on them")
        known.update(names)
        if unused := [shortened(name) for name in table.names if name not in known]:
            note(f"columns that the model does not use: {listed(unused)}")
        return array

    def prepare(self, *inputs: Any) -> list[Array]:
        """Raw inputs as the module wants them: by name, checked, standardised and cast."""
        wanted = self.signature.inputs
        if len(inputs) == 1 and (table := Frame.of(inputs[0])) is not None:
            if len(wanted) != 1 or self.feature_names is None:
                raise DataError(
                    "the model was trained on arrays without column names; give arrays, not named "
                    "columns"
                )
            inputs = (self.take_columns(table, _warn),)
        if len(inputs) != len(wanted):
            raise DataError(f"the model takes {len(wanted)} inputs, got {len(inputs)}")
        arrays = [self._prepare(i, value) for i, value in enumerate(inputs)]
        if len({len(array) for array in arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise DataError(f"the inputs have different numbers of rows: {shapes}")
        return arrays

    def _prepare(self, i: int, value: Any) -> Array:
        """Input `i` as the module wants it."""
        shape, dtype = self.signature.inputs[i]
        name = "the input" if len(self.signature.inputs) == 1 else f"input {i}"
        if callable(getattr(value, "detach", None)):
            value = value.detach().numpy()
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{name} is no array of numbers: {error}") from error
        if array.shape[1:] != shape or array.ndim == 0:
            rows = ", ".join(("rows", *map(str, shape)))
            one_row = "; one row is written x[None]" if array.shape == shape else ""
            raise DataError(f"{name} has shape {array.shape}, expected ({rows}){one_row}")
        if array.dtype.kind not in ("biu" if dtype == "int64" and array.size else "biuf"):
            expected = "whole numbers" if dtype == "int64" else "numbers"
            raise DataError(f"{name} is an array of {array.dtype}, expected {expected}")
        check_finite(array, f"{name},", None if i else self.feature_names)
        if i == 0:
            with np.errstate(over="ignore"):
                array = self.preprocessing.apply(array)
        return np.ascontiguousarray(cast(array, dtype, name))


def _softmax(scores: Array) -> Array:
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True, initial=-np.inf))
    result: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return result


def _sigmoid(scores: Array) -> Array:
    wide = scores.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return np.where(wide >= 0, 1 / (1 + small), small / (1 + small))


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=3)
