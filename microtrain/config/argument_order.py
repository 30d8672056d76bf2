"""Functions of prediction and target that take them the other way round."""

from __future__ import annotations

import functools
import inspect
from typing import Any

# Names of a first parameter that say that a function wants the target before the prediction.
_TARGET = ("y_true", "true", "truth", "target", "targets", "labels")
# Names that say that a function wants rows, not options.
OF_ROWS = (*_TARGET, "prediction", "predictions", "pred", "y_pred", "output", "outputs")


def prediction_first(function: Any) -> Any:
    """A function of prediction and target of one that takes them the other way round, as those of
    scikit-learn and Keras do; others as they are.
    """
    first = next(iter(inspect.signature(function).parameters), "")
    if first not in _TARGET:
        return function

    @functools.wraps(function)
    def called(prediction: Any, target: Any, *weight: Any, **arguments: Any) -> Any:
        return function(target, prediction, *weight, **arguments)

    return called
