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
        if not y.requires_grad:  # it has become a constant
            return np.zeros(x.shape)
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


def of_bessel(x: float, n: int, order: int) -> float:
    """The derivative of `order` of the function of order n, by its series."""
    terms = []
    for k in range(30):
        power = 2 * k + n
        if power >= order:
            share = math.perm(power, order) / math.factorial(k) / math.factorial(k + n)
            terms.append(share * (x / 2) ** (power - order) / 2**order)
    return math.fsum(terms)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("n", [0, 1])
def test_all_derivatives_of_bessel_functions(n: int, order: int) -> None:
    """Near 0 they were -49,000 instead of 3 / 8, and at 0 they were 0."""
    points = [0.0, 1e-30, 1e-10, -1e-5, 1e-3, 0.3, -2.0, 5.0, 9.0]
    function = (mt.i0, mt.special.i1)[n]
    right = [of_bessel(x, n, order) for x in points]
    np.testing.assert_allclose(derivative(function, points, order), right, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_the_scaled_error_function_far_out(order: int) -> None:
    """Two numbers that agree in all digits were subtracted: 3.5e-6 instead of -3.4e-20."""
    points = np.array([9.9, 10.1, 30.0, 700.0, 1e5, 1e10, 1e60])
    u, weights = np.polynomial.laguerre.laggauss(80)
    t = u / 2 / points[:, None]
    right = (t**order * np.exp(-t * t) * weights).sum(-1) * (-2) ** order
    right /= math.sqrt(math.pi) * points
    found = derivative(mt.special.erfcx, points, order)
    np.testing.assert_allclose(found, right, rtol=1e-7, atol=1e-250)


@pytest.mark.parametrize("at", [-1e5, -1e10])
def test_derivatives_of_the_logarithm_of_a_tiny_chance(at: float) -> None:
    for order, right in enumerate([-at, -1.0], 1):
        found = derivative(mt.special.log_ndtr, [at], order)
        np.testing.assert_allclose(found, right, rtol=1e-6)
    assert abs(derivative(mt.special.log_ndtr, [at], 3)[0]) < 1e-9


def test_gamma_functions_next_to_zero() -> None:
    """-1e-30 was taken for the pole: infinite, of the other sign."""
    x = mt.tensor([-1e-30, 1e-30, -1e-300], dtype=mt.float64, requires_grad=True)
    np.testing.assert_allclose(mt.digamma(x).detach().numpy(), [1e30, -1e30, 1e300])
    np.testing.assert_allclose(
        mt.lgamma(x).detach().numpy()[[0, 2]], [69.0775527898, 690.775527898]
    )
    np.testing.assert_allclose(mt.polygamma(1, x).detach().numpy()[:2], [1e60, 1e60])
    np.testing.assert_allclose(mt.polygamma(2, x).detach().numpy()[:2], [2e90, -2e90])
    assert np.all(np.isnan(derivative(mt.logit, [1.5, -0.5], 2)))  # NaN, and so are derivatives


# Determinants ---------------------------------------------------------------------------------


def det_of_line(x: Any) -> Any:
    """-x^3, of matrices that are singular at 0."""
    return mt.stack([mt.stack([x, x * x], -1), mt.stack([x + 1, x], -1)], -2).det()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
def test_a_triangular_system_is_solved_by_substitution(upper: bool, left: bool) -> None:
    n = 5
    a = np.tril(np.full((n, n), 3.0), -1) + np.eye(n)  # what exchanges rows takes a 3 for a 1
    x = 2.0 ** (60 * np.arange(n)).reshape(n, 1)
    a, x = (a[::-1, ::-1], x[::-1]) if upper else (a, x)
    b, back = a @ x, a.T @ x[::-1]
    turned = np.array(a) if left else np.array(a.T)
    matrix = mt.tensor(turned, dtype=mt.float64)
    right = mt.tensor(b if left else b.T, dtype=mt.float64, requires_grad=True)
    found = mt.linalg.solve_triangular(matrix, right, upper=upper == left, left=left)
    np.testing.assert_allclose(found.detach().numpy(), x if left else x.T, rtol=1e-12)
    (g,) = mt.autograd.grad(found, right, mt.tensor(back if left else back.T, dtype=mt.float64))
    np.testing.assert_allclose(g.numpy(), x[::-1] if left else x[::-1].T, rtol=1e-12)


@pytest.mark.parametrize("at", [0.0, 1e-200, 1e-10, 1e-3, 0.5])
def test_a_determinant_is_a_polynomial(at: float) -> None:
    """Its second derivative was refused at a singular matrix, and the third -3e13 beside one."""
    for order, right in enumerate([-(at**3), -3 * at**2, -6 * at, -6, 0]):
        np.testing.assert_allclose(
            derivative(det_of_line, [at, 1.0], order)[0], right, rtol=1e-10, atol=1e-13
        )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_gradient_of_the_determinant_of_few_rows_is_its_cofactors(n: int) -> None:
    for x in (
        np.outer(range(1, n + 1), range(2, n + 2)), np.arange(5.0 * n * n).reshape(5, n, n) % 7,
        np.diag([3.0, 2.0, 0.0][:n]), np.zeros((2, n, n)),
    ):  # fmt: skip
        given = mt.tensor(x, dtype=mt.float64, requires_grad=True)
        given.det().sum().backward()
        right = np.empty(x.shape)
        for i, j in np.ndindex(n, n):
            minor = np.delete(np.delete(x, i, -2), j, -1)
            right[..., i, j] = (-1) ** (i + j) * np.round(np.linalg.det(minor))
        np.testing.assert_array_equal(given.grad.numpy(), right)  # of whole numbers: exactly


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10])
def test_all_derivatives_of_the_determinant_of_a_multiple(n: int) -> None:
    """That is x^n times a constant: of every rank at 0, and of the highest one elsewhere."""
    rng = np.random.default_rng(n)
    base = rng.standard_normal((n, n))
    for matrix in (np.eye(n), base, np.diag(np.arange(n) + 0.0)):
        constant, given = float(np.linalg.det(matrix)), mt.tensor(matrix)
        for at in (0.0, 1e-9, 1.5):
            for order in range(min(n + 2, 5)):
                power = math.perm(n, order) * at ** max(n - order, 0)
                found = derivative(lambda x: (x[0] * given).det(), [at], order)  # noqa: B023
                np.testing.assert_allclose(
                    found, constant * power, rtol=1e-9, atol=1e-9 if n < 10 else 1e-4
                )


def test_second_derivatives_of_a_determinant_by_its_minors() -> None:
    """Of singular matrices of every rank, in a batch with one that is regular."""
    rng = np.random.default_rng(3)
    given = [rng.standard_normal((4, k)) @ rng.standard_normal((k, 4)) for k in range(5)]
    x = mt.tensor(np.array(given), requires_grad=True)
    w = rng.standard_normal(x.shape)
    (first,) = mt.autograd.grad(x.det().sum(), x, create_graph=True)
    (second,) = mt.autograd.grad(first, x, mt.tensor(w))
    step = 1e-4  # exact for a polynomial but for rounding: of order 4, so by two differences

    def cofactors(y: Any) -> Any:
        y = mt.tensor(y, requires_grad=True)
        return mt.autograd.grad(y.det().sum(), y)[0].numpy()

    given = x.detach().numpy()
    right = (cofactors(given + step * w) - cofactors(given - step * w)) / (2 * step)
    np.testing.assert_allclose(second.numpy(), right, rtol=1e-5, atol=1e-6)


def test_the_logarithm_of_a_singular_determinant_says_so() -> None:
    x = mt.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
    for function in (mt.logdet, lambda x: mt.linalg.slogdet(x).logabsdet):
        with pytest.raises(mt.linalg.LinAlgError, match="slogdet"):
            function(x).backward()


# What has no derivative -----------------------------------------------------------------------

CUT: dict[str, Callable[[Any], Any]] = {
    "unique": lambda x: mt.unique(x),
    "unique rows": lambda x: mt.unique(mt.stack([x, x]), dim=0),
    "unique with inverse": lambda x: x.unique(return_inverse=True)[0],
    "unique_consecutive": lambda x: mt.unique_consecutive(x),
    "bincount": lambda x: mt.bincount(mt.tensor([0, 1, 1]), weights=x),
    "histogram": lambda x: mt.histogram(x, 2).hist,
    "edges": lambda x: mt.histogram(x, 2).bin_edges,
    "weights": lambda x: mt.histogram(x.detach(), 2, weight=x).hist,
    "heaviside": lambda x: mt.heaviside(x.detach(), x),
    "basis": lambda x: mt.linalg.svd(x.reshape(3, 1)).U,
    "other basis": lambda x: mt.linalg.svd(x.reshape(1, 3)).Vh,
    "older basis": lambda x: mt.svd(x.reshape(3, 1), some=False).U,
    "complete": lambda x: mt.linalg.qr(x.reshape(3, 1), "complete").Q,
}


@pytest.mark.parametrize("name", CUT)
def test_what_has_no_derivative_is_not_left_out_of_a_gradient(name: str) -> None:
    x = mt.tensor([3.0, 1.0, 3.5], requires_grad=True)
    y = CUT[name](x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match="derivative is not implemented"):
        (y.sum() + x.sum()).backward()
    with mt.no_grad():
        assert not CUT[name](x).requires_grad
    assert not CUT[name](x.detach()).requires_grad
    y.detach().sum()


def test_a_complete_basis_may_be_used_in_part() -> None:
    x = mt.tensor([[3.0, 1.0], [0.5, 2.0], [1.0, 1.0]], requires_grad=True)
    for full in (True, False):
        u, s, _ = mt.linalg.svd(x, full_matrices=full)
        ((u[:, :2].abs() * s).sum() + s.sum()).backward()
    first, x.grad = x.grad, None
    (u[:, :2].abs() * s).sum()
    assert np.isfinite(first.numpy()).all()


# What a repeated index overwrites -------------------------------------------------------------

TWICE = mt.tensor([0, 2, 0, 1, 2])
WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "assignment": lambda x, v: x.__setitem__(TWICE, v) or x,
    "a list": lambda x, v: x.__setitem__([0, 2, 0, 1, 2], v) or x,
    "index_put": lambda x, v: x.index_put((TWICE,), v),
    "index_put_": lambda x, v: x.index_put_((TWICE,), v),
    "put": lambda x, v: x.put(TWICE, v),
    "scatter": lambda x, v: x.scatter(0, TWICE, v),
    "scatter rows": lambda x, v: x[:, None].scatter(0, TWICE[:, None], v[:, None])[:, 0],
    "index_copy": lambda x, v: x.index_copy(0, TWICE, v),
    "from behind": lambda x, v: x.__setitem__(TWICE - 3, v) or x,
    "two indices": lambda x, v: mt.stack([x, x]).index_put((TWICE * 0, TWICE), v)[0],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_overwritten_value_has_no_gradient(name: str) -> None:
    v = mt.arange(5.0).requires_grad_()
    z = WRITTEN[name](mt.zeros(3), v)
    assert z.tolist() == [2, 3, 4]
    (g,) = mt.autograd.grad(z.sum(), v, create_graph=True)
    assert g.tolist() == [0, 0, 1, 1, 1]
    one = mt.tensor(2.0, requires_grad=True)  # a number written twice is there once
    assert mt.autograd.grad(mt.zeros(3).index_put((TWICE,), one).sum(), one)[0].item() == 3


# Other values ---------------------------------------------------------------------------------


def test_quotients_rounded_towards_zero() -> None:
    x = [1.0, 2.0, 6.0, -3.0, math.inf, 7.5, -7.5]
    for dtype in ("float32", "float64"):
        found = mt.div(mt.tensor(x, dtype=dtype), 0.1, rounding_mode="trunc").numpy()
        assert np.array_equal(found, np.trunc(np.array(x, dtype) / np.array(0.1, dtype)))
    assert mt.div(mt.tensor([7, -7, 6]), mt.tensor([2, 2, -2]), rounding_mode="trunc").tolist() == [
        3, -3, -3,
    ]  # fmt: skip
    assert mt.div(mt.tensor([7, -7]), 2.0, rounding_mode="trunc").tolist() == [3, -3]


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_rounded_quotient_by_zero_keeps_the_gradient_zero(mode: str) -> None:
    x, y = (mt.tensor(v, requires_grad=True) for v in ([3.0, 0.0, math.inf], [0.0, 0.0, 2.0]))
    assert [
        g.tolist() for g in mt.autograd.grad(mt.div(x, y, rounding_mode=mode).sum(), [x, y])
    ] == [[0, 0, 0]] * 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.0])
def test_softmax_of_a_number_is_that_of_a_vector_of_one(value: float) -> None:
    for function in (F.softmax, F.log_softmax, F.softmin):
        for x in (mt.tensor(value), mt.tensor(value).half()):
            (one,) = function(x.reshape(1), 0).tolist()
            assert np.array_equal(function(x, 0).item(), one, equal_nan=True)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_place(reduce: str, include: bool, value: float) -> None:
    x, index = mt.ones(4), mt.tensor([2, 0, 1, 0, 1, 1])
    src = mt.tensor([3.0, value, 4.0, 5.0, 6.0, 7.0])
    rest = index != 0
    known = x.scatter_reduce(0, index[rest], src[rest], reduce, include_self=include)
    leaf = src.requires_grad_()
    found = x.scatter_reduce(0, index, leaf, reduce, include_self=include)
    assert found[1:].tolist() == known[1:].tolist()
    (g,) = mt.autograd.grad(found[1:].sum(), leaf)
    assert g[rest].isfinite().all()


@pytest.mark.parametrize("reduce, value", [("amax", -math.inf), ("amin", math.inf)])
def test_a_replaced_element_takes_no_share_of_an_infinite_extreme(
    reduce: str, value: float
) -> None:
    src = mt.tensor([value, value, 2.0, value], requires_grad=True)
    x = mt.tensor([5.0, 6.0, 7.0, value], requires_grad=True)
    found = x.scatter_reduce(0, mt.tensor([0, 0, 1, 2]), src, reduce, include_self=False)
    assert found.tolist() == [value, 2, value, value]
    of_src, of_x = mt.autograd.grad(found.sum(), [src, x])
    assert of_src.tolist() == [0.5, 0.5, 1, 1] and of_x.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_number_is_its_mantissa_and_exponent(dtype: str) -> None:
    limits = np.finfo(dtype)
    x = np.array([1e-3, -3.0, limits.max, limits.tiny, limits.smallest_subnormal, 0.0], dtype)
    assert np.array_equal(mt.ldexp(*mt.frexp(mt.tensor(x))).numpy(), x)
    right = np.ldexp(np.array([1.5, 1.0, 2.0**-14], dtype), [9, -9, 20])
    exponents = mt.tensor([9, -9, 20])
    assert np.array_equal(mt.ldexp(mt.tensor([1.5, 1.0, 2.0**-14], dtype=dtype), exponents), right)
    wide = mt.tensor([1.5, 1.0, 2.0**-1074], dtype=mt.float64)
    right = [1.5 * 2.0**250, 2.0**-300, 2.0**1000]
    assert mt.ldexp(wide, mt.tensor([250, -300, 2074])).tolist() == right
    assert mt.ldexp(mt.tensor([1.0, -1.0]), mt.tensor([math.inf, -math.inf])).tolist() == [
        math.inf,
        0,
    ]
    e = mt.tensor([3.0], dtype=mt.float64, requires_grad=True)
    mt.ldexp(mt.tensor([5.0], dtype=mt.float64), e).backward()
    np.testing.assert_allclose(e.grad.numpy(), 40 * math.log(2))


@pytest.mark.parametrize("targets", [[255.0, 0.0], [-1.0, 1.0], [math.nan, 1.0], [2.0, 1.0]])
def test_targets_that_are_no_probabilities(targets: Any) -> None:
    inputs = mt.tensor([0.3, 0.6])
    for loss in (F.binary_cross_entropy, mt.nn.BCELoss(), mt.nn.BCELoss(reduction="none")):
        with pytest.raises(RuntimeError, match="all elements of target should be between 0 and 1"):
            loss(inputs, mt.tensor(targets))
    step = mt.compile(lambda x, y: F.binary_cross_entropy(x, y))
    for _ in range(4):
        step(inputs, mt.tensor([0.0, 1.0]))
    with pytest.raises(RuntimeError, match="all elements of target"):
        step(inputs, mt.tensor(targets))


FILLERS: dict[str, Callable[[Any], Any]] = {
    "range": lambda x: x.uniform_(-3e38, 3e38),
    "no end": lambda x: x.uniform_(0, math.inf),
    "nan": lambda x: x.uniform_(0, math.nan),
    "nan first": lambda x: x.uniform_(math.nan, 1),
    "of an initializer": lambda x: mt.nn.init.uniform_(x, -3e38, 3e38),
    "nan of one": lambda x: mt.nn.init.uniform_(x, 0, math.nan),
    "backwards": lambda x: mt.nn.init.uniform_(x, 1, 0),
    "half": lambda x: x.half().uniform_(-4e4, 4e4),
    "normal": lambda x: x.normal_(0, -1),
    "nan normal": lambda x: x.normal_(0, math.nan),
    "nan mean": lambda x: x.normal_(math.nan, 1),
    "infinite": lambda x: x.normal_(0, math.inf),
    "initializer": lambda x: mt.nn.init.normal_(x, 0, -1),
    "nan initializer": lambda x: mt.nn.init.normal_(x, 0, math.nan),
    "gain": lambda x: mt.nn.init.xavier_uniform_(x, math.nan),
    "other gain": lambda x: mt.nn.init.xavier_normal_(x, math.nan),
    "slope": lambda x: mt.nn.init.kaiming_uniform_(x, math.nan),
    "truncated": lambda x: mt.nn.init.trunc_normal_(x, std=math.nan),
    "truncated mean": lambda x: mt.nn.init.trunc_normal_(x, math.nan),
    "log": lambda x: x.log_normal_(math.nan, 1),
    "cauchy": lambda x: x.cauchy_(math.nan),
    "exponential": lambda x: x.exponential_(math.nan),
    "bernoulli": lambda x: x.bernoulli_(math.nan),
}


@pytest.mark.parametrize("name", FILLERS)
def test_numbers_are_not_drawn_from_what_is_no_range(name: str) -> None:
    x = mt.ones(3, 3)
    with pytest.raises((RuntimeError, ValueError)):
        FILLERS[name](x)
    assert np.array_equal(x.numpy(), np.ones((3, 3)))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_topk_is_the_beginning_of_a_sort(largest: bool, dtype: str) -> None:
    """Of equal elements it took others than `sort` and `argmax`."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtype == "bool" else 4, (5, 9, 3)).astype(dtype)
    if dtype == "float32":
        x[x == 3] = np.nan
        x[0, :, 1] = np.nan
    given = mt.tensor(x)
    for dim in range(3):
        whole = mt.sort(given, dim, descending=largest)
        for k in range(x.shape[dim] + 1):
            found = mt.topk(given, k, dim, largest)
            assert np.array_equal(found.indices.numpy(), whole.indices.narrow(dim, 0, k).numpy())
    assert mt.topk(mt.tensor([1.0, 1, 1, 0]), 1).indices.tolist() == [0]


def test_directions_of_vectors_whose_squares_overflow() -> None:
    for scale in (1e-3, 1.0, 1e18, 1e20, 3e37):
        x = mt.tensor([[3.0, 4.0]]) * scale
        y = mt.tensor([[4.0, 3.0]]) * (1e20 if scale > 1 else scale)
        x.requires_grad_()
        found = F.cosine_similarity(x, y)
        np.testing.assert_allclose(found.item(), 0.96, rtol=1e-6)
        found.backward()
        np.testing.assert_allclose(x.grad.numpy() * scale, [[0.0448, -0.0336]], rtol=2e-5)
    assert F.cosine_similarity(mt.zeros(1, 2), mt.ones(1, 2)).item() == 0


def test_small_types_and_truths() -> None:
    assert mt.tensor([200, 100], dtype=mt.uint8).sum_to_size(1).dtype == mt.int64
    assert mt.tensor(5, dtype=mt.int32).sum_to_size(()).dtype == mt.int64
    assert mt.tensor([200, 100], dtype=mt.uint8).sum_to_size(1).item() == 300
    assert mt.tensor([True, True]).sum_to_size(1).tolist() == [2]
    x, index = mt.tensor([True, False, True]), mt.tensor([0, 0, 1])
    for reduce, include, right in [
        ("sum", True, [True, False, True]), ("sum", False, [True, False, True]),
        ("prod", True, [False, False, True]), ("amax", False, [True, False, True]),
        ("amin", False, [False, False, True]),
    ]:  # fmt: skip
        src = mt.tensor([False, True, False])
        found = x.scatter_reduce(0, index, src, reduce, include_self=include)
        assert found.dtype == mt.bool and found.tolist() == right
    with pytest.raises(RuntimeError, match="mean of booleans"):
        x.scatter_reduce(0, index, x, "mean")
    for name in ("int64", "int32", "int8"):
        whole = mt.tensor([-1, 3, 9], dtype=getattr(mt, name))
        for found, limited in (
            (F.relu6(whole), [0, 3, 6]), (F.hardtanh(whole, -2, 4), [-1, 3, 4]),
            (mt.nn.Hardtanh()(whole), [-1, 1, 1]), (F.relu6(whole, inplace=True), [0, 3, 6]),
        ):  # fmt: skip
            assert found.dtype == whole.dtype and found.tolist() == limited
    with pytest.raises(RuntimeError, match=r"value -1.0 cannot be stored as uint8"):
        F.hardtanh(mt.tensor([3], dtype=mt.uint8))
    with pytest.raises(RuntimeError, match=r"relu6\(\): not defined for booleans"):
        F.relu6(mt.tensor([True]))
    for shape, order in [((0, 0), math.inf), ((0, 3), 2), ((3, 0), 1), ((2, 0, 0), "nuc")]:
        assert not mt.linalg.matrix_norm(mt.zeros(shape), order).numpy().any()
    with pytest.raises(IndexError):
        mt.linalg.norm(mt.zeros(0, 0), -math.inf)
    single = mt.block_diag(mt.tensor([[1.0, 2.0]]), mt.tensor(-3.0, dtype=mt.float64))
    assert single.dtype == mt.float32
    assert mt.trapezoid(mt.tensor([200, 100], dtype=mt.uint8)).item() == 150
    assert mt.trapezoid(mt.ones(2), mt.tensor([200, 100], dtype=mt.uint8)).item() == -100
    assert F.soft_margin_loss(mt.tensor([math.inf, -math.inf]), mt.tensor([1.0, -1.0])).item() == 0
    assert (
        mt.special.erfcx(mt.tensor([-1e4, -1e8, -1e16, -1e300, -math.inf]).double()).tolist()
        == [math.inf] * 5
    )
    half = [mt.ones(1, 2, 3, 4, dtype=mt.float16)] * 3
    mask = mt.zeros(3, 3, dtype=mt.float16)
    assert F.scaled_dot_product_attention(*half, attn_mask=mask).dtype == mt.float16
    bound = mt.tensor([math.nan, 1.0], requires_grad=True)
    found = mt.clamp(mt.tensor([0.0, 0.0]), bound)
    found.sum().backward()
    assert bound.grad.tolist() == [0, 1] and math.isnan(found[0].item())


COVARIED = mt.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]])
MEANINGLESS: dict[str, Callable[[], Any]] = {
    "negative weights": lambda: mt.cov(COVARIED, aweights=mt.tensor([-1.0, 2.0, 3.0])),
    "no weights": lambda: mt.cov(COVARIED, aweights=mt.zeros(3)),
    "nan weights": lambda: mt.cov(COVARIED, aweights=mt.tensor([1.0, math.nan, 3.0])),
    "fractions": lambda: mt.cov(COVARIED, fweights=mt.tensor([0.5, 1.0, 1.0])),
    "negative counts": lambda: mt.cov(COVARIED, fweights=mt.tensor([1, -1, 1])),
    "no counts": lambda: mt.cov(COVARIED, fweights=mt.tensor([0, 0, 0])),
    "negative rtol": lambda: mt.allclose(mt.ones(1), mt.ones(1), rtol=-1.0),
    "negative atol": lambda: mt.ones(1).allclose(mt.ones(1), atol=-1.0),
    "nan rtol": lambda: mt.allclose(mt.ones(1), mt.ones(1), rtol=math.nan),
    "two dtypes": lambda: mt.allclose(mt.ones(1), mt.ones(1).double()),
    "one dimension twice": lambda: mt.gradient(mt.ones(3, 3), dim=(1, 1)),
    "and from behind": lambda: mt.gradient(mt.ones(3, 3), dim=(1, -1)),
    "no inputs": lambda: mt.autograd.grad(mt.ones(1, requires_grad=True).sum(), []),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_a_meaningless_argument_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError):
        MEANINGLESS[name]()


def test_a_hook_whose_result_nobody_takes_is_refused() -> None:
    layer = mt.nn.Linear(1, 1)
    layer.register_full_backward_hook(lambda module, into, out: (out[0] * 2,))
    with pytest.raises(RuntimeError, match="none requires one"):
        layer(mt.ones(1, 1)).sum().backward()
    x = mt.ones(1, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda leaf: leaf * 2)
    with pytest.raises(RuntimeError, match="must return None"):
        (x * 2).sum().backward()


def test_gradcheck_runs_a_backward_twice() -> None:
    class Once(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.factor = [1.0]
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            ctx.factor.append(0.0)
            return g * 2 * ctx.factor[len(ctx.factor) - 2]

    with pytest.raises(mt.autograd.GradcheckError, match="reentrant"):
        mt.autograd.gradcheck(Once.apply, mt.ones(2, dtype=mt.float64, requires_grad=True))


STANDARDIZED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), (2,)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (0, 2)),
    "instance_norm": (F.instance_norm, (2,)),
}


@pytest.mark.parametrize("name", STANDARDIZED)
def test_the_third_derivatives_of_a_norm(name: str) -> None:
    """Those of the formula, which PyTorch has not: along random directions."""
    norm, dims = STANDARDIZED[name]
    rng = np.random.default_rng(0)
    x = mt.tensor(rng.standard_normal((3, 2, 6)), requires_grad=True)
    directions = [mt.from_numpy(rng.standard_normal(x.shape)) for _ in range(3)]

    def written_out(x: Any) -> Any:
        centered = x - x.mean(dims, keepdim=True)
        return centered / (centered.square().mean(dims, keepdim=True) + 1e-5).sqrt()

    found = []
    for function in (norm, written_out):
        y = function(x)
        for direction in directions:
            (y,) = mt.autograd.grad((y * direction).sum(), x, create_graph=True)
        found.append(y.detach().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-11)
