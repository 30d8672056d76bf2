"""`get_extra_state`: in state dicts as in PyTorch, in checkpoints as JSON, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_python import made

import microtrain as mt
from microtrain import nn
from microtrain.runs.checkpoint import load_newest_checkpoint


class Counting(nn.Module):
    """A layer with a learned weight and a count that is no Tensor."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state = {"calls": 0, "names": ["a"]} if state is None else state
        self.inner = nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


class Deaf(Counting):
    """Gives a state and takes none, as PyTorch allows."""

    set_extra_state = nn.Module.set_extra_state


class Mute(Counting):
    """Takes a state and gives none."""

    get_extra_state = nn.Module.get_extra_state


def net(first: Any = None, second: Any = None) -> nn.Sequential:
    return nn.Sequential(Counting(first), Counting(second))


def test_the_names_are_those_of_torch() -> None:
    assert list(Counting().state_dict()) == ["inner.weight", "inner.bias", "_extra_state"]
    state = net(1, 2).state_dict()
    assert {name: state[name] for name in state if "extra" in name} == {
        "0._extra_state": 1, "1._extra_state": 2,
    }  # fmt: skip
    shared = Counting()
    assert len([n for n in nn.Sequential(shared, shared).state_dict() if "extra" in n]) == 2
    assert list(nn.Linear(1, 1).state_dict()) == ["weight", "bias"]


def test_it_is_loaded_required_and_not_expected_elsewhere() -> None:
    given = net(1, {"a": [2]}).state_dict()
    other = net()
    assert other.load_state_dict(given) == ([], [])
    assert [part.state for part in other] == [1, {"a": [2]}]
    del given["0._extra_state"]
    with pytest.raises(RuntimeError, match=r"Missing key.*0._extra_state"):
        net().load_state_dict(given)
    assert net().load_state_dict(given, strict=False).missing_keys == ["0._extra_state"]
    with pytest.raises(RuntimeError, match=r"Unexpected key.*: _extra_state"):
        nn.Linear(1, 1).load_state_dict({**nn.Linear(1, 1).state_dict(), "_extra_state": 1})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*: _extra_state"):
        Deaf().load_state_dict(Deaf().state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*: _extra_state"):
        Mute().load_state_dict(Mute().state_dict())


def test_it_is_not_set_where_something_else_does_not_fit() -> None:
    one, given = Counting("before"), Counting("after").state_dict()
    given["inner.weight"] = mt.zeros(2, 2)
    with pytest.raises(RuntimeError, match="Mismatch"):
        one.load_state_dict(given)
    assert one.state == "before"


@pytest.mark.parametrize("name", ["_load_from_state_dict", "_save_to_state_dict"])
def test_torchs_own_methods_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"class Net: {name} .* get_extra_state"):
        type("Net", (nn.Module,), {name: lambda self, *args: None})


def test_save_and_restore(tmp_path: Path) -> None:
    state = {"calls": 3, "names": ["ä"], "rate": 0.1, "none": None, "on": True}
    model = net(state, 7)
    mt.save(tmp_path, 1, model=model)
    other = net()
    mt.restore(tmp_path, model=other)
    assert [part.state for part in other] == [state, 7]
    found = load_newest_checkpoint(tmp_path, print).model["1._extra_state"]
    assert found.tobytes() == b"7"


@pytest.mark.parametrize("value", [mt.ones(1), np.ones(1), {1: 2}, (1, 2), float("nan"), {1, 2}])
def test_what_json_does_not_keep_is_refused_by_the_name_of_the_module(
    value: Any, tmp_path: Path
) -> None:
    for model, name in ((net(1, value), "module 1,"), (Counting(value), "module the model itself")):
        with pytest.raises(TypeError, match=f"extra state of the {name}"):
            mt.save(tmp_path, 1, model=model)
        with pytest.raises(TypeError, match=f"extra state of the {name}"):
            made(tmp_path, model=model)  # before the first step
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_it(tmp_path: Path) -> None:
    class Seen(Counting):
        def forward(self, x: Any) -> Any:
            self.state = {"largest": 1.0}
            return self.inner(x)

    trainer = made(tmp_path, model=Seen({"largest": 0.0}), compile="off")
    trainer.train()
    assert trainer.path is not None
    arrays = load_newest_checkpoint(trainer.path / "checkpoints", print).model
    assert arrays["_extra_state"].tobytes() == b'{"largest": 1.0}'
    fresh = Seen({"largest": 0.0})
    again = made(tmp_path, model=fresh, compile="off", init_from=str(trainer.path))
    assert again.step == 0
    assert fresh.state == {"largest": 1.0}
