"""What changes about modules and parameters between calls: modes, flags, places."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from steps import Parts, Setting, batch, bits, both, follow

import microtrain as mt

nn = mt.nn


def test_train_and_eval_are_captures_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    other.load_state_dict(model.state_dict())

    def step(net: Any) -> Any:
        def forward(x: Any) -> Any:
            with mt.no_grad():
                return net(x)

        return forward

    compiled, eager = mt.compile(step(model)), step(other)
    for i in range(12):
        for net in (model, other):
            net.train(i % 3 > 0)
        mt.random.begin_batch(0)
        found = compiled(batch(i))
        mt.random.begin_batch(0)
        assert mt.equal(found, eager(batch(i)))
    assert len(compiled.programs) == 2
    for key, value in other.state_dict().items():
        assert mt.equal(model.state_dict()[key], value), key


def test_train_and_eval_inside_a_step() -> None:
    def program(wrap: Any) -> Any:
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

        def step(x: Any, mode: bool) -> Any:
            model.train(mode)
            with mt.no_grad():
                return model(x)

        step = wrap(step)
        for i in range(12):
            yield step(batch(i), i % 3 > 0)
            yield model(batch(i))
            model.train()

    eager, compiled = both(program)
    assert compiled == eager


def test_parameters_that_move_are_found_again() -> None:
    """An optimizer made after the capture gives the parameters other memory."""
    model = nn.Linear(3, 2)
    step = mt.compile(lambda x: model(x).detach())
    with mt.no_grad():
        for i in range(3):
            step(batch(i))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
        assert mt.equal(step(batch(9)), model(batch(9)))
        model.weight.data += 1
        assert mt.equal(step(batch(9)), model(batch(9)))
    del optimizer


@pytest.mark.parametrize("change", ["data", "buffer", "layer", "freeze"])
def test_changes_of_the_model_are_seen(change: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    step = mt.compile(lambda x: model(x))
    with mt.no_grad():
        for i in range(3):
            step(batch(i))
        if change == "data":
            model[0].weight.data = mt.ones(3, 3)
        elif change == "buffer":
            model[1].running_mean = mt.ones(3)
        elif change == "layer":
            model[0] = nn.Linear(3, 3)
        else:
            model.requires_grad_(False)
        for i in range(3):
            assert mt.equal(step(batch(i)), model(batch(i)))


def test_freezing_a_parameter_is_another_capture() -> None:
    def change(setting: Setting, i: int) -> None:
        if i in (5, 9):
            setting.model.bias.requires_grad_(i == 9)

    eager, compiled, step = follow(change, steps=16, momentum=0.9)
    assert compiled == eager
    assert len(step.programs) == 1  # the optimizer's runs are others: the first cannot return


def register_again(parts: Any) -> None:
    del parts.shift
    parts.register_buffer("shift", mt.zeros(3))


CHANGES: dict[str, Any] = {
    "training set": lambda parts: setattr(parts.middle, "training", False),
    "plain Tensor": lambda parts: setattr(parts, "mask", mt.zeros(3)),
    "buffer": lambda parts: setattr(parts, "shift", mt.zeros(3)),
    "buffer registered again": register_again,
    "no bias": lambda parts: setattr(parts.layer, "bias", None),
    "no layer": lambda parts: setattr(parts, "middle", None),
    "another layer": lambda parts: setattr(parts, "middle", nn.Dropout(0.2)),
    "data": lambda parts: setattr(parts.layer.weight, "data", mt.ones(3, 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_module_that_changes_between_calls(name: str) -> None:
    def program(wrap: Any) -> Any:
        parts = Parts()

        def step(x: Any) -> Any:
            with mt.no_grad():
                return parts(x)

        step = wrap(step)
        for i in range(10):
            if i == 5:
                CHANGES[name](parts)
            yield step(batch(i))

    eager, compiled = both(program)
    assert compiled == eager


def test_memory_that_comes_back_at_an_old_address() -> None:
    rows = mt.arange(60.0).reshape(10, 6)
    model = nn.Linear(3, 2, bias=False)
    step = mt.compile(lambda x: model(x).detach())
    with mt.no_grad():
        for i in range(24):
            model.weight.data = rows[i // 3].reshape(2, 3)
            assert bits(step(batch(i))) == bits(model(batch(i)))


def test_other_models_do_not_matter() -> None:
    setting, parts = Setting(), Parts()
    training = mt.compile(setting.step)

    @mt.compile
    def evaluation(x: Any) -> Any:
        with mt.no_grad():
            return parts(x)

    kept = []
    for i in range(40):
        kept = [copy.deepcopy(setting.model).eval(), Parts().train(i % 3 > 0)]
        parts.train(i % 2 > 0)
        parts(batch(i))  # keeps a Tensor in an attribute
        setting.model.train()
        training(batch(i))
        evaluation(batch(i))
    assert len(kept) == 2
    assert setting.runs == 2
    assert len(training.programs) == 1
    assert len(evaluation.programs) == 2
