"""What PyTorch 2.13 answers where an own idea of the answer had crept in; its answers are here."""

from __future__ import annotations

import copy
import inspect
import linecache
import traceback
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import nn
from microtrain.ops.registry import REGISTRY

F = nn.functional
NAN = float("nan")
INTEGERS = {
    "arange(-0.9, 2.1, 2.0, dtype=L.int64)": [0],
    "arange(0.1, -7.9, -4.0, dtype=L.int64)": [0, -4],
    "arange(-3.5, 3.5, 1.0, dtype=L.int64)": [-3, -2, -1, 0, 1, 2],
    "arange(-3.5, 3.5, 1.0, dtype=L.int32)": [-3, -2, -1, 0, 1, 2, 3],
    "arange(1.9, 10, 2.0, dtype=L.int32)": [1, 3, 5, 7, 9],
    "arange(0, 10, 2.9, dtype=L.int64)": [0, 2, 4, 6, 8],
    "arange(3, 0.5, -1, dtype=L.int64)": [3, 2, 1],
    "arange(4.7, dtype=L.int64)": [0, 1, 2, 3],
    "arange(0.2, 0.8, dtype=L.int64)": [],
    "arange(L.tensor(3))": [0, 1, 2],
    "arange(1, 5, L.tensor(2))": [1, 3],
    "arange(0.5, 3, 0.5, dtype=L.int64)": "step",
    "linspace(4.3, 1, 7, dtype=L.int64)": [4, 3, 3, 2, 2, 1, 1],
    "linspace(-2.5, 2.5, 6, dtype=L.int32)": [-2, -1, 0, 0, 1, 2],
    "linspace(0, 10, 7, dtype=L.int64)": [0, 1, 3, 5, 6, 8, 10],
    "linspace(-0.9, -3.9, 4, dtype=L.int64)": [0, -1, -2, -3],
    "linspace(4.3, 1, 1, dtype=L.int64)": [4],
    "linspace(4.3, 1, 0, dtype=L.int64)": [],
}


@pytest.mark.parametrize("call", INTEGERS)
@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_ranges_of_integers(call: str, library: str) -> None:
    lib = mt if library == "microtrain" else pytest.importorskip("torch")
    expected = INTEGERS[call]
    if expected == "step":
        with pytest.raises((RuntimeError, ValueError), match="step"):
            eval(f"L.{call}", {"L": lib})
        return
    found = eval(f"L.{call}", {"L": lib})
    assert found.tolist() == expected
    assert str(found.dtype).removeprefix("torch.") in ("int64", "int32")


@pytest.mark.parametrize(
    ("start", "dtype", "second"),
    [
        (mt.tensor(-4.3), mt.float64, -4.191836921536193),
        (np.float32(-4.3), mt.float64, -4.191836921536193),
        (mt.tensor(-4.3, dtype=mt.float64), mt.float64, -4.191836734693878),
        (mt.tensor(-4.3, dtype=mt.float64), None, -4.191836833953857),
    ],
)
def test_a_bound_that_is_a_tensor_rounds_nothing_else(
    start: Any, dtype: Any, second: float
) -> None:
    assert mt.linspace(start, 1, 50, dtype=dtype)[1].item() == second


def test_a_range_of_a_tensor_has_its_kind() -> None:
    assert mt.arange(mt.tensor(3)).dtype == mt.int64
    assert mt.arange(mt.tensor(3, dtype=mt.int32)).dtype == mt.int64
    assert mt.arange(mt.tensor(3.0, dtype=mt.float64)).dtype == mt.float32
    with pytest.raises(RuntimeError, match="2 elements"):
        mt.linspace(mt.ones(2), 3, 3)


def test_attention_in_half_precision_is_rounded_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        q, k, v = (
            (rng.standard_normal(shape) * 3).astype(np.float16)
            for shape in ((4, 3, 8), (4, 6, 8), (4, 6, 8))
        )
        found = F.scaled_dot_product_attention(*(mt.from_numpy(x) for x in (q, k, v)))
        wide = (mt.from_numpy(x.astype(np.float64)) for x in (q, k, v))
        exact = F.scaled_dot_product_attention(*wide).numpy()
        assert found.dtype == mt.float16
        # Half a unit in the last place of float16, and what float32 adds.
        np.testing.assert_allclose(found.numpy(), exact, rtol=2**-11 * 1.1, atol=1e-5)
    q = mt.ones(2, 2, 4, dtype=mt.float16, requires_grad=True)
    mask = mt.tensor([[True, False], [True, True]])
    F.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == mt.float16


@pytest.mark.parametrize("joined", [{"prepend": mt.ones(1)}, {"append": mt.ones(2)}, {}])
def test_no_differences_are_the_input(joined: dict[str, Any]) -> None:
    x = mt.arange(3.0)
    y = mt.diff(x, n=0, dim=0, **joined)
    assert y.tolist() == [0.0, 1.0, 2.0]
    y += 1
    assert x.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError):
        mt.diff(x, n=0, prepend=mt.ones(2, 2))


@pytest.mark.parametrize(
    ("values", "grad"),
    [([NAN] * 3, [1 / 3] * 3), ([1.0, NAN, 2.0, 1.0], [0.5, 0, 0, 0.5]), ([NAN], [1.0])],
)
def test_gradient_of_nanmedian(values: list[float], grad: list[float]) -> None:
    x = mt.tensor(values, dtype=mt.float64, requires_grad=True)
    x.nanmedian().backward()
    assert x.grad is not None
    assert x.grad.tolist() == grad


# An accumulation begins with mt.empty(0), whatever is to come ------------------------------------

EMPTY = {
    "cat([L.empty(0), L.ones(2, 3)])": (2, 3),
    "cat([L.empty(0), L.ones(2, 3)], 1)": (2, 3),
    "cat([L.ones(2, 3), L.empty(0), L.ones(2, 3)], -1)": (2, 6),
    "cat([L.empty(0), L.empty(0), L.ones(1, 2, 3)])": (1, 2, 3),
    "cat([L.empty(0), L.empty(0)])": (0,),
    "cat([L.empty(0), L.ones(3)])": (3,),
    "cat([L.empty(0, 2), L.ones(2, 3)])": RuntimeError,
    "cat([L.empty(0), L.ones(2, 3)], 2)": IndexError,
    "cat([L.empty(0), L.tensor(1.0)])": RuntimeError,
    "cat([L.tensor(1.0), L.empty(0)])": RuntimeError,
    "cat([L.ones(2), L.ones(2, 3)])": RuntimeError,
    "stack([L.empty(0), L.ones(2, 3)])": RuntimeError,
}


@pytest.mark.parametrize("call", EMPTY)
@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_joining_an_empty_tensor(call: str, library: str) -> None:
    lib = mt if library == "microtrain" else pytest.importorskip("torch")
    expected: Any = EMPTY[call]
    if isinstance(expected, tuple):
        assert tuple(eval(f"L.{call}", {"L": lib}).shape) == expected
    else:
        with pytest.raises(expected):
            eval(f"L.{call}", {"L": lib})


def test_an_empty_tensor_counts_for_dtype_and_gradient() -> None:
    empty, x = mt.empty(0, dtype=mt.float64, requires_grad=True), mt.ones(2, 2)
    y = mt.cat([empty, x])
    assert (y.dtype, y.requires_grad) == (mt.float64, True)
    y.sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0,)


# Small things that ported programs do -------------------------------------------------------------


def test_deleting_a_gradient() -> None:
    x, flat = mt.ones(2, requires_grad=True), nn.Linear(2, 1)
    optimizer = mt.optim.SGD(flat.parameters(), lr=0.1)
    flat(x).sum().backward()
    del x.grad, flat.weight.grad
    assert (x.grad, flat.weight.grad) == (None, None)
    del x.grad
    optimizer.step()


def test_input_as_a_keyword() -> None:
    x = mt.ones(1, 2)
    for layer in (nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)), nn.Flatten()):
        assert (layer(input=x) == layer(x)).all()


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_a_pool_of_more_windows_than_there_is_memory(kind: str, dims: int) -> None:
    layer = getattr(nn, f"Adaptive{kind}Pool{dims}d")(2**62)
    with pytest.raises(RuntimeError, match="output_size must be at most"):
        layer(mt.ones(1, 1, *[3] * dims))


def test_whether_a_tensor_contains() -> None:
    x = mt.tensor([[1.0, 2.0], [3.0, 3.0]])
    assert 3 in x
    assert 4.0 not in x
    assert mt.tensor(2.0) in x
    assert mt.tensor([3.0, 3.0]) in x
    assert 1 not in mt.ones(0)
    assert True in mt.tensor([False, True])
    for wrong in ("a", None, [1.0]):
        with pytest.raises(RuntimeError, match="x must be a number or a Tensor"):
            wrong in x  # noqa: B015


def test_arrays_of_the_other_int64_are_int64() -> None:
    """C has two integer types of 64 bits, and NumPy a dtype of its own for each."""
    x = mt.from_numpy(np.arange(3, dtype="q"))
    assert x._array.dtype is np.dtype(np.int64)
    assert mt.from_numpy(np.arange(3, dtype="l"))._array.dtype is np.dtype(np.int64)


# Errors -------------------------------------------------------------------------------------------


class Foreign:
    """As the Tensor of another library."""

    def numpy(self) -> Any:
        return np.ones(2, np.float32)


Foreign.__name__, Foreign.__module__ = "Tensor", "torch"

BESIDE = {
    "add": lambda a, b: a + b,
    "radd": lambda a, b: b + a,
    "compare": lambda a, b: a > b,
    "matmul": lambda a, b: a @ b,
    "exp": lambda a, b: mt.exp(b),
    "sum": lambda a, b: mt.sum(b),
    "cat": lambda a, b: mt.cat([a, b]),
    "where": lambda a, b: mt.where(a > 0, a, b),
    "loss": lambda a, b: F.mse_loss(a, b),
    "layer": lambda a, b: nn.Linear(2, 2)(b),
    "copy_": lambda a, b: a.copy_(b),
    "index": lambda a, b: a.__setitem__(0, b),
    "from_numpy": lambda a, b: mt.from_numpy(b),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_tensor_of_another_library_is_named_with_the_way_out(name: str) -> None:
    words = r"got torch\.Tensor|not torch\.Tensor|torch\.Tensor, which is of another library"
    with pytest.raises(TypeError, match=words) as caught:
        BESIDE[name](mt.ones(2), Foreign())
    assert "mt.from_numpy(t.numpy())" in str(caught.value)
    assert mt.from_numpy(Foreign().numpy()).tolist() == [1.0, 1.0]


def test_a_computed_tensor_in_a_plot() -> None:
    """Matplotlib copies what it is given before it makes an array of it."""
    y = nn.Linear(1, 1)(mt.ones(3, 1))[:, 0]
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(RuntimeError, match=r"To plot it, .*use tensor.detach\(\).numpy\(\)"):
            copied(y)
    with pytest.raises(RuntimeError, match=r"Use tensor.detach\(\).numpy\(\)"):
        np.asarray(y)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    with pytest.raises(RuntimeError, match=r"detach\(\).numpy\(\)"):
        plt.plot(y)
    (line,) = plt.plot(y.detach())
    assert np.asarray(line.get_ydata()).tolist() == y.tolist()
    plt.close("all")


AS_THERE: dict[str, tuple[str, Any]] = {
    "round to decimals": ("round(L.tensor([1.255, -3.14159]), decimals=2)", [1.26, -3.14]),
    "round to tens": ("tensor([125.0, 135.0]).round(decimals=-1)", [120.0, 140.0]),
    "round in place": ("tensor([0.25, 0.35]).round_(decimals=1)", [0.2, 0.4]),
    "round integers": ("round(L.tensor([1, 2]))", [1, 2]),
    "negative indices": ("take_along_dim(L.arange(6).reshape(2, 3), L.tensor([[-1], [0]]), 1)",
                         [[2], [3]]),
    "gather nothing": ("gather(L.ones(5), 0, L.zeros(0, dtype=L.uint8))", []),
    "gather nothing of a shape": ("gather(L.ones(5), 0, L.ones((2, 0)).bool()).shape == (2, 0)",
                                  True),
    "windows of a number": ("tensor(3.0).unfold(0, 1, 1)", [3.0]),
    "no window of a number": ("tensor(3.0).unfold(0, 0, 1)", []),
    "spectral norm": ("linalg.matrix_norm(L.tensor([[3.0, 0.0], [0.0, -4.0]]), 2)", 4.0),
    "smallest": ("linalg.norm(L.tensor([[3.0, 0.0], [0.0, -4.0]]), -2)", 3.0),
    "nuclear norm": ("norm(L.tensor([[3.0, 0.0], [0.0, -4.0]]), p='nuc', keepdim=True)", [[7.0]]),
    "singular values": ("linalg.svdvals(L.tensor([[0.0, 2.0], [0.0, 0.0]]))", [2.0, 0.0]),
    "power 0": ("linalg.matrix_power(L.ones(2, 2, requires_grad=True), 0).requires_grad", True),
    "sign of a determinant": ("slogdet(L.ones(1, 1, requires_grad=True)).sign.requires_grad", True),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_THERE)
@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_a_value(name: str, library: str) -> None:
    lib = mt if library == "microtrain" else pytest.importorskip("torch")
    call, expected = AS_THERE[name]
    found = eval(f"L.{call}", {"L": lib})
    if isinstance(found, bool):
        assert found is expected
    else:
        np.testing.assert_allclose(found.tolist(), expected, rtol=1e-6)


@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_containers_are_joined(library: str) -> None:
    n = nn if library == "microtrain" else pytest.importorskip("torch").nn
    a, b = n.Linear(1, 1), n.ReLU()
    first, second = n.Sequential(a), n.Sequential(b)
    assert [*(first + second)] == [a, b] == [*n.ModuleList([a]) + n.ModuleList([b])]
    assert list((first + second).state_dict()) == ["0.weight", "0.bias"]
    assert [*first * 3] == [a, a, a] == [*3 * first]
    first *= 2
    assert [*first] == [a, a]
    assert first.pop(0) is a
    assert len(first) == 1
    many = n.ModuleList([a, b])
    assert many.pop(-1) is b
    assert [*many] == [a]
    for wrong in (lambda: second + [a], lambda: second * 1.5):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    with pytest.raises(ValueError, match=r"(?i)repeat|positive|non-?zero|0|once"):
        second * 0


@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_the_order_of_hooks_and_what_they_get(library: str) -> None:
    lib: Any = mt if library == "microtrain" else pytest.importorskip("torch")

    class Scaled(lib.nn.Module):
        def forward(self, x: Any, by: float = 1.0) -> Any:
            return x * by

    module, seen = Scaled(), []
    module.register_forward_pre_hook(lambda m, args: seen.append("second"))
    handle = module.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append("first") or (args, {"by": kwargs["by"] + 1}),
        prepend=True,
        with_kwargs=True,
    )
    module.register_forward_hook(lambda m, args, out: out + 1)
    module.register_forward_hook(
        lambda m, args, kwargs, out: seen.append(kwargs["by"]) or out * 10,
        prepend=True,
        with_kwargs=True,
    )
    assert module(lib.ones(1), by=2.0).item() == 31.0
    assert seen == ["first", "second", 3.0]
    handle.remove()
    assert module(lib.ones(1), by=2.0).item() == 21.0
    module.register_full_backward_hook(lambda m, i, o: seen.append("late"))
    module.register_full_backward_hook(lambda m, i, o: seen.append("early"), prepend=True)
    x = lib.ones(1, requires_grad=True)
    module(x, by=1.0).sum().backward()
    assert seen[-2:] == ["early", "late"]
    module.register_forward_pre_hook(lambda m, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="pre-hook"):
        module(lib.ones(1))


def test_a_number_of_a_hook_is_used_again_in_another_process() -> None:
    layer = nn.Linear(1, 1)
    handle = layer.register_forward_hook(lambda m, args, kwargs, out: None, with_kwargs=True)
    handle.remove()
    later = layer.register_forward_hook(lambda m, args, out: out * 0)
    layer._with_kwargs = frozenset({later.id + 1})  # as a pickle has it
    layer.register_forward_hook(lambda m, args, out: out + 1)
    assert layer(mt.ones(1, 1)).item() == 1.0


@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_parameters_with_names(library: str) -> None:
    lib: Any = mt if library == "microtrain" else pytest.importorskip("torch")
    layer = lib.nn.Linear(1, 1)
    optimizer = lib.optim.SGD(layer.named_parameters(), lr=0.5)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["params"] == [0, 1]
    before = layer.bias.item()
    layer(lib.zeros(1, 1)).sum().backward()
    optimizer.step()
    assert layer.bias.item() == pytest.approx(before - 0.5)
    other = lib.optim.SGD(lib.nn.Linear(1, 1).parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    for bad in ([("weight", layer.weight), layer.bias], [("weight", 1)]):
        with pytest.raises((TypeError, ValueError)):
            lib.optim.SGD(bad, lr=0.1)


@pytest.mark.parametrize("library", ["microtrain", "torch"])
def test_reading_a_parameter_without_gradients(library: str) -> None:
    lib: Any = mt if library == "microtrain" else pytest.importorskip("torch")
    p = lib.nn.Parameter(lib.ones(2))
    with lib.no_grad():
        assert p.numpy().tolist() == [1.0, 1.0] == np.asarray(p).tolist()
    with pytest.raises(RuntimeError, match="detach"):
        p.numpy()
    x = lib.ones(2)
    assert x.to(lib.float32, False, True) is not x
    assert x.to(lib.float64, False).dtype == lib.float64
    assert x.to("cpu", lib.float32, False, False) is x


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        ("ones(2, 2)[[slice(None), 0]]", IndexError, "write x\\[:, positions\\]"),
        ("round(L.tensor([1, 2]), decimals=1)", RuntimeError, "int64 has no decimals"),
        ("round(L.ones(2), decimals=1.5)", RuntimeError, "'decimals' must be an int, got 1.5"),
        ("take_along_dim(L.ones(2), L.tensor([-3]), 0)", RuntimeError, "index -3 is out of bounds"),
        ("linalg.matrix_norm(L.ones(2, 2), 3)", RuntimeError, "Order 3 not supported"),
        ("norm(L.ones(2), 'nuc')", RuntimeError, "expected two dimensions"),
        ("norm(L.ones(2, 2), 'nuc', 1)", RuntimeError, "expected two dimensions"),
        ("ones(2, 2)[[slice(None), L.tensor([0, 1])]]", IndexError, "write x"),
        ("linalg.svdvals(L.ones(2))", RuntimeError, "must be at least 2-d"),
        ("linalg.svdvals(L.ones(2, 2, dtype=L.int64))", RuntimeError, "int64"),
        ("linalg.svdvals(L.full((2, 2), float('nan')))", mt.linalg.LinAlgError, "not finite"),
    ],
)
def test_what_is_refused(call: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        eval(f"L.{call}", {"L": mt})


def test_the_source_of_an_operation_is_what_runs() -> None:
    x = mt.ones(2, requires_grad=True)
    operation = REGISTRY["mul"]
    x * x
    file = "<operation mul>"
    assert operation.source.splitlines(True) == linecache.getlines(file)
    assert "RULES[" not in operation.source
    first = operation.backward_arrays.__code__.co_firstlineno
    assert operation.source.splitlines()[first - 1] == "def backward_arrays(n, g):"
    assert inspect.getsource(operation.backward_arrays).startswith("def backward_arrays(n, g):")
    with pytest.raises(RuntimeError) as caught:
        x * mt.ones(3)
    lines = [frame.line for frame in traceback.extract_tb(caught.tb) if frame.filename == file]
    assert lines
    assert all(lines)
