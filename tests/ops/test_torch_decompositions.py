"""svd, qr, eigh, pinv, lstsq and the systems of `mt.linalg` against PyTorch's.

Vectors are determined up to their sign, so what is compared does not depend on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

SHAPES = [(3, 3), (4, 2), (2, 4), (2, 3, 3), (2, 1, 4, 3), (1, 1)]

OF_ANY: dict[str, Callable[..., Any]] = {
    "svd": lambda m, x: (lambda u, s, v: u.abs().sum() + (s**3).sum() + v.abs().exp().sum())(
        *m.linalg.svd(x, full_matrices=False)
    ),
    "svd together": lambda m, x: (lambda u, s, v: (u * s[..., None, :].exp()) @ v)(
        *m.linalg.svd(x, full_matrices=False)
    ),
    "svd values": lambda m, x: m.linalg.svd(x).S,
    "old svd": lambda m, x: (lambda u, s, v: u * s[..., None, :].sin() @ v.mT)(*m.svd(x)),
    "method": lambda m, x: x.svd().U.abs(),
    "qr": lambda m, x: m.linalg.qr(x).R.abs(),
    "qr Q": lambda m, x: m.linalg.qr(x).Q.abs().exp(),
    "qr both": lambda m, x: (lambda q, r: q @ (r * r.abs()))(*m.linalg.qr(x)),
    "old qr": lambda m, x: m.qr(x).R.abs(),
    "pinv": lambda m, x: m.linalg.pinv(x),
    "pinv rtol": lambda m, x: m.linalg.pinv(x, rtol=1e-3),
    "pinverse": lambda m, x: x.pinverse() @ x.exp(),
    "rank": lambda m, x: m.linalg.matrix_rank(x),
    "cond": lambda m, x: m.linalg.cond(x),
    "cond -2": lambda m, x: m.linalg.cond(x, -2),
    "vander": lambda m, x: m.linalg.vander(x, N=4),
}
OF_SQUARE: dict[str, Callable[..., Any]] = {
    "eigvalsh": lambda m, x: m.linalg.eigvalsh(x + x.mT) ** 3,
    "eigh": lambda m, x: m.linalg.eigh(x + x.mT).eigenvectors.abs(),
    "eigh U": lambda m, x: (lambda w, v: v * w[..., None, :].exp() @ v.mT)(
        *m.linalg.eigh(x, UPLO="U")
    ),
    "matrix_exp": lambda m, x: m.linalg.matrix_exp(x),
    "matrix_exp far": lambda m, x: m.matrix_exp(9 * x).tanh(),
    "cond fro": lambda m, x: m.linalg.cond(x.detach(), "fro"),  # PyTorch's gradient fails
    "triangular": lambda m, x: m.linalg.solve_triangular(x, x + 1, upper=True),
    "triangular ones": lambda m, x: m.linalg.solve_triangular(
        x, x.exp(), upper=False, left=False, unitriangular=True
    ),
    "cholesky_solve": lambda m, x: m.cholesky_solve(x, m.linalg.cholesky(x @ x.mT)),
    "cholesky_inverse": lambda m, x: m.cholesky_inverse(
        m.linalg.cholesky(x @ x.mT, upper=True), upper=True
    ),
    "pinv hermitian": lambda m, x: m.linalg.pinv(x + x.mT, hermitian=True),
    "tensorinv": lambda m, x: (
        m.linalg.tensorinv(x.reshape(-1, 1, x.shape[-1])) if x.ndim < 3 else x
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OF_ANY)
def test_of_any_matrix(name: str, shape: Any) -> None:
    compare(OF_ANY[name], np.random.default_rng(5).standard_normal(shape))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("name", OF_SQUARE)
def test_of_a_square_matrix(name: str, shape: Any) -> None:
    compare(
        OF_SQUARE[name], np.random.default_rng(5).standard_normal(shape) + 2 * np.eye(shape[-1])
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_factors(shape: Any) -> None:
    x = mt.tensor(normal(*shape))
    u, s, v = mt.linalg.svd(x)
    q, r = mt.linalg.qr(x, mode="complete")
    m, n = shape[-2:]
    for square, size in ((u, m), (v, n), (q, m)):
        assert square.shape == (*shape[:-2], size, size)
        np.testing.assert_allclose((square @ square.mT - mt.eye(size)).numpy(), 0, atol=1e-12)
    k = min(m, n)
    np.testing.assert_allclose(
        ((u[..., :k] * s[..., None, :]) @ v[..., :k, :] - x).numpy(), 0, atol=1e-12
    )
    np.testing.assert_allclose((q @ r - x).numpy(), 0, atol=1e-12)
    only = mt.linalg.qr(x, mode="r")
    assert only.Q.shape == (0,)
    np.testing.assert_array_equal(only.R.numpy(), mt.linalg.qr(x).R.numpy())


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize(
    "shapes", [((4, 2), (4, 3)), ((2, 4), (2, 1)), ((2, 4, 3), (2, 4))], ids=str
)
def test_lstsq(shapes: Any, driver: str | None) -> None:
    a, b = (np.random.default_rng(3).standard_normal(shape) for shape in shapes)
    for field in ("solution", "residuals", "rank", "singular_values"):
        if field == "solution":
            compare(lambda m, a, b: m.linalg.lstsq(a, b, driver=driver).solution, a, b)
        pairs = zip((mt, torch), both(a), both(b), strict=True)
        ours, theirs = (getattr(m.linalg.lstsq(x, y, driver=driver), field) for m, x, y in pairs)
        assert_same(ours, theirs)


LOW = np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])


def test_matrices_of_low_rank() -> None:
    for rtol in (None, 1e-3, 10.0):
        compare(lambda m, x, rtol=rtol: m.linalg.pinv(x, rtol=rtol), LOW)
        compare(lambda m, x, rtol=rtol: m.linalg.matrix_rank(x, rtol=rtol), LOW)
    tolerances = np.array([0.1, 100.0])
    for name in ("pinv", "matrix_rank"):
        compare(
            lambda m, x, t, name=name: getattr(m.linalg, name)(x, atol=t.detach()),
            np.stack([LOW] * 2),
            tolerances,
        )
    for field in ("solution", "rank"):
        compare(lambda m, x, field=field: getattr(m.linalg.lstsq(x, x[:, :1] + 1), field), LOW)


def test_equal_values() -> None:
    """The gradient of their vectors is open, and NaN in both; that of the values is there."""
    for m in (mt, torch):
        x = m.eye(3, dtype=m.float64).requires_grad_()
        for vectors in (m.linalg.svd(x).U, m.linalg.svd(x).Vh, m.linalg.eigh(x).eigenvectors):
            (g,) = m.autograd.grad(vectors.exp().sum(), [x])
            assert np.isnan(g.numpy()).any()
        for values in (m.linalg.svd(x).S, m.linalg.eigh(x).eigenvalues, m.linalg.eigvalsh(x)):
            (g,) = m.autograd.grad((values * values).sum(), [x])
            np.testing.assert_allclose(g.numpy(), 2 * np.eye(3), atol=1e-12)


@pytest.mark.parametrize("name", ["svd", "eigh", "pinv", "svdvals", "eigvalsh"])
def test_values_that_are_not_finite(name: str) -> None:
    for size in (1, 2, 5):
        with pytest.raises(mt.linalg.LinAlgError):
            getattr(mt.linalg, name)(mt.full((size, size), float("nan")))


CHECKED: dict[str, Callable[..., Any]] = {
    "svd": lambda x: (lambda u, s, v: (u * s.exp()) @ v)(*mt.linalg.svd(x, full_matrices=False)),
    "qr": lambda x: (lambda q, r: q @ r.abs())(*mt.linalg.qr(x)),
    "qr wide": lambda x: (lambda q, r: q.abs() @ r.abs())(*mt.linalg.qr(x.mT)),
    "pinv": mt.linalg.pinv,
    "lstsq": lambda x: mt.linalg.lstsq(x, x.exp()).solution,
    "eigh": lambda x: (lambda w, v: v.abs() * w)(*mt.linalg.eigh(x.mT @ x)),
    "matrix_exp": lambda x: mt.linalg.matrix_exp(x[:2]),
    "cross": lambda x: mt.linalg.cross(x, x.exp(), dim=0),
}


@pytest.mark.parametrize("name", CHECKED)
def test_gradients_of_both_orders(name: str) -> None:
    x = mt.tensor(np.random.default_rng(5).standard_normal((3, 2))).requires_grad_()
    assert mt.autograd.gradcheck(CHECKED[name], [x])
    assert mt.autograd.gradgradcheck(CHECKED[name], [x])


def test_tensors_as_systems() -> None:
    a, b = normal(2, 3, 6) + np.eye(6).reshape(2, 3, 6) * 3, normal(2, 3)
    compare(lambda m, a, b: m.linalg.tensorsolve(a, b), a, b)
    compare(lambda m, a, b: m.linalg.tensorsolve(a, b, dims=(0,)), a.transpose(2, 0, 1).copy(), b)
    compare(lambda m, a: m.linalg.tensorinv(a, ind=2), a)
    compare(lambda m, a, b: m.linalg.cross(a, b), normal(4, 3), normal(1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(lambda m, a, b: m.cross(a, b), normal(2, 3, 3), normal(2, 3, 3))


REFUSED = {
    "vector": lambda L: L.linalg.svd(L.ones(2)),
    "integers": lambda L: L.linalg.qr(L.ones(2, 2, dtype=L.int64)),
    "mode": lambda L: L.linalg.qr(L.ones(2, 2), mode="full"),
    "not square": lambda L: L.linalg.eigh(L.ones(2, 3)),
    "triangle": lambda L: L.linalg.eigh(L.ones(2, 2), UPLO="X"),
    "lstsq": lambda L: L.linalg.lstsq(L.ones(3, 2), L.ones(2, 2)),
    "dtypes": lambda L: L.linalg.lstsq(L.ones(3, 2), L.ones(3, 2).double()),
    "driver": lambda L: L.linalg.lstsq(L.ones(3, 2), L.ones(3, 2), driver="svd"),
    "exp": lambda L: L.linalg.matrix_exp(L.ones(2, 3)),
    "cross": lambda L: L.linalg.cross(L.ones(2, 2), L.ones(2, 2)),
    "vander": lambda L: L.linalg.vander(L.ones(2), N=1),
    "tensorinv": lambda L: L.linalg.tensorinv(L.ones(2, 3, 4)),
    "solve_triangular": lambda L: L.linalg.solve_triangular(L.eye(2), L.ones(3, 2), upper=True),
    "complete": lambda L: L.linalg.qr(L.ones(3, 2).requires_grad_(), "complete").Q.sum().backward(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    refused_alike(REFUSED[name])
