"""Samples of QR factors, eigenvectors, pseudo-inverses and exponentials of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .factorizations import mixed
from .sample import Sample, normal

NONE = np.zeros(())
EMPTY = [np.ones(shape) for shape in ((0, 2, 3), (0, 2), (3, 0))]


def symmetric(*shape: int) -> Any:
    """With eigenvalues far from each other."""
    x = mixed(*shape)
    return x + x.swapaxes(-1, -2) + np.diag(4.0 * np.arange(shape[-1]))


def orthonormal(*shape: int) -> Any:
    return np.linalg.qr(mixed(*shape))[0]


SAMPLES: dict[str, list[Sample]] = {
    "linalg_qr": [
        Sample((a,)) for a in (mixed(3, 2), mixed(2, 4), mixed(2, 3, 3), mixed(4, 2).T, mixed(1, 1))
    ]
    + [Sample((a,)) for a in EMPTY],
    "orthonormal_completion": [
        Sample((a,))
        for a in (orthonormal(3, 2), orthonormal(2, 4, 3), np.ones((0, 3, 2)), np.ones((3, 0)))
    ],
    # One triangle is read, and the gradient is that of a symmetric matrix.
    "linalg_eigh": [
        Sample((a,), {"uplo": uplo}, smooth=False)
        for a in (symmetric(3, 3), symmetric(2, 2, 2), mixed(3, 3), np.ones((1, 1)))
        for uplo in "LU"
    ]
    + [Sample((np.ones(shape),), {"uplo": "L"}, smooth=False) for shape in ((0, 2, 2), (0, 0))],
    "linalg_pinv": [
        Sample((a, NONE, np.array(1e-6))) for a in (mixed(3, 2), mixed(2, 4), mixed(2, 3, 3))
    ]
    + [Sample((a, NONE, NONE)) for a in EMPTY]
    + [
        Sample((mixed(2, 4, 3), np.array([0.0, 100.0]), np.full(2, 1e-6)), smooth=False),
        Sample((np.outer([1.0, 2, 3], [1, -1.0]), NONE, np.array(1e-6)), smooth=False),
        Sample((symmetric(3, 3), NONE, NONE), {"hermitian": True}, smooth=False),
    ],
    "matrix_exp": [
        Sample((a,))
        for a in (normal(3, 3), 4 * mixed(3, 3), normal(2, 2, 2), normal(4, 4).T, normal(1, 1))
    ]
    + [Sample((np.ones(shape),)) for shape in ((0, 2, 2), (0, 0))],
}


def _qr(x: Any) -> Any:
    """Gram and Schmidt, with the signs of Householder's reflections as LAPACK has them."""
    m, n = x.shape[-2:]
    k = min(m, n)
    q = np.zeros((*x.shape[:-1], k))
    for j in range(k):
        rest = x[..., j] - (q[..., :j] * (q[..., :j] * x[..., j, None]).sum(-2, keepdims=True)).sum(
            -1
        )
        q[..., j] = rest / np.sqrt((rest**2).sum(-1, keepdims=True))
    signs = np.sign((q * np.linalg.qr(x)[0]).sum(-2))[..., None, :]
    r = (q * signs).swapaxes(-1, -2) @ x
    return np.concatenate([q * signs, r.swapaxes(-1, -2)], -2)


def _completion(x: Any) -> Any:
    """Of the projection on what is left: up to a rotation, so it is compared as NumPy has it."""
    found = np.linalg.qr(x, "complete")[0][..., x.shape[-1] :]
    rest = np.eye(x.shape[-2]) - x @ x.swapaxes(-1, -2)
    np.testing.assert_allclose(found @ found.swapaxes(-1, -2), rest, atol=1e-12)
    return found


def _mirrored(x: Any, uplo: str = "L") -> Any:
    lower = np.tril(x if uplo == "L" else x.swapaxes(-1, -2))
    return lower + np.tril(lower, -1).swapaxes(-1, -2)


def _eigh(x: Any, uplo: str) -> Any:
    """The eigenvalues and eigenvectors that `eig` finds."""
    if not x.size:
        return np.zeros((*x.shape[:-2], x.shape[-1] + 1, x.shape[-1]))
    given, x = x, _mirrored(x, uplo)
    values, vectors = (found.real for found in np.linalg.eig(x))  # since NumPy 2.5 complex
    order = values.argsort(-1)
    values = np.take_along_axis(values, order, -1)
    vectors = np.take_along_axis(vectors, order[..., None, :], -1)
    signs = np.sign((vectors * np.linalg.eigh(given, uplo)[1]).sum(-2))[..., None, :]
    return np.concatenate([values[..., None, :], vectors * signs], -2)


def _pinv(x: Any, atol: Any, rtol: Any, hermitian: bool = False) -> Any:
    """The limit of `(x.T x + t)^-1 x.T` by the eigenvalues of `x.T x`."""
    x = _mirrored(x) if hermitian else x
    turned = x.swapaxes(-1, -2)
    squares, v = np.linalg.eigh(turned @ x)
    values = np.sqrt(np.maximum(squares, 0))
    if not values.size:
        return np.zeros(turned.shape)
    limit = np.maximum(atol, rtol * values.max(-1))[..., None]
    inverse = np.where(
        values > np.maximum(limit, 1e-7 * values.max()), 1 / np.maximum(squares, 1e-30), 0
    )
    return (v * inverse[..., None, :]) @ v.swapaxes(-1, -2) @ turned


def _exp(x: Any) -> Any:
    """The series of a small part of it, squared again and again."""
    total = term = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    for number in range(1, 25):
        term = term @ (x / 32) / number
        total = total + term
    for _ in range(5):
        total = total @ total
    return total


REFERENCE: dict[str, Callable[..., Any]] = {
    "linalg_qr": _qr,
    "orthonormal_completion": _completion,
    "linalg_eigh": _eigh,
    "linalg_pinv": _pinv,
    "matrix_exp": _exp,
}


def _torch_qr(torch: Any, x: Any) -> Any:
    q, r = torch.linalg.qr(x)
    ours = np.linalg.qr(x.detach().numpy())[0]
    signs = torch.tensor(np.sign((q.detach().numpy() * ours).sum(-2))[..., None, :])
    return torch.cat([q * signs, r.mT * signs], -2)


def _torch_eigh(torch: Any, x: Any, uplo: str) -> Any:
    values, vectors = torch.linalg.eigh(x, uplo)
    ours = np.linalg.eigh(x.detach().numpy(), uplo)[1]
    signs = torch.tensor(np.sign((vectors.detach().numpy() * ours).sum(-2))[..., None, :])
    return torch.cat([values[..., None, :], vectors * signs], -2)


TORCH: dict[str, Callable[..., Any]] = {
    "linalg_qr": _torch_qr,
    "orthonormal_completion": lambda torch, x: torch.tensor(_completion(x.detach().numpy())),
    "linalg_eigh": _torch_eigh,
    "linalg_pinv": lambda torch, x, atol, rtol, hermitian=False: torch.linalg.pinv(
        x, atol=atol.detach(), rtol=rtol.detach(), hermitian=hermitian
    ),
    "matrix_exp": lambda torch, x: torch.matrix_exp(x),
}
