"""The rows that a model predicted worst, as people can read them: in their own units, or drawn."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Mistakes", "column", "picture", "worst"]

Array = NDArray[Any]

_MOST = 12  # rows
_COLUMNS = 6  # of the input
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")  # scikit-learn's digits are such a table
_LARGEST = 96  # of the sides of a picture


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


def worst(
    badness: Array, told: Mapping[str, Sequence[str]], x: Array, names: Sequence[str] | None
) -> Mistakes | None:
    """The rows of the highest `badness`; None where there is none above zero.

    Args:
        badness: of shape (n,); of rows that are right 0.
        told: columns of n texts each by name, which stand before the input.
        x: the input before any standardisation, of shape (n, ...).
        names: of its columns.
    """
    order = np.argsort(-badness, kind="stable")[:_MOST]
    order = order[badness[order] > 0]
    if not len(order):
        return None
    rows = [[str(texts[i]) for texts in told.values()] for i in order]
    if (images := _images(x, names)) is not None:
        return Mistakes([], rows, [picture(images[i], images.min(), images.max()) for i in order])
    flat = x.reshape(len(x), -1)
    shown = range(min(_COLUMNS, flat.shape[1]))
    columns = [column(flat[:, j]) for j in shown]
    rows = [[*row, *(texts[i] for texts in columns)] for row, i in zip(rows, order, strict=True)]
    heads = [names[j] if names else f"x{j}" for j in shown]
    return Mistakes([*told, *heads], rows, [], flat.shape[1] - len(shown))


def column(values: Array) -> list[str]:
    """A column as texts: whole numbers where all are, up to what a standardisation has rounded."""
    values = values.astype(np.float64)
    close = 1e-6 * float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    if (np.abs(values - np.rint(values)) <= min(close, 1e-3)).all():
        return [f"{value:.0f}" for value in np.rint(values) + 0.0]
    return ["0" if abs(value) <= close else f"{value:.4g}" for value in values.tolist()]


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
    """A data URI of grey (h, w) or colours (h, w, 3), black at `low` and white at `high`.

    https://www.w3.org/TR/png-3/
    """
    shades = np.nan_to_num((pixels - low) / ((high - low) or 1.0) * 255).clip(0, 255)
    lines = np.rint(shades).astype(np.uint8)
    height, width = lines.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2 if lines.ndim == 3 else 0, 0, 0, 0)
    unfiltered = b"".join(b"\0" + line.tobytes() for line in lines)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(unfiltered)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
