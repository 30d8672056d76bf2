"""A small run from Python: a line through 40 points."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

import microtrain as mt
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

X = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
Y = 2 * X + 3


def quiet(rank: int = 0) -> Output:
    return Output(rank, stream=io.StringIO(), errors=io.StringIO())


def made(place: Path, model: Any = None, data: Any = (X, Y), **settings: Any) -> Trainer:
    given: dict[str, Any] = {
        "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1}, "duration": "4 epochs",
        "batch_size": 8, "comm": SingleCommunicator(), "output": quiet(), "run_dir": str(place),
    }  # fmt: skip
    return Trainer(model or mt.nn.Linear(1, 1), data, **{**given, **settings})
