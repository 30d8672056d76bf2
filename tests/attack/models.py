"""Layers and losses that the trials combine."""

from __future__ import annotations

from typing import Any

import microtrain as mt

nn, F = mt.nn, mt.nn.functional
CLASSES = 4
WEIGHT, POSITIVE = [0.2, 1.0, 5.0, 0.0], [0.2, 1.0, 5.0, 0.3]

LAYERS = {
    "linear": lambda n: nn.Linear(n, n),
    "no bias": lambda n: nn.Linear(n, n, bias=False),
    "relu": lambda n: nn.ReLU(),
    "tanh": lambda n: nn.Tanh(),
    "gelu": lambda n: nn.GELU(),
    "softmax": lambda n: nn.Softmax(dim=-1),
    "dropout": lambda n: nn.Dropout(0.4),
    "layer norm": lambda n: nn.LayerNorm(n),
    "batch norm": lambda n: nn.BatchNorm1d(n),
}


def bce(p: Any, y: Any, **options: Any) -> Any:
    return F.binary_cross_entropy_with_logits(p, y, **options)


def nll(p: Any, y: Any, **options: Any) -> Any:
    return F.nll_loss(p.log_softmax(1), y, **options)


# What the targets are, the function, its options.
LOSSES: list[tuple[str, Any, dict[str, Any]]] = [
    ("numbers", F.mse_loss, {}),
    ("numbers", F.l1_loss, {}),
    ("numbers", F.huber_loss, {}),
    ("classes", F.cross_entropy, {}),
    ("classes", F.cross_entropy, {"label_smoothing": 0.2}),
    ("classes", nll, {}),
    ("bits", bce, {}),
    ("bits", bce, {"pos_weight": WEIGHT}),
    ("bits", bce, {"weight": WEIGHT}),
]
# Means over something else than rows.
WEIGHTED: list[tuple[str, Any, dict[str, Any]]] = [
    ("classes", F.cross_entropy, {"weight": WEIGHT}),
    ("classes", F.cross_entropy, {"ignore_index": 1}),
    ("classes", F.cross_entropy, {"weight": POSITIVE, "ignore_index": 2, "label_smoothing": 0.1}),
    ("classes", nll, {"weight": WEIGHT}),
]


def loss_of(chosen: tuple[str, Any, dict[str, Any]], p: Any, y: Any, reduction: str) -> Any:
    _, function, options = chosen
    tensors = {
        key: mt.tensor(v, dtype=p.dtype) if type(v) is list else v for key, v in options.items()
    }
    return function(p, y, reduction=reduction, **tensors)


def targets_of(chosen: tuple[str, Any, dict[str, Any]], draw: Any, rows: int) -> Any:
    """Targets of CLASSES columns, or classes, by a NumPy generator."""
    return {
        "numbers": lambda: draw.standard_normal((rows, CLASSES)),
        "classes": lambda: draw.integers(0, CLASSES, rows),
        "bits": lambda: draw.integers(0, 2, (rows, CLASSES)).astype(float),
    }[chosen[0]]()
