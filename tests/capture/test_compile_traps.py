"""The known ways in which a replayed step silently does something else, each by its name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import Setting, batch, call, follow

import microtrain as mt
from microtrain.backend import MODES, NUMPY, XP
from microtrain.errors import CaptureError

nn = mt.nn


@pytest.fixture
def compiled(executor: str) -> Callable[[Any], Any]:
    """`mt.compile` with each executor."""
    return lambda step: mt.compile(step, executor=executor)


def agree(found: Any, expected: Any, executor: str) -> None:
    """Bit for bit, or to rounding where sums are added up in another order."""
    if executor == "numpy":
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_baked_learning_rate(executor: str) -> None:
    def change(setting: Setting, i: int) -> None:
        setting.optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)

    eager, found, step = follow(change, executor=executor)
    agree(found, eager, executor)
    assert len(step.programs) == 1


def test_reused_output(compiled: Any) -> None:
    step = compiled(Setting().step)
    results = [step(batch(i)) for i in range(6)]
    values = [result.item() for result in results]
    assert len(set(values)) == 6
    assert not results[-1].requires_grad
    results[3].fill_(0)  # nor is it read
    agree([step(batch(9)).item()], [following(9)], "native")


def following(number: int) -> float:
    """The loss of batch `number` after the batches 0 to 5."""
    setting = Setting()
    call(setting.step, 6)
    return setting.step(batch(number)).item()


def test_frozen_branch(compiled: Any) -> None:
    setting, calls = Setting(), []

    def step(x: Any) -> Any:
        calls.append(1)
        return setting.step(x * 2 if len(calls) % 2 else x)

    with pytest.raises(CaptureError, match="does something different at every call"):
        call(compiled(step))


def test_shape_change(compiled: Any, executor: str) -> None:
    setting, other = Setting(), Setting()
    step = compiled(setting.step)
    for i, rows in enumerate([4, 4, 4, 2, 4, 2, 2, 4, 2]):
        agree(step(batch(i, rows)).item(), other.step(batch(i, rows)).item(), executor)
    assert [p.inputs[0].shape for p in step.programs] == [(4, 3), (2, 3)]
    assert setting.runs == 4


def test_outside_array(compiled: Any) -> None:
    outside = functools.cache(lambda: mt.ones(3))
    outside()
    step = compiled(lambda x: (x + outside()).sum())
    words = r"test_compile_traps\.py:\d+: an array of shape \(3,\).*no name.*as an argument"
    with pytest.raises(CaptureError, match=words):
        step(batch(0))
    assert not MODES.capture.on
    assert XP[np.ndarray] is NUMPY


def test_outside_array_given_as_state(executor: str) -> None:
    outside = mt.ones(3)
    step = mt.compile(lambda x: (x + outside).sum(), state=[outside], executor=executor)
    for added in range(6):
        expected = (batch(0) + 1 + added // 3).sum().item()
        agree(step(batch(0)).item(), expected, "native")
        if added == 2:
            outside.add_(1)


def test_random_numbers_repeated(compiled: Any) -> None:
    mt.manual_seed(0)
    layer = nn.Dropout(0.5)
    step = compiled(lambda x: layer(x))
    mt.random.begin_batch(0)
    seen = [step(mt.ones(4, 8)).numpy().tobytes() for _ in range(8)]
    assert len(set(seen)) == 8
    mt.random.begin_batch(0)
    assert [layer(mt.ones(4, 8)).numpy().tobytes() for _ in range(8)] == seen


def test_step_counter_frozen(executor: str) -> None:
    losses = []
    for wrap in (lambda step: step, lambda step: mt.compile(step, executor=executor)):
        weight = nn.Parameter(mt.ones(3))
        optimizer = mt.optim.Adam([weight], lr=0.1)

        def step(x: Any, weight: Any = weight, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = ((weight - x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        losses.append([step(batch(0)[0]).item() for _ in range(10)])
        assert optimizer.state_dict()["state"][0]["step"].item() == 10
    agree(losses[1], losses[0], executor)


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_momentum_rebound(first: float, executor: str) -> None:
    """Momentum that starts, or ends, in mid-run takes a capture of its own."""

    def change(setting: Setting, i: int) -> None:
        setting.optimizer.param_groups[0]["momentum"] = 0.9 - first if i > 5 else first

    eager, found, _ = follow(change, steps=16, executor=executor)
    agree(found, eager, executor)


def test_counter_in_the_step(compiled: Any) -> None:
    """Python runs at the first two calls, and then never."""
    setting = Setting()
    call(compiled(setting.step), 10)
    assert setting.runs == 2


def test_number_that_changes(compiled: Any) -> None:
    numbers = iter(range(100))
    step = compiled(lambda x: (x * next(numbers)).sum())
    with pytest.raises(
        CaptureError, match=r"test_compile_traps\.py:\d+: .*a counter\) is 2\.0, then 3"
    ):
        call(step)


def test_which_arguments_are_one_tensor(compiled: Any) -> None:
    """A third argument that is the first one now, the second one then, which share memory."""

    def step(x: Any, y: Any, z: Any) -> Any:
        return x + (1 if z is x else 2 if z is y else 3)

    a, replayed = mt.ones(2), compiled(step)
    b = a.detach()
    for given in [(a, b, a), (a, b, b)] * 4 + [(a, b, a.detach()), (a, a, a)] * 3:
        assert replayed(*given).tolist() == step(*given).tolist()


def test_a_loss_of_no_images_writes_into_nothing(compiled: Any) -> None:
    step = compiled(
        lambda x: nn.functional.cross_entropy(x, mt.zeros(0, 3).long(), reduction="sum")
    )
    assert [step(mt.zeros(0, 2, 3)).item() for _ in range(3)] == [0, 0, 0]
