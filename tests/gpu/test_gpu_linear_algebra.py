"""Linear algebra on the real CuPy, at sizes that cuSOLVER treats differently, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from real_cupy import ON_PROCESSOR, compared

import microtrain as mt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

Function = Callable[..., Any]
LINEAR_ALGEBRA: dict[str, Function] = {
    "inv": lambda a, _: mt.linalg.inv(a),
    "solve": mt.linalg.solve,
    "det": lambda a, _: mt.linalg.det(a / 2),
    "slogdet": lambda a, _: mt.linalg.slogdet(a)[1],
    "cholesky": lambda a, _: mt.linalg.cholesky(a @ a.transpose(-1, -2) + mt.ones_like(a)),
    "svdvals": lambda a, _: mt.linalg.svdvals(a),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (130, 130), (5, 8, 8)], ids=str)
@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if ON_PROCESSOR:
        pytest.skip("no cuSOLVER on the processor")
    rng = np.random.default_rng(sum(shape))
    size = shape[-1]
    a = np.eye(size) * 2 + rng.standard_normal(shape) / (2 * size)  # far from singular
    b = rng.standard_normal((*shape[:-1], 2))
    compared(LINEAR_ALGEBRA[name], a.astype(dtype), b.astype(dtype), scale=100)
