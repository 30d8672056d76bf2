"""What the tests of this folder share: the CuPy that is installed, on a GPU or on the processor.

Where there is none, a module that imports this one is skipped, with the reason. On the processor
(scripts/gpu_on_cpu) Thrust's sort and argsort are NumPy's on the same memory, and what needs a
library that is not there is skipped by name.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import backend, numerics
from microtrain.autograd import anomaly
from microtrain.backend import MODES, XP
from microtrain.tensor import TENSORS

ON_PROCESSOR = "GPU_ON_CPU" in os.environ

try:
    backend.cuda()
except RuntimeError as error:
    pytest.skip(str(error).partition(";")[0], allow_module_level=True)

import cupy  # noqa: E402

if ON_PROCESSOR:
    from cupy.cuda import thrust

    def _view(dtype: Any, address: int, shape: Any) -> Any:
        size = int(np.prod(shape))
        memory = (ctypes.c_char * max(size * np.dtype(dtype).itemsize, 1)).from_address(address)
        return np.frombuffer(memory, dtype, size).reshape(shape)

    def _sort(dtype: Any, data: int, keys: int, shape: Any) -> None:
        _view(dtype, data, shape).sort(-1)

    def _argsort(dtype: Any, order: int, data: int, keys: int, shape: Any) -> None:
        _view(np.intp, order, shape)[...] = _view(dtype, data, shape).argsort(-1, kind="stable")

    thrust.sort, thrust.argsort = _sort, _argsort

RTOL = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3}
ATOL = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3}


def same(there: Any, here: Any, scale: float = 1) -> None:
    """That a result of CuPy's is NumPy's: shape, dtype and values, to `scale` times the usual."""
    assert (there.shape, there.dtype) == (here.shape, here.dtype)
    if here.dtype.kind != "f":
        np.testing.assert_array_equal(there, here)
        return
    kind = here.dtype.name
    # A sum of large numbers that is near zero is as far off as they are large.
    largest = float(np.abs(here[np.isfinite(here)]).max(initial=1))
    np.testing.assert_allclose(
        there, here, rtol=scale * RTOL[kind], atol=scale * ATOL[kind] * largest
    )


def on_host(tensor: Any) -> Any:
    """A Tensor's array as NumPy's, a GPU's copied."""
    return backend.to_host(tensor._array)


def compared(function: Callable[..., Any], *arrays: Any, scale: float = 1) -> None:
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


class _Looking(anomaly._Anomaly):
    """Anomaly detection that looks at dtypes: of what operations return, and of gradients."""

    def __init__(self, look: Callable[[str, Any], None]) -> None:
        super().__init__(False, False)
        self.look = look

    def watch(self, backward: Callable[..., Any], node: Any, g: Any) -> Any:
        grads = super().watch(backward, node, g)
        for value in grads:
            self.look(f"the gradient of {node._op.node_name}", value)
        return grads

    def check(self, operation: str, outputs: Any, inputs: Any) -> None:
        for value in outputs:
            self.look(operation, value)


class _Called:
    """An instruction of CuPy's namespace whose results are looked at."""

    def __init__(self, name: str, function: Any, look: Callable[[str, Any], None]) -> None:
        self._name, self._function, self._look = name, function, look

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._function(*args, **kwargs)
        self._look(f"cupy.{self._name}", result)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


@contextmanager
def only(dtype: Any) -> Iterator[Callable[[], None]]:
    """Asserts that all floats made inside, by operations, gradients or kernels, are of `dtype`.

    Operations and gradients are looked at in this thread, and in those that call what this yields.
    """
    other: set[str] = set()

    def look(what: str, value: Any) -> None:
        array = value._array if type(value) in TENSORS else value
        if getattr(getattr(array, "dtype", None), "kind", "") == "f" and array.dtype != dtype:
            other.add(f"{what}: {array.dtype.name}")

    namespace, before = XP[cupy.ndarray], MODES.anomaly
    names = [*backend.INSTRUCTIONS, *numerics.__all__, "sum", "max", "min", "take", "ones_of"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(namespace, name, _Called(name, getattr(namespace, name), look))
        looking = _Looking(look)
        anomaly._set(looking)
        try:
            yield lambda: anomaly._set(looking)
        finally:
            anomaly._set(before)
    if other:
        raise AssertionError(f"not {np.dtype(dtype).name}: {', '.join(sorted(other))}")
