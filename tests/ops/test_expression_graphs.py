"""Whole graphs: random expressions with shared parts, broadcasting, views, masks and writes.

The laws of the registry test each rule by itself; here rules, engine, views and in-place writes
meet in ways that nobody thought of.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expressions import STEPS, Array, Program, leaves_of, programs
from hypothesis import given, settings
from pace import examples

import microtrain as mt
from microtrain.autograd import grad

EXAMPLES = settings(max_examples=examples(100), deadline=None)


def derivative(function: Callable[[float], float], step: float = 5e-4) -> float:
    """The derivative at 0 by five-point central differences; the error falls with step**4."""
    near = function(step) - function(-step)
    far = function(2 * step) - function(-2 * step)
    return (8 * near - far) / (12 * step)


def moved(points: list[Array], directions: list[Array], step: float) -> list[Array]:
    return [np.asarray(p + step * d) for p, d in zip(points, directions, strict=True)]


def along(gradients: Any, directions: list[Array]) -> Any:
    """The sum of products of gradients (Tensors) and directions."""
    pairs = zip(gradients, directions, strict=True)
    return sum((g * mt.from_numpy(d)).sum() for g, d in pairs)


def bits(tensors: Any) -> list[bytes]:
    return [t.detach().numpy().tobytes() for t in tensors]


def gradients(program: Program, points: list[Array], **options: Any) -> tuple[Any, ...]:
    """The gradients at `points`; zeros for a leaf that the loss does not depend on."""
    leaves = leaves_of(mt, points)
    loss = program.loss(mt, leaves)
    if not loss.requires_grad:  # every value is a mask of constants
        return tuple(mt.zeros_like(x) for x in leaves)
    return grad(loss, leaves, materialize_grads=True, **options)


@EXAMPLES
@given(programs)
def test_the_gradient_is_the_derivative_in_a_random_direction(program: Program) -> None:
    points, directions = program.points(0), program.points(1)

    def value(step: float) -> float:
        with mt.no_grad():
            at = [mt.from_numpy(p) for p in moved(points, directions, step)]
            return float(program.loss(mt, at).item())

    ours = along(gradients(program, points), directions).item()
    assert ours == pytest.approx(derivative(value), rel=1e-6, abs=1e-8)


@EXAMPLES
@given(programs)
def test_the_second_derivative_is_that_of_the_first(program: Program) -> None:
    points, first, second = (program.points(seed) for seed in (0, 1, 2))
    leaves = leaves_of(mt, points)
    loss = program.loss(mt, leaves)
    if not loss.requires_grad:
        return
    found = along(grad(loss, leaves, create_graph=True, materialize_grads=True), first)
    ours = 0.0
    if found.requires_grad:
        ours = along(grad(found, leaves, materialize_grads=True), second).item()

    def slope(step: float) -> float:
        return float(along(gradients(program, moved(points, second, step)), first).item())

    assert ours == pytest.approx(derivative(slope), rel=1e-6, abs=1e-8)


@EXAMPLES
@given(programs)
def test_tangents_and_collapsed_second_derivatives_are_those_of_nested_passes(
    program: Program,
) -> None:
    points, direction = program.points(0), program.points(1)
    leaves = leaves_of(mt, points)
    loss = program.loss(mt, leaves)
    first = second = mt.zeros((), dtype=mt.float64)
    if loss.requires_grad:
        slope = grad(loss, leaves, create_graph=True, materialize_grads=True)
        first = along(slope, direction)
        if first.requires_grad:
            second = along(grad(first, leaves, materialize_grads=True), direction)
    expected = pytest.approx([first.item(), second.item()], rel=1e-9, abs=1e-9)

    def on_line(t: Any) -> Any:
        """The loss on the line through the point; the same in three coordinates, of which two."""
        moved = [
            mt.from_numpy(p.copy()) + t.sum() * mt.from_numpy(d)
            for p, d in zip(points, direction, strict=True)
        ]
        return program.loss(mt, moved)

    x = mt.zeros(3, dtype=mt.float64)
    _, slopes, total = mt.func.laplacian(on_line, x, dims=[0, 2], with_grad=True)
    assert [slopes[1].item(), total.item() / 2] == expected
    given = tuple(mt.from_numpy(p.copy()) for p in points)
    tangents = tuple(map(mt.from_numpy, direction))

    def slope_of(*at: Any) -> Any:
        return mt.func.jvp(lambda *at: program.loss(mt, [*at]), at, tangents)[1]

    product, of_product = mt.func.jvp(slope_of, given, tangents)
    assert [product.item(), of_product.item()] == expected


@pytest.mark.slow
@EXAMPLES
@given(programs)
def test_every_kind_of_pass_gives_the_same_bits(program: Program) -> None:
    points = program.points(0)
    leaves = leaves_of(mt, points)
    loss = program.loss(mt, leaves)
    with mt.no_grad():
        assert bits([program.loss(mt, [mt.from_numpy(p) for p in points])]) == bits([loss])
    if not loss.requires_grad:
        return
    once = grad(loss, leaves, retain_graph=True, materialize_grads=True)
    again = grad(loss, leaves, retain_graph=True, materialize_grads=True)
    recorded = grad(loss, leaves, create_graph=True, materialize_grads=True)
    loss.backward(inputs=leaves, retain_graph=True)
    chosen = [x.grad for x in leaves]
    for x in leaves:
        x.grad = None
    loss.backward(retain_graph=True)
    filled = [x.grad for x in leaves]
    expected = bits(once)
    assert bits(again) == expected
    assert bits(recorded) == expected
    assert bits(gradients(program, points)) == expected
    with mt.autograd.detect_anomaly():
        assert bits(gradients(program, points)) == expected
    for passed in (chosen, filled):
        for found, wanted in zip(passed, once, strict=True):
            assert bits([mt.zeros_like(wanted) if found is None else found]) == bits([wanted])
    loss.backward(retain_graph=True)
    for found, wanted in zip(filled, once, strict=True):
        if found is not None:  # each use of a leaf adds to what is there: another order of sums
            np.testing.assert_allclose(found.numpy(), 2 * wanted.numpy(), rtol=1e-13, atol=1e-13)


def nodes_of(value: mt.Tensor) -> set[Any]:
    found: set[Any] = set()
    stack = [value.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found and node.name() != "AccumulateGrad":
            found.add(node)
            stack += [parent for parent, _ in node.next_functions]
    return found


@settings(EXAMPLES, max_examples=examples(50))
@given(programs)
def test_nothing_of_a_graph_outlives_it(program: Program) -> None:
    def run(create_graph: bool) -> list[weakref.ref[Any]]:
        leaves = leaves_of(mt, program.points(0))
        values = program.values(mt, leaves)
        loss = sum((v * v).sum() for v in values[-3:])
        alive = [weakref.ref(value) for value in (*values, loss)]
        alive += [weakref.ref(node) for v in (*values, loss) for node in nodes_of(v)]
        if loss.requires_grad:
            found = grad(loss, leaves, create_graph=create_graph, materialize_grads=True)
            alive += [weakref.ref(node) for g in found for node in nodes_of(g)]
        return alive

    gc.disable()
    try:
        for create_graph in (False, True):
            assert [one() for one in run(create_graph) if one() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("name", STEPS)
def test_each_step_alone(name: str) -> None:
    """So that a step which hypothesis happens not to draw is tested as well."""
    for shapes in ([(2, 3), (3,)], [(2, 2, 3), (2, 1)]):
        for k in range(6):
            program = Program(shapes, [(name, 1, 0, k)])
            points, directions = program.points(0), program.points(1)

            def value(step: float, program=program, points=points, directions=directions) -> float:
                at = [mt.from_numpy(p) for p in moved(points, directions, step)]
                return float(program.loss(mt, at).item())

            ours = along(gradients(program, points), directions).item()
            assert ours == pytest.approx(derivative(value), rel=1e-8, abs=1e-10)
            values = program.values(mt, leaves_of(mt, points))
            assert values[-1].requires_grad
            assert float(values[-1].detach().abs().max().item()) < 3
