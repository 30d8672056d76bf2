"""The rows that a model predicted worst, as people can read them: in their own units, or drawn."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import Prepared

__all__ = ["Given", "Mistakes", "column", "picture", "worst"]

Array = NDArray[Any]

_MOST = 12  # rows
_COLUMNS = 6  # of the input
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")  # scikit-learn's digits are such a table
_LARGEST = 96  # of the sides of a picture


@dataclass(frozen=True)
class Given:
    """Inputs as they were before any standardisation.

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

    @classmethod
    def of(cls, data: Prepared, inputs: Sequence[Array], names: Sequence[str] | None) -> Given:
        """Inputs of rows of these data."""
        x = inputs[0] * data.preprocessing.scale + data.preprocessing.mean
        return cls(x, names, data, inputs[-1])

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
                texts = _dates(part[:, 0])
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


def worst(badness: Array, told: Mapping[str, Sequence[str]], given: Given) -> Mistakes | None:
    """The rows of the highest `badness`; None where there is none above zero.

    Args:
        badness: of shape (n,); of rows that are right 0.
        told: columns of n texts each by name, which stand before the input.
        given: the input.
    """
    order = np.argsort(-badness, kind="stable")[:_MOST]
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
    """A column as texts: whole numbers where all are, up to what a standardisation has rounded."""
    values = values.astype(np.float64)
    close = 1e-6 * float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    if (np.abs(values - np.rint(values)) <= min(close, 1e-3)).all():
        return [f"{value:.0f}" for value in np.rint(values) + 0.0]
    return ["0" if abs(value) <= close else f"{value:.6g}" for value in values.tolist()]


def _dates(days: Array) -> list[str]:
    """Days since 1970-01-01 as dates, with a time where they have one."""
    if (np.abs(days - np.rint(days)) < 1e-3).all():
        return [str(day) for day in np.rint(days).astype("datetime64[D]")]
    return [str(minute) for minute in np.rint(days * 1440).astype("datetime64[m]")]


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
    """A data URI of grey (h, w) or colours (h, w, 3), black at `low` and white at `high`."""
    from PIL import Image  # which matplotlib brings

    shades = np.nan_to_num((pixels - low) / ((high - low) or 1.0) * 255).clip(0, 255)
    content = BytesIO()
    Image.fromarray(np.rint(shades).astype(np.uint8)).save(content, "png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
