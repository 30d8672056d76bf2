"""Samples of inverses, solutions, Cholesky factors and determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal


def regular(*shape: int) -> Any:
    """Matrices far from singular."""
    return normal(*shape) * 0.4 + 2 * np.eye(shape[-1])


def definite(*shape: int) -> Any:
    """Symmetric positive definite matrices."""
    x = normal(*shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-2])


def mixed(*shape: int) -> Any:
    """Matrices whose singular values are far from each other."""
    return np.random.default_rng(5).standard_normal(shape)


MATRICES = [
    regular(3, 3),
    regular(4, 4).T,
    regular(2, 1, 3, 3),
    regular(1, 1),
    regular(3, 2, 2).transpose(1, 2, 0)[..., 0],
    regular(0, 2, 2),
    regular(0, 0),
    -regular(2, 3, 3),
]

SAMPLES: dict[str, list[Sample]] = {
    **{
        name: [Sample((a,)) for a in MATRICES]
        for name in ("inverse", "det", "cofactor", "logabsdet")
    },
    "minors": [
        Sample((normal(*a.shape), a))
        for a in (
            *MATRICES,
            normal(2, 2),
            np.ones((3, 3)),
            np.zeros((2, 4, 4)),
            np.diag([2.0, 0, 0, 1]),
        )
    ],
    "det_sign": [Sample((a,), second=False) for a in MATRICES],
    "linalg_solve": [
        Sample((regular(3, 3), normal(3, 2))),
        Sample((regular(3, 3).T, normal(2, 3).T)),
        Sample((regular(2, 3, 3), normal(2, 3, 1))),
        Sample((regular(2, 2), normal(2, 0))),
        Sample((regular(0, 3, 3), normal(0, 3, 2))),
        *(Sample((regular(2, 3, 3), normal(2, 3, 2)), {"lower": lower}) for lower in (True, False)),
    ],
    "cholesky": [Sample((a,)) for a in (definite(3, 3), definite(2, 2, 4), definite(2, 3, 3)[0].T)]
    + [Sample((a,)) for a in (definite(1, 1), definite(0, 2, 2), definite(0, 0))],
    "svd": [
        Sample((a,)) for a in (mixed(3, 2), mixed(2, 4), mixed(2, 3, 3), mixed(4, 2).T, mixed(1, 1))
    ]
    + [Sample((np.ones(shape),)) for shape in ((0, 2, 3), (0, 2), (3, 0))],
}


def _by_columns(a: Any, b: Any, **_: Any) -> Any:
    """Cramer's rule."""
    result = np.empty(b.shape)
    for i in range(a.shape[-1]):
        for j in range(b.shape[-1]):
            other = a.copy()
            other[..., i] = b[..., j]
            result[..., i, j] = _det(other) / _det(a)
    return result


def _det(x: Any) -> Any:
    """Expansion along the first row."""
    n = x.shape[-1]
    if not n:
        return np.ones(x.shape[:-2])
    rest = [_det(np.delete(x[..., 1:, :], j, -1)) for j in range(n)]
    return sum(((-1) ** j * x[..., 0, j] * rest[j] for j in range(n)), np.zeros(x.shape[:-2]))


def _cofactor(x: Any) -> Any:
    result = np.empty(x.shape)
    for i, j in np.ndindex(x.shape[-2:]):
        minor = _det(np.delete(np.delete(x, i, -2), j, -1))
        result[..., i, j] = (-1) ** (i + j) * minor
    return result


def _minors(w: Any, x: Any) -> Any:
    """The determinant is linear in each row: its derivative in two of them."""
    result = np.zeros(x.shape)
    for i, j in np.ndindex(x.shape[-2:]):
        for k in range(x.shape[-1]):
            if k != i:
                y = x.copy()
                y[..., k, :], y[..., i, :] = w[..., k, :], 0
                y[..., i, j] = 1
                result[..., i, j] += _det(y)
    return result


def _torch_minors(torch: Any, w: Any, x: Any) -> Any:
    def row(y: Any, i: int, new: Any) -> Any:
        return torch.cat([y[..., :i, :], new[..., None, :], y[..., i + 1 :, :]], -2)

    eye, n = torch.eye(x.shape[-1], dtype=x.dtype), x.shape[-1]
    if not n:
        return x * w
    return torch.stack(
        [
            torch.stack(
                [
                    sum(
                        (
                            _torch_det(
                                torch,
                                row(row(x, k, w[..., k, :]), i, eye[j].expand(x[..., 0, :].shape)),
                            )
                            for k in range(n)
                            if k != i
                        ),
                        x[..., 0, 0] * 0 + w[..., 0, 0] * 0,
                    )
                    for j in range(n)
                ],
                -1,
            )
            for i in range(n)
        ],
        -2,
    )


def _torch_det(torch: Any, x: Any) -> Any:
    if x.shape[-1] == 1:
        return x[..., 0, 0]
    rest = [torch.cat([x[..., 1:, :j], x[..., 1:, j + 1 :]], -1) for j in range(x.shape[-1])]
    return sum((-1) ** j * x[..., 0, j] * _torch_det(torch, r) for j, r in enumerate(rest))


def _cholesky(x: Any) -> Any:
    """Column by column."""
    result = np.zeros(x.shape)
    for i, j in np.ndindex(x.shape[-2:]):
        if j <= i:
            rest = x[..., i, j] - (result[..., i, :j] * result[..., j, :j]).sum(-1)
            result[..., i, j] = np.sqrt(rest) if i == j else rest / result[..., j, j]
    return result


def _signs(u: Any, x: Any) -> Any:
    """1 or -1 for each column of `u`, which a factorization leaves open: as NumPy has it."""
    return np.sign(np.sum(u * np.linalg.svd(x, full_matrices=False)[0], -2))[..., None, :]


def _svd(x: Any) -> Any:
    """By the eigenvectors of `x.T @ x`."""
    squares, v = np.linalg.eigh(x.swapaxes(-1, -2) @ x)
    k = min(x.shape[-2:])
    values, v = np.sqrt(squares[..., None, ::-1][..., :k]), v[..., ::-1][..., :k]
    u = x @ v / values
    signs = _signs(u, x)
    return np.concatenate([u * signs, values, v * signs], -2)


def _torch_svd(torch: Any, x: Any) -> Any:
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    signs = torch.tensor(_signs(u.detach().numpy(), x.detach().numpy()))
    return torch.cat([u * signs, values[..., None, :], v.mT * signs], -2)


REFERENCE: dict[str, Callable[..., Any]] = {
    "inverse": lambda x: _cofactor(x).swapaxes(-1, -2) / _det(x)[..., None, None],
    "linalg_solve": _by_columns,
    "cholesky": _cholesky,
    "det": _det,
    "cofactor": _cofactor,
    "minors": _minors,
    "logabsdet": lambda x: np.log(np.abs(_det(x))),
    "det_sign": lambda x: np.sign(_det(x)),
    "svd": _svd,
}
TORCH: dict[str, Callable[..., Any]] = {
    "inverse": lambda torch, x: torch.inverse(x),
    "linalg_solve": lambda torch, a, b, **_: torch.linalg.solve(a, b),
    "cholesky": lambda torch, x: torch.linalg.cholesky(x),
    "det": lambda torch, x: torch.det(x),
    "cofactor": lambda torch, x: torch.det(x)[..., None, None] * torch.inverse(x).mT,
    "minors": _torch_minors,
    "logabsdet": lambda torch, x: torch.slogdet(x)[1],
    "det_sign": lambda torch, x: torch.slogdet(x)[0],
    "svd": _torch_svd,
}
