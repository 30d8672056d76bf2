"""Routines that NumPy brings, by their addresses: its inner loops of functions, BLAS's threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
from typing import Any

import numpy as np

# Of the function that says how many threads OpenBLAS may use, in builds of it.
_LIMITS = tuple(
    f"{prefix}openblas_get_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "")
)


@functools.cache
def thread_limit() -> int:
    """The address of the function that says how many threads NumPy's OpenBLAS may use; 0: none."""
    package = os.path.dirname(np.__file__)
    for place in (f"{package}.libs", os.path.join(package, ".dylibs")):
        for path in glob.glob(os.path.join(place, "*openblas*")):
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(path)  # loaded already: the same handle
                names = (name for name in _LIMITS if hasattr(library, name))
                for name in names:
                    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return 0


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
