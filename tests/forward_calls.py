"""Rows of ranks and their models for tests of forward calls, and the same rows in one process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel

f64 = mt.float64


class World:
    """What a program sees: models, rows of this rank or of all, and what it has learned.

    Args:
        comm: of the ranks; None for one process that has all rows.
        cuts: of each kind of rows how many each rank has.
    """

    def __init__(self, comm: Communicator | None, cuts: dict[str, list[int]]) -> None:
        mt.manual_seed(3)
        self.comm, self.cuts = comm, cuts
        self.models: list[tuple[Any, Any]] = []
        self.found: list[Any] = []

    def model(self, *sizes: int, make: Any = None, **options: Any) -> Any:
        layers: list[Any] = []
        for a, b in pairwise(sizes):
            layers += [mt.nn.Linear(a, b, dtype=f64), mt.nn.Tanh()]
        net = mt.nn.Sequential(*layers[:-1]) if make is None else make()
        wrapped = net if self.comm is None else DataParallel(net, self.comm, **options)
        self.models.append((net, wrapped))
        return wrapped

    def rows(self, kind: str, *shape: int, seed: int = 0, integers: int = 0) -> Any:
        """Of this rank, or all."""
        cuts = self.cuts[kind]
        rng = np.random.default_rng([seed, len(kind), ord(kind[0]), len(shape)])
        size = (sum(cuts), *shape)
        every = rng.integers(0, integers, size) if integers else rng.normal(size=size)
        return mt.from_numpy(np.ascontiguousarray(every[self.mine(kind)]))

    def mine(self, kind: str) -> slice:
        if self.comm is None:
            return slice(None)
        ends = np.cumsum([0, *self.cuts[kind]])
        return slice(int(ends[self.comm.rank]), int(ends[self.comm.rank + 1]))

    def learn(self, loss: Any, *models: Any, retain: bool = False) -> None:
        """A backward pass, and what it leaves in these models; their gradients are cleared."""
        loss.backward(retain_graph=retain)
        for net, wrapped in self.models:
            if any(wrapped is one for one in models):
                grads = [p.grad for p in net.parameters() if p.grad is not None]
                self.found += [grad.numpy().copy() for grad in grads]
                self.found.append(loss.item() if self.comm is None else wrapped.loss)
            net.zero_grad()


CUTS = {
    1: {"a": [7], "b": [5]},
    2: {"a": [5, 2], "b": [1, 6]},
    3: {"a": [4, 0, 3], "b": [1, 3, 1]},
    4: {"a": [1, 4, 0, 2], "b": [3, 0, 0, 2]},
}


def check(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert np.abs(a - b).max() <= 1e-12 * max(np.abs(b).max(), 1e-2), number
