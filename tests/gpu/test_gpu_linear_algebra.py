"""Linear algebra and sorting on the real CuPy at sizes that libraries treat differently.

Values and gradients are NumPy's. What needs cuSOLVER is skipped where the GPU is the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from real_cupy import ON_PROCESSOR, on_host, same

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
SORTING: dict[str, Function] = {
    "sort": lambda x: x.sort(-1),
    "sort, descending": lambda x: x.sort(-1, descending=True),
    "sort, first dimension": lambda x: x.sort(0),
    "argsort": lambda x: (x.argsort(-1),),
    "topk": lambda x: x.topk(3),
    "median": lambda x: x.median(-1),
}


def compared(function: Function, *arrays: Any, scale: float = 1) -> None:
    """That values and gradients of `function` on the GPU are those on the CPU."""
    found = []
    for device in ("cpu", "cuda"):
        inputs = [mt.tensor(a, device=device, requires_grad=True) for a in arrays]
        results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        (results[0] if results[0].dtype.kind == "f" else inputs[0]).square().sum().backward()
        found.append(
            [on_host(one) for one in (*results, *(x.grad for x in inputs if x.grad is not None))]
        )
    for here, there in zip(*found, strict=True):
        same(there, here, scale)


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (4, 33), (3, 5000)], ids=str)
@pytest.mark.parametrize("name", SORTING)
def test_sorting(name: str, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(len(shape))
    compared(SORTING[name], rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype))


def test_equal_values_stay_in_their_order() -> None:
    x = mt.tensor([2.0, 1.0, 2.0, 1.0, 2.0] * 50, device="cuda")
    expected = np.argsort(on_host(x), kind="stable")
    np.testing.assert_array_equal(on_host(x.argsort(stable=True)), expected)
