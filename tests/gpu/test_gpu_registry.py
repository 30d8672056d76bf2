"""Every sample of the registry on the real CuPy: values, first and second gradients are NumPy's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from real_cupy import ON_PROCESSOR, cupy, on_host, same
from samples import SAMPLES, Sample

import microtrain as mt
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation
from microtrain.tensor import TENSORS, wrap

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def put(array: Any, make: Any) -> Any:
    return wrap(make(array)) if isinstance(array, np.ndarray) else array


def run(name: str, sample: Sample, device: bool) -> list[Any]:
    """Value, gradients and second gradients, as NumPy arrays; None where there is none."""
    op, attrs = REGISTRY[name], dict(sample.attrs)
    if device and "index" in attrs:  # whose arrays `getitem` brings to the device
        attrs["index"] = tuple(
            cupy.asarray(part) if isinstance(part, np.ndarray) else part for part in attrs["index"]
        )
    make = (lambda a: cupy.array(a, order="K")) if device else (lambda a: a.copy(order="K"))
    inputs = [put(a, make) for a in sample.arrays]
    leaves = []
    for number, x in enumerate(inputs):
        ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
        if type(x) in TENSORS and ruled and x.dtype.kind == "f":
            leaves.append(x.requires_grad_())
    result = op.apply(*inputs, **attrs) if isinstance(op, Operation) else op.apply(inputs, **attrs)
    found = [result]
    if result.requires_grad:
        seed = np.random.default_rng(5).standard_normal(result.shape).astype(result.dtype)
        g = put(np.asarray(seed), make).requires_grad_()
        found += mt.autograd.grad(result, leaves, g, retain_graph=True)
        first = mt.autograd.grad(result, leaves, g, create_graph=True)
        found += first
        total = sum(((f * f).sum() for f in first[1:]), (first[0] * first[0]).sum())
        if total.requires_grad:
            found += mt.autograd.grad(total, [*leaves, g], materialize_grads=True)
    for tensor in found:
        assert type(tensor._array) is (cupy.ndarray if device else np.ndarray)
    return [on_host(tensor) for tensor in found]


# Their first step is a call of cuSOLVER's or of cuBLAS's solvers.
NOT_ON_PROCESSOR = "cholesky cofactor det det_sign inverse linalg_solve logabsdet svd".split()


@pytest.mark.timeout(600)  # on the processor each kernel is compiled at its first use
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_numpys(name: str, dtype: str) -> None:
    if ON_PROCESSOR and name in NOT_ON_PROCESSOR:
        pytest.skip("no cuSOLVER on the processor")
    for number, sample in enumerate(SAMPLES[name]):
        arrays = tuple(
            a.astype(dtype, order="K") if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
            for a in sample.arrays
        )
        one = dataclasses.replace(sample, arrays=arrays)
        here, there = run(name, one, False), run(name, one, True)
        for place, (a, b) in enumerate(zip(here, there, strict=True)):
            try:
                same(b, a)
            except AssertionError as error:
                error.add_note(f"sample {number}, {sample}, result {place}")
                raise
