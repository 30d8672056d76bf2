"""A trained model as something to use: raw values in, predictions in the user's units out."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..backend import MASKED, default_dtype, to_host
from ..common.words import html_table, listed
from ..config.components import GIVEN, build, is_import_path
from ..creation import from_numpy
from ..data import Source
from ..data.rows import cast
from ..data.source import BLOCK, as_source, check_array, check_finite, read_checked, row_size
from ..data.tables.frame import Frame, shortened
from ..data.tables.notation import Notation
from ..errors import ConfigError, DataError
from ..nn import BCEWithLogitsLoss, CrossEntropyLoss, Module
from ..nn.functional import softmax
from ..random import seeded
from ..train.build_run import build_model
from ..train.evaluation import ROWS, evaluating
from ..train.metrics.classification import sigmoid
from ..train.model_state import load_model_arrays
from ..train.models_and_losses import one_prediction
from .saved import Saved, Signature

Array = NDArray[Any]
Note = Callable[[str], None]
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")


def warn_user(text: str) -> None:
    """Warn at the line of the user's that called."""
    level, frame = 2, inspect.currentframe()
    while (frame := frame and frame.f_back) and frame.f_back is not None:
        if not frame.f_back.f_globals.get("__name__", "").startswith("microtrain."):
            break
        level += 1
    warnings.warn(text, UserWarning, stacklevel=level + 1)


def once(note: Note) -> Note:
    """What passes each text on when it comes for the first time."""
    said: set[str] = set()

    def tell(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    return tell


class TrainedModel:
    """What `mt.load` gives: a module, and what it must know of the data it was trained on.

    Attributes:
        module: the `nn.Module` with the values of the checkpoint, on the CPU, in evaluation mode.
        preprocessing: what `predict` does to raw inputs first.
        target_scaling: how the target was trained on, which `predict` undoes; None: as it is.
        feature_names: columns of the input, None where the data had no names.
        target_names: what is predicted, one name a column; None where the data had none.
        classes: names of the classes, None for a regression.
        step, path: of the checkpoint.
        chosen: which checkpoint that is, in words.

    Called with Tensors it is the module alone: inputs already prepared, raw scores out (of a target
    that was standardized, standardized numbers).
    """

    def __init__(self, saved: Saved, model: Module | None = None) -> None:
        self.config = saved.config
        self.path: Path = saved.checkpoint.path
        self.step, self.chosen = saved.checkpoint.step, saved.chosen
        self.signature = signature = Signature.of(saved.checkpoint)
        self.preprocessing, self.feature_names = signature.preprocessing, signature.feature_names
        self.target_scaling = signature.target_scaling
        self.classes, self.target_names = signature.classes, signature.target_names
        self.encoder = signature.encoder
        self.module = _module(saved, signature, model)
        in_python = self.config.loss.type.startswith(GIVEN)
        self._loss = None if in_python else build(self.config.loss)

    def __call__(self, *inputs: Any) -> Any:
        """The module on Tensors that are prepared already."""
        return self.module(*inputs)

    def __repr__(self) -> str:
        what = f"classes {', '.join(self.classes)}" if self.classes else "regression"
        return f"TrainedModel({self.config.name}, {what:.60}, {self.chosen}, {self.path})"

    def _repr_html_(self) -> str:
        """What a notebook shows: where it comes from, what it takes and gives, its layers."""
        names, targets = self.feature_names, self.target_names
        shapes = ", ".join(f"{s.dtype} {('rows', *s.shape)}" for s in self.signature.inputs)
        facts = {
            "checkpoint": self.chosen,
            "inputs": listed(names, 10) if names else shapes.replace("'", ""),
            "predicts": listed(self.classes or targets or ["numbers"], 10),
            "path": str(self.path),
        }
        table = html_table([[key, text] for key, text in facts.items()], self.config.name)
        return table + self.module._repr_html_()

    def predict(self, *inputs: Any, threshold: float | None = None) -> Array:
        """Predictions for raw inputs, in the units of the data the model was trained on.

        Args:
            *inputs: rows as an array of numbers, one argument for each input of the model; or named
                columns (a dict, a pandas or pyarrow table, a structured array), taken by their
                names in any order. The target may be among them; other columns are left out with a
                UserWarning. Or a `Source` such as `mt.data.npy(...)` gives, of which the inputs are
                read block by block, as memory maps are.
            threshold: of two classes, predict the second where its probability is at least this,
                from 0 to 1; None: the class with the higher score.

        Returns:
            Classification: the label of each row, shape (n,), whole numbers where the classes are
            named by such. Regression: shape (n,) for one target, else as the model gives it. With
            the loss `bce`: the probability, and with a threshold 1 where it is reached, else 0.

        Raises DataError for missing columns, other shapes, values that are not finite numbers, and
        predictions that are not; ConfigError for an invalid threshold, or without two classes.
        """
        return np.concatenate([self.decide(each, threshold) for each in self.outputs(*inputs)])

    def decide(self, outputs: Array, threshold: float | None = None) -> Array:
        """Predictions, as `predict` gives them, of a block of `outputs`."""
        if threshold is not None:
            return self.at_threshold(self.probabilities(outputs), threshold)
        if self.classes is not None:
            return self.labels[outputs.argmax(axis=1)]
        values = sigmoid(outputs) if self.link == "sigmoid" else outputs
        return values[:, 0] if values.shape[1:] == (1,) else values

    def predict_proba(self, *inputs: Any) -> Array:
        """Probabilities: of each class, shape (n, classes); with the loss `bce`, as `predict`.

        Raises ConfigError for a regression, and for a loss that says nothing of probabilities.
        """
        return np.concatenate([self.probabilities(each) for each in self.outputs(*inputs)])

    def probabilities(self, outputs: Array) -> Array:
        """What `predict_proba` gives, of a block of `outputs`."""
        if self.link is None:
            kind = "a regression" if self.classes is None else "not known to give probabilities"
            raise ConfigError(
                f"the model of {self.config.name} is {kind} (its loss is {self.config.loss.type}): "
                "there are no probabilities to give"
            )
        if self.classes is None:
            return self.decide(outputs)
        scores = from_numpy(outputs.astype(np.float64))
        return softmax(scores, 1).numpy()

    def at_threshold(self, chances: Array, threshold: float) -> Array:
        """The class for each row, by the probability of the second of two."""
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold: expected a probability from 0 to 1, got {threshold}")
        what = "" if chances.ndim == 1 else f"{chances.shape[1]} targets"
        if self.classes is not None:
            what = "" if len(self.classes) == 2 else f"{len(self.classes)} classes"
        if what:
            raise ConfigError(
                f"threshold: it chooses between two classes, but the model of {self.config.name} "
                f"has {what}"
            )
        if self.classes is None:
            return (chances >= threshold).astype(np.int64)
        return self.labels[(chances[:, 1] >= threshold).astype(np.int64)]

    @property
    def link(self) -> Literal["softmax", "sigmoid"] | None:
        """What makes probabilities of the module's scores; None where nothing does."""
        if isinstance(self._loss, BCEWithLogitsLoss):
            return "sigmoid"
        return "softmax" if isinstance(self._loss, CrossEntropyLoss) else None

    @property
    def labels(self) -> Array:
        """The classes as an array: of int64 where all are named by whole numbers."""
        names = self.classes or ()
        if all(_WHOLE.fullmatch(name) and abs(int(name)) < 2**63 for name in names):
            return np.array([int(name) for name in names], np.int64)
        return np.array(names)

    def outputs(
        self, *inputs: Any, note: Note = warn_user, kept: Iterable[str] = ()
    ) -> Iterator[Array]:
        """What the module gives for raw inputs, as `predict` takes them, in the target's own unit.

        Of a `Source` and of memory maps a block of rows at a time, of all else at once; at least
        one block, perhaps without rows. `note` and `kept` as `take_columns` has them. Raises
        DataError as `predict`.
        """
        for first, rows in self.blocks(*inputs):
            yield self.scores(self.prepare(*rows, note=note, kept=kept), first)

    def blocks(self, *inputs: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Raw inputs in the parts in which `outputs` takes them: the number of the first row, rows.

        Those of a `Source` are checked.
        """
        if any(isinstance(value, np.memmap) for value in inputs):
            inputs = (as_source(inputs, "the inputs"),)
        if len(inputs) != 1 or not isinstance(inputs[0], Source):
            yield 0, inputs
            return
        source, count = inputs[0], len(self.signature.inputs)
        head = self.check_source(source)
        # As many rows a pass as of arrays: the same bits.
        step = ROWS * max(1, BLOCK // (ROWS * row_size(head)))
        for first in range(0, max(len(source), 1), step):
            rows = slice(first, min(first + step, len(source)))
            arrays = read_checked(source, rows, head)[:count]
            for i, array in enumerate(arrays):
                columns = None if i else self.feature_names
                check_array(source, i, array, f"{self._name(i)} at", columns, first)
            yield first, arrays

    def check_source(self, source: Source) -> tuple[Array, ...]:
        """DataError unless a source has the inputs of the model; its arrays, without rows."""
        head, wanted = source.read(slice(0, 0)), len(self.signature.inputs)
        if len(head) < wanted:
            raise DataError(f"{source!r}: the model takes {wanted} inputs, got {len(head)}")
        try:
            for i, array in enumerate(head[:wanted]):
                self._check_rows(i, (len(source), *array.shape[1:]), array.dtype)
        except DataError as error:
            raise DataError(f"{source!r}: {error}") from None
        return head

    def scores(self, arrays: list[Array], first_row: int) -> Array:
        """What the module gives for prepared inputs, a bounded number of rows at a time; in the
        target's own unit.
        """
        count = len(arrays[0])
        parts = []
        with evaluating(self.module), default_dtype(self.config.dtype), np.errstate(all="ignore"):
            for first in range(0, max(count, 1), ROWS):
                rows = [from_numpy(array[first : first + ROWS]) for array in arrays]
                try:
                    parts.append(to_host(one_prediction(self.module(*rows))._array))
                except (RuntimeError, ValueError, IndexError, TypeError) as error:
                    if is_import_path(self.config.model.type):
                        raise  # the user's own code
                    raise DataError(
                        f"model {self.config.model.type} cannot take the data: {error}"
                    ) from error
        outputs = np.concatenate(parts)
        if len(outputs) != count:
            raise DataError(f"the model gave {len(outputs)} predictions for {count} rows")
        if self.classes is not None and outputs.shape[1:] != (len(self.classes),):
            raise DataError(
                f"the model gives rows of shape {outputs.shape[1:]}, expected a score for each of "
                f"its {len(self.classes)} classes; call it with Tensors for what it gives"
            )
        _require_finite(outputs, first_row)
        if self.target_scaling is not None:
            with np.errstate(over="ignore"):  # found below
                outputs = self.target_scaling.predictions(outputs).astype(outputs.dtype)
            _require_finite(outputs, first_row)
        return outputs

    @property
    def of_table(self) -> dict[str, Any]:
        """The arguments with which a table was read; none where the data were no table."""
        data = self.config.data
        return data.arguments if data.type in ("csv", "parquet") else {}

    @property
    def notation(self) -> Notation:
        """How the cells of that table were read."""
        return Notation.of(self.of_table)

    def take_columns(self, table: Frame, note: Note, kept: Iterable[str] = ()) -> list[Array]:
        """The inputs, made of columns found by their names.

        `note` is told of columns that are neither used nor `kept`.
        """
        if (encoder := self.encoder) is None:
            raise DataError(
                f"{table.origin}: the model was trained on arrays without column names; give "
                "arrays (in an .npz file), not named columns"
            )
        try:
            arrays = encoder.encode(table, note)
        except DataError as error:
            if "an empty cell" not in str(error):
                raise
            hint = "a column may have empty cells where `missing` of its training says so"
            raise DataError(f"{error}\nhint: {hint}") from None
        known = {*encoder.names, *encoder.ids, *(self.target_names or ()), *kept}
        known |= {*(self.of_table.get("drop") or ()), str(self.of_table.get("weight"))}
        if unused := [shortened(name) for name in table.names if name not in known]:
            note(f"columns that the model does not use: {listed(unused)}")
        return arrays

    def prepare(
        self, *inputs: Any, note: Note = warn_user, kept: Iterable[str] = ()
    ) -> list[Array]:
        """Raw inputs as the module wants them: by name, checked, standardized and cast."""
        wanted = self.signature.inputs
        if any(isinstance(value, str | os.PathLike) for value in inputs):
            raise DataError(
                "the input is a text, expected rows: `microtrain predict` reads files; here give "
                "their columns, such as a dict of lists"
            )
        if len(inputs) == 1 and (table := Frame.of(inputs[0], self.notation)) is not None:
            inputs = tuple(self.take_columns(table, note, kept))
        if len(inputs) != len(wanted):
            raise DataError(f"the model takes {len(wanted)} inputs, got {len(inputs)}")
        arrays = [self._prepare(i, value) for i, value in enumerate(inputs)]
        if len({len(array) for array in arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise DataError(f"the inputs have different numbers of rows: {shapes}")
        return arrays

    def _prepare(self, i: int, value: Any) -> Array:
        """Input `i` as the module wants it."""
        name = self._name(i)
        if callable(getattr(value, "detach", None)):
            value = value.detach().numpy()
        rows = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, np.ma.MaskedArray) for each in rows):
            raise DataError(f"{name} is {MASKED}")
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{name} is not an array of numbers: {error}") from error
        self._check_rows(i, array.shape, array.dtype)
        check_finite(array, f"{name},", None if i else self.feature_names)
        if i == 0:
            with np.errstate(over="ignore"):  # cast refuses what overflows
                array = self.preprocessing.apply(array)
        return np.ascontiguousarray(cast(array, self.signature.inputs[i].dtype, name))

    def _name(self, i: int) -> str:
        return "the input" if len(self.signature.inputs) == 1 else f"input {i}"

    def _check_rows(self, i: int, found: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """DataError unless an array of this shape and dtype can be input `i`."""
        name, shape = self._name(i), self.signature.inputs[i].shape
        if found[1:] != shape or not found:
            rows = ", ".join(("rows", *map(str, shape)))
            way_out = "; one row is written x[None]" if found == shape else ""
            if not way_out and self.of_table:
                way_out = "; give the columns of a table, such as a dict of lists"
            raise DataError(f"{name} has shape {found}, expected ({rows}){way_out}")
        whole = self.signature.inputs[i].dtype == "int64" and found[0] > 0  # [] is of floats
        if dtype.kind not in ("biu" if whole else "biuf"):
            expected = "whole numbers" if whole else "numbers"
            raise DataError(f"{name} is an array of {dtype}, expected {expected}")


def _require_finite(outputs: Array, first_row: int) -> None:
    """DataError that names the first row whose prediction is not finite."""
    if not np.isfinite(outputs).all():
        row = first_row + int(np.argwhere(~np.isfinite(outputs))[0][0])
        raise DataError(
            f"the prediction for row {row} is not a finite number\n"
            "hint: rows count from 0; are its inputs of the size the model was trained on?"
        )


def _module(saved: Saved, signature: Signature, model: object) -> Module:
    """The model with the values of its checkpoint, on the CPU, in evaluation mode.

    Random numbers of this process go on as if nothing had been built. DataError where the values do
    not fit.
    """
    config, checkpoint = saved.config, saved.checkpoint
    # A model may hold random values that are not parameters.
    with seeded(config.seed), default_dtype(config.dtype):
        module = build_model(config, signature) if model is None else model
        if not isinstance(module, Module):
            kind = type(module).__name__
            raise TypeError(f"model: expected a Module to take the values, got {kind}")
        module.to(config.dtype)
    try:
        load_model_arrays(module, checkpoint.model)
    except RuntimeError as error:
        raise DataError(f"{checkpoint.path} does not fit the model: {error}") from error
    return module.eval()
