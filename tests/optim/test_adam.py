"""Adam and AdamW: the same as torch's, step by step; step counts, states, errors."""

import tracemalloc

import numpy as np
import pytest
from test_optim import PATTERNS, assert_same, leaves, loss_of, values_of

import microtrain as mt
from microtrain.optim import SGD, Adam, AdamW

OPTIONS = [
    {},
    {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3},
    {"lr": 0.01, "betas": (0.0, 0.9)},
    {"lr": 0.01, "betas": (0.9, 0.8)},
    {"lr": 0.01, "weight_decay": 0.1},
    {"lr": 0.01, "weight_decay": 0.0},
    {"lr": 0.01, "amsgrad": True},
    {"lr": 0.01, "maximize": True},
    {"lr": 0.01, "maximize": True, "weight_decay": 0.1},
    {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "betas": (0.5, 0.6)},
    {"lr": 0.0, "weight_decay": 0.1},
]


def close(ours, theirs, dtype=np.float64):
    rtol = 1e-11 if dtype == np.float64 else 2e-5
    for a, b in zip(values_of(ours), values_of(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    "pattern, dtype",
    [
        ("all", np.float64),
        ("changing", np.float64),
        ("one missing at first", np.float64),
        ("changing", np.float32),
    ],
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_100_steps_equal_torch(name, options, pattern, dtype):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib, dtype)
        sides.append((params, getattr(lib.optim, name)(params, **options)))
    for i in range(100):
        for params, optimizer in sides:
            optimizer.zero_grad()
            used = PATTERNS[pattern](i)
            if used:
                loss_of(params, used).backward()
            optimizer.step()
        if i in (0, 1, 2, 33):
            close(*(params for params, _ in sides), dtype)
    close(*(params for params, _ in sides), dtype)


CHANGES = {
    "lr": lambda o, i: o.param_groups[0].update(lr=0.01 / (1 + i)),
    "betas": lambda o, i: o.param_groups[0].update(betas=(0.9 - i / 100, 0.99)),
    "weight decay": lambda o, i: o.param_groups[0].update(weight_decay=0.1 * (i % 3)),
    "maximize": lambda o, i: o.param_groups[0].update(maximize=i > 9),
    "eps": lambda o, i: o.param_groups[0].update(eps=10.0**-i),
}


@pytest.mark.parametrize("pattern", ["all", "changing"])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_options_take_effect_as_in_torch(name, pattern):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "amsgrad": True}]
        sides.append((params, lib.optim.Adam(groups, lr=0.01)))
    for i in range(25):
        for params, optimizer in sides:
            CHANGES[name](optimizer, i)
            optimizer.zero_grad()
            loss_of(params, PATTERNS[pattern](i)).backward()
            optimizer.step()
        close(*(params for params, _ in sides))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd_can_maximize(momentum, decay):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        options = {"lr": 1e-3, "momentum": momentum, "weight_decay": decay, "maximize": True}
        sides.append((params, lib.optim.SGD(params, **options)))
    for _ in range(20):
        for params, optimizer in sides:
            optimizer.zero_grad()
            loss_of(params, range(4)).backward()
            optimizer.step()
    assert_same(*(params for params, _ in sides))


def test_a_step_allocates_no_arrays():
    w = mt.ones(100_000, requires_grad=True)
    optimizer = Adam([w], weight_decay=0.1, amsgrad=True)
    w.sum().backward()
    optimizer.step()
    tracemalloc.start()
    optimizer.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_parameters_of_several_dtypes():
    a = mt.ones(2, dtype=mt.float32, requires_grad=True)
    b = mt.ones(2, dtype=mt.float64, requires_grad=True)
    optimizer = Adam([a, b], lr=0.5)
    (a.sum() + b.sum()).backward()
    optimizer.step()
    assert (a.tolist(), b.tolist()) == ([0.5, 0.5], pytest.approx([0.5, 0.5]))
    assert (a.dtype, b.dtype) == (mt.float32, mt.float64)


# State --------------------------------------------------------------------------------------------


def trained(lib=mt, steps=5, name="Adam", **options):
    params = leaves(lib)
    given = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]
    optimizer = getattr(lib.optim, name)(given, **{"lr": 0.01, **options})
    train(params, optimizer, steps)
    return params, optimizer


def train(params, optimizer, steps):
    for i in range(steps):
        optimizer.zero_grad()
        loss_of(params, (0, 1, 2) if i % 2 else (0, 2)).backward()  # number 3 is never used
        optimizer.step()


def test_every_parameter_counts_its_steps():
    _, optimizer = trained()
    state = optimizer.state_dict()["state"]
    assert {n: s["step"].item() for n, s in state.items()} == {0: 5.0, 1: 2.0, 2: 5.0}
    assert list(state[0]) == ["step", "exp_avg", "exp_avg_sq"]


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"weight_decay": 0.1}], ids=str)
def test_state_dict_round_trip(options):
    params, optimizer = trained(**options)
    state = optimizer.state_dict()
    twins = leaves(values=values_of(params))
    other = Adam([{"params": twins[:2]}, {"params": twins[2:]}], lr=9.0)
    train(twins, other, 3)  # a state of its own, which must leave no trace
    with mt.no_grad():
        for twin, param in zip(twins, params, strict=True):
            twin.copy_(param)
    other.load_state_dict(state)
    assert other.state_dict()["param_groups"] == state["param_groups"]
    for side in ((params, optimizer), (twins, other)):
        train(*side, 5)
    for a, b in zip(params, twins, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    assert other.state_of(twins[1])["step"] == 4


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_state_goes_to_torch_and_back(name, options):
    torch = pytest.importorskip("torch")
    ours, mine = trained(name=name, **options)
    theirs, other = trained(torch, name=name, **options)
    close(ours, theirs)

    state = mine.state_dict()
    for n, found in other.state_dict()["state"].items():
        assert list(found) == list(state["state"][n])
        for key, value in found.items():
            here = state["state"][n][key]
            assert str(value.dtype) == f"torch.{here.dtype}"
            np.testing.assert_allclose(here.numpy(), value.numpy(), rtol=1e-10)
    state["state"] = {
        n: {k: torch.tensor(v.numpy()) for k, v in s.items()} for n, s in state["state"].items()
    }
    fresh = leaves(torch, values=values_of(ours))
    there = getattr(torch.optim, name)([{"params": fresh[:2]}, {"params": fresh[2:]}], lr=1.0)
    there.load_state_dict(state)

    twins = leaves(values=values_of(theirs))
    here = getattr(mt.optim, name)([{"params": twins[:2]}, {"params": twins[2:]}], lr=1.0)
    here.load_state_dict(other.state_dict())

    for side in ((ours, mine), (fresh, there), (twins, here)):
        train(*side, 5)
    close(ours, fresh)
    close(ours, twins)


def test_state_of_and_load_state_of_resume_exactly():
    params, optimizer = trained(amsgrad=True)
    saved = {n: {k: np.array(v) for k, v in optimizer.state_of(p).items()}
             for n, p in enumerate(params)}  # fmt: skip
    twins = leaves(values=values_of(params))
    other = Adam([{"params": twins[:2]}, {"params": twins[2:], "lr": 0.02}], lr=0.01, amsgrad=True)
    for n, state in saved.items():
        other.load_state_of(twins[n], state)
    for side in ((params, optimizer), (twins, other)):
        train(*side, 6)
    for a, b in zip(params, twins, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_add_param_group_keeps_step_counts():
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        sides.append((params, lib.optim.Adam(params[:2], lr=0.01)))
    for i in range(20):
        for params, optimizer in sides:
            if i == 5:
                optimizer.add_param_group({"params": params[2], "lr": 0.02})
            if i == 9:
                optimizer.add_param_group({"params": [params[3]], "betas": (0.5, 0.5)})
            optimizer.zero_grad()
            loss_of(params, PATTERNS["changing"](i)).backward()
            optimizer.step()
        close(*(params for params, _ in sides))


def broken_states(state):
    yield {**state, "state": {0: {"momentum_buffer": mt.ones(3, 2)}}}, "no state 'momentum_buffer'"
    yield {**state, "state": {0: {"step": mt.ones(2)}}}, r"'step': expected shape \(\)"
    yield {**state, "state": {0: {"exp_avg": mt.ones(2)}}}, r"expected shape \(3, 2\)"
    yield {**state, "state": {0: {"exp_avg": mt.ones(3, 2)}}}, "exp_avg come without 'step'"
    for key, value in {"capturable": True, "lr": -1, "betas": (0.9, 1.0)}.items():
        groups = [{**g, key: value} for g in state["param_groups"]]
        yield {**state, "param_groups": groups}, key


@pytest.mark.parametrize("number", range(7))
def test_a_state_that_does_not_fit_changes_nothing(number):
    params, optimizer = trained()
    twins, other = trained()
    wrong, text = list(broken_states(optimizer.state_dict()))[number]
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(wrong)
    train(params, optimizer, 3)
    train(twins, other, 3)
    assert_same(params, twins)


# Errors and text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize(
    "options, text",
    [
        ({"lr": -1}, "lr must be a number of at least 0, got -1"),
        ({"lr": "fast"}, "lr must be"),
        ({"eps": -1e-8}, "eps must be"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] must be a number of at least 0 and below 1, got 1.0"),
        ({"betas": (-0.1, 0.5)}, r"betas\[0\]"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"foreach": True}, "foreach=True is not supported"),
        ({"fused": True}, "fused=True"),
        ({"capturable": True}, "capturable=True"),
        ({"differentiable": True}, "differentiable=True"),
    ],
    ids=str,
)
def test_what_is_refused(kind, options, text):
    w = mt.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\(\): {text}"):
        kind([w], **options)
    assert w._extra is None  # nothing was moved


def test_switches_that_are_off_are_accepted():
    for kind in (Adam, AdamW):
        kind(leaves(), foreach=False, fused=None, capturable=False, differentiable=False)
    SGD(leaves(), foreach=None, fused=False, differentiable=False)
    with pytest.raises(ValueError, match="fused=True is not supported"):
        SGD(leaves(), fused=True)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_text_is_as_in_torch(name):
    torch = pytest.importorskip("torch")
    texts = []
    for lib in (mt, torch):
        a, b = (lib.ones(1, requires_grad=True) for _ in range(2))
        optimizer = getattr(lib.optim, name)([{"params": [a]}, {"params": [b], "lr": 0.5}])
        lines = repr(optimizer).splitlines()
        only_torch = ("capturable", "differentiable", "foreach", "fused")
        texts.append([x for x in lines if not x.strip().startswith(only_torch)])
    assert [x.replace(".0", "") for x in texts[0]] == [x.replace(".0", "") for x in texts[1]]
