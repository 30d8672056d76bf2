"""What NumPy allocates for arrays, also those that are gone at once: by an allocator of ours."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_char, c_char_p, c_size_t, c_uint8, c_void_p, py_object

import numpy as np

_C = ctypes.CDLL(None)
_C.malloc.argtypes, _C.malloc.restype = [c_size_t], c_void_p
_C.calloc.argtypes, _C.calloc.restype = [c_size_t, c_size_t], c_void_p
_C.realloc.argtypes, _C.realloc.restype = [c_void_p, c_size_t], c_void_p
_C.free.argtypes, _C.free.restype = [c_void_p], None

_SIZES: list[int] = []


@CFUNCTYPE(c_void_p, c_void_p, c_size_t)
def _malloc(_: int, size: int) -> int:
    _SIZES.append(size)
    return _C.malloc(size)


@CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
def _calloc(_: int, count: int, size: int) -> int:
    _SIZES.append(count * size)
    return _C.calloc(count, size)


@CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
def _realloc(_: int, place: int, size: int) -> int:
    _SIZES.append(size)
    return _C.realloc(place, size)


@CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
def _free(_: int, place: int, size: int) -> None:
    _C.free(place)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, see "Memory management in NumPy" in its C API."""

    _fields_ = [("name", c_char * 127), ("version", c_uint8), ("functions", c_void_p * 5)]


_FUNCTIONS = [ctypes.cast(f, c_void_p) for f in (_malloc, _calloc, _realloc, _free)]
_HANDLER = _Handler(b"noting sizes", 1, (c_void_p * 5)(None, *_FUNCTIONS))
_NAME = b"mem_handler"  # kept: a capsule points to it
_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_OURS = _capsule(ctypes.addressof(_HANDLER), _NAME, None)
_SET_HANDLER = 304  # its place in the table of the C API


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """The bytes of every array memory that is allocated inside, in order."""
    table = _pointer(np._core._multiarray_umath._ARRAY_API, None)
    function = ctypes.cast(table, ctypes.POINTER(c_void_p))[_SET_HANDLER]
    set_handler = PYFUNCTYPE(py_object, py_object)(function)
    found: list[int] = []
    before = set_handler(_OURS)
    _SIZES.clear()
    try:
        yield found
    finally:
        set_handler(before)
        found += _SIZES
