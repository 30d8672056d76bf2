"""Operations against PyTorch's: value, dtype, shape, gradients of both orders, refusals.

Each case is one function of a library `m` (microtrain or torch) and Tensors, run in both.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, positive, refused_alike, rng  # noqa: E402

NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity


SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, NAN, INF, -INF])

# Functions of one Tensor ------------------------------------------------------------------------

UNARY = """abs exp log sqrt tanh sigmoid relu neg sign floor ceil trunc round reciprocal square
    clone""".split()


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2)], ids=str)
def test_function_of_one_tensor(name: str, shape: Any) -> None:
    compare(lambda m, x: getattr(m, name)(x), positive(*shape))
    compare(lambda m, x: getattr(x, name)(), positive(*shape))


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str) -> None:
    x, t = both(SPECIAL, grad=False)
    assert_same(getattr(mt, name)(x), getattr(torch, name)(t))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "logical_not"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_tests_of_one_tensor(name: str, dtype: str) -> None:
    array = (SPECIAL if dtype == "float64" else np.array([0, 1, 2])).astype(dtype)
    compare(lambda m, x: getattr(m, name)(x), array)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "sigmoid", "reciprocal"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_integers_become_floats(name: str, dtype: str) -> None:
    array = np.array([1, 2, 3]).astype(dtype)
    ours, theirs = (getattr(m, name)(x) for m, x in zip((mt, torch), both(array), strict=True))
    assert_same(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", ["relu", "abs", "floor", "ceil", "trunc", "round", "sign", "neg"])
def test_integers_stay_integers(name: str) -> None:
    compare(lambda m, x: getattr(m, name)(x), np.array([-2, 0, 3]))


# Two Tensors --------------------------------------------------------------------------------------

SHAPES = [((2, 3), (2, 3)), ((3, 1), (2, 1, 4)), ((), (3,)), ((2, 1), ()), ((0, 3), (1, 3))]
BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda m, x, y: m.add(x, y, alpha=2),
    "sub": lambda m, x, y: x.sub(y, alpha=3),
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / y,
    "remainder": lambda m, x, y: x % y,
    "pow": lambda m, x, y: x**y,
    "maximum": lambda m, x, y: m.maximum(x, y),
    "minimum": lambda m, x, y: x.min(y),
    "max": lambda m, x, y: m.max(x, y),
    "where": lambda m, x, y: m.where(x > y, x, y * 2),
    "method where": lambda m, x, y: x.where(x > y, y),
    "clamp": lambda m, x, y: x.clamp(y - 1, y + 0.5),
    "clamp min": lambda m, x, y: m.clamp(x, min=y),
    "eq": lambda m, x, y: x == y,
    "ne": lambda m, x, y: m.ne(x, y),
    "lt": lambda m, x, y: x < y,
    "ge": lambda m, x, y: m.ge(x, y),
    "logical_xor": lambda m, x, y: m.logical_xor(x > 1, y > 1),
    "masks": lambda m, x, y: ((x > 1) & ~(y > 1)) | ((x < 1) ^ (y < 1)),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_function_of_two_tensors(name: str, left: Any, right: Any) -> None:
    compare(BINARY[name], positive(*left), positive(*right))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_division(mode: Any, dtype: str) -> None:
    x, y = np.array([7, -7, 7, -7, 6, -6]), np.array([2, 2, -2, -2, 3, 3])
    compare(lambda m, a, b: m.div(a, b, rounding_mode=mode), x.astype(dtype), y.astype(dtype))
    compare(lambda m, a: a.div(2, rounding_mode=mode), x.astype(dtype))
    if mode == "floor":
        for function in (lambda m, a, b: (a // b).detach(), lambda m, a, b: (a % b).detach()):
            compare(function, x.astype(dtype), y.astype(dtype))
            compare(lambda m, a, f=function: f(m, 7, a), y.astype(dtype))


TIES = np.array([1.0, 2.0, -1.0, 0.0, 3.0])
OTHER = np.array([1.0, 3.0, -1.0, 0.0, 2.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, y: m.maximum(x, y),
        lambda m, x, y: m.minimum(x, y),
        lambda m, x, y: m.clamp(x, -1, 2),
        lambda m, x, y: m.clamp(x, y, y + 1),
        lambda m, x, y: m.relu(x * y),
        lambda m, x, y: m.abs(x - y),
        lambda m, x, y: m.amax(x * 0 + y * 0),
        lambda m, x, y: m.amin(m.stack([x, y, y]), (0, 1)),
        lambda m, x, y: m.stack([x, y]).amax(0),
        lambda m, x, y: m.max(x * 0),
        lambda m, x, y: m.min(m.cat([x, x])),
        lambda m, x, y: (x * 0).max(0)[0],
        lambda m, x, y: m.stack([x, y, x]).min(0).values,
    ],
)
def test_ties_share_the_gradient_as_in_torch(function: Any) -> None:
    compare(function, TIES, OTHER, second=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, y: m.maximum(x, y),
        lambda m, x, y: m.minimum(y, x),
        lambda m, x, y: m.clamp(x, -1, 2),
        lambda m, x, y: m.clamp(y, x.detach(), None),
        lambda m, x, y: x.max(),
        lambda m, x, y: x.min(),
        lambda m, x, y: x.max(0).values,
        lambda m, x, y: m.stack([y, x, y]).min(0).values,
        lambda m, x, y: m.relu(x),
        lambda m, x, y: m.where(x > 0, x, y),
        lambda m, x, y: m.softmax(x, 0),
    ],
)
def test_nan_goes_through_as_in_torch(function: Any) -> None:
    compare(function, np.array([1.0, NAN, 0.0, -2.0]), normal(4), second=False)


def test_nan_is_the_extremum() -> None:
    array = np.array([[1.0, NAN, 3.0], [NAN, 5.0, NAN]])
    for name, dim in itertools.product(("max", "min", "argmax", "argmin"), (0, 1)):
        ours, theirs = (getattr(x, name)(dim) for x in both(array, grad=False))
        if name.startswith("arg"):
            assert_same(ours, theirs)
        else:
            assert_same(ours.values, theirs.values)
            assert_same(ours.indices, theirs.indices)


# Powers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -1, -2.5, 4, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_power_of_a_number(exponent: Any, dtype: str) -> None:
    array = np.array([1, 2, 3]).astype(dtype)
    if dtype in ("int64", "bool") and exponent == -1:
        for x in both(array):
            with pytest.raises(RuntimeError):
                x**exponent
        return
    if dtype == "bool" and exponent is True:
        return  # torch gives a bool, or an error on other devices; we refuse
    ours, theirs = (x**exponent for x in both(array))
    assert_same(ours, theirs, rtol=1e-6)
    if dtype == "float64":
        compare(lambda m, x: m.pow(x, exponent), positive(3, 2))
        compare(lambda m, x: m.pow(x, exponent), np.zeros(2), second=False)


def test_power_at_zero() -> None:
    base, exponent = np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0, 0.0])
    compare(lambda m, x, y: x**y, base, exponent, second=False)
    compare(lambda m, y: 2**y, exponent)
    compare(lambda m, y: 0.0**y, np.array([1.0, 2.0]), second=False)


# Reductions ---------------------------------------------------------------------------------------

DIMS = [None, 0, 1, -1, (0,), (0, 2), (-1, 1), ()]
# torch's own gradient of a variance over dim=() is infinite.
NO_GRADIENT = {("var", ()), ("std", ())}


@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "amax", "amin"])
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_reduction(name: str, dim: Any, keepdim: bool) -> None:
    array = normal(2, 3, 4)
    if dim is None and name in ("amax", "amin"):
        compare(lambda m, x: getattr(m, name)(x), array)
    elif dim is None and name in ("sum", "mean"):
        compare(lambda m, x: getattr(x, name)(), array)
    elif (name, dim) in NO_GRADIENT:
        compare(lambda m, x: getattr(m, name)(x.detach(), dim=dim, keepdim=keepdim), array)
    else:
        compare(lambda m, x: getattr(m, name)(x, dim=dim, keepdim=keepdim), array)
        compare(lambda m, x: getattr(x.transpose(0, 2), name)(dim, keepdim=keepdim), array)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("options", [{"correction": 0}, {"correction": 2}, {"unbiased": False}])
def test_variance_corrections(name: str, options: Any) -> None:
    compare(lambda m, x: getattr(m, name)(x, 1, **options), normal(3, 4))
    if "unbiased" in options:
        compare(lambda m, x: getattr(x, name)(False), normal(3, 4))
        compare(lambda m, x: getattr(x, name)(0, False, True), normal(3, 4))


@pytest.mark.parametrize("array", [[1.5], [1.5, 2.0], [2.0, 2.0], []], ids=str)
@pytest.mark.parametrize("correction", [1, 2, 3])
def test_variance_of_too_few(array: Any, correction: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name in ("var", "std"):
            x, t = both(np.array(array), grad=False)
            assert_same(
                getattr(x, name)(correction=correction), getattr(t, name)(correction=correction)
            )


def test_gradient_of_a_standard_deviation_of_equal_elements() -> None:
    compare(lambda m, x: x.std(), np.full(3, 2.0), second=False)


@pytest.mark.parametrize("p", ["fro", 2, 1, 3, 1.5, 0.5, INF, -INF])
@pytest.mark.parametrize("dim", [None, 1, (0, 2)], ids=str)
def test_norm(p: Any, dim: Any) -> None:
    array = normal(2, 3, 4)
    compare(lambda m, x: m.norm(x, p, dim), array)
    compare(lambda m, x: x.norm(p, dim, True), array)
    compare(lambda m, x: m.norm(x.detach(), 0, dim), array)  # torch has None for the gradient 0


@pytest.mark.parametrize("p", [2, 1, 3, INF])
def test_norm_with_zeros(p: float) -> None:
    compare(lambda m, x: x.norm(p, 1), np.array([[0.0, 2.0], [0.0, 0.0]]), second=False)
    compare(lambda m, x: x.norm(p), np.array([0.0, -2.0, 1.0]), second=p != 3)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_extremum_along(name: str, dim: int, keepdim: bool) -> None:
    for array in (normal(3, 4), normal(), np.array([[1, 3], [2, 0]]), np.array([True, False])):
        if array.ndim < 2 and array.dtype != bool:
            dim = 0
        for number in (0, 1):
            compare(lambda m, x, d=dim, n=number: getattr(m, name)(x, d, keepdim)[n], array)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_index_of_extremum(name: str, keepdim: bool) -> None:
    for array, dim in [(normal(3, 4), None), (normal(3, 4), 0), (normal(3, 4), -1), (normal(), 0)]:
        compare(lambda m, x, d=dim: getattr(m, name)(x, d, keepdim), array)


@pytest.mark.parametrize("name", ["all", "any"])
def test_truth(name: str) -> None:
    mask = np.array([[True, False], [True, True], [False, False]])
    for array in (mask, mask.astype(float), np.zeros((0, 2), bool)):
        compare(lambda m, x: getattr(m, name)(x), array)
        compare(lambda m, x: getattr(x, name)(1, keepdim=True), array)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_sum_of_dtypes(dtype: str) -> None:
    array = np.array([[1, 2], [3, 200]]).astype(dtype)
    compare(lambda m, x: x.sum(), array)
    compare(lambda m, x: m.sum(x, 0, dtype=m.float64), array)
    compare(lambda m, x: x.mean(dtype=m.float64), array)


def test_cast_to_integers_leaves_the_graph() -> None:
    x, t = both(np.array([1.5, 2.5]))
    assert_same(x.long(), t.long())
    assert not x.long().requires_grad
    assert not t.long().requires_grad
    assert not x.sum(dtype=mt.int64).requires_grad


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_zero_size_reductions(shape: Any) -> None:
    array = np.zeros(shape)
    for name in ("sum", "mean", "all", "any"):
        compare(lambda m, x, n=name: getattr(x, n)(), array)
        compare(lambda m, x, n=name: getattr(x, n)(0), array)
    if shape == (0, 3):
        compare(lambda m, x: x.amax(1), array)
        compare(lambda m, x: x.max(1).values, array)
        compare(lambda m, x: x.argmax(1), array)
    compare(lambda m, x: x.softmax(0), array)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(name: str, dim: int) -> None:
    compare(lambda m, x: getattr(m, name)(x, dim), normal(3, 4) * 5)
    compare(lambda m, x: getattr(x, name)(dim=dim, dtype=m.float64), normal(2, 3, 4))
    compare(lambda m, x: getattr(m, name)(x, -1), normal())
    compare(lambda m, x: getattr(m, name)(x, 0), np.array([1000.0, 0.0, -1000.0]))


# Shapes -------------------------------------------------------------------------------------------

SHAPE_CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "reshape": (lambda m, x: x.reshape(4, -1), (2, 3, 2)),
    "reshape tuple": (lambda m, x: m.reshape(x, (3, 4)), (2, 3, 2)),
    "reshape 0-d": (lambda m, x: x.reshape(()), (1, 1)),
    "reshape empty": (lambda m, x: x.reshape(-1, 3), (0, 6)),
    "reshape of a transpose": (lambda m, x: x.t().reshape(6) * 2, (2, 3)),
    "view": (lambda m, x: x.view(6, 2), (2, 3, 2)),
    "transpose": (lambda m, x: x.transpose(0, -1), (2, 3, 2)),
    "transpose function": (lambda m, x: m.transpose(x, 1, 2), (2, 3, 4)),
    "t": (lambda m, x: m.t(x), (2, 3)),
    "T": (lambda m, x: x.T @ x, (2, 3)),
    "t 1-d": (lambda m, x: x.t(), (3,)),
    "permute": (lambda m, x: x.permute(2, 0, -2), (2, 3, 4)),
    "permute function": (lambda m, x: m.permute(x, (1, 0)), (2, 3)),
    "expand": (lambda m, x: x.expand(4, -1, 3), (2, 1)),
    "expand_as": (
        lambda m, x: x.expand_as(x.new_zeros(3, 2) if m is torch else m.zeros(3, 2)),
        (2,),
    ),
    "broadcast_to": (lambda m, x: m.broadcast_to(x, (2, 3)), (3,)),
    "expand empty": (lambda m, x: x.expand(0, 3), (1, 3)),
    "squeeze": (lambda m, x: x.squeeze(), (1, 2, 1)),
    "squeeze dim": (lambda m, x: m.squeeze(x, 0), (1, 2, 1)),
    "squeeze other dim": (lambda m, x: x.squeeze(1), (1, 2, 1)),
    "squeeze dims": (lambda m, x: x.squeeze((0, -1)), (1, 2, 1)),
    "squeeze 0-d": (lambda m, x: x.squeeze(0), ()),
    "unsqueeze": (lambda m, x: m.unsqueeze(x, -1), (2, 3)),
    "unsqueeze front": (lambda m, x: x.unsqueeze(0), ()),
    "flatten": (lambda m, x: x.flatten(), (2, 3, 4)),
    "flatten part": (lambda m, x: m.flatten(x, 1, 2), (2, 3, 4, 1)),
    "flatten start": (lambda m, x: x.flatten(start_dim=1), (2, 3, 4)),
    "flatten 0-d": (lambda m, x: x.flatten(), ()),
    "cat": (lambda m, x: m.cat([x, x * 2, x[:0]]), (2, 3)),
    "cat dim": (lambda m, x: m.cat((x, x**2), dim=-1), (2, 3)),
    "stack": (lambda m, x: m.stack([x, x * x], -1), (2, 3)),
    "stack 0-d": (lambda m, x: m.stack([x, x * 2]), ()),
    "contiguous": (lambda m, x: x.t().contiguous() * 3, (2, 3)),
    "rows": (lambda m, x: m.stack([row * i for i, row in enumerate(x)]), (3, 2)),
}


@pytest.mark.parametrize("name", SHAPE_CASES)
def test_shape(name: str) -> None:
    function, shape = SHAPE_CASES[name]
    compare(lambda m, x: function(m, x) ** 2 if name != "T" else function(m, x), normal(*shape))


def test_promotion_in_cat_and_stack() -> None:
    for name in ("cat", "stack"):
        compare(lambda m, x, y, n=name: getattr(m, n)([x, y]), np.array([1, 2]), np.array([1.5, 2]))


@pytest.mark.parametrize("write", ["reshape", "view", "permute", "select", "flatten", "squeeze"])
def test_views_share_memory(write: str) -> None:
    for m in (mt, torch):
        base = m.zeros(2, 3)
        view = {
            "reshape": lambda b: b.reshape(6),
            "view": lambda b: b.view(3, 2),
            "permute": lambda b: b.permute(1, 0),
            "select": lambda b: b[1],
            "flatten": lambda b: b.flatten(),
            "squeeze": lambda b: b.unsqueeze(0).squeeze(0),
        }[write](base)
        view += 1
        assert base.sum().item() == view.numel()
        base[1, 2].fill_(5)
        assert view.max().item() == 5


def test_reshape_copies_where_memory_does_not_allow_a_view() -> None:
    for m in (mt, torch):
        base = m.zeros(2, 3)
        copy = base.t().reshape(6)
        copy += 1
        assert base.sum().item() == 0


# Products -----------------------------------------------------------------------------------------

PRODUCTS = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4,)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((2, 0, 3), (3, 2)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_matmul(left: Any, right: Any) -> None:
    compare(lambda m, x, y: m.matmul(x, y), normal(*left), normal(*right))
    compare(lambda m, x, y: x @ y, normal(*left), normal(*right))
    if len(left) == len(right) == 2:
        compare(lambda m, x, y: m.mm(x, y), normal(*left), normal(*right))
        compare(lambda m, x, y: x.t().t().mm(y), normal(*left), normal(*right))


@pytest.mark.parametrize("shape", [(5, 3), (3,), (2, 5, 3), (0, 3), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: Any, bias: bool) -> None:
    arrays = [normal(*shape), normal(4, 3), *([normal(4)] if bias else [])]
    compare(lambda m, *a: m.nn.functional.linear(*a), *arrays)


def test_one_leaf_on_both_sides() -> None:
    compare(lambda m, x: x @ x, normal(3, 3))
    compare(lambda m, x: x * x - x / (x + 3), normal(3))
    compare(lambda m, x: m.nn.functional.linear(x, x), normal(3, 3))


# Losses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 3), (), (0, 3)], ids=str)
def test_mse_loss(reduction: str, shape: Any) -> None:
    compare(
        lambda m, x, y: m.nn.functional.mse_loss(x, y, reduction=reduction),
        normal(*shape),
        normal(*shape),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    classes = np.array([0, 2, 1, 2, 0])

    def loss(m: Any, x: Any, y: Any) -> Any:
        return m.nn.functional.cross_entropy(x, y, reduction=reduction)

    compare(loss, normal(5, 3) * 4, classes)
    compare(loss, normal(3, 5).T, classes)
    compare(loss, normal(3), np.array(1))
    compare(loss, normal(0, 3), classes[:0], second=False)
    probabilities = rng.dirichlet(np.ones(3), 5)
    compare(loss, normal(5, 3), probabilities)
    compare(loss, normal(3), probabilities[0])


# Indexing -----------------------------------------------------------------------------------------

INDICES: list[Any] = [
    0,
    -1,
    (1, 2),
    (1, 2, 3),
    slice(None),
    slice(1, None, 2),
    (..., 1),
    (slice(None), None, 1),
    None,
    ...,
    [0, 2, 0],
    ([0, 1], [2, 2]),
    (slice(None), [0, 2]),
    ([0, 1], slice(None), [1, 1]),
    [True, False, True],
    True,
    [],
    range(1, 3),
    (range(2), (3, 1)),
    (slice(None), range(0)),
    np.array([[0, 1], [2, 2]]),
    np.zeros((3, 4, 5), bool),
    (0, slice(1, 3), [0, 4]),
    (slice(None), [0, 2], slice(None, 3), 1)[1:],
]


def in_library(index: Any, m: Any) -> Any:
    """Arrays in an index as Tensors of `m`; everything else as it is."""
    if isinstance(index, tuple):
        return tuple(in_library(i, m) for i in index)
    return m.tensor(index) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_by_index(index: Any) -> None:
    compare(lambda m, x: x[in_library(index, m)] * 2, normal(3, 4, 5))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_writing_by_index(index: Any) -> None:
    size = normal(3, 4, 5)[index].shape

    def write(m: Any, x: Any, v: Any) -> Any:
        y = x * 1
        y[in_library(index, m)] = v * 3
        return y * y

    places = np.arange(60).reshape(3, 4, 5)[index]
    values = [normal(), normal(*size), normal(1, *size)] if size else [normal(), normal()]
    for value in values:
        if len(np.unique(places)) == places.size:
            compare(write, normal(3, 4, 5), value)
        else:  # which of two writes wins is open in torch, and both have a gradient
            x, v = (mt.tensor(a, requires_grad=True) for a in (normal(3, 4, 5), value))
            assert mt.autograd.gradcheck(lambda x, v: write(mt, x, v), (x, v), entries=20)

    for m in (mt, torch):
        x = m.ones(3, 4, 5)
        x[in_library(index, m)] = 7
        expected = np.ones((3, 4, 5))
        expected[index] = 7
        np.testing.assert_array_equal(x.numpy(), expected)


def test_a_saved_index_is_not_the_users_to_change() -> None:
    x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    index = mt.tensor([0, 0])
    y = x[index]
    index[0] = 2
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_index_numpy_and_torch_agree_on(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=4))
    basic = hnp.basic_indices(shape, allow_newaxis=True, max_dims=5)
    index = data.draw(basic | hnp.integer_array_indices(shape))
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(p, slice) and p.step is not None and p.step < 0 for p in parts):
        return
    compare(lambda m, x: x[in_library(index, m)], normal(*shape))


# Promotion ----------------------------------------------------------------------------------------

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
OPERANDS = [
    *(np.ones(2, d) for d in DTYPES),
    *(np.ones((), d) for d in DTYPES),
    True,
    2,
    1.5,
]
PROMOTING: dict[str, Callable[..., Any]] = {
    "add": lambda m, x, y: x + y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / y,
    "lt": lambda m, x, y: x < y,
    "where": lambda m, x, y: m.where(m.tensor([True, False]), x, y),
}


def kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}-{'0d' if not value.ndim else '1d'}"
    return type(value).__name__


@pytest.mark.parametrize("name", PROMOTING)
@pytest.mark.parametrize("right", OPERANDS, ids=kind)
@pytest.mark.parametrize("left", OPERANDS, ids=kind)
def test_promotion(name: str, left: Any, right: Any) -> None:
    if not (isinstance(left, np.ndarray) or isinstance(right, np.ndarray)):
        return
    pairs = both(left, grad=False), both(right, grad=False)
    ours = PROMOTING[name](mt, pairs[0][0], pairs[1][0])
    theirs = PROMOTING[name](torch, pairs[0][1], pairs[1][1])
    assert_same(ours, theirs, rtol=1e-3)


def test_numpy_scalars_are_python_numbers() -> None:
    x = mt.ones(2)
    assert (x * np.float64(2)).dtype == (np.float64(2) * x).dtype == mt.float32
    assert (x * np.int64(2)).dtype == mt.float32
    assert (mt.tensor([1, 2]) * np.float32(0.5)).dtype == mt.float32


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow"])
def test_gradients_go_back_to_the_dtype_they_came_from(name: str) -> None:
    narrow, wide = np.array([1.5, 2.5], np.float32), np.array([2.0, 3.0])
    for left, right in [(narrow, wide), (wide, narrow), (narrow, np.array(2.0))]:
        pairs = both(left), both(right)
        ours = getattr(mt, name)(pairs[0][0], pairs[1][0])
        theirs = getattr(torch, name)(pairs[0][1], pairs[1][1])
        ours.sum().backward()
        theirs.sum().backward()
        for mine, other in pairs:
            assert_same(mine.grad, other.grad, rtol=1e-6)


def test_casting_does_not_keep_the_input() -> None:
    for m in (mt, torch):
        x = m.ones(2, requires_grad=True)
        y = x * 1
        z = y.double()
        y += 1  # not saved by the cast
        z.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]


# Refusals -----------------------------------------------------------------------------------------

REFUSED: list[Callable[..., Any]] = [
    lambda m: m.zeros(2) + m.zeros(3),
    lambda m: m.zeros(2) + "text",
    lambda m: m.zeros(2) + None,
    lambda m: m.add(m.zeros(2), [1.0, 2.0]),
    lambda m: m.sum([1.0, 2.0]),
    lambda m: m.zeros(2).sum(3),
    lambda m: m.tensor(1.0).sum(5),
    lambda m: m.zeros(2).sum("a"),
    lambda m: m.zeros(2, 2).sum((0, 0)),
    lambda m: m.zeros(2, 2).mean((0, -2)),
    lambda m: m.tensor([1, 2]).mean(),
    lambda m: m.tensor([True]).mean(),
    lambda m: m.tensor([1, 2]).var(),
    lambda m: m.tensor([1, 2]).std(),
    lambda m: m.zeros(2).var(3),
    lambda m: m.softmax(m.tensor([1, 2]), 0),
    lambda m: m.softmax(m.zeros(2), 1),
    lambda m: m.zeros(0).argmax(),
    lambda m: m.zeros(2, 0).argmax(1),
    lambda m: m.zeros(0).max(),
    lambda m: m.zeros(0).min(),
    lambda m: m.zeros(2, 0).max(1),
    lambda m: m.zeros(2, 0).amax(1),
    lambda m: m.zeros(2).amax(1),
    lambda m: m.tensor([1, 2]) ** -1,
    lambda m: -m.tensor([True]),
    lambda m: m.tensor([True]) - m.tensor([False]),
    lambda m: m.tensor([1, 2]) // 0,
    lambda m: m.tensor([1, 2]) % 0,
    lambda m: m.div(m.zeros(2), 2, rounding_mode="up"),
    lambda m: m.zeros(2) & m.zeros(2),
    lambda m: m.clamp(m.zeros(2)),
    lambda m: m.where(m.tensor([1, 0]), m.zeros(2), m.zeros(2)),
    lambda m: m.zeros(2, 3).reshape(7),
    lambda m: m.zeros(2, 3).reshape(-1, 4),
    lambda m: m.zeros(2, 3).reshape(-1, -1),
    lambda m: m.zeros(0, 3).reshape(-1, 0),
    lambda m: m.zeros(2, 3).reshape(1.5),
    lambda m: m.zeros(2, 3).t().view(6),
    lambda m: m.zeros(2, 2).permute(0, 0),
    lambda m: m.zeros(2, 2).permute(0),
    lambda m: m.zeros(2, 2).permute(0, 2),
    lambda m: m.zeros(2, 2).transpose(0, 2),
    lambda m: m.zeros(2, 2, 2).t(),
    lambda m: m.zeros(2).squeeze(1),
    lambda m: m.zeros(2).unsqueeze(3),
    lambda m: m.zeros(2, 2).flatten(1, 0),
    lambda m: m.zeros(2).expand(3),
    lambda m: m.zeros(2).expand(-1, 2),
    lambda m: m.zeros(2, 1).expand(3),
    lambda m: m.zeros(2).expand(-2),
    lambda m: m.cat([]),
    lambda m: m.cat([m.zeros(2, 2), m.zeros(3, 3)]),
    lambda m: m.cat([m.zeros(()), m.zeros(())]),
    lambda m: m.cat([m.zeros(2), 1.0]),
    lambda m: m.cat(m.zeros(2)),
    lambda m: m.stack([]),
    lambda m: m.stack([m.zeros(2), m.zeros(3)]),
    lambda m: m.mm(m.zeros(2), m.zeros(2)),
    lambda m: m.mm(m.zeros(2, 3), m.zeros(2, 3)),
    lambda m: m.zeros(2, 3) @ m.zeros(2, 3),
    lambda m: m.zeros(2, 3) @ m.zeros(2),
    lambda m: m.zeros(()) @ m.zeros(2),
    lambda m: m.zeros(2, 3) @ m.zeros(3, dtype=m.float64),
    lambda m: m.zeros(2, 3) @ 2,
    lambda m: m.mm(m.zeros(2, 3), 2),
    lambda m: m.zeros(2, 3, 4) @ m.zeros(3, 4, 2),
    lambda m: m.nn.functional.linear(m.zeros(2, 3), m.zeros(4, 2)),
    lambda m: m.nn.functional.linear(m.zeros(2, 3), m.zeros(4, 3, dtype=m.float64)),
    lambda m: m.nn.functional.linear(m.zeros(2, 3), m.zeros(4, 3), m.zeros(5)),
    lambda m: m.nn.functional.linear(m.zeros(2, 3), [1.0]),
    lambda m: m.nn.functional.mse_loss(m.tensor([1, 2]), m.tensor([1, 2])),
    lambda m: m.nn.functional.mse_loss(m.zeros(2), m.zeros(2), reduction="max"),
    lambda m: m.nn.functional.cross_entropy(m.zeros(2, 3), m.tensor([0, 3])),
    lambda m: m.nn.functional.cross_entropy(m.zeros(2, 3), m.tensor([0, -1])),
    lambda m: m.nn.functional.cross_entropy(m.zeros(2, 3), m.tensor([0, 1, 2])),
    lambda m: m.nn.functional.cross_entropy(m.zeros(2, 3), m.zeros(2, 4)),
    lambda m: m.nn.functional.cross_entropy(m.zeros(()), m.tensor(0)),
    lambda m: m.nn.functional.cross_entropy(m.tensor([[1, 2]]), m.tensor([0])),
    lambda m: m.zeros(3)[5],
    lambda m: m.zeros(3)[[0, 3]],
    lambda m: m.zeros(3)[0, 0],
    lambda m: m.zeros(())[0],
    lambda m: m.zeros(3)[1.0],
    lambda m: m.zeros(3)[m.tensor([0.5])],
    lambda m: m.zeros(3)[::-1],
    lambda m: m.zeros(3)[m.tensor([True, False])],
    lambda m: m.zeros(3).__setitem__(0, m.zeros(2)),
    lambda m: m.zeros(3).__setitem__(slice(0, 2), m.zeros(3)),
    lambda m: m.zeros(3).__setitem__(7, 1.0),
    lambda m: m.relu("text"),
    lambda m: m.exp(None),
    lambda m: m.tensor([1, 2]).add_(1.5),
    lambda m: m.zeros(2).add_(m.zeros(2, 2)),
    lambda m: m.zeros(3).expand(2, 3).add_(1),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])


def test_what_is_refused_here_on_purpose() -> None:
    a, b = mt.zeros(3, 1), mt.zeros(3)
    with pytest.raises(RuntimeError, match=r"one shape; reshape the target"):
        mt.nn.functional.mse_loss(a, b)
    for mixed in (lambda: b + np.zeros(3), lambda: np.zeros(3) * b, lambda: b @ np.zeros(3)):
        with pytest.raises(TypeError, match="from_numpy"):
            mixed()
    with pytest.raises(IndexError, match=r"\.bool\(\)"):
        b[mt.tensor([1, 0, 1], dtype=mt.uint8)]
    with pytest.raises(RuntimeError, match="not defined for these dtypes"):
        mt.bitwise_not(b)
    with pytest.raises(RuntimeError, match="booleans"):
        mt.tensor([True]) ** mt.tensor([True])


def test_every_public_name_is_torchs() -> None:
    ours = set(mt.ops.__all__) - {"REGISTRY", "methods", "mse_loss", "cross_entropy"}
    assert {name for name in ours if not hasattr(torch, name)} == set()
    methods = set(mt.ops.methods.METHODS) | set(mt.ops.methods.OPERATORS)
    assert {name for name in methods if not hasattr(torch.Tensor, name)} == set()
