"""Where CuPy differs from NumPy in what a user meets: what docs/gpus.md says, and what is alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import real_cupy  # noqa: F401  (skips where there is no CuPy)

import microtrain as mt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def on_gpu(*values: Any) -> Any:
    return mt.tensor(list(values), device="cuda")


def test_indices_out_of_range_wrap() -> None:
    table = mt.nn.Embedding(5, 3).to(device="cuda")
    assert table(on_gpu(7)).tolist() == table(on_gpu(2)).tolist()
    assert mt.arange(6.0, device="cuda")[on_gpu(8)].tolist() == [2.0]
    rows = mt.arange(6.0, device="cuda").reshape(2, 3)
    assert rows.gather(1, on_gpu([4], [0])).tolist() == [[4.0], [3.0]]
    scores = on_gpu([1.0, 2.0], [3.0, 5.0])
    assert math.isfinite(mt.nn.functional.cross_entropy(scores, on_gpu(2, 0)).item())
    with pytest.raises(IndexError, match="out of bounds"):
        rows[2]  # an integer that the host knows


def test_floor_division_and_remainder_of_floats() -> None:
    assert (mt.tensor([1.0], dtype=mt.float64, device="cuda") // 0.1).tolist() == [10.0]
    assert (mt.tensor([1.0], dtype=mt.float64) // 0.1).tolist() == [9.0]
    assert math.isnan((on_gpu(5.0) % math.inf).item())
    assert (on_gpu(-7.0, 7.0) % 3).tolist() == [2.0, 1.0]
    assert (on_gpu(-7, 7) // 2).tolist() == [-4, 3]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_copy_within_an_array_is_numpys(dtype: str) -> None:
    here = np.arange(700).astype(dtype)
    there = mt.tensor(here, device="cuda")
    here[1:] = here[:-1].copy()
    there[1:] = there[:-1]
    np.testing.assert_array_equal(there.cpu().numpy(), here)
