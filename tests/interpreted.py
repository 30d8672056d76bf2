"""The native source of compiled steps, run by Python on NumPy's scalars: no compiler, any memory.

Slow for numbers, but a step is ready at once, so random programs by the hundred can be replayed.
"""

from __future__ import annotations

import ctypes
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

KINDS = "float32 float64 int8 int16 int32 int64 uint8 uint32 uint64".split()


class Memory:
    """Elements of one dtype from an address on."""

    def __init__(self, address: int, dtype: Any) -> None:
        self.address, self.dtype = address, np.dtype(dtype)
        self.kind = np.ctypeslib.as_ctypes_type(self.dtype)

    def element(self, index: Any) -> Any:
        return self.kind.from_address(self.address + int(index) * self.dtype.itemsize)

    def matrix(self, flag: int, rows: int, columns: int, leading: int) -> Any:
        """What BLAS sees: `flag` 112 for the transpose of what is there."""
        if flag == 112:
            return self.matrix(111, columns, rows, leading).T
        assert leading >= columns
        return self.strided((rows, columns), (leading, 1))

    def strided(self, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
        assert min(steps) > 0
        length = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        flat = np.frombuffer((self.kind * length).from_address(self.address), self.dtype)
        return as_strided(flat, shape, [step * self.dtype.itemsize for step in steps])


def cast(name: str) -> Callable[[Any], Any]:
    return lambda value: np.asarray(value).astype(name)[()]


def pointer(table: int, slot: int, kind: Any) -> Memory:
    return Memory(ctypes.c_int64.from_address(table + 8 * slot).value, kind(0).dtype)


def get(memory: Memory, index: Any, _: str) -> Any:
    return memory.dtype.type(memory.element(index).value)


def put(memory: Memory, index: Any, value: Any, _: str) -> None:
    memory.element(index).value = np.asarray(value).astype(memory.dtype).item()


def gemm(_: Any, __: Any, ___: Any, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
    _, a, lda, b, ldb, _, c, ldc = rest
    c.matrix(111, m, n, ldc)[...] = a.matrix(ta, m, k, lda) @ b.matrix(tb, k, n, ldb)


def gemv(_: Any, __: Any, ___: Any, flag: int, m: int, n: int, *rest: Any) -> None:
    _, a, lda, x, x_step, _, y, y_step = rest
    matrix = a.matrix(111, m, n, lda)
    matrix = matrix.T if flag == 112 else matrix
    vector = x.strided((matrix.shape[1],), (x_step,))
    y.strided((matrix.shape[0],), (y_step,))[...] = matrix @ vector


def njit(*_: Any, **__: Any) -> Any:
    """What `cache.load` returns of a function, as far as the executor uses it."""
    return lambda f: types.SimpleNamespace(
        overloads=[types.SimpleNamespace(entry_point=f)], signatures=[0]
    )


def load(source: str) -> dict[str, Any]:
    """In place of `microtrain.compile.cache.load`."""
    scope: dict[str, Any] = {
        **{name: cast(name) for name in KINDS},
        "CACHE": False, "math": math, "math_ceil": np.ceil, "math_floor": np.floor, "njit": njit,
        "pointer": pointer, "get": get, "put": put, "gemm": gemm, "gemv": gemv,
        "address": lambda table, slot: 0, "done": lambda: None,
        "ahead": lambda m, n: Memory(m.address + int(n) * m.dtype.itemsize, m.dtype),
    }  # fmt: skip
    exec(source[source.index("@njit") :], scope)
    return scope
