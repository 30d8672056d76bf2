"""What `predict` does around a model, as operations on Tensors, for graphs and C to be made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import float64, int64
from ..creation import arange, from_numpy
from ..data.tables.table import Fitted
from ..inference.model import TrainedModel
from ..nn import Module
from ..nn.functional import softmax
from ..ops import cat, exp, expm1, isnan, log1p, maximum, minimum, sigmoid, where
from ..train.models_and_losses import one_prediction


class Predictor(Module):
    """The model of a run, from raw inputs to what `predict` gives, as Tensors.

    Args:
        columns: of a table whose raw rows, float64, are the input; none: what is given are arrays.
    """

    def __init__(self, model: TrainedModel, columns: Sequence[Fitted] = ()) -> None:
        super().__init__()
        self.module, self.model, self.columns = model.module, model, columns
        self.mean, self.scale = map(from_numpy, _affine(model.preprocessing))
        if (scaling := model.target_scaling) is not None:
            self.target_mean, self.target_scale = map(from_numpy, _affine(scaling.affine))
            if scaling.ends is not None:
                self.lowest, self.highest = map(from_numpy, map(np.atleast_1d, scaling.ends))

    def predict(self, *raw: Any) -> Any:
        """Predictions, of classes their numbers, and the probabilities where there are some."""
        model = self.model
        outputs = one_prediction(self.module(*self.inputs(raw)))
        if model.classes is not None:
            chances = [softmax(outputs.to(float64), 1)] * (model.link is not None)
            return outputs.argmax(1), *chances
        if model.link is not None:
            outputs = sigmoid(outputs)
        elif model.target_scaling is not None:
            outputs = self.in_own_unit(outputs)
        return outputs[:, 0] if outputs.shape[1:] == (1,) else outputs

    def forward(self, *raw: Any) -> Any:
        """Predictions, and of classes the probabilities, or else the scores.

        Numbers are NaN where `predict` refuses an input or a score that is not finite.
        """
        model, inputs = self.model, self.inputs(raw)
        outputs = one_prediction(self.module(*inputs))
        refused = sum((x - x).sum() for x in (*inputs, outputs) if x.is_floating_point())
        if model.classes is not None:
            scores = outputs.to(float64)
            second = softmax(scores, 1) if model.link == "softmax" else outputs
            return outputs.argmax(1), (second + refused).to(second.dtype)
        if model.link == "sigmoid":
            return sigmoid(outputs.to(float64)) + refused
        outputs = (outputs + refused).to(outputs.dtype)
        return outputs if model.target_scaling is None else self.in_own_unit(outputs)

    def inputs(self, raw: Sequence[Any]) -> list[Any]:
        """What the module is given for raw rows."""
        model, inputs = self.model, self._encoded(raw[0]) if self.columns else [*raw]
        if not model.preprocessing.is_identity:
            inputs[0] = (inputs[0].to(float64) - self.mean) / self.scale
        wanted = (one.dtype for one in model.signature.inputs)
        return [x.to(np.dtype(kind)) for x, kind in zip(inputs, wanted, strict=True)]

    def _encoded(self, row: Any) -> list[Any]:
        """As `Encoder.encode`; a category is its number from 1 on, 0 an unknown one."""
        inputs, codes = [], []
        for number, fitted in enumerate(self.columns):
            value = row[:, number : number + 1]
            column = fitted.column
            if column.missing is not None:
                empty = isnan(value)
                value = where(empty, float(fill_of(fitted)), value)
            if column.type == "category" and column.encode == "embedding":
                codes.append(value)
            elif column.type == "category":
                known = arange(1, 1 + len(fitted.categories), dtype=float64)
                inputs.append((value == known).to(float64))
            else:
                inputs.append(value)
            if column.indicator:
                inputs.append(empty.to(float64))
        arrays = [cat(inputs, 1)] if inputs else []
        return [*arrays, cat(codes, 1).to(int64)] if codes else arrays

    def target(self, own: Any) -> Any:
        """As `TargetScaling.apply`."""
        if (scaling := self.model.target_scaling) is None:
            return own
        return ((log1p(own) if scaling.log else own) - self.target_mean) / self.target_scale

    def in_own_unit(self, outputs: Any) -> Any:
        """As `TargetScaling.predictions`."""
        scaling: Any = self.model.target_scaling
        own = outputs.to(float64)
        if scaling.exp:
            own = exp(own)
        else:
            own = own * self.target_scale + self.target_mean
            own = expm1(own) if scaling.log else own
        if scaling.ends is not None:
            own = minimum(maximum(own, self.lowest), self.highest)
        return own.to(outputs.dtype)


def _affine(some: Any) -> tuple[Any, Any]:
    return np.array(some.mean, np.float64), np.array(some.scale, np.float64)


def fill_of(fitted: Fitted) -> float | int:
    """What stands for an empty cell: a number, or the number of a category."""
    if fitted.column.type == "category":
        return fitted._code[str(fitted.fill)]
    return 0.0 if fitted.fill is None else float(fitted.fill)
