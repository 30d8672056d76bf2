"""Results that share memory: never two of them at one time, and never another bit."""

from __future__ import annotations

import weakref
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from compilers import NATIVE
from hypothesis import given, settings
from pace import examples
from programs import PROGRAMS, train

import microtrain as mt
from microtrain.capture.plan import _starts

nn, F = mt.nn, mt.nn.functional

EXECUTORS = ["numpy", pytest.param("native", marks=NATIVE)]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 9)), max_size=24))
def test_what_lives_at_one_time_is_apart(found: list[tuple[int, int, int]]) -> None:
    lives = [(min(a, b), max(a, b), size * 64) for a, b, size in found]
    starts = _starts(lives)
    for i, (first, last, size) in enumerate(lives):
        assert starts[i] >= 0
        for j, (f, e, s) in enumerate(lives[:i]):
            if first <= e and f <= last:
                assert starts[i] + size <= starts[j] or starts[j] + s <= starts[i]
    total = max((at + size for at, (_, _, size) in zip(starts, lives, strict=True)), default=0)
    assert total <= sum(size for _, _, size in lives)


def spoil(compiled: Any) -> None:
    """Leave nothing in memory that a replay has to write before it reads it."""
    for program in compiled.programs:
        for owner in program.memory:
            known = program.kinds.get(id(owner)) == "made" and owner.flags.writeable
            if known and id(owner) not in program.fixed:
                owner.reshape(-1).view(np.uint8)[:] = 0xFF


def spoiling(compiled: Any) -> Any:
    def call(*args: Any) -> Any:
        spoil(compiled)
        return compiled(*args)

    return call


@pytest.mark.daily("numpy")
@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, "numpy") for name in PROGRAMS]
    + [
        pytest.param("mlp", "native", marks=NATIVE),
        pytest.param("convolutional", "native", marks=[NATIVE, pytest.mark.slow]),
    ],
)
def test_nothing_is_read_before_it_is_written(name: str, executor: str) -> None:
    def compiled(step: Any) -> Any:
        return mt.compile(step, executor=executor)

    expected, weights = train(name, "sgd", compiled, 6)
    found, others = train(name, "sgd", lambda step: spoiling(compiled(step)), 6)
    assert found == expected
    for key, value in weights.items():
        np.testing.assert_array_equal(others[key], value, err_msg=key)


# What a step may do with the Tensors that it has so far; all stay 4 x 6.
def _write_part(a: Any, b: Any) -> Any:
    a = a.clone()
    a[1:3, ::2] = b[:2, 3:]
    return a


def _through_views(a: Any, b: Any) -> Any:
    return (a.T @ b)[:4] + b.T.reshape(4, 6)


STEPS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "tanh": lambda a, b: a.tanh() * 0.5,
    "product": _through_views,
    "turned": lambda a, b: a.T.contiguous().reshape(4, 6) - b,
    "where": lambda a, b: mt.where(a > 0, a, b),
    "filled": lambda a, b: a.masked_fill(b > 0.5, 0.25),
    "part": _write_part,
    "in place": lambda a, b: a.clone().mul_(0.5).add_(b),
    "sum": lambda a, b: a - b.sum(0) * 0.1,
    "softmax": lambda a, b: a.softmax(1),
    "joined": lambda a, b: mt.cat([a[2:], b[:2]]),
    "padded": lambda a, b: F.pad(a, (1, 0))[:, :6] + b,
    "sorted": lambda a, b: a.sort(1)[0] + b,
}
CHOICES = st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 5), st.integers(0, 5))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(CHOICES, min_size=2, max_size=14), st.lists(st.integers(0, 20), max_size=3))
def test_random_steps_have_the_bits_of_the_eager_ones(choices: Any, kept: list[int]) -> None:
    weight = nn.Linear(6, 6)

    def step(x: Any, y: Any) -> Any:
        have = [x, weight(x), y]
        for name, a, b in choices:
            have.append(STEPS[name](have[-1 - a % len(have)], have[-1 - b % len(have)]))
        loss = (have[-1] * have[-2] + have[1]).sum()
        (found,) = mt.autograd.grad(loss, [weight.weight])
        return [t.detach() for t in [have[-1], *(have[i % len(have)] for i in kept)]], found

    compiled = mt.compile(step)
    for i in range(5):
        rng = np.random.default_rng(i)
        x, y = (mt.from_numpy(rng.standard_normal((4, 6))).float() for _ in range(2))
        spoil(compiled)
        (found, grad), (expected, wanted) = compiled(x, y), step(x, y)
        for a, b in zip([*found, grad], [*expected, wanted], strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    (program,) = compiled.programs
    assert program.buffers[3] <= program.buffers[1] + 64 * program.buffers[0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_deep_network_needs_the_memory_of_what_is_alive(executor: str) -> None:
    """Activations are there at once, their gradients two at a time."""
    mt.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = mt.compile(step, executor=executor)
    x = mt.ones(256, 64)
    compiled(x)
    ((capture, _),) = compiled._pending.values()
    places = [weakref.ref(line.out.base) for line in capture.program.lines if hasattr(line, "out")]
    assert all(type(ref().base) is not np.ndarray for ref in places if ref() is not None)
    compiled(x)
    (program,) = compiled.programs
    _, before, _, after = program.buffers
    one = x._array.nbytes
    assert before > 24 * one
    assert 8 * one < after < 14 * one
    held = {id(o): o.nbytes for o in program.memory if program.kinds.get(id(o)) == "made"}
    assert sum(held.values()) < before
