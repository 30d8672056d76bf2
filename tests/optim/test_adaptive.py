"""Adadelta, Adagrad, Adamax, NAdam, RAdam, Rprop, ASGD: torch's steps; states, capture, errors."""

import copy
import inspect

import numpy as np
import pytest
from compilers import needs_compiler
from test_adam import close, train, trained
from test_optim import PATTERNS, leaves, loss_of, values_of

import microtrain as mt
from microtrain.train.step.snapshot import Snapshot

OPTIONS = {
    "Adadelta": [
        {},
        {"lr": 0.5, "rho": 0.5, "eps": 1e-3},
        {"weight_decay": 0.1},
        {"maximize": True},
        {"maximize": True, "weight_decay": 0.1},
    ],
    "Adagrad": [
        {},
        {"lr": 0.1, "lr_decay": 0.1},
        {"weight_decay": 0.1},
        {"initial_accumulator_value": 0.5, "eps": 1e-3},
        {"maximize": True, "weight_decay": 0.1},
    ],
    "Adamax": [
        {},
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3},
        {"weight_decay": 0.1},
        {"maximize": True},
        {"maximize": True, "weight_decay": 0.1},
    ],
    "NAdam": [
        {},
        {"lr": 0.01, "betas": (0.5, 0.9), "momentum_decay": 0.1},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"maximize": True, "weight_decay": 0.1, "momentum_decay": 0},
        {"betas": (0.0, 0.9)},
    ],
    "RAdam": [
        {},
        {"lr": 0.01, "betas": (0.5, 0.9)},
        {"betas": (0.9, 0.5)},  # never rectified
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"maximize": True, "weight_decay": 0.1},
    ],
    "Rprop": [
        {},
        {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (1e-2, 0.2)},
        {"maximize": True},
    ],
    "ASGD": [
        {},
        {"lambd": 0.1, "alpha": 0.5, "t0": 3},
        {"weight_decay": 0.1, "t0": 1},
        {"maximize": True, "weight_decay": 0.1},
    ],
}
CASES = [(name, options) for name in OPTIONS for options in OPTIONS[name]]
EVERY = pytest.mark.parametrize("name, options", CASES, ids=str)


@pytest.fixture
def torch():
    """PyTorch, whose numbers beside the states (mu_product, eta) are of the default dtype."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "pattern, dtype",
    [
        ("all", np.float64),
        ("changing", np.float64),
        ("one missing at first", np.float64),
        ("all", np.float32),
    ],
)
@EVERY
def test_60_steps_equal_torch(torch, name, options, pattern, dtype):
    sides = []
    for lib in (mt, torch):
        params = leaves(lib, dtype)
        sides.append((params, getattr(lib.optim, name)(params, **options)))
    for i in range(60):
        losses = []
        for params, optimizer in sides:

            def closure(params=params, optimizer=optimizer, i=i):
                optimizer.zero_grad()
                loss = loss_of(params, PATTERNS[pattern](i))
                loss.backward()
                return loss

            if i == 30:
                optimizer.param_groups[0].update(lr=0.03)
            if i == 40 and "weight_decay" in options:
                optimizer.param_groups[0].update(weight_decay=0.2)
            if i % 2:
                losses.append(optimizer.step(closure).item())
            else:
                closure()
                losses.append(0 if optimizer.step() is None else None)
        assert losses[0] == pytest.approx(losses[1], rel=1e-11 if dtype == np.float64 else 2e-5)
        if i in (0, 1, 2, 5, 30):
            close(*(params for params, _ in sides), dtype)
    close(*(params for params, _ in sides), dtype)


def same_state(ours, theirs):
    """Names, shapes and values of two states; dtypes but for those of numbers beside arrays."""
    assert sorted(ours) == sorted(theirs)
    for number, found in theirs.items():
        assert sorted(found) == sorted(ours[number])
        for key, value in found.items():
            assert value.shape == ours[number][key].shape
            np.testing.assert_allclose(ours[number][key].numpy(), value.numpy(), rtol=1e-10)


@EVERY
def test_state_goes_to_torch_and_back(torch, name, options):
    ours, mine = trained(name=name, **options)
    theirs, other = trained(torch, name=name, **options)
    state = mine.state_dict()
    same_state(state["state"], other.state_dict()["state"])
    assert state["param_groups"][1].items() <= other.state_dict()["param_groups"][1].items()
    state["state"] = {
        n: {k: torch.tensor(v.numpy()) for k, v in s.items()} for n, s in state["state"].items()
    }
    fresh = leaves(torch, values=values_of(ours))
    there = getattr(torch.optim, name)([{"params": fresh[:2]}, {"params": fresh[2:]}])
    there.load_state_dict(state)
    twins = leaves(values=values_of(theirs))
    here = getattr(mt.optim, name)([{"params": twins[:2]}, {"params": twins[2:]}])
    here.load_state_dict(other.state_dict())
    for side in ((ours, mine), (fresh, there), (twins, here)):
        train(*side, 5)
    close(ours, fresh)
    close(ours, twins)


@pytest.mark.parametrize("way", ["state_dict", "state_of", "copy"])
@EVERY
def test_a_resumed_optimizer_has_the_same_bits(name, options, way):
    for dtype in (np.float32, np.float64):
        params = leaves(dtype=dtype)
        optimizer = getattr(mt.optim, name)(params, **options)
        train(params, optimizer, 7)
        twins = leaves(values=values_of(params))
        if way == "copy":
            twins, other = copy.deepcopy((params, optimizer))
        else:
            other = getattr(mt.optim, name)(twins, **options)
        if way == "state_dict":
            train(twins, other, 2)  # a state of its own, which must leave no trace
            with mt.no_grad():
                for twin, param in zip(twins, params, strict=True):
                    twin.copy_(param)
            other.load_state_dict(optimizer.state_dict())
        elif way == "state_of":
            for twin, param in zip(twins, params, strict=True):
                state = {k: np.array(v) for k, v in optimizer.state_of(param).items()}
                other.load_state_of(twin, state)
        for side in ((params, optimizer), (twins, other)):
            train(*side, 6)
        for a, b in zip(values_of(params), values_of(twins), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("executor", ["numpy", "native"])
@EVERY
def test_a_captured_step_is_the_eager_one(name, options, executor):
    if executor == "native":
        needs_compiler()

    ran = []

    def run(wrap):
        ran.clear()
        mt.manual_seed(0)
        net = mt.nn.Sequential(mt.nn.Linear(5, 4), mt.nn.Tanh(), mt.nn.Linear(4, 2)).double()
        optimizer = getattr(mt.optim, name)(net.parameters(), **options)

        def step(x):
            ran.append(x)
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step, found = wrap(step), []
        for i in range(14):
            if i == 11:
                optimizer.param_groups[0].update(lr=0.02)
            x = np.random.default_rng(i).standard_normal((6, 5))
            found.append(step(mt.from_numpy(x)).item())
        state = optimizer.state_dict()["state"]
        kept = [v.numpy() for one in state.values() for v in one.values()]
        return [np.array(found), *(p.detach().numpy() for p in net.parameters()), *kept]

    def wrap(step):
        return mt.compile(step, executor=executor)

    for a, b in zip(run(lambda step: step), run(wrap), strict=True):
        if executor == "numpy":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert len(ran) <= 4  # replayed also where RAdam begins to divide by the second average


@pytest.mark.parametrize("name", OPTIONS)
def test_parameters_of_one_group_that_began_at_different_times(torch, name):
    """Also where states were loaded: numbers such as mu_product go by the parameter."""
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        optimizer = getattr(lib.optim, name)(params)
        for i in range(12):
            if name == "NAdam" and i == 4:
                optimizer.param_groups[0].update(betas=(0.5, 0.99), momentum_decay=0.1)
            if i == 8:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            loss_of(params, range(4) if i > 5 else (0, 2)).backward()
            optimizer.step()
        sides.append(params)
    close(*sides)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_taken_back_leaves_no_trace(name):
    """A trial of a step, as a run makes it before the first one, and after some."""
    ends = []
    for tries in (False, True):
        mt.manual_seed(0)
        net = mt.distributed.DataParallel(mt.nn.Linear(3, 2), mt.distributed.world())
        optimizer = getattr(mt.optim, name)(net.parameters())
        for i in range(6):
            x = mt.from_numpy(np.random.default_rng(i).standard_normal((4, 3)).astype("f"))

            def step(x=x, net=net, optimizer=optimizer):
                optimizer.zero_grad()
                (net(x) ** 2).mean().backward()
                optimizer.step()

            if tries and i in (1, 2, 4):
                kept = Snapshot(net, None, False, optimizer)
                before = values_of(net.parameters())
                step()
                kept.restore()
                with mt.no_grad():
                    for param, value in zip(net.parameters(), before, strict=True):
                        param.copy_(mt.from_numpy(value))
            step()
        ends.append(values_of(net.parameters()))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_and_defaults_are_those_of_torch(name):
    torch = pytest.importorskip("torch")
    ours, theirs = (inspect.signature(getattr(lib.optim, name)).parameters for lib in (mt, torch))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


@pytest.mark.parametrize("name", OPTIONS)
def test_text_is_as_in_torch(name):
    torch = pytest.importorskip("torch")
    texts = []
    for lib in (mt, torch):
        lines = repr(getattr(lib.optim, name)([lib.ones(1, requires_grad=True)])).splitlines()
        only_torch = ("capturable", "differentiable", "foreach", "fused")
        lines = [x for x in lines if not x.strip().startswith(only_torch)]
        texts.append([x.replace(".0", "") for x in lines])
    assert texts[0] == texts[1]


REFUSED = [
    ("Adadelta", {"lr": -1}, "lr must be a number of at least 0, got -1"),
    ("Adadelta", {"rho": 1.5}, "rho must be a number of at least 0 and at most 1, got 1.5"),
    ("Adadelta", {"eps": -1}, "eps must be"),
    ("Adagrad", {"lr_decay": -1}, "lr_decay must be"),
    ("Adagrad", {"initial_accumulator_value": -1}, "initial_accumulator_value must be"),
    ("Adagrad", {"fused": True}, "fused=True is not supported"),
    ("Adamax", {"betas": (0.9, 1.0)}, r"betas\[1\] must be a number of at least 0 and below"),
    ("Adamax", {"weight_decay": "much"}, "weight_decay must be"),
    ("NAdam", {"betas": 0.9}, "betas must be two numbers"),
    ("NAdam", {"momentum_decay": -1}, "momentum_decay must be"),
    ("RAdam", {"eps": float("nan")}, "eps must be"),
    ("RAdam", {"differentiable": True}, "differentiable=True is not supported"),
    ("Rprop", {"etas": (1.5, 2)}, "etas must be between 0 and 1, and above 1"),
    ("Rprop", {"etas": 0.5}, "etas must be two numbers"),
    ("Rprop", {"step_sizes": (1,)}, "step_sizes must be two numbers"),
    ("ASGD", {"lambd": -1}, "lambd must be"),
    *((name, {"foreach": True}, "foreach=True is not supported") for name in OPTIONS),
]


@pytest.mark.parametrize("name, options, text", REFUSED, ids=str)
def test_what_is_refused(name, options, text):
    with pytest.raises(ValueError, match=rf"^{name}\(\): {text}"):
        getattr(mt.optim, name)(leaves(), **options)


def test_a_state_without_its_numbers_is_refused():
    params, optimizer = trained(name="NAdam")
    state = optimizer.state_dict()
    del state["state"][0]["mu_product"]
    before = values_of(params)
    with pytest.raises(ValueError, match="come without 'mu_product'"):
        optimizer.load_state_dict(state)
    for a, b in zip(before, values_of(params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_adagrad_has_its_state_before_the_first_step():
    optimizer = mt.optim.Adagrad(leaves(), initial_accumulator_value=0.25)
    found = optimizer.state_dict()["state"]
    assert {n: s["step"].item() for n, s in found.items()} == dict.fromkeys(range(4), 0.0)
    assert found[0]["sum"].tolist() == [[0.25, 0.25]] * 3
