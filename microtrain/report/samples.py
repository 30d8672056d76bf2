"""Predictions beside the truth: rows that the model was not trained on, for people to look at."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..autograd import no_grad
from ..backend import to_host
from ..creation import from_numpy
from ..data import Prepared, Preprocessing

__all__ = ["Samples", "take_samples"]

Array = NDArray[Any]

ROWS = 2000
SECONDS = 1.0  # no more than this for what is only looked at, after the first pass
_PASS = 250
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")


@dataclass(frozen=True)
class Samples:
    """The first rows of a part of the data, and what the model makes of them.

    Attributes:
        part: val, test or train.
        total: rows of that part.
        inputs: of the first input, in the units of the file; (n, features) or of any shape.
        truth, prediction: as the loss sees them; class codes (n,) and scores (n, classes), or
            numbers of one shape (n, targets).
        classes: the names of the classes; None for regression.
        features, target: names of columns, as far as there are any.
        picture: height and width where a row is a picture.
        model: which values of the parameters made the predictions.
    """

    part: str
    total: int
    inputs: Array
    truth: Array
    prediction: Array
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None
    target: str
    picture: tuple[int, int] | None
    model: str = ""

    def __len__(self) -> int:
        return len(self.truth)


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
    found: list[Array] = []
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
                found.append(np.asarray(to_host(model(*moved)._array)))
                if time.perf_counter() - began > SECONDS:
                    break
    finally:
        if training:
            model.train()  # type: ignore[attr-defined]
    prediction = np.concatenate(found)
    x, truth = (array[: len(prediction)] for array in (dataset.arrays[0], dataset.arrays[-1]))
    classes = data.classes
    if truth.dtype.kind in "biu":
        if truth.ndim != 1 or prediction.ndim != 2 or len(prediction) != len(truth):
            return None
        if classes is None or len(classes) != prediction.shape[1]:
            classes = tuple(str(code) for code in range(prediction.shape[1]))
    elif truth.ndim != 2 or prediction.shape != truth.shape:
        return None
    if x.shape[1:] == data.preprocessing.mean.shape and x.dtype.kind == "f":
        x = _in_units_of_the_file(x, data.preprocessing)
    return Samples(
        part,
        len(dataset),
        x,
        truth,
        prediction,
        classes if truth.dtype.kind in "biu" else None,
        dataset.feature_names,
        dataset.target_name or "target",
        _picture(x, dataset.feature_names),
        named,
    )


def _in_units_of_the_file(x: Array, preprocessing: Preprocessing) -> Array:
    """The standardisation undone, to as many bits as the rounding of `x` left: 3, not 2.9999998."""
    mean, scale = preprocessing.mean, preprocessing.scale
    largest = np.abs(mean) + scale * np.abs(x).max(axis=0, initial=0.0)
    coarse = np.maximum(4 * float(np.finfo(x.dtype).eps) * largest, np.finfo(np.float64).tiny)
    step = 2.0 ** np.ceil(np.log2(coarse))
    raw: Array = np.round((x * scale + mean) / step) * step + 0.0  # + 0.0: no -0
    return raw


def _picture(x: Array, names: Sequence[str] | None) -> tuple[int, int] | None:
    """Height and width, of an array of pictures or of columns named pixel_ROW_COLUMN."""
    if x.ndim == 3 or (x.ndim == 4 and x.shape[1] in (1, 3)):
        return int(x.shape[-2]), int(x.shape[-1])
    matches = [_PIXEL.fullmatch(name) for name in names or ()]
    places = [(int(match[1]), int(match[2])) for match in matches if match]
    if not places or len(places) < len(matches):
        return None
    height, width = (max(column) + 1 for column in zip(*places, strict=True))
    in_order = places == [(row, column) for row in range(height) for column in range(width)]
    return (height, width) if in_order else None
