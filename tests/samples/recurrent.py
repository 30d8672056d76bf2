"""Samples of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Sample, normal

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
ENDS = np.array([[[0], [0], [0]], [[0], [1], [0]], [[0], [1], [1]], [[1], [1], [1]]], bool)


def _sample(kind: str, bias: bool, ends: bool, reverse: bool, samples: int = 3) -> Sample:
    size, inputs = 3, 2
    rows = GATES[kind] * size
    biases = (normal(rows), normal(rows)) if bias else (None, None)
    cell = normal(samples, size) if kind == "lstm" else None
    arrays = (
        normal(4, samples, inputs), normal(samples, size), normal(rows, inputs),
        normal(rows, size), *biases, cell, ENDS if ends else None,
    )  # fmt: skip
    return Sample(arrays, {"kind": kind, "reverse": reverse})


SAMPLES = {
    "recurrent": [
        _sample(kind, bias, ends, reverse)
        for kind in GATES
        for bias, ends, reverse in ((True, False, False), (False, True, True), (True, True, False))
    ]
    + [_sample("lstm", True, False, False, 0), _sample("gru", True, False, True, 0)]
}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _recurrent(
    x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, c: Any, stopped: Any, kind: str,
    reverse: bool,
) -> Any:  # fmt: skip
    found = [h]
    bias, h_bias = (0, 0) if b_ih is None else (b_ih, b_hh)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        a, b, old = x[t] @ w_ih.T + bias, h @ w_hh.T + h_bias, (h, c)
        if kind == "lstm":
            i, f, g, o = np.split(a + b, 4, 1)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
        elif kind == "gru":
            (r, z, n), (s, y, m) = np.split(a, 3, 1), np.split(b, 3, 1)
            z = _sigmoid(z + y)
            h = (1 - z) * np.tanh(n + _sigmoid(r + s) * m) + z * h
        else:
            h = np.tanh(a + b) if kind == "tanh" else np.maximum(a + b, 0)
        if stopped is not None:
            h = np.where(stopped[t], old[0], h)
            c = None if c is None else np.where(stopped[t], old[1], c)
        found.append(h)
    found.append(np.zeros_like(h) if c is None else c)
    return np.stack(found[::-1] if reverse else found)


def _torch_recurrent(
    torch: Any, x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, c: Any, stopped: Any,
    kind: str, reverse: bool,
) -> Any:  # fmt: skip
    cell = getattr(torch, {"lstm": "lstm_cell", "gru": "gru_cell"}.get(kind, f"rnn_{kind}_cell"))
    found = [h]
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        before = h, c
        if kind == "lstm":
            h, c = cell(x[t], (h, c), w_ih, w_hh, b_ih, b_hh)
        else:
            h = cell(x[t], h, w_ih, w_hh, b_ih, b_hh)
        if stopped is not None:
            h = torch.where(stopped[t], before[0], h)
            c = None if c is None else torch.where(stopped[t], before[1], c)
        found.append(h)
    found.append(torch.zeros_like(h) if c is None else c)
    return torch.stack(found[::-1] if reverse else found)


REFERENCE = {"recurrent": _recurrent}
TORCH = {"recurrent": _torch_recurrent}
