"""What tests of native code ask for."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import pytest

from microtrain.capture.c_compiler import absent, runtime

NATIVE = pytest.mark.skipif(bool(absent()), reason=absent())


def needs_compiler() -> None:
    """Skip the test where there is none."""
    if absent():
        pytest.skip(absent())


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let native code have so many threads, however many cores there are."""
    cores = ctypes.c_int64.in_dll(runtime(), "cores")
    limit = ctypes.c_void_p.in_dll(runtime(), "limit")
    before = cores.value, limit.value
    cores.value, limit.value = count, None
    try:
        yield
    finally:
        cores.value, limit.value = before
