"""Capture and replay: what a replay does, and the same bits as the eager step."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from compilers import absent
from hypothesis import given, settings
from programs import OPTIMIZERS, PROGRAMS, numbers, train
from steps import LAYERS, Setting, batch, bits, both

import microtrain as mt

nn, F = mt.nn, mt.nn.functional


@pytest.mark.daily("recurrent-adamw", "transformer-nesterov", "mlp-", "linreg")
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


def test_the_gradient_of_a_leaf_that_the_step_made() -> None:
    def step(x: Any) -> Any:
        y = x.clone().requires_grad_()
        (y**3).sum().backward()
        return y.grad

    compiled = mt.compile(step)
    for i in range(4):
        assert mt.equal(compiled(batch(i)), step(batch(i)))


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
    assert "dot(x, weight.T, out=" in text
    assert "out=weight.grad" in text
    assert "# 4x2 float32, Linear: linear, steps.py:" in text
    assert "linear backward, steps.py:" in text
    assert "multiply(momentum_buffer, SGD.momentum, momentum_buffer)" in text
    assert "subtract(parameters, scratch[:8], parameters)" in text
    explained = step.explain()
    assert "arguments     x 4x3" in explained
    assert "dot 3" in explained
    assert "zero_grad" in explained
    # forward and gradient of the weight 2 * (4 * 3 * 2) each, gradient of the bias 2 * (4 * 2)
    assert "112 flops" in explained
    count = text.count("steps.py")
    assert f"0 of native code, {count} of NumPy; 4 pieces of bookkeeping" in explained
    _, apart, _, shared = step.programs[0].buffers
    assert f" {apart} B apart" in explained
    assert f"share {shared} B" in explained


def test_names_that_several_models_have_stay_apart() -> None:
    models = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
    step = mt.compile(lambda x: models[0](x) + models[1](x))
    with mt.no_grad():
        for _ in range(3):
            step(mt.ones(1, 2))
    text = step.source()
    assert "0.weight.T," in text
    assert "0.weight.T#2" in text


def test_a_wrapper_that_could_not_be_made_is_not_in_the_way() -> None:
    failed: list[BaseException] = []  # hold what its constructor had begun
    for module, options in ((nn.Linear(2, 2), {"reduction": "middle"}), (3, {})):
        with pytest.raises((ValueError, TypeError)) as error:
            mt.distributed.DataParallel(module, **options)  # type: ignore[arg-type]
        failed.append(error.value)
    step, x = mt.compile(lambda x: x * 2 + 1), batch(0)
    for _ in range(2):
        assert mt.equal(step(x), x * 2 + 1)
    assert failed


def test_a_name_may_be_any_text() -> None:
    """It is shown and never run."""
    model = nn.Module()
    model.add_module("np\n; raise", nn.Linear(2, 2))
    for executor in ("numpy", "native") if not absent() else ("numpy",):
        step = mt.compile(getattr(model, "np\n; raise"), executor=executor)
        with mt.no_grad():
            for _ in range(3):
                step(mt.ones(1, 2))
        assert "'np\\n; raise.weight'" in step.source()
        assert "'np\\n; raise Linear': linear" in step.source()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_measuring_changes_nothing(optimizer: str) -> None:
    """With dropout and momentum: the steps after it are those without it."""

    def run(look: Any) -> Any:
        mt.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        taken = OPTIMIZERS[optimizer](model.parameters())

        def body(x: Any) -> Any:
            taken.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            taken.step()
            return loss

        step = mt.compile(body)
        losses = []
        for i in range(8):
            losses.append(step(mt.from_numpy(numbers(6, 4)(i))).item())
            look(step)
        return losses, {key: t.numpy().copy() for key, t in model.state_dict().items()}

    expected, state = run(lambda step: None)
    explained: list[str] = []
    found, other = run(lambda step: explained.append(step.explain(measure=True)))
    assert found == expected
    for key, value in state.items():
        np.testing.assert_array_equal(other[key], value, err_msg=key)
    assert "us for the instructions" in explained[-1]
    assert "Gflop/s, as measured here" in explained[-1]


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


def test_a_column_of_a_larger_array_is_multiplied_as_it_lies() -> None:
    """BLAS reads a vector at its stride; packed, it is another product."""
    rng = np.random.default_rng(0)
    weight = nn.Parameter(mt.zeros(3, 1, dtype=mt.float64) + 0.3)
    optimizer = mt.optim.SGD([weight], lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        (F.linear(x, weight).tanh() ** 2).mean().backward()
        return weight.grad.clone()

    compiled = mt.compile(step)
    for _ in range(6):
        x = mt.from_numpy(rng.standard_normal((20, 1))[::2])
        assert bits(compiled(x)) == bits(step(x))


def test_a_matrix_and_its_own_transpose() -> None:
    """NumPy computes half of that product, and only where both are in one place."""
    rng = np.random.default_rng(0)
    compiled = mt.compile(lambda x, y: x @ y)
    for i in range(12):
        x = mt.from_numpy(rng.standard_normal((17, 20)))
        y = x.t() if i % 2 else x.t().clone()
        assert bits(compiled(x, y)) == bits(x @ y)
    assert len(compiled.programs) == 2


class Scaler:
    """A compiled method."""

    def __init__(self, by: float) -> None:
        self.by, self.runs = by, 0

    @mt.compile
    def scale(self, x: Any, *, offset: float = 0.0) -> Any:
        """Scale."""
        self.runs += 1
        return x * self.by + offset


def test_a_method_is_captured_for_each_object() -> None:
    two, three = Scaler(2.0), Scaler(3.0)
    for i in range(5):
        assert bits(two.scale(batch(i))) == bits(batch(i) * 2 + 0.0)
        assert bits(three.scale(batch(i), offset=1.0)) == bits(batch(i) * 3 + 1)
    assert (two.runs, three.runs) == (2, 2)
    assert len(two.scale.programs) == 1
    assert two.scale.__doc__ == "Scale."
    assert bits(Scaler.scale(three, batch(0))) == bits(batch(0) * 3 + 0.0)
    method, gone = two.scale, weakref.ref(two)
    del two
    gc.collect()
    assert gone() is None
    with pytest.raises(ReferenceError, match=r"Scaler\.scale: the object"):
        method(batch(9, rows=2))


def test_a_compiled_module_keeps_no_copy_of_its_attributes() -> None:
    model = nn.Linear(3, 2)
    step = mt.compile(model)
    assert not hasattr(step, "weight")
    for i in range(4):
        assert bits(step(batch(i))) == bits(model(batch(i)))


def test_running_statistics_of_all_batches() -> None:
    """Batch norm without a momentum: the number of batches is in an array."""

    def program(wrap: Any) -> Any:
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=None))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        for i in range(7):
            if i == 5:
                model[1].reset_running_stats()
            yield step(batch(i)), *model.buffers()

    eager, compiled = both(program)
    assert compiled == eager


def test_named_tuples() -> None:
    import typing

    class Pair(typing.NamedTuple):
        a: Any
        b: Any

    step = mt.compile(lambda pair: Pair(pair.b + 1, pair.a * 2))
    for i in range(4):
        x, y = batch(i), batch(i + 9)
        assert bits(step(Pair(x, y))) == bits((y + 1, x * 2))


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
