"""How often a step is captured: until two calls did the same, 32 times at most, never unseen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from steps import Setting, batch, bits, call

import microtrain as mt
from microtrain.capture.step import MOST
from microtrain.errors import CaptureError

nn = mt.nn


def rows(k: int) -> Any:
    return mt.ones(k + 1, 3)


def scaled(x: Any, k: Any = 1, *more: Any, pair: Any = (0, 0)) -> Any:
    return x * 2


# What varies, and what the error says of it.
VARYING: dict[str, tuple[Callable[[Any, int], Any], str]] = {
    "number": (lambda step, k: step(rows(0), float(k)), r"argument k .* most: 31\.0, then 32\.0"),
    "by name": (lambda step, k: step(rows(0), k=k), r"argument k .*: 31, then 32"),
    "further": (lambda step, k: step(rows(0), 1, 2, k), "Pass what varies as a Tensor"),
    "in a tuple": (lambda step, k: step(rows(0), pair=(1, k)), r"argument pair\[1\] .*: 31, then"),
    "text": (lambda step, k: step(rows(0), f"step {k}"), "argument k .*: step 31, then step 32"),
    "shape": (lambda step, k: step(rows(k)), r"the shape of argument x .*\(32, 3\), then"),
    "shape inside": (lambda step, k: step(rows(0), [rows(k)]), r"the shape of argument k\[0\]"),
    "strides": (lambda step, k: step(mt.ones(2, k + 2)[:, :1]), "the memory order of argument x"),
    "few numbers, many shapes": (lambda step, k: step(rows(k), k % 3), "the shape of argument x"),
    "kinds": (lambda step, k: step(rows(0), [k, rows(k), str(k)][k % 3]), "argument k"),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
def test_an_argument_that_varies_is_an_error_that_names_it(name: str) -> None:
    step = mt.compile(scaled)
    go, text = VARYING[name]
    for k in range(MOST):
        go(step, k)
    with pytest.raises(CaptureError, match=f"32 captures of scaled.*{text}"):
        go(step, MOST)
    assert len(step._pending) == MOST
    go(step, 0)  # the ones that there are go on
    if name in ("number", "shape"):
        go(step, 0)
        assert len(step.programs) == 1


def test_the_second_of_two_calls_may_come_late() -> None:
    step = mt.compile(lambda x, k: x * k)
    for _ in range(3):
        for k in range(MOST):
            assert bits(step(batch(k), k)) == bits(batch(k) * k)
    assert len(step.programs) == MOST
    with pytest.raises(CaptureError, match="32 captures"):
        step(batch(0), MOST)


class Counting(nn.Module):
    """A module that keeps numbers; what `change` does, it does in every call."""

    def __init__(self, change: Callable[[Any], Any] = id) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(3, 3), nn.Dropout(0.0)
        self.steps, self.scale, self.shape, self.act = 0, 1.0, (1, 2), mt.tanh
        self.change = [change]

    def forward(self, x: Any) -> Any:
        self.change[0](self)
        return self.act(self.dropout(self.layer(x))) * self.scale + self.shape[0]


def count(net: Any) -> None:
    net.steps += 1


def swing(net: Any) -> None:
    net.scale = 3.0 - net.scale


@pytest.mark.parametrize(("change", "name"), [(count, "steps"), (swing, "scale")])
def test_a_number_that_the_step_changes_is_an_error_that_names_it(change: Any, name: str) -> None:
    net = Counting(change)
    step = mt.compile(lambda x: net(x))
    for i in range(3):
        step(batch(i))
    with pytest.raises(CaptureError, match=f"it changes the attribute {name} of Counting"):
        step(batch(3))


def test_what_a_first_call_sets_up_is_captured_after_it() -> None:
    def set_up(net: Any) -> None:
        if net.steps == 0:
            net.steps, net.scale = 1, 2.0

    net = Counting(set_up)
    step = mt.compile(lambda x: net(x).detach())
    for i in range(6):
        assert bits(step(batch(i))) == bits(net(batch(i)).detach())
    assert len(step.programs) == 1


NUMBERS: dict[str, Callable[[Counting, int], Any]] = {
    "dropout": lambda net, i: setattr(net.dropout, "p", [0.0, 1.0][i % 2]),
    "float": lambda net, i: setattr(net, "scale", [1.0, 2.0][i % 2]),
    "sign of zero": lambda net, i: setattr(net, "scale", [0.0, -0.0][i % 2]),
    "kind": lambda net, i: setattr(net, "scale", [1, 1.0][i % 2]),
    "tuple": lambda net, i: setattr(net, "shape", (i % 2, 0)),
    "function": lambda net, i: setattr(net, "act", [mt.tanh, mt.relu][i % 2]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_module_keeps_are_seen(name: str) -> None:
    net = Counting()
    step = mt.compile(lambda x: net(x).detach())
    for i in range(24):
        if i % 4 == 0:
            NUMBERS[name](net, i // 4)
        assert bits(step(batch(i))) == bits(net(batch(i)).detach())
    assert len(step.programs) == 2


def test_a_number_that_changes_between_all_calls_is_named() -> None:
    net = Counting()
    step = mt.compile(lambda x: net(x))
    for i in range(MOST):
        net.steps = i
        step(batch(i))
    net.steps = MOST
    with pytest.raises(
        CaptureError, match=r"the attribute Counting\.steps varies most: 31, then 32"
    ):
        step(batch(0))


@pytest.mark.parametrize(
    ("make", "runs"),
    [
        (lambda p: mt.optim.SGD(p, lr=0.1), 2),
        (lambda p: mt.optim.SGD(p, lr=0.1, momentum=0.9), 3),
        (lambda p: mt.optim.Adam(p), 3),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_python_runs_until_two_calls_did_the_same(make: Any, runs: int) -> None:
    setting = Setting()
    setting.optimizer = make(setting.model.parameters())
    call(mt.compile(setting.step), 12)
    assert setting.runs == runs


def test_python_runs_at_four_calls_at_most() -> None:
    calls: list[int] = []

    def step(x: Any, last: int) -> Any:
        calls.append(1)
        return x * min(len(calls), last)

    late = mt.compile(step)
    for i in range(9):
        late(batch(i), 3)  # 1, 2, 3, 3
    assert len(calls) == 4
    calls.clear()
    other = mt.compile(step)
    for i in range(3):
        other(batch(i), 9)
    with pytest.raises(CaptureError, match="does something different at every call"):
        other(batch(3), 9)
    assert len(calls) == 4


OPTIONS: dict[str, tuple[Any, Any, Any]] = {
    "momentum": (mt.optim.SGD, 0.0, 0.9),
    "dampening": (mt.optim.SGD, 0.5, 0.0),
    "weight_decay": (mt.optim.SGD, 0.0, 0.1),
    "maximize": (mt.optim.SGD, False, True),
    "nesterov": (mt.optim.SGD, True, False),
    "lr": (mt.optim.SGD, 0.0, 0.1),
    "amsgrad": (mt.optim.Adam, False, True),
    "betas": (mt.optim.Adam, (0.0, 0.9), (0.9, 0.9)),
}


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_switched_between_calls_is_followed(name: str, every: int) -> None:
    """Each set of options is a step of its own: switching is not doing something else each time."""
    kind, *values = OPTIONS[name]
    found: list[list[Any]] = []
    captured = 0
    for compiled in (True, False):
        setting = Setting()
        more = {"momentum": 0.9} if name in ("dampening", "nesterov") else {}
        setting.optimizer = kind(setting.model.parameters(), lr=0.1, **more)
        step = mt.compile(setting.step) if compiled else setting.step
        found.append([])
        for i in range(16):
            setting.optimizer.param_groups[0][name] = values[i // every % 2]
            found[-1].append(bits(step(batch(i))))
            captured += len(step.programs) if compiled else 0
        found[-1] += map(bits, setting.model.parameters())
    assert every < 5 or captured
    assert found[0] == found[1]


@pytest.mark.daily("-2")
@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("optimizer", [False, True])
def test_a_model_that_is_dropped_is_freed(calls: int, optimizer: bool) -> None:
    """Its memory goes when the step is captured for another one."""
    step = mt.compile(lambda model, x: model(x))

    def use() -> Any:
        model = nn.Linear(3, 1)
        owner = mt.optim.SGD(model.parameters(), lr=0.1) if optimizer else None
        for i in range(calls):
            step(model, batch(i))
        return weakref.ref(model), weakref.ref(model.weight), owner and weakref.ref(owner)

    first = use()
    gc.collect()
    assert first[0]() is None
    use()
    gc.collect()
    assert [one and one() for one in first[1:]] == [None, None]
    assert len(step.captures) + len(step._pending) == 1
