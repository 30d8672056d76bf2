"""The run that must be the same at every number of ranks, for threads and for MPI alike."""

from __future__ import annotations

from typing import Any

import numpy as np

import microtrain as mt
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed.data_parallel import DataParallel

ROWS, BATCH, STEPS = 1001, 334, 50  # neither divides: the tail of an epoch leaves ranks empty


def relative(found: Any, expected: Any) -> float:
    """max |found - expected| / max |expected|."""
    found, expected = np.asarray(found), np.asarray(expected)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def train_regression(
    comm: Any, accumulate: int = 1, reduction: str = "mean", rows: int = 101, batch: int = 33
) -> dict[str, Any]:
    """50 steps of a small network with dropout, in float64; losses and final weights."""
    rng = np.random.default_rng(0)
    data = ArrayDataset(rng.normal(size=(rows, 5)), rng.normal(size=(rows, 2)))
    mt.manual_seed(1)
    net = mt.nn.Sequential(
        mt.nn.Linear(5, 7), mt.nn.ReLU(), mt.nn.Dropout(0.2), mt.nn.Linear(7, 2)
    ).double()
    model = DataParallel(net, comm, reduction=reduction)
    lr = 0.02 if reduction == "mean" else 0.0005
    optimizer = mt.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loader = DataLoader(data, batch, seed=0, comm=comm, accumulate=accumulate)
    losses: list[float] = []
    with np.errstate(all="ignore"):
        while len(losses) < STEPS:
            for micro_batches in loader.steps():
                optimizer.zero_grad()
                for number, (x, y) in enumerate(micro_batches):
                    loss = mt.nn.functional.mse_loss(model(x), y, reduction=reduction)
                    if number < len(micro_batches) - 1:
                        with model.no_sync():
                            loss.backward()
                    else:
                        loss.backward()
                optimizer.step()
                losses.append(model.loss)
    weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    return {"losses": losses, "weights": weights}
