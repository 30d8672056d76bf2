"""Predictions beside the truth: rows that the model was not trained on, for people to look at.

The rows that it predicted worst are shown in their own units, or drawn.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import to_host
from ..common.words import number
from ..creation import from_numpy
from ..data import Prepared
from ..data.rows import apart
from ..runs.metrics import ClassCounts
from ..train.evaluation import evaluating
from ..train.metrics.classification import ClassMetric, log_odds
from ..train.models_and_losses import learned_line, one_prediction
from .chart import MOST_POINTS, Chart, Curve

Array = NDArray[Any]
Line = tuple[Sequence[float], float]  # weights, bias
Told = Mapping[str, Sequence[str]]  # columns of texts by name

ROWS = 2000
_CLASSES = 20  # of a confusion matrix that can be read
_WORST = 12  # rows
_COLUMNS = 6  # of the input of these
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")  # scikit-learn's digits are such a table
_LARGEST = 96  # of the sides of a picture


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
class Given:
    """Inputs as they were before any standardization.

    Attributes:
        x: of shape (n, ...), the first input.
        names: of its columns.
        data: how the columns of a table have become inputs.
        codes: those of embedded columns, of shape (n, columns).
    """

    x: Array
    names: Sequence[str] | None = None
    data: Prepared | None = None
    codes: Array | None = None

    def columns(self) -> Iterator[tuple[str, list[str]]]:
        """Each column and its texts; of a table the columns that it had."""
        if self.data is None or self.data.encoder is None:
            flat = self.x.reshape(len(self.x), -1)
            for j, values in enumerate(flat.T):
                yield self.names[j] if self.names else f"x{j}", column(values)
            return
        first, embedded = 0, 0
        for fitted in self.data.encoder.columns:
            width = len(fitted.feature_names)
            part, first = self.x[:, first : first + width], first + width
            if fitted.column.type == "category":
                if fitted.column.encode == "embedding" and self.codes is not None:
                    codes, embedded = self.codes[:, embedded], embedded + 1
                else:
                    hot = part[:, : len(fitted.categories)] > 0.5
                    codes = hot @ np.arange(1, hot.shape[1] + 1)
                texts = [("", *fitted.categories)[int(code)] for code in codes]
            elif fitted.column.type == "date":
                names = [name.removeprefix(f"{fitted.name} ") for name in fitted.feature_names]
                if fitted.column.parts and "days" not in names:
                    texts = [_parts(names, row) for row in part]
                else:
                    texts = _dates(part[:, names.index("days") if fitted.column.parts else 0])
            else:
                texts = column(part[:, 0])
            if fitted.column.indicator:
                empty = part[:, -1] > 0.5
                texts = ["" if e else text for text, e in zip(texts, empty, strict=True)]
            yield fitted.name, texts

    def __len__(self) -> int:
        """How many columns there are."""
        encoder = self.data and self.data.encoder
        return len(encoder.columns) if encoder else int(np.prod(self.x.shape[1:]))


@dataclass(frozen=True)
class Mistakes:
    """Rows, the worst first.

    Attributes:
        head: what the columns are; empty where rows are drawn.
        rows: a text for each column; of one that is drawn the truth, the prediction and how sure.
        pictures: of each row, as PNG in a data URI.
        left_out: how many columns of the input are not shown.
    """

    head: list[str]
    rows: list[list[str]]
    pictures: list[str]
    left_out: int = 0


@dataclass(frozen=True)
class Predictions:
    """What a model makes of the first rows of a part of the data.

    Attributes:
        rows: which rows they are, in words, and what predicted them.
        model: which values of the parameters did.
        fit: of a regression with one feature and one target.
        parity: of another regression.
        mistakes: the rows that are predicted worst.
    """

    rows: str
    model: str = ""
    fit: Chart | None = None
    parity: Chart | None = None
    mistakes: Mistakes | None = None


@np.errstate(all="ignore")  # what is not finite is shown as such
def predict_rows(
    model: Callable[..., Any], data: Prepared, device: Any = None, named: str = "", loss: str = ""
) -> Predictions | None:
    """Predict the first 2,000 rows of the test data (else validation, else training) on this
    process alone; None where that gives neither numbers beside numbers nor scores of classes.

    A module is put into evaluation mode meanwhile.

    Args:
        named: which model it is.
        loss: its name; that of `bce` is a score of one class against its absence.
    """
    parts = {"test": data.test, "validation": data.val, "training": data.train}
    part, dataset = next((name, rows) for name, rows in parts.items() if rows is not None)
    inputs, truth = apart(dataset, dataset.read(slice(ROWS)))
    with evaluating(model):
        tensors = [from_numpy(array) for array in inputs]
        moved = [t if device is None else t.to(device=device) for t in tensors]
        prediction = np.asarray(to_host(one_prediction(model(*moved))._array))
    x = inputs[0] * data.preprocessing.scale + data.preprocessing.mean
    given = Given(x, dataset.feature_names, data, inputs[-1])
    first = f"first {ROWS:,} of the " if len(dataset) > ROWS else ""
    rows = f"The {first}{len(dataset):,} {part} rows"
    rows += f" as predicted by the {named}" * bool(named)
    if truth.dtype.kind in "biu":
        if prediction.ndim != 2 or truth.shape != prediction.shape[:1]:
            return None
        classes = data.classes
        if classes is None or len(classes) != prediction.shape[1]:
            classes = tuple(str(code) for code in range(prediction.shape[1]))
        logits = loss == "cross_entropy"
        told = _wrong_classes(truth, prediction.argmax(axis=1), prediction, logits, classes)
        return Predictions(rows, named, mistakes=worst(*told, given))
    if truth.ndim != 2 or prediction.shape != truth.shape:
        return None
    if (scaling := data.target_scaling) is not None:
        truth, prediction = scaling.inverse(truth), scaling.predictions(prediction)
    values, target = (truth[:, 0], prediction[:, 0]), dataset.target_name or "target"
    if loss == "bce" and truth.shape[1] == 1 and np.isin(truth, (0, 1)).all():
        codes = (values[0].astype(np.int64), (values[1] > 0).astype(np.int64))
        told = _wrong_classes(*codes, prediction, True, ("0", "1"))
        return Predictions(rows, named, mistakes=worst(*told, given))
    if len(inputs) > 1 or data.in_features != 1 or truth.shape[1] != 1:
        if truth.shape[1] > 1:
            rows += f", the first of {truth.shape[1]} targets"
        far = worst(*_errors(*values), given)
        return Predictions(rows, named, parity=parity(*values, target), mistakes=far)
    names = (dataset.feature_names or ("x",))[0], target
    true = (dataset.truth["weights"], dataset.truth["bias"]) if dataset.truth else None
    chart = fit(x[:, 0], *values, names, learned_line(model, data), true)
    return Predictions(rows, named, fit=chart)


def _wrong_classes(
    truth: Array, guess: Array, scores: Array, are_logits: bool, classes: Sequence[str]
) -> tuple[Array, Told]:
    """How sure each wrong guess was, and what is told of the rows.

    Of class codes, those that were guessed, and the scores, perhaps logits of probabilities.
    """
    known = (truth >= 0) & (truth < len(classes))
    at = np.arange(len(guess)), guess
    if are_logits:  # ranked by what does not round to 1
        sure, chances = log_odds(scores)[at], ClassMetric().chances(scores)[at]
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
    rank = 1 + sure.argsort(kind="stable").argsort()
    return np.where(known & (guess != truth), rank, 0), told


def _errors(truth: Array, predicted: Array) -> tuple[Array, Told]:
    """The errors of a regression, and what is told of the rows."""
    error = np.abs(predicted - truth)
    told = {"truth": column(truth), "predicted": column(predicted), "error": column(error)}
    return np.where(np.isfinite(error), error, np.inf), told


def counted(counts: ClassCounts) -> Confusion:
    """What a run has counted of all rows of a part; rows of weights are sums of these."""
    matrix, support = np.array(counts.confusion), np.array(counts.support)
    right, total = matrix.diagonal(), support.sum().item()
    order = np.argsort(2 * right - support - matrix.sum(axis=0), kind="stable")
    shown = np.sort(order[:_CLASSES])
    return Confusion(
        classes=[counts.names[i] for i in shown],
        counts=matrix[shown][:, shown],
        right=right.sum().item(),
        wrong=total - right.sum().item(),
        total=len(counts.names),
        figures=[(*counts.figures[i], support[i].item()) for i in shown],
        means=tuple(np.mean(counts.figures, axis=0).tolist()),
        majority=(counts.names[int(support.argmax())], float(support.max() / (total or 1))),
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


# The rows that are predicted worst


def worst(badness: Array, told: Told, given: Given) -> Mistakes | None:
    """The rows of the highest `badness`; None where there is none above zero.

    Args:
        badness: of shape (n,); of rows that are right 0.
        told: columns of n texts each by name, which stand before the input.
        given: the input.
    """
    order = np.argsort(-badness, kind="stable")[:_WORST]
    order = order[badness[order] > 0]
    if not len(order):
        return None
    rows = [[str(texts[i]) for texts in told.values()] for i in order]
    if (images := _images(given.x, given.names)) is not None:
        return Mistakes([], rows, [picture(images[i], images.min(), images.max()) for i in order])
    columns = [*islice(given.columns(), _COLUMNS)]
    rows = [[*row, *(texts[i] for _, texts in columns)] for row, i in zip(rows, order, strict=True)]
    return Mistakes([*told, *(name for name, _ in columns)], rows, [], len(given) - len(columns))


def column(values: Array) -> list[str]:
    """A column as texts: whole numbers where all are, up to what a standardization has rounded."""
    values = values.astype(np.float64)
    close = 1e-6 * float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    if (np.abs(values - np.rint(values)) <= min(close, 1e-3)).all():
        return [f"{v:,.0f}" if abs(v) >= 1e4 else f"{v:.0f}" for v in np.rint(values) + 0.0]
    return ["0" if abs(value) <= close else _amount(value) for value in values.tolist()]


def _amount(value: float) -> str:
    """Six significant digits, and all of a whole part below 10^15: years have no separators."""
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def _dates(days: Array) -> list[str]:
    """Days since 1970-01-01 as dates, with a time where they have one."""
    if (np.abs(days - np.rint(days)) < 1e-3).all():
        return [str(day) for day in np.rint(days).astype("datetime64[D]")]
    return [str(minute) for minute in np.rint(days * 1440).astype("datetime64[m]")]


def _parts(names: Sequence[str], row: Array) -> str:
    """What is known of a date that is no input itself: `year=2024 month=2`."""
    pairs = [pair for pair in zip(names, row.tolist(), strict=True) if pair[0] != "missing"]
    return " ".join(n if "=" in n else f"{n}={value:.0f}" for n, value in pairs if value)


def _images(x: Array, names: Sequence[str] | None) -> Array | None:
    """Rows as images (n, height, width) or (n, height, width, 3), where that is what they are."""
    pixels = [_PIXEL.fullmatch(name) for name in names or ()]
    if x.ndim == 2 and pixels and all(pixels):
        places = np.array([(int(found[1]), int(found[2])) for found in pixels if found])
        drawn = np.zeros((len(x), *(places.max(axis=0) + 1)))
        drawn[:, places[:, 0], places[:, 1]] = x
    elif x.ndim == 3:
        drawn = x
    elif x.ndim == 4 and x.shape[1] in (1, 3):
        drawn = x[:, 0] if x.shape[1] == 1 else np.moveaxis(x, 1, -1)
    else:
        return None
    return drawn if 1 < min(drawn.shape[1:3]) <= max(drawn.shape[1:3]) <= _LARGEST else None


def picture(pixels: Array, low: float, high: float) -> str:
    """A data URI of gray (h, w) or colors (h, w, 3), black at `low` and white at `high`."""
    from PIL import Image  # which matplotlib brings

    shades = np.nan_to_num((pixels - low) / ((high - low) or 1.0) * 255).clip(0, 255)
    content = BytesIO()
    Image.fromarray(np.rint(shades).astype(np.uint8)).save(content, "png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
