"""Capture and replay: the same bits as the eager step, or an error; never something else."""

from __future__ import annotations

import copy
import gc
import tracemalloc
import weakref
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from programs import OPTIMIZERS, PROGRAMS, train

import microtrain as mt
from microtrain.backend import MODES, NUMPY, XP
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed.data_parallel import DataParallel
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_has_the_bits_of_the_eager_one(name: str, optimizer: str) -> None:
    compiled: list[Any] = []

    def wrap(step: Any) -> Any:
        compiled.append(mt.compile(step))
        return compiled[0]

    expected, weights = train(name, optimizer, lambda step: step, 40)
    found, others = train(name, optimizer, wrap, 40)
    assert found == expected
    for key, value in weights.items():
        np.testing.assert_array_equal(others[key], value, err_msg=key)
    assert len(compiled[0].programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_five_hundred_steps_are_the_same_bits(name: str) -> None:
    for optimizer in ("sgd", "adamw"):
        expected, weights = train(name, optimizer, lambda step: step, 500)
        found, others = train(name, optimizer, mt.compile, 500)
        assert found == expected
        for key, value in weights.items():
            np.testing.assert_array_equal(others[key], value, err_msg=key)


def shared(comm: Any, wrap: Any) -> Any:
    """Uneven batches, a tail, dropout; losses and weights."""
    data = np.random.default_rng(0)
    mt.manual_seed(1)
    hidden = nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.2)
    model = DataParallel(nn.Sequential(*hidden, nn.Linear(7, 2)).double(), comm)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rows = ArrayDataset(data.standard_normal((103, 5)), data.standard_normal((103, 2)))

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    step = wrap(step)
    losses = []
    with np.errstate(all="ignore"):
        for _ in range(8):
            for x, y in DataLoader(rows, 33, comm=comm):
                step(x, y)
                losses.append(model.loss)
    return losses, [p.detach().numpy().copy() for p in model.parameters()]


@pytest.mark.mpi
def test_data_parallel_steps_have_the_bits_of_the_eager_ones(comm: Any) -> None:
    losses, weights = shared(comm, lambda step: step)
    others, found = shared(comm, mt.compile)
    assert others == losses
    for a, b in zip(found, weights, strict=True):
        np.testing.assert_array_equal(a, b)


# Small steps to try things with -----------------------------------------------------------------


class Setting:
    """A linear model, its optimizer and a step."""

    def __init__(self, lr: float = 0.1, momentum: float = 0.0) -> None:
        mt.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = mt.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)
        self.runs = 0

    def step(self, x: Any) -> Any:
        self.runs += 1
        self.optimizer.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss


def batch(i: int, rows: int = 4) -> Any:
    return mt.tensor(np.random.default_rng(i).standard_normal((rows, 3)).astype(np.float32))


def call(step: Any, times: int = 9) -> None:
    for i in range(times):
        step(batch(i))


def follow(
    change: Any, steps: int = 12, executor: str = "numpy", **options: Any
) -> tuple[Any, Any, Any]:
    """Losses of the eager and of the compiled step, with `change(setting, i)` before call i."""
    results = []
    for compiled in (False, True):
        setting = Setting(**options)
        step = mt.compile(setting.step, executor=executor) if compiled else setting.step
        losses = []
        for i in range(steps):
            change(setting, i)
            losses.append(step(batch(i)).item())
        results.append(losses)
    return results[0], results[1], step


def test_python_runs_twice_and_then_never() -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    for i in range(10):
        step(batch(i))
    assert setting.runs == 2


# Traps ------------------------------------------------------------------------------------------


def test_baked_learning_rate() -> None:
    def change(setting: Setting, i: int) -> None:
        setting.optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)

    eager, compiled, step = follow(change)
    assert compiled == eager
    assert len(step.programs) == 1


def test_step_counter_frozen() -> None:
    losses = []
    for wrap in (lambda step: step, mt.compile):
        mt.manual_seed(0)
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
    assert losses[0] == losses[1]


def test_momentum_rebound() -> None:
    """The momentum that starts in mid-run takes a capture of its own."""

    def change(setting: Setting, i: int) -> None:
        setting.optimizer.param_groups[0]["momentum"] = 0.9 if i > 5 else 0.0

    eager, compiled, _ = follow(change, steps=16)
    assert compiled == eager


def test_reused_output() -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    results = [step(batch(i)) for i in range(6)]
    assert len({r.item() for r in results}) == 6
    assert not results[-1].requires_grad


def test_frozen_branch() -> None:
    setting, calls = Setting(), []

    def step(x: Any) -> Any:
        calls.append(1)
        return setting.step(x * 2 if len(calls) % 2 else x)

    with pytest.raises(CaptureError, match="does something else at every call"):
        call(mt.compile(step))


def test_a_number_that_changes() -> None:
    numbers = iter(range(100))

    def step(x: Any) -> Any:
        return (x * next(numbers)).sum()

    with pytest.raises(CaptureError, match=r"test_compile\.py:\d+: .*another constant"):
        call(mt.compile(step))


def test_shape_change() -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    other = Setting()
    for i, rows in enumerate([4, 4, 4, 2, 4, 2, 2, 4, 2]):
        assert step(batch(i, rows)).item() == other.step(batch(i, rows)).item()
    assert [p.inputs[0].shape for p in step.programs] == [(4, 3), (2, 3)]
    assert setting.runs == 4


def test_outside_array() -> None:
    outside = mt.ones(3)
    step = mt.compile(lambda x: (x + outside).sum())
    with pytest.raises(CaptureError, match=r"test_compile\.py:\d+: an array of shape \(3,\)"):
        step(batch(0))
    allowed = mt.compile(lambda x: (x + outside).sum(), state=[outside])
    expected = (batch(0) + outside).sum().item()
    assert [allowed(batch(0)).item() for _ in range(4)] == [expected] * 4
    outside.add_(1)
    assert allowed(batch(0)).item() == (batch(0) + 2).sum().item()


def test_closed_over_batch() -> None:
    setting, x = Setting(), batch(0)
    step = mt.compile(lambda: setting.step(x))
    with pytest.raises(CaptureError, match="Pass it as an argument"):
        step()
    assert MODES.recorder is None
    assert XP[np.ndarray] is NUMPY


def test_random_numbers_repeated() -> None:
    mt.manual_seed(0)
    layer = nn.Dropout(0.5)
    step = mt.compile(lambda x: layer(x))
    mt.random.begin_batch(0)
    seen = {step(mt.ones(4, 8)).numpy().tobytes() for _ in range(8)}
    assert len(seen) == 8
    mt.random.begin_batch(0)
    assert step(mt.ones(4, 8)).numpy().tobytes() in seen


def test_creation_functions_are_drawn_anew_or_refused() -> None:
    with pytest.raises(CaptureError, match="does something else"):
        call(mt.compile(lambda x: x + mt.randn(3)))


# What a step may not do ---------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "item": lambda s, x: s.step(x).item(),
    "float": lambda s, x: float(s.step(x)),
    "bool": lambda s, x: 1 if s.step(x) > 0 else 2,
    "numpy": lambda s, x: s.step(x).detach().numpy(),
    "tolist": lambda s, x: x.tolist(),
    "nonzero": lambda s, x: x.nonzero(),
    "mask": lambda s, x: x[x > 0].sum(),
    "masked_select": lambda s, x: x.masked_select(x > 0).sum(),
    "write to the argument": lambda s, x: x.add_(1).sum(),
    "loss to differentiate outside": lambda s, x: s.model(x).sum(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused(name: str) -> None:
    setting = Setting()
    step = mt.compile(lambda x: REFUSED[name](setting, x))
    with pytest.raises(CaptureError):
        call(step)
    assert MODES.recorder is None
    setting.step(batch(0))  # everything works as before


def test_hooks_are_refused() -> None:
    setting = Setting()
    refused = pytest.raises(CaptureError, match="a hook of Linear")
    with setting.model.register_forward_hook(lambda *_: None), refused:
        mt.compile(setting.step)(batch(0))
    for register in (
        setting.model.weight.register_hook,
        setting.model.weight.register_post_accumulate_grad_hook,
    ):
        with register(lambda _: None), pytest.raises(CaptureError, match="a hook of a Tensor"):
            mt.compile(setting.step)(batch(0))


@pytest.mark.parametrize("same", [True, False])
def test_two_updates_in_one_step(same: bool) -> None:
    """For the same gradients they are replayed, for others the first would be counted wrongly."""
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        first, second = nn.Linear(3, 1), nn.Linear(3, 1)
        params = [*first.parameters(), *second.parameters()]
        optimizer = mt.optim.Adam(params, lr=0.1)

        def step(x: Any, nets: Any = (first, second), optimizer: Any = optimizer) -> Any:
            for net in nets:
                optimizer.zero_grad()
                loss = (net(x) ** 2).mean()
                if same:  # every parameter has a gradient
                    loss = loss + 0 * (nets[0](x) + nets[1](x)).sum()
                loss.backward()
                optimizer.step()
            return loss

        step = wrap(step)
        if not same and wrap is mt.compile:
            with pytest.raises(CaptureError, match="two steps for different sets"):
                step(batch(0))
            return
        results.append([step(batch(i)).item() for i in range(8)])
    assert results[0] == results[1]


def test_a_schedule_inside_the_step_is_refused() -> None:
    setting = Setting()
    schedule = mt.optim.lr_scheduler.StepLR(setting.optimizer, 1)

    def step(x: Any) -> None:
        setting.step(x)
        schedule.step()

    with pytest.raises(CaptureError, match="Do it outside"):
        mt.compile(step)(batch(0))


def test_compiled_in_compiled() -> None:
    inner = mt.compile(lambda x: x + 1)
    with pytest.raises(CaptureError, match="inside a compiled step"):
        mt.compile(lambda x: inner(x))(batch(0))


def test_a_tensor_that_leaked_says_so() -> None:
    kept: list[Any] = []
    step = mt.compile(lambda x: kept.append(x * 2))
    step(batch(0))
    with pytest.raises(CaptureError):
        kept[0].numpy()
    for use in (lambda x: x + 1, mt.clone, mt.sum, copy.deepcopy):
        with pytest.raises(CaptureError):
            use(kept[0])
    with pytest.raises(CaptureError, match="earlier call"):
        mt.compile(lambda x: x + kept[0])(batch(0))


def test_arguments_that_cannot_be_a_key() -> None:
    step = mt.compile(lambda x, y: x)
    with pytest.raises(CaptureError, match=r"from_numpy"):
        step(batch(0), np.ones(3))
    with pytest.raises(CaptureError, match="hashable"):
        step(batch(0), {1, 2})
    with pytest.raises(ValueError, match="executor"):
        mt.compile(lambda x: x, executor="cuda")


def test_too_many_captures() -> None:
    step = mt.compile(lambda x, k: x * k)

    def many() -> None:
        for k in range(40):
            step(batch(0), k)
            step(batch(1), k)

    with pytest.raises(CaptureError, match="32 captures"):
        many()


# What it may do -----------------------------------------------------------------------------------


def test_arguments_and_results_may_be_nested() -> None:
    @mt.compile
    def step(pair: Any, *, options: Any, scale: float) -> Any:
        x, y = pair
        return {"sum": x + y, "both": (x * scale, [y - options["shift"]]), "name": "text"}

    for i in range(5):
        x, y, shift = batch(i), batch(i + 50), batch(i + 100)
        found = step((x, y), options={"shift": shift}, scale=2.0)
        assert mt.equal(found["sum"], x + y)
        assert mt.equal(found["both"][0], x * 2)
        assert mt.equal(found["both"][1][0], y - shift)
        assert found["name"] == "text"
    assert len(step.programs) == 1


def test_one_tensor_twice_is_another_key() -> None:
    step = mt.compile(lambda x, y: x @ y.t())
    for i in range(4):
        x, y = batch(i), batch(i + 9)
        assert mt.equal(step(x, y), x @ y.t())
        assert mt.equal(step(x, x), x @ x.t())
    assert len(step.programs) == 2


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


def test_gradient_accumulation() -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        setting = Setting()

        def accumulate(x: Any, setting: Any = setting) -> Any:
            loss = (setting.model(x) ** 2).sum()
            loss.backward()
            return loss

        def update(x: Any, setting: Any = setting, accumulate: Any = accumulate) -> Any:
            loss = accumulate(x)
            setting.optimizer.step()
            setting.optimizer.zero_grad()
            return loss

        first, last = wrap(accumulate), wrap(update)
        results.append([(first if i % 3 < 2 else last)(batch(i)).item() for i in range(12)])
    assert results[0] == results[1]


def test_higher_derivatives_inside_a_step() -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        setting = Setting()

        def step(x: Any, setting: Any = setting) -> Any:
            x = x.clone().requires_grad_()
            setting.optimizer.zero_grad()
            y = (setting.model(x).tanh() ** 2).sum()
            (slope,) = mt.autograd.grad(y, x, create_graph=True)
            loss = y + slope.square().sum()
            loss.backward()
            setting.optimizer.step()
            return loss

        step = wrap(step)
        results.append([step(batch(i)).item() for i in range(8)])
    assert results[0] == results[1]


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


def test_threads_have_captures_of_their_own() -> None:
    import threading

    step = mt.compile(lambda x: x * 2 + 1)
    wrong: list[Any] = []

    def run(number: int) -> None:
        for i in range(50):
            x = batch(100 * number + i)
            if not mt.equal(step(x), x * 2 + 1):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_gradients_that_belong_nowhere_are_refused() -> None:
    model = nn.Linear(3, 1)

    def outside(x: Any) -> None:
        model(x).sum().backward()

    with pytest.raises(CaptureError, match="no optimizer owns"):
        mt.compile(outside)(batch(0))

    def argument(x: Any) -> None:
        (x * x).sum().backward()

    with pytest.raises(CaptureError, match="a gradient for an argument"):
        mt.compile(argument)(batch(0).requires_grad_())
    setting = Setting()

    def twice(x: Any) -> None:
        (setting.model(x) ** 2).sum().backward(create_graph=True)

    with pytest.raises(CaptureError, match="create_graph"):
        mt.compile(twice)(batch(0))


def test_the_gradient_of_a_leaf_that_the_step_made() -> None:
    def step(x: Any) -> Any:
        y = x.clone().requires_grad_()
        (y**3).sum().backward()
        return y.grad

    compiled = mt.compile(step)
    for i in range(4):
        assert mt.equal(compiled(batch(i)), step(batch(i)))


def test_another_thread_computes_eagerly_meanwhile() -> None:
    import threading

    seen: list[Any] = []

    def step(x: Any) -> Any:
        thread = threading.Thread(target=lambda: seen.append((mt.ones(3) * 2).tolist()))
        thread.start()
        thread.join(10)
        return x * 2

    step = mt.compile(step)
    assert mt.equal(step(batch(0)), batch(0) * 2)
    assert seen == [[2.0, 2.0, 2.0]]


def test_an_error_in_the_step_is_the_users() -> None:
    def step(x: Any) -> Any:
        return (x @ x) + 1

    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes"):
        mt.compile(step)(batch(0))
    assert MODES.recorder is None
    assert XP[np.ndarray] is NUMPY


BOUNDS: dict[str, Any] = {
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(1, i.unsqueeze(1)),
    "index_select": lambda x, i: x.index_select(0, i),
    "rows": lambda x, i: x[i],
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "bce": lambda x, i: F.binary_cross_entropy(x * 0 + 0.25 + i.unsqueeze(1) / 2, x),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_indices_are_checked_in_every_replay(name: str) -> None:
    step = mt.compile(BOUNDS[name])
    x = mt.tensor([[0.1, 0.2, 0.3]] * 4)
    for good in ([0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]):
        index = mt.tensor(good)
        assert mt.equal(step(x, index), BOUNDS[name](x, index))
    assert len(step.programs) == 1
    for bad in ([0, 1, 9, 0], [0, -9, 1, 0]):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            BOUNDS[name](x, mt.tensor(bad))
        with pytest.raises(eager.type):
            step(x, mt.tensor(bad))


def test_an_ignored_class_may_come_and_go() -> None:
    step = mt.compile(F.cross_entropy)
    scores = mt.tensor(np.random.default_rng(0).standard_normal((4, 3)))
    for classes in ([0, 1, 2, 0], [0, -100, 2, 0], [1, 1, -100, -100], [2, 2, 2, 2]):
        target = mt.tensor(classes)
        assert step(scores, target).item() == F.cross_entropy(scores, target).item()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROTRAIN_COMPILE", "off")
    setting = Setting()
    step = mt.compile(setting.step)
    for i in range(5):
        step(batch(i))
    assert setting.runs == 5


def test_the_source_can_be_read() -> None:
    setting = Setting(momentum=0.9)
    step = mt.compile(setting.step)
    for i in range(4):
        step(batch(i))
    text = step.source()
    assert "zero_grad" in text
    assert "dot(input1, state" in text
    assert "test_compile.py" in text
    explained = step.explain()
    assert "arguments     4x3" in explained
    assert "dot 3" in explained
    assert "zero_grad" in explained
    # forward and gradient of the weight 2 * (4 * 3 * 2) each, gradient of the bias 2 * (4 * 2)
    assert "112 flops" in explained
    assert "weight" in text.splitlines()[1]
    assert "bias.grad" in text


# Memory -------------------------------------------------------------------------------------------


def compiled_step(name: str) -> tuple[Any, Any, Any]:
    """A captured training step and its arguments."""
    mt.manual_seed(1)
    make, inputs, targets, loss_of = PROGRAMS[name]
    model = make()
    optimizer = OPTIMIZERS["sgd"](model.parameters())

    @mt.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = mt.from_numpy(inputs(0)), mt.from_numpy(targets(0))
    for _ in range(5):
        step(x, y)
    return step, x, y


@pytest.mark.parametrize("name", ["linreg", "seed"])
def test_a_replay_keeps_no_arrays(name: str) -> None:
    step, x, y = compiled_step(name)
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot().filter_traces([domain])
        for _ in range(100):
            step(x, y)
        after = tracemalloc.take_snapshot().filter_traces([domain])
        grown = after.compare_to(before, "lineno")
    finally:
        tracemalloc.stop()
    assert all(stat.size_diff < 512 for stat in grown)


def test_a_replay_makes_no_temporary_arrays_either() -> None:
    step, x, y = compiled_step("wide")
    tracemalloc.start()
    try:
        step(x, y)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            step(x, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # NumPy's iterator over broadcast operands has a buffer of 33 kB; the hidden layer has 205.
    assert peak - before < 60_000


def test_a_dropped_step_gives_its_memory_back() -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    for i in range(3):
        step(batch(i))
    memory = weakref.ref(step.programs[0].inputs[0])
    gc.disable()
    try:
        del step
        assert memory() is None
    finally:
        gc.enable()


# Random steps -------------------------------------------------------------------------------------

LAYERS = ["linear", "relu", "tanh", "dropout", "norm", "gelu", "softmax"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=5), st.sampled_from(list(OPTIMIZERS)))
def test_random_models(layers: list[str], optimizer: str) -> None:
    makers = {
        "linear": lambda: nn.Linear(5, 5),
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "dropout": lambda: nn.Dropout(0.4),
        "norm": lambda: nn.LayerNorm(5),
        "gelu": nn.GELU,
        "softmax": lambda: nn.Softmax(dim=-1),
    }
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        mt.random.begin_batch(0)
        model = nn.Sequential(nn.Linear(3, 5), *(makers[name]() for name in layers))
        opt = OPTIMIZERS[optimizer](model.parameters())

        def step(x: Any, model: Any = model, opt: Any = opt) -> Any:
            opt.zero_grad()
            loss = F.huber_loss(model(x), x.sum(1, keepdim=True).expand(-1, 5))
            loss.backward()
            opt.step()
            return loss

        step = wrap(step)
        results.append([step(batch(i)).item() for i in range(6)])
    assert results[0] == results[1]


# What the framework does to state without an operation --------------------------------------------


def bits(value: Any) -> Any:
    """`value` with Tensors as bytes, for comparison."""
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    if isinstance(value, mt.Tensor):
        array = value.detach().numpy()
        return array.dtype.name, array.shape, array.tobytes()
    return value


def both(program: Any) -> tuple[Any, Any]:
    """What the generator `program(wrap)` yields eagerly and compiled."""
    results = []
    for wrap in (lambda step: step, mt.compile):
        mt.manual_seed(0)
        mt.random.begin_batch(0)
        results.append([bits(value) for value in program(wrap)])
    return results[0], results[1]


def halve(p: Any) -> None:
    p.grad = p.grad * 0.5


def drop(p: Any) -> None:
    p.grad = None


ON_GRADIENTS: dict[str, Any] = {
    "module.zero_grad() at the end": lambda s: s.model.zero_grad(),
    "module.zero_grad(False)": lambda s: s.model.zero_grad(set_to_none=False),
    "grad = None": lambda s: drop(s.model.bias),
    "grad = Tensor": lambda s: halve(s.model.weight),
    "grad = state": lambda s: setattr(s.model.weight, "grad", s.model.weight.data),
    "grad in place": lambda s: s.model.weight.grad.mul_(0.5),
    "grad filled": lambda s: s.model.bias.grad.zero_(),
    "frozen for a while": lambda s: s.model.requires_grad_(False).requires_grad_(True),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ON_GRADIENTS)
def test_gradients_changed_by_hand(name: str, when: str) -> None:
    def program(wrap: Any) -> Any:
        setting = Setting(momentum=0.9)

        def step(x: Any) -> Any:
            loss = (setting.model(x) ** 2).mean()
            loss.backward()
            if when == "before":
                ON_GRADIENTS[name](setting)
            setting.optimizer.step()
            if when == "after":
                ON_GRADIENTS[name](setting)
            return loss

        step = wrap(step)
        for i in range(10):
            yield step(batch(i)), *setting.model.parameters()
            yield [p.grad for p in setting.model.parameters()]
            if "zero" not in name and i % 2:
                setting.optimizer.zero_grad()

    eager, compiled = both(program)
    assert compiled == eager


def test_a_gradient_that_is_read_must_be_there_as_it_was() -> None:
    def program(wrap: Any) -> Any:
        setting = Setting()

        def update() -> None:
            with mt.no_grad():
                for p in setting.model.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad

        update = wrap(update)
        for i in range(12):
            (setting.model(batch(i)) ** 2).mean().backward()
            if i > 6:
                setting.model.bias.grad = None
            update()
            setting.optimizer.zero_grad()
            yield list(setting.model.parameters())

    eager, compiled = both(program)
    assert compiled == eager


FOLLOWERS: dict[str, Any] = {
    "copy_": lambda a, b: a.copy_(b),
    "data": lambda a, b: setattr(a, "data", b.data),
    "index": lambda a, b: a.__setitem__(0, b[-1]),
    "fill": lambda a, _: a.fill_(3.0),
    "lerp": lambda a, b: a.data.lerp_(b.data, 0.1),
    "add": lambda a, b: a.mul_(0.9).add_(b, alpha=0.1),
}


@pytest.mark.parametrize("name", [*FOLLOWERS, "load_state_dict"])
def test_state_written_from_state(name: str) -> None:
    def program(wrap: Any) -> Any:
        setting, other = Setting(), nn.Linear(3, 2)
        mt.optim.SGD(other.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            loss = setting.step(x)
            if name == "load_state_dict":
                other.load_state_dict(setting.model.state_dict())
                return loss
            with mt.no_grad():
                for a, b in zip(other.parameters(), setting.model.parameters(), strict=True):
                    FOLLOWERS[name](a, b)
            return loss

        step = wrap(step)
        for i in range(8):
            yield step(batch(i)), *other.parameters()

    eager, compiled = both(program)
    assert compiled == eager


LOOKS: dict[str, Any] = {
    "item": lambda x, t: x * t.item(),
    "bool": lambda x, t: x * 2 if t.data else x,
    "tolist": lambda x, t: x * mt.tensor(t.tolist()),
    "tensor": lambda x, t: x * mt.tensor(t),
    "numpy": lambda x, t: x * float(t.numpy()),
    "array": lambda x, t: x * float(np.asarray(t)),
    "index": lambda x, t: x[t],
    "repeat": lambda x, t: x.repeat_interleave(t.reshape(1), dim=0),
}


@pytest.mark.parametrize("name", LOOKS)
def test_values_of_the_state_are_not_looked_at(name: str) -> None:
    module = nn.Module()
    module.register_buffer("t", mt.tensor(1))
    with pytest.raises(CaptureError):
        call(mt.compile(lambda x: LOOKS[name](x, module.t)))


def test_classes_in_a_buffer_are_checked_in_every_replay() -> None:
    module = nn.Module()
    module.register_buffer("classes", mt.tensor([0, 1, 2, 0]))
    step = mt.compile(lambda x: F.cross_entropy(x, module.classes))
    call(step, 4)
    module.classes[1] = -3
    with pytest.raises(IndexError):
        step(batch(0))


def test_a_leaf_outside_the_data_parallel_model() -> None:
    def program(wrap: Any) -> Any:
        model, head = DataParallel(nn.Linear(3, 2)), nn.Linear(2, 2)
        optimizers = [mt.optim.SGD(m.parameters(), lr=0.1) for m in (model, head)]

        def step(x: Any) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            for _ in range(2):
                (head(model(x)) ** 2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()

        step = wrap(step)
        for i in range(8):
            step(batch(i))
            yield model.loss, *model.parameters(), *head.parameters()

    eager, compiled = both(program)
    assert compiled == eager


# What verification and the key must see -----------------------------------------------------------


def alternating(step: Any) -> Any:
    """`step(x, y, index, odd)` with an `odd` that changes from call to call."""
    calls: list[int] = []

    def changing(x: Any, y: Any, index: Any) -> Any:
        calls.append(1)
        return step(x, y, index, len(calls) % 2)

    return changing


def written(x: Any, index: Any, start: int) -> Any:
    y = x.clone()
    y[index, start : start + 2] = 0.0
    return y


def from_seed(x: Any) -> Any:
    mt.manual_seed(3)
    return F.dropout(x)


CHANGING: dict[str, Any] = {
    "argument": lambda x, y, index, odd: (x if odd else y) * 2,
    "result": lambda x, y, index, odd: (x, y) if odd else (y, x),
    "order": lambda x, y, index, odd: [x + 1, x + 2][:: 1 if odd else -1],
    "number in the result": lambda x, y, index, odd: (x, odd),
    "kind of the number": lambda x, y, index, odd: (x, [1, True][odd]),
    "slice": lambda x, y, index, odd: x[index, odd : odd + 2],
    "slice written": lambda x, y, index, odd: written(x, index, odd),
    "sign of a zero": lambda x, y, index, odd: x * [0.0, -0.0][odd],
    "seed": lambda x, y, index, odd: from_seed(x),
    "draw": lambda x, y, index, odd: x * mt.randint(0, 2, (1,)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_two_calls_that_differ(name: str) -> None:
    step = mt.compile(alternating(CHANGING[name]))
    with pytest.raises(CaptureError, match="does something else"):
        call(lambda x: step(x, x + 1, mt.tensor([0, 2])))


def test_rates_chosen_inside_the_step_are_refused() -> None:
    setting = Setting()
    step_lr = mt.optim.lr_scheduler.StepLR(setting.optimizer, 1000)
    plateau = mt.optim.lr_scheduler.ReduceLROnPlateau(setting.optimizer)
    setting.step(batch(0))
    rates = iter([0.1, 0.2, 0.3])

    def by_hand(x: Any) -> None:
        setting.optimizer.param_groups[0]["lr"] = next(rates)
        setting.step(x)

    for step in (lambda x: step_lr.step(), lambda x: plateau.step(1.0), by_hand):
        with pytest.raises(CaptureError, match="Do it outside"):
            call(mt.compile(step))


def test_the_key_has_modes_and_numbers_as_they_are() -> None:
    step = mt.compile(lambda x, k: (mt.zeros(2), x * k))
    x = mt.ones(2)
    try:
        for i, k in enumerate([0.0, 0.0, 0.0, -0.0, -0.0, 0, 0, False, False, float("nan")] * 2):
            mt.set_default_dtype("float64" if i > 9 else "float32")
            found = step(x, k)
            assert bits(found) == bits((mt.zeros(2), x * k))
    finally:
        mt.set_default_dtype("float32")


def test_the_memory_order_of_an_argument_is_kept() -> None:
    def step(x: Any) -> Any:
        return x.sum(0), x.sum(1), x.mean(), x @ x.t()

    compiled = mt.compile(step)
    data = np.random.default_rng(0).standard_normal((12, 300, 70)).astype(np.float32)
    for i, array in enumerate(data):
        x = mt.from_numpy([array, array.reshape(70, 300).T, array[::2, ::3]][i % 3])
        assert bits(compiled(x)) == bits(step(x))
    assert len(compiled.programs) == 3


def test_an_argument_that_the_step_writes() -> None:
    setting, norm = Setting(), nn.BatchNorm1d(3, affine=False)

    def step(x: Any, other: Any) -> Any:
        setting.step(norm(x))
        return other * 2

    for other in (setting.model.weight.detach(), norm.running_mean):
        with pytest.raises(CaptureError, match="an argument is memory"):
            mt.compile(step)(batch(0), other)
    mt.compile(step)(batch(0), setting.model.weight.detach().clone())


def test_named_tuples() -> None:
    import typing

    class Pair(typing.NamedTuple):
        a: Any
        b: Any

    step = mt.compile(lambda pair: Pair(pair.b + 1, pair.a * 2))
    for i in range(4):
        x, y = batch(i), batch(i + 9)
        assert bits(step(Pair(x, y))) == bits((y + 1, x * 2))


def test_draws_after_an_optimizers_step() -> None:
    def program(wrap: Any) -> Any:
        setting = Setting()

        def step(x: Any) -> Any:
            before = F.dropout(x)
            setting.step(x)
            return before, F.dropout(x), F.dropout(x[:0]), F.dropout(x)

        step = wrap(step)
        for i in range(12):
            for _ in range(i % 5):
                yield F.dropout(batch(i))
            yield step(batch(i))
            yield F.dropout(batch(i))

    eager, compiled = both(program)
    assert compiled == eager


@pytest.mark.parametrize("where", ["count outside", "count inside", "forward outside"])
def test_samples_are_counted_as_in_the_eager_step(where: str) -> None:
    def program(wrap: Any) -> Any:
        model = DataParallel(nn.Linear(3, 2))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, n: int) -> None:
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum() / 7
            if where == "count inside":
                model.count(n)
            loss.backward()
            optimizer.step()

        step = wrap(step)
        for i in range(12):
            if where == "count outside":
                model.count(3 if i < 5 else 2)
            elif where == "forward outside" and i > 5:
                model(batch(i))
            step(batch(i), 3 if i < 5 else 2)
            yield model.loss, model.samples, *model.parameters()

    eager, compiled = both(program)
    assert compiled == eager


@pytest.mark.parametrize("inside", [True, False])
def test_no_sync_in_and_around_a_step(inside: bool) -> None:
    def program(wrap: Any) -> Any:
        model = DataParallel(nn.Linear(3, 2))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def add(x: Any) -> None:
            (model(x) ** 2).mean().backward()

        def step(x: Any, y: Any) -> None:
            with model.no_sync():
                add(x)
            add(y)

        add_alone, together = wrap(add), wrap(step)
        for i in range(8):
            if inside:
                together(batch(i, 2), batch(i + 9, 5))
            else:
                with model.no_sync():
                    add_alone(batch(i, 2))
                add_alone(batch(i + 9, 5))
            optimizer.step()
            optimizer.zero_grad()
            yield model.loss, model.samples, *model.parameters()

    eager, compiled = both(program)
    assert compiled == eager


# What changes about modules between calls ---------------------------------------------------------


class Parts(nn.Module):
    """A layer, a buffer, a plain Tensor, something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.middle = nn.Dropout(0.5)
        self.mask = mt.ones(3)
        self.register_buffer("shift", mt.ones(3))

    def forward(self, x: Any) -> Any:
        x = self.layer(x) * self.mask + self.shift
        self.last = x if self.middle is None else self.middle(x)
        return self.last * 1


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


HOOKS: dict[str, Any] = {
    "module": lambda model: model.register_forward_hook(lambda *_: None),
    "leaf": lambda model: model.weight.register_hook(lambda _: None),
    "accumulated": lambda model: model.weight.register_post_accumulate_grad_hook(lambda _: None),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_registered_later_are_refused(name: str) -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    call(step)
    with HOOKS[name](setting.model), pytest.raises(CaptureError, match="a hook of"):
        step(batch(0))
    call(step)


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


def test_flags_that_a_step_leaves_changed_are_refused() -> None:
    setting = Setting()

    def step(x: Any) -> Any:
        found = setting.step(x)
        setting.model.bias.requires_grad_(not setting.model.bias.requires_grad)
        return found

    step = mt.compile(step)

    def alternate() -> None:
        for i in range(12):
            step(batch(i))
            setting.model.bias.requires_grad_(True)

    with pytest.raises(CaptureError, match="it changes requires_grad"):
        alternate()


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


def views_written(s: Any, x: Any) -> Any:
    y = s.model(x) * 1
    y[:, 0] = y[:, 1].clone() ** 2
    first, last = y.clone().split(1, 1)
    y[1:].mul_(2.0)
    s.optimizer.zero_grad()
    loss = (first * last).sum() + y.sum()
    loss.backward()
    return loss, s.model.weight.grad


MADE_INSIDE: dict[str, Any] = {
    "masked_fill": lambda s, x: x.masked_fill(x > 0, -1e9).softmax(1),
    "masked_fill_": lambda s, x: x.clone().masked_fill_(x > 0, float("-inf")),
    "list as index": lambda s, x: (x[[0, 2]], x[:, [2, 0]]),
    "new_tensor": lambda s, x: x + x.new_tensor([1.0, 2.0, 3.0]),
    "empty": lambda s, x: (mt.empty(3).fill_(2.0) * x, mt.empty_like(x).copy_(x)),
    "views written": views_written,
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_arrays_that_the_library_makes(name: str) -> None:
    def program(wrap: Any) -> Any:
        setting = Setting()
        step = wrap(lambda x: MADE_INSIDE[name](setting, x))
        for i in range(5):
            yield step(batch(i))

    eager, compiled = both(program)
    assert compiled == eager
