"""RMSprop: the same as torch's, step by step; states that go there and back; errors."""

import numpy as np
import pytest
from test_adam import close, train, trained
from test_optim import PATTERNS, leaves, loss_of, values_of

import microtrain as mt
from microtrain.optim import RMSprop

OPTIONS = [
    {},
    {"lr": 0.1, "alpha": 0.5, "eps": 1e-3},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"maximize": True},
    {"centered": True},
    {"centered": True, "maximize": True, "weight_decay": 0.1, "momentum": 0.5},
    {"maximize": True, "weight_decay": 0.1, "momentum": 0.5},
]


@pytest.mark.parametrize(
    "pattern, dtype", [("all", np.float64), ("changing", np.float64), ("all", np.float32)]
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_50_steps_equal_torch(options, pattern, dtype):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib, dtype)
        sides.append((params, lib.optim.RMSprop(params, **options)))
    for i in range(50):
        for params, optimizer in sides:
            optimizer.zero_grad()
            loss_of(params, PATTERNS[pattern](i)).backward()
            if i == 30:
                optimizer.param_groups[0].update(lr=0.03, alpha=0.9)
            optimizer.step()
        if i in (0, 1, 2, 30):
            close(*(params for params, _ in sides), dtype)
    close(*(params for params, _ in sides), dtype)


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.9}],
    ids=str,
)
def test_state_goes_to_torch_and_back(options):
    torch = pytest.importorskip("torch")
    ours, mine = trained(name="RMSprop", **options)
    theirs, other = trained(torch, name="RMSprop", **options)
    state = mine.state_dict()
    for n, found in other.state_dict()["state"].items():
        assert list(found) == list(state["state"][n])
    state["state"] = {
        n: {k: torch.tensor(v.numpy()) for k, v in s.items()} for n, s in state["state"].items()
    }
    fresh = leaves(torch, values=values_of(ours))
    there = torch.optim.RMSprop([{"params": fresh[:2]}, {"params": fresh[2:]}])
    there.load_state_dict(state)
    twins = leaves(values=values_of(theirs))
    here = RMSprop([{"params": twins[:2]}, {"params": twins[2:]}])
    here.load_state_dict(other.state_dict())
    for side in ((ours, mine), (fresh, there), (twins, here)):
        train(*side, 5)
    close(ours, fresh)
    close(ours, twins)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"lr": -1}, "lr must be a number of at least 0, got -1"),
        ({"alpha": "much"}, "alpha must be"),
        ({"eps": -1e-8}, "eps must be"),
        ({"momentum": -0.1}, "momentum must be"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"foreach": True}, "foreach=True is not supported"),
    ],
    ids=str,
)
def test_what_is_refused(options, text):
    with pytest.raises(ValueError, match=rf"^RMSprop\(\): {text}"):
        RMSprop(leaves(), **options)
