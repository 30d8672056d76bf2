"""Activation functions against PyTorch's, called as users call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, numpy_of, refused_alike  # noqa: E402

NAN, INF = math.nan, math.inf
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity

# name: the arguments after the input, and the kinks
CALLS: dict[str, tuple[str, dict[str, Any], list[float]]] = {
    "relu": ("relu", {}, [0.0]),
    "gelu": ("gelu", {}, []),
    "gelu tanh": ("gelu", {"approximate": "tanh"}, []),
    "silu": ("silu", {}, []),
    "mish": ("mish", {}, []),
    "softplus": ("softplus", {}, []),
    "softplus bent": ("softplus", {"beta": 3, "threshold": 1.5}, [0.5]),
    "logsigmoid": ("logsigmoid", {}, []),
    "elu": ("elu", {}, [0.0]),
    "elu alpha": ("elu", {"alpha": 1.7}, [0.0, -0.0]),
    "selu": ("selu", {}, [0.0]),
    "celu": ("celu", {"alpha": 0.5}, [0.0]),
    "leaky_relu": ("leaky_relu", {}, [0.0, -0.0]),
    "leaky_relu slope": ("leaky_relu", {"negative_slope": -0.3}, [0.0]),
    "relu6": ("relu6", {}, [0.0, 6.0]),
    "hardtanh": ("hardtanh", {}, [-1.0, 1.0]),
    "hardtanh bounds": ("hardtanh", {"min_val": -0.5, "max_val": 2}, [-0.5, 2.0]),
    "hardtanh of one number": ("hardtanh", {"min_val": 1.0, "max_val": 1.0}, [1.0]),
    "hardsigmoid": ("hardsigmoid", {}, [-3.0, 3.0]),
    "hardswish": ("hardswish", {}, [-3.0, 3.0]),
    "threshold": ("threshold", {"threshold": 0.5, "value": -2.0}, [0.5]),
    "softsign": ("softsign", {}, [0.0]),
    "tanhshrink": ("tanhshrink", {}, []),
}
IN_PLACE = """relu silu mish elu selu celu leaky_relu relu6 hardtanh hardsigmoid hardswish
    threshold""".split()


def called(name: str) -> tuple[Callable[..., Any], list[float]]:
    function, options, kinks = CALLS[name]

    def call(m: Any, x: Any, **more: Any) -> Any:
        if (
            m is torch and name == "hardsigmoid" and not more
        ):  # torch's multiplies by 1 / 6 rounded to float32
            return torch.nn.functional.relu6(x + 3) / 6
        return getattr(m.nn.functional, function)(x, **options, **more)

    return call, kinks


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2), (2, 1, 3)], ids=str)
def test_value_and_derivatives(name: str, shape: Any) -> None:
    function, _ = called(name)
    compare(function, np.asarray(normal(*shape) * 3))
    if len(shape) > 1:
        compare(lambda m, x: function(m, x.transpose(0, 1)), normal(*shape))


@pytest.mark.parametrize("name", CALLS)
def test_derivative_at_kinks(name: str) -> None:
    function, kinks = called(name)
    compare(function, np.array([*kinks, 1.25]), second=not kinks)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_far_out(name: str, dtype: str) -> None:
    """Large arguments overflow neither in the value nor in the gradients."""
    function, _ = called(name)
    array = np.array([-1e4, -700.0, -90.0, -25.0, -1e-9, 1e-9, 25.0, 90.0, 700.0, 1e4], dtype)
    x, t = both(array)
    ours, theirs = function(mt, x), function(torch, t)
    digits = {"rtol": 1e-6, "atol": 1e-7} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-15}
    np.testing.assert_allclose(numpy_of(ours), numpy_of(theirs), **digits)
    (first,) = mt.autograd.grad(ours.sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(theirs.sum(), t, create_graph=True)
    np.testing.assert_allclose(numpy_of(first), numpy_of(expected), **digits)
    if first.requires_grad:
        assert np.all(np.isfinite(mt.autograd.grad(first.sum(), x)[0].numpy()))


# How many of the values below have no NaN in torch: it multiplies 0 by infinity.
LIMITED = {
    **dict.fromkeys(("silu", "gelu", "gelu tanh", "mish", "hardswish"), 4),
    "softsign": 3,
}


@pytest.mark.parametrize("name", CALLS)
def test_special_values(name: str) -> None:
    function, _ = called(name)
    array = np.array([0.0, -0.0, NAN, INF, -INF])
    x, t = both(array[: LIMITED.get(name, 5)], grad=False)
    assert_same(function(mt, x), function(torch, t))


@pytest.mark.parametrize("name", CALLS)
def test_nan_has_torchs_gradient(name: str) -> None:
    if name != "hardswish":  # 0 in torch
        compare(called(name)[0], np.array([NAN, 1.0]), second=False)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_floats(name: str, dtype: str) -> None:
    function, _ = called(name)
    array = np.linspace(-9, 9, 37).astype(dtype)
    x, t = both(array)
    ours, theirs = function(mt, x), function(torch, t)
    digits = {"rtol": 4e-6, "atol": 1e-6} if dtype == "float32" else {"rtol": 4e-3, "atol": 4e-3}
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), **digits)
    ours.sum().backward()
    theirs.sum().backward()
    assert x.grad.dtype == dtype
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), **digits)


@pytest.mark.parametrize(
    "name", [n for n in CALLS if CALLS[n][0] in IN_PLACE and n != "leaky_relu slope"]
)
def test_in_place(name: str) -> None:
    function, _ = called(name)

    def written(m: Any, x: Any) -> Any:
        y = x * 2
        assert function(m, y, inplace=True) is y
        return y

    if name != "hardsigmoid":
        compare(written, normal(3, 2))
    for m in (mt, torch):
        leaf = m.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="in-place operation"):
            function(m, leaf, inplace=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.nn.functional.elu(x, 2.0, False) + m.nn.functional.celu(x, 2.0, False),
        lambda m, x: m.nn.functional.leaky_relu(x, 0.1, False) * m.nn.functional.hardtanh(x, -2, 2),
        lambda m, x: m.nn.functional.softplus(x, 2, 1) + m.nn.functional.threshold(x, 0.1, 20),
        lambda m, x: m.nn.functional.gelu(input=x, approximate="none"),
        lambda m, x: m.nn.functional.softmin(x, 1) + m.nn.functional.softmin(x, dim=-2),
        lambda m, x: m.nn.functional.softmin(x, 0, dtype=m.float64),
        lambda m, x: m.nn.functional.glu(x) * m.nn.functional.glu(x, dim=1),
        lambda m, x: m.nn.functional.glu(x.transpose(0, 1), 0),
        lambda m, x: m.nn.functional.glu(x[:0]),
    ],
)
def test_arguments_by_position_and_by_name(call: Any) -> None:
    compare(call, normal(3, 4))


@pytest.mark.parametrize(
    ("shape", "weights"),
    [((3, 4), 4), ((3, 4), 1), ((2, 3, 4, 2), 3), ((5,), 1), ((), 1), ((0, 2), 2), ((2, 1, 2), 1)],
    ids=str,
)
def test_prelu(shape: Any, weights: int) -> None:
    array = normal(*shape)
    compare(lambda m, x, w: m.nn.functional.prelu(x, w), array, normal(weights))
    if weights == 1:
        compare(lambda m, x, w: m.nn.functional.prelu(x, w), array, normal())


def test_prelu_at_its_kink() -> None:
    kinks = np.array([0.0, -0.0, INF, NAN, -2.0])
    compare(lambda m, x, w: m.nn.functional.prelu(x, w), kinks, np.array([0.3]), second=False)


@pytest.mark.parametrize("name", ["softsign", "tanhshrink"])
def test_integers_become_floats(name: str) -> None:
    x, t = both(np.array([-2, 0, 3]))
    ours, theirs = (getattr(m.nn.functional, name)(v) for m, v in ((mt, x), (torch, t)))
    assert_same(ours, theirs, rtol=1e-6)


FLOATS = "gelu silu mish softplus logsigmoid elu selu celu leaky_relu hardsigmoid hardswish".split()
REFUSED: list[Callable[..., Any]] = [
    *(lambda m, n=n: getattr(m.nn.functional, n)(m.tensor([1, 2])) for n in FLOATS),
    *(lambda m, n=n: getattr(m.nn.functional, n)([1.0, 2.0]) for n in [*FLOATS, "relu", "relu6"]),
    lambda m: m.nn.functional.relu("text", inplace=True),
    lambda m: m.nn.functional.silu([1.0], inplace=True),
    lambda m: m.nn.functional.gelu(m.zeros(2), approximate="erf"),
    lambda m: m.nn.functional.gelu(m.zeros(2), "tanh"),
    lambda m: m.nn.functional.celu(m.zeros(2), 0.0),
    lambda m: m.nn.functional.elu(m.zeros(2), m.zeros(2)),
    lambda m: m.nn.functional.celu(m.zeros(2), None),
    lambda m: m.nn.functional.leaky_relu(m.zeros(2), "0.1"),
    lambda m: m.nn.functional.softplus(m.zeros(2), beta=[1.0]),
    lambda m: m.nn.functional.threshold(m.zeros(2), 0.0, None),
    lambda m: m.nn.functional.hardtanh(m.zeros(2), 2.0, 1.0),
    lambda m: m.nn.functional.softmin(m.tensor([1, 2]), 0),
    lambda m: m.nn.functional.softmin(m.zeros(2), 1),
    lambda m: m.nn.functional.glu(m.tensor([1, 2])),
    lambda m: m.nn.functional.glu(m.zeros(3)),
    lambda m: m.nn.functional.glu(m.zeros(())),
    lambda m: m.nn.functional.glu(m.zeros(2, 4), 2),
    lambda m: m.nn.functional.prelu(m.zeros(2), 0.5),
    lambda m: m.nn.functional.prelu(m.zeros(2), m.zeros(2)),
    lambda m: m.nn.functional.prelu(m.zeros(2, 3), m.zeros(2)),
    lambda m: m.nn.functional.prelu(m.zeros(2, 3), m.zeros(1, 3)),
    lambda m: m.nn.functional.prelu(m.zeros(2), m.zeros(1, dtype=m.float64)),
    lambda m: m.nn.functional.prelu(m.tensor([1, 2]), m.zeros(1)),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])


def test_what_is_refused_here_on_purpose() -> None:
    with pytest.raises(
        TypeError, match=r"leaky_relu\(\): argument 'negative_slope' must be a number"
    ):
        mt.nn.functional.leaky_relu(mt.zeros(2), mt.tensor(0.1))  # torch reads a 0-d Tensor
    whole = mt.tensor([1, 2])  # torch cuts the bounds to integers
    with pytest.raises(RuntimeError, match=r"threshold\(\): .*\.float\(\)"):
        mt.nn.functional.threshold(whole, 1.5, 2.5)
    with pytest.raises(RuntimeError, match=r"hardtanh\(\): value 1.5 cannot be stored as int64"):
        mt.nn.functional.hardtanh(whole, 0, 1.5)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_integers_are_limited(dtype: str) -> None:
    x, t = both(np.array([1, 3, 9], dtype))
    for call in (
        lambda m, x: m.nn.functional.relu6(x),
        lambda m, x: m.nn.functional.hardtanh(x, 2, 4),
        lambda m, x: m.nn.functional.hardtanh_(x, 0, 2),
    ):
        assert_same(call(mt, x), call(torch, t), rtol=0)
