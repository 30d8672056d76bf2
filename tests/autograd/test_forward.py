"""Tangents and collapsed second derivatives of every operation, against nested backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops.test_registry import DIFFERENTIABLE, SMOOTH, apply, leaves, tensors
from samples import Sample

import microtrain as mt
from microtrain.autograd import forward
from microtrain.autograd.graph import edge_of, next_seq
from microtrain.tensor import wrap

Pair = tuple[Any, list[Any]]


def near(found: Any, expected: Any) -> None:
    """To 1e-12 of the largest element."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * scale)


def called(name: str, sample: Sample) -> tuple[int, list[Any], Any]:
    """The operation on Tensors that are not leaves, as inside a network."""
    given = tensors(name, sample.arrays)
    since = next_seq()
    inputs = leaves(given)
    return since, inputs, apply(name, given, sample.attrs)


def directions(inputs: list[Any], count: int) -> list[Any]:
    rng = np.random.default_rng(3)
    return [wrap(np.asarray(rng.standard_normal((count, *x.shape)), x.dtype.type)) for x in inputs]


def pulled_twice(result: Any, inputs: list[Any], tangents: list[Any]) -> Any:
    """The product with the Jacobian from nested backward."""
    with np.errstate(all="ignore"):
        return _pulled_twice(result, inputs, tangents)


def _pulled_twice(result: Any, inputs: list[Any], tangents: list[Any]) -> Any:
    u = mt.zeros_like(result).requires_grad_()
    pulled = mt.autograd.grad(result, inputs, u, create_graph=True, materialize_grads=True)
    ends = [(g, t) for g, t in zip(pulled, tangents, strict=True) if g.requires_grad]
    if not ends:
        return mt.zeros_like(result)
    gs, ts = zip(*ends, strict=True)
    return mt.autograd.grad(gs, u, ts, create_graph=True, materialize_grads=True)[0]


# What has no derivative there is NaN; nested backward asks at the cotangent 0 and takes it for 0.
WITHOUT = {"cusp"}


@pytest.mark.daily("-0-", "-2-")
@pytest.mark.parametrize(
    ("name", "sample"), [c for c in DIFFERENTIABLE if c.values[0] not in WITHOUT]
)
def test_tangents_are_those_of_nested_backward(name: str, sample: Sample) -> None:
    since, inputs, result = called(name, sample)
    many = directions(inputs, 2)
    each = []
    for k in range(2):
        one = [t[k] for t in many]
        expected = pulled_twice(result, inputs, one).detach()
        known = dict(zip(map(edge_of, inputs), one, strict=True))
        (found,) = forward.push([edge_of(result)], known, since)
        found = mt.zeros_like(result) if found is None else forward.full(found, result.shape)
        near(found.detach().numpy(), expected.numpy())
        each.append(found.detach().numpy())
    known = dict(zip(map(edge_of, inputs), many, strict=True))
    (found,) = forward.push([edge_of(result)], known, since, (2,))
    if found is not None:
        near(forward.full(found, (2, *result.shape)).detach().numpy(), np.stack(each))


@pytest.mark.daily("-0-", "-3-")
@pytest.mark.parametrize(("name", "sample"), SMOOTH)
def test_second_derivatives_are_those_of_nested_backward(name: str, sample: Sample) -> None:
    since, inputs, result = called(name, sample)
    many = directions(inputs, 3)
    known = dict(zip(map(edge_of, inputs), many, strict=True))
    (found,) = forward.push_twice([edge_of(result)], known, since, [0, 2], mt.tensor([1, 0, 1]))[1]
    found = mt.zeros_like(result) if found is None else forward.full(found, result.shape)
    expected = mt.zeros_like(result)
    for k in (0, 2):
        one = [t[k] for t in many]
        slope = pulled_twice(result, inputs, one)
        if slope.requires_grad:
            expected = expected + pulled_twice(slope, inputs, one).detach()
    near(found.detach().numpy(), expected.numpy())
