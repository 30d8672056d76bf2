"""Random expressions in microtrain and in PyTorch: values, first and second gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expressions import STEPS, Program, leaves_of, programs
from hypothesis import given, settings

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")

from parity import numpy_of  # noqa: E402


def compare(program: Program) -> None:
    """To 1e-9; None and zero gradients are told apart where a leaf is not in the graph at all."""
    points, directions = program.points(0), program.points(1)
    found: list[list[Any]] = []
    for lib in (torch, mt):
        leaves = leaves_of(lib, points)
        values = program.values(lib, leaves)
        loss = program.loss(lib, leaves)
        results = [(v.requires_grad, numpy_of(v)) for v in (*values, loss)]
        if loss.requires_grad:
            options = {"create_graph": True, "allow_unused": True}
            first = lib.autograd.grad(loss, leaves, **options)
            slope: Any = 0
            for gradient, direction in zip(first, directions, strict=True):
                results.append((gradient is None, 0 if gradient is None else numpy_of(gradient)))
                if gradient is not None:
                    slope = slope + (gradient * lib.from_numpy(direction)).sum()
            second: Any = [None] * len(leaves)
            if slope.requires_grad:
                second = lib.autograd.grad(slope, leaves, allow_unused=True)
            # Which zero second derivatives are in the graph is each library's own business.
            pairs = zip(second, points, strict=True)
            results += [(True, 0 * p if g is None else numpy_of(g)) for g, p in pairs]
        found.append(results)
    for (kind, theirs), (ours_kind, ours) in zip(*found, strict=True):
        assert ours_kind == kind
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@settings(max_examples=100, deadline=None)
@given(programs)
def test_values_and_first_and_second_gradients_are_torchs(program: Program) -> None:
    compare(program)


@pytest.mark.parametrize("name", STEPS)
def test_each_step_alone_and_twice(name: str) -> None:
    for k in range(6):
        compare(Program([(2, 3), (3,)], [(name, 1, 0, k)]))
        compare(Program([(2, 2, 3), (2, 1)], [(name, 1, 0, k), (name, 0, 1, k + 1)]))
