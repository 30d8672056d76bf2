"""Predictions beside the truth: rows that the model was not trained on, for people to look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..autograd import no_grad
from ..backend import to_host
from ..creation import from_numpy
from ..data import Prepared
from ..train.learned_line import learned_line
from .chart import MOST_POINTS, Chart, Curve
from .curves import WORDS

__all__ = ["Confusion", "Samples", "confusion", "scatter", "take_samples", "two_classes"]

Array = NDArray[Any]

ROWS = 2000
SECONDS = 1.0  # no more than this for what is only looked at, after the first pass
_PASS = 250
_CLASSES = 20  # of a confusion matrix that can be read
_PARTS = WORDS | {"train": "training"}
Line = tuple[float, float]  # weight, bias


@dataclass(frozen=True)
class Samples:
    """The first rows of a part of the data, and what the model makes of them.

    Attributes:
        part: val, test or train.
        total: rows of that part.
        truth, prediction: as the loss sees them; class codes (n,) and scores (n, classes), or
            numbers of one shape (n, targets).
        classes: the names of the classes; None for regression.
        x: the only feature of a regression with one target, in the units of the file, (n,).
        feature, target: names of columns.
        model: which values of the parameters made the predictions.
        learned, true: the line of a linear model of `x`, and that which the data were made of.
    """

    part: str
    total: int
    truth: Array
    prediction: Array
    classes: tuple[str, ...] | None = None
    x: Array | None = None
    feature: str = "x"
    target: str = "target"
    model: str = ""
    learned: Line | None = None
    true: Line | None = None

    def __len__(self) -> int:
        return len(self.truth)

    def __str__(self) -> str:
        part = "" if len(self) == self.total else f"first {len(self):,} of the "
        by = f" as predicted by the {self.model}" if self.model else ""
        return f"The {part}{self.total:,} {_PARTS[self.part]} rows{by}"


def take_samples(
    model: Callable[..., Any], data: Prepared, device: Any = None, named: str = ""
) -> Samples | None:
    """Predict some rows of the validation data (else test, else training) on this process alone.

    At most 2,000 rows and about a second. None where the predictions are neither numbers beside
    numbers nor scores of classes. A module is put into evaluation mode meanwhile.
    """
    part, dataset = next(
        (name, rows)
        for name, rows in (("val", data.val), ("test", data.test), ("train", data.train))
        if rows is not None
    )
    outputs: list[Array] = []
    training = getattr(model, "training", False)
    if training:
        model.eval()  # type: ignore[attr-defined]
    began = time.perf_counter()
    try:
        with no_grad(), np.errstate(all="ignore"):
            for first in range(0, min(len(dataset), ROWS), _PASS):
                *inputs, _ = dataset[first : min(first + _PASS, ROWS)]
                tensors = [from_numpy(array) for array in inputs]
                moved = [t if device is None else t.to(device=device) for t in tensors]
                outputs.append(np.asarray(to_host(model(*moved)._array)))
                if time.perf_counter() - began > SECONDS:
                    break
    finally:
        if training:
            model.train()  # type: ignore[attr-defined]
    prediction = np.concatenate(outputs)
    features, truth = dataset.arrays[:-1], dataset.arrays[-1][: len(prediction)]
    samples = Samples(
        part, len(dataset), truth, prediction, target=dataset.target_name or "target", model=named
    )
    if truth.dtype.kind in "biu":
        if truth.ndim != 1 or prediction.ndim != 2 or len(prediction) != len(truth):
            return None
        classes = data.classes
        if classes is None or len(classes) != prediction.shape[1]:
            classes = tuple(str(code) for code in range(prediction.shape[1]))
        return replace(samples, classes=classes)
    if truth.ndim != 2 or prediction.shape != truth.shape:
        return None
    if len(features) != 1 or features[0].shape[1:] != (1,) or truth.shape[1] != 1:
        return samples
    preprocessing, known = data.preprocessing, dataset.truth
    learned = learned_line(model, data)
    return replace(
        samples,
        x=features[0][: len(prediction), 0] * preprocessing.scale[0] + preprocessing.mean[0],
        feature=(dataset.feature_names or ("x",))[0],
        learned=learned and (learned[0][0], learned[1]),
        true=(known["weights"][0], known["bias"]) if known else None,
    )


# Numbers ------------------------------------------------------------------------------------------


def scatter(samples: Samples) -> Chart:
    """Data and what was predicted, of one feature; else what was predicted against the truth."""
    truth, predicted = (v[:, 0].astype(np.float64) for v in (samples.truth, samples.prediction))
    few = min(len(truth), MOST_POINTS)
    some = "" if few == len(truth) else f" ({few:,} of {len(truth):,})"
    if samples.x is None:
        ends = np.array([truth.min(), truth.max()])
        curves = [
            Curve("rows" + some, "train", (truth[:few], predicted[:few]), dots=True),
            Curve("where they are equal", "plain", (ends, ends)),
        ]
        title = f"predicted {samples.target} against the truth"
        return Chart(title, "truth", curves, y="predicted", linear=True, whole=False)
    x, order = samples.x, np.argsort(samples.x, kind="stable")
    curves = [
        Curve("data" + some, "train", (x[:few], truth[:few]), dots=True),
        Curve(_equation("predicted", samples.learned), "val", (x[order], predicted[order])),
    ]
    if samples.true is not None:
        ends = np.array([x.min(), x.max()])
        weight, bias = samples.true
        curves.append(Curve(_equation("true", samples.true), "plain", (ends, weight * ends + bias)))
    title, name = f"{samples.target} against {samples.feature}", samples.feature
    return Chart(title, name, curves, y=samples.target, linear=True, whole=False)


def _equation(name: str, line: Line | None) -> str:
    """A legend's text for a line: `predicted: y = 2.0012 x + 2.9981`."""
    if line is None:
        return name
    weight, bias = line
    return f"{name}: y = {weight:.5g} x {'-' if bias < 0 else '+'} {abs(bias):.5g}"


# Classes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confusion:
    """Rows by their class and the predicted one.

    Attributes:
        classes: the names, of 20 classes at most: those that are mistaken most.
        counts: rows of the truth, columns of the prediction, of shape (classes, classes).
        right, wrong: rows of all classes.
        total: the number of all classes.
    """

    classes: list[str]
    counts: Array
    right: int
    wrong: int
    total: int


def confusion(samples: Samples) -> Confusion:
    """What was predicted of each class; `samples.classes` is not None."""
    names = samples.classes or ()
    truth, guess = samples.truth.astype(np.int64), samples.prediction.argmax(axis=1)
    known = (truth >= 0) & (truth < len(names))  # a loss may ignore rows, by a code of no class
    truth, guess = truth[known], guess[known]
    wrong = truth != guess
    mistakes = sum(np.bincount(codes[wrong], minlength=len(names)) for codes in (truth, guess))
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:_CLASSES])
    counts = np.array([[np.sum((truth == t) & (guess == g)) for g in shown] for t in shown])
    missed = int(wrong.sum())
    return Confusion([names[i] for i in shown], counts, len(truth) - missed, missed, len(names))


def two_classes(samples: Samples) -> Samples:
    """Scores of a class or its absence (the loss bce) as scores of two classes."""
    if samples.truth.shape[1:] != (1,) or not np.isin(samples.truth, (0, 1)).all():
        return samples
    scores = np.concatenate([np.zeros_like(samples.prediction), samples.prediction], axis=1)
    return replace(samples, truth=samples.truth[:, 0], prediction=scores, classes=("0", "1"))
