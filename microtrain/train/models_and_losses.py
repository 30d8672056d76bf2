"""The models and losses that a configuration can name, and what your own may return.

A model returns a Tensor, or a tuple, list or dict of what a model returns. Sizes that a
configuration leaves out come from the data.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from .. import nn
from ..autograd.graph import MEANS, walk
from ..backend import to_host
from ..common.words import number, plural, table
from ..config.schema import Config
from ..creation import tensor
from ..data import Prepared
from ..data.rows import Preprocessing, TargetScaling, known_of_target, layout, targets
from ..data.source import Source, blocks
from ..errors import ConfigError, DataError, noun_of
from ..ops import cat
from ..ops.loss.losses import mean_loss
from ..ops.pointwise.elementwise import where
from ..tensor import TENSORS, Tensor

Count = Annotated[int, Ge(1)]
# Losses whose prediction is a number in the unit of the target.
OF_UNITS = (nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss)
OF_NUMBERS = (*OF_UNITS, nn.PoissonNLLLoss)
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def linear_regression(in_features: Count, out_features: Count = 1, bias: bool = True) -> nn.Linear:
    """`y = x @ weight.T + bias`: (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        out_features: columns of the output.
        bias: whether to add a bias; without it the line goes through 0.
    """
    return nn.Linear(in_features, out_features, bias)


def logistic_regression(in_features: Count, classes: Count) -> nn.Linear:
    """One linear score a class, for `loss: cross_entropy`: (n, in_features) to (n, classes).

    Args:
        in_features: columns of the input.
        classes: number of classes.
    """
    return nn.Linear(in_features, classes)


def mlp(
    in_features: Annotated[int, Ge(0)],
    hidden: list[Count],
    out_features: Count,
    activation: Literal["relu", "tanh", "sigmoid"] = "relu",
    categories: list[Count] | None = None,
    embedding: Count | None = None,
) -> nn.Sequential | WithEmbeddings:
    """Linear layers with an activation between: (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        hidden: the width of each hidden layer, such as [64, 64].
        out_features: columns of the output, the number of classes in a classification.
        activation: between the layers.
        categories: the codes of each column of a table that is encoded as an embedding; null: none.
        embedding: numbers that stand for one such category; null: half as many as there are
            categories, at most 50.
    """
    if categories:
        widths = [embedding or min(50, (count + 1) // 2) for count in categories]
        return WithEmbeddings(
            categories, widths, mlp(in_features + sum(widths), hidden, out_features, activation)
        )
    widths = [in_features, *hidden, out_features]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class WithEmbeddings(nn.Module):
    """Numbers of shape (n, features), if any, and codes (n, columns): the columns are looked up.

    Code 0, an unknown category, stays at zeros.

    Args:
        categories: the codes of each column.
        widths: numbers that a code of each column becomes.
        network: takes the numbers and all of these, side by side.
    """

    def __init__(self, categories: list[int], widths: list[int], network: nn.Module) -> None:
        super().__init__()
        pairs = zip(categories, widths, strict=True)
        self.embeddings = nn.ModuleList([nn.Embedding(*pair, padding_idx=0) for pair in pairs])
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        """Numbers and codes to (n, out_features)."""
        *numbers, codes = inputs
        looked_up = [table(codes[:, i]) for i, table in enumerate(self.embeddings)]
        return self.network(cat([*numbers, *looked_up], 1))


# The network of PyTorch's tutorial.
class TwoLayerReLU(nn.Module):
    """`relu(x @ w1) @ w2` with weights from N(0, 1): (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        hidden: width of the hidden layer.
        out_features: columns of the output.
    """

    def __init__(self, in_features: Count, hidden: Count, out_features: Count) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_features, hidden, False)
        self.linear2 = nn.Linear(hidden, out_features, False)
        nn.init.normal_(self.linear1.weight)
        nn.init.normal_(self.linear2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_features) to (n, out_features)."""
        return self.linear2(self.linear1(x).relu())


def learned_line(model: Any, data: Prepared) -> tuple[list[float], float] | None:
    """Weights and bias of a linear model with one output, in the units of the data; else None, as
    for one of a target's logarithm.
    """
    scaling = data.target_scaling
    if not isinstance(model, nn.Linear) or model.out_features != 1:
        return None
    if scaling is not None and (scaling.log or scaling.exp):
        return None
    mean, scale = data.preprocessing.mean, data.preprocessing.scale
    weight = to_host(model.weight._array).astype(np.float64)[0] / scale
    bias = 0.0 if model.bias is None else float(to_host(model.bias._array)[0])
    bias -= float((weight * mean).sum())
    if scaling is not None:
        unit, zero = scaling.affine.scale.item(), scaling.affine.mean.item()
        weight, bias = weight * unit, bias * unit + zero
    return weight.tolist(), bias


def truth_beside(module: nn.Module, data: Prepared, which: str) -> list[str]:
    """Learned weights beside the true ones, where there are such; `which` says of which model."""
    line, truth = learned_line(module, data), data.train.truth
    if line is None or truth is None or len(truth.get("weights", ())) != len(line[0]):
        return []
    names = data.train.feature_names or [f"x{i}" for i in range(len(line[0]))]
    heading, *lines = truth_lines(*line, truth, names)
    return ["", f"{heading}  ({which})", *lines]


def truth_lines(
    weights: Sequence[float], bias: float, truth: Mapping[str, Any], names: Sequence[str]
) -> list[str]:
    """A table of learned weights and bias beside the true ones.

    Args:
        weights, names: one a feature; the first ten are shown, the rest is summed up in one line.
        truth: `{"weights": [2.0], "bias": 3.0}`, as ArrayDataset.truth has it.
    """
    entries = [*zip(names, weights, truth["weights"], strict=True)]
    rows = [["weight", f"{'learned':>11}", f"{'truth':>11}", f"{'difference':>11}"]]
    for name, learned, true in [*entries[:10], ("bias", bias, truth.get("bias", 0.0))]:
        rows.append([name, *(f"{number(x):>11}" for x in (learned, true, learned - true))])
    lines = table(rows)
    if rest := entries[10:]:
        worst = max(abs(learned - true) for _, learned, true in rest)
        many = plural(len(rest), "more weight")
        lines.append(f"{many}, the largest difference is {number(worst)}")
    return lines


Positive = Annotated[float, Gt(0)]


def mse(reduction: Literal["mean", "sum"] = "mean") -> nn.MSELoss:
    """The squared difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return nn.MSELoss(reduction=reduction)


def mae(reduction: Literal["mean", "sum"] = "mean") -> nn.L1Loss:
    """The absolute difference of prediction and target in one shape, averaged or summed.

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return nn.L1Loss(reduction=reduction)


def huber(reduction: Literal["mean", "sum"] = "mean", delta: Positive = 1.0) -> nn.HuberLoss:
    """The squared difference halved within `delta`, beyond it `delta` times the absolute one.

    Args:
        reduction: the mean over rows and targets, or their sum.
        delta: where the quadratic part ends.
    """
    return nn.HuberLoss(reduction, delta)


def poisson(reduction: Literal["mean", "sum"] = "mean") -> nn.PoissonNLLLoss:
    """The negative log-likelihood of counts, whose mean the model gives the logarithm of.

    Targets are at least 0. Metrics and predictions are of the mean itself, exp(output).

    Args:
        reduction: the mean over rows and targets, or their sum.
    """
    return nn.PoissonNLLLoss(reduction=reduction)


def predicting_counts(data: Prepared, loss: Any) -> Prepared:
    """`data` whose predictions are exp(output), where the loss takes logarithms of counts."""
    scaling = data.target_scaling
    is_of_logs = isinstance(loss, nn.PoissonNLLLoss) and loss.log_input and data.classes is None
    if not is_of_logs or (scaling and (scaling.log or not scaling.affine.is_identity)):
        return data
    scaling = scaling or TargetScaling(Preprocessing.identity(layout(data.train)[1]))
    return replace(data, target_scaling=replace(scaling, exp=True))


def negative_count(rows: Source, loss: Any) -> str:
    """Where the first target below 0 is, with a loss of counts, and what it is; empty without."""
    if not isinstance(loss, nn.PoissonNLLLoss) or known_of_target(rows).low >= 0:
        return ""
    at = len(layout(rows)[0])
    for first, arrays in blocks(rows):
        for row, *rest in np.argwhere(arrays[at] < 0)[:1].tolist():
            return f"target at {rows.location_in(at, first + row)} is {arrays[at][(row, *rest)]:g}"
    return ""


def bce(
    reduction: Literal["mean", "sum"] = "mean",
    pos_weight: Positive | Literal["balanced"] | Sequence[Positive] | None = None,
) -> nn.BCEWithLogitsLoss:
    """The binary cross entropy of scores with targets from 0.0 to 1.0, in one shape.

    The model gives scores: the sigmoid is part of the loss.

    Args:
        reduction: the mean over rows and targets, or their sum.
        pos_weight: a factor for the part of the targets that is 1, one for each target; `balanced`
            is the number of training rows with 0 for each with 1, so that both count alike.
    """
    if isinstance(pos_weight, str):
        raise ValueError("pos_weight: balanced is counted in the training rows of a run")
    return nn.BCEWithLogitsLoss(reduction=reduction, pos_weight=_weights(pos_weight))


def cross_entropy(
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0,
    weight: Sequence[Annotated[float, Ge(0)]] | None = None,
    ignore_index: int = -100,
    class_weight: Literal["balanced"] | Sequence[Annotated[float, Ge(0)]] | None = None,
) -> nn.CrossEntropyLoss:
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
    return nn.CrossEntropyLoss(
        weight=_weights(weight if class_weight is None else class_weight),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _weights(values: float | Sequence[float] | None) -> Tensor | None:
    return None if values is None else tensor(values, dtype="float64")  # `build_loss` rounds it


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
    of_classes, found = data.classes is not None, None
    if of_classes == (key == "class_weight"):  # else they are refused where they are compared
        counts = _counted(data)
        for name, rows in zip(data.classes or ("1", "0"), counts, strict=True):
            if not np.all(rows > 0):
                raise DataError(
                    f"loss.{key}: balanced divides by the training rows of each class, and class "
                    f"{name} has none; leave it out, or give the weights as a list"
                )
        shares = counts.sum() / (len(counts) * counts) if of_classes else counts[1] / counts[0]
        found = shares.tolist()
    arguments[key] = found
    config.origins[f"loss.{key}"] = "balanced, from the training rows"


def _counted(data: Prepared) -> Any:
    """Training rows, by their weights: of each class; or with 1, and with 0, of each target."""
    total: Any = 0
    for target, weights in targets(data.train):
        one = np.ones(len(target)) if weights is None else weights.astype(np.float64)
        if data.classes is not None:
            total = total + np.bincount(target, one, len(data.classes))
        else:
            shares = target.reshape(len(target), -1).astype(np.float64)
            total = total + np.array([one @ shares, one @ (1 - shares)])
    return total


def mapped(function: Callable[[Any], Any], outputs: Any) -> Any:
    """`function` of each Tensor (or array) in `outputs`, in the same tuples, lists and dicts."""
    if isinstance(outputs, dict):
        return {key: mapped(function, each) for key, each in outputs.items()}
    if not isinstance(outputs, tuple | list):
        return function(outputs)
    made = [mapped(function, each) for each in outputs]
    return type(outputs)(*made) if hasattr(outputs, "_fields") else type(outputs)(made)


def leaves(outputs: Any) -> list[Any]:
    """The Tensors (or arrays) in `outputs`, in order."""
    found: list[Any] = []
    mapped(found.append, outputs)
    return found


def joined(join: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
    """One of `parts` with `join` of all of theirs in the place of each leaf."""
    each = iter([join(column) for column in zip(*map(leaves, parts), strict=True)])
    return mapped(lambda _: next(each), parts[0])


def one_prediction(outputs: Any) -> Any:
    """`outputs` if it is one Tensor; ConfigError for several, of which none is the prediction."""
    if type(outputs) not in TENSORS:
        raise ConfigError(
            f"the model returns {described(outputs)}, of which none is known to be the prediction; "
            "in Python, what microtrain.load gives can be called with Tensors and returns them all"
        )
    return outputs


def described(outputs: Any) -> str:
    """What it is, for messages: `a tuple of a Tensor (2, 10) of float32, NoneType`."""
    if isinstance(outputs, dict):
        return f"a dict of {', '.join(f'{k}: {described(v)}' for k, v in outputs.items())}"
    if isinstance(outputs, tuple | list):
        return f"a {type(outputs).__name__} of {', '.join(map(described, outputs)) or 'nothing'}"
    kind = type(outputs)
    if kind in TENSORS or hasattr(outputs, "dtype"):
        array = outputs._array if kind in TENSORS else outputs
        noun = "a Tensor" if kind in TENSORS else "an array"
        return f"{noun} {tuple(array.shape)} of {array.dtype}"
    return repr(outputs) if kind in (int, float, str, bool, type(None)) else noun_of(outputs)


def takes_weight(function: Any) -> bool:
    """Whether the third argument of a loss or of a metric's method is `weight`."""
    try:
        third = [*inspect.signature(function).parameters.values()][2:3]
    except (TypeError, ValueError):  # some built-in callables
        return False
    # Beside what a configuration gives by its name: `functools.partial(f, weight=0.5)`.
    return [p.name for p in third if p.kind is p.POSITIONAL_OR_KEYWORD] == ["weight"]


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
    if not of_library(loss):
        return one_loss(loss(prediction, target, weight))
    each = copy.copy(loss)
    each.reduction = "none"
    losses = each(prediction, target)
    of_classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if loss.reduction == "mean" and not of_classes and losses.numel() > len(losses):
        losses = losses.flatten(1).mean(1)  # of its targets: a row counts by its weight, once
    weight = weight.reshape(-1, *(1,) * (losses.ndim - 1)).expand(losses.shape)
    if loss.reduction == "sum":
        return (losses * weight).sum()
    divisor = weight
    if of_classes:
        kept = target != loss.ignore_index
        of_class = 1.0 if loss.weight is None else loss.weight[where(kept, target, 0)]
        divisor = where(kept, weight * of_class, 0.0)
    return mean_loss("the weighted loss", (losses * weight).sum(), divisor.sum(), None)


def of_library(loss: Any) -> bool:
    """Whether it is one of `microtrain.nn`."""
    return type(loss).__module__ == nn.MSELoss.__module__


def in_unit(loss: Any) -> bool:
    """Whether a loss of the library, a module or a function, is of predictions in the unit of the
    target; True of those that are not its own.
    """
    function: Any = inspect.unwrap(loss)  # of one with arguments
    name = getattr(function, "__name__", "")
    if getattr(nn.functional, name, None) is function:
        return name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")
    return isinstance(loss, OF_UNITS) or not of_library(loss)


def refuse_unweighted(loss: Any, name: str) -> None:
    """ConfigError for a loss that cannot weigh rows."""
    if of_library(loss):
        if loss.reduction in ("mean", "sum"):
            return
        raise ConfigError(f"loss {name}: rows with weights have a mean or a sum")
    function = loss.forward if isinstance(loss, nn.Module) else loss
    own = not (getattr(function, "__module__", None) or "").startswith("microtrain.")
    if not (own and takes_weight(function)):
        raise ConfigError(
            f"loss {name} cannot weigh rows, but the data have weights; let it take them: a third "
            "argument, weight, of shape (n,) and without a default, and return the sum and what it "
            "is divided by: return (losses * weight).sum(), weight.sum()"
        )


def refuse_uncounted(loss: Any, value: Tensor) -> None:
    """ConfigError for a mean over weighted rows of which nobody knows what it is divided by."""
    if not any(getattr(node, "_op", None) in MEANS for node in walk([value._edge])):
        raise ConfigError(
            f"the loss {getattr(loss, '__name__', type(loss).__name__)} returned one number for "
            "rows with weights, whose mean over several ranks is unknown; let it return the sum "
            "and what it is divided by: return (losses * weight).sum(), weight.sum()"
        )
