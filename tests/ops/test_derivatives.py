"""Where a formula loses its digits: limits, tails, and higher derivatives at special points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

F = mt.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def derivative(function: Callable[..., Any], at: Any, order: int, dtype: str = "float64") -> Any:
    """The sum of all derivatives of `order` of a function of numbers, at each of them."""
    x = mt.tensor(at, dtype=dtype, requires_grad=True)
    y = function(x)
    for _ in range(order):
        (y,) = mt.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach().numpy()


# What goes to a limit at both ends: its value at -inf and inf, and its slope there.
LIMITS: dict[str, tuple[Callable[..., Any], float, float, float]] = {
    "sigmoid": (mt.sigmoid, 0, 1, 0),
    "silu": (F.silu, 0, np.inf, 1),
    "gelu": (F.gelu, 0, np.inf, 1),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), 0, np.inf, 1),
    "mish": (F.mish, 0, np.inf, 1),
    "hardswish": (F.hardswish, 0, np.inf, 1),
    "hardsigmoid": (F.hardsigmoid, 0, 1, 0),
    "softplus": (F.softplus, 0, np.inf, 1),
    "softsign": (F.softsign, -1, 1, 0),
    "tanh": (mt.tanh, -1, 1, 0),
    "elu": (F.elu, -1, np.inf, 1),
    "celu": (lambda x: F.celu(x, 0.5), -0.5, np.inf, 1),
    "gate": (lambda x: F.glu(mt.stack([x * 0 + 1, x]).nan_to_num(1.0), 0)[0], 0, 1, 0),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", LIMITS)
def test_a_function_goes_to_its_limits(name: str, dtype: str) -> None:
    function, low, high, slope = LIMITS[name]
    far = 200 if name in ("softsign", "tanh") else 1e4
    for ends in (-np.inf, np.inf), (-6e4, 6e4):
        x = mt.tensor(ends, dtype=dtype, requires_grad=True)
        y = function(x)
        y.sum().backward()
        expected = [low, high if np.isinf(ends[1]) or np.isfinite(high) else ends[1]]
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=2e-3, atol=1 / far)
        if name != "gate":
            np.testing.assert_allclose(x.grad.numpy(), [0, slope], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_tail_of_a_sigmoid_has_its_digits(dtype: str) -> None:
    """It stopped at 1.7e-5 in half precision, and so a product with it grew without bound."""
    ends = {"float16": (-14, -17), "float32": (-60, -100), "float64": (-300, -720)}[dtype]
    x = mt.tensor([*ends, -5e4, -np.inf], dtype=dtype)
    right = np.exp(x.double().numpy())
    least = float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(mt.sigmoid(x).double().numpy(), right, rtol=2e-2, atol=least)
    x = x.requires_grad_()
    gate = mt.nn.LSTMCell(1, 1).to(x.dtype)
    with np.errstate(all="ignore"):
        hidden, _ = gate(mt.full((1, 1), 1e4, dtype=x.dtype))
    assert np.isfinite(hidden.detach().double().numpy()).all()


ONE = mt.tensor([1.0], dtype=mt.float64)
TAIL, SELU = math.exp(-40), 1.0507009873554805 * 1.6732632423543772
TAILS: dict[str, tuple[Callable[..., Any], float, list[float]]] = {
    "logsigmoid": (F.logsigmoid, -40.0, [1.0, -TAIL, -TAIL]),
    "other side of logsigmoid": (F.logsigmoid, 40.0, [TAIL, -TAIL, TAIL]),
    "softplus": (lambda x: F.softplus(x, 1.0, math.inf), 40.0, [1.0, TAIL, -TAIL]),
    "logaddexp": (lambda x: mt.logaddexp(x, x * 0), 40.0, [1.0, TAIL, -TAIL]),
    "other logaddexp": (lambda x: mt.logaddexp(x * 0, x), 40.0, [1.0, TAIL, -TAIL]),
    "logaddexp2": (
        lambda x: mt.logaddexp2(x / math.log(2), x * 0) * math.log(2), 40.0, [1.0, TAIL, -TAIL],
    ),
    "soft margin": (lambda x: F.soft_margin_loss(x, ONE), 40.0, [-TAIL, TAIL, -TAIL]),
    "positive weight": (
        lambda x: F.binary_cross_entropy_with_logits(x, ONE, pos_weight=2 * ONE),
        40.0, [-2 * TAIL, 2 * TAIL, -2 * TAIL],
    ),
    "logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, ONE * 0), 40.0, [1.0, TAIL, -TAIL],
    ),
    "elu": (F.elu, -40.0, [TAIL] * 3),
    "celu": (lambda x: F.celu(x, 0.5), -20.0, [TAIL, 2 * TAIL, 4 * TAIL]),
    "selu": (F.selu, -40.0, [SELU * TAIL] * 3),
    "expm1": (mt.expm1, -40.0, [TAIL] * 3),
}  # fmt: skip


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", TAILS)
def test_the_derivatives_of_a_tail_have_their_digits(name: str, order: int) -> None:
    function, at, right = TAILS[name]
    found = derivative(function, [at], order)
    np.testing.assert_allclose(found, right[order - 1], rtol=1e-13)


def of_sinc(x: float, order: int) -> float:
    """By its series, added up exactly."""
    t, terms = math.pi * x, []
    for k in range((order + 1) // 2, 40):
        power = 2 * k - order
        terms.append((-1) ** k * t**power / math.factorial(power) / (2 * k + 1))
    return math.fsum(terms) * math.pi**order


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", range(5))
def test_all_derivatives_of_sinc(order: int, dtype: str) -> None:
    """The second was 0 at 0, and -6.28 or -25736 beside it, instead of -pi^2 / 3."""
    points = np.array([0, -0.0, 1e-10, 1e-8, -1e-4, 1e-2, 0.2, 0.31, -0.32, 0.9, 1.3], dtype)
    right = np.array([of_sinc(float(x), order) for x in points])
    # Of the rounded argument of the waves; float16 rounds at every step of a derivative.
    unit = float(np.finfo(dtype).eps) * (8 if dtype == "float16" else 4) * math.pi**order
    digits = {"rtol": unit, "atol": 2 * unit}
    np.testing.assert_allclose(derivative(mt.sinc, points, order, dtype), right, **digits)
    if order < 3:  # not an absolute error alone
        np.testing.assert_allclose(
            derivative(mt.sinc, points[:7], order, dtype), right[:7], rtol=2 * unit, atol=1e-7
        )


ZEROS = mt.zeros(2, dtype=mt.float64)
NORMS: dict[str, Callable[..., Any]] = {
    "norm": lambda x: x.norm() ** 2,
    "norm 3": lambda x: x.norm(3) ** 2,
    "norm 1.5": lambda x: x.norm(1.5) ** 2,
    "vector_norm": lambda x: mt.linalg.vector_norm(x) ** 2,
    "matrix norm": lambda x: mt.linalg.matrix_norm(x[None]) ** 2,
    "of rows": lambda x: mt.stack([x, x + 1]).norm(dim=1) ** 2,
    "dist": lambda x: mt.dist(x, ZEROS) ** 2,
    "cdist": lambda x: mt.cdist(x[None], ZEROS[None]) ** 2,
    "pdist": lambda x: F.pdist(mt.stack([x, -x])) ** 2,
    "std": lambda x: mt.stack([x[0], x[0] * 0, x[1], -x[1]]).std() ** 2,
    "std of rows": lambda x: mt.stack([x, x + x]).std(dim=1) ** 2,
    "a penalty": lambda x: (x.norm() - 1) ** 2,
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_has_no_second_derivative_at_zero(name: str) -> None:
    """It was silently 0, where that of the square is 2; the first is 0."""
    assert np.all(derivative(NORMS[name], [0.0, 0.0], 1)[:2] * 0 == 0)
    assert np.all(np.isnan(derivative(NORMS[name], [0.0, 0.0], 2)))
    assert np.all(np.isfinite(derivative(NORMS[name], [0.5, -0.25], 2)))


def test_elements_that_are_zero_in_a_norm_below_two() -> None:
    """The second derivative in such an element is infinite."""
    found = derivative(lambda x: x.norm(1.5), [0.0, 2.0], 2)
    assert not np.isfinite(found[0])
    assert np.all(np.isfinite(derivative(lambda x: x.norm(3), [0.0, 2.0], 2)))


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_normalize_at_zero_is_a_division(p: float) -> None:
    """Below its smallest length it divides by a constant, and so all derivatives exist."""
    first = derivative(lambda x: F.normalize(x, p, 0, eps=0.5), [0.0, 0.0], 1)
    np.testing.assert_allclose(first, 2)
    second = derivative(lambda x: F.normalize(x, p, 0, eps=0.5) ** 2, [0.0, 0.0], 2)
    np.testing.assert_allclose(second, 8 if p == 2 or p > 2 else second)
    assert np.array_equal(F.normalize(ZEROS, p, 0).numpy(), [0, 0])


def test_mixed_derivatives_of_a_power_at_the_exponent_zero() -> None:
    """One way it was 0, the other way right."""
    a, b = (mt.tensor([v] * 3, dtype=mt.float64, requires_grad=True) for v in (2.0, 0.0))
    for one, other in ((a, b), (b, a)):
        (first,) = mt.autograd.grad((a**b).sum(), one, create_graph=True)
        (second,) = mt.autograd.grad(first.sum(), other)
        np.testing.assert_allclose(second.numpy(), 0.5)
    assert np.array_equal(
        derivative(lambda x: x ** mt.zeros(3).double(), [0.0, np.inf, 5], 1), [0] * 3
    )
    zero = mt.zeros(1, requires_grad=True)  # there it is infinite
    (first,) = mt.autograd.grad(mt.zeros(1, requires_grad=True) ** zero, zero, create_graph=True)
    assert first.item() == 0
