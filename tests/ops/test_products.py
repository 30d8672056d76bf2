"""What is made of other operations, without torch: against NumPy, derivatives, on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakecupy import FakeArray

import microtrain as mt
from microtrain.autograd import gradcheck, gradgradcheck

rng = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape)


def definite(n: int) -> Any:
    x = normal(n, n)
    return x @ x.T + n * np.eye(n)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"einsum {equation}": (
            lambda *xs, equation=equation: mt.einsum(equation, *xs),
            lambda *xs, equation=equation: np.einsum(equation, *xs),
            tuple(normal(*shape) for shape in shapes),
        )
        for equation, shapes in [
            ("ij,kj->ki", ((3, 4), (2, 4))),
            ("bij,bjk->bik", ((2, 3, 4), (2, 4, 2))),
            ("ii,ij->j", ((3, 3), (3, 2))),
            ("...ij,jk,k->...i", ((2, 3, 4), (4, 2), (2,))),
            ("i,j->ji", ((3,), (2,))),
        ]
    },
    "bmm": (mt.bmm, np.matmul, (normal(2, 3, 4), normal(2, 4, 2))),
    "inner": (mt.inner, np.inner, (normal(2, 3), normal(4, 3))),
    "outer": (mt.outer, np.outer, (normal(2), normal(3))),
    "kron": (mt.kron, np.kron, (normal(2, 1), normal(2, 2))),
    "tensordot": (mt.tensordot, np.tensordot, (normal(2, 3, 2), normal(3, 2, 2))),
    "addmm": (
        lambda x, a, b: mt.addmm(x, a, b, beta=2, alpha=0.5),
        lambda x, a, b: 2 * x + 0.5 * (a @ b),
        (normal(2), normal(3, 4), normal(4, 2)),
    ),
    "matrix_power": (
        lambda x: mt.matrix_power(x, -3),
        lambda x: np.linalg.matrix_power(x, -3),
        (definite(2),),
    ),
    "solve": (mt.linalg.solve, np.linalg.solve, (definite(3), normal(3))),
    "cholesky": (
        lambda x: mt.cholesky(x, upper=True),
        lambda x: np.linalg.cholesky(x).T,
        (definite(3),),
    ),
    "logdet": (mt.logdet, lambda x: np.log(np.linalg.det(x)), (definite(3),)),
    "slogdet": (lambda x: mt.slogdet(x)[1], lambda x: np.linalg.slogdet(x)[1], (-definite(3),)),
    "matrix_norm": (
        lambda x: mt.linalg.matrix_norm(x, 1),
        lambda x: np.linalg.norm(x, 1),
        (normal(3, 4),),
    ),
    "split": (
        lambda x: mt.split(x, 2)[0] * mt.split(x, [1, 2])[1],
        lambda x: x[:2] * x[1:],
        (normal(3, 2),),
    ),
    "unbind": (lambda x: x.unbind(1)[1] * 2, lambda x: 2 * x[:, 1], (normal(3, 2),)),
    "hstack": (lambda *xs: mt.hstack(xs), lambda *xs: np.hstack(xs), (normal(3, 2), normal(3, 1))),
    "tile": (lambda x: x.tile(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)), (normal(2, 2),)),
    "rot90": (lambda x: mt.rot90(x, 3), lambda x: np.rot90(x, 3), (normal(2, 3),)),
    "repeat_interleave": (
        lambda x: mt.repeat_interleave(x, mt.tensor([2, 0, 1]), 0),
        lambda x: np.repeat(x, [2, 0, 1], 0),
        (normal(3, 2),),
    ),
    "diag": (mt.diag, np.diag, (normal(3),)),
    "trace": (mt.trace, np.trace, (normal(3, 4),)),
    "meshgrid": (
        lambda x, y: mt.meshgrid(x, y, indexing="xy")[1] * x,
        lambda x, y: np.meshgrid(x, y)[1] * x,
        (normal(3), normal(2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_is_numpys_and_gradients_are_derivatives(name: str) -> None:
    function, reference, arrays = CASES[name]
    inputs = [mt.tensor(a, requires_grad=True) for a in arrays]
    np.testing.assert_allclose(function(*inputs).detach().numpy(), reference(*arrays), rtol=1e-12)
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("name", CASES)
def test_on_a_device(name: str) -> None:
    function, reference, arrays = CASES[name]
    inputs = [mt.tensor(a, device="cuda", requires_grad=True) for a in arrays]
    found = function(*inputs)
    assert type(found._array) is FakeArray
    np.testing.assert_allclose(found.detach().cpu().numpy(), reference(*arrays), rtol=1e-12)
    grads = mt.autograd.grad(found.sum(), inputs, create_graph=True)
    assert all(type(g._array) is FakeArray for g in grads)


def test_einsum_plans_are_kept_by_equation_and_shapes() -> None:
    from microtrain.ops.matrix import einstein

    einstein._plan.cache_clear()
    for size in (3, 3, 4):
        mt.einsum("ij,j->i", mt.ones(2, size), mt.ones(size))
    assert einstein._plan.cache_info()[:2] == (1, 2)  # hits, misses


FACTORIZED: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(mt.linalg, name)
        for name in ("svd", "svdvals", "pinv", "matrix_rank", "cond", "eigh", "eigvalsh", "qr")
    },
    "older svd": mt.svd,
    "complete qr": lambda x: mt.linalg.qr(x, "complete"),
    "hermitian pinv": lambda x: mt.linalg.pinv(x, hermitian=True),
    "hermitian rank": lambda x: mt.linalg.matrix_rank(x, hermitian=True),
    "spectral norm": lambda x: mt.linalg.norm(x, 2),
    "smallest": lambda x: mt.linalg.matrix_norm(x, -2),
    "nuclear norm": lambda x: mt.norm(x, "nuc"),
    "cond 1": lambda x: mt.linalg.cond(x, 1),
    "lstsq": lambda x: mt.linalg.lstsq(x, x.nan_to_num()),
    "cholesky": mt.cholesky,
    "inverse": mt.linalg.inv,
    "power": lambda x: mt.matrix_power(x, -2),
    "solve": lambda x: mt.linalg.solve(x, mt.ones(3, dtype=x.dtype)),
    "triangle": lambda x: mt.linalg.solve_triangular(x, x.nan_to_num(), upper=True),
    "tensorinv": lambda x: mt.linalg.tensorinv(mt.stack([x]), ind=2),
    "cholesky_inverse": mt.cholesky_inverse,
}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", FACTORIZED)
def test_a_matrix_with_an_infinite_value_is_refused_and_does_not_hang(
    name: str, value: Any
) -> None:
    for place in ((0, 0), (1, 1), slice(None)):
        x = np.array([[1.0, 1, -4], [1, -5, -3], [-4, -3, 4]])
        x[place] = value
        for given in (mt.tensor(x), mt.tensor(x).float()):
            with np.errstate(all="ignore"), pytest.raises(mt.linalg.LinAlgError, match="finite"):
                FACTORIZED[name](given)


def test_a_captured_step_refuses_an_infinite_matrix() -> None:
    step = mt.compile(lambda x: mt.linalg.svdvals(x).sum())
    x = mt.tensor([[1.0, 1, -4], [0, -5, -3], [-5, 2, 4]])
    for _ in range(4):
        step(x)
    x[0, 0] = -np.inf
    with pytest.raises((mt.linalg.LinAlgError, np.linalg.LinAlgError), match="not finite"):
        step(x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: mt.nn.Linear(3, 2)(x), "the input is float64, the weight float32.*x.float()"),
        (lambda x: x.float() @ x.t(), "one input is float32, the other float64.*x.double()"),
        (lambda x: (x > 0) @ (x > 0).t(), "expected numbers, got bool"),
    ],
)
def test_a_product_of_two_dtypes_says_which_and_what_converts_them(call: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        call(mt.zeros(2, 3, dtype=mt.float64))
