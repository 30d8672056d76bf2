"""Predictions beside the truth: rows that the model was not trained on, for people to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import to_host
from ..creation import from_numpy
from ..data import Prepared
from ..data.rows import apart
from ..runs.run_info import ClassCounts
from ..train.components.models import learned_line
from ..train.evaluation import evaluating
from ..train.metrics.classification import ClassMetric, LogOdds
from ..train.model_outputs import one_prediction
from ..words import number
from .chart import MOST_POINTS, Chart, Curve
from .mistakes import Given, Mistakes, column, worst

__all__ = ["Confusion", "Predictions", "confusion", "counted", "fit", "parity", "predict_rows"]

Array = NDArray[Any]
Line = tuple[Sequence[float], float]  # weights, bias

ROWS = 2000
_CLASSES = 20  # of a confusion matrix that can be read


@dataclass(frozen=True)
class Confusion:
    """Rows by their class and the predicted one.

    Attributes:
        classes: the names, of 20 classes at most: those that are mistaken most.
        counts: rows of the truth, columns of the prediction, of shape (classes, classes).
        right, wrong: rows of all classes.
        total: the number of all classes.
        figures: precision, recall, F1 and support (how many rows) of each of `classes`; 0 where one
            is not defined, as in scikit-learn.
        means: precision, recall and F1, the mean over all classes.
        majority: the class of the most rows, and their share of all.
    """

    classes: list[str]
    counts: Array
    right: float
    wrong: float
    total: int
    figures: list[tuple[float, float, float, float]]
    means: tuple[float, ...]
    majority: tuple[str, float]


@dataclass(frozen=True)
class Predictions:
    """What a model makes of the first rows of a part of the data; one of the last three is there.

    Attributes:
        rows: which rows they are, in words, and what predicted them.
        model: which values of the parameters did.
        confusion: of a classification.
        fit: of a regression with one feature and one target.
        parity: of another regression.
        mistakes: the rows that are predicted worst.
    """

    rows: str
    model: str = ""
    confusion: Confusion | None = None
    fit: Chart | None = None
    parity: Chart | None = None
    mistakes: Mistakes | None = None


@np.errstate(all="ignore")  # what is not finite is shown as such
def predict_rows(
    model: Callable[..., Any], data: Prepared, device: Any = None, named: str = "", loss: str = ""
) -> Predictions | None:
    """Predict the first 2,000 rows of the validation data (else test, else training) on this
    process alone; None where that gives neither numbers beside numbers nor scores of classes.

    A module is put into evaluation mode meanwhile.

    Args:
        named: which model it is.
        loss: its name; that of `bce` is a score of one class against its absence.
    """
    parts = {"validation": data.val, "test": data.test, "training": data.train}
    part, dataset = next((name, rows) for name, rows in parts.items() if rows is not None)
    inputs, truth = apart(dataset, dataset.read(slice(ROWS)))
    with evaluating(model):
        tensors = [from_numpy(array) for array in inputs]
        moved = [t if device is None else t.to(device=device) for t in tensors]
        prediction = np.asarray(to_host(one_prediction(model(*moved))._array))
    given = Given.of(data, inputs, dataset.feature_names)
    first = f"first {ROWS:,} of the " if len(dataset) > ROWS else ""
    rows = f"The {first}{len(dataset):,} {part} rows"
    rows += f" as predicted by the {named}" * bool(named)
    if truth.dtype.kind in "biu":
        if prediction.ndim != 2 or truth.shape != prediction.shape[:1]:
            return None
        classes = data.classes
        if classes is None or len(classes) != prediction.shape[1]:
            classes = tuple(str(code) for code in range(prediction.shape[1]))
        guess, sure = prediction.argmax(axis=1), loss == "cross_entropy"
        return _classified((rows, named), truth, guess, prediction, sure, classes, given)
    if truth.ndim != 2 or prediction.shape != truth.shape:
        return None
    if loss == "bce" and truth.shape[1] == 1 and np.isin(truth, (0, 1)).all():
        truth, guess = truth[:, 0].astype(np.int64), (prediction[:, 0] > 0).astype(np.int64)
        return _classified((rows, named), truth, guess, prediction, True, ("0", "1"), given)
    values, target = (truth[:, 0], prediction[:, 0]), dataset.target_name or "target"
    if len(inputs) > 1 or data.in_features != 1 or truth.shape[1] != 1:
        if truth.shape[1] > 1:
            rows += f", the first of {truth.shape[1]} targets"
        far = _far(*values, given)
        return Predictions(rows, named, parity=parity(*values, target), mistakes=far)
    names = (dataset.feature_names or ("x",))[0], target
    x = given.x[:, 0]
    true = (dataset.truth["weights"], dataset.truth["bias"]) if dataset.truth else None
    chart = fit(x, *values, names, learned_line(model, data), true)
    return Predictions(rows, named, fit=chart)


def _classified(
    about: tuple[str, str],
    truth: Array,
    guess: Array,
    scores: Array,
    are_logits: bool,
    classes: Sequence[str],
    given: Given,
) -> Predictions:
    """Of class codes, those that were guessed, and the scores, perhaps logits of probabilities."""
    known = (truth >= 0) & (truth < len(classes))
    at = np.arange(len(guess)), guess
    if are_logits:  # ranked by what does not round to 1
        sure, chances = LogOdds(scores)[guess], ClassMetric().chances(scores)[at]
        kind, shown = "probability", [f"{chance:.0%}" for chance in chances]
    else:
        sure = scores[at]
        kind, shown = "score", [number(score) for score in sure]
    texts = (*classes, "")
    told = {
        "truth": [texts[code] for code in np.where(known, truth, -1).tolist()],
        "predicted": [texts[code] for code in guess.tolist()],
        kind: shown,
    }
    badness = np.where(known & (guess != truth), 1 + sure.argsort(kind="stable").argsort(), 0)
    mistakes = worst(badness, told, given)
    return Predictions(*about, confusion(truth, guess, classes), mistakes=mistakes)


def _far(truth: Array, predicted: Array, given: Given) -> Mistakes | None:
    """The rows of a regression with the largest errors."""
    error = np.abs(predicted - truth)
    told = {"truth": column(truth), "predicted": column(predicted), "error": column(error)}
    return worst(np.where(np.isfinite(error), error, np.inf), told, given)


def confusion(truth: Array, guess: Array, classes: Sequence[str]) -> Confusion:
    """Count class codes; a code of no class, which a loss may ignore, is left out."""
    known = (truth >= 0) & (truth < len(classes))
    truth, guess = truth[known].astype(np.int64), guess[known].astype(np.int64)
    codes = truth, guess, truth[truth == guess]
    support, named, right = (np.bincount(each, minlength=len(classes)) for each in codes)

    def pairs(shown: Array) -> Array:
        return np.array([[np.sum((truth == t) & (guess == g)) for g in shown] for t in shown])

    return _confusion(classes, support, named, right, pairs)


def counted(counts: ClassCounts) -> Confusion:
    """What a run has counted of all rows of a part; rows of weights are sums of these."""
    matrix = np.array(counts.confusion)
    support, named, right = np.array(counts.support), matrix.sum(axis=0), matrix.diagonal()
    return _confusion(counts.names, support, named, right, lambda shown: matrix[shown][:, shown])


def _confusion(
    classes: Sequence[str], support: Array, named: Array, right: Array, pairs: Callable[..., Array]
) -> Confusion:
    """Of the rows of each class, those predicted as it, and those that are both."""
    shown = np.sort(np.argsort(-(support + named - 2 * right), kind="stable")[:_CLASSES])
    parts = ((right, named), (right, support), (2 * right, support + named))
    figures = np.stack([above / np.where(below > 0, below, 1) for above, below in parts])
    total = support.sum().item()
    return Confusion(
        classes=[classes[i] for i in shown],
        counts=pairs(shown),
        right=right.sum().item(),
        wrong=total - right.sum().item(),
        total=len(classes),
        figures=[(*figures[:, i].tolist(), support[i].item()) for i in shown],
        means=tuple(figures.mean(axis=1).tolist()),
        majority=(classes[int(support.argmax())], float(support.max() / (total or 1))),
    )


def parity(truth: Array, predicted: Array, target: str) -> Chart:
    """What was predicted against the truth."""
    ends = np.array([truth.min(), truth.max()], np.float64)
    curves = [_dots("rows", truth, predicted), Curve("where they are equal", "plain", (ends, ends))]
    title = f"predicted {target} against the truth"
    return Chart(title, "truth", curves, y="predicted", linear=True, whole=False)


def fit(
    x: Array,
    truth: Array,
    predicted: Array,
    names: tuple[str, str] = ("x", "y"),
    learned: Line | None = None,
    true: Line | None = None,
) -> Chart:
    """Data of one feature and the model's line.

    Args:
        x, truth, predicted: of shape (n,).
        names: of the feature and the target.
        learned, true: the line of a linear model, and that which the data were made of.
    """
    order = np.argsort(x, kind="stable")
    line = (x[order].astype(np.float64), predicted[order].astype(np.float64))
    curves = [_dots("data", x, truth), Curve(_equation("predicted", learned), "val", line)]
    if true is not None:
        ends = np.array([x.min(), x.max()], np.float64)
        line = ends, true[0][0] * ends + true[1]
        curves.append(Curve(_equation("true", true), "plain", line))
    feature, target = names
    title = f"{target} against {feature}"
    return Chart(title, feature, curves, y=target, linear=True, whole=False)


def _dots(name: str, x: Array, y: Array) -> Curve:
    if len(x) > MOST_POINTS:
        name = f"{name} ({MOST_POINTS:,} of {len(x):,})"
    x, y = (values[:MOST_POINTS].astype(np.float64) for values in (x, y))
    return Curve(name, "train", (x, y), dots=True)


def _equation(name: str, line: Line | None) -> str:
    """A legend's text for a line: `predicted: y = 2.0012 x + 2.9981`."""
    if line is None:
        return name
    (weight, *_), bias = line
    return f"{name}: y = {weight:.5g} x {'-' if bias < 0 else '+'} {abs(bias):.5g}"
