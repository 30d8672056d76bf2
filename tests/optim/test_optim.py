"""SGD: the same as torch's, step by step; groups, states, errors."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.optim import SGD

SHAPES = [(3, 2), (2,), (2, 2), ()]


def arrays(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in SHAPES]


def leaves(lib=mt, dtype=np.float64, values=None):
    made = [lib.tensor(a.copy()) for a in (arrays(dtype=dtype) if values is None else values)]
    return [p.requires_grad_() for p in made]


def values_of(params):
    return [p.detach().numpy().copy() for p in params]


def assert_same(ours, theirs, dtype=np.float64):
    rtol = 1e-13 if dtype == np.float64 else 2e-5
    for a, b in zip(values_of(ours), values_of(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


OPTIONS = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9, "dampening": -0.5},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"lr": 0.1, "dampening": 0.5},
    {"lr": 0.0, "momentum": 0.9},
    {"lr": 1},
]

# Which gradients are there in step i, for the parameter numbers 0 to 3.
PATTERNS = {
    "all": lambda i: (0, 1, 2, 3),
    "one missing at first": lambda i: (0, 1, 3) if i < 3 else (0, 1, 2, 3),
    "one missing now and then": lambda i: (0, 1, 2, 3) if i % 3 else (0, 2, 3),
    "one never": lambda i: (0, 1, 3),
    "changing": lambda i: tuple(n for n in range(4) if (i + n) % 4),
    "none at first": lambda i: () if i < 2 else (0, 1, 2, 3),
}


def loss_of(params, used):
    return sum(((p - 0.5 * n) ** 2 * (n + 1)).sum() for n, p in enumerate(params) if n in used)


@pytest.mark.parametrize(
    "pattern, dtype",
    [
        *((pattern, np.float64) for pattern in PATTERNS),
        ("all", np.float32),
        ("changing", np.float32),
    ],
)
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items())
)
def test_100_steps_equal_torch(options, pattern, dtype):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib, dtype)
        sides.append((params, lib.optim.SGD(params, **{**options, "lr": options["lr"] / 20})))
    for i in range(100):
        for params, optimizer in sides:
            optimizer.zero_grad()
            used = PATTERNS[pattern](i)
            if used:
                loss_of(params, used).backward()
            optimizer.step()
        if i % 33 == 0:
            assert_same(*(params for params, _ in sides), dtype)
    assert_same(*(params for params, _ in sides), dtype)


GROUPS = [
    [({}, (0, 1)), ({"lr": 0.01}, (2, 3))],
    [({"momentum": 0.9}, (0, 2)), ({"weight_decay": 0.1, "momentum": 0.0}, (1, 3))],
    [({"nesterov": True, "momentum": 0.5}, (3,)), ({"dampening": 0.2}, (0, 1, 2))],
    [({"lr": 0.0}, (1,)), ({}, (0, 2)), ({"lr": 0.3}, (3,))],
]


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameter_groups_equal_torch(groups, momentum):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        given = [{**options, "params": [params[n] for n in members]} for options, members in groups]
        if any(o.get("nesterov") for o, _ in groups) and not momentum:
            given = [{**g, "momentum": 0.5} for g in given]
        sides.append((params, lib.optim.SGD(given, lr=0.02, momentum=momentum)))
    for i in range(40):
        for params, optimizer in sides:
            optimizer.zero_grad()
            loss_of(params, (0, 1, 2, 3) if i % 5 else (0, 3)).backward()
            optimizer.step()
            if i == 20:
                optimizer.param_groups[0]["lr"] = 0.004
    assert_same(sides[0][0], sides[1][0])


CHANGES = {
    "lr": lambda o, i: o.param_groups[0].update(lr=0.01 / (1 + i)),
    "lr to 0 and back": lambda o, i: o.param_groups[0].update(lr=0.0 if i % 4 == 1 else 0.01),
    "momentum on": lambda o, i: i == 5 and o.param_groups[0].update(momentum=0.9),
    "momentum on, off, on": lambda o, i: (
        i % 5 == 0 and o.param_groups[0].update(momentum=0.0 if i % 10 else 0.8)
    ),
    "momentum value": lambda o, i: o.param_groups[0].update(momentum=0.5 + i / 100),
    "nesterov": lambda o, i: o.param_groups[0].update(momentum=0.9, nesterov=i > 7),
    "weight decay": lambda o, i: o.param_groups[0].update(weight_decay=0.01 * (i % 3)),
    "dampening": lambda o, i: o.param_groups[0].update(momentum=0.9, dampening=0.1 * (i % 2)),
}


@pytest.mark.parametrize("pattern", ["all", "changing"])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_options_take_effect_as_in_torch(name, pattern):
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        sides.append((params, lib.optim.SGD(params, lr=0.01)))
    for i in range(30):
        for params, optimizer in sides:
            CHANGES[name](optimizer, i)
            optimizer.zero_grad()
            loss_of(params, PATTERNS[pattern](i)).backward()
            optimizer.step()
        assert_same(*(params for params, _ in sides))


@pytest.mark.parametrize(
    "kind, options, later",
    [
        ("SGD", {"momentum": 0.9, "dampening": 0.3}, {"nesterov": True}),
        ("SGD", {"momentum": 0.9}, {"momentum": -1}),
        ("Adam", {}, {"betas": (1.0, 0.9)}),
        ("RMSprop", {}, {"alpha": "0.9"}),
        ("SGD", {}, {"lr": -0.1}),
        ("Adam", {}, {"lr": float("nan")}),
        ("Adam", {}, {"lr": "0.1"}),
        ("SGD", {"dampening": 0.3}, {"momentum": 0.9, "nesterov": True}),  # and has new states
    ],
)
def test_an_option_that_is_changed_to_what_cannot_be_loaded_is_refused(kind, options, later):
    """Not by load_state_dict, hours later."""
    p, q = (mt.ones(2, requires_grad=True) for _ in range(2))
    optimizer = getattr(mt.optim, kind)([{"params": q}, {"params": p}], lr=0.1, **options)
    for _ in range(2):
        (p.sum() + q.sum()).backward()
        optimizer.step()
    before = p.tolist()
    optimizer.param_groups[1].update(later)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"must be|requires"):
            optimizer.step()
    assert p.tolist() == before
    optimizer.param_groups[1].update({name: optimizer.defaults[name] for name in later})
    optimizer.step()
    assert p.tolist() != before


BY_HAND = {
    "a parameter more": lambda o, q: o.param_groups[0]["params"].append(q),
    "one less": lambda o, q: o.param_groups[0]["params"].pop(),
    "another one": lambda o, q: o.param_groups[0]["params"].__setitem__(0, q),
    "another list": lambda o, q: o.param_groups[0].update(params=[q]),
    "a group less": lambda o, q: o.param_groups.pop(),
    "a group more": lambda o, q: o.param_groups.append({"params": [q], "lr": 0.1}),
    "a group anew": lambda o, q: o.param_groups.__setitem__(0, {**o.param_groups[0], "lr": 0.5}),
    "all groups anew": lambda o, q: setattr(o, "param_groups", [{**o.param_groups[0], "lr": 0.5}]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_groups_that_are_replaced_by_hand_are_not_passed_over(name):
    p, q = (mt.ones(2, requires_grad=True) for _ in range(2))
    optimizer = SGD([p], lr=0.1)
    for given in (p, q):
        given.grad = mt.ones(2)
    optimizer.step()
    before = p.tolist()
    BY_HAND[name](optimizer, q)
    if name.startswith("another"):
        p.grad = None  # nothing leads to it any more
    with pytest.raises(RuntimeError, match="was replaced by hand"):
        optimizer.step()
    assert p.tolist() == before


def test_a_parameter_frozen_later_stays_where_it_is():
    params = leaves()
    optimizer = SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1)
    for i in range(4):
        optimizer.zero_grad()
        params[1].requires_grad_(i < 1)
        loss_of(params, (0, 1, 2, 3)).backward()
        optimizer.step()
        if i == 0:
            frozen = values_of(params)[1]
    assert params[1].grad is None
    np.testing.assert_array_equal(params[1].numpy(), frozen)
    params[1].requires_grad_()
    loss_of(params, (1,)).backward()
    optimizer.step()
    assert not np.array_equal(params[1].detach().numpy(), frozen)


def test_parameters_of_several_dtypes():
    a = mt.ones(2, dtype=mt.float32, requires_grad=True)
    b = mt.ones(2, dtype=mt.float64, requires_grad=True)
    c = mt.ones(2, dtype=mt.float32, requires_grad=True)
    optimizer = SGD([a, b, c], lr=0.5, momentum=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        (a.sum() + b.sum() + (2 * c).sum()).backward()
        optimizer.step()
    assert (a.tolist(), b.tolist(), c.tolist()) == ([-0.25] * 2, [-0.25] * 2, [-1.5] * 2)
    assert (a.dtype, b.dtype) == (mt.float32, mt.float64)
    assert len(optimizer.storage.buffers) == 2


# zero_grad, closure, add_param_group --------------------------------------------------------------


def test_zero_grad():
    x, y = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    optimizer = SGD([x, y], lr=0.1)
    (x * 2).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert (x.grad.tolist(), y.grad) == ([0.0, 0.0], None)
    optimizer.zero_grad()
    assert x.grad is y.grad is None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_closure():
    x = mt.tensor([3.0], requires_grad=True)
    optimizer = SGD([x], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    with mt.no_grad():  # the closure records all the same
        assert optimizer.step(closure).item() == 9.0
    assert x.tolist() == [1.5]
    assert optimizer.step() is None


def test_add_param_group_keeps_values_gradients_and_states():
    torch = pytest.importorskip("torch")
    sides = []
    for lib in (mt, torch):
        params = leaves(lib)
        sides.append((params, lib.optim.SGD(params[:2], lr=0.01, momentum=0.9)))
    for i in range(20):
        for params, optimizer in sides:
            if i == 5:
                optimizer.add_param_group({"params": params[2], "lr": 0.02})
            if i == 9:
                optimizer.add_param_group({"params": [params[3]], "momentum": 0.0})
            if i % 3:
                optimizer.zero_grad()
            loss_of(params, PATTERNS["changing"](i)).backward()
            optimizer.step()
        assert_same(*(params for params, _ in sides))
    ours = sides[0][1]
    assert len(ours.storage.buffers) == 1
    assert ours.storage.buffers[0].data.size == sum(p.numel() for p in sides[0][0])
    assert all(np.shares_memory(p._array, ours.storage.buffers[0].data) for p in sides[0][0])


def test_what_add_param_group_refuses():
    a, b, c = (mt.ones(2, requires_grad=True) for _ in range(3))
    optimizer, other = SGD([a], lr=0.1), SGD([b], lr=0.1)
    with pytest.raises(ValueError, match="more than once"):
        optimizer.add_param_group({"params": [a]})
    with pytest.raises(RuntimeError, match="give all groups to the constructor"):
        optimizer.add_param_group({"params": [b]})
    with pytest.raises(ValueError, match="unknown option 'rate'"):
        optimizer.add_param_group({"params": [c], "rate": 1})
    with pytest.raises(ValueError, match="no 'params'"):
        optimizer.add_param_group({"lr": 1})
    shared = SGD([b], lr=0.1)
    with pytest.raises(RuntimeError, match="another optimizer or DataParallel"):
        shared.add_param_group({"params": [c]})
    assert len(optimizer.param_groups) == len(other.param_groups) == 1
    assert c._extra is None


# State --------------------------------------------------------------------------------------------


def trained(lib=mt, steps=5, **options):
    params = leaves(lib)
    given = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]
    optimizer = lib.optim.SGD(given, **{"lr": 0.01, "momentum": 0.9, **options})
    train(params, optimizer, steps)
    return params, optimizer


def train(params, optimizer, steps):
    for i in range(steps):
        optimizer.zero_grad()
        loss_of(params, (0, 1, 2) if i % 2 else (0, 2)).backward()  # number 3 is never used
        optimizer.step()


def test_state_dict_round_trip():
    params, optimizer = trained()
    state = optimizer.state_dict()
    assert sorted(state["state"]) == [0, 1, 2]
    assert [g["params"] for g in state["param_groups"]] == [[0, 1], [2, 3]]
    twins = leaves(values=values_of(params))
    other = SGD([{"params": twins[:2]}, {"params": twins[2:]}], lr=9.0)
    other.load_state_dict(state)
    assert [g["lr"] for g in other.param_groups] == [0.01, 0.02]
    state["state"][0]["momentum_buffer"].zero_()  # a copy: nobody notices
    for side in ((params, optimizer), (twins, other)):
        train(*side, 5)
    for a, b in zip(params, twins, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda both: pickle.loads(pickle.dumps(both)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name, options", [("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True})])
def test_a_copy_moves_its_own_parameters(name, options, how):
    params = leaves()
    optimizer = getattr(mt.optim, name)(
        [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}], lr=0.01, **options
    )
    train(params, optimizer, 3)
    twins, other = COPIES[how]((params, optimizer))
    before = values_of(params)
    train(twins, other, 3)
    for value, old in zip(values_of(params), before, strict=True):
        np.testing.assert_array_equal(value, old)
    train(params, optimizer, 3)
    for value, moved in zip(values_of(params), values_of(twins), strict=True):
        np.testing.assert_array_equal(value, moved)
    assert np.abs(values_of(params)[0] - before[0]).max() > 0


def test_state_of_is_a_view_in_the_parameters_shape():
    params, optimizer = trained()
    state = optimizer.state_of(params[0])
    assert state["momentum_buffer"].shape == (3, 2)
    assert optimizer.state_of(params[3]) == {}
    before = values_of(params)[0]
    state["momentum_buffer"][...] = 0
    optimizer.param_groups[0]["lr"] = 1.0
    params[0].grad = mt.zeros(3, 2, dtype=mt.float64)
    optimizer.step()
    np.testing.assert_array_equal(params[0].detach().numpy(), before)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_state_goes_to_torch_and_back(momentum):
    torch = pytest.importorskip("torch")
    ours, mine = trained(momentum=momentum)
    theirs, other = trained(torch, momentum=momentum)
    assert_same(ours, theirs)

    state = mine.state_dict()
    state["state"] = {
        n: {k: torch.tensor(v.numpy()) for k, v in s.items()} for n, s in state["state"].items()
    }
    fresh = leaves(torch, values=values_of(ours))
    there = torch.optim.SGD([{"params": fresh[:2]}, {"params": fresh[2:]}], lr=1.0)
    there.load_state_dict(state)

    twins = leaves(values=values_of(theirs))
    here = SGD([{"params": twins[:2]}, {"params": twins[2:]}], lr=1.0)
    here.load_state_dict(other.state_dict())

    for side in ((ours, mine), (fresh, there), (twins, here)):
        train(*side, 5)
    assert_same(ours, fresh)
    assert_same(ours, twins)


def broken_states(state):
    yield {**state, "param_groups": state["param_groups"][:1]}, "groups of sizes"
    short = [{**g, "params": g["params"][:1]} for g in state["param_groups"]]
    yield {**state, "param_groups": short}, "groups of sizes"
    yield {**state, "state": {7: {}}}, "parameter 7"
    yield {**state, "state": {0: {"exp_avg": mt.ones(3, 2)}}}, "no state 'exp_avg'"
    yield {**state, "state": {0: {"momentum_buffer": mt.ones(2)}}}, r"expected shape \(3, 2\)"
    other = [{**g, "foreach": True} for g in state["param_groups"]]
    yield {**state, "param_groups": other}, "unknown option 'foreach'"
    other = [{**g, "lr": -1} for g in state["param_groups"]]
    yield {**state, "param_groups": other}, "lr must be"


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


def weights():
    return mt.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda w: SGD([], lr=1), ValueError, "empty parameter list"),
        (lambda w: SGD(w, lr=1), TypeError, "list of Tensors or of dicts.*got Tensor"),
        (lambda w: SGD({w}, lr=1), TypeError, "got set"),
        (lambda w: SGD({"params": [w]}, lr=1), TypeError, "got dict"),
        (lambda w: SGD([3], lr=1), TypeError, "one of the params is int"),
        (lambda w: SGD([w * 2], lr=1), ValueError, "can't optimize a non-leaf"),
        (lambda w: SGD([mt.ones(2, dtype=mt.int64)]), ValueError, "dtype int64"),
        (lambda w: SGD([w, w], lr=1), ValueError, "more than once"),
        (
            lambda w: SGD([{"params": [w]}, {"params": w}]),
            ValueError,
            "more than one parameter group",
        ),
        (lambda w: SGD([{"params": [w], "rate": 3}]), ValueError, "unknown option 'rate'.*lr"),
        (lambda w: SGD([{"params": [w]}, w]), TypeError, "a parameter group, a dict, got Tensor"),
        (lambda w: SGD([w], lr=-1), ValueError, "lr must be a number of at least 0, got -1"),
        (lambda w: SGD([w], lr="fast"), ValueError, "lr must be .* got 'fast'"),
        (lambda w: SGD([w], lr=float("nan")), ValueError, "lr must be"),
        (lambda w: SGD([w], lr=True), ValueError, "lr must be"),
        (lambda w: SGD([w], momentum=-0.1), ValueError, "momentum must be"),
        (lambda w: SGD([w], weight_decay=-0.1), ValueError, "weight_decay must be"),
        (lambda w: SGD([w], nesterov=True), ValueError, "Nesterov momentum requires"),
        (lambda w: SGD([w], nesterov=True, momentum=0.9, dampening=0.1), ValueError, "Nesterov"),
    ],
)
def test_what_is_refused(make, error, text):
    w = weights()
    with pytest.raises(error, match=text):
        make(w)
    assert w._extra is None  # nothing was moved


def test_text_is_as_in_torch():
    torch = pytest.importorskip("torch")
    texts = []
    for lib in (mt, torch):
        a, b = (lib.ones(1, requires_grad=True) for _ in range(2))
        optimizer = lib.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
        lines = repr(optimizer).splitlines()
        only_torch = ("differentiable", "foreach", "fused")
        texts.append([x.replace(".0", "") for x in lines if not x.strip().startswith(only_torch)])
    assert texts[0] == texts[1]


def test_learning_rates_may_be_numpy_numbers():
    for lr, kind in itertools.product((np.float32(0.5), np.float64(0.5)), (mt.float32, mt.float64)):
        w = mt.ones(1, dtype=kind, requires_grad=True)
        optimizer = SGD([w], lr=lr)
        w.sum().backward()
        optimizer.step()
        assert (w.tolist(), w.dtype) == ([0.5], kind)


@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys])
@pytest.mark.parametrize("way", ["argument", "group", "later group"])
def test_parameters_in_no_order_are_refused(kind, way):
    """Their order would differ from rank to rank and run to run."""
    members = kind([mt.nn.Parameter(mt.ones(1)) for _ in range(3)])
    call, given = SGD, members if way == "argument" else [{"params": members}]
    if way == "later group":
        call, given = SGD([mt.nn.Parameter(mt.ones(1))]).add_param_group, given[0]
    with pytest.raises(TypeError, match="in an order that is the same everywhere"):
        call(given)


def test_zero_grad_drops_the_gradient_of_a_parameter_that_is_frozen_by_now():
    """Documented: PyTorch keeps zeros, with which momentum would move it on."""
    a = mt.nn.Parameter(mt.tensor([2.0]))
    optimizer = SGD([a], lr=0.1, momentum=0.9)
    (a**2).sum().backward()
    optimizer.step()
    a.requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)
    before = a.item()
    optimizer.step()
    assert a.grad is None
    assert a.item() == before


def along(p, g, velocity, *, lr=0.1, decay=0.9, ahead=False):
    velocity *= decay
    velocity += g
    p -= lr * (g + decay * velocity if ahead else velocity)


@pytest.mark.parametrize("step", ["eager", "numpy", "native"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_formula_of_your_own_is_an_optimizer(ahead, step):
    if step == "native":
        needs_compiler()
    ends = []
    for kind in (mt.optim.Formula, SGD):
        params = leaves(dtype=np.float32)
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.004}]
        if kind is SGD:
            optimizer = SGD(groups, lr=0.02, momentum=0.5, nesterov=ahead)
        else:
            optimizer = kind(groups, along, lr=0.02, decay=0.5, ahead=ahead)

        def train(optimizer=optimizer, params=params):
            optimizer.zero_grad()
            loss_of(params, (0, 1, 2, 3)).backward()
            optimizer.step()

        train = train if step == "eager" else mt.compile(train, executor=step)
        for i in range(12):
            train()
            optimizer.param_groups[0]["lr"] *= 0.9
            if i == 5 and step == "eager":
                optimizer, params = pickle.loads(pickle.dumps((optimizer, params)))
                train.__defaults__ = optimizer, params
        ends += [values_of(params), optimizer.state_dict()["state"]]
    for a, b in zip(ends[0], ends[2], strict=True):
        assert a.tobytes() == b.tobytes()
    found = [[v.tolist() for s in states.values() for v in s.values()] for states in ends[1::2]]
    assert found[0] == found[1]


def test_a_class_of_your_own_may_do_more_at_every_update():
    class Clipped(SGD):
        def update(self, run):
            run.grad.clip(-0.5, 0.5, run.grad)
            super().update(run)

    (w,) = leaves(values=[np.zeros(3)])
    optimizer = Clipped([w], lr=1.0, momentum=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        (w * 3.0).sum().backward()
        optimizer.step()
    assert w.tolist() == [-0.5 - 0.75 - 0.875 - 0.9375] * 3


def of_a_norm(p, g, *, lr=0.1):
    p -= lr * g / np.sqrt((g * g).sum())


def of_a_part(p, g, *, lr=0.1):
    p[0] -= lr * g[0]


def of_a_length(p, g, *, lr=0.1):
    p -= lr * g / len(g)


def of_a_shape(p, g, *, lr=0.1):
    p -= lr * g / g.shape[0] ** 0.5


def of_a_draw(p, g, *, lr=0.1):
    p -= lr * g * np.random.default_rng().random()


def turned_round(p, g, *, lr=0.1):
    p -= lr * g[::-1]


def turned_round_to(p, g, *, lr=0.1):
    q = p[::-1]
    q -= lr * g


def rateless(p, g, *, pace=0.1):
    p -= pace * g


def of_powers(p, g, v, *, lr=0.1, decay=0.9):
    v *= decay
    v += (1 - decay) * g**2
    p -= lr * g / (v**0.5 + 1e-8) + lr**2 * p - np.square(lr) * g**3 * (g * g + 1) ** -1


@pytest.mark.parametrize("step", ["eager", "numpy", "native"])
def test_powers_in_a_formula(step):
    values = np.linspace(-1.0, 2.0, 7)
    w, v = mt.tensor(values, requires_grad=True), np.zeros(7)
    optimizer = mt.optim.Formula([w], of_powers)

    def train():
        optimizer.zero_grad()
        (w**2).sum().backward()
        optimizer.step()

    train = train if step == "eager" else mt.compile(train, executor=step)
    for _ in range(5):
        train()
        of_powers(values, 2 * values, v)
    np.testing.assert_allclose(w.detach().numpy(), values, rtol=1e-12)


@pytest.mark.parametrize(
    "formula, options, text",
    [
        (of_a_norm, {}, r"test_optim.py:\d+: sum is not elementwise"),
        (of_a_part, {}, "is not elementwise"),
        (turned_round, {}, "is not elementwise"),
        (turned_round_to, {}, "is not elementwise"),
        (of_a_length, {}, r"of_a_length\(\): computes with a number that is different each time"),
        (of_a_shape, {}, "is recorded once, for blocks of any length"),
        (of_a_draw, {}, "is recorded once, for blocks of any length"),
        (rateless, {}, r"expected a formula, def rateless\(p, g, ..., \*, lr"),
        (along, {"momentum": 0.9}, "the formula has no option 'momentum'"),
        (
            along,
            {"decay": [0.9]},
            r"along\(\): decay must be a number, a flag or text, got \[0.9\]",
        ),
        (lambda p, g, *, lr: None, {}, "needs the option 'lr'"),
    ],
)
def test_what_is_no_formula(formula, options, text):
    (w,) = leaves(values=[np.ones(3)])
    w.sum().backward()
    with pytest.raises(TypeError, match=text):
        mt.optim.Formula([w], formula, **options).step()
