"""The losses that a configuration can name, and what a user-defined loss may return."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from ...autograd.graph import leaves_of
from ...config.schema import Config
from ...creation import tensor
from ...data import Prepared
from ...data.rows import targets
from ...errors import ConfigError, DataError
from ...nn import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, Module, MSELoss, NLLLoss
from ...ops.loss.losses import mean_loss
from ...ops.pointwise.elementwise import where
from ...tensor import TENSORS, Tensor
from ..metrics.base import takes_weight

Positive = Annotated[float, Gt(0)]


def one_loss(returned: Any) -> Any:
    """What a loss returned; of a sum and the count that it is to be divided by, their quotient."""
    if isinstance(returned, tuple) and len(returned) == 2 and type(returned[0]) in TENSORS:
        return mean_loss("the loss", *returned, None)
    return returned


def loss_of_rows(loss: Any, prediction: Any, target: Any, weight: Any = None) -> Any:
    """The loss of rows, one number; with weights of the rows, (n,), their weighted mean or sum.

    A loss of the library is `sum(w l) / sum(w)` or `sum(w l)`, the classes' own weights times those
    of the rows; a user-defined loss gets the weights as its third argument.
    """
    if weight is None:
        return one_loss(loss(prediction, target))
    if not _of_library(loss):
        return one_loss(loss(prediction, target, weight))
    each = copy.copy(loss)
    each.reduction = "none"
    losses = each(prediction, target)
    weight = weight.reshape(-1, *(1,) * (losses.ndim - 1)).expand(losses.shape)
    if loss.reduction == "sum":
        return (losses * weight).sum()
    divisor = weight
    if isinstance(loss, CrossEntropyLoss | NLLLoss):
        kept = target != loss.ignore_index
        of_class = 1.0 if loss.weight is None else loss.weight[where(kept, target, 0)]
        divisor = where(kept, weight * of_class, 0.0)
    return mean_loss("the weighted loss", (losses * weight).sum(), divisor.sum(), None)


def _of_library(loss: Any) -> bool:
    return type(loss).__module__ == MSELoss.__module__


def refuse_unweighted(loss: Any, name: str) -> None:
    """ConfigError for a loss that cannot weigh rows."""
    if _of_library(loss):
        if loss.reduction in ("mean", "sum"):
            return
        raise ConfigError(f"loss {name}: rows with weights have a mean or a sum")
    function = loss.forward if isinstance(loss, Module) else loss
    own = not (getattr(function, "__module__", None) or "").startswith("microtrain.")
    if not (own and takes_weight(function)):
        raise ConfigError(
            f"loss {name} cannot weigh rows, but the data have weights; let it take them: a third "
            "argument, weight, of shape (n,) and without a default, and return the sum and what it "
            "is divided by: return (losses * weight).sum(), weight.sum()"
        )


def refuse_uncounted(loss: Any, value: Tensor) -> None:
    """ConfigError for a mean over weighted rows of which nobody knows what it is divided by."""
    means: list[Any] = []
    if value._edge is not None:
        leaves_of((value._edge,), means)
    if not means:
        raise ConfigError(
            f"the loss {getattr(loss, '__name__', type(loss).__name__)} returned one number for "
            "rows with weights, whose mean over several ranks is unknown; let it return the sum "
            "and what it is divided by: return (losses * weight).sum(), weight.sum()"
        )


def balance(config: Config, data: Prepared) -> None:
    """Put numbers in the place of the word `balanced` in the loss of a configuration.

    They are counted in the training part alone, weights of rows included, and stay in the
    configuration: what reads the run later needs no training data.

    Raises DataError for a class without training rows.
    """
    arguments = config.loss.arguments
    key = {"cross_entropy": "class_weight", "bce": "pos_weight"}.get(config.loss.type, "")
    if arguments.get(key) != "balanced":
        return
    found, counted = None, _counted(data)
    if key == "class_weight" and data.classes is not None:
        (rows,) = counted
        _refuse_absent(key, rows, data.classes)
        found = rows.sum() / (len(rows) * rows)
    elif key == "pos_weight" and data.classes is None:
        yes, no = counted
        for name, counts in (("1", yes), ("0", no)):
            _refuse_absent(key, counts, [name] * len(counts))
        found = no / yes
    # Data that do not fit the loss are refused where the two are compared.
    arguments[key] = None if found is None else found.tolist()
    config.origins[f"loss.{key}"] = "balanced, from the training rows"


def _counted(data: Prepared) -> Any:
    """Training rows, by their weights: of each class; or of each target with 1, and with 0."""
    total: Any = 0
    for target, weights in targets(data.train):
        one = np.ones(len(target)) if weights is None else weights.astype(np.float64)
        if data.classes is not None:
            total = total + np.array([np.bincount(target, one, len(data.classes))])
        else:
            shares = target.reshape(len(target), -1).astype(np.float64)
            total = total + np.array([one @ shares, one @ (1 - shares)])
    return total


def _refuse_absent(key: str, counts: Any, names: Sequence[str]) -> None:
    for name, count in zip(names, counts, strict=True):
        if not count > 0:
            raise DataError(
                f"loss.{key}: balanced divides by the training rows of each class, and class "
                f"{name} has none; leave it out, or give the weights as a list"
            )


def _weights(values: float | Sequence[float] | None) -> Tensor | None:
    return None if values is None else tensor(values, dtype="float32")


def mse(reduction: Literal["mean", "sum"] = "mean") -> MSELoss:
    """The squared difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return MSELoss(reduction=reduction)


def mae(reduction: Literal["mean", "sum"] = "mean") -> L1Loss:
    """The absolute difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return L1Loss(reduction=reduction)


def huber(reduction: Literal["mean", "sum"] = "mean", delta: Positive = 1.0) -> HuberLoss:
    """The squared difference halved within `delta`, beyond it `delta` times the absolute one.

    Args:
        reduction: the mean over rows and targets, or their sum.
        delta: where the quadratic part ends.
    """
    return HuberLoss(reduction, delta)


def bce(
    reduction: Literal["mean", "sum"] = "mean",
    pos_weight: Positive | Literal["balanced"] | Sequence[Positive] | None = None,
) -> BCEWithLogitsLoss:
    """The binary cross entropy of scores with targets from 0.0 to 1.0, in one shape.

    The model gives scores: the sigmoid is part of the loss.

    Args:
        reduction: the mean over rows and targets, or their sum.
        pos_weight: a factor for the part of the targets that is 1, one for each target; `balanced`
            is the number of training rows with 0 for each with 1, so that both count alike.
    """
    if isinstance(pos_weight, str):
        raise ValueError("pos_weight: balanced is counted in the training rows of a run")
    return BCEWithLogitsLoss(reduction=reduction, pos_weight=_weights(pos_weight))


def cross_entropy(
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0,
    weight: Sequence[Annotated[float, Ge(0)]] | None = None,
    ignore_index: int = -100,
    class_weight: Literal["balanced"] | Sequence[Annotated[float, Ge(0)]] | None = None,
) -> CrossEntropyLoss:
    """The cross entropy of scores (n, classes) with class indices (n,), averaged or summed.

    Args:
        reduction: the mean over rows, or their sum.
        label_smoothing: the share of each target that is spread over all classes.
        weight: PyTorch's name of `class_weight`, for a list.
        ignore_index: a class index whose rows are ignored.
        class_weight: a factor for each class, in their order; `balanced` is rows / (classes * rows
            of the class), of the training part. The mean is divided by the sum of the weights of
            the rows, on all ranks together.
    """
    if isinstance(class_weight, str):
        raise ValueError("class_weight: balanced is counted in the training rows of a run")
    if weight is not None and class_weight is not None:
        raise ValueError("weight is the same as class_weight; leave one of them out")
    return CrossEntropyLoss(
        weight=_weights(weight if class_weight is None else class_weight),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
