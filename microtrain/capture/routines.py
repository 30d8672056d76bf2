"""Routines that NumPy brings, by their addresses: BLAS, and its own inner loops of functions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib.util
import os
from typing import Any

import numpy as np

# (prefix, suffix, bits of an integer) of the names that builds of OpenBLAS give their routines.
_NAMES = tuple(
    (prefix, suffix, bits)
    for suffix, bits in (("64_", 64), ("", 32))
    for prefix in ("scipy_cblas_", "cblas_")
)
ROUTINES = ("sgemm", "dgemm", "sgemv", "dgemv")


@functools.cache
def blas() -> tuple[dict[str, int], int] | None:
    """The addresses of `ROUTINES` in `library`, and the bits of its integers."""
    path = library()
    for prefix, suffix, bits in _NAMES if path else ():
        found = ctypes.CDLL(path)  # NumPy's is loaded already: the same handle
        names = {name: f"{prefix}{name}{suffix}" for name in ROUTINES}
        if all(hasattr(found, symbol) for symbol in names.values()):
            routines = {name: getattr(found, symbol) for name, symbol in names.items()}
            void = ctypes.c_void_p
            return {n: ctypes.cast(f, void).value or 0 for n, f in routines.items()}, bits
    return None


@functools.cache
def library() -> str:
    """The OpenBLAS that NumPy brought, which gives NumPy's bits, or else the one of SciPy.

    Empty where both were built with something else: products then stay calls of NumPy.
    """
    for name in ("numpy", "scipy"):
        spec = importlib.util.find_spec(name)
        package = os.path.dirname(spec.origin or "") if spec else ""
        for place in (f"{package}.libs", os.path.join(package, ".dylibs")):
            for path in glob.glob(os.path.join(place, "*openblas*")):
                with contextlib.suppress(OSError):
                    found = ctypes.CDLL(path)
                    if any(hasattr(found, f"{a}dgemm{b}") for a, b, _ in _NAMES):
                        return path
    return ""


@functools.cache
def routine_of(name: str, dtype: Any) -> tuple[int, int] | None:
    """NumPy's own inner loop of a function with one argument: the addresses of code and data.

    It stands in the ufunc as NumPy's C interface lays that out; None where it is not found there.
    """
    ufunc: Any = getattr(np, name, None)
    head = object.__basicsize__
    known = isinstance(ufunc, np.ufunc) and ctypes.sizeof(ctypes.c_void_p) == 8
    if not known or (ufunc.nin, ufunc.nout) != (1, 1):
        return None
    counts = (ctypes.c_int * 3).from_address(id(ufunc) + head)  # nin, nout, nargs
    codes, data = (ctypes.c_void_p * 2).from_address(id(ufunc) + head + 16)
    if tuple(counts) != (1, 1, 2) or not codes:
        return None
    for number, types in enumerate(ufunc.types):
        if types == f"{dtype.char}->{dtype.char}":
            found = (ctypes.c_void_p * (number + 1)).from_address(codes)[number]
            more = (ctypes.c_void_p * (number + 1)).from_address(data)[number] if data else None
            return (found, more or 0) if found and _works(ufunc, dtype, found, more) else None
    return None


def _works(ufunc: Any, dtype: Any, code: int, data: int | None) -> bool:
    """Whether the routine at `code` computes what `ufunc` does."""
    x = np.linspace(-2, 2, 37).astype(dtype)
    out, size = np.zeros_like(x), ctypes.c_ssize_t
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
    prototype(code)(
        (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data), (size * 1)(x.size),
        (size * 2)(x.itemsize, x.itemsize), data,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return bool(np.array_equal(out, ufunc(x), equal_nan=True))
