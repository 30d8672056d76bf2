"""Where CuPy differs from NumPy in what a user meets: what docs/gpus.md says, and what is alike."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from on_gpu import indices_out_of_range_wrap
from real_cupy import ON_PROCESSOR, cupy

import microtrain as mt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def on_gpu(*values: Any) -> Any:
    return mt.tensor(list(values), device="cuda")


def test_indices_out_of_range_wrap() -> None:
    indices_out_of_range_wrap()


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


@pytest.mark.skipif(ON_PROCESSOR, reason="no cuSOLVER on the processor")
def test_a_singular_matrix_is_an_error() -> None:
    for call in (mt.inverse, mt.linalg.cholesky, lambda x: mt.linalg.solve(x, x)):
        with pytest.raises(mt.linalg.LinAlgError):
            call(mt.zeros(2, 2, device="cuda"))


def test_what_a_solver_reports_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.linalg import _util
    from cupyx import lapack

    def solver(*_: Any) -> None:
        info = cupy.array([2], np.int32)
        _util._check_cusolver_dev_info_if_synchronization_allowed("getrf", info)

    monkeypatch.setattr(lapack, "gesv", solver)
    with pytest.raises(mt.linalg.LinAlgError, match="Error reported by getrf in cuSOLVER"):
        mt.inverse(mt.zeros(2, 2, device="cuda"))
    cupy.linalg.inv(cupy.zeros((2, 2)))


# Launches, copies to the host, to the device, on it, synchronizations, fills, products.
def counts() -> list[int]:
    library = ctypes.CDLL("libgpu_on_cpu.so")
    library.gpu_on_cpu_counts.restype = ctypes.POINTER(ctypes.c_long)
    return library.gpu_on_cpu_counts()[:7]


@pytest.mark.skipif(not ON_PROCESSOR, reason="the processor's stand-in for HIP counts")
def test_a_python_number_is_no_launch_and_no_copy() -> None:
    x = mt.ones(2, 3, device="cuda")
    calls = {lambda: x * 2.0: 1, lambda: 2.0 - x: 1, lambda: x + 1: 1, lambda: x**3: 2}
    for call, launches in calls.items():  # x ** 3 is two products
        call()
        before = counts()
        call()
        made = [b - a for a, b in zip(before, counts(), strict=True)]
        assert made == [launches, 0, 0, 0, 0, 0, 0]
