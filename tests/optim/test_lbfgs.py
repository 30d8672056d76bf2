"""LBFGS: torch's trajectory, its state, several ranks, what is refused."""

import copy
import inspect

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.distributed import DataParallel, in_process
from microtrain.errors import CaptureError

OPTIONS = [
    {},
    {"line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 7},
    {"lr": 0.3, "history_size": 3},
    {"line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 9},
    {"line_search_fn": "strong_wolfe", "max_eval": 6, "lr": 3},
    {"line_search_fn": "strong_wolfe", "tolerance_grad": 1e-2},
    {"line_search_fn": "strong_wolfe", "tolerance_change": 1e-3},
    {"max_iter": 1},
    {"max_eval": 1, "line_search_fn": "strong_wolfe"},
    {"lr": 0.0},
]


def rosenbrock(lib, params):
    a, b = params
    return (100 * (a[1:] - a[:-1] ** 2) ** 2 + (1 - a[:-1]) ** 2).sum() + ((b - 0.5) ** 4).sum()


def waves(lib, params):
    """Neither convex nor smooth everywhere: brackets of all kinds."""
    a, b = params
    return (a.sin() * 3 + 0.1 * a * a).sum() + (b * a[:2]).sum().abs() + (b**4).sum()


def regression(lib, params):
    a, b = params
    x = lib.from_numpy(np.random.default_rng(0).standard_normal((20, 4)))
    return ((x @ a).tanh() * b.sum() - x[:, 0]).pow(2).mean()


LOSSES = {"rosenbrock": rosenbrock, "waves": waves, "regression": regression}


def problem(lib, loss_of, seed=0, dtype=np.float64, **options):
    rng = np.random.default_rng(seed)
    params = [lib.from_numpy(rng.standard_normal(n).astype(dtype)).requires_grad_() for n in (4, 2)]
    optimizer = lib.optim.LBFGS(params, **options)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(lib, params)
        loss.backward()
        calls.append(loss.item())
        return loss

    return params, optimizer, closure, calls


def same(ours, theirs, rtol=1e-8):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_steps_equal_torch(name, options, seed):
    torch = pytest.importorskip("torch")
    ours, mine, closure, calls = problem(mt, LOSSES[name], seed, **options)
    theirs, other, closure2, calls2 = problem(torch, LOSSES[name], seed, **options)
    for _ in range(4):
        assert mine.step(closure).item() == pytest.approx(other.step(closure2).item(), rel=1e-7)
        if not np.isfinite(calls2).all() or max(np.abs(calls2)) > 1e8:
            return  # steps of a fixed length may leave for infinity, and rounding grows
        np.testing.assert_allclose(calls[:30], calls2[:30], rtol=1e-6, atol=1e-9)
        if len(calls2) > 30:  # as here: curvature is a difference of nearly equal gradients
            return
        assert len(calls) == len(calls2)
        same(ours, theirs, 1e-6)


def test_a_float32_model_converges_as_in_torch():
    torch = pytest.importorskip("torch")
    ends = []
    for lib in (mt, torch):
        params, optimizer, closure, _ = problem(
            lib, rosenbrock, dtype=np.float32, line_search_fn="strong_wolfe"
        )
        for _ in range(5):
            optimizer.step(closure)
        ends.append(params)
    assert ends[0][0].dtype == mt.float32
    same(*ends, 1e-2)


def test_parameters_of_any_shape_order_and_presence_are_as_in_torch():
    """A transposed weight, one that is never used, one of no dimensions; DataParallel's order."""
    torch = pytest.importorskip("torch")
    ends = []
    for lib in (mt, torch):
        rng = np.random.default_rng(1)
        net = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.Tanh(), lib.nn.Linear(4, 1)).double()
        unused = lib.nn.Parameter(lib.from_numpy(np.ones(2)))
        scale = lib.nn.Parameter(lib.from_numpy(np.array(0.7)))
        params = [scale, unused, *reversed([*net.parameters()])]
        with lib.no_grad():
            for p in net.parameters():
                p.copy_(lib.from_numpy(rng.standard_normal(tuple(p.shape))))
        x = lib.from_numpy(rng.standard_normal((9, 3)))
        optimizer = lib.optim.LBFGS(params, line_search_fn="strong_wolfe", max_iter=8)

        def closure(net=net, optimizer=optimizer, x=x, scale=scale):
            optimizer.zero_grad()
            loss = (net(x) * scale - x[:, :1]).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        ends.append([params, optimizer.state_dict()["state"][0]["d"]])
    same(ends[0][0], ends[1][0], 1e-6)
    same([ends[0][1]], [ends[1][1]], 1e-4)


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"line_search_fn": "strong_wolfe"}], ids=str)
def test_state_goes_to_torch_and_back(options):
    torch = pytest.importorskip("torch")
    options = {**options, "max_iter": 4, "history_size": 5}
    ours, mine, closure, _ = problem(mt, rosenbrock, **options)
    _, other, closure2, _ = problem(torch, rosenbrock, **options)
    for _ in range(2):
        mine.step(closure)
        other.step(closure2)
    state = mine.state_dict()
    found, expected = state["state"][0], other.state_dict()["state"][0]
    assert found.keys() == expected.keys() - {"al"}
    assert len(found["old_dirs"]) == len(expected["old_dirs"]) > 1

    def tensors(value):
        if isinstance(value, list):
            return [tensors(one) for one in value]
        return torch.tensor(value.numpy()) if isinstance(value, mt.Tensor) else value

    state["state"] = {0: {name: tensors(value) for name, value in found.items()}}
    fresh, there, closure3, _ = problem(torch, rosenbrock, **options)
    twins, here, closure4, _ = problem(mt, rosenbrock, **options)
    for lib, params, one, given in (
        (torch, fresh, there, state), (mt, twins, here, other.state_dict())
    ):  # fmt: skip
        with lib.no_grad():
            for param, value in zip(params, ours, strict=True):
                param.copy_(lib.from_numpy(value.detach().numpy().copy()))
        one.load_state_dict(given)
    for _ in range(2):
        for one, call in ((mine, closure), (there, closure3), (here, closure4)):
            one.step(call)
    same(ours, fresh, 1e-6)
    same(ours, twins, 1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("way", ["state_dict", "state_of", "copy", "files"])
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_a_resumed_optimizer_has_the_same_bits(way, line_search, dtype, tmp_path):
    options = {"line_search_fn": line_search, "lr": 0.2, "max_iter": 5, "history_size": 4}
    mt.manual_seed(0)
    net = mt.nn.Linear(3, 2)
    net = net.double() if dtype == np.float64 else net
    x = mt.from_numpy(np.random.default_rng(0).standard_normal((8, 3)).astype(dtype))

    def made(net):
        optimizer = mt.optim.LBFGS(net.parameters(), **options)
        return optimizer, lambda: run(net, optimizer)

    def run(net, optimizer):
        optimizer.zero_grad()
        loss = (net(x).sin() - x[:, :2]).pow(2).sum()
        loss.backward()
        return loss

    optimizer, closure = made(net)
    for _ in range(2):
        optimizer.step(closure)
    if way == "copy":
        twin, other = copy.deepcopy((net, optimizer))
        again = lambda: run(twin, other)  # noqa: E731
    else:
        twin = copy.deepcopy(net)
        other, again = made(twin)
    if way == "state_dict":
        other.step(again)
        twin.load_state_dict(net.state_dict())
        other.load_state_dict(optimizer.state_dict())
    elif way == "state_of":
        for mine, theirs in zip(twin.parameters(), net.parameters(), strict=True):
            other.load_state_of(mine, optimizer.state_of(theirs))
    elif way == "files":
        mt.save(tmp_path, 2, model=net, optimizer=optimizer)
        twin = mt.nn.Linear(3, 2)
        twin = twin.double() if dtype == np.float64 else twin
        other, again = made(twin)
        mt.restore(tmp_path, model=twin, optimizer=other)
    for _ in range(3):
        optimizer.step(closure)
        other.step(again)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    assert other.memory.n_iter == optimizer.memory.n_iter


# Ranks ------------------------------------------------------------------------------------------

X = np.random.default_rng(3).standard_normal((24, 3))
Y = np.sin(X[:, :1] * 2) + X[:, 1:2]


def fitted(comm, shares, captured=False, line_search="strong_wolfe"):
    """A model after LBFGS's steps on this rank's rows, and how often the closure ran."""
    mt.manual_seed(0)
    net = DataParallel(
        mt.nn.Sequential(mt.nn.Linear(3, 5), mt.nn.Tanh(), mt.nn.Linear(5, 1)).double(), comm
    )
    optimizer = mt.optim.LBFGS(net.parameters(), lr=0.3, max_iter=8, line_search_fn=line_search)
    ends = np.cumsum([0, *shares])
    mine = slice(ends[comm.rank], ends[comm.rank + 1])
    x, y = mt.from_numpy(X[mine].copy()), mt.from_numpy(Y[mine].copy())

    def evaluate(x, y):
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    if captured:
        evaluate = mt.compile(evaluate)
    for _ in range(4):
        optimizer.step(lambda: evaluate(x, y))
    values = [p.detach().numpy().copy() for p in net.parameters()]
    return values, optimizer.memory.func_evals, net.loss


SHARES = [[24], [12, 12], [20, 4], [24, 0], [6, 6, 6, 6], [1, 0, 20, 3]]


@pytest.mark.parametrize("line_search", ["strong_wolfe", None])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_any_number_of_ranks_takes_the_same_steps(shares, captured, line_search):
    ((alone, calls, loss),) = in_process.run(1, lambda comm: fitted(comm, [24], False, line_search))
    found = in_process.run(len(shares), lambda comm: fitted(comm, shares, captured, line_search))
    assert loss < 0.1
    for values, evaluations, _ in found:
        assert evaluations == calls
        for a, b in zip(values, found[0][0], strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(values, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_accumulated_passes_are_one_loss():
    def run(comm, passes):
        mt.manual_seed(0)
        net = DataParallel(mt.nn.Linear(3, 1).double(), comm)
        optimizer = mt.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", max_iter=5)
        parts = np.array_split(X[comm.rank :: comm.size], passes)

        def closure():
            optimizer.zero_grad()
            for number, part in enumerate(parts):
                x = mt.from_numpy(part.copy())
                loss = (net(x).sin() - x[:, :1]).pow(2).mean()
                if number + 1 < len(parts):
                    with net.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            return loss  # that of the last part, and of this rank

        optimizer.step(closure)
        return [p.detach().numpy().copy() for p in net.parameters()]

    (whole,) = in_process.run(1, lambda comm: run(comm, 1))
    for values in in_process.run(2, lambda comm: run(comm, 3)):
        for a, b in zip(values, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7)


@pytest.mark.parametrize(
    "passes, text",
    [
        (lambda net, x: net(x).mean(), "got 0 of them"),
        (lambda net, x: [net(x).mean().backward() for _ in range(2)], "got 2 of them"),
        (lambda net, x: net(x).backward(mt.ones(4, 1)), "does not start from a scalar"),
    ],
)
def test_a_closure_without_a_global_loss_is_refused(passes, text):
    net = DataParallel(mt.nn.Linear(3, 1))
    optimizer = mt.optim.LBFGS(net.parameters())
    with pytest.raises(RuntimeError, match=text):
        optimizer.step(lambda: passes(net, mt.ones(4, 3)))


@pytest.mark.mpi
def test_under_mpirun():
    comm = mt.distributed.world()
    ((alone, calls, _),) = in_process.run(1, lambda one: fitted(one, [24]))
    shares = [24, *[0] * (comm.size - 1)]
    for captured in (False, True):
        values, evaluations, _ = fitted(comm, shares, captured)
        assert evaluations == calls
        everyone = comm.all_gather(np.concatenate([v.ravel() for v in values])[None])
        assert (everyone == everyone[0]).all()
        for a, b in zip(values, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# Capture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["numpy", "native"])
def test_a_captured_closure_takes_the_eager_steps(executor):
    if executor == "native":
        needs_compiler()
    ends = []
    for captured in (False, True):
        params, optimizer, _, calls = problem(
            mt, regression, line_search_fn="strong_wolfe", max_iter=6
        )
        x = mt.from_numpy(np.random.default_rng(0).standard_normal((20, 4)))

        def evaluate(x, params=params, optimizer=optimizer, calls=calls):
            optimizer.zero_grad()
            loss = ((x @ params[0]).tanh() * params[1].sum() - x[:, 0]).pow(2).mean()
            loss.backward()
            calls.append(1)
            return loss

        call = mt.compile(evaluate, executor=executor) if captured else evaluate
        for _ in range(4):
            optimizer.step(lambda call=call, x=x: call(x))
        ends.append(params)
    assert len(calls) <= 4 < optimizer.memory.func_evals
    for a, b in zip(*ends, strict=True):
        if executor == "numpy":
            np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
        else:
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-6)


def test_a_step_inside_a_captured_one_is_refused():
    params, optimizer, closure, _ = problem(mt, rosenbrock)
    before = params[0].tolist()
    step = mt.compile(lambda: optimizer.step(closure))
    with pytest.raises(CaptureError, match=r"LBFGS.step\(\) inside a captured step.*Capture what"):
        step()
    assert params[0].tolist() == before


# Errors and text --------------------------------------------------------------------------------


def test_arguments_defaults_and_text_are_those_of_torch():
    torch = pytest.importorskip("torch")
    ours, theirs = (inspect.signature(lib.optim.LBFGS).parameters for lib in (mt, torch))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]
    texts = [repr(lib.optim.LBFGS([lib.ones(1, requires_grad=True)])) for lib in (mt, torch)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"lr": -1}, r"LBFGS\(\): lr must be a number of at least 0, got -1"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        ({"history_size": 2.5}, "history_size must be a whole number"),
        ({"line_search_fn": "armijo"}, "line_search_fn must be 'strong_wolfe' or None"),
        ({"tolerance_change": "small"}, "tolerance_change must be a number"),
    ],
    ids=str,
)
def test_what_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        mt.optim.LBFGS([mt.ones(2, requires_grad=True)], **options)


def test_groups_and_dtypes_are_refused():
    a, b = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="doesn't support per-parameter options"):
        mt.optim.LBFGS([{"params": [a]}, {"params": [b]}])
    optimizer = mt.optim.LBFGS([a])
    with pytest.raises(ValueError, match="doesn't support per-parameter options"):
        optimizer.add_param_group({"params": [b]})
    with pytest.raises(TypeError, match="needs a closure"):
        optimizer.step()
    wide = mt.ones(2, dtype=mt.float64, requires_grad=True)
    with pytest.raises(ValueError, match="one dtype on one device, got 'float32 and float64"):
        mt.optim.LBFGS([b, wide])


def test_a_state_that_does_not_fit_changes_nothing():
    _, optimizer, closure, _ = problem(mt, rosenbrock, max_iter=3)
    optimizer.step(closure)
    state = optimizer.state_dict()
    for change, text in [
        ({"momentum_buffer": 1}, "no state 'momentum_buffer'"),
        ({"d": mt.ones(3)}, r"'d': expected shape \(6,\), got \(3,\)"),
        ({"t": None}, "come without 't'"),
    ]:
        broken = {k: v for k, v in {**state["state"][0], **change}.items() if v is not None}
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict({**state, "state": {0: broken}})
    with pytest.raises(ValueError, match="keeps one state, for parameter 0"):
        optimizer.load_state_dict({**state, "state": {1: state["state"][0]}})
    assert optimizer.memory.n_iter == state["state"][0]["n_iter"] > 0


def test_a_trainer_gives_it_all_rows_or_says_that_it_needs_them():
    from microtrain.errors import ConfigError

    with pytest.raises(ConfigError, match=r"batch_size.* LBFGS computes its loss several times"):
        mt.train.Trainer(
            mt.nn.Linear(1, 1), (mt.ones(8, 1), mt.ones(8, 1)), loss="mse",
            optimizer=mt.optim.LBFGS, duration="1 epochs", batch_size=4,
        )  # fmt: skip
