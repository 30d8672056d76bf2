"""Averages of weights: torch's, step by step; flat or not, captured, on ranks; SWALR, update_bn."""

import copy
import itertools

import numpy as np
import pytest
from compilers import needs_compiler
from pace import daily
from test_lr_scheduler import optimizer_of, rates
from test_optim import values_of

import microtrain as mt
from microtrain.distributed import DataParallel, in_process
from microtrain.errors import CaptureError
from microtrain.optim import swa_utils
from microtrain.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn


def net_of(lib, dtype="float64"):
    net = lib.nn.Sequential(
        lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4), lib.nn.Tanh(), lib.nn.Linear(4, 2)
    )
    net = net.to(getattr(lib, dtype))
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for param in net.parameters():
            values = rng.standard_normal(tuple(param.shape)).astype(dtype)
            param.copy_(lib.from_numpy(values))
    return net


def batch(lib, i, dtype="float64"):
    return lib.from_numpy(np.random.default_rng(i).standard_normal((8, 3)).astype(dtype))


def train_step(net, optimizer, x):
    optimizer.zero_grad()
    (net(x) ** 2).mean().backward()
    optimizer.step()


AVERAGES = {
    "mean": lambda u: {},
    "ema": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.9)},
    "ema, one by one": lambda u: {"avg_fn": u.get_ema_avg_fn(0.9)},
    "mean, one by one": lambda u: {"avg_fn": u.get_swa_avg_fn()},
    "mean, several": lambda u: {"multi_avg_fn": u.get_swa_multi_avg_fn()},
    "with buffers": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "own": lambda u: {"avg_fn": lambda average, model, n: 0.7 * average + 0.3 * model * (n > 0)},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_equal_torch(name, dtype):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        utils = lib.optim.swa_utils
        net = net_of(lib, dtype)
        optimizer = lib.optim.SGD(net.parameters(), lr=0.1)
        average = utils.AveragedModel(net, **AVERAGES[name](utils))
        for i in range(6):
            train_step(net, optimizer, batch(lib, i, dtype))
            average.update_parameters(net)
        average.eval()
        found.append((average.state_dict(), average(batch(lib, 9, dtype))))
    (state, out), (state2, out2) = found
    rtol = 1e-10 if dtype == "float64" else 1e-4
    assert state.keys() == state2.keys()
    for key, value in state2.items():
        assert str(value.dtype) == f"torch.{state[key].dtype}"
        np.testing.assert_allclose(state[key].numpy(), value.numpy(), rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(out.detach().numpy(), out2.detach().numpy(), rtol=rtol, atol=1e-6)
    assert state["n_averaged"].item() == 6
    twin = AveragedModel(net_of(mt, dtype), use_buffers=name == "with buffers")
    twin.load_state_dict({k: mt.from_numpy(v.numpy()) for k, v in state2.items()})


@pytest.mark.parametrize("name", ["mean", "ema"])
def test_the_first_update_takes_the_model_exactly_and_flat_memory_changes_no_bits(name):
    ends = []
    for flat in (False, True):
        net = net_of(mt, "float32")
        optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
        source = net if flat else mt.nn.Sequential(*net)  # its parameters are looked at one by one
        average = AveragedModel(net, **AVERAGES[name](swa_utils))
        if not flat:
            average._storage.slots[0].start += 1  # another layout
        for i in range(5):
            train_step(net, optimizer, batch(mt, i, "float32"))
            average.update_parameters(source)
            if i == 0:
                for a, b in zip(
                    values_of(average.parameters()), values_of(net.parameters()), strict=True
                ):
                    np.testing.assert_array_equal(a, b)
        ends.append(values_of(average.parameters()))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.daily("numpy")
@pytest.mark.parametrize(
    ("name", "executor"),
    daily(
        itertools.product(["mean", "ema", "mean, several"], ["numpy", "native"]),
        *(("mean", "numpy"), ("ema", "numpy"), ("mean, several", "numpy"), ("mean", "native")),
    ),
)
def test_an_average_in_a_captured_step(name, executor):
    if executor == "native":
        needs_compiler()
    ends = []
    for captured in (False, True):
        net = net_of(mt)
        optimizer = mt.optim.Adam(net.parameters(), lr=0.1)
        average = AveragedModel(net, **AVERAGES[name](swa_utils))
        ran = []

        def step(x, net=net, optimizer=optimizer, average=average, ran=ran):
            ran.append(1)
            train_step(net, optimizer, x)
            average.update_parameters(net)

        call = mt.compile(step, executor=executor) if captured else step
        for i in range(9):
            call(batch(mt, i))
        assert len(ran) <= 4 or not captured
        ends.append([v.numpy() for v in average.state_dict().values()])
    for a, b in zip(*ends, strict=True):
        if executor == "numpy":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["state_dict", "copy", "files"])
def test_a_resumed_average_has_the_same_bits(way, tmp_path):
    net = net_of(mt, "float32")
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def more(average, net, optimizer, start):
        for i in range(start, start + 4):
            train_step(net, optimizer, batch(mt, i, "float32"))
            average.update_parameters(net)

    more(average, net, optimizer, 0)
    if way == "copy":
        net2, optimizer2, twin = copy.deepcopy((net, optimizer, average))
    else:
        net2 = copy.deepcopy(net)
        optimizer2 = mt.optim.SGD(net2.parameters(), lr=0.1)
        twin = AveragedModel(net_of(mt, "float32"), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    if way == "state_dict":
        twin.load_state_dict(average.state_dict())
    elif way == "files":
        mt.save(tmp_path, 4, model=average)
        mt.restore(tmp_path, model=twin)
    more(average, net, optimizer, 4)
    more(twin, net2, optimizer2, 4)
    for a, b in zip(average.state_dict().values(), twin.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_have_equal_averages(ranks):
    def main(comm):
        net = DataParallel(net_of(mt), comm)
        optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
        average = AveragedModel(net.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        for i in range(4):
            x = mt.from_numpy(batch(mt, i).numpy()[comm.rank :: comm.size].copy())
            train_step(net, optimizer, x)
            average.update_parameters(net)
        return [v.numpy().copy() for v in average.state_dict().values()]

    (alone,) = in_process.run(1, main)
    found = in_process.run(ranks, main)
    for values in found:
        for a, b, c in zip(values, found[0], alone, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, c, rtol=1e-9)


def test_update_bn_equals_torch():
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        net = net_of(lib).eval()
        net[1].momentum = 0.3
        data = [batch(lib, 0), (batch(lib, 1), 3), [batch(lib, 2)]]
        lib.optim.swa_utils.update_bn(data, net)
        assert (net.training, net[1].training, net[1].momentum) == (False, False, 0.3)
        assert next(net.parameters()).grad is None
        found.append({k: v.numpy() for k, v in net.state_dict().items()})
    for key, value in found[1].items():
        np.testing.assert_allclose(found[0][key], value, rtol=1e-10)
    update_bn([1], mt.nn.Linear(2, 2))  # without batch norm nothing is called


SCHEDULES = [
    {"swa_lr": 0.05},
    {"swa_lr": [0.05, 0.3], "anneal_epochs": 5, "anneal_strategy": "linear"},
    {"swa_lr": 0.1, "anneal_epochs": 0},
    {"swa_lr": 0.1, "anneal_epochs": 1},
]


@pytest.mark.parametrize("begin", [0, 4])
@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_swalr_equals_torch(options, begin):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        optimizer = optimizer_of(lib)
        other = lib.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scheduler = lib.optim.swa_utils.SWALR(optimizer, **options)
        here = [rates(optimizer)]
        for i in range(15):
            optimizer.step()
            (other if i < begin else scheduler).step()
            here.append(rates(optimizer))
        found.append(here)
        optimizer.load_state_dict(optimizer.state_dict())
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_loaded_swalr_goes_on():
    optimizer, other = optimizer_of(mt), optimizer_of(mt)
    scheduler, twin = SWALR(optimizer, 0.05), SWALR(other, 0.05)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    other.load_state_dict(optimizer.state_dict())
    twin.load_state_dict(scheduler.state_dict())
    for _ in range(9):
        for one in (scheduler, twin):
            one.optimizer.step()
            one.step()
        assert rates(other) == rates(optimizer)


def captured_with_buffers():
    model = net_of(mt)
    average = AveragedModel(model, use_buffers=True)
    mt.compile(lambda x: (average.update_parameters(model), x * 2)[1])(mt.ones(2))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: get_ema_multi_avg_fn(1.5), ValueError, "decay must be between 0 and 1, got 1.5"),
        (lambda: swa_utils.get_ema_avg_fn(-1), ValueError, "decay must be"),
        (lambda: AveragedModel(net_of(mt), None, abs, abs), ValueError, "not both"),
        (
            lambda: AveragedModel(net_of(mt)).update_parameters(mt.nn.Linear(3, 2)),
            ValueError,
            "has parameters of shapes",
        ),
        (
            lambda: AveragedModel(DataParallel(net_of(mt))),
            TypeError,
            r"copy its model, `model.module`",
        ),
        (lambda: SWALR(optimizer_of(mt), [0.1]), ValueError, "1 values for 2 groups"),
        (lambda: SWALR(optimizer_of(mt), 0.1, -1), ValueError, "anneal_epochs must be"),
        (lambda: SWALR(optimizer_of(mt), 0.1, 5, "x"), ValueError, "cos or linear"),
        (lambda: SWALR("text", 0.1), TypeError, "expected an Optimizer, got str"),
        (lambda: mt.optim.Adam(net_of(mt)), TypeError, r"write model.parameters\(\)"),
        (captured_with_buffers, CaptureError, "AveragedModel: with use_buffers=True"),
    ],
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_update_bn_sees_batch_norms_of_all_dimensions(dims):
    layer = getattr(mt.nn, f"BatchNorm{dims}d")(2)
    x = mt.tensor(np.arange(24.0, dtype=np.float32).reshape(6, 2, *[1] * (dims - 1), 2))
    update_bn([x[:3], x[3:]], layer)
    expected = np.moveaxis(x.numpy(), 1, 0).reshape(2, -1).mean(1)
    assert layer.running_mean.tolist() == pytest.approx(expected.tolist())
    assert layer.training


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("decay", [0.9, None])
def test_averages_of_float64_models_are_of_float64(decay, use_buffers):
    model = mt.nn.Linear(1, 1, bias=False).to(mt.float64)
    model.register_buffer("seen", mt.zeros(3, dtype=mt.float64))
    way = None if decay is None else get_ema_multi_avg_fn(decay)
    average = AveragedModel(model, multi_avg_fn=way, use_buffers=use_buffers)
    values = [1.0, 2.0, 4.0]
    for value in values:
        with mt.no_grad():
            model.weight.fill_(value)
            model.seen.fill_(value)
        average.update_parameters(model)
    expected = 7 / 3 if decay is None else 0.9 * 1.1 + 0.1 * 4
    assert average.module.weight.item() == pytest.approx(expected, rel=1e-15)
    seen = expected if use_buffers else 4.0
    assert average.module.seen.tolist() == pytest.approx([seen] * 3, rel=1e-15)
