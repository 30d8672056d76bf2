"""What `predict` does around a model, as operations on Tensors, for graphs and C to be made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import float64
from ..creation import from_numpy
from ..inference.model import TrainedModel
from ..nn import Module
from ..nn.functional import softmax
from ..ops import exp, expm1, log1p, maximum, minimum, sigmoid
from ..train.models_and_losses import one_prediction


class Predictor(Module):
    """The model of a run, from raw inputs to what `predict` gives, as Tensors."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.module, self.model = model.module, model
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

    def inputs(self, raw: Sequence[Any]) -> list[Any]:
        """What the module is given for raw rows."""
        model, inputs = self.model, [*raw]
        if not model.preprocessing.is_identity:
            inputs[0] = (inputs[0].to(float64) - self.mean) / self.scale
        wanted = (one.dtype for one in model.signature.inputs)
        return [x.to(np.dtype(kind)) for x, kind in zip(inputs, wanted, strict=True)]

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
