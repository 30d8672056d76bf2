"""CUDA graphs: a stretch of kernels that the GPU is given at once, instead of one by one.

A graph repeats its kernels with the addresses that they were captured with. What a stretch takes
while it runs comes from a pool of its own, which lives as long as the graph.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# CuPy refuses cuBLAS while a stream is captured, which cuBLAS itself allows; meanwhile its products
# are called from here. By CuPy's name: that of the library, and the types of the arguments.
_START = "piiiiip"
PRODUCTS = {
    "gemmEx": ("cublasGemmEx", _START + "piipii" + "p" + "pii" + "ii"),
    "gemmStridedBatchedEx":
        ("cublasGemmStridedBatchedEx", _START + "piilpiil" + "p" + "piil" + "iii"),
    "gemmBatchedEx": ("cublasGemmBatchedEx", _START + "piipii" + "p" + "pii" + "iii"),
    "sgemmBatched": ("cublasSgemmBatched", _START + "pipi" + "p" + "pi" + "i"),
    "dgemmBatched": ("cublasDgemmBatched", _START + "pipi" + "p" + "pi" + "i"),
}  # fmt: skip
TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_longlong}
# What the products of CuPy compute in may be a dtype (float32, float64, float16); cuBLAS's own
# number for each.
COMPUTE = {0: 68, 1: 70, 2: 64}

_TURN = threading.Lock()  # threads that are ranks capture one after the other


def possible(module: Any) -> bool:
    """Whether this CuPy has graphs: AMD's has none."""
    return not module.cuda.runtime.is_hip


def captured(module: Any, stretch: Callable[[], None]) -> Callable[[], None]:
    """A function that does on the GPU what `stretch` would do now, on the current stream.

    `stretch` must have run before, so that all it needs is loaded. Raises what CuPy or CUDA
    refuses in a capture, copies from and to the host among it.
    """
    cuda = module.cuda
    stream, pool = cuda.Stream(non_blocking=True), cuda.MemoryPool()
    with _TURN, _products(module), stream, cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        try:
            stretch()
        finally:
            graph = stream.end_capture()
    launch = graph.launch

    def run(_: Any = pool) -> None:
        launch()

    return run


@contextmanager
def _products(module: Any) -> Iterator[None]:
    """Inside, CuPy's products are called from here."""
    from cupy_backends.cuda.libs import cublas  # type: ignore[import-not-found]

    library = _library()
    there = {name: getattr(cublas, name) for name in PRODUCTS if hasattr(cublas, name)}
    try:
        for name in there:
            setattr(cublas, name, _product(module, library, *PRODUCTS[name]))
        yield
    finally:
        for name, function in there.items():
            setattr(cublas, name, function)


def _product(module: Any, library: Any, symbol: str, kinds: str) -> Callable[..., None]:
    """A product of matrices on the current stream."""
    function = getattr(library, symbol)
    function.argtypes = [TYPES[kind] for kind in kinds]
    place = len(kinds) - 2 if symbol.endswith("Ex") else None  # of what it computes in

    def call(*given: Any) -> None:
        args = [*given]
        if place is not None:
            args[place] = COMPUTE.get(args[place], args[place])
        stream = module.cuda.get_current_stream().ptr
        status = library.cublasSetStream_v2(args[0], stream) or function(*args)
        if status:
            raise RuntimeError(f"{symbol}: status {status}")

    return call


@functools.cache
def _library() -> Any:
    """The cuBLAS that CuPy has loaded."""
    with open("/proc/self/maps") as file:
        paths = [line.split()[-1] for line in file if "libcublas.so" in line]
    if not paths:
        raise RuntimeError("no cuBLAS is loaded")
    library = ctypes.CDLL(paths[0])
    library.cublasSetStream_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return library
