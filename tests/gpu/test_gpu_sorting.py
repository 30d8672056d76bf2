"""Sorting on the real CuPy, which is Thrust's on a GPU: values, order and gradients are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from real_cupy import compared, on_host

import microtrain as mt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SORTING: dict[str, Callable[..., Any]] = {
    "sort": lambda x: x.sort(-1),
    "sort, descending": lambda x: x.sort(-1, descending=True),
    "sort, first dimension": lambda x: x.sort(0),
    "argsort": lambda x: (x.argsort(-1),),
    "topk": lambda x: x.topk(3),
    "median": lambda x: x.median(-1),
}


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
