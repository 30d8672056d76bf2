"""Gradients over ranks against finite differences: all ranks' inputs are one input.

The objective is the sum over the ranks of each rank's scalar. Every rank moves every entry of every
rank together with the others, because each evaluation is collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import microtrain as mt


def check_over_ranks(comm: Any, function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Assert that first and second gradients of `function(*tensors)` are right on this rank."""
    rng = np.random.default_rng(100 + comm.rank)
    tensors = [mt.tensor(array, dtype=mt.float64, requires_grad=True) for array in arrays]
    directions = [mt.from_numpy(rng.standard_normal(array.shape)) for array in arrays]
    weights = None

    def first() -> Any:
        nonlocal weights
        out = function(*tensors)
        if weights is None:
            weights = mt.from_numpy(rng.standard_normal(out.shape))
        return (weights * out * out).sum()

    def second() -> Any:
        grads = mt.autograd.grad(first(), tensors, create_graph=True)
        parts = [(g * d).sum() for g, d in zip(grads, directions, strict=True)]
        return sum(parts[1:], parts[0])

    for scalar in (first, second):
        found = mt.autograd.grad(scalar(), tensors)
        for number, g in enumerate(found):
            expected = _numerical(comm, scalar, tensors, number)
            np.testing.assert_allclose(g.numpy(), expected, rtol=2e-6, atol=2e-6)


def _numerical(comm: Any, scalar: Callable[[], Any], tensors: list[Any], number: int) -> np.ndarray:
    """The gradient of the sum of all ranks' scalars towards this rank's Tensor `number`."""
    array = tensors[number].detach().numpy().reshape(-1)
    eps, mine = 1e-5, np.zeros(array.size)
    for rank, size in enumerate(comm.all_gather_object(array.size)):
        for entry in range(size):
            sums = []
            for step in (eps, -2 * eps):
                if rank == comm.rank:
                    array[entry] += step
                sums.append(float(comm.all_reduce(np.array(scalar().item()))))
            if rank == comm.rank:
                array[entry] += eps
                mine[entry] = (sums[0] - sums[1]) / (2 * eps)
    return mine.reshape(tuple(tensors[number].shape))
