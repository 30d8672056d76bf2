"""Inverses, solutions, Cholesky factors, determinants and mt.linalg against PyTorch's.

Each case is one function of a library `m` (microtrain or torch) and Tensors, run in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, positive, refused_alike  # noqa: E402

INF = float("inf")


def regular(*shape: int) -> Any:
    return normal(*shape) * 0.3 + 2 * np.eye(shape[-1])


def definite(*shape: int) -> Any:
    x = normal(*shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


SHAPES = [(3, 3), (1, 1), (2, 4, 4), (2, 1, 3, 3), (0, 3, 3), (0, 0), (2, 0, 0)]

OF_ONE: dict[str, Callable[..., Any]] = {
    "inverse": lambda m, x: m.inverse(x),
    "method": lambda m, x: x.inverse(),
    "linalg.inv": lambda m, x: m.linalg.inv(x),
    "inverse of a transpose": lambda m, x: m.inverse(x.mT),
    "det": lambda m, x: m.det(x),
    "linalg.det": lambda m, x: m.linalg.det(x),
    "det times": lambda m, x: x.det() * x.sum(),
    "logdet": lambda m, x: m.logdet(x),
    "logabsdet": lambda m, x: m.slogdet(x)[1],
    "slogdet": lambda m, x: m.linalg.slogdet(x).sign * x.slogdet().logabsdet,
    "sign": lambda m, x: m.slogdet(x).sign.detach(),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_function_of_one_matrix(name: str, shape: Any) -> None:
    compare(OF_ONE[name], regular(*shape))
    if name != "logdet":
        compare(OF_ONE[name], -regular(*shape))


@pytest.mark.parametrize("order", [2, -2, "nuc"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (2, 4, 2), (1, 1)], ids=str)
def test_norms_of_singular_values(shape: Any, order: Any) -> None:
    compare(lambda m, x: m.linalg.svdvals(x) ** 3, normal(*shape))
    for keepdim in (False, True):
        compare(
            lambda m, x, keepdim=keepdim: m.linalg.matrix_norm(x, order, keepdim=keepdim),
            normal(*shape),
        )
    compare(lambda m, x: m.norm(x.mT, "nuc", dim=(-2, -1)), normal(*shape))
    compare(lambda m, x: m.linalg.norm(m.diag(x), order), positive(3))


@pytest.mark.parametrize("order", [1, -1, 2, -2, float("inf"), -float("inf"), "nuc", "fro"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 0), (0, 2, 2)], ids=str)
def test_norms_of_nothing(shape: Any, order: Any) -> None:
    def norm(m: Any) -> Any:
        return m.linalg.matrix_norm(m.zeros(shape), order)

    try:
        expected = norm(torch)
    except IndexError:
        with pytest.raises(IndexError):
            norm(mt)
    else:
        assert_same(norm(mt), expected, rtol=0)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cholesky(shape: Any, upper: bool) -> None:
    x = definite(*shape)
    compare(lambda m, a: m.linalg.cholesky(a, upper=upper), x)
    with warnings.catch_warnings():  # PyTorch's, that the name is old
        warnings.simplefilter("ignore")
        compare(lambda m, a: m.cholesky(a, upper), x)
    compare(lambda m, a: a.cholesky(), x.swapaxes(-1, -2))
    # Of a function of other numbers, and where only some of the factor is used.
    compare(lambda m, a: m.linalg.cholesky(a @ a.mT + m.eye(a.shape[-1]).double()), normal(*shape))
    compare(lambda m, a: m.cholesky(a).diagonal(0, -2, -1).log(), x)


SYSTEMS = [
    ((3, 3), (3, 2)),
    ((3, 3), (3,)),
    ((3, 3), (3, 3)),
    ((2, 3, 3), (2, 3, 4)),
    ((2, 3, 3), (2, 3)),
    ((2, 3, 3), (3,)),
    ((2, 3, 3), (3, 4)),
    ((3, 3), (2, 3, 4)),
    ((3, 3, 3), (3, 3)),
    ((2, 1, 3, 3), (1, 4, 3, 2)),
    ((1, 1, 1), (1,)),
    ((1, 1, 1), (1, 1)),
    ((1, 1), (1, 1)),
    ((2, 1, 1), (1,)),
    ((3, 3), (3, 0)),
    ((0, 0), (0, 2)),
    ((0, 0), (0,)),
    ((0, 3, 3), (0, 3, 2)),
    ((2, 2, 3, 3), (2, 2, 3)),
]


@pytest.mark.parametrize(("left", "right"), SYSTEMS, ids=str)
def test_solve(left: Any, right: Any) -> None:
    compare(lambda m, a, b: m.linalg.solve(a, b), regular(*left), normal(*right))
    compare(lambda m, a, b: m.linalg.solve(a.mT, b), regular(*left), normal(*right[::-1]).T)
    if len(right) > 1 and right != left[:-1]:
        turned = (*right[:-2], right[-1], right[-2])
        compare(lambda m, a, b: m.linalg.solve(a, b, left=False), regular(*left), normal(*turned))


SINGULAR = [
    np.array([[1.0, 2.0], [2.0, 4.0]]),
    np.array([[0.0, 1.0], [0.0, 0.0]]),
    np.zeros((1, 1)),
    np.zeros((2, 2)),
    np.zeros((3, 3)),
    np.ones((3, 3)),
    np.arange(9.0).reshape(3, 3),
    np.diag([1e8, 3.0, 0.0]),
    np.array([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]]),
]


@pytest.mark.parametrize("array", SINGULAR, ids=lambda a: str(a.tolist()))
def test_determinant_of_a_singular_matrix(array: Any) -> None:
    x, t = both(array)
    ours, theirs = x.det(), t.det()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-14)
    ours.sum().backward()
    scale = max(1.0, np.abs(array).max() ** (array.shape[-1] - 1))
    expected = [
        [_minor(m, i, j) for j in range(len(m))] for m in _each(array) for i in range(len(m))
    ]
    found = x.grad.numpy().reshape(np.shape(expected))
    np.testing.assert_allclose(found, expected, atol=1e-14 * scale)


def _each(array: Any) -> Any:
    return array.reshape(-1, *array.shape[-2:])


def _minor(matrix: Any, i: int, j: int) -> float:
    rest = np.delete(np.delete(matrix, i, 0), j, 1)
    return float((-1) ** (i + j) * (np.linalg.det(rest) if rest.size else 1.0))


def test_logarithms_of_singular_and_negative_determinants() -> None:
    for array in (np.zeros((2, 2)), -np.eye(3), np.array([[0.0, 1.0], [1.0, 0.0]])):
        x, t = both(array, grad=False)
        for name in ("logdet", "det"):
            assert_same(getattr(mt, name)(x), getattr(torch, name)(t))
        for a, b in zip(mt.slogdet(x), torch.slogdet(t), strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("name", OF_ONE)
def test_float32_stays(name: str) -> None:
    array = np.array([[2, 0.5, 0.25], [0.75, 3, 0.5], [0.5, -0.25, 2]], np.float32)
    ours, theirs = (OF_ONE[name](m, m.tensor(array)) for m in (mt, torch))
    assert_same(ours, theirs, rtol=1e-5)
    x = mt.tensor(array, requires_grad=True)
    y = OF_ONE[name](mt, x)
    if y.requires_grad:
        y.sum().backward()
        assert x.grad.dtype == mt.float32


# mt.linalg ----------------------------------------------------------------------------------------

NORMS: dict[str, Callable[..., Any]] = {
    "norm": lambda m, x: m.linalg.norm(x),
    "norm dim": lambda m, x: m.linalg.norm(x, dim=1),
    "norm dims": lambda m, x: m.linalg.norm(x, None, (0, 2), keepdim=True),
    "norm ord dim": lambda m, x: m.linalg.norm(x, 3, dim=-1),
    "norm matrix": lambda m, x: m.linalg.norm(x, 1, dim=(1, 2)),
    "norm fro": lambda m, x: m.linalg.norm(x[0], "fro"),
    "norm of a matrix": lambda m, x: m.linalg.norm(x[0], INF),
    "norm of a vector": lambda m, x: m.linalg.norm(x[0, 0], 1),
    "vector_norm": lambda m, x: m.linalg.vector_norm(x),
    "vector_norm 3": lambda m, x: m.linalg.vector_norm(x, 3, (0, 1)),
    "vector_norm 1": lambda m, x: m.linalg.vector_norm(x, ord=1, dim=-1, keepdim=True),
    "vector_norm inf": lambda m, x: m.linalg.vector_norm(x, INF, 1),
    "vector_norm -inf": lambda m, x: m.linalg.vector_norm(x, -INF),
    "vector_norm all": lambda m, x: m.linalg.vector_norm(x, dim=()),
    "vector_norm 0-d": lambda m, x: m.linalg.vector_norm(x[0, 0, 0]),
    "matrix_norm": lambda m, x: m.linalg.matrix_norm(x),
    "matrix_norm 1": lambda m, x: m.linalg.matrix_norm(x, 1),
    "matrix_norm -1": lambda m, x: m.linalg.matrix_norm(x, -1, (0, 1)),
    "matrix_norm inf": lambda m, x: m.linalg.matrix_norm(x, ord=INF, dim=(2, 0), keepdim=True),
    "matrix_norm -inf": lambda m, x: m.linalg.matrix_norm(x, -INF, (-1, 0)),
    "matrix_norm fro": lambda m, x: m.linalg.matrix_norm(x, "fro", (0, 2), True),
    "matmul": lambda m, x: m.linalg.matmul(x, x.mT),
    "multi_dot": lambda m, x: m.linalg.multi_dot([x[0], x[1].T, x[0]]),
    "multi_dot vectors": lambda m, x: m.linalg.multi_dot([x[0, 0], x[1].T, x[0], x[0, 1]]),
    "multi_dot last": lambda m, x: m.linalg.multi_dot([x[0], x[1, 0]]),
    "vecdot": lambda m, x: m.linalg.vecdot(x, x[0]),
    "vecdot dim": lambda m, x: m.linalg.vecdot(x, x, dim=0),
    "diagonal": lambda m, x: m.linalg.diagonal(A=x, offset=1),
    "A": lambda m, x: m.linalg.inv(A=x[0] @ x[0].T) * m.linalg.det(A=x[0, :2, :2]),
    "A and B": lambda m, x: m.linalg.solve(A=x[0, :2, :2], B=x[1, :2]),
    "mm and matmul": lambda m, x: m.matmul(input=m.mm(input=x[0], mat2=x[1].T), other=x[0]),
}


@pytest.mark.parametrize("name", NORMS)
def test_linalg(name: str) -> None:
    compare(NORMS[name], normal(2, 3, 4))
    compare(NORMS[name], normal(4, 3, 2).T)


def test_norms_of_nothing_and_in_another_dtype() -> None:
    for function in (
        lambda m, x: m.linalg.norm(x),
        lambda m, x: m.linalg.vector_norm(x, 1, 0),
        lambda m, x: m.linalg.matrix_norm(x, dtype=m.float64),
    ):
        x, t = both(np.zeros((2, 0), np.float32), grad=False)
        assert_same(function(mt, x), function(torch, t))


def test_every_public_name_is_torchs() -> None:
    assert {name for name in mt.linalg.__all__ if not hasattr(torch.linalg, name)} == set()


# Refusals -----------------------------------------------------------------------------------------

NAMES = ["inverse", "det", "logdet", "slogdet", "cholesky"]
WRONG: list[Callable[..., Any]] = [
    lambda m: m.ones(3, 4),
    lambda m: m.ones(3),
    lambda m: m.ones(()),
    lambda m: m.tensor([[1, 2], [3, 4]]),
    lambda m: m.ones(2, 2, dtype=m.float16),
    lambda m: [[1.0]],
]


@pytest.mark.parametrize("number", range(len(WRONG)))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_square_matrix_is_refused(name: str, number: int) -> None:
    refused_alike(lambda m: getattr(m, name)(WRONG[number](m)))


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.linalg.solve(m.ones(3, 4), m.ones(3)),
    lambda m: m.linalg.solve(m.eye(3), m.ones(4, 2)),
    lambda m: m.linalg.solve(m.eye(3), m.ones(4)),
    lambda m: m.linalg.solve(m.eye(3), m.ones(())),
    lambda m: m.linalg.solve(m.eye(3), m.ones(3, dtype=m.float64)),
    lambda m: m.linalg.solve(m.eye(3), m.ones(2, 4), left=False),
    lambda m: m.linalg.solve(m.tensor([[1]]), m.tensor([1])),
    lambda m: m.linalg.solve(m.eye(3) + m.zeros(4, 2, 3, 3), m.ones(2, 3)),
    lambda m: m.linalg.solve(m.eye(3) + m.zeros(2, 3, 3), m.ones(4, 3, 1)),
    lambda m: m.linalg.solve(m.eye(3), 2.0),
    lambda m: m.linalg.inv(2.0),
    lambda m: m.linalg.solve([[1.0]], m.ones(1)),
    lambda m: m.linalg.solve(m.eye(3), m.ones(3), left=False),
    lambda m: m.linalg.solve(m.eye(3) + m.zeros(3, 3, 3), m.ones(3, 3), left=False),
    lambda m: m.linalg.vector_norm([1.0]),
    lambda m: m.linalg.vecdot(m.tensor([1, 2]), m.tensor([1, 2])),
    lambda m: m.linalg.norm(m.ones(2, 3, 4), 2),
    lambda m: m.linalg.norm(m.ones(3), "fro"),
    lambda m: m.linalg.norm(m.tensor([1, 2])),
    lambda m: m.linalg.norm(m.ones(3, 4), 0),
    lambda m: m.linalg.norm(m.ones(2, 3, 4), 1, dim=(0, 1, 2)),
    lambda m: m.linalg.norm(m.ones(3, 4), "fro", dim=1),
    lambda m: m.linalg.vector_norm(m.ones(3), "fro"),
    lambda m: m.linalg.vector_norm(m.zeros(0), INF),
    lambda m: m.linalg.vector_norm(m.zeros(0), -1),
    lambda m: m.linalg.vector_norm(m.tensor([1])),
    lambda m: m.linalg.matrix_norm(m.ones(3)),
    lambda m: m.linalg.matrix_norm(m.ones(3, 3), 3),
    lambda m: m.linalg.matrix_norm(m.ones(3, 3), "abc"),
    lambda m: m.linalg.matrix_norm(m.ones(3, 3), 1, (0,)),
    lambda m: m.linalg.matrix_norm(m.ones(3, 3), 1, (0, 0)),
    lambda m: m.linalg.matrix_norm(m.ones(3, 3), "fro", (0, 5)),
    lambda m: m.linalg.multi_dot([m.ones(3, 3)]),
    lambda m: m.linalg.multi_dot([m.ones(3, 3), m.ones(3), m.ones(3, 3)]),
    lambda m: m.linalg.multi_dot([m.ones(3, 3), m.ones(2, 3)]),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_alike(number: int) -> None:
    refused_alike(REFUSED[number])


IMPOSSIBLE: list[Callable[..., Any]] = [
    lambda m: m.inverse(m.zeros(2, 2)),
    lambda m: m.linalg.inv(m.ones(3, 2, 2)),
    lambda m: m.linalg.solve(m.zeros(2, 2), m.zeros(2)),
    lambda m: m.matrix_power(m.zeros(2, 2), -1),
    lambda m: m.cholesky(-m.eye(3)),
    lambda m: m.linalg.cholesky(m.zeros(2, 2)),
]


@pytest.mark.parametrize("number", range(len(IMPOSSIBLE)))
def test_impossible_is_a_linalg_error(number: int) -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        IMPOSSIBLE[number](torch)
    with pytest.raises(mt.linalg.LinAlgError, match=r"^\w+\(\): "):
        IMPOSSIBLE[number](mt)
    assert issubclass(mt.linalg.LinAlgError, RuntimeError)


def test_a_second_gradient_at_a_singular_matrix() -> None:
    """PyTorch gives NaN, or a value without many correct digits."""
    x = mt.zeros(2, 2, requires_grad=True)
    (first,) = mt.autograd.grad(mt.det(x), x, create_graph=True)
    np.testing.assert_allclose(first.detach().numpy(), 0, atol=1e-5)
    assert mt.autograd.grad(first.sum(), x)[0].tolist() == [[1, -1], [-1, 1]]


def test_a_matrix_that_is_not_symmetric_has_no_cholesky_factor() -> None:
    """PyTorch takes its lower triangle for the whole, silently."""
    with pytest.raises(mt.linalg.LinAlgError, match="not symmetric"):
        mt.cholesky(mt.tensor([[2.0, 0.0], [1.0, 2.0]]))
