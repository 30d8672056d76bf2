"""The part of a report that shows predictions: a confusion matrix, small pictures, rows, a line."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..words import number, plural
from .chart import Chart, Curve
from .samples import Samples

if TYPE_CHECKING:
    from ..runs.record import Record

__all__ = ["png", "samples_html"]

Array = NDArray[Any]

_CLASSES = 20  # the largest confusion matrix
_PICTURES = 24
_ROWS = 10
_COLUMNS = 4  # features in a table
_DOTS = 500
_PIXELS = 64
_WORDS = {"train": "training", "val": "validation", "test": "test"}


@np.errstate(all="ignore")  # what is not finite is shown as such
def samples_html(record: Record, samples: Samples) -> tuple[str, list[Chart]]:
    """What to show of the samples, and the charts among it in their order."""
    samples = _two_classes(record, samples)
    part = "" if len(samples) == samples.total else f"first {len(samples):,} of the "
    note = f'<p class="note">The {part}{samples.total:,} {_WORDS[samples.part]} rows'
    note += f" as predicted by the {escape(samples.model)}" if samples.model else ""
    if samples.classes is not None:
        return _classification(samples, samples.classes, note), []
    charts = [_fit(samples) if samples.inputs.shape[1:] == (1,) else _parity(samples)]
    targets = samples.truth.shape[1]
    first = f", the first of {targets} targets" if targets > 1 else ""
    inside = f'{charts[0].html()}<div class="card scroll">{_number_rows(samples)}</div>'
    return f'{note}{first}.</p><div class="grid-2">{inside}</div>', charts


# Classes ----------------------------------------------------------------------------------------


def _two_classes(record: Record, samples: Samples) -> Samples:
    """Scores of one class or its absence (the loss bce) as scores of two classes."""
    loss = record.config.get("loss.type")
    if samples.classes is not None or loss is None or loss.value != "bce":
        return samples
    if samples.truth.shape[1] != 1 or not np.isin(samples.truth, (0, 1)).all():
        return samples
    scores = np.concatenate([np.zeros_like(samples.prediction), samples.prediction], axis=1)
    truth = samples.truth[:, 0].astype(np.int64)
    return replace(samples, truth=truth, prediction=scores, classes=("0", "1"))


def _classification(samples: Samples, classes: Sequence[str], note: str) -> str:
    truth, guess = samples.truth.astype(np.int64), samples.prediction.argmax(axis=1)
    right = truth == guess
    share = f": {right.mean():.1%} are right, {plural(int((~right).sum()), 'row')} wrong.</p>"
    pairs = Counter(zip(truth.tolist(), guess.tolist(), strict=True))
    if len(classes) <= _CLASSES:
        first = _matrix(pairs, classes)
    else:
        wrong = [(pair, n) for pair, n in pairs.most_common() if pair[0] != pair[1]][:_ROWS]
        first = _rows(
            ("truth", "predicted", "rows"),
            [(classes[t], classes[g], f"{n:,}") for (t, g), n in wrong],
        )
    order = [*np.flatnonzero(~right)[: _PICTURES // 2], *np.flatnonzero(right)]
    sure = _confidence(samples.prediction)
    if samples.picture is not None:
        second = _pictures(samples, classes, order[:_PICTURES], guess, sure)
    else:
        heading, cells = _features(samples)
        second = _rows(
            ("truth", "predicted", "sure", *heading),
            [
                (classes[truth[i]], classes[guess[i]], f"{sure[i]:.0%}", *cells(i))
                for i in order[:_ROWS]
            ],
        )
    return (
        f'{note}{share}<div class="grid-2"><div class="card scroll">{first}</div>'
        f'<div class="card scroll">{second}</div></div>'
    )


def _confidence(scores: Array) -> Array:
    """The softmax of each row's highest score."""
    exps = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    sure: Array = np.nan_to_num(1.0 / exps.sum(axis=1))
    return sure


def _matrix(pairs: Counter[tuple[int, int]], classes: Sequence[str]) -> str:
    names = [escape(name if len(name) <= 14 else f"{name[:12]} ...") for name in classes]
    lines = []
    for t, name in enumerate(names):
        row = [pairs[t, g] for g in range(len(names))]
        total = max(sum(row), 1)
        cells = []
        for g, n in enumerate(row):
            title = f"{plural(n, 'row')} of {name} predicted as {names[g]}"
            kind = ("some" + " right" * (g == t) + " full" * (n > 0.6 * total)) if n else ""
            shade = f' style="--share:{n / total:.3f}"' if n else ""
            cells.append(f'<td class="{kind}"{shade} title="{title}">{n if n else ""}</td>')
        lines.append(f"<tr><th>{name}</th>{''.join(cells)}</tr>")
    heading = "".join(f"<th>{name}</th>" for name in names)
    return (
        '<p class="note">Rows are the truth, columns what was predicted.</p><table class="matrix">'
        f"<thead><tr><th></th>{heading}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _pictures(
    samples: Samples, classes: Sequence[str], order: Sequence[Any], guess: Array, sure: Array
) -> str:
    height, width = samples.picture or (1, 1)
    low, high = float(samples.inputs.min()), float(samples.inputs.max())
    inside = []
    for i in order:
        pixels = samples.inputs[i].reshape(-1, height, width).astype(np.float64)
        cut = -(-max(height, width) // _PIXELS)
        shades = (pixels[:, ::cut, ::cut] - low) / ((high - low) or 1.0) * 255
        data = base64.b64encode(png(np.nan_to_num(shades).astype(np.uint8))).decode()
        truth, found = classes[int(samples.truth[i])], classes[int(guess[i])]
        wrong = truth != found
        words = f"<b>{escape(found)}</b>, not {escape(truth)}" if wrong else escape(found)
        inside.append(
            f'<div class="{"wrong" if wrong else "right"}">'
            f'<img alt="a row of class {escape(truth)}" src="data:image/png;base64,{data}">'
            f'{words}<br><span class="soft">{sure[i]:.0%}</span></div>'
        )
    return (
        '<p class="note">What was predicted and how sure the model was, mistakes first.</p>'
        f'<div class="pictures">{"".join(inside)}</div>'
    )


def png(pixels: Array) -> bytes:
    """A PNG file of 8-bit pixels (1, height, width) or (3, height, width)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    channels, height, width = pixels.shape
    rows = np.moveaxis(pixels, 0, -1).reshape(height, width * channels)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows.astype(np.uint8)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


# Numbers ----------------------------------------------------------------------------------------


def _fit(samples: Samples) -> Chart:
    """Data and the model's line, of one feature."""
    x = samples.inputs[:, 0].astype(np.float64)
    order = np.argsort(x, kind="stable")
    name = samples.features[0] if samples.features else "x"
    dots = x[:_DOTS], samples.truth[:_DOTS, 0].astype(np.float64)
    return Chart(
        f"{samples.target} against {name}",
        name,
        [
            Curve("data", "train", dots, dots=True),
            Curve("predicted", "val", (x[order], samples.prediction[order, 0].astype(np.float64))),
        ],
        log=False,
        whole=False,
    )


def _parity(samples: Samples) -> Chart:
    truth, found = (v[:_DOTS, 0].astype(np.float64) for v in (samples.truth, samples.prediction))
    ends = np.array([truth.min(), truth.max()])
    return Chart(
        f"predicted {samples.target} against the truth",
        "truth",
        [
            Curve("rows", "train", (truth, found), dots=True),
            Curve("where they are equal", "plain", (ends, ends)),
        ],
        log=False,
        whole=False,
    )


def _number_rows(samples: Samples) -> str:
    heading, cells = _features(samples)
    rows = [
        (number(t), number(p), number(p - t), *cells(i))
        for i, (t, p) in enumerate(
            zip(samples.truth[:_ROWS, 0], samples.prediction[:_ROWS, 0], strict=True)
        )
    ]
    return _rows(("truth", "predicted", "difference", *heading), rows)


def _features(samples: Samples) -> tuple[list[str], Any]:
    """Headings of the first features, and a function from a row's number to their texts."""
    if samples.inputs.ndim != 2 or samples.inputs.dtype.kind != "f":
        return [], lambda i: []
    shown = min(samples.inputs.shape[1], _COLUMNS)
    names = samples.features or [f"x{i}" for i in range(samples.inputs.shape[1])]
    columns = samples.inputs[:, :shown]
    whole = [_whole(column) for column in columns.T]
    return list(names[:shown]), lambda i: [
        f"{v:.0f}" if is_whole else number(v) for v, is_whole in zip(columns[i], whole, strict=True)
    ]


def _whole(column: Array) -> bool:
    """Whether a column holds whole numbers alone, which are then shown as such."""
    return bool((column == np.round(column)).all() and (np.abs(column) < 1e9).all())


def _rows(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heading)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return (
        f'<table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )
