"""Tensor: identity, flags, conversions, printing, copies, modes; and the stub that types it."""

import copy
import math
import operator
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt

ROOT = Path(__file__).resolve().parent.parent

# requires_grad ------------------------------------------------------------------------------------


def test_leaves_and_results():
    x = mt.ones(2, requires_grad=True)
    y = x * 2
    assert (x.is_leaf, x.grad_fn, x.requires_grad) == (True, None, True)
    assert (y.is_leaf, y.requires_grad, y.grad_fn.name()) == (False, True, "MulBackward0")
    assert (mt.ones(2) * 2).is_leaf
    assert y.requires_grad_() is y
    x.requires_grad = False
    assert not (x * 2).requires_grad


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_only_floats_require_grad(dtype):
    x = mt.ones(2, dtype=dtype)
    with pytest.raises(RuntimeError, match="floating point"):
        x.requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        mt.ones(2, dtype=dtype, requires_grad=True)
    with pytest.raises(RuntimeError, match="floating point"):
        mt.nn.Parameter(x)


def test_integer_results_and_comparisons_do_not_require_grad():
    x = mt.ones(2, requires_grad=True)
    for result in (x > 0, x.long(), x.argmax(), x.isnan()):
        assert not result.requires_grad


def test_computed_tensor_cannot_be_frozen():
    y = mt.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match=r"leaf variables.*detach"):
        y.requires_grad_(False)


def test_grad_setter_checks_what_it_gets():
    x = mt.ones(2, requires_grad=True)
    x.grad = mt.ones(2)
    assert x.grad.tolist() == [1.0, 1.0]
    for wrong, error in (
        (mt.ones(3), RuntimeError),
        (mt.ones(2, dtype=mt.float64), RuntimeError),
        (np.ones(2), TypeError),
    ):
        with pytest.raises(error):
            x.grad = wrong
    x.grad = None
    assert x.grad is None


# Memory -------------------------------------------------------------------------------------------


def test_memory_is_shared_by_numpy_detach_data_and_views():
    array = np.zeros(4, np.float32)
    x = mt.from_numpy(array)
    x.detach()[0] = 1
    x.data[1] = 2
    x.view(2, 2)[1, 0] = 3
    x.numpy()[3] = 4
    np.asarray(x)[0] += 10
    assert array.tolist() == [11.0, 2.0, 3.0, 4.0]


def test_versions():
    x = mt.zeros(4)
    view, cut, hidden = x.view(2, 2), x.detach(), x.data
    x.add_(1)
    view[0, 0] = 1
    cut.mul_(2)
    assert x.version.n == view.version.n == cut.version.n == 3
    hidden.mul_(2)
    assert x.version.n == 3
    assert (x * 1).version.n == 0


@pytest.mark.parametrize("through", ["itself", "view", "detach", "detached view"])
def test_a_write_to_a_saved_tensor_is_noticed(through):
    x, w = mt.ones(4), mt.ones(4, requires_grad=True)
    loss = (x * w).sum()
    target = {
        "itself": lambda: x,
        "view": lambda: x.view(2, 2)[0],
        "detach": x.detach,
        "detached view": lambda: x.detach()[1:],
    }[through]()
    target.add_(1)
    with pytest.raises(RuntimeError, match=r"MulBackward0 saved x.*version 1; expected version 0"):
        loss.backward()


def test_a_write_through_data_is_not_noticed():
    x, w = mt.ones(2), mt.ones(2, requires_grad=True)
    loss = (x * w).sum()
    x.data.add_(1)
    loss.backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_assigning_data_replaces_the_array_of_an_ordinary_tensor():
    x = mt.ones(2, requires_grad=True)
    x.data = mt.zeros(3)
    assert (x.tolist(), x.requires_grad) == ([0.0, 0.0, 0.0], True)
    with pytest.raises(TypeError, match="expected a Tensor, got list"):
        x.data = [1.0]


def test_data_of_another_dtype_or_shape():
    x = mt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="must be floating point, got int64"):
        x.data = mt.ones(2, dtype=mt.int64)
    x.data = mt.ones(2, dtype=mt.float64)
    assert (x.dtype, x.requires_grad) == (mt.float64, True)
    x.sum().backward()
    with pytest.raises(RuntimeError, match=r"shape of .grad, \(2,\), got \(3,\)"):
        x.data = mt.ones(3)
    x.grad = None
    x.data = mt.ones(3)
    x.sum().backward()
    assert x.grad.shape == (3,)


def test_data_that_replaces_what_a_graph_saved():
    w = mt.tensor(2.0, requires_grad=True)
    y, alias = w * w, w.view(1)
    z = alias * alias
    w.data = mt.tensor(5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: MulBackward0"):
        y.backward()  # 10 would be the gradient of nothing
    z.backward()  # the view looks at the old memory still
    assert w.grad.item() == 4.0


def test_sgd_on_data():
    w = mt.tensor([2.0], requires_grad=True)
    for _ in range(3):
        (w * w).sum().backward()
        w.data = w.data - 0.1 * w.grad
        w.grad = None
    assert w.item() == pytest.approx(1.024)


def test_detach_():
    x = mt.ones(2, requires_grad=True)
    y = x * 2
    assert y.detach_() is y
    assert (y.is_leaf, y.requires_grad) == (True, False)
    y.requires_grad_()
    (y * 3).sum().backward()
    assert (x.grad, y.grad.tolist()) == (None, [3.0, 3.0])
    base = mt.ones(3, requires_grad=True) * 1
    part = base[:2]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        part.detach_()
    assert not base.detach_().requires_grad
    assert not mt.ones(3).detach().detach_().requires_grad


# Conversions --------------------------------------------------------------------------------------


def test_numpy_of_what_requires_grad_names_the_way_out():
    x = mt.ones(2, requires_grad=True)
    for convert in (x.numpy, lambda: np.asarray(x), lambda: np.allclose(x, x)):
        with pytest.raises(RuntimeError, match=r"detach\(\).numpy\(\)"):
            convert()
    assert x.detach().numpy().tolist() == [1.0, 1.0]
    assert np.asarray(mt.ones(2), dtype=np.float64).dtype == np.float64


def test_single_elements():
    x = mt.tensor([[2.5]])
    assert (x.item(), float(x), int(x), bool(x)) == (2.5, 2.5, 2, True)
    assert [10, 20, 30][mt.tensor(2)] == 30
    assert type(mt.tensor(True).item()) is bool
    assert type(mt.tensor(3).item()) is int
    assert math.sqrt(mt.tensor(4.0)) == 2.0


@pytest.mark.parametrize(
    "use, error, text",
    [
        (lambda x: x.item(), RuntimeError, r"2 elements.*shape \(2,\)"),
        (bool, RuntimeError, "ambiguous"),
        (lambda x: bool(x[:0]), RuntimeError, "ambiguous"),
        (float, RuntimeError, "2 elements"),
        (lambda x: [1, 2][x], TypeError, "index"),
        (lambda x: [1, 2][x[0]], TypeError, "index"),
        (lambda x: len(x[0]), TypeError, "0-d"),
        (lambda x: list(x[0]), TypeError, "0-d"),
        (lambda x: f"{x:.2f}", TypeError, "format"),
    ],
)
def test_what_needs_one_element_or_a_dimension(use, error, text):
    with pytest.raises(error, match=text):
        use(mt.tensor([1.0, 2.0]))


def test_len_iteration_and_lists():
    x = mt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert len(x) == 2
    first, second = x
    (first * second).sum().backward()
    assert x.grad.tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert mt.tensor(3).tolist() == 3


def test_format():
    assert f"{mt.tensor(1.5)}" == "1.5"
    assert f"{mt.tensor(1.5, requires_grad=True):.3f}" == "1.500"
    assert f"{mt.tensor([1.5])}" == "tensor([1.5000])"


def test_identity_hash_and_comparison_with_other_things():
    x, y = mt.ones(2), mt.ones(2)
    assert {x: 1, y: 2}[y] == 2
    assert (x == y).tolist() == [True, True]
    assert operator.ne(x, None)
    assert (x == "text") is False


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, x: a * x,
        lambda a, x: x * a,
        lambda a, x: a + x,
        lambda a, x: x - a,
        lambda a, x: a == x,
        lambda a, x: mt.maximum(x, a),
    ],
)
def test_an_array_beside_a_tensor_is_refused_with_the_way_out(mix):
    with pytest.raises(TypeError, match=r"mt\.from_numpy"):
        mix(np.ones(2), mt.ones(2))


@pytest.mark.parametrize("scalar", [np.float64(2), np.float32(2), np.int64(2), 2, 2.0])
def test_numpy_and_python_numbers_mix(scalar):
    x = mt.ones(2)
    for result in (scalar * x, x * scalar, scalar + x, x / scalar, scalar - x, x**scalar):
        assert type(result) is mt.Tensor
        assert result.dtype == mt.float32
    assert (scalar - x).tolist() == [1.0, 1.0]


# The class ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, shape",
    [(([1, 2],), (2,)), (([[1.0], [2.0]],), (2, 1)), ((), (0,)), ((3,), (3,)), ((2, 3), (2, 3))],
)
def test_the_class_called_as_in_the_tutorials(arguments, shape):
    x = mt.Tensor(*arguments)
    assert (x.shape, x.dtype, x.requires_grad) == (shape, mt.float32, False)


@pytest.mark.parametrize("wrong", [2.5, True])
def test_the_class_called_with_one_number(wrong):
    with pytest.raises(TypeError, match=r"mt\.tensor\(number\)"):
        mt.Tensor(wrong)


def test_subclasses_are_refused_when_they_are_made():
    with pytest.raises(TypeError, match=r"class Mine\(Tensor\).*cannot be subclassed"):
        type("Mine", (mt.Tensor,), {})
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (mt.nn.Parameter,), {})


def test_attributes_that_do_not_exist_cannot_be_set():
    with pytest.raises(AttributeError):
        mt.ones(1).requires_gard = True


# Copies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mt.Tensor, mt.nn.Parameter])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_independent_and_of_the_same_kind(make, how):
    x = make(mt.arange(6.0).view(2, 3).T)
    x.requires_grad_()
    x.grad = mt.ones(3, 2)
    x.register_hook(print)
    y = copy.deepcopy(x) if how == "deepcopy" else pickle.loads(pickle.dumps(x))
    assert (type(y), y.tolist(), y.requires_grad) == (type(x), x.tolist(), True)
    assert y._array.flags.f_contiguous  # the memory order too
    assert y.dtype is x.dtype
    x.data.zero_()
    assert y[1, 1] == 4.0
    if how == "deepcopy" and make is mt.Tensor:
        assert y.grad.tolist() == x.grad.tolist()
        assert y.grad is not x.grad
    else:
        assert y.grad is None


def test_deepcopy_keeps_what_is_shared():
    x = mt.ones(2)
    a, b = copy.deepcopy([x, x])
    assert a is b


def test_computed_tensors_are_neither_copied_deeply_nor_pickled():
    y = mt.ones(2, requires_grad=True) * 2
    for use in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match=r"leaf Tensors|graph leaves"):
            use(y)


# Printing -----------------------------------------------------------------------------------------


def printed() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    shapes = [(), (1,), (3,), (0,), (0, 3), (2, 0), (2, 3), (40,), (2, 2, 3), (1001,), (7, 8, 30)]
    for dtype in ("float16", "float32", "float64"):
        for shape in (*shapes, (300, 7), (2, 1200)):
            for scale in (1, 1e3, 1e5, 1e-6, 1e9):
                with np.errstate(over="ignore"):
                    values = np.asarray(rng.standard_normal(shape) * scale).astype(dtype)
                arrays += [values, np.round(values), np.zeros(shape, dtype)]
                if values.size > 2:
                    odd = values.copy()
                    odd.flat[0], odd.flat[1], odd.flat[2] = np.nan, np.inf, -np.inf
                    arrays += [odd, np.round(odd)]
    for dtype in ("int64", "int32", "int8", "uint8", "bool"):
        arrays += [rng.integers(0, 120, shape).astype(dtype) for shape in shapes]
        arrays += [np.asarray(rng.integers(0, 2, shape) * 7).astype(dtype) for shape in shapes]
    return arrays


def one_form(text: str) -> str:
    """Dtypes are NumPy's, so what follows the numbers is shorter and may stay on their line."""
    return re.sub(r",\s+(dtype|grad_fn|requires_grad)=", r", \1=", text.replace("torch.", ""))


@pytest.mark.parametrize("kind", ["plain", "requires_grad", "computed", "Parameter"])
def test_printing_is_as_in_torch(kind):
    torch = pytest.importorskip("torch")
    for array in printed():
        if kind != "plain" and array.dtype.kind != "f":
            continue
        texts = []
        for lib in (torch, mt):
            x = lib.tensor(array)
            if kind == "Parameter":
                x = lib.nn.Parameter(x)
            elif kind != "plain":
                x.requires_grad_()
                x = x * 1 if kind == "computed" else x
            texts.append(one_form(repr(x)))
        assert texts[0] == texts[1]


def test_printing():
    x = mt.tensor([[1.0, -2.5], [math.nan, math.inf]], requires_grad=True)
    assert repr(x) == (
        "tensor([[ 1.0000, -2.5000],\n        [    nan,     inf]], requires_grad=True)"
    )
    assert repr(mt.ones(2, dtype=mt.float64)) == "tensor([1., 1.], dtype=float64)"
    assert repr(x.sum()) == "tensor(nan, grad_fn=<SumBackward0>)"


def test_the_default_dtype_is_not_printed():
    mt.set_default_dtype(mt.float64)
    try:
        assert repr(mt.ones(1)) == "tensor([1.])"
        assert repr(mt.ones(1, dtype=mt.float32)) == "tensor([1.], dtype=float32)"
    finally:
        mt.set_default_dtype(mt.float32)


# Modes --------------------------------------------------------------------------------------------

SWITCHES = {
    "no_grad": (mt.no_grad, False),
    "enable_grad": (mt.enable_grad, True),
    "off": (lambda: mt.set_grad_enabled(False), False),
    "on": (lambda: mt.set_grad_enabled(True), True),
    "inference": (mt.inference_mode, False),
    "no inference": (lambda: mt.inference_mode(False), True),
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("outside", [True, False])
def test_switches_as_blocks_and_decorators(name, outside):
    make, inside = SWITCHES[name]
    with mt.set_grad_enabled(outside):
        with make():
            assert mt.is_grad_enabled() is inside
        assert mt.is_grad_enabled() is outside

        @make()
        def decorated(value):
            """Its text."""
            return value, mt.is_grad_enabled()

        assert mt.is_grad_enabled() is outside
        assert decorated(3) == (3, inside)
        assert decorated.__doc__ == "Its text."
        assert mt.is_grad_enabled() is outside
        with pytest.raises(KeyError), make():
            raise KeyError
        assert mt.is_grad_enabled() is outside
    assert mt.is_grad_enabled()


@pytest.mark.parametrize("switch", [mt.no_grad, mt.enable_grad, mt.inference_mode])
def test_decorators_without_parentheses(switch):
    @switch
    def decorated(value, *, other):
        return value, other, mt.is_grad_enabled()

    assert decorated(1, other=2) == (1, 2, switch is mt.enable_grad)


def test_switches_nest_and_may_be_used_again():
    switch = mt.no_grad()
    with switch:
        with switch, mt.enable_grad():
            assert mt.is_grad_enabled()
        assert not mt.is_grad_enabled()
    assert mt.is_grad_enabled()

    @mt.no_grad()
    def deep(n):
        with mt.enable_grad():
            below = deep(n - 1) if n else []
        return [mt.is_grad_enabled(), *below]

    assert deep(3) == [False] * 4


def test_set_grad_enabled_as_a_statement():
    mt.set_grad_enabled(False)
    try:
        assert not mt.is_grad_enabled()
    finally:
        mt.set_grad_enabled(True)


def test_a_decorated_generator_runs_inside_and_its_consumer_outside():
    @mt.no_grad()
    def values():
        try:
            got = yield mt.is_grad_enabled()
            yield got, mt.is_grad_enabled()
        except KeyError:
            yield "caught", mt.is_grad_enabled()
        return "end"

    generator = values()
    assert next(generator) is False
    assert mt.is_grad_enabled()
    assert generator.send("sent") == ("sent", False)
    assert generator.throw(KeyError()) == ("caught", False)
    with pytest.raises(StopIteration, match="end"):
        next(generator)
    assert mt.is_grad_enabled()


def test_inference_results():
    w = mt.ones(2, requires_grad=True)
    with mt.inference_mode():
        assert mt.is_inference_mode_enabled()
        y = w * 2
        y += 1
        y[0] = 0
        with mt.enable_grad():
            assert not (w * 2).requires_grad
    assert not mt.is_inference_mode_enabled()
    assert y.tolist() == [0.0, 3.0]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        w * y
    for write in (lambda: y.add_(1), lambda: y.zero_(), lambda: y[:1].add_(1)):
        with pytest.raises(RuntimeError, match="nor updated in place, outside inference_mode"):
            write()
    (w * y.clone()).sum().backward()
    assert w.grad.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    "make", [lambda: mt.ones(2), lambda: mt.tensor([1.0, 2.0]), lambda: mt.rand(2)]
)
def test_tensors_created_in_inference_mode(make):
    with mt.inference_mode():
        x = make()
        x[0] = 5
        x.add_(1)
    for write in (lambda: x.add_(1), lambda: x.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match="nor updated in place, outside inference_mode"):
            write()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x * mt.ones(2, requires_grad=True)
    assert (x * 2).add_(1).tolist()[0] == 13.0


def test_views_of_ordinary_tensors_in_inference_mode_are_ordinary():
    x = mt.ones(2, 3)
    with mt.inference_mode():
        view, copy = x.view(6), x.T.reshape(6)
    view += 1
    assert x.sum().item() == 12.0
    with pytest.raises(RuntimeError, match="outside inference_mode"):
        copy += 1


def test_modes_belong_to_a_thread():
    found = []
    with mt.no_grad():
        thread = threading.Thread(target=lambda: found.append(mt.is_grad_enabled()))
        thread.start()
        thread.join(10)
    assert found == [True]


# The stub -----------------------------------------------------------------------------------------


def test_the_stub_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "stubs", "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


USER_CODE = """
from collections.abc import Iterator
import microtrain as mt

class Net(mt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = mt.nn.Linear(4, 8)
        self.scale = mt.nn.Parameter(mt.ones(1))

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        hidden: mt.Tensor = self.hidden(x)
        return hidden.relu() * self.scale

model = Net()
optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x: mt.Tensor = mt.randn(2, 4)
loss: mt.Tensor = ((model(x) - 1.0) ** 2).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
with mt.no_grad():
    for p in model.parameters():
        if p.grad is not None:
            p -= 0.1 * p.grad
            p.mul_(1 - 1e-4).clamp_(max=1.0)
value: float = loss.item()
row: mt.Tensor = x[0, 1:].view(-1).to(mt.float64)
shape: tuple[int, ...] = x.shape
mask: mt.Tensor = (x > 0) & ~(x == 1)
first: Iterator[mt.Tensor] = iter(x)
halves: mt.Tensor = -x / 2 + 2 * x - abs(x) @ x.T
"""

WRONG_CODE = """
import microtrain as mt
x = mt.ones(2)
x + "text"
x.no_such_method()
x.shape = 3
y: int = x.sum()
"""


@pytest.mark.slow
def test_users_code_type_checks(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(USER_CODE)
    (tmp_path / "wrong.py").write_text(WRONG_CODE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--follow-imports",
         "silent", "--cache-dir", tmp_path / "cache", tmp_path / "right.py", tmp_path / "wrong.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    lines = {(name, int(n)) for name, n in re.findall(r"(\w+)\.py:(\d+): error", done.stdout)}
    assert lines == {("wrong", n) for n in (4, 5, 6, 7)}, done.stdout + done.stderr


def test_to_takes_none_for_what_is_to_stay() -> None:
    assert mt.ones(2).to("float64", None).dtype == mt.float64
    assert mt.nn.Linear(1, 1).to("float64", None).weight.dtype == mt.float64
    assert mt.ones(2).to(None, "cpu").dtype == mt.float32


@pytest.mark.parametrize(
    "call",
    [
        ("cuda:",), ("cpu:",), ("cuda:-1",), ("cuda:01",), ("cuda:1:1",), ("",), (":0",), ("gpu",),
        ("CPU",), ("cpu:1.0",), (0,), ("cuda:0", 0), ("cuda", -1), ("cuda", 1.5), ("cuda", "1"),
    ],
)  # fmt: skip
def test_a_device_that_is_none(call):
    with pytest.raises((RuntimeError, TypeError), match="device"):
        mt.device(*call)


def test_names_of_devices():
    assert mt.device("cuda:3") == mt.device("cuda", 3) == mt.device(mt.device("cuda:3"))
    assert (mt.device("cuda").index, mt.device("cpu:0").index) == (None, 0)
